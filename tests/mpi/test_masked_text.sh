#!/usr/bin/env bash
# examples/masked-text.py makes what BERT and T5 learn from: checked against the text. The models that
# take it train to the same bits on one, two and four ranks.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
script=$SMP_EXAMPLES/masked-text.py
write_text text.txt 30000

cat >check.py <<'END'
"""check.py bert|t5 FOLDER PART BEGIN END: the samples of a part against those bytes of text.txt."""
import array
import ast
import sys

task, folder, part, begin, end = sys.argv[1:]
text = open("text.txt", "rb").read()[int(begin):int(end)]


def read(name):
    data = open("%s/%s-%s.npy" % (folder, part, name), "rb").read()
    size = data[8] + 256 * data[9]
    header = ast.literal_eval(data[10:10 + size].decode())
    assert data[:8] == b"\x93NUMPY\x01\x00" and (10 + size) % 64 == 0 and not header["fortran_order"]
    values = array.array({"|u1": "B", "<u2": "H", "<i4": "i"}[header["descr"]], data[10 + size:])
    rows, columns = header["shape"]
    assert len(values) == rows * columns and rows > 0
    return [values[i * columns:(i + 1) * columns].tolist() for i in range(rows)]


def bert():
    kinds = {"masked": 0, "random": 0, "kept": 0}
    pieces = []
    for row in zip(read("tokens"), read("segments"), read("mask"), read("targets")):
        used = sum(row[2])
        assert row[2] == [1] * used + [0] * (len(row[2]) - used)
        assert set(row[0][used:]) <= {256} and set(row[3][used:]) <= {-1}
        piece, marks = [], []
        for i, (token, segment, _, target) in enumerate(zip(*row)):
            if token in (257, 258):
                marks.append((token, segment))
                assert target == -1
            elif i < used:
                piece.append(token if target == -1 else target)
                if target != -1:
                    kinds["masked" if token == 259 else "kept" if token == target else "random"] += 1
        assert marks == [(257, 0), (258, 0), (258, 1)], marks
        assert row[1] == sorted(row[1][:used]) + [0] * (len(row[1]) - used)
        pieces.append(bytes(piece))
    return pieces, sum(kinds.values()), kinds


def t5():
    asked = sentinels = 0
    pieces = []
    for tokens, mask, before, targets in zip(*map(read, ("tokens", "mask", "decoder_tokens", "targets"))):
        used = sum(mask)
        assert mask == [1] * used + [0] * (len(mask) - used) and set(tokens[used:]) <= {256}
        assert tokens[used - 1] == 257 and before[0] == 256
        # The decoder reads what it has to write, one later; some has no target.
        length = max(i for i, token in enumerate(before) if token != 256 or i == 0)
        for i in range(length):
            assert targets[i] in (before[i + 1], -1)
            assert (targets[i] == -1) == (part == "held" and before[i + 1] >= 258)
        assert targets[length] == (-1 if part == "held" else 257)
        assert set(targets[length + 1:]) <= {-1}
        spans = {}
        for token in before[1:length + 1]:
            if token >= 258:
                spans[token] = []
                current = spans[token]
            else:
                current.append(token)
        assert list(spans) == list(range(258, 258 + len(spans))) and all(spans.values())
        asked += sum(map(len, spans.values()))
        sentinels += len(spans)
        piece = []
        for token in tokens[:used - 1]:
            piece += spans.pop(token) if token >= 258 else [token]
        assert not spans
        pieces.append(bytes(piece))
    return pieces, asked, {"span": asked / sentinels}


pieces, asked, more = {"bert": bert, "t5": t5}[task]()
at = 0
copies = 1
wanted = {"bert": 2, "t5": 4}[task] if part == "train" else 1
for piece in pieces:  # one behind the other; a further copy begins anew
    found = text.find(piece, at, at + len(piece))
    if found < 0 and copies < wanted:
        copies, at = copies + 1, text.find(piece, 0, 100 + len(piece))
        found = at
    assert found == at >= 0, (piece, at)
    at += len(piece)
assert len(text) - at < 50 and copies == wanted
assert len(set(map(len, pieces))) > 3
share = asked / sum(map(len, pieces))
assert abs(share - 0.15) < 0.02, share
if part == "train" and task == "bert":
    assert abs(more["masked"] / asked - 0.8) < 0.03 and abs(more["random"] / asked - 0.1) < 0.02, more
if task == "t5":
    assert abs(more["span"] - 3) < 0.3, more
print("right", asked)
END

for task in bert t5; do
    expect_exit 0 python3 "$script" "$task" text.txt "$task"
    cp out "$task.out"
    expect_exit 0 python3 check.py "$task" "$task" train 0 29400
    expect_exit 0 python3 check.py "$task" "$task" held 29400 30000
    expect_match out "^right"
    expect_match "$task.out" "^held out: $(sed -n 's/right //p' out) bytes asked for; unigram [1-3][.].* bigram [0-2][.]"
    cp -r "$task" again
    expect_exit 0 python3 "$script" "$task" text.txt "$task"
    expect_equal "$task: made again" "$(diff -r "$task" again && echo same)" same
    rm -r again

    data=()
    for file in "$task"/train-*.npy; do
        input=$(basename "$file" .npy)
        input=${input#train-}
        data+=(--data "$input=$file" --eval-data "$input=$task/held-$input.npy")
    done
    for split in 1:simple:1 2:zero-bubble:2 4:interleaved:1; do
        IFS=: read -r ranks schedule chunks <<<"$split"
        expect_exit 0 smp-partition "$SMP_EXAMPLES/$task-small.yaml" -n "$ranks" --stages "$ranks" --ddp 1 \
            --pipeline "$schedule" --chunks "$chunks" --microbatch-size 2 --microbatches 4 -o plan.yaml
        expect_exit 0 mpirun -n "$ranks" smp-run plan.yaml "${data[@]}" --steps 4 --lr 3e-3 --json --checksum
        expect_match out '"eval_loss": ?[1-9]'
        grep -oE '"(loss|eval_loss|weights)": ?[^,}]*' out >"$task.$ranks"
        expect_equal "$task on $ranks ranks" "$(diff "$task.1" "$task.$ranks" && echo same)" same
    done
done

expect_exit 1 python3 "$script" bert /dev/null none
expect_match err 'got 0 bytes, expected at least 5000'
finish

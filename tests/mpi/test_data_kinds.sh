#!/usr/bin/env bash
# The same samples as arrays, IDX, images and several files train alike, bit for bit; a part that is held
# out and the number of passes are what they say; a run that is killed in the middle of a pass goes on in
# its order without a flag, and refuses another one.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
cat >model.yaml <<'END'
smp: 1
name: marks
inputs:
  image: {dtype: float32, shape: [1, 6, 4]}
  label: {dtype: int32, shape: []}
ops:
  - {op: reshape, name: flat, in: image, out: x, shape: [24]}
  - {op: linear, name: a, in: x, out: x, features: 16}
  - {op: gelu, name: b, in: x, out: x}
  - {op: linear, name: head, in: x, out: y, features: 3}
  - {op: cross_entropy, name: loss, in: [y, label], out: loss}
loss: loss
END
python3 - <<'END'
import os, random, struct, zlib

def npy(path, shape, data):
    text = "{'descr': '|u1', 'fortran_order': False, 'shape': (%s), }" % "".join("%d, " % d for d in shape)
    text += " " * (-(len(text) + 11) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data)

def idx(path, shape, data):
    with open(path, "wb") as file:
        file.write(struct.pack(">HBB", 0, 8, len(shape)) + struct.pack(">%dI" % len(shape), *shape) + data)

def png(path, data, width=4, height=6):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + data[width * y:width * (y + 1)] for y in range(height))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n"
                   + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
                   + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))

random.seed(3)
labels = bytes(10 * [0] + 11 * [1] + 9 * [2])  # in the order of a folder
images = [bytes(random.randrange(256) for _ in range(24)) for _ in labels]
npy("images.npy", [30, 1, 6, 4], b"".join(images))
npy("labels.npy", [30], labels)
for name, part in ("1", slice(0, 7)), ("2", slice(7, 8)), ("3", slice(8, 30)):
    npy("part-%s.npy" % name, [len(images[part]), 1, 6, 4], b"".join(images[part]))
idx("train-images-idx3-ubyte", [30, 6, 4], b"".join(images))
idx("train-labels-idx1-ubyte", [30], labels)
for i, (label, image) in enumerate(zip(labels, images)):
    png("set/%s/%02d.png" % ("abc"[label], i), image)
png("wide/a/1.png", bytes(30), 5)
END

expect_exit 0 smp-partition model.yaml -n 2 --stages 2 --chunks 1 --microbatches 4 --microbatch-size 2 -o 2.yaml
expect_exit 0 smp-partition model.yaml -n 4 --stages 2 --chunks 1 --ddp 2 --microbatches 2 --microbatch-size 2 -o 4.yaml
npy=(--data image=images.npy --data label=labels.npy)

train() { # ranks name options...
    local ranks=$1 name=$2
    shift 2
    expect_exit 0 mpirun -n "$ranks" smp-run "$ranks.yaml" --json --checksum --lr 0.01 "$@"
    losses out >"$name.loss"
    sed -nE 's/.*"weights": "([0-9a-f]+)".*/\1/p' out >"$name.weights"
    [ -s "$name.weights" ] || fail "$name: no weight hash"
}

same() { # name reference
    expect_equal "losses of $1 and $2" "$(cat "$1.loss")" "$(cat "$2.loss")"
    expect_equal "weights of $1 and $2" "$(cat "$1.weights")" "$(cat "$2.weights")"
}

# Two ranks read alike, four are replicas with samples of their own.
both=(4)
[ -z "${SMP_TEST_LONG-}" ] || both=(2 4)
for ranks in "${both[@]}"; do
    train "$ranks" npy "${npy[@]}" --epochs 3
    expect_equal "steps of three passes" "$(wc -l <npy.loss | tr -d ' ')" 12
    expect_equal "different losses" "$(cut -d' ' -f2 npy.loss | sort -u | wc -l | tr -d ' ')" 12
    train "$ranks" idx --data image=train-images-idx3-ubyte --data label=train-labels-idx1-ubyte --steps 12
    same idx npy
    train "$ranks" images --data image=set --steps 12
    same images npy
    train "$ranks" parts --data 'image=part-?.npy' --data label=labels.npy --steps 12
    same parts npy
done

# 24 of 30 samples are batches of 8; without their last one 30 are three of 8.
train 2 split "${npy[@]}" --epochs 2 --eval-split 0.2 --eval-every 3 --lr 0
expect_equal "steps of two passes" "$(wc -l <split.loss | tr -d ' ')" 6
expect_equal "evaluations" "$(grep -c eval_loss out)" 2
# At a learning rate of 0 a pass and what is held out are together the mean over all samples.
held=$(sed -nE 's/.*"step": 6, "eval_loss": ([^,]*),.*/\1/p' out)
train 2 all "${npy[@]}" --epochs 1 --lr 0
expect_equal "the mean over all samples" \
    "$(awk -v held="$held" 'NR <= 3 { s += 8 * $2 } END { printf "%.5f", (s + 6 * held) / 30 }' split.loss)" \
    "$(awk '{ s += (NR < 4 ? 8 : 6) * $2 } END { printf "%.5f", s / 30 }' all.loss)"
train 2 dropped "${npy[@]}" --epochs 2 --drop-last
expect_equal "steps without short ones" "$(wc -l <dropped.loss | tr -d ' ')" 6

# Killed in the middle of a pass. 21 of 30 samples are batches of 8, 8 and 5. A disk that never has
# synced the checkpoint of step 6 keeps the job from going on far.
order=(--data-seed 7 --eval-split 0.3)
for ranks in "${both[@]}"; do
    rm -rf saved pid.* killed
    # shellcheck disable=SC2016 # expanded by the ranks' shells, whose process is then that of the rank
    mpirun -n "$ranks" bash -c 'echo $$ >"pid.$OMPI_COMM_WORLD_RANK"; exec "$@"' rank env \
        LD_PRELOAD="$SMP_BIN_DIR/bad_disk.so" BAD_RANK=0 HOLD_SYNC=6.smp.part HOLD_UNTIL="$PWD/never" \
        smp-run "$ranks.yaml" "${npy[@]}" "${order[@]}" --json --lr 0.01 --steps 100000 --checkpoint saved \
        --save-every 2 >killed 2>err </dev/null &
    job=$!
    wait_for 50 grep -qs '"step": 7,' killed || fail "no step 7 within 50 seconds"
    cat pid.* | xargs kill -KILL || fail "the job has ended by itself"
    wait "$job" 2>/dev/null || true
    expect_equal "saved by the job that was killed" "$(checkpoints saved)" "2.smp 4.smp 6.smp.part "
    train "$ranks" resumed "${npy[@]}" --checkpoint saved --resume --steps 9
    train "$ranks" whole "${npy[@]}" "${order[@]}" --steps 9
    tail -n 5 whole.loss >last.loss
    expect_equal "losses of a resumed run" "$(cat resumed.loss)" "$(cat last.loss)"
    expect_equal "weights of a resumed run" "$(cat resumed.weights)" "$(cat whole.weights)"
done
train 2 counted "${npy[@]}" --checkpoint saved --resume --epochs 1 # has ended long since
expect_equal "steps of a run that has ended" "$(cat counted.loss)" ""
expect_exit 0 mpirun -n 2 smp-run 2.yaml --checkpoint saved --resume --steps 0 --export-weights w.safetensors
for other in "--data-seed 8" --no-shuffle --drop-last "--eval-split 0.2" "--eval-data image=set"; do
    # shellcheck disable=SC2086 # one word per option
    expect_exit 2 mpirun -n 2 smp-run 2.yaml "${npy[@]}" --checkpoint saved --resume --steps 9 $other
    expect_match err "smp-run: ${other%% *}: the run that is resumed h"
done

# Bad input: one message, before the first step.
bad() { # regex options...
    expect_exit 2 mpirun -n 2 smp-run 2.yaml --steps 2 "${@:2}"
    expect_equal "messages" "$(grep -c '^smp-run: ' err)" 1
    expect_equal "steps" "$(wc -c <out | tr -d ' ')" 0
    expect_match err "$1"
}
bad 'wide/a/1.png: got an image of 5 x 6 pixels, expected 4 x 6' --data image=wide
bad "nothing-.: the pattern matches no file" --data 'image=nothing-?' --data label=labels.npy
bad '0.01 of 30 samples cannot be held out' "${npy[@]}" --eval-split 0.01
for share in 0 1 -0.1 nan half; do
    bad "eval-split: got '$share', expected a share above 0 and below 1" "${npy[@]}" --eval-split "$share"
done
bad 'eval-split and --eval-data: give one' "${npy[@]}" --eval-split 0.5 --eval-data image=set
bad 'epochs and --steps: give one' "${npy[@]}" --epochs 2
bad 'epochs: got .0., expected' "${npy[@]}" --epochs 0

# What is broken behind its header is found when it is read: by name, and all ranks end.
truncate -s 60 set/b/15.png
run mpirun -n 2 smp-run 2.yaml --data image=set --epochs 1
[ "$status" -ne 0 ] || fail "trained on a broken image"
expect_match err 'smp-run: .*set/b/15.png: broken PNG image: '
# Samples per second count the waiting for data: of a disk that takes 10 ms for a sample no more than 100 come,
# but for the batch that was read beside the first step.
expect_exit 0 smp-partition model.yaml -n 1 --microbatch-size 2 --microbatches 1 -o slow.yaml
expect_exit 0 env LD_PRELOAD="$SMP_BIN_DIR/bad_disk.so" SLOW_READ=images.npy smp-run slow.yaml "${npy[@]}" --json --steps 8
expect_equal "samples per second of steps that waited" \
    "$(sed -nE 's/.*"samples_per_s": ([0-9.]+).*/\1/p' out | awk '$1 <= 100 { n++ } END { print (n >= 6) }')" 1
finish

#!/usr/bin/env bash
# A trained weight that no backward reaches has a gradient of zero in every step, also where the
# optimizer leaves something in the gradient's place (LAMB: its direction, which is not zero with
# weight decay), whoever sums it and however its blocks are added: one process, a pipeline, replicas,
# shards and a resumed run have the same bits. Its way is known: LAMB's direction is decay * w, which
# goes by |w| / |decay * w|, so that it loses the share `lr` of itself in every step.
# shellcheck source=training.sh
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"
steps=3

cat >dead.yaml <<'END'
smp: 1
name: dead
let: {T: 16, d: 8, vocab: 256}
inputs:
  tokens: {dtype: int32, shape: [T]}
  targets: {dtype: int32, shape: [T]}
ops:
  - {op: embedding, name: wte, in: tokens, out: x, rows: vocab, features: d}
  - {op: linear, name: unread, in: x, out: other, features: 2*d}
  - {op: linear, name: mix, in: x, out: x, features: d}
  - {op: gelu, name: act, in: x, out: x}
  - {op: linear, name: head, in: x, out: y, features: vocab}
  - {op: linear, name: last, in: y, out: unread_too, features: 4}
  - {op: cross_entropy, name: loss, in: [y, targets], out: loss}
loss: loss
END

lamb=(--optimizer lamb --weight-decay 0.1)
way() { # name ddp stages pipeline chunks [option of the plan...]
    plan "$1.yaml" dead.yaml $(($2 * $3)) "$3" "$2" "$4" "$5" $((8 / $2)) 1 none --gradient-blocks 4 "${@:6}"
    train "$1.yaml" $(($2 * $3)) "$1" "${lamb[@]}"
    sort -u -o "$1.weights" "$1.weights" # of all replicas
}
way whole 1 1 simple 1
way pipeline 1 2 simple 1
way halves 1 2 zero-bubble 1
way replicas 2 1 simple 1
way both 2 2 interleaved 2
for shard in optimizer gradients weights; do
    way "$shard" 2 1 simple 1 --shard 2 --shard-what "$shard"
done
for name in pipeline halves replicas both optimizer gradients weights; do
    same "$name" whole
done

# Saved behind the second step, gone on with by other ranks.
steps=2
train whole.yaml 1 begun "${lamb[@]}" --checkpoint saved
steps=1
train pipeline.yaml 2 resumed "${lamb[@]}" --checkpoint saved --resume --steps 3
cat begun.loss resumed.loss >all.loss
mv all.loss resumed.loss
same resumed whole

# lr rises to 0.003 in five steps; both weights as they were and as they are.
expect_exit 0 mpirun -n 1 smp-run whole.yaml --data text.txt --steps 0 --seed 11 --export-weights first.safetensors
expect_exit 0 mpirun -n 2 smp-run pipeline.yaml --data text.txt --steps 3 --checkpoint saved --resume \
    "${lamb[@]}" --export-weights third.safetensors
python3 - >ratio <<'END'
import json, struct
def weights(name):
    data = open(name, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    return {key: struct.unpack(f"<{(at['data_offsets'][1] - at['data_offsets'][0]) // 4}f",
                               data[8 + n + at["data_offsets"][0]:8 + n + at["data_offsets"][1]])
            for key, at in head.items() if key != "__metadata__"}
first, third = weights("first.safetensors"), weights("third.safetensors")
expected = (1 - 0.0006) * (1 - 0.0012) * (1 - 0.0018)
for name in "unread.weight", "last.weight":
    worst = max(abs(b - a * expected) for a, b in zip(first[name], third[name]))
    print(name, "right" if worst < 1e-6 * max(map(abs, first[name])) else f"off by {worst:g}")
END
expect_equal "three steps of LAMB on zero gradients" "$(cat ratio)" "$(printf 'unread.weight right\nlast.weight right')"
finish

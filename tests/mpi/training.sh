# Sourced by scripts that train models cut in many ways and compare every bit: plans, runs of 8 steps
# on a made-up text, losses and hashes of weights. In the long run (SMP_TEST_LONG) of 20 steps, and of
# all of gpt-tiny; bits that differ do so at once.
# shellcheck shell=bash
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
limit_s=120
steps=8
tiny=tiny.yaml
sed 's/layers: 4/layers: 2/' "$SMP_EXAMPLES/gpt-tiny.yaml" >tiny.yaml
if [ -n "${SMP_TEST_LONG-}" ]; then
    steps=20
    # shellcheck disable=SC2034 # for tests
    tiny=$SMP_EXAMPLES/gpt-tiny.yaml
fi
write_text text.txt 60000

plan() { # file model devices stages ddp pipeline chunks microbatches size [recompute] [option...]
    expect_exit 0 smp-partition "$2" -n "$3" --stages "$4" --ddp "$5" --pipeline "$6" --chunks "$7" \
        --microbatches "$8" --microbatch-size "$9" --recompute "${10:-none}" -o "$1" "${@:11}"
}

# train PLAN RANKS NAME [option...]: losses in NAME.loss, weight hashes in NAME.weights.
train() {
    expect_exit 0 mpirun -n "$2" smp-run "$1" --data text.txt --steps "$steps" --json --checksum \
        --lr 0.003 --warmup 5 --decay-steps 20 --clip 1 --seed 11 "${@:4}"
    grep -E '^\{' out >"$3.json" || true
    expect_json --lines "$3.json"
    sed -nE 's/.*"loss": ?([^,}]*).*/\1/p' "$3.json" >"$3.loss"
    sed -nE 's/.*"replica": [0-9]+, "weights": "([0-9a-f]+)".*/\1/p' out >"$3.weights"
    expect_equal "$3: steps" "$(wc -l <"$3.loss" | tr -d ' ')" "$steps"
    # A loss that stands still would make every comparison below worthless.
    expect_equal "$3: different losses" "$(sort -u "$3.loss" | wc -l | tr -d ' ')" "$steps"
}

same() { # name reference
    expect_equal "$1 against $2: losses" "$(cmp "$1.loss" "$2.loss" && echo same)" same
    expect_equal "$1 against $2: weights" "$(cat "$1.weights")" "$(cat "$2.weights")"
    [ -s "$1.weights" ] || fail "$1: no weight hash"
}

# residual.yaml: a residual network with batch norm, whose running statistics are sums over the batch
# too; ties.yaml: a weight that three operators use, in the first and the last stage, and a tensor that
# skips stages.
write_models() {
cat >residual.yaml <<'END'
smp: 1
name: residual
inputs:
  tokens:  {dtype: int32, shape: [64]}
  targets: {dtype: int32, shape: [64]}
ops:
  - {op: embedding, name: wte, in: tokens, out: x, rows: 256, features: 8}
  - {op: reshape, name: image, in: x, out: x, shape: [8, 8, 8]}
  - {op: conv2d, name: a, in: x, out: a, channels: 8, kernel: 3, padding: 1, bias: false}
  - {op: batchnorm, name: a.norm, in: a, out: a}
  - {op: relu, name: a.relu, in: a, out: a}
  - {op: conv2d, name: b, in: a, out: a, channels: 8, kernel: 3, padding: 1, bias: false}
  - {op: batchnorm, name: b.norm, in: a, out: a}
  - {op: add, name: join, in: [x, a], out: x}
  - {op: reshape, name: rows, in: x, out: x, shape: [64, 8]}
  - {op: linear, name: head, in: x, out: logits, features: 256}
  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}
loss: loss
END

cat >ties.yaml <<'END'
smp: 1
name: ties
let: {T: 32, d: 16, vocab: 256}
inputs:
  tokens: {dtype: int32, shape: [T]}
  targets: {dtype: int32, shape: [T]}
ops:
  - {op: embedding, name: wte, in: tokens, out: e, rows: vocab, features: d}
  - {op: linear, name: mix, in: e, out: x, features: d}
  - {op: gelu, name: act, in: x, out: x}
  - {op: linear, name: again, in: x, out: x, features: d, weight: mix.weight}
  - {op: add, name: skip, in: [e, x], out: x}
  - {op: linear, name: head, in: x, out: y, features: vocab, weight: wte.weight}
  - {op: cross_entropy, name: loss, in: [y, targets], out: loss}
loss: loss
END
}

#!/usr/bin/env bash
# The promise: however the network is split and scheduled, whatever stages recompute, 20 steps
# give the same losses, to the last digit printed, and the same weights, to the last bit. With ddp
# losses agree to 1e-5 and the replicas are bit-identical to each other.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
limit_s=120
steps=20
write_text text.txt 60000

plan() { # file model devices stages ddp pipeline chunks microbatches size [recompute]
    expect_exit 0 smp-partition "$2" -n "$3" --stages "$4" --ddp "$5" --pipeline "$6" --chunks "$7" \
        --microbatches "$8" --microbatch-size "$9" --recompute "${10:-none}" -o "$1"
}

# train PLAN RANKS NAME: losses in NAME.loss, weight hashes in NAME.weights.
train() {
    expect_exit 0 mpirun -n "$2" smp-run "$1" --data text.txt --steps "$steps" --json --checksum \
        --lr 0.003 --warmup 5 --decay-steps 20 --clip 1 --seed 11
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

# compare MODEL NAME SIZE MICROBATCHES STAGES:SCHEDULE:CHUNKS[:RECOMPUTE]...: all against one process,
# simple.
compare() {
    local model=$1 name=$2 size=$3 m=$4 configuration stages schedule chunks redo
    shift 4
    plan reference.yaml "$model" 1 1 1 simple 1 "$m" "$size"
    train reference.yaml 1 "$name-m$m"
    for configuration in "$@"; do
        IFS=: read -r stages schedule chunks redo <<<"$configuration"
        plan split.yaml "$model" "$stages" "$stages" 1 "$schedule" "$chunks" "$m" "$size" \
            "${redo:-none}"
        train split.yaml "$stages" split
        same split "$name-m$m"
    done
}

# What attention can be: a learned bias that the first and the last layer share, fewer heads of keys
# and values, a window with ALiBi, keys and values from elsewhere.
cat >attention.yaml <<'EOF'
smp: 1
name: attention
let: {T: 80, d: 16, vocab: 256}
inputs:
  tokens: {dtype: int32, shape: [T]}
  targets: {dtype: int32, shape: [T]}
ops:
  - {op: embedding, name: wte, in: tokens, out: e, rows: vocab, features: d}
  - {op: linear, name: qkv, in: e, out: a, features: 3*d}
  - {op: attention, name: first, in: a, out: a, heads: 2, causal: true, buckets: 8, max_distance: 60}
  - {op: add, name: res0, in: [e, a], out: x}
  - {op: linear, name: q, in: x, out: q, features: d}
  - {op: linear, name: k, in: x, out: k, features: d/2}
  - {op: linear, name: v, in: x, out: v, features: d/2}
  - {op: attention, name: grouped, in: [q, k, v], out: a, heads: 4, kv_heads: 2, causal: true, window: 9, alibi: true}
  - {op: add, name: res1, in: [x, a], out: x}
  - {op: linear, name: cross_q, in: x, out: q, features: d}
  - {op: attention, name: cross, in: [q, e, e], out: a, heads: 2, causal: true, scale: 1}
  - {op: add, name: res2, in: [x, a], out: x}
  - {op: linear, name: qkv_last, in: x, out: a, features: 3*d}
  - {op: attention, name: last, in: a, out: a, heads: 2, causal: true, buckets: 8, max_distance: 60, weight: first.relative_bias}
  - {op: add, name: res3, in: [x, a], out: x}
  - {op: linear, name: head, in: x, out: y, features: vocab}
  - {op: cross_entropy, name: loss, in: [y, targets], out: loss}
loss: loss
EOF

others=(1:simple:2 1:interleaved:1 1:interleaved:2) # than the reference
for stages in 2 4; do
    others+=("$stages:simple:1" "$stages:simple:2" "$stages:interleaved:1" "$stages:interleaved:2")
done
for m in 4 6 7; do
    compare "$SMP_EXAMPLES/gpt-tiny.yaml" gpt 1 "$m" "${others[@]}"
done
train reference.yaml 1 again
same again gpt-m7 # the same plan a second time
compare "$SMP_EXAMPLES/gpt-tiny.yaml" gpt-size2 2 4 2:interleaved:2 4:interleaved:1 \
    2:interleaved:1:all 4:zero-bubble:1 4:zero-bubble:2:all
compare attention.yaml attention 2 4 4:interleaved:1 2:interleaved:2:all 4:zero-bubble:1
compare "$SMP_EXAMPLES/branches.yaml" branches 2 4 2:simple:1 2:interleaved:2 4:interleaved:1 \
    2:zero-bubble:2 4:interleaved:2:all

# Convolutions: strided, pointwise, in groups, depthwise, with and without bias, one weight used twice.
cat >conv.yaml <<'END'
smp: 1
name: conv
inputs:
  tokens:  {dtype: int32, shape: [64]}
  targets: {dtype: int32, shape: [64]}
ops:
  - {op: embedding, name: wte, in: tokens, out: x, rows: 256, features: 12}
  - {op: reshape, name: image, in: x, out: x, shape: [12, 8, 8]}
  - {op: conv2d, name: stem, in: x, out: x, channels: 16, kernel: 3, padding: 1}
  - {op: relu, name: stem.relu, in: x, out: x}
  - {op: conv2d, name: a.groups, in: x, out: a, channels: 16, kernel: 3, padding: 1, groups: 4}
  - {op: relu, name: a.relu, in: a, out: a}
  - {op: conv2d, name: a.point, in: a, out: a, channels: 16, kernel: 1, bias: false}
  - {op: add, name: a.add, in: [x, a], out: x}
  - {op: conv2d, name: twice, in: x, out: x, channels: 16, kernel: 1, weight: a.point.weight}
  - {op: conv2d, name: down, in: x, out: x, channels: 32, kernel: [3, 4], stride: 2, padding: 1}
  - {op: relu, name: down.relu, in: x, out: x}
  - {op: conv2d, name: b, in: x, out: b, channels: 32, kernel: 3, padding: 1, groups: 32}
  - {op: add, name: b.add, in: [x, b], out: x}
  - {op: reshape, name: rows, in: x, out: x, shape: [64, 8]}
  - {op: linear, name: head, in: x, out: logits, features: 256}
  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}
loss: loss
END
compare conv.yaml conv 2 4 2:simple:1 2:interleaved:2 4:interleaved:1 4:zero-bubble:2:all

# Single ops made again in every stage, by hand: under 1F1B, split backwards and chunks.
by_op() { # model devices pipeline chunks microbatches size pattern reference
    plan whole.yaml "$1" "$2" "$2" 1 "$3" "$4" "$5" "$6"
    sed -e "s/recompute: false/recompute: [\"$7\"]/" -e '/^predicted:/d' whole.yaml >list.yaml
    expect_exit 0 smp-partition check list.yaml -o split.yaml
    expect_match split.yaml 'recompute: \[[a-z]'
    expect_match split.yaml 'recompute_us: [0-9]'
    train split.yaml "$2" split
    same split "$8"
}
by_op "$SMP_EXAMPLES/gpt-tiny.yaml" 2 interleaved 1 6 1 '*n*' gpt-m6
by_op "$SMP_EXAMPLES/gpt-tiny.yaml" 4 zero-bubble 1 4 1 '*.ln_?' gpt-m4
by_op "$SMP_EXAMPLES/gpt-tiny.yaml" 2 zero-bubble 2 4 1 '*r*' gpt-m4

# An order of actions made for this plan's own stages; devices that compute side by side, so that
# there is something to gain.
cat >cluster.yaml <<'END'
smp: 1
name: four
nodes: 1
devices_per_node: 4
device: {name: cpu, memory: 2GB, compute: {fp32: 100GFLOP/s}, bandwidth: 20GB/s}
links:
  intra_node: {bandwidth: 10GB/s, latency_us: 3}
  inter_node: {bandwidth: 10GB/s, latency_us: 3}
overlap: true
END
expect_exit 0 smp-partition "$SMP_EXAMPLES/gpt-tiny.yaml" --cluster cluster.yaml --stages 4 --ddp 1 \
    --microbatches 6 --microbatch-size 1 -o auto.yaml
expect_match auto.yaml '^schedule: auto$'
train auto.yaml 4 auto
same auto gpt-m6

# ddp: two replicas of m micro-batches are one of 2 m.
for stages in 1 2; do
    plan ddp.yaml "$SMP_EXAMPLES/gpt-tiny.yaml" $((2 * stages)) "$stages" 2 interleaved 1 2 1
    train ddp.yaml $((2 * stages)) "ddp-$stages"
    expect_equal "replicas" "$(wc -l <"ddp-$stages.weights" | tr -d ' ')" 2
    expect_equal "replicas are the same" "$(sort -u "ddp-$stages.weights" | wc -l | tr -d ' ')" 1
    worst=$(paste "ddp-$stages.loss" gpt-m4.loss | awk '
        { d = ($1 - $2) / $2; d = d < 0 ? -d : d; if (d > worst) worst = d }
        END { print (NR == 20 && worst <= 1e-5) ? "close" : worst }')
    expect_equal "ddp 2 x $stages against one replica" "$worst" close
done
same ddp-2 ddp-1 # the same replicas, split over stages or not
finish

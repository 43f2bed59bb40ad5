#!/usr/bin/env bash
# The promise: however the network is split and scheduled, whatever stages recompute, all steps
# give the same losses, to the last digit printed, and the same weights, to the last bit. Every way
# to split, schedule and recompute is here once, in the long run with every number of micro-batches
# and model. Replicas: test_gradient_blocks.sh.
# shellcheck source=training.sh
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

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
# and values, a window with ALiBi, keys and values from elsewhere. The loss in three chunks.
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
  - {op: linear_cross_entropy, name: loss, in: [x, targets], out: loss, features: vocab, chunk: 64}
loss: loss
EOF

m4=(1:interleaved:2 2:interleaved:2) # than the reference
m6=(2:simple:2)
m7=(1:simple:2 2:interleaved:1 4:interleaved:2)
size2=(2:interleaved:1:all 4:zero-bubble:2:all)
moe=(2:zero-bubble:1:all)
moe_tiny=moe.yaml
sed 's/layers: 4/layers: 2/' "$SMP_EXAMPLES/moe-tiny.yaml" >moe.yaml
attention=(2:interleaved:2:all 2:zero-bubble:1)
branches=(2:simple:1 2:zero-bubble:2)
conv=(2:interleaved:2)
if [ -n "${SMP_TEST_LONG-}" ]; then
    m4=(1:simple:2 1:interleaved:1 1:interleaved:2)
    for stages in 2 4; do
        m4+=("$stages:simple:1" "$stages:simple:2" "$stages:interleaved:1" "$stages:interleaved:2")
    done
    m6=("${m4[@]}") m7=("${m4[@]}")
    size2+=(2:interleaved:2 4:interleaved:1 4:zero-bubble:1)
    moe_tiny=$SMP_EXAMPLES/moe-tiny.yaml
    moe+=(2:interleaved:2 4:zero-bubble:1:all)
    attention+=(4:interleaved:1 4:zero-bubble:1)
    branches+=(2:interleaved:2 4:interleaved:1 4:interleaved:2:all)
    conv+=(2:simple:1 4:interleaved:1 4:zero-bubble:2:all)
fi
compare "$tiny" gpt 1 4 "${m4[@]}"
compare "$tiny" gpt 1 6 "${m6[@]}"
compare "$tiny" gpt 1 7 "${m7[@]}"
train reference.yaml 1 again
same again gpt-m7 # the same plan a second time
compare "$tiny" gpt-size2 2 4 "${size2[@]}"
compare "$moe_tiny" moe 2 4 "${moe[@]}"
compare attention.yaml attention 2 4 "${attention[@]}"
compare "$SMP_EXAMPLES/branches.yaml" branches 2 4 "${branches[@]}"

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
compare conv.yaml conv 2 4 "${conv[@]}"

# Single ops made again in every stage, by hand: under 1F1B, split backwards and chunks.
by_op() { # model devices pipeline chunks microbatches size pattern reference
    plan whole.yaml "$1" "$2" "$2" 1 "$3" "$4" "$5" "$6"
    sed -e "s/recompute: false/recompute: [\"$7\"]/" -e '/^predicted:/d' whole.yaml >list.yaml
    expect_exit 0 smp-partition check list.yaml "${brief[@]}" -o split.yaml
    expect_match split.yaml 'recompute: \[[a-z]'
    expect_match split.yaml 'recompute_us: [0-9]'
    train split.yaml "$2" split
    same split "$8"
}
by_op "$tiny" 2 interleaved 1 6 1 '*n*' gpt-m6
if [ -n "${SMP_TEST_LONG-}" ]; then
    by_op "$tiny" 2 zero-bubble 2 4 1 '*r*' gpt-m4
    by_op "$tiny" 4 zero-bubble 1 4 1 '*.ln_?' gpt-m4
else
    by_op "$tiny" 2 zero-bubble 2 4 1 '*a*' gpt-m4
fi

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
expect_exit 0 smp-partition "$tiny" --cluster cluster.yaml --stages 4 --ddp 1 \
    --microbatches 6 --microbatch-size 1 -o auto.yaml
expect_match auto.yaml '^schedule: searched$'
train auto.yaml 4 auto
same auto gpt-m6

# GPipe in rounds of at most so many live micro-batches, the last one shorter.
expect_exit 0 smp-partition "$tiny" --cluster cluster.yaml -n 2 --stages 2 --ddp 1 --chunks 2 --pipeline simple \
    --active-microbatches 4 --microbatches 6 --microbatch-size 1 -o rounds.yaml
expect_match rounds.yaml 'B3.0 .*F4.0 '
train rounds.yaml 2 rounds
same rounds gpt-m6

finish

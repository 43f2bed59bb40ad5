#!/usr/bin/env bash
# The plain command on the large models and clusters that are shipped: never absurd, the same plan on a busy
# machine, over when it says. tests/bench/bench_scale.sh compares with what experts pin.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

plan() { # file model cluster option...
    expect_exit 0 smp-partition "$SMP_EXAMPLES/$2.yaml" --cluster "$SMP_EXAMPLES/$3.yaml" --device cuda --precision bf16 \
        --effort quick -o "$1.yaml" "${@:4}"
}
at_least() { # samples a second
    rate=$(sed -n 's/^predicted: .* \([0-9.]*\) samples.s.*/\1/p' out)
    awk -v got="${rate:-0}" -v least="$1" 'BEGIN { exit !(got + 0 >= least) }' || fail "$rate samples/s, expected $1 at least"
}
# In a tenth of the usual effort, samples a second with an expert's degrees (8.5, 68.7, 91.3) less a sixth.
plan llama llama3-70b cluster-h100 -n 64
at_least 7.1
plan gpt gpt-530b cluster-a100-3k -n 2240 --global-batch 2240
at_least 57
plan idle gpt-175b cluster-a100-1k
at_least 76
expect_match out ' x tensor [248],'
expect_match out 'other bits than any other number'

# What it chooses by itself it does not lose when that is asked for: few configurations are no smaller a search.
cat >spot.yaml <<END
smp: 1
nodes: 30
devices_per_node: 1
device: {description: a40}
links: {inter_node: {bandwidth: 25GB/s, latency_us: 10}, host: {bandwidth: 24GB/s, latency_us: 10}}
END
bert() { # option...
    expect_exit 0 smp-partition "$SMP_EXAMPLES/bert-large.yaml" --cluster spot.yaml --global-batch 8192 --device cuda \
        --precision bf16 --tensor 1 --effort quick "$@"
}
bert
expect_match out ' 512 micro-batches of 8 samples'
at_least 1570
bert --microbatch-size 8
at_least 1570

# Effort is work, not time: the same bytes beside other work.
(while :; do :; done) &
busy=$!
plan busy gpt-175b cluster-a100-1k
kill $busy
wait $busy 2>/dev/null || true
expect_equal 'plans, idle and busy' "$(cmp idle.yaml busy.yaml 2>&1)" ''

# A ceiling in processor time: of half a second, with what reading and writing take.
TIMEFORMAT=%U
used=$({ time smp-partition "$SMP_EXAMPLES/gpt-175b.yaml" --cluster "$SMP_EXAMPLES/cluster-a100-1k.yaml" --device cuda \
    --precision bf16 --effort full --time-limit 0.5 >out 2>err; } 2>&1)
awk -v used="$used" 'BEGIN { exit !(used < 1.5) }' || fail "$used s of the processor under a limit of 0.5"
expect_match err 'the time limit is spent'
# Too little for any plan: the first that is found.
expect_exit 0 smp-partition "$SMP_EXAMPLES/gpt-175b.yaml" --cluster "$SMP_EXAMPLES/cluster-a100-1k.yaml" --device cuda \
    --precision bf16 --effort full --time-limit 0.01

# Of ten thousand ops: splittings are listed out of the same work, which then plans less.
deep() { # option...
    { time smp-partition "$SMP_EXAMPLES/gpt-175b.yaml" --set layers=1000 -n 64 --cluster "$SMP_EXAMPLES/cluster-h100.yaml" \
        --memory 4TB --effort quick "$@" >out 2>err; } 2>&1
}
alone=$(deep --tensor 1)
expect_match out '^predicted: '
used=$(deep)
expect_match out '^predicted: '
expect_match err 'tensor groups of up to [248] devices were not looked at for want of effort'
awk -v used="$used" -v alone="$alone" 'BEGIN { exit !(used < alone + 0.2) }' ||
    fail "$used s of the processor, $alone without groups of devices"

# A device that is described: said with its band, kept in the plan, which then costs the same without the cluster.
cat >described.yaml <<END
smp: 1
nodes: 2
devices_per_node: 8
device: {description: a100-80gb-sxm}
links: {intra_node: {bandwidth: 250GB/s, latency_us: 5}, inter_node: {bandwidth: 25GB/s, latency_us: 10}}
END
on=(-n 16 --device cuda --precision bf16 --tensor 4 --stages 2 --chunks 1 --microbatches 8 --microbatch-size 1 --effort quick)
expect_exit 0 smp-partition "$SMP_EXAMPLES/gpt2-124m.yaml" --cluster described.yaml "${on[@]}" -o plan.yaml
expect_match out '^costs: estimated from a100-80gb-sxm \(fitted to .*\), \+-15 %: a step of .* to '
described=$(sed -n 's/^predicted: \(.*samples.s\).*/\1/p' out)
expect_exit 0 smp-partition check plan.yaml
expect_equal 'predicted' "$(sed -n 's/^predicted: \(.*samples.s\).*/\1/p' out)" "$described"
sed 's/description: \(.*\)}/description: \1, efficiency: {error: 0.5, from: a guess}}/' described.yaml >almost.yaml
expect_exit 0 smp-partition "$SMP_EXAMPLES/gpt2-124m.yaml" --cluster almost.yaml "${on[@]}"
expect_match out '^costs: estimated from a100-80gb-sxm \(a guess\), \+-50 %: '
expect_equal 'predicted' "$(sed -n 's/^predicted: \(.*samples.s\).*/\1/p' out)" "$described"
for device in "$SMP_EXAMPLES"/devices/*.yaml; do
    printf 'smp: 1\nnodes: 1\ndevices_per_node: 1\ndevice: {description: %s}\n' "$device" >one.yaml
    expect_exit 0 smp-partition "$SMP_EXAMPLES/linear.yaml" --cluster one.yaml --device cuda --precision fp16
    expect_match out "^costs: estimated from $(basename "$device" .yaml) "
done

# The batch is the user's: every configuration makes it, with micro-batches of any size that fits.
model=$SMP_EXAMPLES/gpt-tiny.yaml
batch_of() { # plan
    awk '{ gsub(/[{},]/, " "); for (i = 1; i < NF; i++) if ($i == "microbatches:") m = $(i + 1); else if ($i == "microbatch_size:") b = $(i + 1); else if ($i == "ddp:") d = $(i + 1) } END { print m * b * d }' "$1"
}
expect_exit 0 smp-partition "$model" -n 4 --global-batch 12 --effort quick -o batch.yaml
expect_equal 'samples of a step' "$(batch_of batch.yaml)" 12
expect_exit 0 smp-partition "$SMP_EXAMPLES/gpt2-124m.yaml" --cluster "$SMP_EXAMPLES/cluster-h100.yaml" -n 8 --device cuda \
    --precision bf16 --global-batch-size 512 --effort quick -o batch.yaml
expect_equal 'samples of a step' "$(batch_of batch.yaml)" 512
expect_match out 'micro-batches of [248] samples'
expect_exit 3 smp-partition "$model" -n 4 --ddp 2 --global-batch 7
expect_match err 'a global batch of 7 samples: no micro-batches of 1 on these devices make it; nearest: 6, 8'
expect_exit 3 smp-partition "$model" -n 4 --ddp 2 --microbatches 4 --microbatch-size 3 --global-batch 32
expect_match err 'nearest: 24'
# Where nobody has asked for a pipeline that cannot be, what was asked for is named, of groups of any size.
far=(smp-partition "$model" --effort quick --microbatch-size 1 --global-batch)
expect_exit 3 "${far[@]}" 16384 -n 82
expect_match err 'at most 262144 forward actions; 41 groups of 2 devices and a global batch of 16384 samples leave no shorter'
expect_match err 'another number of devices, or a global batch that more replicas divide, may$'
expect_exit 3 "${far[@]}" 100 -n 16384 --tensor 1
expect_match err 'need as many ops: the model has [0-9]+; 16384 devices and a global batch of 100 samples leave no shorter'
expect_exit 2 "${far[@]}" 16384 -n 41 --stages 41
expect_match err 'at most 262144 forward actions$'

# What nobody wants is said, with what would help, which was planned.
small() { # option...
    expect_exit 0 smp-partition "$model" --cluster "$SMP_EXAMPLES/cluster-v100.yaml" --device cuda --effort quick "$@"
}
small -n 4 --stages 4 --ddp 1 --microbatches 2
expect_match err '2 micro-batches keep 4 pipeline ranks waiting: the bubble is [0-9]+ %: 4 micro-batches instead of 2: [0-9.]+ % less time'
small -n 4 --stages 4 --ddp 1 --microbatches 4 --pipeline simple
expect_match err 'ranks wait for [0-9]+ % of a step .bubble.: 8 micro-batches instead of 4'
small -n 1 --recompute all
expect_match err 'everything is recomputed, with [0-9]+ % of the memory in use: --recompute auto'
cat >lopsided.yaml <<'END'
smp: 1
name: lopsided
mode: inference
ops:
  - {op: opaque, name: a, out: ta, cost: {forward_us: 1000000, output_bytes: 4}}
  - {op: opaque, name: b, in: ta, out: tb, cost: {forward_us: 1, output_bytes: 4}}
END
expect_exit 0 smp-partition lopsided.yaml --cluster "$SMP_EXAMPLES/cluster-laptop.yaml" -n 2 --stages 2 --microbatches 8
expect_match err 'rank 1 has next to nothing to compute'
small -n 2 --stages 1 --microbatches 8
expect_no_match err 'bubble|recomputed|nothing to compute'
finish

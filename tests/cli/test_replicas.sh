#!/usr/bin/env bash
# Replicas that cross nodes or sit on slower devices count, in the objective, in the
# prediction and in the choice of a plan.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
holds() { # what, awk condition
    expect_equal "$1" "$(awk "BEGIN {print ($2)}")" 1
}

# Four ops of 300 us; tensors of 1 MB take 10 us in a node and 10 ms between nodes.
{
    printf 'smp: 1\nname: chain\nops:\n'
    for i in 1 2 3 4; do
        printf '  - {op: opaque, name: o%d, out: t%d%s, cost: {forward_us: 100, backward_us: 200, ' \
            "$i" "$i" "$([ "$i" -eq 1 ] || echo ", in: t$((i - 1))")"
        printf 'output_bytes: 1MB, weight_bytes: 1000, stash_bytes: 100}}\n'
    done
} >chain.yaml
cat >six.yaml <<'CLUSTER'
smp: 1
name: six
nodes: 2
devices_per_node: 3
device: {name: d, memory: 1GB, compute: {fp32: 1TFLOP/s}, bandwidth: 1TB/s}
links:
  intra_node: {bandwidth: 100GB/s, latency_us: 1}
  inter_node: {bandwidth: 100MB/s, latency_us: 10}
CLUSTER

# Three pipelines of two ranks: the first lies in a node, the second on two.
pairs=(smp-partition chain.yaml --cluster six.yaml --stages 2 --chunks 1 --microbatches 4
    --placement cluster --pipeline simple)
expect_exit 0 "${pairs[@]}" --explain --trace pairs.json -o pairs.yaml
expect_match out '^\(replica 1 of 3 is drawn, the slowest\)$'
expect_match out 'limited by transfers'
holds "a tensor there and back over the slow link" "$(value bottleneck_us pairs.yaml) > 20000"
holds "the step waits for the slow replica" "$(value step_us pairs.yaml) > 40000"
expect_equal "ranks of the trace" "$(grep -oE '"rank [0-9]+"' pairs.json | sort -u | tr -d '\n')" \
    '"rank 2""rank 3"'
expect_exit 0 smp-partition check pairs.yaml --effort quick
expect_no_match out 'with these costs'
expect_match out 'best of all: .* 1 x 6 ranks.*% more time per sample'

# Links within nodes are not what it waits for, those between nodes almost all.
expect_exit 0 "${pairs[@]}" --objective bottleneck --explain -o bottleneck.yaml
expect_no_match out 'links within nodes'
expect_match out 'links between nodes twice as fast'

# The letters of SageMaker, neighbours last; T may stand anywhere where nothing is computed together.
for letters in cluster:DPT cluster:TDP cluster:DTP spread:PDT spread:TPD spread:PTD; do
    expect_exit 0 smp-partition chain.yaml --cluster six.yaml --stages 2 --placement "${letters%:*}" -o word.yaml
    expect_exit 0 smp-partition chain.yaml --cluster six.yaml --stages 2 --placement "${letters#*:}" -o letters.yaml
    expect_equal "${letters#*:}" "$(cat letters.yaml)" "$(cat word.yaml)"
    expect_match letters.yaml "placement: ${letters%:*}"
done
expect_exit 2 smp-partition chain.yaml --cluster six.yaml --tensor 3 --placement TPD
expect_match err "placement TPD: .* neighbours of one node: expected T last, DPT or PDT"

# Left free, no pipeline crosses nodes.
expect_exit 0 smp-partition chain.yaml --cluster six.yaml -o free.yaml
expect_match free.yaml 'pipeline: 1, ddp: 6'
holds "far faster than on two nodes" \
    "$(value samples_per_s free.yaml) > 15 * $(value samples_per_s pairs.yaml)"

# Two replicas, each with one slow device, at different ends: an even split is the best for both.
cat >mirror.yaml <<'CLUSTER'
smp: 1
name: mirror
nodes: 2
devices_per_node: 2
device:
  - &fast {name: fast, memory: 1GB, compute: {fp32: 3TFLOP/s}, bandwidth: 1TB/s}
  - &slow {name: slow, memory: 1GB, compute: {fp32: 1TFLOP/s}, bandwidth: 1TB/s}
  - *slow
  - *fast
links:
  intra_node: {bandwidth: 100GB/s, latency_us: 1}
  inter_node: {bandwidth: 100GB/s, latency_us: 1}
CLUSTER
expect_exit 0 smp-partition chain.yaml --cluster mirror.yaml --stages 2 --chunks 1 \
    --microbatches 4 --placement cluster --objective bottleneck -o even.yaml
expect_match even.yaml 'stage: 0, rank: 0, ops: \[o1, o2\]'
holds "two ops on a slow device" "$(value bottleneck_us even.yaml) == 1800"
holds "proven" "$(value lower_bound_us even.yaml) == 1800"
# With the two slow devices on one rank the split is another, and better.
expect_exit 0 smp-partition chain.yaml --cluster mirror.yaml --stages 2 --chunks 1 \
    --microbatches 4 --objective bottleneck -o listed.yaml
expect_match listed.yaml 'placement: \[[0-3], [0-3], [0-3], [0-3]\]'
holds "one op on slow devices" "$(value bottleneck_us listed.yaml) == 900"
expect_exit 0 smp-partition check even.yaml --objective bottleneck --effort quick
expect_match out '^best of the same numbers: bottleneck 900 us '
expect_exit 0 smp-partition check listed.yaml --objective bottleneck --effort quick
expect_match out '^best of the same numbers: .*this plan is as good$'
finish

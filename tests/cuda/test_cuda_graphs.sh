#!/usr/bin/env bash
# Jobs on emulated GPUs whose launches are captured: the bits of those whose are not, over stages, replicas
# and devices that compute operators together; a capture that fails on one rank is said once, and nobody
# has any. The emulator refuses what CUDA refuses while a stream is captured.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
limit_s=180
write_text text.txt 20000
export SMP_EMULATE_CAPABILITY=90 SMP_EMULATE_PROTECT=0 SMP_EMULATE_DEVICES=4

sed -e "s/^let: .*/let: {T: 12, d: 32, heads: 4, layers: 1, vocab: 128}/" \
    -e '/name: wpe/a\  - {op: dropout, name: drop, in: x, out: x, p: 0.1}' \
    "$SMP_EXAMPLES/gpt-tiny.yaml" >model.yaml
expect_match model.yaml 'op: dropout'
cat >cluster.yaml <<'END_OF_CLUSTER'
smp: 1
name: four
nodes: 1
devices_per_node: 4
device: {name: gpu, memory: 2GB, compute: {fp32: 60TFLOP/s, bf16: 900TFLOP/s}, bandwidth: 3TB/s}
links:
  intra_node: {bandwidth: 400GB/s, latency_us: 3}
  inter_node: {bandwidth: 50GB/s, latency_us: 8}
overlap: true
END_OF_CLUSTER

sed 's/60TFLOP/100MFLOP/; s/900TFLOP/100MFLOP/' cluster.yaml >slow.yaml

plan() { # file devices stages ddp pipeline [options of smp-partition]
    expect_exit 0 smp-partition model.yaml --cluster "${cluster-cluster.yaml}" --device cuda --precision bf16 -n "$2" \
        --stages "$3" --ddp "$4" --pipeline "$5" --microbatches 3 --microbatch-size 1 -o "$1" "${@:6}"
}

# train NAME RANKS PLAN [options]: losses and hashes of weights in NAME.bits.
train() {
    local name=$1 ranks=$2
    shift 2
    expect_exit 0 mpirun -n "$ranks" smp-run-emulated "$@" --device cuda --share-gpus --data text.txt --json \
        --checksum --steps 3 --lr 0.003 --warmup 5 --decay-steps 50 --clip 1 --seed 11
    sed -nE 's/.*"(loss|weights)": ?"?([^,"}]*).*/\1 \2/p' out | sort >"$name.bits"
    expect_equal "$name: losses" "$(grep -c loss "$name.bits")" 3
    cp err "$name.err"
    cp out "$name.out"
}

# The plan's figures say that launches bound it; so they are captured unless that is forbidden.
both() { # name ranks plan
    train "$1" "$2" "$3"
    expect_match "$1.err" 'device cuda .*, [0-9]+ graphs for [0-9]+ launches a step'
    SMP_GRAPHS=off train "$1.off" "$2" "$3"
    expect_no_match "$1.off.err" 'graphs'
    expect_equal "$1: with graphs and without" "$(cat "$1.bits")" "$(cat "$1.off.bits")"
}

plan one.yaml 1 1 1 simple
both one 1 one.yaml
plan two.yaml 2 2 1 zero-bubble
both two 2 two.yaml
plan again.yaml 2 2 1 interleaved --recompute all --chunks 2
SMP_EMULATE_DEVICES=1 both again 2 again.yaml # through host memory
plan ddp.yaml 2 1 2 simple --bucket-bytes none
both ddp 2 ddp.yaml
plan tensor.yaml 2 1 1 simple --tensor 2 --split '*.attn.qkv:columns/3' --split '*.attn:packed heads' \
    --split '*.attn.proj:rows' --split '*.mlp.fc:columns' --split '*.mlp.gelu:elements@1' --split '*.mlp.proj:rows'
both tensor 2 tensor.yaml
SMP_EMULATE_DEVICES=1 both staged 2 tensor.yaml
expect_equal "groups, by NCCL and by MPI" "$(cat tensor.bits)" "$(cat staged.bits)"

# Weights in parts are gathered to another place in backward than in forward: nothing is captured.
plan parts.yaml 2 1 2 breadth-first --chunks 2 --shard 2 --shard-what weights
SMP_GRAPHS=on train parts 2 parts.yaml
expect_no_match parts.err 'graphs'
SMP_GRAPHS=off train parts.off 2 parts.yaml
expect_equal "weights in parts" "$(cat parts.bits)" "$(cat parts.off.bits)"

# A stretch is a graph: there are fewer than launches, more where sums begin within the last micro-batch.
graphs() { # name: how many graphs, for how many launches
    sed -nE 's/.*, ([0-9]+) graphs for ([0-9]+) launches a step.*/\1 \2/p' "$1.err"
}
read -r few launches < <(graphs one)
expect_equal "$few graphs for $launches launches" "$((few > 1 && launches > 5 * few))" 1
expect_equal "the same as JSON" "$(grep graphs one.out)" "{\"graphs\": $few, \"launches\": $launches}"
expect_equal "none without" "$(grep -c graphs one.off.out)" 0
plan buckets.yaml 2 1 2 simple --bucket-bytes 4KB
both buckets 2 buckets.yaml
read -r more _ < <(graphs buckets)
read -r few _ < <(graphs ddp)
expect_equal "$more graphs in buckets, $few without" "$((more > few))" 1

# No memory for the third graph, or for the first one of one of two ranks.
SMP_EMULATE_GRAPHS=2 train failed 1 one.yaml
expect_match failed.err 'device cuda .* \[graphs: cudaGraphInstantiate: out of memory\]'
expect_equal "without the graphs that failed" "$(cat failed.bits)" "$(cat one.bits)"
expect_exit 0 mpirun -n 1 smp-run-emulated two.yaml --device cuda --data text.txt --steps 1 : -n 1 -x SMP_EMULATE_GRAPHS=0 \
    smp-run-emulated two.yaml --device cuda --data text.txt --steps 1
expect_equal "said once" "$(grep -c 'graphs: rank 1: cudaGraphInstantiate: out of memory' err)" 1

# Not on a device that takes longer than its host, but by force; not where operators are told apart.
cluster=slow.yaml plan slow-one.yaml 1 1 1 simple
train slow 1 slow-one.yaml
expect_no_match slow.err 'graphs'
SMP_GRAPHS=on train forced 1 slow-one.yaml
expect_match forced.err ', [0-9]+ graphs for [0-9]+ launches a step'
expect_equal "forced" "$(cat forced.bits)" "$(cat slow.bits)"
train costs 1 one.yaml --profile-out profile.yaml
expect_no_match costs.err 'graphs'
expect_equal "costs" "$(cat costs.bits)" "$(cat one.bits)"

# What launches cost stands in the plan, and decides: there are no graphs for a driver that takes next to nothing,
# nor for one that takes as long for a graph of kernels as for these.
priced() { # name costs: one.yaml with them
    sed "s/devices_per_node: 4,/&launch: {$2},/" one.yaml >"$1.yaml"
    expect_match "$1.yaml" "launch: .*$2"
    train "$1" 1 "$1.yaml"
    expect_equal "$1" "$(cat "$1.bits")" "$(cat one.bits)"
}
priced dear 'kernel_us: 2.5, graph_us: 4, graph_kernel_us: 0.125'
expect_match dear.err ', [0-9]+ graphs for [0-9]+ launches a step'
priced quick 'kernel_us: 0.001, graph_us: 0.001, graph_kernel_us: 0'
expect_no_match quick.err 'graphs'
priced useless 'kernel_us: 2.5, graph_us: 4, graph_kernel_us: 2.5'
expect_no_match useless.err 'graphs'
SMP_GRAPHS=yes expect_bad 'SMP_GRAPHS=yes: expected on or off' smp-run-emulated one.yaml --device cuda --data text.txt
finish

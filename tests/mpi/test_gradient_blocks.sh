#!/usr/bin/env bash
# The promise for replicas: with one number of gradient blocks, all steps give the same losses, to the
# last digit printed, and the same weights, to the last bit, for every ddp up to it, pipeline and
# recomputation; one process included. Batches of 4 micro-batches in 4 blocks, of 12 in 4 and 12, and of
# 8 in 8 on replicas that do not divide them.
# Every way once, in the long run with every model.
# shellcheck source=training.sh
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

write_models

# all_ways MODEL NAME MICROBATCHES BLOCKS DDP:STAGES:SCHEDULE:CHUNKS:RECOMPUTE[:SHARD:WHAT]...: micro-batches of
# all replicas in so many blocks; the first is what the others are compared with. `planned`, `trained`: more options.
planned=() trained=() devices=1
all_ways() {
    local model=$1 name=$2 all=$3 blocks=$4 ddp stages schedule chunks redo shard what configuration ranks reference=
    shift 4
    for configuration in "$@"; do
        IFS=: read -r ddp stages schedule chunks redo shard what <<<"$configuration"
        ranks=$((ddp * stages * devices))
        # shellcheck disable=SC2017 # rounded up first
        plan split.yaml "$model" "$ranks" "$stages" "$ddp" "$schedule" "$chunks" \
            $(((blocks + ddp - 1) / ddp * all / blocks)) 2 "$redo" --gradient-blocks "$blocks" --shard "${shard:-1}" \
            --shard-what "${what:-optimizer}" --bucket-bytes 4KiB "${planned[@]}"
        train split.yaml "$ranks" "${reference:-$name}" "${trained[@]}" >/dev/null
        [ -z "$reference" ] || {
            expect_equal "$configuration: replicas" "$(wc -l <"$reference.weights" | tr -d ' ')" "$ddp"
            sort -u -o "$reference.weights" "$reference.weights"
            same "$reference" "$name"
        }
        reference=other
    done
}
gpt=(1:1:simple:1:none 2:1:simple:1:none 2:2:interleaved:2:none 1:2:interleaved:2:all)
residual=(1:1:simple:1:none 1:2:interleaved:1:none 2:2:zero-bubble:1:all)
ties=(1:1:simple:1:none 4:1:simple:1:all 2:1:simple:1:none)
if [ -n "${SMP_TEST_LONG-}" ]; then
    gpt+=(1:2:interleaved:1:none 4:1:simple:1:all 2:2:zero-bubble:1:all)
    residual=("${gpt[@]}") ties=("${gpt[@]}")
fi
all_ways "$tiny" gpt 4 4 "${gpt[@]}"
all_ways residual.yaml residual 12 4 "${residual[@]}"
all_ways ties.yaml ties 12 4 "${ties[@]}"
# Replicas and shard groups whose blocks make no single node of the tree: 12 blocks, 3 or 6 of each replica.
nodes=(1:1:simple:1:none 4:1:simple:1:none 2:2:interleaved:2:all 4:1:breadth-first:3:none:2:weights)
norms=(1:1:simple:1:none 4:1:simple:1:none:2:gradients)
if [ -n "${SMP_TEST_LONG-}" ]; then
    nodes+=(2:1:simple:1:none 4:1:simple:1:all:4:weights 6:1:simple:1:none:3:gradients
        6:1:simple:1:none:3:weights 2:2:zero-bubble:1:none:2:optimizer 4:1:simple:1:none:2:optimizer)
    norms=("${nodes[@]}")
fi
all_ways ties.yaml nodes 12 12 "${nodes[@]}"
all_ways residual.yaml norms 12 12 "${norms[@]}"

# A plan says how many blocks it has unless they are ddp; blocks change bits, or the above shows nothing.
expect_match split.yaml 'gradient_blocks: 12'
plan blocks.yaml ties.yaml 1 1 1 simple 1 12 2 none
expect_no_match blocks.yaml gradient_blocks
train blocks.yaml 1 one
expect_equal "another tree, other bits" "$(cmp -s one.weights ties.weights || echo other)" other
plan blocks.yaml ties.yaml 1 1 1 simple 1 12 2 none --gradient-blocks 3
train blocks.yaml 1 three # not a power of two: one process alone, or three replicas
plan blocks.yaml ties.yaml 3 1 3 simple 1 4 2 none
train blocks.yaml 3 replicas
sort -u -o replicas.weights replicas.weights
same replicas three

# What cannot be shared out.
expect_exit 2 smp-partition ties.yaml -n 2 --stages 1 --ddp 2 --microbatches 3 --gradient-blocks 3
expect_match err '2 replicas have up to 2 blocks each, expected a divisor of their 3 micro-batches'
expect_exit 2 smp-partition ties.yaml -n 2 --stages 1 --ddp 2 --microbatches 3 --gradient-blocks 4
expect_exit 2 smp-partition ties.yaml -n 5 --stages 1 --ddp 5 --microbatches 4 --gradient-blocks 4
expect_match err 'got 4 for 5 replicas, expected at least as many'
expect_exit 2 smp-partition ties.yaml -n 6 --stages 1 --ddp 6 --microbatches 2 --gradient-blocks 8 --node-replicas 2 --shard 1
expect_match err 'got 8 for 6 replicas whose sums go in two hops'
sed 's/op: batchnorm,/op: batchnorm, sync: true,/' residual.yaml >joint.yaml
expect_exit 2 smp-partition joint.yaml -n 3 --stages 1 --ddp 3 --microbatches 3 --gradient-blocks 8
expect_match err "got 8 for 3 replicas, over which op 'a.norm' adds up"
expect_exit 2 smp-partition ties.yaml -n 4 --stages 1 --ddp 4 --microbatches 3 --gradient-blocks 12 --node-replicas 2
expect_match err 'got 12 for 4 replicas whose sums go in two hops'
expect_exit 2 smp-partition ties.yaml -n 1 --gradient-blocks 0
expect_exit 2 smp-partition ties.yaml -n 1 --gradient-blocks 3000000
for blocks in 0 5 x 1048577; do
    sed "s/gradient_blocks: 12/gradient_blocks: $blocks/" split.yaml >bad.yaml
    expect_bad 'bad.yaml:4:[0-9]*: .*gradient_blocks' smp-partition check bad.yaml
done

# Replicas of which some have a block less than others: 3 have 3, 3 and 2 of 8, 5 have 2, 2, 2, 1 and 1. Passes over
# the text end with a batch of 13 samples of 16, half a micro-batch in the last block.
write_text text.txt 1900
remainder=(1:1:simple:1:none 3:2:zero-bubble:1:none 3:1:breadth-first:3:all:3:weights)
fewer=(1:1:simple:1:none 5:1:simple:1:all)
halves=(1:1:simple:1:none 3:1:simple:1:none:3:optimizer) thirds=(1:1:simple:1:none 3:1:simple:1:none)
if [ -n "${SMP_TEST_LONG-}" ]; then
    remainder+=(2:1:simple:1:none 3:1:simple:1:none 4:1:simple:1:none 5:1:simple:1:none 6:1:breadth-first:3:none:2:weights
        7:1:simple:1:none 8:1:simple:1:none 3:2:interleaved:2:all 3:2:zero-bubble:1:none:3:optimizer 6:1:simple:1:none:6:gradients)
    fewer=("${remainder[@]}") halves=("${remainder[@]}") thirds+=(2:1:simple:1:none 3:2:interleaved:2:none 4:1:simple:1:none)
fi
plan even.yaml ties.yaml 4 1 4 simple 1 2 2 none --gradient-blocks 8
all_ways ties.yaml remainder 8 8 "${remainder[@]}"
expect_match split.yaml 'microbatches: 3, microbatch_size: 2, gradient_blocks: 8'
expect_match split.yaml 'ddp: 3'
expect_exit 2 smp-partition ties.yaml -n 3 --stages 1 --ddp 3 --microbatches 3 --gradient-blocks 8 --export megatron-layout:layout.txt
expect_match err 'megatron-layout: 3 replicas have 8 gradient blocks between them'
expect_exit 0 smp-partition check split.yaml
# The planner looks at them where the batch is whole blocks.
expect_exit 0 smp-partition ties.yaml -n 3 --stages 1 --global-batch 32 --microbatch-size 2 --gradient-blocks 8 -o found.yaml
expect_match out 'gradient blocks: 3 on 2 replicas, 2 and one of padding on 1'
expect_match found.yaml 'microbatches: 6, microbatch_size: 2, gradient_blocks: 8'
expect_exit 3 smp-partition ties.yaml -n 3 --stages 1 --global-batch 24 --microbatch-size 2 --gradient-blocks 8
expect_match err 'nearest: 16, 32'
expect_exit 0 smp-partition check split.yaml --same-bits-as even.yaml
all_ways residual.yaml fewer 8 8 "${fewer[@]}"
all_ways ties.yaml thirds 12 4 "${thirds[@]}" # blocks of 3 micro-batches
if [ -n "${SMP_TEST_LONG-}" ]; then
    limit_s=300
    for blocks in 4 6 8 12; do
        ways=()
        for ((ddp = 1; ddp <= blocks && ddp <= 8; ddp++)); do
            ways+=("$ddp:1:simple:1:none:$ddp:gradients" "$ddp:1:simple:1:all")
        done
        for optimizer in adamw sgd lion; do
            trained=(--optimizer "$optimizer")
            all_ways ties.yaml grid $((2 * blocks)) "$blocks" "${ways[@]}"
        done
    done
fi
planned=(--precision fp16) trained=(--optimizer lamb --device cpu)
all_ways "$tiny" halves 8 8 "${halves[@]}"
planned=(--tensor 2) trained=() devices=2
all_ways "$tiny" groups 8 8 1:1:simple:1:none 3:1:simple:1:none
planned=() devices=1
# Evaluations, too: the held-out samples are no whole batches.
for ddp in 1 3; do
    plan split.yaml ties.yaml "$ddp" 1 "$ddp" simple 1 $(((8 + ddp - 1) / ddp)) 2 none --gradient-blocks 8
    expect_exit 0 mpirun -n "$ddp" smp-run split.yaml --data text.txt --steps 3 --eval-every 1 --eval-split 0.3 --seed 5
    grep -o 'eval.*' out | sed 's/ in .*//' >"eval.$ddp" || true
done
expect_equal "evaluations" "$(cmp eval.1 eval.3 && wc -l <eval.1 | tr -d ' ')" 3
finish

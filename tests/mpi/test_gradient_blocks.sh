#!/usr/bin/env bash
# The promise for replicas: with one number of gradient blocks, all steps give the same losses, to the
# last digit printed, and the same weights, to the last bit, for every ddp that divides it, pipeline
# and recomputation; one process included. Batches of 4 micro-batches in 4 blocks, and of 12 in 4 and 12.
# Every way once, in the long run with every model.
# shellcheck source=training.sh
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

write_models

# all_ways MODEL NAME MICROBATCHES BLOCKS DDP:STAGES:SCHEDULE:CHUNKS:RECOMPUTE[:SHARD:WHAT]...: micro-batches of
# all replicas in so many blocks; the first is what the others are compared with.
all_ways() {
    local model=$1 name=$2 all=$3 blocks=$4 ddp stages schedule chunks redo shard what configuration reference=
    shift 4
    for configuration in "$@"; do
        IFS=: read -r ddp stages schedule chunks redo shard what <<<"$configuration"
        plan split.yaml "$model" $((ddp * stages)) "$stages" "$ddp" "$schedule" "$chunks" \
            $((all / ddp)) 2 "$redo" --gradient-blocks "$blocks" --shard "${shard:-1}" \
            --shard-what "${what:-optimizer}" --bucket-bytes 4KiB
        train split.yaml $((ddp * stages)) "${reference:-$name}" >/dev/null
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
uneven=(1:1:simple:1:none 4:1:simple:1:none 2:2:interleaved:2:all 4:1:breadth-first:3:none:2:weights)
norms=(1:1:simple:1:none 4:1:simple:1:none:2:gradients)
if [ -n "${SMP_TEST_LONG-}" ]; then
    uneven+=(2:1:simple:1:none 4:1:simple:1:all:4:weights 6:1:simple:1:none:3:gradients
        6:1:simple:1:none:3:weights 2:2:zero-bubble:1:none:2:optimizer 4:1:simple:1:none:2:optimizer)
    norms=("${uneven[@]}")
fi
all_ways ties.yaml uneven 12 12 "${uneven[@]}"
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
expect_exit 2 smp-partition ties.yaml -n 2 --stages 1 --ddp 2 --microbatches 4 --gradient-blocks 3
expect_exit 2 smp-partition ties.yaml -n 2 --stages 1 --ddp 2 --microbatches 3 --gradient-blocks 4
expect_exit 2 smp-partition ties.yaml -n 5 --stages 1 --ddp 5 --microbatches 12 --gradient-blocks 12
expect_match err 'got 12 for 5 replicas, expected a multiple .* so many blocks go with ddp 1, 2, 3, 4, 6, 12$'
expect_exit 2 smp-partition ties.yaml -n 4 --stages 1 --ddp 4 --microbatches 3 --gradient-blocks 12 --node-replicas 2
expect_match err 'got 12 for 4 replicas whose sums go in two hops'
expect_exit 2 smp-partition ties.yaml -n 1 --gradient-blocks 0
expect_exit 2 smp-partition ties.yaml -n 1 --gradient-blocks 3000000
for blocks in 0 5 x 1048577; do
    sed "s/gradient_blocks: 12/gradient_blocks: $blocks/" split.yaml >bad.yaml
    expect_bad 'bad.yaml:4:[0-9]*: .*gradient_blocks' smp-partition check bad.yaml
done
finish

#!/usr/bin/env bash
# The promise for replicas: with one number of gradient blocks, all steps give the same losses, to the
# last digit printed, and the same weights, to the last bit, for every ddp that it is 1, 2, 4 ... times, pipeline
# and recomputation; one process included. Batches of 4 micro-batches in 4 blocks, and of 12 in 4.
# Every way once, in the long run with every model.
# shellcheck source=training.sh
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"

write_models

# all_ways MODEL NAME MICROBATCHES DDP:STAGES:SCHEDULE:CHUNKS:RECOMPUTE...: micro-batches of all replicas
# in four blocks; the first is what the others are compared with.
all_ways() {
    local model=$1 name=$2 all=$3 ddp stages schedule chunks redo configuration reference=
    shift 3
    for configuration in "$@"; do
        IFS=: read -r ddp stages schedule chunks redo <<<"$configuration"
        plan split.yaml "$model" $((ddp * stages)) "$stages" "$ddp" "$schedule" "$chunks" \
            $((all / ddp)) 2 "$redo" --gradient-blocks 4
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
all_ways "$tiny" gpt 4 "${gpt[@]}"
all_ways residual.yaml residual 12 "${residual[@]}"
all_ways ties.yaml ties 12 "${ties[@]}"

# A plan says how many blocks it has unless they are ddp; blocks change bits, or the above shows nothing.
expect_match split.yaml 'gradient_blocks: 4'
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
expect_exit 2 smp-partition ties.yaml -n 4 --stages 1 --ddp 4 --microbatches 3 --gradient-blocks 12
expect_match err 'got 12 for 4 replicas, expected 1, 2, 4, 8 .* so many blocks go with ddp 1, 3, 6, 12$'
expect_exit 2 smp-partition ties.yaml -n 1 --gradient-blocks 0
expect_exit 2 smp-partition ties.yaml -n 1 --gradient-blocks 3000000
for blocks in 0 5 x 1048577; do
    sed "s/gradient_blocks: 4/gradient_blocks: $blocks/" split.yaml >bad.yaml
    expect_bad 'bad.yaml:4:[0-9]*: .*gradient_blocks' smp-partition check bad.yaml
done
finish

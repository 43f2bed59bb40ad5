#!/usr/bin/env bash
# Sharded states: with one number of gradient blocks all steps give the same losses and weights to the
# last bit for every pipeline, ddp, shard degree, and whatever is sharded, as one process; ranks reserve
# what the plan says; checkpoints of any go into any other. In the long run every stages x ddp x shard x
# what x recompute besides, 48 ways of each model.
# shellcheck source=training.sh
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"
write_models

# shards MODEL NAME STAGES:DDP:SHARD:WHAT:SCHEDULE:CHUNKS:RECOMPUTE:BUCKETS...: 4 micro-batches of 2 in 4
# blocks.
shards() {
    local model=$1 name=$2 stages ddp shard what schedule chunks redo bucket way
    shift 2
    plan one.yaml "$model" 1 1 1 simple 1 4 2 none --gradient-blocks 4
    train one.yaml 1 "$name"
    for way in "$@"; do
        IFS=: read -r stages ddp shard what schedule chunks redo bucket <<<"$way"
        plan shards.yaml "$model" $((stages * ddp)) "$stages" "$ddp" "$schedule" "$chunks" \
            $((4 / ddp)) 2 "$redo" --gradient-blocks 4 --shard "$shard" --shard-what "$what" \
            --bucket-bytes "$bucket"
        [ "$shard" = 1 ] || expect_match shards.yaml "shard: $shard, shard_what: $what"
        [ "$bucket" = none ] || [ "$ddp" = 1 ] || expect_match shards.yaml "bucket_bytes: "
        train shards.yaml $((stages * ddp)) other
        expect_equal "$way: replicas" "$(wc -l <other.weights | tr -d ' ')" "$ddp"
        sort -u -o other.weights other.weights
        same other "$name"
    done
}
gpt=(1:2:2:weights:breadth-first:3:all:16KiB 2:2:2:optimizer:zero-bubble:1:all:4KiB
    1:2:2:gradients:simple:2:none:2KiB)
residual=(1:4:2:weights:breadth-first:3:none:none 1:2:2:optimizer:simple:1:none:1KiB)
ties=(2:2:2:weights:interleaved:2:none:8KiB 1:2:1:optimizer:simple:1:none:4KiB)
few=2 # replicas where four show no more
if [ -n "${SMP_TEST_LONG-}" ]; then
    few=4
    ways=(1:4:2:optimizer:simple:1:none:4KiB 1:4:4:weights:breadth-first:4:none:none
        1:4:2:weights:breadth-first:3:all:16KiB 1:2:2:gradients:simple:2:none:2KiB
        2:2:2:weights:interleaved:2:none:8KiB 2:2:2:optimizer:zero-bubble:1:all:4KiB
        2:2:2:gradients:interleaved:2:all:none 1:4:4:gradients:simple:1:none:1KiB
        1:4:1:optimizer:simple:1:none:4KiB 2:2:1:optimizer:zero-bubble:1:none:1KiB)
    for at in 1:simple:1 2:interleaved:1; do
        for ddp in 1 2 4; do
            for shard in 1 2 4; do
                for what in optimizer gradients weights; do
                    for redo in none all; do
                        if [ "$shard" -gt "$ddp" ] || { [ "$shard" = 1 ] && [ "$what" != optimizer ]; }; then
                            continue
                        fi
                        ways+=("${at%%:*}:$ddp:$shard:$what:${at#*:}:$redo:$([ "$redo" = all ] && echo none || echo 4KiB)")
                    done
                done
            done
        done
    done
    gpt=("${ways[@]}") residual=("${ways[@]}") ties=("${ways[@]}")
    limit_s=300
fi
shards "$tiny" gpt "${gpt[@]}"
shards residual.yaml residual "${residual[@]}"
shards ties.yaml ties "${ties[@]}"

# However far ahead weights are gathered: as in shards() above, whose `ties` is the last.
for ahead in 0 2; do
    plan ahead.yaml ties.yaml "$few" 1 "$few" breadth-first 4 $((4 / few)) 2 none --gradient-blocks 4 \
        --shard "$few" --shard-what weights --prefetch "$ahead"
    expect_match ahead.yaml "prefetch: $ahead"
    train ahead.yaml "$few" other
    sort -u -o other.weights other.weights
    same other ties
done

# Sums over all replicas in two hops.
plan hops.yaml ties.yaml 4 1 4 simple 1 1 2 none --gradient-blocks 4 --node-replicas 2 --bucket-bytes 4KiB
expect_match hops.yaml 'node_replicas: 2'
train hops.yaml 4 other
sort -u -o other.weights other.weights
same other ties

# Groups of shards that a node does not hold: gathers and scattered sums in two hops.
whats=(weights)
[ -z "${SMP_TEST_LONG-}" ] || whats+=(gradients optimizer)
for what in "${whats[@]}"; do
    plan hops.yaml ties.yaml 4 1 4 breadth-first 4 1 2 none --gradient-blocks 4 --node-replicas 2 \
        --shard 4 --shard-what "$what" --bucket-bytes 4KiB
    expect_match hops.yaml 'node_replicas: 2'
    train hops.yaml 4 other
    sort -u -o other.weights other.weights
    same other ties
done

# Checkpoints: from any into any, and evaluations of what only parts of are here.
resume() { # plan ranks name steps [option...]
    expect_exit 0 mpirun -n "$2" smp-run "$1" --data text.txt --steps "$4" --json --checksum --seed 7 \
        --eval-data held.txt "${@:5}"
    sed -nE 's/.*"(loss|eval_loss)": ?([^,}]*).*/\2/p' out >"$3.loss"
    sed -nE 's/.*"weights": "([0-9a-f]+)".*/\1/p' out | sort -u >"$3.weights"
    [ -s "$3.loss" ] || fail "$3: no losses"
}
model=$tiny
head -c 2500 text.txt >held.txt
plan plan0.yaml "$model" 1 1 1 simple 1 4 2 none --gradient-blocks 4
plan plan1.yaml "$model" "$few" 1 "$few" breadth-first 3 $((4 / few)) 2 none --gradient-blocks 4 --shard "$few" \
    --shard-what weights
plan plan2.yaml "$model" 4 2 2 interleaved 2 2 2 none --gradient-blocks 4 --shard 2
plan plan3.yaml "$model" "$few" 1 "$few" simple 1 $((4 / few)) 2 none --gradient-blocks 4 --shard 2 \
    --shard-what gradients
ranks=(1 "$few" 4 "$few")
resume plan0.yaml 1 whole 9
expect_equal "losses of 9 steps" "$(wc -l <whole.loss | tr -d ' ')" 10
at=0
for k in 1 2 3 0; do
    at=$((at + 2))
    again=(--resume)
    [ "$at" -gt 2 ] || again=()
    resume "plan$k.yaml" "${ranks[k]}" part "$at" --checkpoint saved "${again[@]}"
done
resume plan1.yaml "$few" part 9 --checkpoint saved --resume
expect_equal "weights after four changes of plan" "$(cat part.weights)" "$(cat whole.weights)"
expect_equal "the last step and evaluation" "$(tail -n 2 part.loss)" "$(tail -n 2 whole.loss)"

# A part of the file that one rank wrote is damaged: the one before is taken, and it is said.
file=$(printf "%s\n" saved/*.smp | tail -n 1)
printf 'x' | dd of="$file" bs=1 seek=500000 conv=notrunc status=none
resume plan3.yaml "$few" part 9 --checkpoint saved --resume
expect_match err 'is damaged; took the one before'

# What cannot be.
expect_bad 'shard: got 3, expected a divisor of the 4 replicas' smp-partition "$model" -n 4 --stages 1 \
    --ddp 4 --shard 3
expect_bad 'node_replicas: got 2 and groups of 3 shards, expected groups of a power of two' smp-partition "$model" \
    -n 6 --stages 1 --ddp 6 --shard 3 --node-replicas 2
expect_bad 'node_replicas: got 3, expected a power of two that divides the 4 replicas' smp-partition "$model" \
    -n 4 --stages 1 --ddp 4 --node-replicas 3
expect_bad "shard-what: got 'all'" smp-partition "$model" -n 4 --shard 2 --shard-what all
for change in "s/shard: $few/shard: 3/" 's/, shard_what: weights//' "s/shard: $few, //" 's/what: weights/what: x/'; do
    sed "$change" plan1.yaml >bad.yaml
    expect_bad 'bad.yaml:[0-9]*:[0-9]*: parallel:' smp-partition check bad.yaml
done
for change in 's/G.0 G.1 F0.0/G.0 F0.0/' 's/D.0 //' 's/A.0 O/O/' 's/G.0 G.1/G.0 G.0/' 's/G.0 G.1/D.0 G.1/'; do
    sed "$change" plan1.yaml >bad.yaml
    expect_exit 2 mpirun -n "$few" smp-run bad.yaml --data text.txt
    expect_match err 'bad.yaml:[0-9]*:[0-9]*: rank 0, a'
done
finish

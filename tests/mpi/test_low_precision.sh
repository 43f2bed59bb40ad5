#!/usr/bin/env bash
# States of the optimizer in bf16: the same bits for every pipeline, ddp and shard degree; checkpoints
# go on bit by bit, under another plan too, and into states of the other format. Gradients in bf16 on
# the wire: replicas stay equal, and buckets, parts and stages do not show. Both in plans and their bounds.
# shellcheck source=training.sh
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"
write_models
model=$tiny
steps=8

# trained NAME PLAN-OPTIONS...: as plan() takes them, but for the file; all replicas have one hash.
trained() {
    plan "$1.yaml" "${@:2}"
    train "$1.yaml" "$3" "$1"
    sort -u -o "$1.weights" "$1.weights"
    expect_equal "$1: hashes of replicas" "$(wc -l <"$1.weights" | tr -d ' ')" 1
}

differs() { # name reference
    expect_equal "$1 is not $2" "$(cmp -s "$1.weights" "$2.weights" || echo other)" other
}

blocks=(--gradient-blocks 4)
small=("${blocks[@]}" --state-precision bf16)
trained wide "$model" 1 1 1 simple 1 4 2 none "${blocks[@]}"
trained one "$model" 1 1 1 simple 1 4 2 none "${small[@]}"
expect_match one.yaml '^execution: \{device: cpu, precision: fp32, state_precision: bf16\}$'
expect_no_match wide.yaml state_precision
differs one wide
expect_equal "half of the states" "$(sed -nE 's/.*peak_bytes: \[([0-9]+).*/\1/p' wide.yaml one.yaml |
    paste -s -d' ' | awk '{ print ($1 > $2) }')" 1
trained way "$model" 2 2 1 interleaved 2 4 2 all "${small[@]}"
same way one
trained way "$model" 2 1 2 simple 1 2 2 none "${small[@]}" --shard 2
same way one
trained way "$model" 2 1 2 breadth-first 2 2 2 none "${small[@]}" --shard 2 --shard-what weights --bucket-bytes 8KiB
same way one
trained tied ties.yaml 1 1 1 simple 1 4 2 none "${small[@]}"
trained way ties.yaml 4 2 2 zero-bubble 1 2 2 none "${small[@]}" --shard 2 --shard-what gradients
same way tied
if [ -n "${SMP_TEST_LONG-}" ]; then
    trained way "$model" 4 2 2 interleaved 1 2 2 none "${small[@]}" --shard 2 --shard-what weights --bucket-bytes 8KiB
    same way one
fi

# Saved and resumed, by a thread and from the arena, under another plan; from and to states in fp32.
resume() { # plan ranks name steps [option...]
    expect_exit 0 mpirun -n "$2" smp-run "$1" --data text.txt --steps "$4" --json --checksum --seed 7 \
        --lr 0.003 "${@:5}"
    losses out >"$3.loss"
    sed -nE 's/.*"weights": "([0-9a-f]+)".*/\1/p' out | sort -u >"$3.weights"
}
resume one.yaml 1 whole 8
plan halves.yaml "$model" 2 1 2 simple 1 2 2 none "${small[@]}" --shard 2
resume halves.yaml 2 first 4 --checkpoint saved --save-every 2
resume one.yaml 1 second 6 --checkpoint saved --resume
resume halves.yaml 2 third 8 --checkpoint saved --resume
expect_equal "losses over three plans" "$(cat first.loss second.loss third.loss)" "$(cat whole.loss)"
expect_equal "weights over three plans" "$(cat third.weights)" "$(cat whole.weights)"
resume wide.yaml 1 fourth 10 --checkpoint saved --resume # the states that bf16 has, widened
resume one.yaml 1 fifth 12 --checkpoint saved --resume   # and rounded to the nearest
expect_equal "steps across formats" "$(cat fourth.loss fifth.loss | wc -l | tr -d ' ')" 4
expect_equal "losses across formats go on" "$(cat whole.loss fifth.loss |
    awk 'NR == 1 { first = $2 } END { print ($2 < first - 1) }')" 1

# The wire.
wire=("${blocks[@]}" --gradient-wire bf16)
trained alone "$model" 1 1 1 simple 1 4 2 none "${wire[@]}"
same alone wide
trained pair "$model" 2 1 2 simple 1 2 2 none "${wire[@]}"
expect_match pair.yaml 'gradient_wire: bf16'
differs pair wide
expect_equal "losses near those of fp32" "$(paste wide.loss pair.loss |
    awk '{ d = ($1 - $2) / $1; if (d * d > 1e-3 ^ 2) print }')" ""
ways=("2 1 2 simple 1 2 2 all --bucket-bytes 16KiB" "2 1 2 simple 1 2 2 none --shard 2 --shard-what gradients"
    "2 1 2 breadth-first 2 2 2 none --shard 2 --shard-what weights --bucket-bytes 64KiB")
[ -z "${SMP_TEST_LONG-}" ] || ways+=("4 2 2 interleaved 2 2 2 all"
    "4 2 2 interleaved 1 2 2 none --shard 2 --shard-what weights --bucket-bytes 64KiB")
for way in "${ways[@]}"; do
    # shellcheck disable=SC2086 # words
    trained way "$model" $way "${wire[@]}"
    same way pair
done
trained both "$model" 2 1 2 simple 1 2 2 none "${wire[@]}" --state-precision bf16
differs both pair
trained hops "$model" 4 1 4 simple 1 1 2 none "${wire[@]}" --node-replicas 2

# A plan that is kept keeps both, unless told otherwise; no step is predicted below its bound.
expect_exit 0 smp-partition "$model" --fix both.yaml -o kept.yaml
expect_match kept.yaml 'gradient_wire: bf16'
expect_match kept.yaml 'state_precision: bf16'
expect_exit 0 smp-partition "$model" --fix both.yaml --gradient-wire fp32 --state-precision fp32 -o kept.yaml
expect_no_match kept.yaml 'gradient_wire|state_precision'
expect_exit 0 smp-partition check both.yaml
for precision in fp32 bf16; do
    expect_exit 0 smp-partition "$model" --cluster "$SMP_EXAMPLES/cluster-a100.yaml" --device cuda -n 16 --ddp 8 --stages 2 \
        --chunks 1 --pipeline interleaved --microbatches 4 --microbatch-size 8 --bucket-bytes none --gradient-wire "$precision" --state-precision "$precision" -o "$precision.yaml"
    sed -nE 's/.*step_us: ([0-9.]+),.*step_gap: ([0-9.e-]+).*/\1 \2/p' "$precision.yaml"
done >steps
expect_equal "faster, and not below the bound" "$(awk '$2 < -1e-9 { print "below" } { us[NR] = $1 }
    END { print (us[2] < us[1]) }' steps)" 1
for change in 's/state_precision: bf16/state_precision: fp8/' 's/gradient_wire: bf16/gradient_wire: int8/'; do
    sed "$change" both.yaml >bad.yaml
    expect_bad "bad.yaml:[0-9]*:[0-9]*: .*: got '(fp8|int8)'" smp-partition check bad.yaml
done
expect_bad "state-precision: got 'fp8'" smp-partition "$model" --state-precision fp8
expect_bad "gradient-wire: got 'int8'" smp-partition "$model" --gradient-wire int8
finish

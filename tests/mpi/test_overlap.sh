#!/usr/bin/env bash
# On a slow network (SMP_THROTTLE) buckets and gathers ahead of use make steps shorter, by at least half
# of what is predicted; the bits stay. tests/bench/bench_overlap.sh measures how well it is predicted.
# shellcheck source=training.sh
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"
steps=5
rate=150000000
export SMP_THROTTLE=$rate
"$tests_dir/bench/transformer.sh" 40 | sed -E \
    "s/^let:.*/let: {T: 64, d: 192, heads: 4, layers: 4, vocab: 256}/" >gpt.yaml
cat >cluster.yaml <<END
smp: 1
name: four ranks on a slow network
nodes: 1
devices_per_node: 4
cores_per_node: 2
device: {name: core, memory: 4GB, compute: {fp32: 100GFLOP/s}, bandwidth: 10GB/s}
links:
  intra_node: {bandwidth: ${rate}B/s, latency_us: 1}
END

median() { # name key
    sed -nE "s/.*\"$2\": ?([0-9.]+).*/\\1/p" "$1.json" | tail -n 4 | sort -n | sed -n 2p
}

least() { # file...: step_us; whatever else runs on the machine only adds to it
    sed -nE 's/.*"step_us": ?([0-9.]+).*/\1/p' "$@" | sort -n | head -n 1
}

# faster NAME PIPELINE CHUNKS OPTION SLOW FAST [option...]: SLOW and FAST are values of OPTION. On a
# loaded machine the shortest of up to three runs of each counts.
faster() {
    local name=$1 pipeline=$2 chunks=$3 option=$4 slow=$5 fast=$6 i=0 value again most=3
    for value in "$slow" "$fast"; do
        plan "$name.$i.yaml" gpt.yaml 4 1 4 "$pipeline" "$chunks" 1 8 none --cluster cluster.yaml \
            "$option" "$value" "${@:7}"
        train "$name.$i.yaml" 4 "$name.$i"
        i=$((i + 1))
    done
    same "$name.1" "$name.0"
    for ((again = 1; again <= most; again++)); do
        awk -v slow="$(least "$name".0*.json)" -v fast="$(least "$name".1*.json)" \
            -v from="$(median "$name.0" predicted_us)" -v to="$(median "$name.1" predicted_us)" \
            -v name="$name" 'BEGIN {
                printf "%s: %.0f to %.0f us, predicted %.0f to %.0f\n", name, slow, fast, from, to
                exit !(from - to > 0.1 * to && slow - fast > 0.5 * (from - to)) }' && return
        [ "$again" = "$most" ] || for i in 0 1; do
            train "$name.$i.yaml" 4 "$name.$i.$again"
        done
    done
    fail "$name: too little of what was predicted"
}
faster buckets simple 1 --bucket-bytes none 512KiB
faster ahead breadth-first 4 --prefetch 0 1 --bucket-bytes none --shard 4 --shard-what weights

# Messages between stages take their time too.
plan pipe.yaml gpt.yaml 2 2 1 interleaved 1 4 2 none --cluster cluster.yaml
SMP_THROTTLE=$((rate / 50)) train pipe.yaml 2 slow
unset SMP_THROTTLE
train pipe.yaml 2 quick
same slow quick
expect_equal "a message of 98,304 bytes each way at 3 MB/s takes its 33 ms" \
    "$(awk -v slow="$(median slow step_us)" -v quick="$(median quick step_us)" \
        'BEGIN { print (slow - quick > 60000 && slow - quick < 600000) }')" 1
expect_exit 2 mpirun -n 2 -x SMP_THROTTLE=fast smp-run pipe.yaml --data text.txt
expect_match err "SMP_THROTTLE: got 'fast', expected bytes per second"
finish

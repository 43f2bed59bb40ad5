#!/usr/bin/env bash
# Four replicas, two on each of two hosts with a slow link between them: sums in two hops against one,
# states sharded inside a host against across. Steps against what is predicted with the costs of the
# run, and the same bits whatever way sums take. SMP_ROWS=FILE: where to write what was measured. With it or with
# SMP_TEST_LONG there are more samples, and each plan is made a second time, with the costs of its first run.
# shellcheck source=training.sh
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"
# shellcheck source=two_hosts.sh
source "$tests_dir/mpi/two_hosts.sh"
rows=${SMP_ROWS:-/dev/null}
again=${SMP_TEST_LONG-}${SMP_ROWS-}
steps=${SMP_STEPS:-3} size=2 # little to compute: what messages take shows on a loaded machine, too
[ -z "$again" ] || steps=${SMP_STEPS:-6} size=8

"$tests_dir/bench/transformer.sh" 40 | sed -E \
    "s/^let:.*/let: {T: 64, d: 192, heads: 4, layers: 4, vocab: 256}/" >gpt.yaml
# What smp-profile --links measures: 24 MB/s and 233 us.
cat >cluster.yaml <<END
smp: 1
name: two hosts
nodes: 2
devices_per_node: 2
cores_per_node: 1
adapters_per_node: 1
device: {name: core, memory: 4GB, compute: {fp32: 100GFLOP/s}, bandwidth: 10GB/s}
links:
  intra_node: {bandwidth: 2GB/s, latency_us: 30}
  inter_node: {bandwidth: 24MB/s, latency_us: 233}
END

median() { # file key
    sed -nE "s/.*\"$2\": ?([0-9.]+).*/\1/p" "$1" | tail -n $((steps - 1)) | sort -n | sed -n "$((steps / 2))p"
}

# measure NAME [option...]: NAME.us and NAME.predicted. places: of the replicas, if not in their order.
measure() {
    local name=$1 profile=()
    shift
    while true; do
        plan "$name.yaml" gpt.yaml 4 1 4 simple 1 1 "$size" none --cluster cluster.yaml "${profile[@]}" "$@"
        if [ -n "${places-}" ]; then # the plan again, on other devices
            sed -E "s/placement: [a-z]+/placement: $places/" "$name.yaml" >other.yaml
            expect_exit 0 smp-partition gpt.yaml --fix other.yaml --cluster cluster.yaml -n 4 "${profile[@]}" \
                -o "$name.yaml"
            expect_match "$name.yaml" "placement: \\$places"
        fi
        on_hosts 2 smp-run "$name.yaml" --data text.txt --steps "$steps" --json --checksum --seed 11 \
            --profile-out "$name.costs"
        if [ -z "$again" ] || [ ${#profile[@]} != 0 ]; then break; fi
        profile=(--profile "$name.costs")
    done
    grep -E '^\{' out >"$name.json" || true
    sed -nE 's/.*"loss": ?([^,}]*).*/\1/p' "$name.json" >"$name.loss"
    sed -nE 's/.*"replica": [0-9]+, "weights": "([0-9a-f]+)".*/\1/p' out | sort -u >"$name.weights"
    [ -s "$name.loss" ] || fail "$name: no losses"
    median "$name.json" step_us >"$name.us"
    sed -nE 's/.*"step_us": ?([0-9.]+).*/\1/p' "$name.json" | sort -n | head -n 1 >"$name.least"
    median "$name.json" predicted_us >"$name.predicted"
    awk -v name="$name" -v us="$(cat "$name.us")" -v predicted="$(cat "$name.predicted")" 'BEGIN {
        printf "| %s | %.0f | %.2f |\n", name, us / 1e3, predicted / us }' | tee -a "$rows"
}

# By the shortest steps: a loaded machine takes longer now and then. What an idle one takes, against what is
# predicted, stands in docs/simulation.md.
shorter() { # fast slow share
    expect_equal "$1 takes less than $3 of $2" "$(awk -v fast="$(cat "$1.least")" -v slow="$(cat "$2.least")" \
        'BEGIN { print (fast < '"$3"' * slow) ? "yes" : fast " of " slow }')" yes
    same "$1" "$2"
}

measure flat --node-replicas none --bucket-bytes none
measure hops --bucket-bytes none
expect_match hops.yaml 'node_replicas: 2'
shorter hops flat 0.8
measure inside --shard 2 --bucket-bytes none
places='[0, 2, 1, 3]'
measure across --shard 2 --bucket-bytes none
shorter inside across 0.8
same inside flat
places=
measure group_flat --shard 4 --node-replicas none --bucket-bytes none
measure group_hops --shard 4 --bucket-bytes none
expect_match group_hops.yaml 'node_replicas: 2'
shorter group_hops group_flat 0.8
same group_hops flat
finish

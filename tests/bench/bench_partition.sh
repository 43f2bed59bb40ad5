#!/usr/bin/env bash
# Wall time of smp-partition on transformers of a thousand to a hundred thousand ops, 8 stages.
# Best of three runs. Usage: tests/bench/bench_partition.sh [folder of the programs]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=${1:-$here/../../build/bin}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

now_ms() {
    local ns
    ns=$(date +%s%N)
    echo $((ns / 1000000))
}

printf '%-10s %s\n' ops ms
for ops in 1000 10000 100000; do
    bash "$here/transformer.sh" "$ops" >"$scratch/model.yaml"
    best=
    for _ in 1 2 3; do
        start=$(now_ms)
        "$bin/smp-partition" "$scratch/model.yaml" -n 8 --stages 8 --microbatches 16 --memory 1TB \
            -o "$scratch/plan.yaml" >"$scratch/out"
        took=$(($(now_ms) - start))
        if [ -z "$best" ] || [ "$took" -lt "$best" ]; then
            best=$took
        fi
    done
    printf '%-10s %s\n' "$ops" "$best"
done

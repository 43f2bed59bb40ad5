#!/usr/bin/env bash
# What overlap brings on a slow network: replicas of a GPT, whose sums and gathers take what a link
# of RATE bytes a second would take (SMP_THROTTLE, exec/transport/throttle.h), with and without buckets,
# with and without gathering ahead; each against what its plan predicts with the costs of its own run.
#   tests/bench/bench_overlap.sh [RATE [STEPS [ROWS [RANKS]]]]
# STEPS: measured ones of each case, after two to warm up (default 8). ROWS: only those that match (a
# grep -E pattern). RANKS: replicas (default 4). Nothing else may run on the machine. Programs from
# build/bin, or from SMP_BIN_DIR.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=../../examples/mpi-env.sh
source "$top/examples/mpi-env.sh"
rate=${1:-60000000}
steps=${2:-8}
wanted=${3:-.}
ranks=${4:-4}
bin=${SMP_BIN_DIR:-$top/build/bin}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

awk 'BEGIN { seed = 1; for (i = 0; i < 400000; i++) { seed = seed * 16807 % 2147483647
             printf "%c", seed % 6 ? 97 + seed % 26 : 32 } }' >text.txt
"$top/tests/bench/transformer.sh" 80 | sed -E \
    "s/^name:.*/name: gpt-64-256-8/; s/^let:.*/let: {T: 64, d: 256, heads: 4, layers: 8, vocab: 256}/" >gpt.yaml
cat >cluster.yaml <<END
smp: 1
name: four ranks on a slow network
nodes: 1
devices_per_node: $ranks
cores_per_node: $(nproc)
device: {name: core, memory: 4GB, compute: {fp32: 100GFLOP/s}, bandwidth: 10GB/s}
links:
  intra_node: {bandwidth: ${rate}B/s, latency_us: 1}
END

# name, options
ddp="--ddp $ranks --chunks 1 --pipeline simple"
units="--ddp $ranks --shard $ranks --shard-what weights --chunks 8 --pipeline breadth-first"
rows="ddp $ranks, one bucket|$ddp --bucket-bytes none
ddp $ranks, one bucket, bf16 on the wire|$ddp --bucket-bytes none --gradient-wire bf16
ddp $ranks, buckets of 2 MiB|$ddp --bucket-bytes 2MiB
ddp $ranks, buckets of 2 MiB, bf16 on the wire|$ddp --bucket-bytes 2MiB --gradient-wire bf16
weights in shards, gathered when needed|$units --bucket-bytes none --prefetch 0
weights in shards, gathered one run ahead|$units --bucket-bytes none --prefetch 1
weights in shards, one run ahead, buckets of 512 KiB|$units --bucket-bytes 512KiB --prefetch 1"

plan() { # profile file option...
    "$bin/smp-partition" gpt.yaml --cluster cluster.yaml -n "$ranks" --stages 1 --microbatches 2 --microbatch-size 4 \
        --recompute none --profile "$1" -o "$2" "${@:3}" >out
}

# The median of the measured steps, and what was predicted.
run() { # plan option...
    mpirun -n "$ranks" -x SMP_THROTTLE="$rate" "$bin/smp-run" "$1" --data text.txt --steps $((steps + 2)) \
        --json "${@:2}" | sed -nE 's/.*"step_us": ([0-9.]+), "predicted_us": ([0-9.]+).*/\1 \2/p' |
        tail -n "$steps" | sort -n | sed -n "$(((steps + 1) / 2))p"
}

mpirun -n 2 "$bin/smp-profile" gpt.yaml --microbatch-size 4 -o profile.yaml 2>err
echo "| $rate bytes a second | measured ms | predicted / measured | with the run's own profile |"
echo "| --- | --- | --- | --- |"
grep -E "$wanted" <<<"$rows" | while IFS='|' read -r name options; do
    # shellcheck disable=SC2086 # words
    plan profile.yaml plan.yaml $options
    read -r measured predicted < <(run plan.yaml --profile-out own.yaml </dev/null)
    # shellcheck disable=SC2086
    plan own.yaml own-plan.yaml $options
    read -r again closed < <(run own-plan.yaml </dev/null)
    awk -v name="$name" -v m="$measured" -v p="$predicted" -v again="$again" -v closed="$closed" 'BEGIN {
        printf "| %s | %.0f, %.0f | %.3f | %.3f |\n", name, m / 1e3, again / 1e3, p / m, closed / again }'
done

#!/usr/bin/env bash
# Stashes that travel over a slow link: one rank of a GPT whose stashes all go to host memory, over a link
# of 1, 4 and 16 GB/s (SMP_THROTTLE_HOST, exec/offload/offload_area.h), each against what its plan predicts with
# the costs of a run just before that has none of it; and the share of the optimizer in a step.
#   tests/bench/bench_offload.sh [STEPS [MODEL [SIZE]]]
# STEPS: measured ones of each case, after two to warm up (default 8). MODEL: default gpt-tiny.yaml, in
# micro-batches of SIZE samples (default 8). Copies need a core: nothing else may run on the machine.
# Programs from build/bin, or from SMP_BIN_DIR.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=../../examples/mpi-env.sh
source "$top/examples/mpi-env.sh"
steps=${1:-8}
model=$(realpath "${2:-$top/examples/gpt-tiny.yaml}")
size=${3:-8}
bin=$(realpath "${SMP_BIN_DIR:-$top/build/bin}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

awk 'BEGIN { seed = 1; for (i = 0; i < 400000; i++) { seed = seed * 16807 % 2147483647
             printf "%c", seed % 6 ? 97 + seed % 26 : 32 } }' >text.txt

plan() { # rate file option...
    cat >cluster.yaml <<END
smp: 1
name: one core and a link
nodes: 1
devices_per_node: 1
device: {name: core, memory: 16GB, compute: {fp32: 100GFLOP/s}, bandwidth: 10GB/s}
links: {host: {bandwidth: ${1}B/s, latency_us: 0}}
END
    "$bin/smp-partition" "$model" --cluster cluster.yaml -n 1 --stages 1 --microbatches 8 \
        --microbatch-size "$size" --pipeline simple --recompute none -o "$2" "${@:3}" >out
}

# The median of the measured steps, and what was predicted.
run() { # rate plan option...
    SMP_THROTTLE_HOST=$1 mpirun -n 1 "$bin/smp-run" "$2" --data text.txt --steps $((steps + 2)) \
        --json "${@:3}" >lines
    sed -nE 's/.*"step_us": ([0-9.]+), "predicted_us": ([0-9.]+).*/\1 \2/p' lines | tail -n "$steps" |
        sort -n | sed -n "$(((steps + 1) / 2))p"
}

# Mean length of the copies that go out, of a run whose link is none: what the machine's copying reaches.
copying() { # plan
    mpirun -n 1 "$bin/smp-run" "$1" --data text.txt --steps 3 --trace trace.json >/dev/null
    bytes=$(sed -nE 's/.*offload_bytes: ([0-9]+).*/\1/p' "$1")
    grep -oE '"name":"S[^}]*"pid":2[^}]*"dur":[0-9.e+]+' trace.json | sed 's/.*"dur"://' |
        awk -v bytes="$bytes" '{ sum += $1 } END { printf "%.1f", 1e-3 * bytes * NR / sum }'
}

plan 1000000000 first.yaml --offload none
run 1e9 first.yaml --profile-out own.yaml >/dev/null
plan 1000000000 any.yaml --offload all --loading-horizon 1 --profile own.yaml
echo "copies of one thread: $(copying any.yaml) GB/s; of one micro-batch" \
    "$(sed -nE 's/.*offload_bytes: ([0-9]+).*/\1/p' any.yaml) bytes travel"
echo "| link, GB/s | horizon | without: measured ms, predicted / measured | with | predicted / measured | with over without, predicted |"
echo "| --- | --- | --- | --- | --- | --- |"
for rate in 1 4 16; do
    for horizon in 1 2; do
        plan 1000000000 none.yaml --offload none --profile own.yaml
        read -r plain plain_predicted < <(run 1e9 none.yaml --profile-out next.yaml)
        plan "${rate}000000000" all.yaml --offload all --loading-horizon "$horizon" --profile next.yaml
        read -r measured predicted < <(run "${rate}e9" all.yaml)
        plan 1000000000 none.yaml --offload none --profile next.yaml
        again=$(sed -nE 's/^predicted: \{step_us: ([0-9.]+).*/\1/p' none.yaml)
        mv next.yaml own.yaml
        awk -v rate="$rate" -v h="$horizon" -v a="$plain" -v b="$plain_predicted" -v c="$measured" \
            -v d="$predicted" -v e="$again" 'BEGIN {
            printf "| %d | %d | %.0f, %.3f | %.0f | %.3f | %.3f, %.3f |\n", rate, h, a / 1e3, b / a,
                c / 1e3, d / c, c / a, d / e }'
    done
done
mpirun -n 1 "$bin/smp-run" none.yaml --data text.txt --steps $((steps + 2)) --json --log rows.csv >lines
sed -nE 's/.*"forward_us": ([0-9.]+), "backward_us": ([0-9.]+).*"optimizer_us": ([0-9.]+), "messages_us.*/\1 \2 \3/p' lines |
    head -n 1 | awk '{ printf "optimizer: %.4f of a step\n", $3 / ($1 + $2 + $3) }'

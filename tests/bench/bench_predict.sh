#!/usr/bin/env bash
# Predicted against measured steps: ten models by five schedules, every case a row of a table. Predicted
# twice: with a profile taken before (smp-profile), and with what the run itself cost (--profile-out).
#   tests/bench/bench_predict.sh [RANKS [STEPS [MODELS]]]
# RANKS: one stage on each (default 2); more than there are cores share them. STEPS: measured ones of
# each case, after two to warm up (default 12). MODELS: only those whose name matches (a grep -E pattern).
# Nothing else may run on the machine. Programs from build/bin, or from SMP_BIN_DIR.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=../../examples/mpi-env.sh
source "$top/examples/mpi-env.sh"
ranks=${1:-2}
steps=${2:-12}
wanted=${3:-.}
cores=$(nproc)
measuring=$((ranks < cores ? ranks : cores)) # as many ranks take a profile
links=()
[ "$measuring" -lt 2 ] || links=(--links)
bin=${SMP_BIN_DIR:-$top/build/bin}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

awk 'BEGIN { seed = 1; for (i = 0; i < 400000; i++) { seed = seed * 16807 % 2147483647
             printf "%c", seed % 6 ? 97 + seed % 26 : 32 } }' >"$scratch/text.txt"

# A GPT over bytes: samples of T tokens, d features, layers.
gpt() { # T d layers
    "$top/tests/bench/transformer.sh" $(($3 * 10)) | sed -E \
        "s/^name:.*/name: gpt-$1-$2-$3/; s/^let:.*/let: {T: $1, d: $2, heads: 4, layers: $3, vocab: 256}/"
}

models() { # lines: name, samples of a micro-batch
    echo "gpt-tiny 4
gpt-small 2
branches 8"
    for shape in "32 64 4" "64 64 8" "64 128 4" "128 128 4" "64 256 4" "128 256 4" "64 384 2"; do
        # shellcheck disable=SC2086 # three words
        gpt $shape >"$scratch/gpt-${shape// /-}.yaml"
        echo "gpt-${shape// /-} 4"
    done
}

# pipeline chunks
schedules="simple 1
interleaved 1
interleaved 2
breadth-first 2
zero-bubble 1"

# The median of the measured steps, and what was predicted.
run() { # plan option...
    mpirun -n "$ranks" "$bin/smp-run" "$1" --data "$scratch/text.txt" --steps $((steps + 2)) --json \
        "${@:2}" | sed -nE 's/.*"step_us": ([0-9.]+), "predicted_us": ([0-9.]+).*/\1 \2/p' |
        tail -n "$steps" | sort -n | sed -n "$(((steps + 1) / 2))p"
}

plan() { # model size pipeline chunks profile file
    "$bin/smp-partition" "$1" -n "$ranks" --stages "$ranks" --ddp 1 --microbatches $((4 * ranks)) \
        --microbatch-size "$2" --pipeline "$3" --chunks "$4" --profile "$5" -o "$6" >"$scratch/out"
}

echo "| model, $ranks ranks on $cores cores | schedule, chunks | measured ms | predicted / measured | with the run's own profile |"
echo "| --- | --- | --- | --- | --- |"
models | grep -E "$wanted" | while read -r name size; do
    model=$top/examples/$name.yaml
    [ -e "$model" ] || model=$scratch/$name.yaml
    mpirun -n "$measuring" "$bin/smp-profile" "$model" --microbatch-size "$size" "${links[@]}" \
        -o "$scratch/profile.yaml" 2>"$scratch/err" </dev/null
    while read -r pipeline chunks; do
        plan "$model" "$size" "$pipeline" "$chunks" "$scratch/profile.yaml" "$scratch/plan.yaml"
        read -r measured predicted < <(run "$scratch/plan.yaml" --profile-out "$scratch/own.yaml" </dev/null)
        plan "$model" "$size" "$pipeline" "$chunks" "$scratch/own.yaml" "$scratch/own-plan.yaml"
        read -r again closed < <(run "$scratch/own-plan.yaml" </dev/null)
        awk -v name="$name" -v schedule="$pipeline, $chunks" -v m="$measured" -v p="$predicted" \
            -v again="$again" -v closed="$closed" 'BEGIN {
                printf "| %s | %s | %.2f | %.3f | %.3f |\n", name, schedule, m / 1e3, p / m, closed / again
            }'
    done <<<"$schedules"
done

#!/usr/bin/env bash
# Pipelining: the same training on one core and as a pipeline of two stages on two cores, in turns.
# Speed-up over the bound stages * m / (m + stages - 1), and predicted against measured step time.
#   tests/bench/bench_pipeline.sh [MODEL [MICROBATCH_SIZE [MICROBATCHES [STEPS [ROUNDS]]]]]
# Programs from build/bin, or from SMP_BIN_DIR.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=../../examples/mpi-env.sh
source "$top/examples/mpi-env.sh"
model=${1:-$top/examples/gpt-small.yaml}
size=${2:-4}
m=${3:-16}
steps=${4:-6}
rounds=${5:-5}
stages=2
bin=${SMP_BIN_DIR:-$top/build/bin}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

PATH=$PATH:/usr/games bible -f -l 9999 'Gen1:1-Rev22:21' </dev/null >"$scratch/text.txt"
mpirun -n 2 "$bin/smp-profile" "$model" --microbatch-size "$size" --links -o "$scratch/profile.yaml"
for n in 1 "$stages"; do
    "$bin/smp-partition" "$model" -n "$n" --stages "$n" --ddp 1 --chunks 1 --microbatches "$m" \
        --microbatch-size "$size" --pipeline interleaved --profile "$scratch/profile.yaml" \
        -o "$scratch/plan-$n.yaml"
done

# Median step of a run in microseconds, without the first two steps; the predicted one beside it.
run() {
    mpirun -n "$1" "$bin/smp-run" "$scratch/plan-$1.yaml" --data "$scratch/text.txt" \
        --steps $((steps + 2)) --json |
        sed -nE 's/.*"step_us": ([0-9.]+), "predicted_us": ([0-9.]+).*/\1 \2/p' |
        tail -n "$steps" | sort -n | sed -n "$(((steps + 1) / 2))p"
}

for round in $(seq "$rounds"); do
    read -r one one_predicted < <(run 1)
    read -r two two_predicted < <(run "$stages")
    awk -v one="$one" -v two="$two" -v op="$one_predicted" -v tp="$two_predicted" -v m="$m" \
        -v p="$stages" -v round="$round" 'BEGIN {
            speedup = one / two; bound = p * m / (m + p - 1)
            printf "round %d: 1 core %.1f ms, %d cores %.1f ms, speed-up %.3f, of the bound %.3f %.3f; " \
                   "predicted / measured %.3f and %.3f\n",
                   round, one / 1e3, p, two / 1e3, speedup, bound, speedup / bound, op / one, tp / two
        }'
done | tee "$scratch/rounds"
sed -nE 's/.*of the bound [0-9.]+ ([0-9.]+);.*/\1/p' "$scratch/rounds" | sort -n |
    awk '{ v[NR] = $1 } END { printf "median speed-up over bound: %.3f\n", v[int((NR + 1) / 2)] }'

#!/usr/bin/env bash
# What products cut in pieces bring on a slow network: a GPT of 6.5 million parameters on two ranks that compute
# every operator together, Megatron-LM's pattern with positions split in between; sums and gathers take what a link
# of RATE bytes a second would take (SMP_THROTTLE, exec/transport/throttle.h). Gathers and scatters that wait, those
# that hide behind weight gradients, and products whose rows travel beside them; measured in turn, each against what
# its plan predicts from a profile taken in the same run.
#   tests/bench/bench_pieces.sh [RATE [STEPS [ROUNDS]]]
# STEPS: measured ones of each case and round, after two to warm up (default 12). The shortest step counts, so that
# what else runs on the machine matters least. Programs from build/bin, or from SMP_BIN_DIR.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=../../examples/mpi-env.sh
source "$top/examples/mpi-env.sh"
rate=${1:-400000000}
steps=${2:-12}
rounds=${3:-4}
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
name: two ranks on a slow network
nodes: 1
devices_per_node: 2
device: {name: core, memory: 4GB, compute: {fp32: 100GFLOP/s}, bandwidth: 10GB/s}
links:
  intra_node: {bandwidth: ${rate}B/s, latency_us: 1}
END

# name, how products are split, whether weight gradients hide exchanges
rows='gathers and scatters|columns rows|no
the same behind weight gradients|columns rows|yes
products in pieces|ring_columns ring_rows|yes'

plan() { # "columns rows" overlap file
    local columns=${1% *} rows=${1#* } rule split=(--split '*:whole')
    for rule in "h*.attn.qkv:${columns/_/ }/3" 'h*.attn:packed heads' "h*.proj:${rows/_/ }" "h*.mlp.fc:${columns/_/ }" \
        'h*.gelu:elements@1' wte:rows wpe:positions 'h*.ln_?:positions@0' 'h*.res_?:elements@0' ln_f:positions@0 \
        "lm_head:${columns/_/ }" loss:classes; do
        split+=(--split "$rule")
    done
    "$bin/smp-partition" gpt.yaml --cluster cluster.yaml -n 2 --tensor 2 --stages 1 --ddp 1 --chunks 1 --pipeline simple \
        --microbatches 2 --microbatch-size 4 --recompute none --profile profile.yaml --tensor-overlap "$2" "${split[@]}" \
        -o "$3" >out
}

run() { # plan: measured and predicted us of steps
    mpirun -n 2 -x SMP_THROTTLE="$rate" "$bin/smp-run" "$1" --data text.txt --steps $((steps + 2)) --json </dev/null |
        sed -nE 's/.*"step_us": ([0-9.]+), "predicted_us": ([0-9.]+).*/\1 \2/p' | tail -n "$steps"
}

mpirun -n 2 "$bin/smp-profile" gpt.yaml --microbatch-size 4 -o profile.yaml 2>err
case=0
while IFS='|' read -r name kinds overlap; do plan "$kinds" "$overlap" "$((++case)).yaml"; done <<<"$rows"
for ((round = 0; round < rounds; round++)); do
    for ((case = 1; case <= 3; case++)); do run "$case.yaml" >>"$case.us"; done
done
echo "| $rate bytes a second | measured ms, shortest, median | predicted ms | predicted / shortest | over the first |"
echo "| --- | --- | --- | --- | --- |"
case=0
while IFS='|' read -r name kinds overlap; do
    case=$((case + 1)) # in a pipeline it would be counted for nobody
    sort -n "$case.us" | awk -v name="$name" '{ us[NR] = $1; predicted = $2 } END {
        printf "%s|%.0f|%.0f|%.0f\n", name, us[1], us[int((NR + 1) / 2)], predicted }'
done <<<"$rows" | awk -F '|' 'NR == 1 { first = $2; of = $4 } {
    printf "| %s | %.0f, %.0f | %.0f | %.3f | measured %.3f, predicted %.3f |\n", $1, $2 / 1e3, $3 / 1e3, $4 / 1e3,
        $4 / $2, $2 / first, $4 / of }'

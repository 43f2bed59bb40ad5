#!/usr/bin/env bash
# Prints again the table of tensor parallelism in README.md: GPTs on A100 of 80 GB, planned with the degrees
# of two papers beside the steps that these measured, then with degrees that are searched.
#   examples/tensor-cases.sh [BIN]        BIN: folder of smp-partition, default build/bin
# A plan takes at most SECONDS_EACH (default 5), one whose degrees are searched as much for each number of
# replicas. ONLY: a pattern of models (175b).
#
# Measured, on NVIDIA's Selene, all with 2048 tokens and a vocabulary of 51200:
# - Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM"
#   (arXiv 2104.04473): TFLOP/s per GPU of table 1 (from 18b to 1t), table 2 (175b and 530b on several numbers
#   of GPUs), and section 5.1 (175b on 1,024, degrees not told). Micro-batches and chunks are those of the
#   authors' scripts (Megatron-LM, examples/sc21); none are there for table 2, which here has no chunks.
#   Everything is recomputed.
# - Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models" (arXiv 2205.05198):
#   seconds of a step, tables 3 and 5; everything recomputed, and the attention's inner part alone, with
#   positions split outside of it. Here the planner chooses what is recomputed (auto).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=${1:-$here/../build/bin}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Width, heads, layers.
sizes() {
    case $1 in
    18b) echo 6144 48 40 ;; 22b) echo 6144 64 48 ;; 39b) echo 8192 64 48 ;; 76b) echo 10240 80 60 ;;
    145b) echo 12288 96 80 ;; 175b) echo 12288 96 96 ;; 310b) echo 16384 128 96 ;; 530b) echo 20480 128 105 ;;
    1t) echo 25600 160 128 ;;
    esac
}

taken() { # key: its number in the plan's "parallel:", or 1
    sed -nE "s/^parallel: .*[{ ]$1: ([0-9]+).*/\1/p" "$scratch/plan.yaml" | grep . || echo 1
}

plan() { # seconds, option...: the predicted step in seconds, or what is missing
    local status=0
    "$bin/smp-partition" "$scratch/model.yaml" --cluster "$here/cluster-a100-3k.yaml" --device cuda --precision bf16 \
        --offload none --offload-states none \
        --time-limit "$1" "${@:2}" -o "$scratch/plan.yaml" >"$scratch/out" 2>&1 || status=$?
    case $status in
    0) sed -nE 's/^predicted: .*step_us: ([0-9.e+]+).*/\1/p' "$scratch/plan.yaml" | awk '{ print $1 / 1e6 }' ;;
    3) sed -nE 's/.* (needs?) ([0-9.]+ [KMGT]iB),.*/needs_\2/p' "$scratch/out" | tr -d ' ' | grep . || echo no_plan ;;
    *) cat "$scratch/out" >&2 && return 1 ;;
    esac
}

# One line of the table. Operations are counted as the measured job's are, so that rates compare as steps do:
# products alone, with the forward pass twice (2021, equation 3), or once where that job did not recompute
# everything (2022, equation 7: "model FLOPs").
row() { # model, devices, degrees, chunks, micro-batches, recompute, batch, predicted, kind, measured
    read -r d heads layers < <(sizes "$1")
    awk -v d="$d" -v l="$layers" -v n="$2" -v again="$6" -v B="$7" -v step="$8" -v kind="$9" -v measured="${10}" \
        -v head="| $1 | $2 | $3 | $4 | $5 | $6 |" 'BEGIN {
            s = 2048; V = 51200; passes = kind == "tflops" || again == "all" ? 4 : 3
            flops = B * s * l * (passes * (24 * d * d + 4 * s * d) + 6 * V * d / l)
            if (kind == "tflops") { rate = measured; measured = flops / n / rate / 1e12 }
            else rate = flops / n / measured / 1e12
            printf "%s ", head
            if (step + 0 > 0)
                printf "%.2f | ", step
            else {
                gsub("_", " ", step)
                printf "%s | ", step
            }
            printf "%.2f | %s | ", measured, (step + 0 > 0) ? sprintf("%.2f", step / measured) : "-"
            if (step + 0 > 0)
                printf "%.0f, %.0f %% | ", flops / n / step / 1e12, flops / n / step / 3.12e12
            else
                printf "- | "
            printf "%.0f, %.0f %% |\n", rate, rate / 3.12
        }'
}

echo "| model | GPUs | tensor x ranks x replicas | chunks | micro-batches | recompute | step, s | measured | ratio |" \
    "TFLOP/s per GPU | measured |"
echo "|---|---|---|---|---|---|---|---|---|---|---|"
# Model, GPUs, tensor, ranks (auto: replicas to try, so that the batch stays the published one), chunks, samples of
# a micro-batch, batch, recompute, what was measured.
while read -r model devices tensor ranks chunks size batch recompute kind measured; do
    # shellcheck disable=SC2254 # a pattern
    case $model in ${ONLY:-*}) ;; *) continue ;; esac
    read -r d heads layers < <(sizes "$model")
    sed -e "s/^let: .*/let: {T: 2048, d: $d, heads: $heads, layers: $layers, vocab: 51200}/" \
        -e "s/^name: .*/name: gpt-$model/" "$here/gpt-530b.yaml" >"$scratch/model.yaml"
    limit=${SECONDS_EACH:-5}
    if [ "$tensor" != auto ]; then
        replicas=$((devices / tensor / ranks)) schedule=$([ "$chunks" = 1 ] && echo 1f1b || echo interleaved)
        count=$((batch / replicas / size))
        step=$(plan "$limit" -n "$devices" --tensor "$tensor" --stages "$ranks" --ddp "$replicas" --chunks "$chunks" \
            --microbatch-size "$size" --microbatches "$count" --recompute "$recompute" --pipeline "$schedule")
        row "$model" "$devices" "$tensor x $ranks x $replicas" "$chunks" "$count of $size" "$recompute" "$batch" \
            "$step" "$kind" "$measured"
        continue
    fi
    best=no_plan degrees=searched chunks=- micro=-
    for replicas in ${ranks//,/ }; do
        count=$((batch / replicas / size))
        step=$(plan "$limit" -n "$devices" --tensor auto --ddp "$replicas" --microbatch-size "$size" \
            --microbatches "$count" --recompute "$recompute")
        awk -v new="$step" -v old="$best" 'BEGIN { exit new + 0 <= 0 || old + 0 > 0 && new + 0 >= old + 0 }' ||
            continue
        best=$step chunks=$(taken chunks) micro="$count of $size"
        degrees="$(taken tensor) x $(taken pipeline) x $(taken ddp), searched"
    done
    row "$model" "$devices" "$degrees" "$chunks" "$micro" "$recompute" "$batch" "$best" "$kind" "$measured"
done <<'CASES'
18b 256 8 1 1 8 1024 all tflops 135
39b 512 8 2 1 4 1536 all tflops 138
76b 1024 8 4 3 2 1792 all tflops 140
145b 1536 8 8 2 2 2304 all tflops 148
310b 1920 8 16 2 1 2160 all tflops 155
530b 2520 8 35 3 1 2520 all tflops 163
1t 3072 8 64 1 1 3072 all tflops 163
175b 384 8 12 1 1 1536 all tflops 153
175b 768 8 12 1 1 1536 all tflops 149
175b 1536 8 12 1 1 1536 all tflops 141
530b 560 8 35 1 1 2240 all tflops 171
530b 1120 8 35 1 1 2240 all tflops 167
530b 2240 8 35 1 1 2240 all tflops 159
22b 8 8 1 1 4 4 all seconds 1.42
22b 8 8 1 1 4 4 auto seconds 1.10
175b 64 8 8 3 1 64 all seconds 18.13
175b 64 8 8 3 1 64 auto seconds 13.75
530b 280 8 35 3 1 280 all seconds 49.05
530b 280 8 35 3 1 280 auto seconds 37.83
1t 512 8 64 1 1 512 all seconds 94.42
1t 512 8 64 1 1 512 auto seconds 71.49
175b 64 auto 1,2 - 1 64 auto seconds 13.75
530b 280 auto 1 - 1 280 auto seconds 37.83
175b 1024 auto 4,8,16,32 - 1 1536 auto tflops 140
175b 1536 auto 8,16,32 - 1 1536 auto tflops 141
530b 2520 auto 5,7,9,15 - 1 2520 auto tflops 163
CASES

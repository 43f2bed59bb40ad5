#!/usr/bin/env bash
# Everything that only a GPU can tell: builds with CUDA for the card that is here, runs the `gpu`
# tests, compute-sanitizer, bit-identity over ranks that share the card, and the benchmarks against
# PyTorch; writes one page of results. Installs nothing: the libraries must be there, from Debian's
# packages or from a folder whose env.sh has been sourced.
#   tests/gpu.sh [--results FILE] [--build DIR] [--tests | --bench]
# Exit code: 0; 1 if something failed; 77 if there is no GPU. A part that fails does not keep the
# others from running: the page says so.
# shellcheck disable=SC2317 # functions are called through `part`
set -uo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=../examples/mpi-env.sh
source "$top/examples/mpi-env.sh"

results=$top/build/gpu-results.md
build=$top/build/gpu
parts='tests bench'
while [ $# -gt 0 ]; do
    case $1 in
    --results) results=$2; shift ;;
    --build) build=$2; shift ;;
    --tests) parts=tests ;;
    --bench) parts=bench ;;
    *)
        sed -n '2,9p' "${BASH_SOURCE[0]}" >&2
        exit 2
        ;;
    esac
    shift
done
nvidia-smi -L >/dev/null 2>&1 || {
    echo "no GPU: nvidia-smi finds none" >&2
    exit 77
}

mkdir -p "$build" "$(dirname "$results")"
log=$build/logs
mkdir -p "$log"
failures=0
: >"$results"
say() { printf '%s\n' "$*" | tee -a "$results"; }
# part NAME COMMAND...: runs it with its output in a log; one line of the page.
part() {
    local name=$1 file begin=$SECONDS
    file=$log/$(printf '%s' "$1" | tr -cs 'a-zA-Z0-9\n' -).txt
    shift
    if "$@" >"$file" 2>&1 </dev/null; then
        say "- $name: passed ($((SECONDS - begin)) s)"
    else
        failures=$((failures + 1))
        say "- $name: **FAILED** ($((SECONDS - begin)) s)"
        tail -n 25 "$file" | sed 's/^/      /' | tee -a "$results"
        return 1
    fi
}

query() { nvidia-smi --query-gpu="$1" --format=csv,noheader -i 0; }
capability=$(query compute_cap | tr -d .)
say "# SMP on $(query name)"
say
say "$(query name), $(query memory.total), driver $(query driver_version), $(nvcc --version |
    grep -o 'release [0-9.]*'), $(date -u +%Y-%m-%d), $(nproc) cores"
say

configure() {
    cmake -S "$top" -B "$build" -DCMAKE_BUILD_TYPE=Release -DSMP_WITH_CUDA=ON \
        -DSMP_CUDA_ARCH="$capability" -DSMP_WERROR=ON
}
say '## Build and tests'
say
part configure configure && part build cmake --build "$build" -j "$(nproc)" || exit 1
bin=$build/bin
export PATH=$bin:$PATH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
# Text for the byte and token readers: the project's own.
find "$top" -name build -prune -o \( -name '*.c' -o -name '*.md' -o -name '*.h' \) -print0 |
    LC_ALL=C sort -z | xargs -0 cat >book.txt

# The quickstart's model for 50 steps on 1, 2 and 4 ranks that share the card: equal losses and weights,
# and losses within 1e-3 of the CPU's.
split_equally() {
    local ranks device name
    for name in 1-cpu 1-cuda 2-cuda 4-cuda; do
        ranks=${name%-*} device=${name#*-}
        smp-partition "$top/examples/gpt-tiny.yaml" --cluster "$top/examples/cluster-h200.yaml" \
            -n "$ranks" --device cuda --stages "$ranks" --ddp 1 --chunks 1 --pipeline interleaved \
            --microbatches 4 --microbatch-size 8 -o split.yaml &&
            mpirun -n "$ranks" smp-run split.yaml --device "$device" --data book.txt --steps 50 \
                --lr 3e-3 --warmup 10 --json --checksum >"$name.out" || return 1
        sed -nE 's/.*"loss": ?([^,}]*).*/\1/p' "$name.out" >"$name.loss"
        grep -o '"weights": *"[0-9a-f]*"' "$name.out" >"$name.weights" || return 1
    done
    for ranks in 2 4; do
        cmp "1-cuda.loss" "$ranks-cuda.loss" && cmp "1-cuda.weights" "$ranks-cuda.weights" || return 1
    done
    paste 1-cuda.loss 1-cpu.loss | awk '
        { d = ($1 - $2) / $2; d = d < 0 ? -d : d; if (!(d <= worst)) worst = d }
        END { print NR " steps, CPU and GPU differ by " worst; exit !(NR == 50 && worst <= 1e-3) }'
}

# Two replicas that share the card, with whole states and with all of them in shards: equal weights.
shard_equally() {
    local name options
    for name in whole shards; do
        options=(--chunks 1 --pipeline interleaved)
        [ "$name" = whole ] ||
            options=(--chunks 4 --pipeline breadth-first --shard 2 --shard-what weights --bucket-bytes 256KiB)
        smp-partition "$top/examples/gpt-tiny.yaml" --cluster "$top/examples/cluster-h200.yaml" -n 2 \
            --device cuda --stages 1 --ddp 2 --microbatches 2 --microbatch-size 8 "${options[@]}" -o split.yaml &&
            mpirun -n 2 smp-run split.yaml --device cuda --data book.txt --steps 20 --json --checksum \
                >"$name.out" || return 1
        grep -o '"weights": *"[0-9a-f]*"' "$name.out" | sort -u >"$name.weights" || return 1
    done
    [ "$(wc -l <whole.weights)" = 1 ] && cmp whole.weights shards.weights
}

# Ranks that share the card compute every operator together: losses within 1e-4 of one rank's, and equal
# bits for one number of them with a pipeline.
compute_together() {
    local name tensor stages
    for name in 1-1 2-1 2-2; do
        tensor=${name%-*} stages=${name#*-}
        smp-partition "$top/examples/gpt-tiny.yaml" --cluster "$top/examples/cluster-h200.yaml" \
            -n $((tensor * stages)) --device cuda --tensor "$tensor" --stages "$stages" --ddp 1 --chunks 1 \
            --pipeline interleaved --microbatches 4 --microbatch-size 8 "${megatron[@]:0:$((2 * 8 * (tensor - 1)))}" \
            -o split.yaml &&
            mpirun -n $((tensor * stages)) smp-run split.yaml --device cuda --data book.txt --steps 20 --json \
                --checksum >"$name.out" || return 1
        sed -nE 's/.*"loss": ?([^,}]*).*/\1/p' "$name.out" >"$name.loss"
        grep -o '"weights": *"[0-9a-f]*"' "$name.out" >"$name.weights" || return 1
    done
    cmp 2-1.loss 2-2.loss && cmp 2-1.weights 2-2.weights || return 1
    paste 1-1.loss 2-1.loss | awk '
        { d = ($1 - $2) / $2; d = d < 0 ? -d : d; if (!(d <= worst)) worst = d }
        END { print NR " steps, one and two ranks differ by " worst; exit !(NR == 20 && worst <= 1e-4) }'
}
megatron=(--split '*.ln_?:positions@0' --split '*.qkv:columns/3' --split 'h?.attn:packed heads' --split '*.proj:rows'
    --split '*.res_?:elements@0' --split '*.fc:columns' --split '*.gelu:elements@1' --split 'lm_head:columns')

if [[ $parts == *tests* ]]; then
    part 'bits equal on 1, 2, 4 ranks, losses near the CPU' split_equally
    part 'bits equal with states whole and in shards' shard_equally
    part 'ranks that compute operators together' compute_together
    part 'tests labelled gpu' ctest --test-dir "$build" -L gpu --output-on-failure -j 2
    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck initcheck synccheck; do
            part "compute-sanitizer $tool" compute-sanitizer --tool "$tool" --error-exitcode 9 \
                "$bin/test_cuda_ops_gpu"
        done
    else
        say '- compute-sanitizer: not here'
    fi
fi
[[ $parts == *bench* ]] || exit $((failures > 0))

json() { # key file: the number behind a key in a line of JSON
    grep -o "\"$1\": *[-0-9.e+]*" "$2" | tail -n 1 | sed 's/.*: *//'
}
# FORMAT EXPRESSION; "-" if something in it was not measured
number() {
    case $2 in
    *nan*) printf '%s' - ;;
    *) awk "BEGIN { printf \"$1\", $2 }" ;;
    esac
}
median() { sort -n | awk '{ v[NR] = $1 } END { print NR ? v[int((NR + 1) / 2)] : "nan" }'; }

say
say '## Training, one GPU'
say
torch=
python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null && torch=1
peak=nan
if [ -n "$torch" ]; then
    python3 "$top/tests/bench/gpt2_torch.py" --matmul-peak >peak.json 2>"$log/peak.txt" &&
        peak=$(json matmul_tflops peak.json)
    say "PyTorch $(python3 -c 'import torch; print(torch.__version__)'); bf16 product of 8192 x 8192:" \
        "$(number %.0f "$peak") TFLOP/s, the peak that MFU refers to."
fi
table=('| model | micro-batches | SMP tokens/s | MFU | predicted / measured | PyTorch eager | compiled | SMP / eager | SMP / compiled |'
    '|---|---|---|---|---|---|---|---|---|')

# train NAME MICROBATCH-SIZE MICROBATCHES PRECISION: profile, plan, train; sets rate (samples/s) and
# error (predicted over measured).
train() {
    local name=$1 size=$2 m=$3 precision=$4
    smp-profile "$top/examples/$name.yaml" --device cuda --dtype "$precision" \
        --microbatch-size "$size" -o "$name.profile.yaml" &&
        smp-partition "$top/examples/$name.yaml" --cluster "$top/examples/cluster-h200.yaml" -n 1 \
            --profile "$name.profile.yaml" --stages 1 --ddp 1 --chunks 1 --microbatches "$m" \
            --microbatch-size "$size" -o "$name.plan.yaml" &&
        mpirun -n 1 smp-run "$name.plan.yaml" --device cuda --data book.txt --steps 20 --json \
            >"$name.json" || return 1
    rate=$(tail -n +6 "$name.json" | sed 's/.*"samples_per_s": *\([-0-9.e+]*\).*/\1/' | median)
    measured=$(tail -n +6 "$name.json" | sed 's/.*"step_us": *\([-0-9.e+]*\).*/\1/' | median)
    error=$(number %.3f "$(json predicted_us "$name.json") / $measured")
    cp "$name.profile.yaml" "$name.plan.yaml" "$log/"
}

# compare NAME LAYERS WIDTH HEADS LENGTH VOCABULARY SIZE M: a row of the table. Flops of a token: 6 for
# each weight (without position embeddings), 12 layers x width x length for attention, half of it
# below the diagonal and so not computed, yet counted as is the custom.
compare() {
    local name=$1 layers=$2 width=$3 heads=$4 length=$5 vocabulary=$6 size=$7 m=$8
    local rate=nan error=nan eager=nan compiled=nan tokens mfu flops shape
    part "$name: train" train "$name" "$size" "$m" bf16
    tokens=$(number %.0f "$rate * $length" | sed 's/^-$/nan/')
    flops=$(number %.6g "6 * ($layers * 12 * $width * $width + $vocabulary * $width) + \
        12 * $layers * $width * $length")
    mfu=$(number %.3f "$tokens * $flops / ($peak * 1e12)")
    shape=(--layers "$layers" --width "$width" --heads "$heads" --length "$length"
        --vocabulary "$vocabulary" --microbatch-size "$size" --microbatches "$m" --steps 10)
    if [ -n "$torch" ]; then
        python3 "$top/tests/bench/gpt2_torch.py" "${shape[@]}" >eager.json 2>"$log/eager-$name.txt" &&
            eager=$(json tokens_per_s eager.json)
        python3 "$top/tests/bench/gpt2_torch.py" "${shape[@]}" --compile >compiled.json \
            2>"$log/compiled-$name.txt" && compiled=$(json tokens_per_s compiled.json)
    fi
    table+=("| $name | $m x $size | $tokens | $mfu | $error | $(number %.0f "$eager") | $(number \
        %.0f "$compiled") | $(number %.3f "$tokens / $eager") | $(number %.3f "$tokens / $compiled") |")
}
compare gpt2-124m 12 768 12 1024 50304 32 4
compare gpt2-774m 36 1280 20 1024 50304 8 4
compare gpt2-30b-stage 6 7168 64 2048 512 2 2
say
printf '%s\n' "${table[@]}" | tee -a "$results"

say
say '## Executor'
say
# One block of next to nothing: what an action costs.
overhead() {
    sed -e 's/^name:.*/name: tiny/' -e 's/^let:.*/let: {T: 8, d: 32, heads: 1, layers: 1, vocab: 256}/' \
        "$top/examples/gpt2-124m.yaml" >tiny.yaml
    smp-partition tiny.yaml --cluster "$top/examples/cluster-h200.yaml" -n 1 --device cuda \
        --stages 1 --ddp 1 --microbatches 64 --microbatch-size 1 -o tiny.plan.yaml \
        >/dev/null && mpirun -n 1 smp-run tiny.plan.yaml --device cuda --data book.txt --steps 30 \
        --json >tiny.json || return 1
}
if part 'step of 64 empty micro-batches' overhead; then
    step=$(tail -n +6 tiny.json | sed 's/.*"step_us": *\([-0-9.e+]*\).*/\1/' | median)
    say "- 128 actions of 13 small ops each: $(number %.1f "$step / 128") us per action, launches included"
fi
say
say "Logs: $log"
exit $((failures > 0))

#!/usr/bin/env bash
# Everything that only a GPU can tell: builds with CUDA for the card that is here, runs the `gpu`
# tests, compute-sanitizer, bit-identity over ranks that share the card, the benchmarks against
# PyTorch, and on machines with 2, 4 or 8 cards what gpu_cards.sh says; writes a folder of results: the
# page results.md, profiles, plans, steps, logs. Installs nothing: the libraries must be there, from
# Debian's packages or from a folder whose env.sh has been sourced.
#   tests/gpu.sh [--results DIR] [--build DIR] [--tests | --bench | --cards]
# All of it takes longer than ten minutes. Where a command may not, --tests, --bench and --cards are three
# of them; each writes a page, so give each a DIR of its own, and the second builds nothing again.
#   tests/gpu.sh --dry BUILD [...]    on the emulator of a build that exists: tiny models, no ctest, few
#                                     tests, no sanitizer; tries this script, its figures mean nothing
# Exit code: 0; 1 if something failed; 77 if there is no GPU. A part that fails does not keep the
# others from running: the page says so.
# shellcheck disable=SC2317 # functions are called through `part`
set -uo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=../examples/mpi-env.sh
source "$top/examples/mpi-env.sh"

folder=$top/build/gpu-results
build=$top/build/gpu
parts='tests bench cards'
dry=
while [ $# -gt 0 ]; do
    case $1 in
    --results) folder=$2; shift ;;
    --dry) dry=1 build=$(realpath "$2"); shift ;;
    --build) build=$(realpath -m "$2"); shift ;;
    --tests) parts=tests ;;
    --bench) parts=bench ;;
    --cards) parts=cards ;;
    *)
        sed -n '2,14p' "${BASH_SOURCE[0]}" >&2
        exit 2
        ;;
    esac
    shift
done
[ -n "$dry" ] || nvidia-smi -L >/dev/null 2>&1 || {
    echo "no GPU: nvidia-smi finds none" >&2
    exit 77
}

mkdir -p "$build" "$folder/logs"
folder=$(realpath "$folder")
results=$folder/results.md log=$folder/logs
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

query() {
    if [ -n "$dry" ]; then
        echo emulated
    else
        nvidia-smi --query-gpu="$1" --format=csv,noheader -i 0
    fi
}
toolkit() { nvcc --version | grep -o 'release [0-9.]*'; }
capability=$(query compute_cap | tr -d .)
say "# SMP on $(query name)"
say
say "$(query name), $(query memory.total), driver $(query driver_version), $([ -n "$dry" ] || toolkit)," \
    "$(date -u +%Y-%m-%d), $(nproc) cores, $(git -C "$top" rev-parse --short HEAD 2>/dev/null)"
say

configure() {
    cmake -S "$top" -B "$build" -DCMAKE_BUILD_TYPE=Release -DSMP_WITH_CUDA=ON \
        -DSMP_CUDA_ARCH="$capability" -DSMP_WERROR=ON
}
say '## Build and tests'
say
if [ -z "$dry" ]; then
    part configure configure && part build cmake --build "$build" -j "$(nproc)" || exit 1
fi
bin=$build/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export PATH=$bin:$PATH
tiny=$top/examples/gpt-tiny.yaml equal_steps=50
if [ -n "$dry" ]; then # the emulated programs under the names of the others
    mkdir bin
    ln -s "$bin/smp-run-emulated" bin/smp-run
    ln -s "$bin/smp-profile-emulated" bin/smp-profile
    ln -s "$bin/bench_sums-emulated" bin/bench_sums
    ln -s "$bin/unit_emulated" bin/unit_gpu
    ln -s "$bin/smp-partition" "$bin/make_fault.so" bin/
    export PATH=$work/bin:$PATH SMP_EMULATE_PROTECT=0
    sed 's/^let: .*/let: {T: 8, d: 16, heads: 2, layers: 4, vocab: 256}/' "$tiny" >gpt-tiny.yaml
    tiny=$work/gpt-tiny.yaml equal_steps=6
fi
# Text for the byte and token readers: the project's own.
find "$top" -name build -prune -o \( -name '*.c' -o -name '*.md' -o -name '*.h' \) -print0 |
    LC_ALL=C sort -z | xargs -0 cat >book.txt

# The quickstart's model for some steps on 1, 2 and 4 ranks that share the card: equal losses and weights,
# and losses within 1e-3 of the CPU's.
split_equally() {
    local ranks device name
    for name in 1-cpu 1-cuda 2-cuda 4-cuda; do
        ranks=${name%-*} device=${name#*-}
        smp-partition "$tiny" --cluster "$top/examples/cluster-h200.yaml" \
            -n "$ranks" --device cuda --stages "$ranks" --ddp 1 --chunks 1 --pipeline interleaved \
            --microbatches 4 --microbatch-size 8 -o split.yaml &&
            mpirun -n "$ranks" smp-run split.yaml --device "$device" --share-gpus --data book.txt \
                --steps "$equal_steps" --lr 3e-3 --warmup 10 --json --checksum >"$name.out" || return 1
        sed -nE 's/.*"loss": ?([^,}]*).*/\1/p' "$name.out" >"$name.loss"
        grep -o '"weights": *"[0-9a-f]*"' "$name.out" >"$name.weights" || return 1
    done
    for ranks in 2 4; do
        cmp "1-cuda.loss" "$ranks-cuda.loss" && cmp "1-cuda.weights" "$ranks-cuda.weights" || return 1
    done
    paste 1-cuda.loss 1-cpu.loss | awk -v steps="$equal_steps" '
        { d = ($1 - $2) / $2; d = d < 0 ? -d : d; if (!(d <= worst)) worst = d }
        END { print NR " steps, CPU and GPU differ by " worst; exit !(NR == steps && worst <= 1e-3) }'
}

# Two replicas that share the card, with whole states and with all of them in shards: equal weights.
shard_equally() {
    local name options
    for name in whole shards; do
        options=(--chunks 1 --pipeline interleaved)
        [ "$name" = whole ] ||
            options=(--chunks 4 --pipeline breadth-first --shard 2 --shard-what weights --bucket-bytes 256KiB)
        smp-partition "$tiny" --cluster "$top/examples/cluster-h200.yaml" -n 2 \
            --device cuda --stages 1 --ddp 2 --microbatches 2 --microbatch-size 8 "${options[@]}" -o split.yaml &&
            mpirun -n 2 smp-run split.yaml --device cuda --share-gpus --data book.txt --steps "$equal_steps" --json \
                --checksum >"$name.out" || return 1
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
        smp-partition "$tiny" --cluster "$top/examples/cluster-h200.yaml" \
            -n $((tensor * stages)) --device cuda --tensor "$tensor" --stages "$stages" --ddp 1 --chunks 1 \
            --pipeline interleaved --microbatches 4 --microbatch-size 8 "${megatron[@]:0:$((2 * 8 * (tensor - 1)))}" \
            -o split.yaml &&
            mpirun -n $((tensor * stages)) smp-run split.yaml --device cuda --share-gpus --data book.txt \
                --steps "$equal_steps" --json --checksum >"$name.out" || return 1
        sed -nE 's/.*"loss": ?([^,}]*).*/\1/p' "$name.out" >"$name.loss"
        grep -o '"weights": *"[0-9a-f]*"' "$name.out" >"$name.weights" || return 1
    done
    cmp 2-1.loss 2-2.loss && cmp 2-1.weights 2-2.weights || return 1
    paste 1-1.loss 2-1.loss | awk -v steps="$equal_steps" '
        { d = ($1 - $2) / $2; d = d < 0 ? -d : d; if (!(d <= worst)) worst = d }
        END { print NR " steps, one and two ranks differ by " worst; exit !(NR == steps && worst <= 1e-4) }'
}
megatron=(--split '*.ln_?:positions@0' --split '*.qkv:columns/3' --split 'h?.attn:packed heads' --split '*.proj:rows'
    --split '*.res_?:elements@0' --split '*.fc:columns' --split '*.gelu:elements@1' --split 'lm_head:columns')

# From 8.9 on. fp8 beside bf16: the mean loss of the last tenth of 500 steps is within 1 %.
has_fp8() { [ -n "$dry" ] || [ "$capability" -ge 89 ]; }
learn_in_fp8() {
    local precision steps=$((dry ? 20 : 500)) model=${dry:+$tiny}
    for precision in bf16 fp8; do
        smp-partition "${model:-$top/examples/gpt-small.yaml}" --cluster "$top/examples/cluster-h200.yaml" -n 1 --device cuda \
            --precision "$precision" --stages 1 --ddp 1 --chunks 1 --microbatches 2 --microbatch-size 8 -o learn.yaml &&
            mpirun -n 1 smp-run learn.yaml --device cuda --data book.txt --steps "$steps" --lr 1e-3 --warmup 10 --json \
                >"$precision.out" || return 1
        sed -nE 's/.*"loss": ?([^,}]*).*/\1/p' "$precision.out" >"$precision.loss"
    done
    paste bf16.loss fp8.loss | awk -v steps="$steps" '
        NR > 0.9 * steps { bf16 += $1; fp8 += $2 }
        END { print NR " steps, fp8 / bf16 " fp8 / bf16; off = fp8 / bf16 - 1; exit !(NR == steps && off <= 0.01 && off >= -0.01) }'
}

median() { sort -n | awk '{ v[NR] = $1 } END { print NR ? v[int((NR + 1) / 2)] : "nan" }'; }

# What graphs are worth where launches bound a step, and that they change no bit.
replay() {
    local graphs
    smp-partition "$tiny" --cluster "$top/examples/cluster-h200.yaml" -n 1 --device cuda --stages 1 --ddp 1 --chunks 1 \
        --microbatches 4 --microbatch-size 8 -o replay.yaml || return 1
    for graphs in off on; do
        SMP_GRAPHS=$graphs mpirun -n 1 smp-run replay.yaml --device cuda --data book.txt --steps "$equal_steps" --json \
            >"$graphs.out" || return 1
        sed -nE 's/.*"loss": ?([^,}]*).*/\1/p' "$graphs.out" >"$graphs.loss"
        echo "graphs $graphs: step $(sed -nE 's/.*"step_us": ?([^,}]*).*/\1/p' "$graphs.out" | tail -n +4 | median) us"
    done
    grep '"graphs"' on.out && cmp off.loss on.loss
}

# A program that runs no test proves nothing, whatever its exit code.
sanitize() { # TOOL, PROGRAM [FILTER]; TOOL none: the emulated program alone
    local command=("$bin/unit_emulated" "test_cuda_$2")
    [ "$1" = none ] || command=(compute-sanitizer --tool "$1" --error-exitcode 9 "$bin/unit_gpu" "test_cuda_$2")
    env -u SMP_TEST_FILTER ${3:+"SMP_TEST_FILTER=$3"} "${command[@]}" >sanitized 2>&1
    local code=$?
    cat sanitized
    [ "$code" = 0 ] && grep -Eq '^\[  PASSED  \] [1-9][0-9]* test' sanitized
}

# Of attention, whose tests are long: kernels for little shared memory, and those for much of it.
sanitize_all() { # TOOL
    part "compute-sanitizer $1, ops" sanitize "$1" ops ${dry:+'*gelu*'}
    part "compute-sanitizer $1, exec_kernels" sanitize "$1" exec_kernels
    part "compute-sanitizer $1, attention, little shared memory" sanitize "$1" attention '*fits_every_gpu*'
    part "compute-sanitizer $1, attention, low scores" sanitize "$1" attention '*low_scores*'
}

torch=
python=${SMP_TORCH_PYTHON-python3}
"$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null && torch=1
if [[ $parts == *tests* ]]; then
    visible=${CUDA_VISIBLE_DEVICES-0} # of several cards the first alone
    shared() { CUDA_VISIBLE_DEVICES=${visible%%,*} "$@"; }
    part 'bits equal on 1, 2, 4 ranks, losses near the CPU' shared split_equally
    part 'bits equal with states whole and in shards' shared shard_equally
    part 'ranks that compute operators together' shared compute_together
    part 'graphs on and off' shared replay && say "  $(grep -E '^(\{")?graphs' "$log/graphs-on-and-off.txt" | paste -sd' ')"
    ! has_fp8 || SMP_EMULATE_CAPABILITY=90 part 'losses in fp8 and in bf16' shared learn_in_fp8
    [ -z "$torch" ] || part 'smp_torch on this card' env SMP_TORCH_PYTHON="$python" SMP_BIN_DIR="$bin" \
        bash "$top/tests/torch/with_torch.sh" "$top/tests/torch/test_cuda.py"
    [ -n "$dry" ] || part 'tests labelled gpu' ctest --test-dir "$build" -L gpu --output-on-failure -j 2
    if [ -n "$dry" ]; then
        sanitize_all none
    elif command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck initcheck synccheck; do
            sanitize_all "$tool"
        done
    else
        say '- compute-sanitizer: not here'
    fi
fi

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

peak=nan
peer() { "$python" "$top/tests/bench/gpu_torch.py" "$@"; }
measure_peak() {
    [ -n "$torch" ] || return 0
    peer --matmul-peak >peak.json 2>"$log/peak.txt" && peak=$(json matmul_tflops peak.json)
    say "PyTorch $("$python" -c 'import torch; print(torch.__version__)'); bf16 product of 8192 x 8192:" \
        "$(number %.0f "$peak") TFLOP/s, the peak that MFU refers to."
}
table=('| model | micro-batches | SMP samples/s | tokens/s | MFU | predicted / measured | PyTorch eager | compiled | SMP / eager | SMP / compiled |'
    '|---|---|---|---|---|---|---|---|---|---|')

# The example NAME, or FROM with another `let:`, as NAME.yaml.
model() { # NAME, FROM, LET
    sed -e "s/^name: .*/name: $1/" ${3:+-e "s/^let: .*/let: {$3}/"} "$top/examples/$2.yaml" >"$1.yaml"
}

# Times of the operators in a profile, "name us", each forward and backward.
op_times() {
    sed -nE 's/^ *- \{name: "([^"]*)", forward_us: ([^,]*), backward_us: ([^,]*),.*/\1 \2 \3/p' "$1" |
        awk '{ print $1, $2 + $3 }'
}

# What was measured alone over what it took in training: all operators, and of those that take a hundredth
# or more of the step the one that is farthest off.
compare_ops() { # NAME
    op_times "$1.profile.yaml" | LC_ALL=C sort >"$1.alone"
    op_times "$1.run.yaml" | LC_ALL=C sort >"$1.trained"
    LC_ALL=C join "$1.alone" "$1.trained" | awk -v model="$1" '
        { alone += $2; trained += $3; a[$1] = $2; t[$1] = $3 }
        END {
            for (op in t)
                if (t[op] >= 0.01 * trained && t[op] > 0) {
                    off = a[op] / t[op] - 1; off = off < 0 ? -off : off
                    if (off >= most) { most = off; worst = op }
                }
            if (NR == 0 || trained == 0) exit 1
            printf "- %s: %d operators, predicted / measured %.3f; farthest off %s, %.3f\n", model, NR, \
                alone / trained, worst, a[worst] / t[worst]
        }'
}

# train NAME MICROBATCH-SIZE MICROBATCHES DATA...: profile, plan, train in $precision; sets rate (samples/s) and
# error (predicted over measured).
precision=bf16
train() {
    local name=$1 size=$2 m=$3 steps=$((dry ? 12 : 20))
    shift 3
    smp-profile "$name.yaml" --device cuda --dtype "$precision" --microbatch-size "$size" -o "$name.profile.yaml" &&
        smp-partition "$name.yaml" -n 1 --device cuda --precision "$precision" --profile "$name.profile.yaml" \
            --stages 1 --ddp 1 --chunks 1 --microbatches "$m" --microbatch-size "$size" \
            -o "$name.plan.yaml" &&
        mpirun -n 1 smp-run "$name.plan.yaml" --device cuda "$@" --steps "$steps" --json \
            >"$name.json" || return 1
    rate=$(tail -n +6 "$name.json" | sed -n 's/.*"samples_per_s": *\([-0-9.e+]*\).*/\1/p' | median)
    measured=$(tail -n +6 "$name.json" | sed -n 's/.*"step_us": *\([-0-9.e+]*\).*/\1/p' | median)
    error=$(number %.3f "$(json predicted_us "$name.json") / $measured")
    # once more with stamps around operators, which cost something themselves
    mpirun -n 1 smp-run "$name.plan.yaml" --device cuda "$@" --steps "$steps" --profile-out "$name.run.yaml" &&
        compare_ops "$name" >"$name.ops" || return 1
    cp "$name.profile.yaml" "$name.run.yaml" "$name.plan.yaml" "$name.json" "$folder/"
}

# compare NAME FLOPS TOKENS SIZE M DATA NETWORK...: a row of the table; flops and tokens of a sample.
# DATA: words of smp-run; NETWORK: of the peer.
compare() {
    local name=$1 flops=$2 tokens=$3 size=$4 m=$5 data=$6
    local rate=nan error=nan eager=nan compiled=nan mfu
    shift 6
    # shellcheck disable=SC2086 # words
    part "$name: train" train "$name" "$size" "$m" $data && cat "$name.ops" >>ops
    mfu=$(number %.3f "$rate * $flops / ($peak * 1e12)")
    set -- "$@" --microbatch-size "$size" --microbatches "$m" --steps 10 --data book.txt
    if [ -n "$torch" ]; then
        peer "$@" >eager.json 2>"$log/eager-$name.txt" && eager=$(json samples_per_s eager.json)
        peer "$@" --compile >compiled.json 2>"$log/compiled-$name.txt" &&
            compiled=$(json samples_per_s compiled.json)
        say "- $name, samples/s: SMP $rate, PyTorch $eager, compiled $compiled; predicted / measured $error"
    fi
    table+=("| $name | $m x $size | $(number %.1f "$rate") | $(number %.0f "$rate * $tokens") | $mfu | $error |$(
        ) $(number %.1f "$eager") | $(number %.1f "$compiled") | $(number %.3f "$rate / $eager") |$(
        ) $(number %.3f "$rate / $compiled") |")
}

# A transformer's flops of a sample: 6 for each weight that multiplies, 12 x layers x width x length a token for
# attention, half of it below the diagonal and so not computed, yet counted as is the custom.
flops_of() { # WEIGHTS LAYERS WIDTH LENGTH
    number %.6g "$4 * (6 * ($1) + 12 * $2 * $3 * $4)"
}

# gpt_model NAME LAYERS WIDTH HEADS LENGTH VOCABULARY: makes NAME.yaml; sets length, flops (of a sample) and
# network, the peer's words for it.
gpt_model() {
    local name=$1 layers=$2 width=$3 heads=$4 vocabulary=$6 let=
    length=$5
    if [ -n "$dry" ]; then
        layers=1 width=32 heads=2 length=8 vocabulary=256
        let="T: $length, d: $width, heads: $heads, layers: $layers, vocab: $vocabulary"
    fi
    model "$name" "$name" "$let"
    flops=$(flops_of "$layers * 12 * $width * $width + $vocabulary * $width" "$layers" "$width" "$length")
    network=(--kind gpt --layers "$layers" --width "$width" --heads "$heads" --length "$length"
        --vocabulary "$vocabulary")
}

# gpt NAME LAYERS WIDTH HEADS LENGTH VOCABULARY SIZE M
gpt() {
    local length flops network size=$7 m=$8
    [ -z "$dry" ] || size=1 m=2
    gpt_model "${@:1:6}"
    compare "$1" "$flops" "$length" "$size" "$m" '--data book.txt' "${network[@]}"
}

# As gpt_model: the shape of LLaMA 3.2 1B, with an output layer of its own.
llama_model() { # NAME
    local layers=16 width=2048 heads=32 kv=8 hidden=8192 vocabulary=128256
    length=2048
    [ -z "$dry" ] || { layers=1 width=32 heads=4 kv=2 length=8 hidden=64 vocabulary=256; }
    model "$1" llama3-8b "T: $length, d: $width, heads: $heads, kv_heads: $kv, hidden: $hidden,$(
        ) layers: $layers, vocab: $vocabulary"
    flops=$(flops_of "$layers * ($width * $width * 2 + 2 * $width * $width * $kv / $heads + \
        3 * $width * $hidden) + $vocabulary * $width" "$layers" "$width" "$length")
    network=(--kind llama --layers "$layers" --width "$width" --heads "$heads" --kv-heads "$kv" --hidden "$hidden"
        --length "$length" --vocabulary "$vocabulary")
}

llama() { # NAME
    local length flops network size=4 m=8
    [ -z "$dry" ] || size=1 m=2
    llama_model "$1"
    compare "$1" "$flops" "$length" "$size" "$m" '--data book.txt' "${network[@]}"
}

# 4.09 G multiplications and additions an image forward, twice as many backward.
resnet() {
    local size=64 m=8 pixels=224 let=
    [ -z "$dry" ] || { size=2 m=2 pixels=32 let='blocks: [1, 1, 1, 1], c: [4, 4, 4, 4], size: 32, classes: 1000'; }
    model resnet-50 resnet-50 "$let"
    bash "$top/examples/random-images.sh" "$pixels" 1000 $((size * m)) images >"$log/images.txt" 2>&1
    compare resnet-50 "$(number %.6g '3 * 2 * 4.09e9')" 1 "$size" "$m" \
        '--data image=images/images.npy --data label=images/labels.npy' --kind resnet --length "$pixels"
}

# One block of next to nothing: what an action costs.
overhead() {
    sed -e 's/^name:.*/name: tiny/' -e 's/^let:.*/let: {T: 8, d: 32, heads: 1, layers: 1, vocab: 256}/' \
        "$top/examples/gpt2-124m.yaml" >tiny.yaml
    local actions=$((dry ? 4 : 64)) steps=$((dry ? 8 : 30))
    smp-partition tiny.yaml --cluster "$top/examples/cluster-h200.yaml" -n 1 --device cuda \
        --stages 1 --ddp 1 --microbatches "$actions" --microbatch-size 1 -o tiny.plan.yaml \
        >/dev/null && mpirun -n 1 smp-run tiny.plan.yaml --device cuda --data book.txt --steps "$steps" \
        --json >tiny.json || return 1
}

benchmarks() {
    say
    say '## Training, one GPU'
    say
    measure_peak
    : >ops
    gpt gpt2-124m 12 768 12 1024 50304 32 8
    gpt gpt2-774m 36 1280 20 1024 50304 8 8
    resnet
    llama llama-1b
    ! has_fp8 || SMP_EMULATE_CAPABILITY=90 precision=fp8 llama llama-1b-fp8
    gpt gpt2-30b-stage 6 7168 64 2048 512 2 8
    say
    printf '%s\n' "${table[@]}" | tee -a "$results"
    say
    say 'Operators, alone and in training:'
    say
    tee -a "$results" <ops

    say
    say '## Executor'
    say
    part 'step of 64 empty micro-batches' overhead || return
    step=$(tail -n +6 tiny.json | sed 's/.*"step_us": *\([-0-9.e+]*\).*/\1/' | median)
    say "- 128 actions of 13 small ops each: $(number %.1f "$step / 128") us per action, launches included"
}
[[ $parts != *bench* ]] || benchmarks
# shellcheck source=gpu_cards.sh
source "$top/tests/gpu_cards.sh"
[[ $parts != *cards* ]] || on_cards
say
say "Profiles, plans, steps: $folder; the profiles go to examples/, the figures to the READMEs. Logs: $log"
exit $((failures > 0))

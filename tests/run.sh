#!/usr/bin/env bash
# Builds SMP and runs its tests, in three sizes; installs what is missing first.
#   tests/run.sh --fast     before every commit: the tests of the optimised programs on the CPU
#   tests/run.sh            every promise once: also the CUDA code on an emulator, PyTorch (1.3 GB of PyPI under
#                           ~/.cache/smp, or SMP_TORCH_PYTHON), and what sanitizers can find
#   tests/run.sh --long [PART...]   hours: everything that tests can do. Parts: tests, sanitize, fuzz, faults, mutate
#   --times                 at the end what each part, the dearest tests and the dearest sources took
# Exit code 1 where a test failed. tests/README.md says what is in which size.
# shellcheck disable=SC2317 # functions are called through `part`
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=../examples/setup.sh
source "$top/examples/setup.sh"
# shellcheck source=../examples/mpi-env.sh
source "$top/examples/mpi-env.sh"

size=ordinary times=
long=(tests sanitize fuzz faults mutate)
while [ $# -gt 0 ]; do
    case $1 in
    --times) times=1 ;;
    --fast) size=fast ;;
    --long)
        size=long
        export SMP_TEST_LONG=1
        while [[ ${2-} == [a-z]* ]]; do
            [[ " ${long[*]} " == *" $2 "* ]] || { echo "no part $2: expected one of ${long[*]}" >&2; exit 2; }
            wanted+=" $2"
            shift
        done
        read -ra long <<<"${wanted-${long[*]}}"
        ;;
    *)
        sed -n '2,8s/^# \?//p' "${BASH_SOURCE[0]}" >&2
        exit 2
        ;;
    esac
    shift
done

jobs=$(nproc)
status=0
summary=()
mkdir -p "$top/build"
parts=$top/build/times.parts
: >"$parts"

# part NAME COMMAND...: runs it, and notes seconds of wall and of processor time.
part() {
    local name=$1 wall=$EPOCHREALTIME used
    shift
    times >"$parts.now" # of what this shell has waited for, so not in a shell of its own
    used=$(processor_s)
    echo "== $name"
    "$@"
    times >"$parts.now"
    awk -v name="$name" -v wall="$wall" -v now="$EPOCHREALTIME" -v used="$used" -v then="$(processor_s)" \
        'BEGIN { printf "%s\t%.1f\t%.1f\n", name, now - wall, then - used }' >>"$parts"
}

processor_s() {
    awk 'NR == 2 { gsub(/[ms]/, " "); print $1 * 60 + $2 + $3 * 60 + $4 }' "$parts.now"
}

configure() { # folder, cmake options...
    local folder=$top/build/$1 launcher
    shift
    mkdir -p "$folder"
    launcher="$top/tests/tools/time_compile.sh;$top/build/run_test;$folder/compile_times.tsv$compiler_cache"
    cmake -S "$top" -B "$folder" -DCMAKE_C_COMPILER_LAUNCHER="$launcher" -DCMAKE_CXX_COMPILER_LAUNCHER="$launcher" \
        -DCMAKE_CUDA_COMPILER_LAUNCHER="$launcher" "$@" >"$folder.configure.log" 2>&1 || {
        cat "$folder.configure.log" >&2
        exit 1
    }
}

build() { # folder, target
    local folder=$top/build/$1
    cmake --build "$folder" -j "$jobs" --target "$2" >"$folder.build.log" 2>&1 || {
        grep -A 20 -E 'error|warning|Error ' "$folder.build.log" | head -n 60 >&2
        exit 1
    }
}

run() { # folder, ctest options...
    local folder=$top/build/$1
    shift
    # Two more than cores: jobs of several processes wait for their start most of the time.
    ctest --test-dir "$folder" --output-on-failure -j $((jobs + 2)) "$@" | tee "$folder.ctest.log" || status=1
    summary+=("$(basename "$folder") $*: $(grep -E 'tests passed' "$folder.ctest.log" || echo 'no tests ran')")
}

install_packages() {
    local packages=(libcmocka-dev python3 libonnx-testdata)
    # Chromium draws the report page; the others are libFuzzer's compiler and what it links.
    [ "$size" = fast ] || packages+=(chromium python3-venv)
    [[ $size != long || " ${long[*]} " != *' tests '* ]] || packages+=(slurm-wlm)
    [[ $size != long || " ${long[*]} " != *' fuzz '* ]] || packages+=(clang-14 libclang-rt-14-dev libomp-14-dev)
    smp_setup "${packages[@]}"
}

install_torch() {
    smp_torch_venv || echo "tests with PyTorch are skipped: it cannot be installed" >&2
    "$top/tests/cuda/cuda12_headers.sh" --get "$smp_torch_python" || echo "no headers of CUDA 12: a test is skipped" >&2
    smp_torch_peers || echo "readers of exports are not run: they cannot be installed" >&2
}

release=(-DCMAKE_BUILD_TYPE=Release -DSMP_WERROR=ON)
# Sanitizers tell what is wrong at -O1; the CUDA code has fibers that they do not follow.
sanitized=(-DCMAKE_BUILD_TYPE=Debug '-DCMAKE_C_FLAGS_DEBUG=-O1 -g1' -DSMP_WERROR=OFF -DSMP_BUILD_BENCH=OFF -DSMP_WITH_CUDA=OFF)

run_fast() {
    part configure configure fast "${release[@]}" -DSMP_WITH_CUDA=OFF -DSMP_BUILD_EMULATOR=OFF -DSMP_BUILD_BENCH=OFF
    part build build fast all
    part tests run fast -L 'unit|cli|brief' -LE long
}

run_ordinary() {
    part 'configure' configure test "${release[@]}" -DSMP_CUDA_ARCH=90 -DSMP_CUDA_QUICK=ON
    part 'build' build test all
    part 'tests' run test -LE long
    part 'configure, sanitized' configure sanitize "${sanitized[@]}" -DSMP_SANITIZE=ON
    part 'build, sanitized' build sanitize all
    part 'tests, sanitized' run sanitize -LE long
}

run_long() {
    local what
    for what in "${long[@]}"; do
        "long_$what"
    done
}

long_tests() {
    part 'configure' configure long "${release[@]}" -DSMP_TEST_PATIENCE=8
    part 'build' build long all
    part 'tests' run long
}

long_sanitize() {
    part 'configure, sanitized' configure sanitize-long "${sanitized[@]}" -DSMP_SANITIZE=ON -DSMP_SANITIZE_ALL=ON -DSMP_TEST_PATIENCE=8
    part 'build, sanitized' build sanitize-long all
    part 'tests, sanitized' run sanitize-long
}

long_fuzz() {
    part 'configure, fuzzing' configure fuzz "${sanitized[@]}" -DSMP_BUILD_FUZZ=ON -DCMAKE_C_COMPILER=clang-14
    part 'build, fuzzing' build fuzz fuzz
    SMP_FUZZ_RUNS=${SMP_FUZZ_RUNS:-1000000} SMP_FUZZ_SECONDS=${SMP_FUZZ_SECONDS:-0} part 'fuzzing' run fuzz -L fuzz
}

long_faults() {
    part 'configure' configure long "${release[@]}"
    part 'build' build long for_scripts
    SMP_BIN_DIR=$top/build/long/bin part 'faults' faults
}

faults() {
    python3 "$top/tests/faults/run_trials.py" --trials "${SMP_FAULT_TRIALS:-1000}" --jobs "$jobs" || status=1
    python3 "$top/tests/faults/run_elastic.py" --lives "${SMP_ELASTIC_LIVES:-300}" --times || status=1
}

long_mutate() {
    part 'mutation' mutate
}

mutate() {
    local file
    while IFS= read -r file; do
        env -u SMP_TEST_LONG python3 "$top/tests/tools/mutate.py" "$file" --seed 1 --count 20 --build "$top/build/mutate" \
            --at-least 95 || status=1
    done < <(grep -v '^#' "$top/tests/tools/mutated.txt")
}

print_times() {
    local tests=("$top"/build/*/test_times.tsv) sources=("$top"/build/*/compile_times.tsv)
    echo 'part: wall s, processor s'
    awk -F'\t' '{ printf "  %-24s %7.1f %7.1f\n", $1, $2, $3; wall += $2; used += $3 }
        END { printf "  %-24s %7.1f %7.1f\n", "all", wall, used }' "$parts"
    [ ! -e "${tests[0]}" ] || echo 'label: tests, processor s'
    [ ! -e "${tests[0]}" ] || awk -F'\t' '{ n[$2]++; used[$2] += $4 }
        END { for (label in n) printf "  %-24s %7d %7.1f\n", label, n[label], used[label] }' "${tests[@]}" | LC_ALL=C sort
    dearest 'test: wall s, processor s' "${tests[@]}"
    dearest 'source: wall s, processor s' "${sources[@]}"
}

dearest() { # title, file of tab-separated name, label, wall, processor, code...
    [ -e "$2" ] || return 0
    echo "$1"
    awk -F'\t' '{ printf "%s\t%s\t%s\n", $4, $3, $1 }' "${@:2}" | LC_ALL=C sort -rn |
        awk -F'\t' 'NR <= 30 { printf "  %-56s %7.1f %7.1f\n", $3, $2, $1 }'
}

rm -f "$top"/build/*/test_times.tsv "$top"/build/*/compile_times.tsv
part 'install' install_packages
cc -O2 -o "$top/build/run_test" "$top/tests/tools/run_test.c"
compiler_cache=
! command -v ccache >/dev/null || compiler_cache=';ccache' # taken where it is, never needed
# shellcheck source=torch/venv.sh
source "$top/tests/torch/venv.sh"
[ "$size" = fast ] || [[ $size == long && ! " ${long[*]} " =~ \ (tests|mutate)\  ]] || part 'install PyTorch' install_torch
"run_$size"

echo
[ -z "$times" ] || print_times
printf '%s\n' "${summary[@]}"
exit "$status"

#!/usr/bin/env bash
# Builds SMP and runs every test: installs what is missing, builds optimised with warnings as errors
# and runs all tests (those with PyTorch in a virtual environment of PyPI's, 5.5 GB under ~/.cache/smp, or SMP_TORCH_PYTHON),
# then builds with AddressSanitizer and UBSan and runs the unit tests and one of
# several processes once more, and gives the readers 12 seconds of made-up files each.
#   tests/run.sh [--fast]     --fast: neither the sanitised builds nor tests labelled slow
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=../examples/setup.sh
source "$top/examples/setup.sh"
# shellcheck source=../examples/mpi-env.sh
source "$top/examples/mpi-env.sh"

fast=
case "${1-}" in
'') ;;
--fast) fast=1 ;;
*)
    echo "usage: tests/run.sh [--fast]" >&2
    exit 2
    ;;
esac

jobs=$(nproc)
status=0
summary=()

build() { # folder, target, cmake options...
    local folder=$top/build/$1 target=$2
    shift 2
    cmake -S "$top" -B "$folder" "$@" >"$folder.configure.log" 2>&1 || {
        cat "$folder.configure.log" >&2
        exit 1
    }
    cmake --build "$folder" -j "$jobs" --target "$target" >"$folder.build.log" 2>&1 || {
        tail -n 60 "$folder.build.log" >&2
        exit 1
    }
}

run() { # folder, ctest options...
    local folder=$top/build/$1
    shift
    ctest --test-dir "$folder" --output-on-failure -j "$jobs" "$@" | tee "$folder.ctest.log" ||
        status=1
    summary+=("$(basename "$folder"): $(grep -E 'tests passed' "$folder.ctest.log" || echo 'no tests ran')")
}

packages=(libcmocka-dev python3 libonnx-testdata) # python3: mutate.py, faults
# Chromium draws the report page; the others are libFuzzer's compiler and what it links.
[ -n "$fast" ] || packages+=(chromium clang-14 libclang-rt-14-dev libomp-14-dev)
[ -n "$fast" ] || packages+=(python3-venv)
smp_setup "${packages[@]}"
mkdir -p "$top/build"
# shellcheck source=torch/venv.sh
source "$top/tests/torch/venv.sh"
if [ -z "$fast" ]; then
    smp_torch_venv || echo "tests with PyTorch are skipped: it cannot be installed" >&2
    "$top/tests/cuda/cuda12_headers.sh" --get "$smp_torch_python" || echo "no headers of CUDA 12: a test is skipped" >&2
    smp_torch_peers || echo "readers of exports are not run: they cannot be installed" >&2
fi

echo "== build"
build test all -DCMAKE_BUILD_TYPE=Release -DSMP_WERROR=ON
echo "== all tests"
run test ${fast:+-LE slow}

if [ -z "$fast" ]; then
    echo "== build with sanitizers"
    build sanitize all -DCMAKE_BUILD_TYPE=Debug '-DCMAKE_C_FLAGS_DEBUG=-O1 -g' -DSMP_SANITIZE=ON \
        -DSMP_WERROR=OFF -DSMP_BUILD_BENCH=OFF -DSMP_WITH_CUDA=OFF
    echo "== tests with sanitizers"
    run sanitize -L 'unit|mpi'
    echo "== fuzzing"
    build fuzz fuzz -DCMAKE_C_COMPILER=clang-14 -DCMAKE_BUILD_TYPE=Debug '-DCMAKE_C_FLAGS_DEBUG=-O1 -g' \
        -DSMP_BUILD_FUZZ=ON -DSMP_WERROR=OFF -DSMP_BUILD_BENCH=OFF -DSMP_WITH_CUDA=OFF
    run fuzz -L fuzz
fi

echo
printf '%s\n' "${summary[@]}"
exit "$status"

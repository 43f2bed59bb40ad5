#!/usr/bin/env bash
# kernel_usage.py and keep_usage.sh on a compiler of our own: what is worse fails, what is not passes.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p build/CMakeFiles/3.25
echo 'set(CMAKE_CUDA_COMPILER_VERSION "13.0.88")' >build/CMakeFiles/3.25/CMakeCUDACompiler.cmake

compile() { # registers, spilled bytes, shared bytes, mangled name
    cat >compiler <<END
#!/bin/sh
cat >&2 <<SAID
x.cu: a warning
ptxas info    : Compiling entry function '$4' for 'sm_90'
ptxas info    : Function properties for $4
    16 bytes stack frame, $2 bytes spill stores, 0 bytes spill loads
ptxas info    : Used $1 registers, used 1 barriers, $3 bytes smem
SAID
touch build/x.cu.o
END
    sh "$here/keep_usage.sh" sh compiler -c x.cu -o build/x.cu.o 2>said
    [ "$(cat said)" = 'x.cu: a warning' ] || { echo "the compiler's words: $(cat said)"; exit 1; }
}

expect() { # exit code, text
    local code=0
    python3 "$here/kernel_usage.py" build --file kernels.txt >out 2>&1 || code=$?
    if [ "$code" != "$1" ] || ! grep -qE "$2" out; then
        echo "expected $1 and '$2', got $code:"
        cat out
        exit 1
    fi
}

run='_Z3runILi4EfEvPT0_' # void run<4, float>(float*)
printf '%s\n' 'nvcc 13.0' 'key run<.*>' >kernels.txt
compile 40 0 128 $run
python3 "$here/kernel_usage.py" build --file kernels.txt --update
[ "$(tail -n 1 kernels.txt)" = '90  40   0   128 x.cu run<4, float>' ] || { cat kernels.txt; exit 1; }
expect 0 '1 kernels, 1 lines'
compile 33 0 64 $run
expect 0 'as before'
compile 41 0 128 $run
expect 1 'run<4, float>: 41 registers, 40 warps to a multiprocessor; expected 40, 48 warps'
compile 40 8 128 $run
expect 1 'spills 8 bytes, expected at most 0'
compile 40 0 256 $run
expect 1 '256 bytes of shared memory, expected at most 128'
compile 40 4 0 _Z5othervP
expect 1 'x.cu run<4, float>: is gone'
expect 1 'other.*: spills 4 bytes, expected at most 0'
compile 40 0 128 $run
sed -i 's/^nvcc .*/nvcc 13.1/' kernels.txt
expect 77 'compiled by nvcc 13.0'

#!/usr/bin/env bash
# The C files that talk to CUDA, against the headers of CUDA 12: they compile. Kernels cannot be: PyPI
# has no compiler of CUDA 12, only its assembler. cuBLASLt, NCCL and cuDNN are the toolkit's here; their
# headers for CUDA 12 come with libraries of 600 MB.
#   cuda12_headers.sh         the test; 77 if the headers are not here
#   cuda12_headers.sh --get PYTHON   has that Python's pip fetch them from PyPI, 43 MB
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
packages=(nvidia-cuda-runtime-cu12==12.9.79 nvidia-cuda-nvcc-cu12==12.9.86)
headers=${XDG_CACHE_HOME:-$HOME/.cache}/smp/cuda-12.9
toolkit=${1:-/usr/local/cuda/include}

if [ "${1-}" = --get ]; then
    [ ! -d "$headers" ] || exit 0
    making=$headers.making.$$
    trap 'rm -rf "$making"' EXIT
    "$2" -m pip install -q --disable-pip-version-check --no-deps --target "$making" "${packages[@]}"
    mv -T "$making" "$headers"
    exit 0
fi
[ -d "$headers" ] || { echo "no $headers: tests/run.sh fetches it"; exit 77; }
for header in cublasLt.h nccl.h cudnn.h; do
    [ -f "$toolkit/$header" ] || { echo "no $toolkit/$header"; exit 77; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$toolkit"/cublas*.h "$toolkit"/nccl*.h "$toolkit"/cudnn*.h "$work"
cd "$top"
# Two types of CUDA 13, which the header of cuBLAS mentions and nothing here does.
options=(-std=c11 -fsyntax-only -Wall -Wextra -Werror -Wno-missing-field-initializers -I. -isystem
    "$headers/nvidia/cuda_runtime/include" -isystem "$headers/nvidia/cuda_nvcc/include" -isystem "$work"
    -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -DSMP_HAVE_CUDA -DSMP_HAVE_NCCL -DSMP_HAVE_CUDNN
    '-DSMP_CUDA_LIBRARY_DIR=""' '-DSMP_CUDA_MAJOR="12"' -DcudaEmulationSpecialValuesSupport=int
    -DcudaEmulationMantissaControl=int)
read -ra mpi < <(mpicc --showme:compile)
version=$(echo '#include <cuda_runtime_api.h>
CUDART_VERSION' | gcc "${options[@]/-fsyntax-only/-E}" -x c - | tail -n 1)
[ "${version%???}" = 12 ] || { echo "headers of CUDA $version, expected 12"; exit 1; }

n=0
while IFS= read -r file; do
    gcc "${options[@]}" "${mpi[@]}" "$file"
    n=$((n + 1))
done < <({
    find graph profile exec \( -path '*/cuda/*.c' -o -path '*/nccl/*.c' -o -name 'cuda_*.c' \)
    grep -rl '"graph/base/built\.h"' graph profile exec --include='*.c'
} | sort -u)
[ "$n" -ge 15 ] || { echo "only $n files mention CUDA"; exit 1; }
echo "$n files compile with the headers of CUDA $version"

#!/usr/bin/env bash
# Makes a wheel of smp_torch with smp-partition and its libraries inside: pip install FILE.whl is all it takes.
#   examples/pytorch/wheel.sh OUT-DIR [--bin DIR]    DIR: a folder with smp-partition (default: it is built, without CUDA)
# PYTHON (default python3) has pip, setuptools and wheel. It runs where glibc is as new as here, and PyTorch is.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
[ $# -ge 1 ] || { sed -n '2,4s/^# \?//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
bin=
if [ "${2-}" = --bin ]; then
    bin=$3
else
    # shellcheck source=../setup.sh
    source "$top/examples/setup.sh"
    # shellcheck disable=SC2119
    smp_setup
    cmake -S "$top" -B "$top/build/wheel" -DCMAKE_BUILD_TYPE=Release -DSMP_WITH_CUDA=OFF >/dev/null
    cmake --build "$top/build/wheel" -j "$(nproc)" --target smp-partition >/dev/null
    bin=$top/build/wheel/bin
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$here/pyproject.toml" "$here/README.md" "$here/smp_torch" "$work"
rm -rf "$work"/smp_torch/__pycache__
mkdir "$work/smp_torch/planner"
cp "$bin/smp-partition" "$work/smp_torch/planner"
# What every Linux of PyPI's has (PEP 600) stays outside.
ldd "$bin/smp-partition" | awk '/=> \// { print $3 }' |
    grep -vE '/(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+)\.so' |
    while IFS= read -r library; do
        cp -L "$library" "$work/smp_torch/planner"
    done
glibc=$(getconf GNU_LIBC_VERSION)
glibc=${glibc##* }
"$python" -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w "$work/made" "$work"
"$python" -m wheel tags --remove --platform-tag "manylinux_${glibc/./_}_$(uname -m)" "$work"/made/*.whl >/dev/null
mv "$work"/made/*.whl "$out"
ls "$out"/smp_torch-*.whl

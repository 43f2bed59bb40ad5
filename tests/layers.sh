#!/usr/bin/env bash
# House rules that a machine can see: a layer includes only itself and what stands to its left,
# libraries stay in their folder, base names are unique, files are short, texts name no machine.
set -euo pipefail
cd "${SMP_SOURCE_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}"

failures=0
fail() {
    echo "layers: $*" >&2
    failures=$((failures + 1))
}

files() { # every file of the tree whose name matches one of the patterns
    local pattern names=()
    for pattern in "$@"; do
        names+=(-o -name "$pattern")
    done
    find . -name '.git' -prune -o -name 'build*' -type d -prune -o -type f \( "${names[@]:1}" \) -print |
        sed 's|^\./||' | LC_ALL=C sort
}

# Prints "file:line:text" of includes that match the pattern.
includes() { # pattern file...
    local pattern=$1
    shift
    [ $# -eq 0 ] || grep -HnE "^[[:space:]]*#[[:space:]]*include[[:space:]]*$pattern" "$@" || true
}

report() { # reason, lines on standard input
    local line
    while IFS= read -r line; do
        fail "$1: $line"
    done
}

mapfile -t sources < <(files '*.c' '*.h' '*.cu' '*.cuh')
[ "${#sources[@]}" -gt 10 ] || fail "found only ${#sources[@]} source files"

# Layers, left to right. Programs (a hyphen in the name) may include any of them.
layers=(graph profile partition schedule exec)
right=()
for ((i = ${#layers[@]} - 1; i >= 0; i--)); do
    layer=${layers[i]}
    mapfile -t own < <(printf '%s\n' "${sources[@]}" | grep -E "^$layer/" | grep -vE '/[^/]*-[^/]*$' || true)
    if [ "${#right[@]}" -gt 0 ]; then
        forbidden=$(IFS='|'; echo "${right[*]}")
        report "$layer includes a layer to its right" < <(includes "[\"<]($forbidden)/" "${own[@]}")
    fi
    report "relative include" < <(includes '"\.' "${own[@]}")
    right+=("$layer")
done

# Libraries and the only places that may include them.
library() { # header pattern, pattern of allowed files, what
    local others
    mapfile -t others < <(printf '%s\n' "${sources[@]}" | grep -vE "$2" || true)
    report "$3 outside its place" < <(includes "[\"<]$1" "${others[@]}")
}
library '(mpi|nccl)\.h' '^(exec/|tests/(exec|mpi|bench|emulate)/|[a-z]+/[^/]*-[^/]*$)' 'MPI or NCCL'
library '(cuda|cublas|cudnn|device_launch|mma)' '^(exec/|graph/ops/.*\.cuh?$|graph/ops/cuda[^/]*\.[ch]$|tests/)' 'CUDA'
library '(oneapi/)?(dnnl|omp)' '^(graph/math/|tests/bench/)' 'oneDNN'
library 'metis\.h' '^(partition/|tests/partition/)' 'METIS'
library 'yaml\.h>' '^graph/base/' 'libyaml'
mapfile -t examples < <(printf '%s\n' "${sources[@]}" | grep -E '^(examples/|smp\.h$)')
report 'more than smp.h in a user-side file' < <(includes '"' "${examples[@]}" | grep -v '"smp\.h"' || true)

# Base names, lengths.
mapfile -t all < <(files '*.c' '*.h' '*.cu' '*.cuh' '*.sh')
report 'base name used twice' < <(printf '%s\n' "${all[@]##*/}" | LC_ALL=C sort | uniq -d)
report 'over 600 lines' < <(wc -l "${all[@]}" | awk '$2 != "total" && $1 > 600 {print $2, $1}')

# No absolute path of one machine in any text. The brackets keep this line from matching itself.
mapfile -t texts < <(files '*.c' '*.h' '*.cu' '*.cuh' '*.sh' '*.py' '*.md' '*.yaml' '*.txt' '*.cmake' '*.in')
report 'path of one machine' < <(grep -HnE '(^|[^A-Za-z0-9_.}])/(wor[k]|tm[p]|hom[e]|roo[t])/' "${texts[@]}" .ci/run || true)

[ "$failures" -eq 0 ] || exit 1
echo "layers: ${#all[@]} files in order"

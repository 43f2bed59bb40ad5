#!/usr/bin/env bash
# House rules that a machine can see: a room includes only itself and rooms to its left, libraries
# stay in their rooms, a room has a sign and is not crowded, files say what they are for and are short,
# base names are unique, texts name no machine. tests/layers_catches.sh shows that each can fail.
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

# Rooms, left to right, as CMakeLists.txt lists them; a layer's own folder is the last of its rooms.
mapfile -t rooms < <(sed -n '/^set(SMP_ROOMS/,/)$/p' CMakeLists.txt | sed 's/^set(SMP_ROOMS//; s/)$//' | xargs -n1)
[ "${#rooms[@]}" -gt 10 ] || fail "found only ${#rooms[@]} rooms in CMakeLists.txt"
in_room() { # room, file...: those that lie in the folder itself
    printf '%s\n' "${@:2}" | grep -E "^$1/[^/]+$" || true
}
right=()
for ((i = ${#rooms[@]} - 1; i >= 0; i--)); do
    room=${rooms[i]}
    mapfile -t own < <(in_room "$room" "${sources[@]}")
    if [ "${#right[@]}" -gt 0 ]; then
        forbidden=$(IFS='|'; echo "${right[*]}")
        report "$room includes a room to its right" < <(includes "[\"<]($forbidden)/[^/]+[\">]" "${own[@]}")
    fi
    report "relative include" < <(includes '"\.' "${own[@]}")
    [ -f "$room/README.md" ] || fail "$room has no sign: README.md"
    [ "${#own[@]}" -le 25 ] || fail "$room holds ${#own[@]} files, more than 25"
    right+=("$room")
done
# The executor carries plans out: what makes or judges them is handed in.
mapfile -t executor < <(printf '%s\n' "${sources[@]}" | grep -E '^exec/' | grep -v '^exec/start/')
report 'the executor includes the planner, or what judges plans' < <(
    includes '["<]schedule/(planner|tensor|export|check|foreign)/' "${executor[@]}")
layers=$(printf '%s\n' "${rooms[@]%%/*}" | LC_ALL=C sort -u | paste -sd'|')
report 'a source file outside the rooms' < <(printf '%s\n' "${sources[@]}" | grep -E "^($layers)/" |
    grep -vE "^($(IFS='|'; echo "${rooms[*]}"))/[^/]+$" || true)

# What is inside of a room's state stands in a header that ends with _state.h, which few files see.
most_insiders=6
for inside in "${sources[@]}"; do
    case $inside in
    exec/*_state.h) ;;
    *) continue ;;
    esac
    mapfile -t insiders < <(grep -lF "\"$inside\"" "${sources[@]}" || true)
    [ "${#insiders[@]}" -le "$most_insiders" ] || fail "$inside is seen by ${#insiders[@]} files, more than $most_insiders"
    report "$inside is shown on by a header" < <(printf '%s\n' "${insiders[@]}" | grep -E '\.h$' || true)
done

# The handle points to parts; what a room keeps of a job is a field of a part.
handle=exec/state/handle.h
fields=$(sed -n '/^struct smp {/,/^};/p' "$handle" | sed 's|/\*.*||' | grep -c ';')
[ "$fields" -gt 10 ] || fail "$handle: found only $fields fields of struct smp"
[ "$fields" -le 26 ] || fail "$handle: struct smp has $((fields - 1)) fields, more than 25"

# Programs work on smp.h and on what rooms show: none sees the inside of a job, not through a header either.
shows=(exec/state/handle.h)
for ((i = 0; i < ${#shows[@]}; i++)); do
    mapfile -t -O "${#shows[@]}" shows < <(grep -lF "\"${shows[i]}\"" "${sources[@]}" | grep -E '^exec/.*\.h$' |
        grep -vxFf <(printf '%s\n' "${shows[@]}") || true)
done
mapfile -t programs < <(printf '%s\n' "${sources[@]}" | grep -E '^tools/')
report 'a program sees the inside of a job' < <(grep -nFf <(printf '"%s"\n' "${shows[@]}") "${programs[@]}" || true)

# Libraries and the only places that may include them.
library() { # header pattern, pattern of allowed files, what
    local others
    mapfile -t others < <(printf '%s\n' "${sources[@]}" | grep -vE "$2" || true)
    report "$3 outside its place" < <(includes "[\"<]$1" "${others[@]}")
}
library 'mpi\.h' '^(exec/|tools/|tests/(exec|tools|mpi|faults|bench|cuda|emulate)/)' 'MPI'
library 'nccl\.h' '^(exec/nccl/|profile/device/cuda_info\.c$|tests/(cuda|emulate)/)' 'NCCL'
cuda='exec/(cuda|nccl)/|exec/optimizer/[^/]*\.cuh?$|graph/cuda/|graph/ops/[^/]*/[^/]*\.cu$|profile/device/cuda_info\.c$'
library '(cuda|cublas|cudnn|device_launch|mma)' "^($cuda|tests/)" 'CUDA'
library '(exec|graph)/cuda/' "^($cuda|graph/|tests/)" 'what only builds with CUDA have'
report 'SMP_HAVE_CUDA outside of graph/base/built.h' < <(
    grep -ln 'SMP_HAVE_CUDA' "${sources[@]}" | grep -vE '^(graph/base/built\.h$|tests/)' || true)
library '(oneapi/)?(dnnl|omp)' '^(graph/math/|tests/(bench|graph/math)/|tests/mpi/host\.c$)' 'oneDNN'
library 'metis\.h' '^(partition/solve/|tests/partition/solve/)' 'METIS'
library 'jansson\.h' '^graph/(safetensors|import|folder)/' 'Jansson'
library '(protobuf-c/|onnx\.pb-c)' '^(graph/onnx/|tests/)' 'protobuf-c'
library '(png|jpeglib)\.h' '^(exec/data/|tests/exec/data/)' 'libpng or libjpeg'
library 'yaml\.h>' '^graph/yaml/' 'libyaml'
mapfile -t examples < <(printf '%s\n' "${sources[@]}" | grep -E '^(examples/|smp\.h$)')
report 'more than smp.h in a user-side file' < <(includes '"' "${examples[@]}" | grep -v '"smp\.h"' || true)

# First lines, base names, lengths.
for file in "${sources[@]}"; do
    IFS= read -r -n 2 first <"$file" || first=
    case $first in
    '/*' | '//') ;;
    *) fail "$file: the first lines do not say what it is for" ;;
    esac
done
mapfile -t all < <(files '*.c' '*.h' '*.cu' '*.cuh' '*.sh')
report 'base name used twice' < <(printf '%s\n' "${all[@]##*/}" | LC_ALL=C sort | uniq -d)
report 'over 900 lines' < <(wc -l "${all[@]}" | awk '$2 != "total" && $1 > 900 {print $2, $1}')

# No absolute path of one machine in any text. The brackets keep this line from matching itself.
mapfile -t texts < <(files '*.c' '*.h' '*.cu' '*.cuh' '*.sh' '*.py' '*.md' '*.yaml' '*.txt' '*.cmake' '*.in')
report 'path of one machine' < <(grep -HnE '(^|[^A-Za-z0-9_.}])/(wor[k]|tm[p]|hom[e]|roo[t])/' "${texts[@]}" .ci/run || true)

[ "$failures" -eq 0 ] || exit 1
echo "layers: ${#all[@]} files in order"

#!/usr/bin/env bash
# C and CUDA sources are as clang-format makes them. Other versions format differently: skipped without 14.
set -euo pipefail
cd "${SMP_SOURCE_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}"
for tool in clang-format-14 clang-format ''; do
    [ -n "$tool" ] || { echo "format: clang-format 14 not found"; exit 77; }
    ! "$tool" --version 2>/dev/null | grep -q 'version 14\.' || break
done
find . -name '.git' -prune -o -name 'build*' -type d -prune -o \
    -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' \) -print0 |
    xargs -0 "$tool" --dry-run -Werror

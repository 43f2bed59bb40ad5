#!/usr/bin/env bash
# C and CUDA sources are as clang-format makes them, and no line is wider than 100 columns: it does not
# fold comments. Other versions format differently: skipped without 14.
set -euo pipefail
cd "${SMP_SOURCE_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}"
for tool in clang-format-14 clang-format ''; do
    [ -n "$tool" ] || { echo "format: clang-format 14 not found"; exit 77; }
    ! "$tool" --version 2>/dev/null | grep -q 'version 14\.' || break
done
sources() {
    find . -name '.git' -prune -o -name 'build*' -type d -prune -o \
        -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' \) -print0
}
sources | xargs -0 "$tool" --dry-run -Werror
sources | xargs -0 awk 'length > 100 { print FILENAME ":" FNR ": wider than 100 columns"; wide = 1 }
                        END { exit wide }'

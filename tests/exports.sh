#!/usr/bin/env bash
# libsmp exports what smp.h declares, neither more nor less. Argument: the library.
set -euo pipefail
library=$1
header=${SMP_SOURCE_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}/smp.h

declared=$(sed -nE 's/^SMP_API .*[ *](smp_[a-z_]+)\(.*/\1/p' "$header" | LC_ALL=C sort)
exported=$(nm -D --defined-only --format=posix "$library" | cut -d' ' -f1 | LC_ALL=C sort)
[ -n "$declared" ] || { echo "exports: no declarations found in $header" >&2; exit 1; }
if ! difference=$(diff <(echo "$declared") <(echo "$exported")); then
    echo "exports: declared in smp.h (<) against exported by libsmp (>):" >&2
    echo "$difference" >&2
    exit 1
fi
echo "exports: $(wc -l <<<"$exported") functions"

#!/usr/bin/env bash
# Scripts are clean under shellcheck; skipped where it is not installed.
set -euo pipefail
cd "${SMP_SOURCE_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}"
command -v shellcheck >/dev/null || { echo "shell: shellcheck not found"; exit 77; }
{
    find . -name '.git' -prune -o -name 'build*' -type d -prune -o -type f -name '*.sh' -print0
    printf '%s\0' .ci/run
} | xargs -0 shellcheck -x -P SCRIPTDIR

#!/usr/bin/env bash
# tests/layers.sh and tests/links.sh can fail: in a copy of the tree every rule is broken once, alone,
# and the script must fail and name the place. The copy as it is must pass.
set -euo pipefail
cd "${SMP_SOURCE_DIR:-$(dirname "${BASH_SOURCE[0]}")/..}"
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
find . -name '.git' -prune -o -name 'build*' -type d -prune -o -type f -print0 |
    tar --null -T - -cf - | tar -C "$copy" -xf -

failures=0
cases=0
fail() {
    echo "layers_catches: $*" >&2
    failures=$((failures + 1))
}

put=() # paths in the copy that break the next rule

# caught SCRIPT REGEX: the script fails on the copy and says so. Then what was put into it goes.
caught() {
    cases=$((cases + 1))
    if SMP_SOURCE_DIR=$copy bash "$copy/tests/$1.sh" >"$copy/build.log" 2>&1; then
        fail "$1.sh does not see: $2"
    elif ! grep -qE -- "$2" "$copy/build.log"; then
        fail "$1.sh does not say '$2' but: $(cat "$copy/build.log")"
    fi
    for path in "${put[@]}"; do rm -rf "${copy:?}/$path"; done
    put=()
}
source_file() { # path in the copy, lines behind the first comment
    mkdir -p "$copy/$(dirname "$1")"
    printf '%s\n' '/* A file that breaks a rule. */' "${@:2}" >"$copy/$1"
    put+=("$1")
}

for script in layers links; do
    SMP_SOURCE_DIR=$copy bash "$copy/tests/$script.sh" >/dev/null || fail "$script.sh does not pass the tree as it is"
done

source_file schedule/rules/wrong.c '#include "schedule/export/export.h"'
caught layers 'schedule/rules includes a room to its right: schedule/rules/wrong\.c:2'
source_file partition/wrong.c '#include <stdio.h>'
caught layers 'outside the rooms: partition/wrong\.c'
source_file graph/base/wrong.c '#include "profile/profile.h"'
caught layers 'graph/base includes a room to its right: graph/base/wrong\.c:2'
source_file exec/step/wrong.c '#include "../exec/step/step.h"'
caught layers 'relative include: exec/step/wrong\.c:2'
source_file schedule/auto/wrong.c '#include <metis.h>'
caught layers 'METIS outside its place: schedule/auto/wrong\.c:2'
source_file partition/solve/wrong.c '#include <mpi.h>'
caught layers 'MPI or NCCL outside its place: partition/solve/wrong\.c:2'
source_file examples/wrong.c '#include "graph/base/text.h"'
caught layers 'more than smp\.h in a user-side file: examples/wrong\.c:2'

present=$(find "$copy/schedule/verify" -type f -name '*.[ch]' | wc -l)
for ((i = present; i < 26; i++)); do source_file "schedule/verify/wrong_$i.c"; done
caught layers 'schedule/verify holds 26 files'
mv "$copy/schedule/rules/README.md" "$copy/sign"
caught layers 'schedule/rules has no sign'
mv "$copy/sign" "$copy/schedule/rules/README.md"

source_file profile/wrong.c
echo 'int wrong;' >"$copy/profile/wrong.c"
caught layers 'profile/wrong\.c: the first lines do not say what it is for'
source_file profile/wrong.c
source_file tests/exec/wrong.c
caught layers 'base name used twice: wrong\.c'
mapfile -t long < <(yes '' | head -n 600)
source_file profile/wrong.c "${long[@]}"
caught layers 'over 600 lines: profile/wrong\.c 601'
source_file profile/wrong.c "/* /ho""me/me */"
caught layers 'path of one machine: profile/wrong\.c:2'

source_file wrong.md '[a](nothing.md)'
caught links 'wrong\.md:2: link to .nothing\.md'
source_file wrong.md '# A heading, here' '[a](#a-heading-here) [b](#another)'
caught links 'wrong\.md:3: link to .#another'
# shellcheck disable=SC2016 # the backticks are the text's
source_file wrong.md 'see `graph/nothing.c` and `nothing.c`'
caught links 'wrong\.md:2: names .graph/nothing\.c'
source_file profile/wrong.c '/* see profile/NOTHING.md */'
caught links 'profile/wrong\.c:2: names .profile/NOTHING\.md'

[ "$failures" -eq 0 ] || exit 1
echo "layers_catches: $cases broken rules seen"

#!/usr/bin/env bash
# tests/layers.sh and tests/links.sh can fail: in a copy of the tree every rule is broken once, and the
# script must fail and name each place. The copy as it is must pass.
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

expected=() # what the script must say

breaks() { # REGEX of what the next `caught` must see
    cases=$((cases + 1))
    expected+=("$1")
}
# caught SCRIPT: it fails on the copy and says all that was expected.
caught() {
    local pattern
    ! SMP_SOURCE_DIR=$copy bash "$copy/tests/$1.sh" >"$copy/build.log" 2>&1 || fail "$1.sh passes what is broken"
    for pattern in "${expected[@]}"; do
        grep -qE -- "$pattern" "$copy/build.log" || fail "$1.sh does not say '$pattern' but: $(cat "$copy/build.log")"
    done
    expected=()
}
source_file() { # path in the copy, lines behind the first comment
    mkdir -p "$copy/$(dirname "$1")"
    printf '%s\n' '/* A file that breaks a rule. */' "${@:2}" >"$copy/$1"
}

for script in layers links; do
    SMP_SOURCE_DIR=$copy bash "$copy/tests/$script.sh" >/dev/null || fail "$script.sh does not pass the tree as it is"
done

source_file schedule/rules/wrong_right.c '#include "schedule/export/export.h"'
breaks 'schedule/rules includes a room to its right: schedule/rules/wrong_right\.c:2'
source_file graph/ops/norm/wrong_family.c '#include "graph/ops/matmul/linear.h"'
breaks 'graph/ops/norm includes a room to its right: graph/ops/norm/wrong_family\.c:2'
source_file graph/ops/wrong_shared.c '#include "graph/ops/collective/collective.h"'
breaks 'graph/ops includes a room to its right: graph/ops/wrong_shared\.c:2'
source_file partition/wrong_outside.c '#include <stdio.h>'
breaks 'outside the rooms: partition/wrong_outside\.c'
source_file graph/base/wrong_layer.c '#include "profile/profile.h"'
breaks 'graph/base includes a room to its right: graph/base/wrong_layer\.c:2'
source_file exec/job/wrong_planner.c '#include "schedule/planner/planner.h"' '#include "schedule/check/check.h"'
breaks 'the executor includes the planner.*: exec/job/wrong_planner\.c:2'
breaks 'the executor includes the planner.*: exec/job/wrong_planner\.c:3'
source_file exec/step/wrong_relative.c '#include "../exec/step/step.h"'
breaks 'relative include: exec/step/wrong_relative\.c:2'
source_file schedule/auto/wrong_metis.c '#include <metis.h>'
breaks 'METIS outside its place: schedule/auto/wrong_metis\.c:2'
source_file partition/solve/wrong_mpi.c '#include <mpi.h>'
breaks 'MPI outside its place: partition/solve/wrong_mpi\.c:2'
source_file exec/step/wrong_cuda.c '#include <cuda_runtime.h>' '#include "exec/cuda/cuda_event.h"' '#ifdef SMP_HAVE_CUDA' '#endif'
breaks 'CUDA outside its place: exec/step/wrong_cuda\.c:2'
breaks 'what only builds with CUDA have outside its place: exec/step/wrong_cuda\.c:3'
breaks 'SMP_HAVE_CUDA outside of graph/base/built\.h: exec/step/wrong_cuda\.c'
source_file exec/cuda/wrong_nccl.c '#include <nccl.h>'
breaks 'NCCL outside its place: exec/cuda/wrong_nccl\.c:2'
for i in 1 2 3 4 5 6 7; do source_file "exec/log/wrong_inside_$i.c" '#include "exec/record/step_record_state.h"'; done
breaks 'exec/record/step_record_state\.h is seen by [0-9]+ files'
source_file tools/run/wrong_job.c '#include "exec/state/weights.h"'
breaks 'a program sees the inside of a job: tools/run/wrong_job\.c'
sed -i 's/^struct smp {/&\n    int one_more;/' "$copy/exec/state/handle.h"
breaks 'exec/state/handle\.h: struct smp has 26 fields, more than 25'
source_file exec/log/wrong_shown.h '#include "exec/step/reduce_state.h"'
breaks 'exec/step/reduce_state\.h is shown on by a header: exec/log/wrong_shown\.h'
source_file examples/wrong_user.c '#include "graph/base/text.h"'
breaks 'more than smp\.h in a user-side file: examples/wrong_user\.c:2'
present=$(find "$copy/schedule/verify" -type f -name '*.[ch]' | wc -l)
for ((i = present; i < 26; i++)); do source_file "schedule/verify/wrong_$i.c"; done
breaks 'schedule/verify holds 26 files'
rm "$copy/schedule/rules/README.md"
breaks 'schedule/rules has no sign'
echo 'int wrong;' >"$copy/profile/wrong_silent.c"
breaks 'profile/wrong_silent\.c: the first lines do not say what it is for'
source_file profile/wrong_twice.c
source_file tests/exec/wrong_twice.c
breaks 'base name used twice: wrong_twice\.c'
mapfile -t long < <(yes '' | head -n 900)
source_file profile/wrong_long.c "${long[@]}"
breaks 'over 900 lines: profile/wrong_long\.c 901'
source_file profile/wrong_path.c "/* /ho""me/me */"
breaks 'path of one machine: profile/wrong_path\.c:2'
caught layers

source_file wrong_file.md '[a](nothing.md)'
breaks 'wrong_file\.md:2: link to .nothing\.md'
source_file wrong_heading.md '# A heading, here' '[a](#a-heading-here) [b](#another)'
breaks 'wrong_heading\.md:3: link to .#another'
# shellcheck disable=SC2016 # the backticks are the text's
source_file wrong_name.md 'see `graph/nothing.c` and `nothing.c`'
breaks 'wrong_name\.md:2: names .graph/nothing\.c'
source_file profile/wrong_comment.c '/* see profile/NOTHING.md */'
breaks 'profile/wrong_comment\.c:2: names .profile/NOTHING\.md'
caught links

[ "$failures" -eq 0 ] || exit 1
echo "layers_catches: $cases broken rules seen"

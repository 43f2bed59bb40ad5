#!/usr/bin/env bash
# A rank that dies while the others of a program wait for it in smp_all_reduce: the job ends at once.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
begin=$(date +%s)
run mpirun -n 4 "$SMP_BIN_DIR/test_group_calls" die
[ "$status" -ne 0 ] || fail "a job with a dead rank ended well"
[ $(($(date +%s) - begin)) -lt 15 ] || fail "the others waited too long"
expect_match err 'signal 9|exited on signal|Killed'
finish

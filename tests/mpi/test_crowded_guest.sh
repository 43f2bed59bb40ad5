#!/usr/bin/env bash
# As test_guest.sh, with more ranks than cores. Many take minutes to start where a container grants but
# a few of the cores that it shows.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
cores=$(getconf _NPROCESSORS_ONLN)
[ "$cores" -le 8 ] || {
    echo "more than eight cores"
    exit 77
}
expect_exit 0 mpirun -n $((cores + 1)) host crowded "$SMP_EXAMPLES/mlp.yaml" saved
expect_equal "changes in $((cores + 1)) hosts" "$(cat out)" ""
expect_no_match err 'mpirun|^host: '
finish

#!/usr/bin/env bash
# The library leaves its host as it found it: after jobs, after ones that could not be made, and
# again; with MPI opened by the host or by the library.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
model=$SMP_EXAMPLES/mlp.yaml

# visit RANKS HOW: what is not as it was stands in the output.
visit() {
    rm -rf saved
    expect_exit 0 mpirun -n "$1" host "$2" "$model" saved
    expect_equal "changes in $1 hosts ($2)" "$(cat out)" ""
    expect_no_match err 'mpirun|^host: '
}

for ranks in 1 2; do
    visit "$ranks" own
    visit "$ranks" library
done
rm -rf saved
expect_exit 0 host library "$model" saved
expect_equal "changes in a host without mpirun" "$(cat out)" ""

# The host's exit does not wait for the ranks that its own job has left alone.
limit_s=20 expect_exit 3 mpirun -n 2 host leave "$model" saved
finish

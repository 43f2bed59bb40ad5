# Sourced by tests that run on two hosts of their own (faults/fake_hosts.py) with a link of 200 Mbit/s between
# them, and mpirun across it. Skipped where they cannot be made.
# shellcheck shell=bash
fake_hosts=(python3 "$tests_dir/faults/fake_hosts.py")
trap '"${fake_hosts[@]}" down . 2>/dev/null || true; cleanup' EXIT
"${fake_hosts[@]}" up . 2 200mbit >refused 2>&1 || {
    head -n 1 refused
    exit 77
}
unset "${!OMPI_MCA_@}" # those of one machine

# on_hosts SLOTS COMMAND...: as many ranks on each, the first ones on h1.
on_hosts() {
    local slots=$1
    shift
    printf 'h%d slots=%d\n' 1 "$slots" 2 "$slots" >hosts
    limit_s=100 expect_exit 0 "${fake_hosts[@]}" run . h1 \
        mpirun --mca plm_rsh_agent "${fake_hosts[*]} shell" --mca btl self,vader,tcp --mca mpi_yield_when_idle 1 \
        --bind-to none --oversubscribe --hostfile hosts -n $((2 * slots)) -x PATH "$@"
}

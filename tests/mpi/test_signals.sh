#!/usr/bin/env bash
# SIGUSR1, and SIGTERM while every rank lives, save after the step in progress and end the job with a code
# of its own, whichever rank they reach; what is resumed goes on bit for bit. A time for --save-every.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
write_text text.txt 20000
sed 's/layers: 4/layers: 1/' "$SMP_EXAMPLES/gpt-tiny.yaml" >model.yaml
expect_exit 0 smp-partition model.yaml -n 2 --stages 2 --ddp 1 --microbatches 2 --microbatch-size 1 -o plan.yaml

job= # process id of mpirun
# start STEP [option...]: a job that is as good as endless; waits until it has done the step.
start() {
    local step=$1
    shift
    rm -rf out saved
    command_line="mpirun -n 2 smp-run plan.yaml $*"
    mpirun -n 2 env LD_PRELOAD="$SMP_BIN_DIR/bad_disk.so" smp-run plan.yaml --data text.txt --json \
        --steps 1000000 "$@" >out 2>err </dev/null &
    job=$!
    wait_for 30 grep -qs "\"step\": $step," out || fail "step $step is not done within 30 seconds"
}

gone() {
    ! kill -0 "$job" 2>/dev/null
}

# ends CODE: of mpirun.
ends() {
    status=0
    wait_for 20 gone || fail "the job still runs"
    wait "$job" || status=$?
    expect_equal "exit code" "$status" "$1"
}

# A directory of checkpoints alone does not end where others go on: what is said, saved and printed agrees.
saved_last() {
    last=$(losses out | tail -n 1 | cut -d' ' -f1)
    expect_match err "^smp-run: ended by a signal: step $last is saved in saved, --resume goes on\$"
    expect_match <(checkpoints saved) "(^| )$last\.smp \$"
}

rank() { # the process of a rank
    local stat pid parent
    for stat in /proc/[0-9]*/stat; do
        read -r pid _ _ parent _ 2>/dev/null <"$stat" || continue
        if [ "$parent" = "$job" ] && grep -qzx "OMPI_COMM_WORLD_RANK=$1" "/proc/$pid/environ"; then
            echo "$pid"
        fi
    done
}

# mpirun forwards SIGUSR1 to all ranks; the steps behind the save are those of a job that was not stopped.
start 3 --checkpoint saved
kill -USR1 "$job"
ends 4
saved_last
losses out >first
expect_exit 0 mpirun -n 2 smp-run plan.yaml --data text.txt --json --steps $((last + 3)) --checkpoint saved --resume
losses out >second
expect_exit 0 mpirun -n 2 smp-run plan.yaml --data text.txt --json --steps $((last + 3))
expect_equal "losses" "$(cat first second)" "$(losses out)"

# One rank alone gets it, not the first. Meanwhile a second is enough for --save-every.
start 1 --checkpoint saved --save-every 0.3s --keep 1000
saves() {
    [ "$(find saved -name '*.smp' 2>/dev/null | wc -l)" -ge 2 ]
}
checks=$((checks + 1))
wait_for 20 saves || fail "no checkpoint by the clock"
kill -USR1 "$(rank 1)"
ends 4
saved_last
steps=$(losses out | wc -l)
checks=$((checks + 1))
[ "$(find saved -name '*.smp' | wc -l)" -lt "$steps" ] || fail "a checkpoint in each of $steps steps"

# An evaluation is left for the save.
start 1 --checkpoint saved --eval-data text.txt --eval-every 1
kill -USR1 "$job"
ends 4
saved_last
expect_no_match out eval_loss

# mpirun takes no output for as long as it waits with SIGTERM, and kills as long behind it: the ranks
# wait for neither. The disk takes more than the second that is mpirun's default.
export OMPI_MCA_odls_base_sigkill_timeout=3 HOLD_SYNC=.smp.part HOLD_UNTIL=$PWD/go
start 1 --checkpoint saved
kill -TERM "$job"
writes() {
    compgen -G 'saved/*.part' >/dev/null
}
wait_for 20 writes || fail "nothing is saved"
sleep 1.2
touch go
ends 1
expect_match err '^smp-run: ended by a signal: step [0-9]+ is saved in saved, --resume goes on$'
expect_match <(checkpoints saved) '^[0-9]+\.smp $'
unset HOLD_SYNC HOLD_UNTIL

# A rank has died: the other one does not wait for a boundary that never comes.
start 1 --checkpoint saved
kill -KILL "$(rank 1)"
begin=$SECONDS
ends 137
expect_match err '^smp-run: the job was ended: rank 0 .* was at action'
checks=$((checks + 1))
[ $((SECONDS - begin)) -le 12 ] || fail "the other rank took $((SECONDS - begin)) seconds"
unset OMPI_MCA_odls_base_sigkill_timeout

# Without a checkpoint there is nothing to save.
start 1
kill -USR1 "$job"
ends 1
expect_match err '^smp-run: the job was ended: rank [01] '
finish

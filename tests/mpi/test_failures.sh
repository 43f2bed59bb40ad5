#!/usr/bin/env bash
# A job that cannot go on ends within seconds, says why, and leaves no process behind.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
write_text text.txt 60000
expect_exit 0 smp-partition "$SMP_EXAMPLES/gpt-tiny.yaml" -n 2 --stages 2 --microbatches 4 \
    --microbatch-size 1 -o plan.yaml

job= # process id of mpirun
ranks() { # process ids of the job's ranks
    local parent stat pid
    for stat in /proc/[0-9]*/stat; do
        # pid (name) state parent ...; a process may be gone by now.
        read -r pid _ _ parent _ 2>/dev/null <"$stat" || continue
        if [ "$parent" = "$job" ]; then
            echo "$pid"
        fi
    done
}

plan=plan.yaml size=2
start() { # extra options of smp-run: size ranks, as good as endless; waits for the first steps
    command_line="mpirun -n $size smp-run $plan $*"
    rm -f out # of the last job, or its steps would count
    mpirun -n "$size" smp-run "$plan" --data text.txt --steps 1000000 --log-every 1 "$@" \
        >out 2>err </dev/null &
    job=$!
    wait_for 30 grep -qs '^step 3 ' out || fail "no step within 30 seconds"
}

gone() { # process ids
    local pid
    for pid in "$@"; do
        ! kill -0 "$pid" 2>/dev/null || return 1
    done
}

# ends SECONDS: the job ends by itself, not with success, and no rank is left.
ends() {
    local code=0
    checks=$((checks + 2))
    wait_for "$1" gone "$job" || {
        fail "still runs after $1 seconds"
        kill -KILL "$job" "${pids[@]}" 2>/dev/null || true
    }
    wait "$job" || code=$?
    [ "$code" -ne 0 ] || fail "a broken job exits with 0"
    wait_for 5 gone "${pids[@]}" || {
        fail "some of the processes ${pids[*]} are left behind"
        kill -KILL "${pids[@]}" 2>/dev/null || true
    }
}

# Wrong number of ranks: both numbers, every rank ends, exit 2.
for n in 1 3; do
    expect_exit 2 mpirun -n "$n" smp-run plan.yaml --data text.txt --steps 2
    expect_match err '(^|[^0-9])2([^0-9]|$)'
    expect_match err "(^|[^0-9])$n([^0-9]|\$)"
    expect_equal "messages of smp-run" "$(grep -c 'smp-run: ' err || true)" 1
done

# Bad input under mpirun ends all ranks with one message.
expect_exit 2 mpirun -n 2 smp-run plan.yaml --data absent.txt --steps 2
expect_equal "messages of smp-run" "$(grep -c 'absent\.txt' err || true)" 1

# A rank does not get as far as MPI: the other one says who and where it is, and for whom it waits.
run mpirun -n 1 sleep 30 : -n 1 smp-run plan.yaml --data text.txt --steps 2 --timeout-start 1s
[ "$status" -ne 0 ] || fail "a job that does not start exits with 0"
expect_match err "^smp-run: rank 1 on host $(hostname): MPI_Init has not returned for 1 s: it waits for rank 0\$"

# A rank is killed.
start
mapfile -t pids < <(ranks)
expect_equal "ranks found" "${#pids[@]}" 2
kill -KILL "${pids[1]}"
ends 10
expect_match err 'rank 0 .*was at action' # the survivor; mpirun names the dead

# A rank hangs: the others notice and name it. Between steps they wait longer.
start --timeout 1 --timeout-save 5
mapfile -t pids < <(ranks)
expect_equal "ranks found" "${#pids[@]}" 2
kill -STOP "${pids[1]}"
ends 60
expect_match err '[Rr]ank'
expect_match err '[Ss]tage'
expect_match err 'F[0-9]+\.[0-9]|B[0-9]+\.[0-9]|micro-batch|R\.[0-9]|action O'

# Several ranks wait at the end of a step: the one that hangs is named, once.
expect_exit 0 smp-partition "$SMP_EXAMPLES/gpt-tiny.yaml" -n 3 --stages 1 --ddp 3 --microbatches 1 \
    --microbatch-size 1 -o replicas.yaml
plan=replicas.yaml size=3
start --timeout 1 --timeout-save 5
mapfile -t pids < <(ranks)
expect_equal "ranks found" "${#pids[@]}" 3
hung=$(tr '\0' '\n' <"/proc/${pids[1]}/environ" | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
kill -STOP "${pids[1]}"
ends 60
expect_match err "no progress for (1|5) s: .*; rank $hung: no answer"
expect_equal "times that it is said" "$(grep -c 'no progress' err || true)" 1
plan=plan.yaml size=2

# All ranks are suspended for longer than the time-out, one after the other, and go on.
start --timeout 2
mapfile -t pids < <(ranks)
kill -STOP "${pids[0]}"
sleep 0.5
kill -STOP "${pids[1]}"
sleep 3
kill -CONT "${pids[1]}" "${pids[0]}"
steps=$(grep -c '^step' out || true)
went_on() {
    [ "$(grep -c '^step' out || true)" -gt "$steps" ]
}
checks=$((checks + 1))
wait_for 30 went_on || fail "a suspended job does not go on"
kill -TERM "$job" 2>/dev/null || true
ends 10

# The user stops the job.
start
mapfile -t pids < <(ranks)
kill -TERM "$job"
ends 10
finish

#!/usr/bin/env bash
# Two jobs that save into one folder: the second is refused and told who is there; it goes on at once where
# the first was killed; and a job that has lost the folder to another stops before it writes.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
write_text text.txt 20000
sed 's/layers: 4/layers: 1/' "$SMP_EXAMPLES/gpt-tiny.yaml" >model.yaml
expect_exit 0 smp-partition model.yaml -n 1 --stages 1 --microbatches 2 --microbatch-size 1 -o plan.yaml
job=(mpirun -n 1 smp-run plan.yaml --data text.txt --json --checkpoint saved)

# start OPTIONS...: a job in the background, of which $first is the process of rank 0 and $mpirun its parent.
start() {
    rm -f first_out first.pid
    # shellcheck disable=SC2016 # expanded by the rank's shell, whose process is then that of the rank
    mpirun -n 1 bash -c 'echo $$ >first.pid; exec "$@"' rank env LD_PRELOAD="$SMP_BIN_DIR/bad_disk.so" \
        HOLD_SYNC=4.smp.part HOLD_UNTIL="$PWD/go" smp-run plan.yaml --data text.txt --json \
        --checkpoint saved --save-every 2 "$@" >first_out 2>first_err </dev/null &
    mpirun=$!
    wait_for 50 grep -qs '"step": 5,' first_out || fail "no step 5"
    first=$(cat first.pid)
}

start --steps 100000
holder="saved: another job saves there: process $first on host $(uname -n) \(job [0-9a-f]{16}\) holds \.lock; choose"
expect_exit 2 "${job[@]}" --steps 3 --resume
expect_match err "^smp-run: .*$holder"
expect_exit 2 "${job[@]}" --steps 3
expect_match err "^smp-run: .*$holder"
expect_equal "files beside a refused job" "$(checkpoints saved)" "2.smp 4.smp.part "

# Who only reads is not refused.
expect_exit 0 "${job[@]}" --steps 0 --resume --export-weights weights.safetensors

# The job is killed, as a scheduler does that runs it again at once.
kill -KILL "$mpirun"
wait "$mpirun" 2>/dev/null || true
expect_exit 0 "${job[@]}" --steps 3 --resume
expect_equal "files after a death" "$(checkpoints saved)" "2.smp 3.smp "
[ ! -e saved/.lock ] || fail "the lock outlives the job"

# The lock ends beside a job that seemed dead: it names none of its files.
start --resume --steps 100000
sed -i 's/^host .*/host elsewhere/; s/^pid .*/pid 42/; s/^job .*/job 0123456789abcdef/' saved/.lock
before=$(checkpoints saved)
touch go
status=0
wait "$mpirun" || status=$?
expect_equal "exit code without the lock" "$status" 2
expect_match first_err '^smp-run: .*saved: another job saves there by now: process 42 on host elsewhere \(job 0123456789abcdef\)'
expect_equal "files of a job without the lock" "$(checkpoints saved)" "${before/4.smp.part /}"
expect_match saved/.lock '^pid 42$'
finish

#!/usr/bin/env bash
# Saving does not stop training: the steps go on while the disk takes its time, what is saved is the state
# of the step at which the save began, and what goes wrong meanwhile costs nothing that was saved before.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
write_text text.txt 20000
sed 's/layers: 4/layers: 1/' "$SMP_EXAMPLES/gpt-tiny.yaml" >model.yaml
expect_exit 0 smp-partition model.yaml -n 2 --stages 2 --ddp 1 --microbatches 2 \
    --microbatch-size 1 -o plan.yaml

smp_run=(mpirun -n 2 env LD_PRELOAD="$SMP_BIN_DIR/bad_disk.so")
options=(smp-run plan.yaml --data text.txt --json --checkpoint saved)

# reached STEP: the job in the background has printed the step.
reached() {
    wait_for 50 grep -qs "\"step\": $1," out || fail "step $1 is not done while a checkpoint is being written"
}

# The disk of rank 1 has not synced the checkpoint of step 4 when step 8 is done: nothing of it counts yet.
"${smp_run[@]}" BAD_RANK=1 HOLD_SYNC=4.smp.part HOLD_UNTIL="$PWD/go" "${options[@]}" --steps 9 --save-every 4 \
    >out 2>err </dev/null &
job=$!
reached 8
expect_equal "files while the disk is busy" "$(checkpoints saved)" "4.smp.part "
touch go
status=0
wait "$job" || status=$?
expect_equal "exit code" "$status" 0
expect_equal "files" "$(checkpoints saved)" "8.smp 9.smp "
losses out >whole

# Rank 0 may be the slow one, or the directory.
for end in 4.smp.part /saved; do
    rm -rf saved go out
    "${smp_run[@]}" BAD_RANK=0 HOLD_SYNC=$end HOLD_UNTIL="$PWD/go" "${options[@]}" --steps 9 \
        --save-every 4 >out 2>err </dev/null &
    job=$!
    reached 8
    touch go
    status=0
    wait "$job" || status=$?
    expect_equal "exit code with a slow $end" "$status" 0
    expect_equal "files with a slow $end" "$(checkpoints saved)" "8.smp 9.smp "
done

# A job that dies while it is being written leaves the one before; that of step 4 holds the state of step
# 4, though it was written behind the steps after it.
rm -rf saved go out
"${smp_run[@]}" HOLD_SYNC=8.smp.part HOLD_UNTIL="$PWD/never" "${options[@]}" --steps 20 --save-every 4 \
    >out 2>err </dev/null &
job=$!
reached 9
kill -KILL "$job"
wait "$job" 2>/dev/null || true
expect_equal "files after a death" "$(checkpoints saved)" "4.smp 8.smp.part "
expect_exit 0 mpirun -n 2 "${options[@]}" --steps 9 --resume
cat <(head -n 4 whole) <(losses out) >both
expect_equal "losses after a death" "$(cat both)" "$(cat whole)"

# One disk is full behind step 12: training goes on without that checkpoint, says so in the lines of all steps
# until the next one is saved (begun after 16), and what was saved before stays.
disk_full=("${smp_run[@]}" BAD_RANK=1 FAIL_WRITE=12.smp.part)
full='rank 1: saved/[0-9a-f]{16}\.checkpoint-00000000%s\.smp\.part: cannot write: No space left on device'
cp -r saved before_full
expect_exit 0 "${disk_full[@]}" "${options[@]}" --steps 21 --save-every 4 --resume
expect_equal "messages" "$(grep -c '^smp-run: .*cannot' err)" 1
# shellcheck disable=SC2059 # the step
expect_match err "^smp-run: $(printf "$full" 12); training goes on$"
expect_match out '"step": 17,.*"unsaved": 12}$'
expect_no_match out '"step": (1[0-3]|21),.*unsaved'
expect_json --lines out
expect_equal "files after a full disk" "$(checkpoints saved)" "20.smp 21.smp "

# The last one that is due fails: what the end of a run writes is written, and the job has failed.
rm -r saved
cp -r before_full saved
expect_exit 1 "${smp_run[@]}" BAD_RANK=1 FAIL_WRITE=13.smp.part "${options[@]}" --steps 13 --resume \
    --export-weights weights.safetensors
expect_equal "messages" "$(grep '^smp-run: ' err | grep -vc ': resumed after')" 1
# shellcheck disable=SC2059
expect_match err "^smp-run: $(printf "$full" 13)$"
expect_equal "files after the last save" "$(checkpoints saved)" "4.smp 9.smp "
[ -s weights.safetensors ] || fail "no weights"

# With --save-must the job ends there.
expect_exit 1 "${disk_full[@]}" "${options[@]}" --steps 100000 --save-every 4 --save-must --resume
expect_equal "messages" "$(grep '^smp-run: ' err | grep -vc ': resumed after')" 1
# shellcheck disable=SC2059
expect_match err "^smp-run: $(printf "$full" 12)$"
expect_equal "files after a full disk" "$(checkpoints saved)" "4.smp 9.smp "

# ... or the directory is not safe: the new name stands beside the old ones.
expect_exit 1 "${smp_run[@]}" FAIL_SYNC=/saved "${options[@]}" --steps 100000 --save-every 4 --save-must --resume
expect_match err '^smp-run: rank 0: saved: cannot sync: Input/output error'
expect_equal "files after an unsafe name" "$(checkpoints saved)" "4.smp 9.smp 12.smp "

# A save is named when it is written, not when the next one begins: here none does, as no later evaluation is better.
rm -r saved
head -c 1000 text.txt >held.txt
mpirun -n 2 "${options[@]}" --steps 1000000 --lr 0 --eval-data held.txt --eval-every 300 --keep-best >out 2>err </dev/null &
job=$!
wait_for 20 test -e saved/checkpoint-0000000300.smp || fail "what was best is not saved while training goes on"
kill -KILL "$job"
wait "$job" 2>/dev/null || true
expect_equal "files while training goes on" "$(checkpoints saved)" "300.smp "
finish

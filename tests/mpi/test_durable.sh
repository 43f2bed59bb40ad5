#!/usr/bin/env bash
# A checkpoint is on the disk before anything older is removed: every file and directory that must be
# synced is, and a sync that fails ends the job with what was there before untouched.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
write_text text.txt 20000
expect_exit 0 smp-partition "$SMP_EXAMPLES/gpt-tiny.yaml" -n 2 --stages 2 --ddp 1 --microbatches 2 \
    --microbatch-size 1 -o plan.yaml

# train CODE [FAIL_SYNC=END] -- OPTIONS...: what was synced is in the file log.
train() {
    local code=$1 fail=(SYNC_LOG="$PWD/log")
    shift
    while [ "$1" != -- ]; do
        fail+=("$1")
        shift
    done
    shift
    rm -f log
    expect_exit "$code" mpirun -n 2 env LD_PRELOAD="$SMP_BIN_DIR/bad_disk.so" "${fail[@]}" \
        smp-run plan.yaml --data text.txt --checkpoint runs/saved --save-every 2 "$@"
}

mkdir runs
train 1 FAIL_SYNC=/runs -- --steps 2
expect_match err '^smp-run: .*runs/saved/\.\.: cannot sync: Input/output error'
expect_equal "a directory that is not safe" "$(ls runs)" ""

# What lies in a directory, then what its name lies in.
train 0 -- --steps 2
expect_equal "synced" "$(sed -E "s|^$(pwd -P)/||; s|/[0-9a-f]{16}\.|/JOB.|" log | tr '\n' ' ')" \
    "runs runs/saved/JOB.checkpoint-0000000002.smp.part runs/saved/JOB.checkpoint-0000000002.smp.part runs/saved "

train 0 -- --steps 4 --resume
expect_equal "files" "$(checkpoints runs/saved)" "2.smp 4.smp "
train 1 FAIL_SYNC=6.smp.part -- --steps 6 --resume
expect_match err '^smp-run: .*checkpoint-0000000006\.smp\.part: cannot sync: Input/output error'
expect_equal "files after a file that is not safe" "$(checkpoints runs/saved)" "2.smp 4.smp "

train 1 FAIL_SYNC=/saved -- --steps 6 --resume
expect_match err '^smp-run: .*runs/saved: cannot sync: Input/output error'
expect_equal "files after a name that is not safe" "$(checkpoints runs/saved)" "2.smp 4.smp 6.smp "

train 0 -- --steps 8 --resume
expect_equal "files" "$(checkpoints runs/saved)" "6.smp 8.smp "
finish

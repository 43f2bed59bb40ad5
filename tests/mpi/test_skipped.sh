#!/usr/bin/env bash
# Training that goes wrong: the job ends by itself with exit code 1, and what was saved before can be
# resumed. A weight decay of a thousand times an absurd learning rate spoils the weights at once.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
write_text text.txt 20000
sed -e 's/^let: .*/let: {T: 12, d: 16, heads: 2, layers: 1, vocab: 128}/' \
    "$SMP_EXAMPLES/gpt-tiny.yaml" >model.yaml
expect_exit 0 smp-partition model.yaml -n 2 --stages 2 --microbatches 2 --microbatch-size 1 -o plan.yaml
good=(--data text.txt --json --lr 0.001)
bad=(--data text.txt --json --lr 1e6 --weight-decay 1000)

# Without checkpoints: so many skipped steps, counted, then the end, said once.
expect_exit 1 mpirun -n 2 smp-run plan.yaml "${bad[@]}" --steps 60 --max-skipped 3
expect_equal "messages" "$(grep -c 'smp-run: 3 steps in a row changed nothing' err || true)" 1
expect_match out '"grad_norm": null, "skipped": 2}'
expect_no_match out '"skipped": 3'
expect_json --lines out
expect_exit 1 mpirun -n 2 smp-run plan.yaml "${bad[@]}" --steps 60
expect_match out '"skipped": 9}'
expect_exit 0 mpirun -n 2 smp-run plan.yaml --data text.txt --lr 1e6 --weight-decay 1000 --steps 40 \
    --max-skipped 0
expect_match out '^step 40 .*  skipped [0-9]+$'

# The first bad update can be seen by the step after it: what was saved before is neither replaced nor
# pushed out by the steps that are skipped from there on.
train() { # options...
    run mpirun -n 2 smp-run plan.yaml --checkpoint saved "$@"
    expect_equal "exit code" "$status" "$expected"
}
expected=0
train "${good[@]}" --steps 4
expect_match out '"skipped": 0}'
expected=1
train "${bad[@]}" --steps 60 --resume --save-every 1
expect_equal "files" "$(checkpoints saved)" "4.smp 5.smp "
rm saved/checkpoint-0000000005.smp
expected=0
train "${good[@]}" --steps 6 --resume
expect_match out '"step": 6.*"skipped": 0}'
finish

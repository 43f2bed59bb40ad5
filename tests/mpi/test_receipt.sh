#!/usr/bin/env bash
# What a checkpoint keeps of the run that saved it: who resumes goes on with its options, hears what is other, and is
# refused another global batch. One command line begins a run and goes on with it.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
limit_s=120
write_text text.txt 40000
write_text other.txt 30000
sed 's/^let: .*/let: {T: 16, d: 16, heads: 2, layers: 1, vocab: 256}/' "$SMP_EXAMPLES/gpt-tiny.yaml" >gpt.yaml
plan() { # file, ranks, micro-batches, samples in each
    expect_exit 0 smp-partition gpt.yaml -n "$2" --stages "$2" --microbatches "$3" --microbatch-size "$4" -o "$1"
}
plan one.yaml 1 2 2
plan smaller.yaml 1 2 1
plan rounder.yaml 2 4 1
told=(--optimizer lion --lr 0.003 --beta1 0.8 --weights-like 'h0.ln*:lr=0.5' --weights-like 'wte.*:weight-decay=0' --seed 4)
weights() { sed -nE 's/^replica 0 weights //p' out; }

# begins, and goes on, by one command line
requeued=(mpirun -n 1 smp-run one.yaml --data text.txt --checkpoint kept --resume=auto --checksum)
expect_exit 0 "${requeued[@]}" --steps 2 "${told[@]}"
expect_no_match err 'resumed'
expect_exit 0 "${requeued[@]}" --steps 4 "${told[@]}"
expect_match err 'resumed after step 2 of kept/checkpoint-0000000002\.smp$'
expect_no_match err 'the run that is resumed had'
# what is not given is as it was: also of a run that was resumed itself
expect_exit 0 "${requeued[@]}" --steps 6
expect_exit 0 "${requeued[@]}" --steps 8
resumed=$(weights)
expect_no_match err 'the run that is resumed had'
expect_exit 0 mpirun -n 1 smp-run one.yaml --data text.txt --steps 8 --checksum "${told[@]}"
expect_equal "weights of a run in four parts" "$resumed" "$(weights)"
expect_exit 2 mpirun -n 1 smp-run one.yaml --data text.txt --checkpoint nothing --resume --steps 2
expect_match err 'nothing: cannot read the checkpoint directory'
expect_exit 2 smp-run one.yaml --data text.txt --checkpoint kept --resume=yes
expect_match err "^smp-run: --resume: got 'yes', expected auto or nothing$"

# what is other is said: a line for each option, and one for the data
expect_exit 0 "${requeued[@]}" --steps 9 --lr 3e-3 --beta1 0.7 --clip 2 --seed 4
expect_equal "lines of what is other" "$(grep -c 'the run that is resumed had' err)" 2
expect_match err '^smp-run: --beta1 0\.7, the run that is resumed had 0\.8$'
expect_match err '^smp-run: --clip 2, the run that is resumed had the default$'
expect_exit 0 mpirun -n 1 smp-run one.yaml --data other.txt --checkpoint kept --resume --steps 10
expect_match err '^smp-run: --data is not what the run that is resumed had$'
expect_exit 0 mpirun -n 2 smp-run rounder.yaml --data other.txt --checkpoint kept --resume --steps 11
expect_match err '^smp-run: microbatch-size 1, the run that is resumed had 2: bits will differ$'

# another global batch is another run
expect_exit 2 mpirun -n 1 smp-run smaller.yaml --data other.txt --checkpoint kept --resume --steps 12
expect_match err 'the plan has a global batch of 2, the run that is resumed had 4: .*--resume-changed$'
expect_exit 0 mpirun -n 1 smp-run smaller.yaml --data other.txt --checkpoint kept --resume --resume-changed --steps 12
expect_match err '^smp-run: global batch 2, the run that is resumed had 4$'
expect_exit 2 smp-run one.yaml --data text.txt --checkpoint kept --resume-changed
expect_match err '^smp-run: --resume-changed needs --resume$'
finish

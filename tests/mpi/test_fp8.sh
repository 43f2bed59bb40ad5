#!/usr/bin/env bash
# Training in fp8 on the CPU: the same bits for every split and any scale of the loss, losses near
# those of bf16, steps that are not finite change nothing; refused where the processor has no bf16.
# shellcheck source=training.sh
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"
model=$tiny

# trained NAME PRECISION RANKS STAGES DDP PIPELINE CHUNKS MICROBATCHES RECOMPUTE [train's options...]
trained() {
    plan "$1.yaml" "$model" "$3" "$4" "$5" "$6" "$7" "$8" 2 "$9" --gradient-blocks 2 --precision "$2"
    train "$1.yaml" "$3" "$1" "${@:10}"
    sort -u -o "$1.weights" "$1.weights"
    expect_equal "$1: hashes of replicas" "$(wc -l <"$1.weights" | tr -d ' ')" 1
}

plan one.yaml "$model" 1 1 1 1f1b 1 4 2 none --precision fp8
expect_match one.yaml '^execution: \{device: cpu, precision: fp8\}$'
ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI expect_bad 'fp8 on the CPU: this processor has neither' \
    smp-run one.yaml --data text.txt --steps 1
run mpirun -n 1 smp-run one.yaml --data text.txt --steps 1
if grep -q 'this processor has neither' err; then
    echo "skipped: this processor has no bf16"
    exit 77
fi

trained half bf16 1 1 1 1f1b 1 4 none
trained one fp8 1 1 1 1f1b 1 4 none
expect_equal "fp8 is not bf16" "$(cmp -s one.loss half.loss || echo differs)" differs
# by at most 0.5 %; 0.07 % were measured
expect_equal "losses beside bf16" "$(paste one.loss half.loss |
    awk '{ d = $1 / $2 - 1; if (d * d > 0.005 ^ 2) print } END { print NR }')" "$steps"
trained way fp8 2 2 1 1f1b 1 4 all
same way one
trained way fp8 2 1 2 1f1b 1 2 none
same way one
trained way fp8 2 2 1 interleaved 2 4 none --loss-scale 4096
same way one

# Weights that no number has: what is made of them is none either, and no step counts.
expect_exit 0 smp-run one.yaml --data text.txt --json --lr 1e6 --weight-decay 1000 --steps 20 --max-skipped 0
expect_match out '"skipped": [1-9]'
finish

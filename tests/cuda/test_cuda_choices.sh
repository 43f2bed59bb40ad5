#!/usr/bin/env bash
# Attention by cuDNN or by the tiled kernels, on emulated GPUs with a cuDNN that is good or bad: all
# ranks take one way, whichever rank has the reason, and so have the bits of one rank; why is said.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
write_text text.txt 20000
export SMP_EMULATE_PROTECT=0

sed -e 's/^let: .*/let: {T: 12, d: 32, heads: 2, layers: 2, vocab: 128}/' "$SMP_EXAMPLES/gpt-tiny.yaml" >model.yaml
for stages in 1 2; do
    expect_exit 0 smp-partition model.yaml --cluster "$SMP_EXAMPLES/cluster-h200.yaml" --device cuda \
        --precision bf16 -n "$stages" --stages "$stages" --ddp 1 --chunks 1 --pipeline simple --microbatches 2 \
        --microbatch-size 2 -o "$stages.yaml"
done
options=(--device cuda --share-gpus --data text.txt --steps 3 --lr 0.003 --seed 5 --json --checksum)

# weights NAME CUDNN...: of a job with a rank for each cuDNN.
weights() {
    local name=$1 job=() ranks=$(($# - 1)) dnn
    shift
    for dnn in "$@"; do
        job+=(: -n 1 env "SMP_EMULATE_DNN=$dnn" smp-run-emulated "$ranks.yaml" "${options[@]}")
    done
    expect_exit 0 mpirun "${job[@]:1}"
    sed -nE 's/.*"weights": "([0-9a-f]+)".*/\1/p' out | sort -u >"$name.weights"
    expect_equal "$name: sums of weights" "$(wc -l <"$name.weights" | tr -d ' ')" 1
    cp err "$name.err"
}
same() {
    expect_equal "weights of $1 and $2" "$(cat "$1.weights")" "$(cat "$2.weights")"
}

SMP_ATTENTION=tiled weights tiled right
weights cudnn right
[ "$(cat tiled.weights)" != "$(cat cudnn.weights)" ] || fail "cuDNN was not used"
expect_no_match cudnn.err 'attention'
weights both right right
same both cudnn

weights absent ''
same absent tiled
weights wrong wrong
same wrong tiled
expect_match wrong.err 'device cuda .*\[attention, bf16, 2 x 2/2 heads of 16, 12 causal 12, .*: its results are .* times what is allowed'

weights one-wrong right wrong
same one-wrong tiled
expect_match one-wrong.err 'its results are .* times what is allowed'
weights one-fails fails right
same one-fails tiled
expect_match one-fails.err 'attention, .*: cudnnBackendExecute: it was told to fail'
weights one-without right no-plan
same one-without tiled
expect_match one-without.err 'attention, .*: cuDNN has no plan for it'

# Who insists on it is told.
expect_exit 1 env SMP_ATTENTION=cudnn SMP_EMULATE_DNN=wrong smp-run-emulated 1.yaml "${options[@]}"
expect_match err 'attention, .*: none of 1 ways to compute it is left: its results are'
finish

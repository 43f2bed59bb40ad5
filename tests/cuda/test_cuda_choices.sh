#!/usr/bin/env bash
# Attention by cuDNN or by the tiled kernels, on emulated GPUs with a cuDNN that is good or bad: all
# ranks take one way, whichever rank has the reason, and so have the bits of one rank; why is said.
# Backward is cuDNN's where a profile has found that faster, and the plan its workspace; so is each call
# of a convolution.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
limit_s=180 # a profile on emulated GPUs
write_text text.txt 20000
export SMP_EMULATE_PROTECT=0

sed -e 's/^let: .*/let: {T: 12, d: 32, heads: 2, layers: 2, vocab: 128}/' "$SMP_EXAMPLES/gpt-tiny.yaml" >model.yaml
plan() { # PREFIX [options]: of one rank and of two
    local stages
    for stages in 1 2; do
        expect_exit 0 smp-partition model.yaml --cluster "$SMP_EXAMPLES/cluster-h200.yaml" --device cuda \
            --precision bf16 -n "$stages" --stages "$stages" --ddp 1 --chunks 1 --pipeline simple --microbatches 2 \
            --microbatch-size 2 -o "$1$stages.yaml" "${@:2}"
    done
}
plan ''
plans=
options=(--device cuda --share-gpus --data text.txt --steps 3 --lr 0.003 --seed 5 --json --checksum)

# weights NAME CUDNN...: of a job with a rank for each cuDNN.
weights() {
    local name=$1 job=() ranks=$(($# - 1)) dnn
    shift
    for dnn in "$@"; do
        job+=(: -n 1 env "SMP_EMULATE_DNN=$dnn" smp-run-emulated "$plans$ranks.yaml" "${options[@]}")
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

# Backward by cuDNN is measured beside ours: forward and backward are two choices.
SMP_EMULATE_DNN=right expect_exit 0 smp-profile-emulated model.yaml --device cuda --dtype bf16 \
    --microbatch-size 2 -o profile.yaml
backward='attention backward, bf16, 2 x 2/2 heads of 16, 12 causal 12, steps 96 96 96, 0.25'
expect_match profile.yaml "product: \"$backward\", algorithm: \"cuDNN 9.19.0\", us: [0-9.]+, first_us: [0-9.]+}$"
expect_match profile.yaml '^launch: \{kernel_us: [0-9.]+, graph_us: [0-9.]+, graph_kernel_us: [0-9.]+\}$'
expect_match profile.yaml 'name: "h0.attn", .*, workspace_bytes: 133632,' # 4 x 128 x 128 and sums
sed 's/cuDNN 9\.19\.0/tiled/' profile.yaml >tiled.yaml
plan measured --profile profile.yaml
plan ours --profile tiled.yaml
peak() {
    sed -nE 's/.*peak_bytes: \[?([0-9]+).*/\1/p' "$1"
}
[ "$(peak measured1.yaml)" -gt "$(peak ours1.yaml)" ] || fail "the workspace of cuDNN is not planned"
# A plan that is written runs with its own products, whatever another profile says of them.
expect_exit 0 smp-partition check measured1.yaml --profile tiled.yaml
expect_exit 0 smp-partition check ours1.yaml --profile profile.yaml
for stages in 1 2; do
    expect_match measured$stages.yaml "product: \"?$backward\"?, algorithm: \"?cuDNN 9.19.0"
    sed 's/cuDNN 9\.19\.0/cuDNN 9.18.0/' measured$stages.yaml >older$stages.yaml
done
# Where only ours fits it is ours, as it takes, and that is said.
sed '/^ *host:/d' "$SMP_EXAMPLES/cluster-h200.yaml" >no-host.yaml # nothing leaves the device
tight=$((($(peak measured1.yaml) + $(peak ours1.yaml)) / 2))
expect_exit 0 smp-partition model.yaml --cluster no-host.yaml --device cuda --precision bf16 -n 1 --stages 1 --ddp 1 \
    --chunks 1 --pipeline simple --microbatches 2 --microbatch-size 2 --recompute none \
    --profile profile.yaml --memory $tight --explain -o tight.yaml
expect_match out '^products: 1 by our kernels \(tiled\), not by the library .*: nothing fits with its workspace$'
expect_match tight.yaml "product: \"?$backward\"?, algorithm: tiled"
expect_equal 'as small as ours' "$(peak tight.yaml)" "$(peak ours1.yaml)"
step() {
    grep -oE '\bstep_us: [0-9.]+' "$1" | head -1 | cut -d' ' -f2
}
expect_equal 'slower' "$(awk -v a="$(step tight.yaml)" -v b="$(step measured1.yaml)" 'BEGIN { print (a > b) }')" 1
plans=measured
weights back right
expect_match err ' matrix products by cuBLASLt 13\.0\.0, ([0-9]+) as the plan says$'
weights back-both right right
same back-both back
SMP_ATTENTION=cudnn weights back-asked right
same back-asked back
plans=ours
weights ours right
weights ours-back-bad back-wrong
same ours-back-bad ours
[ "$(cat ours.weights)" != "$(cat back.weights)" ] || fail "cuDNN was not used backward"

# What a checkpoint was made by is said where another way is taken, forward and backward; not else, nor of one that does
# not say.
goes_on() { # PLAN CUDNN FROM STEPS: a job that goes on with the states of FROM, whose lines of products are in `said`
    rm -rf resumed
    cp -r "$3" resumed
    expect_exit 0 env SMP_EMULATE_DNN="$2" smp-run-emulated "$1.yaml" --device cuda --data text.txt --checkpoint resumed \
        --resume --steps "$4"
    grep 'the run that is resumed had' err >said || true
}
forward=${backward/attention backward/attention}
expect_exit 0 env SMP_EMULATE_DNN=right smp-run-emulated measured1.yaml --device cuda --data text.txt --steps 1 \
    --checkpoint by-dnn
expect_exit 0 env SMP_EMULATE_DNN=right smp-run-emulated ours1.yaml --device cuda --data text.txt --steps 1 \
    --checkpoint by-ours
goes_on measured1 right by-dnn 2
expect_equal "nothing is other" "$(cat said)" ''
goes_on measured1 back-wrong by-dnn 2
expect_equal "backward by ours" "$(cat said)" \
    "smp-run: $backward: tiled, the run that is resumed had cuDNN 9.19.0: bits will differ"
goes_on measured1 right by-ours 2
expect_equal "backward by cuDNN" "$(cat said)" \
    "smp-run: $backward: cuDNN 9.19.0, the run that is resumed had tiled: bits will differ"
goes_on measured1 '' by-dnn 2
expect_equal "both by ours" "$(cat said)" \
    "smp-run: $forward: tiled, the run that is resumed had cuDNN 9.19.0 (the first of 2 such products): bits will differ"
expect_exit 0 smp-run-emulated ours1.yaml --device cpu --data text.txt --steps 1 --checkpoint by-cpu
goes_on measured1 right by-cpu 2
expect_equal "a state that does not say" "$(grep -c attention said)" 0

# One rank refuses it, for whatever reason: all take ours, and forward is not concerned.
plans=measured
for reason in wrong tail fails no-plan large; do
    weights "back-$reason" right "back-$reason"
    same "back-$reason" ours
done
expect_match back-wrong.err "\[$backward: its results are .* times what is allowed from ours"
expect_match back-wrong.err "1 not by the first algorithm, which was refused \($backward: its results are "
expect_match back-tail.err "\[$backward: its results are .* times what is allowed from ours"
expect_match back-fails.err "\[$backward: cudnnBackendExecute: it was told to fail backward"
expect_match back-no-plan.err "\[$backward: cuDNN has no plan for it"
expect_match back-large.err "\[$backward: cuDNN has no plan for it"
plans=older
weights older right
same older ours
expect_match older.err "refused \($backward: another version of it is here\)"

# It is not measured where the operator's buffers leave no room for its workspace, though half of the memory would.
cat >small.yaml <<'END'
smp: 1
name: small
inputs: {x: {dtype: float32, shape: [16, 8]}, y: {dtype: float32, shape: [16, 8]}}
ops:
  - {op: linear, name: qkv, in: x, out: h, features: 24}
  - {op: attention, name: attn, in: h, out: h, heads: 1, causal: true}
  - {op: mse, name: loss, in: [h, y], out: loss}
loss: loss
END
small() { # BYTES beside what products work in, N: attentions by cuDNN
    SMP_EMULATE_MEMORY=$(((32 << 20) + $1)) SMP_EMULATE_DNN=right expect_exit 0 smp-profile-emulated small.yaml \
        --device cuda --dtype bf16 --microbatch-size 4 -o small-profile.yaml
    expect_equal "by cuDNN in $1 bytes" "$(grep -c '"cuDNN 9.19.0"' small-profile.yaml)" "$2"
}
small 535000 0
small 900000 1

# Who insists on it is told.
expect_exit 1 env SMP_ATTENTION=cudnn SMP_EMULATE_DNN=back-wrong smp-run-emulated measured1.yaml "${options[@]}"
expect_match err "product $backward: cuDNN refuses algorithm 1 of 1 .*: its results are "
expect_exit 1 env SMP_ATTENTION=cudnn SMP_EMULATE_DNN=wrong smp-run-emulated 1.yaml "${options[@]}"
expect_match err 'attention, .*: none of 1 ways to compute it is left: its results are'

# Convolutions, of one shape twice, of images that are turned on one side.
cat >model.yaml <<'END'
smp: 1
name: convolutions
inputs:
  tokens: {dtype: int32, shape: [16]}
  targets: {dtype: int32, shape: [16]}
ops:
  - {op: embedding, name: wte, in: tokens, out: x, rows: 128, features: 8}
  - {op: reshape, name: image, in: x, out: x, shape: [8, 4, 4]}
  - {op: conv2d, name: a, in: x, out: x, channels: 8, kernel: 3, padding: 1}
  - {op: conv2d, name: b, in: x, out: x, channels: 8, kernel: 3, padding: 1}
  - {op: reshape, name: rows, in: x, out: x, shape: [16, 8]}
  - {op: linear, name: head, in: x, out: logits, features: 128}
  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}
loss: loss
END
SMP_EMULATE_DNN=right expect_exit 0 smp-profile-emulated model.yaml --device cuda --dtype bf16 \
    --microbatch-size 2 -o profile.yaml
sizes='bf16, 2 x 8 4x4, 8 of 3x3/1'
for call in 'conv2d' 'conv2d input gradient' 'conv2d weight gradient'; do
    expect_match profile.yaml "product: \"$call, $sizes.*, algorithm: \"?(unfold|cuDNN 9.19.0)\"?, us: [0-9]"
done
sed '/conv2d/s/cuDNN 9\.19\.0/unfold/' profile.yaml >unfold.yaml
sed '/conv2d/s/unfold/cuDNN 9.19.0/' profile.yaml >cudnn.yaml
plan conv-ours --profile unfold.yaml
plan conv-dnn --profile cudnn.yaml
[ "$(peak conv-dnn1.yaml)" -gt "$(peak conv-ours1.yaml)" ] || fail "the workspace of cuDNN is not planned"
plans=conv-ours
weights conv-ours right
plans=conv-dnn
weights conv-dnn right
[ "$(cat conv-ours.weights)" != "$(cat conv-dnn.weights)" ] || fail "cuDNN was not used"
expect_match err ' matrix products by cuBLASLt 13\.0\.0, ([0-9]+) as the plan says$'
weights conv-both right right
same conv-both conv-dnn
for reason in wrong fails no-plan; do
    weights "conv-$reason" right "conv-$reason"
    same "conv-$reason" conv-ours
done
expect_match conv-wrong.err "\[conv2d, $sizes.*: its results are .* times what is allowed from ours"
expect_match conv-fails.err "\[conv2d, $sizes.*: cudnnBackendExecute: it was told to fail"
expect_match conv-no-plan.err "\[conv2d, $sizes.*: cuDNN has no plan for it"
finish

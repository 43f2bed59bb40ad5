#!/usr/bin/env bash
# Optimizers, schedules of the learning rate and settings of single weights against PyTorch's: ten
# steps of gpt-tiny.yaml agree to 2e-6 (Lion: 2e-5) (tests/data/make_torch_updates.py wrote them). And what norms
# of whole weights are needed for is the same to the last bit however the weights lie: stages,
# replicas, shards, a resumed run; devices that compute together agree to rounding. SMP_TEST_LONG: that for a larger
# model, in more ways.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
data=$SMP_SOURCE_DIR/tests/data
model=$SMP_EXAMPLES/gpt-tiny.yaml
steps=10
# inputs LENGTH: of samples
inputs() {
    rm -rf arrays
    mkdir arrays
    run python3 "$data/model_inputs.py" arrays $((steps * 4)) "tokens:index-256:$1" "targets:class-256:$1"
}
inputs 64
sources=(--data tokens=arrays/tokens.npy --data targets=arrays/targets.npy --no-shuffle --json)

plan() { # file devices stages ddp size microbatches [option...]
    expect_exit 0 smp-partition "$model" -n "$2" --stages "$3" --ddp "$4" --microbatch-size "$5" \
        --microbatches "$6" -o "$1" "${@:7}"
}

# train PLAN RANKS NAME option...: losses in NAME.loss, the weights' hash in NAME.weights
train() {
    expect_exit 0 mpirun -n "$2" smp-run "$1" "${sources[@]}" --checksum "${@:4}"
    losses out | awk '{ print $2 }' >"$3.loss"
    sed -nE 's/.*"weights": "([0-9a-f]+)".*/\1/p' out | sort -u >"$3.weights"
}

# close EXPECTED GOT [MOST]: largest relative difference of two files of losses, and whether it is small.
close() {
    paste "$1" "$2" | awk -v most="${3:-2e-6}" 'NF != 2 { m = 1 } { d = ($1 - $2) / $1; d = d < 0 ? -d : d; if (d > m) m = d }
        END { printf "%.1e %d", m, (NR > 0 && m <= most) }'
}

plan one.yaml 1 1 1 2 2
cases=0
while IFS='|' read -r options expected; do
    declare -a words="($options)" # quoted patterns
    tr ' ' '\n' <<<"$expected" | grep . >torch.loss
    train one.yaml 1 got --steps "$steps" "${words[@]}"
    # Lion steps by a sign, which roundings turn where there is next to nothing; they differ by processor.
    most=2e-6
    [[ $options != *lion* ]] || most=2e-5
    worst=$(close torch.loss got.loss "$most")
    expect_equal "$options: largest difference ${worst% *} at most $most" "${worst#* }" 1
    echo "$options: ${worst% *}"
    cases=$((cases + 1))
done < <(grep -v '^#' "$data/torch_updates.txt")
expect_equal "cases" "$cases" 10

[ -n "${SMP_TEST_LONG-}" ] || {
    sed 's/^let: .*/let: {T: 32, d: 32, heads: 4, layers: 2, vocab: 256}/' "$model" >small.yaml
    model=small.yaml
    steps=5
    inputs 32
}
plan whole.yaml 1 1 1 1 4 --gradient-blocks 4
plan two.yaml 2 2 1 1 4 --gradient-blocks 4
plan four.yaml 4 4 1 1 4 --gradient-blocks 4 --pipeline zero-bubble
plan replicas.yaml 2 1 2 1 2 --gradient-blocks 4
plan shards.yaml 4 1 4 1 1 --shard 2 --shard-what weights
plan both.yaml 4 2 2 1 2 --gradient-blocks 4 --shard 2 --shard-what gradients
# One splitting, with the table that is also the last product's weight in it.
split=(--tensor 2 --split '*:whole')
for rule in 'h*.attn.qkv:columns/3' 'h*.attn:packed heads' 'h*.proj:rows' 'h*.mlp.fc:columns' \
    'h*.gelu:elements@1' wte:rows lm_head:columns loss:classes; do split+=(--split "$rule"); done
plan tensor.yaml 4 2 1 1 4 --gradient-blocks 4 "${split[@]}"
plan tensor-shards.yaml 4 1 2 1 2 --gradient-blocks 4 --shard 2 "${split[@]}"
ways=(four:4 shards:4 both:4)
[ -z "${SMP_TEST_LONG-}" ] || ways+=(two:2 replicas:2)
for optimizer in lamb lars novograd; do
    options=(--optimizer "$optimizer" --lr 0.02 --trust-coefficient 0.5 --steps "$steps"
        --weights-like 'h1.*:lr=0.5')
    train whole.yaml 1 whole "${options[@]}"
    expect_equal "$optimizer: different losses" "$(sort -u whole.loss | wc -l | tr -d ' ')" "$steps"
    for at in "${ways[@]}"; do
        train "${at%:*}.yaml" "${at#*:}" got "${options[@]}"
        expect_equal "$optimizer, $at: losses" "$(cat got.loss)" "$(cat whole.loss)"
        expect_equal "$optimizer, $at: weights" "$(cat got.weights)" "$(cat whole.weights)"
    done
    ways=(both:4)
    [ "$optimizer" != lars ] || [ -n "${SMP_TEST_LONG-}" ] || continue
    train tensor.yaml 4 tensor "${options[@]}"
    expect_equal "$optimizer: two devices for every operator" \
        "$(close whole.loss tensor.loss | cut -d' ' -f2)" 1
    [ "$optimizer" = lamb ] || [ -n "${SMP_TEST_LONG-}" ] || continue
    train tensor-shards.yaml 4 got "${options[@]}"
    expect_equal "$optimizer: parts in shards" "$(cat got.weights)" "$(cat tensor.weights)"
done

# Stopped under one plan, resumed under another.
rm -rf saved
train two.yaml 2 first "${options[@]}" --steps 3 --checkpoint saved
train both.yaml 4 second "${options[@]}" --checkpoint saved --resume
expect_equal "resumed: losses" "$(cat first.loss second.loss)" "$(cat whole.loss)"
expect_equal "resumed: weights" "$(cat second.weights)" "$(cat whole.weights)"
expect_exit 2 mpirun -n 1 smp-run whole.yaml "${sources[@]}" --optimizer lamb --checkpoint saved \
    --resume
expect_match err 'has the state of optimizer novograd, not of lamb'

# Bad settings: said once, before the first step.
refuse() { # pattern option...
    expect_exit 2 mpirun -n 2 smp-run two.yaml "${sources[@]}" "${@:2}"
    expect_match err "$1"
    expect_equal "${*:2}: messages" "$(grep -c '^smp-run: ' err)" 1
    expect_equal "${*:2}: steps" "$(losses out | wc -l | tr -d ' ')" 0
}
refuse "weights-like:1:1: 'wte.wait:lr=1': no trained weight .* nearest is 'wte.weight'" \
    --weights-like 'wte.wait:lr=1'
refuse "weights-like:1:3: '\*:momentun=0': got key 'momentun', nearest is 'momentum'" \
    --optimizer sgd --weights-like '*:momentun=0'
refuse "weights-like:1:6: '\*:lr=x': lr: got 'x', expected a number" --weights-like '*:lr=x'
refuse "lr-schedule: got 'cosinus', expected constant, linear, cosine, inverse-sqrt, step or exponential" \
    --lr-schedule cosinus
refuse "lr-schedule 'linear': got no end" --lr-schedule linear
refuse "nesterov: optimizer 'lamb' has no such momentum" --optimizer lamb --nesterov
finish

#!/usr/bin/env bash
# Training in bf16 and fp16 on the CPU: the same bits for every split, losses near those of fp32, a
# profile to plan with; bf16 is refused where the processor does not have it.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
steps=4
long=12 # steps that come close to fp32
models=.
mkdir plugin
cp "$SMP_EXAMPLES/plugin/snake.yaml" plugin
sed 's/layers: 4/layers: 2/' "$SMP_EXAMPLES/gpt-tiny.yaml" >gpt-tiny.yaml
sed 's/T: 64, d: 128/T: 16, d: 64/' gpt-tiny.yaml >measured.yaml
sed 's/c: \[32, 64, 128\]/c: [16, 32, 64]/' "$SMP_EXAMPLES/resnet-small.yaml" >resnet-small.yaml
if [ -n "${SMP_TEST_LONG-}" ]; then
    steps=6
    long=24
    models=$SMP_EXAMPLES
    cp "$SMP_EXAMPLES/gpt-tiny.yaml" measured.yaml
fi

# train MODEL PRECISION STAGES SCHEDULE CHUNKS RECOMPUTE NAME [OPTION...]: losses and a hash in NAME
train() {
    expect_exit 0 smp-partition "$1" --precision "$2" -n "$3" --stages "$3" --pipeline "$4" --chunks "$5" \
        --recompute "$6" --microbatch-size 4 --microbatches 4 "${@:8}" -o plan.yaml
    expect_exit 0 mpirun -n "$3" smp-run plan.yaml "${data[@]}" --no-shuffle --steps "$steps" \
        --lr 1e-3 --log-every 1 --json --checksum "${@:8}"
    losses out | awk '{ print $2 }' >results
    sed -nE 's/.*"weights": "([0-9a-f]+)".*/\1/p' out >>results
    expect_equal "$7: losses and a hash" "$(wc -l <results)" $((steps + 1))
    mv results "$7"
}

python3 "$SMP_SOURCE_DIR/tests/data/model_inputs.py" . 96 image:float:28x28 label:class-10: \
    tokens:index-256:64 targets:class-256:64 short:index-256:32 next:class-256:32
data=(--data tokens=tokens.npy --data targets=targets.npy)
for precision in bf16 fp16; do
    expect_exit 0 smp-partition "$SMP_EXAMPLES/gpt-tiny.yaml" --precision "$precision" -n 1 -o plan.yaml
    expect_match plan.yaml "^execution: \\{device: cpu, precision: $precision\\}\$"
done
precisions=(bf16 fp16)
expect_exit 0 smp-partition "$SMP_EXAMPLES/gpt-tiny.yaml" --precision bf16 -n 1 -o plan.yaml
ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI expect_bad 'bf16 on the CPU: this processor has neither' \
    smp-run plan.yaml "${data[@]}" --steps 1
run mpirun -n 1 smp-run plan.yaml "${data[@]}" --steps 1
if grep -q 'this processor has neither' err; then
    echo "without bf16, which this processor does not have"
    precisions=(fp16)
fi

# close FILE WIDE N SHARE: the first N lines differ by at most that share
close() {
    paste <(head -n "$3" "$1") <(head -n "$3" "$2") |
        awk -v share="$4" '{ d = ($1 - $2) / $2; if (d * d > share ^ 2) print } END { print NR }'
}

while read -r model splits inputs options; do
    [ -z "${SMP_TEST_LONG-}" ] || splits=2:1f1b:1:all,2:zero-bubble:2:none,4:interleaved:1:none
    data=()
    for input in ${inputs//,/ }; do
        data+=(--data "$input.npy")
    done
    # shellcheck disable=SC2086 # words
    train "$models/$model.yaml" fp32 1 1f1b 1 none wide $options
    for precision in "${precisions[@]}"; do
        # shellcheck disable=SC2086
        train "$models/$model.yaml" "$precision" 1 1f1b 1 none one $options
        for split in ${splits//,/ }; do
            # shellcheck disable=SC2086
            train "$models/$model.yaml" "$precision" ${split//:/ } split $options
            expect_equal "$model: one process and $split" "$(cmp one split && echo same)" same
        done
        expect_equal "$model: losses in $precision beside fp32" "$(close one wide "$steps" 0.02)" "$steps"
        expect_equal "$model: is in $precision" "$(cmp -s one wide || echo differs)" differs
    done
    [ "$model" != plugin/snake ] || continue
    expect_exit 0 smp-partition "$models/$model.yaml" -n 1 --microbatch-size 4 --microbatches 4 -o plan.yaml
    for precision in fp32 "${precisions[@]}"; do
        expect_exit 0 smp-run plan.yaml --precision "$precision" "${data[@]}" --steps "$long" --lr 3e-4 \
            --log-every 1 --json
        losses out | awk '{ print $2 }' >"$precision.long"
        expect_equal "$model: $long steps in $precision beside fp32" "$(close "$precision.long" fp32.long "$long" 0.02)" "$long"
        tail -n 6 "$precision.long" | awk '{ sum += $1 } END { print sum / NR }' >"$precision.end" # of the last pass
        expect_equal "$model: $precision gets where fp32 does" "$(close "$precision.end" fp32.end 1 0.01)" 1
    done
    expect_equal "$model: it learns" "$(sed -n 1p fp32.long | paste - fp32.end | awk '{ print ($2 < $1) }')" 1
done <<MODELS
gpt-tiny 2:1f1b:1:all,4:interleaved:1:none tokens=tokens,targets=targets
resnet-small 2:zero-bubble:2:none image=image,label=label
plugin/snake 2:1f1b:1:all tokens=short,targets=next --plugin $SMP_BIN_DIR/snake.so
MODELS

# A profile plans for its precision.
for precision in "${precisions[@]}"; do
    expect_exit 0 smp-profile measured.yaml --dtype "$precision" --microbatch-size 4 -o profile.yaml
    expect_match profile.yaml "^dtype: $precision\$"
    expect_exit 0 smp-partition measured.yaml --profile profile.yaml -n 2 -o plan.yaml
    expect_match plan.yaml "^execution: \\{device: cpu, precision: $precision\\}\$"
done
finish

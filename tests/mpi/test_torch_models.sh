#!/usr/bin/env bash
# Ten steps of whole models against PyTorch's, from the same weights on the same arrays: losses agree
# to 1e-5 (tests/data/make_torch_models.py wrote them). And the same promise as test_bit_identical.sh
# makes, for these models, behind a + with some weights frozen: stages, schedules, chunks and recomputation change neither a loss nor a bit
# of the weights, nor of the statistics that come with them.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
data=$SMP_SOURCE_DIR/tests/data
steps=10
models=0
# One of these for each model, in turn; with SMP_TEST_LONG all: stages:schedule:chunks:recompute.
splits=(2:1f1b:1:none 2:interleaved:2:all 1:interleaved:2:all 2:zero-bubble:2:none 4:gpipe:1:all
    4:zero-bubble:1:none 4:1f1b:1:all 4:interleaved:2:none)
turn=0
each=$([ -n "${SMP_TEST_LONG-}" ] && echo "${#splits[@]}" || echo 1)

# train STAGES SCHEDULE CHUNKS RECOMPUTE: losses in the file trained, the hash of the weights behind.
train() {
    expect_exit 0 smp-partition "$model" -n "$1" --stages "$1" --pipeline "$2" --chunks "$3" \
        --recompute "$4" --microbatch-size "$batch" --microbatches "$microbatches" "${freeze[@]}" \
        -o plan.yaml
    expect_exit 0 mpirun -n "$1" smp-run plan.yaml "${sources[@]}" --no-shuffle --json \
        --steps "$steps" --lr "$lr" --log-every 1 --checksum
    losses out | awk '{ print $2 }' >trained
    sed -nE 's/.*"weights": "([0-9a-f]+)".*/\1/p' out >>trained
    expect_equal "$path $*: losses and a hash" "$(wc -l <trained)" $((steps + 1))
}

while read -r path batch microbatches lr inputs expected; do
    samples=$((steps * batch * microbatches))
    model=$SMP_SOURCE_DIR/${path%+*}
    freeze=()
    [[ $path != *+* ]] || IFS=, read -ra patterns <<<"${path#*+}"
    [[ $path != *+* ]] || for pattern in "${patterns[@]}"; do freeze+=(--freeze "$pattern"); done
    IFS=, read -ra kinds <<<"$inputs"
    rm -rf arrays
    mkdir arrays
    run python3 "$data/model_inputs.py" arrays "$samples" "${kinds[@]}"
    sources=()
    for kind in "${kinds[@]}"; do
        sources+=(--data "${kind%%:*}=arrays/${kind%%:*}.npy")
    done
    train 1 1f1b 1 none
    mv trained whole
    worst=$(tr ' ' '\n' <<<"$expected" | paste - <(head -n "$steps" whole) | awk '
        { d = ($1 - $2) / $1; d = d < 0 ? -d : d; if (d > m) m = d }
        END { printf "%.1e %d", m, m <= 1e-5 }')
    expect_equal "$path: largest difference ${worst% *} at most 1e-5" "${worst#* }" 1
    echo "$path: ${worst% *}"
    for ((i = 0; i < each; i++)); do
        split=${splits[turn++ % ${#splits[@]}]}
        # shellcheck disable=SC2086 # words
        train ${split//:/ }
        expect_equal "$path: one process and $split" "$(cmp trained whole && echo same)" same
    done
    models=$((models + 1))
done < <(grep -v '^#' "$data/torch_models.txt")
expect_equal "models" "$([ "$models" -ge 13 ] && echo enough)" enough
finish

#!/usr/bin/env bash
# Ten steps of whole models against PyTorch's, from the same weights on the same arrays: losses agree
# to 1e-5 (tests/data/make_torch_models.py wrote them). With one process and, which must give the
# same bits, with two stages.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
data=$SMP_SOURCE_DIR/tests/data
steps=10
models=0
while read -r path batch microbatches lr inputs expected; do
    samples=$((steps * batch * microbatches))
    model=$SMP_SOURCE_DIR/$path
    IFS=, read -ra kinds <<<"$inputs"
    rm -rf arrays
    mkdir arrays
    run python3 "$data/model_inputs.py" arrays "$samples" "${kinds[@]}"
    sources=()
    for kind in "${kinds[@]}"; do
        sources+=(--data "${kind%%:*}=arrays/${kind%%:*}.npy")
    done
    for ranks in 1 2; do
        expect_exit 0 smp-partition "$model" -n "$ranks" --stages "$ranks" --microbatch-size "$batch" \
            --microbatches "$microbatches" -o plan.yaml
        expect_exit 0 mpirun -n "$ranks" smp-run plan.yaml "${sources[@]}" --no-shuffle --json \
            --steps "$steps" --lr "$lr" --log-every 1
        losses out | awk '{ print $2 }' >"losses-$ranks"
        expect_equal "$path: steps on $ranks ranks" "$(wc -l <"losses-$ranks")" "$steps"
    done
    expect_equal "$path: losses of two stages" "$(cmp losses-1 losses-2 && echo same)" same
    worst=$(tr ' ' '\n' <<<"$expected" | paste - losses-1 | awk '
        { d = ($1 - $2) / $1; d = d < 0 ? -d : d; if (d > m) m = d }
        END { printf "%.1e %d", m, m <= 1e-5 }')
    expect_equal "$path: largest difference ${worst% *} at most 1e-5" "${worst#* }" 1
    echo "$path: ${worst% *}"
    models=$((models + 1))
done < <(grep -v '^#' "$data/torch_models.txt")
expect_equal "models" "$([ "$models" -ge 10 ] && echo enough)" enough
finish

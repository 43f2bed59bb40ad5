#!/usr/bin/env bash
# Whole models whose ops groups of devices compute together, the splitting chosen by the planner: ten steps of two
# devices, or four of four, lose what PyTorch says to 1e-5, or one device where it says nothing.
# SMP_TEST_LONG: 20 steps of 1, 2 and 4 devices of every model.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
data=$SMP_SOURCE_DIR/tests/data
limit_s=120
steps=$([ -n "${SMP_TEST_LONG-}" ] && echo 20 || echo 10)
models=0

# train NAME TENSOR LR [STEPS]: losses in NAME
train() {
    local -a rules=()
    # Too small for the planner to split anything.
    [ "$2" = 1 ] || [ "${path##*/}" != mlp.yaml ] || rules=(--split fc_1:columns --split 'act_?:elements@0' --split fc_2:rows)
    expect_exit 0 smp-partition "$model" -n "$2" --stages 1 --ddp 1 --tensor "$2" --microbatch-size "$batch" \
        --microbatches "$microbatches" --effort quick -o plan.yaml "${rules[@]}" "${freeze[@]}"
    expect_exit 0 mpirun -n "$2" smp-run plan.yaml "${sources[@]}" --no-shuffle --json --steps "${4:-$steps}" \
        --lr "$3" --log-every 1
    losses out | awk '{ print $2 }' >"$1"
    expect_equal "$path tensor $2: losses" "$(wc -l <"$1" | tr -d ' ')" "${4:-$steps}"
}

# worst A B: the largest relative difference of the lines that both have.
worst() {
    paste "$1" "$2" | awk 'NF == 2 { d = ($1 - $2) / $1; d = d < 0 ? -d : d; if (!(d <= m)) m = d }
        END { printf "%.1e", m }'
}

# close WHAT DIFFERENCE
close() {
    checks=$((checks + 1))
    awk -v d="$2" 'BEGIN { exit !(d ~ /^[0-9]/ && d <= 1e-5) }' || fail "$path $1: losses differ by $2"
}

# compare TENSOR STEPS REFERENCE...
compare() {
    local reference
    train several "$1" "$lr" "$2"
    split=$(grep -c '^  - {op: ' plan.yaml || true)
    for reference in "${@:3}"; do
        [ "$(head -n 1 "$reference")" ] || continue
        expect_equal "$path tensor $1, $reference: losses" \
            "$(paste "$reference" several | awk 'NF == 2' | wc -l | tr -d ' ')" "$(least "$2" "$(wc -l <"$reference")")"
        close "tensor $1 and $reference" "$(worst "$reference" several)"
        text+=", $split ops split, $1 devices and $reference $(worst "$reference" several)"
    done
}

expect_split() {
    expect_equal "$path: ops are split" "$([ "$split" -ge 2 ] && echo some)" some
}

least() {
    echo $(($1 < $2 ? $1 : $2))
}

while read -r path batch microbatches lr inputs expected; do
    model=$SMP_SOURCE_DIR/${path%+*} # behind a +: weights that are frozen
    freeze=()
    [[ $path != *+* ]] || IFS=, read -ra patterns <<<"${path#*+}"
    [[ $path != *+* ]] || for pattern in "${patterns[@]}"; do freeze+=(--freeze "$pattern"); done
    IFS=, read -ra kinds <<<"$inputs"
    rm -rf arrays
    mkdir arrays
    run python3 "$data/model_inputs.py" arrays $((steps * batch * microbatches)) "${kinds[@]}"
    sources=()
    for kind in "${kinds[@]}"; do
        sources+=(--data "${kind%%:*}=arrays/${kind%%:*}.npy")
    done
    tr ' ' '\n' <<<"$expected" >torch
    reference=torch
    if [ -z "$expected" ] || [ -n "${SMP_TEST_LONG-}" ]; then
        reference=one
        train one 1 "$lr"
        train still 1 0
        expect_equal "$path: training matters" "$(worst one still | awk '{ print ($1 > 1e-4) }')" 1
    fi
    text=$path
    if [ -n "${SMP_TEST_LONG-}" ]; then
        compare 2 "$steps" torch one
        expect_split
        compare 4 "$steps" one
    else
        case $path in # more of them are not split by four
        */llama-tiny.yaml | */t5-small.yaml | */resnet-small.yaml | */moe-tiny.yaml) compare 4 4 "$reference" ;;
        *) compare 2 "$steps" "$reference" ;;
        esac
        expect_split
    fi
    echo "$text"
    models=$((models + 1))
done < <(
    grep -v '^#' "$data/torch_models.txt"
    echo examples/moe-tiny.yaml 2 2 1e-3 tokens:index-256:64,targets:class-256:64
)
expect_equal "models" "$([ "$models" -ge 12 ] && echo enough)" enough
finish

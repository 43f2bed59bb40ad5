# Sourced by scripts that train models cut in many ways and compare every bit: plans, runs of 20 steps
# on a made-up text, losses and hashes of weights.
# shellcheck shell=bash
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
limit_s=120
steps=20
write_text text.txt 60000

plan() { # file model devices stages ddp pipeline chunks microbatches size [recompute] [option...]
    expect_exit 0 smp-partition "$2" -n "$3" --stages "$4" --ddp "$5" --pipeline "$6" --chunks "$7" \
        --microbatches "$8" --microbatch-size "$9" --recompute "${10:-none}" -o "$1" "${@:11}"
}

# train PLAN RANKS NAME: losses in NAME.loss, weight hashes in NAME.weights.
train() {
    expect_exit 0 mpirun -n "$2" smp-run "$1" --data text.txt --steps "$steps" --json --checksum \
        --lr 0.003 --warmup 5 --decay-steps 20 --clip 1 --seed 11
    grep -E '^\{' out >"$3.json" || true
    expect_json --lines "$3.json"
    sed -nE 's/.*"loss": ?([^,}]*).*/\1/p' "$3.json" >"$3.loss"
    sed -nE 's/.*"replica": [0-9]+, "weights": "([0-9a-f]+)".*/\1/p' out >"$3.weights"
    expect_equal "$3: steps" "$(wc -l <"$3.loss" | tr -d ' ')" "$steps"
    # A loss that stands still would make every comparison below worthless.
    expect_equal "$3: different losses" "$(sort -u "$3.loss" | wc -l | tr -d ' ')" "$steps"
}

same() { # name reference
    expect_equal "$1 against $2: losses" "$(cmp "$1.loss" "$2.loss" && echo same)" same
    expect_equal "$1 against $2: weights" "$(cat "$1.weights")" "$(cat "$2.weights")"
    [ -s "$1.weights" ] || fail "$1: no weight hash"
}

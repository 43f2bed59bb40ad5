#!/usr/bin/env bash
# Checkpoints, exports and checksums of jobs with --tensor: whatever one plan saved every other takes, whether
# groups of devices compute its operators together or not, and the weights are the same to the last bit.
# SMP_TEST_LONG: a larger model, and every plan loads what every other saved; else one device is either side.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
model=$SMP_EXAMPLES/gpt-tiny.yaml
[ -n "${SMP_TEST_LONG-}" ] || {
    sed 's/^let: .*/let: {T: 32, d: 32, heads: 4, layers: 2, vocab: 256}/' "$model" >small.yaml
    model=small.yaml
}
layers=$(sed -nE 's/^let: .*layers: ([0-9]+).*/\1/p' "$model")
limit_s=120
write_text text.txt 20000

plan() { # file devices tensor stages ddp pipeline chunks microbatches [option...]
    expect_exit 0 smp-partition "$model" -n "$2" --tensor "$3" --stages "$4" --ddp "$5" --pipeline "$6" --chunks "$7" \
        --microbatches "$8" --microbatch-size 1 --gradient-blocks 4 -o "$1.yaml" "${@:9}"
    [ "$3" = 1 ] || expect_match "$1.yaml" "tensor: $3,"
}

run_plan() { # name ranks [option...]
    expect_exit 0 mpirun -n "$2" smp-run "$1.yaml" --json --checksum "${@:3}"
    sed -nE 's/.*"weights": "([0-9a-f]+)".*/\1/p' out | sort -u >"$1.weights"
    sed -nE 's/.*"loss": ?([^,}]*).*/\1/p' out >"$1.loss"
    expect_equal "$1: different weights of replicas" "$(wc -l <"$1.weights" | tr -d ' ')" 1
}

columns=(--split '*.attn.qkv:columns/3' --split '*.attn:packed heads' --split '*.attn.proj:rows'
    --split '*.mlp.fc:columns' --split '*.mlp.gelu:elements@1' --split '*.mlp.proj:rows' --split 'wte:rows')
# Three stages with groups of their own sizes; the layer of the block in one of several devices is split.
different() { # file ranks replicas block sizes...
    {
        printf 'smp: 1\nsplit:\n'
        for rule in 'attn.qkv, as: columns/3' 'attn, as: packed heads' 'attn.proj, as: rows' 'mlp.fc, as: columns' \
            'mlp.gelu, as: elements@1' 'mlp.proj, as: rows'; do
            echo "  - {op: $4.$rule}"
        done
        printf 'stages:\n  - {ops: [wte..h0.res_2], tensor: %d}\n' "$5"
        printf '  - {ops: [h1.ln_1..h%d.res_2], tensor: %d}\n  - {ops: [ln_f..loss], tensor: %d}\n' \
            $((layers - 1)) "$6" "$7"
    } >"$1.sketch.yaml"
    expect_exit 0 smp-partition "$model" --fix "$1.sketch.yaml" -n "$2" --ddp "$3" --pipeline simple \
        --microbatches $((4 / $3)) --microbatch-size 1 --gradient-blocks 4 -o "$1.yaml"
    expect_match "$1.yaml" "devices: $2, pipeline: 3, ddp: $3, tensor: "
}

names=(one two pairs shards optimizer whole outside inside)
ranks=(1 4 4 4 4 4 5 12)
plan one 1 1 1 1 1f1b 1 4
plan two 4 1 2 2 1f1b 1 2
plan pairs 4 2 2 1 interleaved 2 4 "${columns[@]}"
plan shards 4 2 1 2 simple 1 2 --shard 2 --shard-what weights "${columns[@]}"
plan optimizer 4 2 1 2 simple 1 2 --shard 2
plan whole 4 4 1 1 simple 1 4 "${columns[@]}"
different outside 5 1 h0 2 1 2
different inside 12 2 h1 1 4 1
for name in pairs shards whole; do
    expect_equal "$name: packed weights in parts" "$(grep -c 'as: columns/3}' "$name.yaml")" "$layers"
done

# Each saves after three steps, all load it.
for from in "${!names[@]}"; do
    run_plan "${names[from]}" "${ranks[from]}" --data text.txt --steps 3 --seed 5 --checkpoint "saved.$from" \
        --export-weights "$from.safetensors"
    cp "${names[from]}.weights" "$from.weights"
    cp "${names[from]}.loss" "$from.loss"
    for to in "${!names[@]}"; do
        [ "$to" != "$from" ] || continue
        [ "$from" = 0 ] || [ "$to" = 0 ] || [ -n "${SMP_TEST_LONG-}" ] || continue
        run_plan "${names[to]}" "${ranks[to]}" --checkpoint "saved.$from" --resume --steps 0 \
            --export-weights again.safetensors
        what="${names[from]} into ${names[to]}"
        expect_equal "$what: bytes" "$(cmp again.safetensors "$from.safetensors" && echo same)" same
        expect_equal "$what: weights" "$(cat "${names[to]}.weights")" "$(cat "$from.weights")"
    done
done

# Whatever devices compute together, losses are those of one.
for at in 6 7; do
    expect_equal "${names[at]}: losses that differ" "$(paste 0.loss "$at.loss" |
        awk '{ d = ($1 - $2) / $1; n++; bad += !(d < 1e-5 && d > -1e-5) } END { print n, bad + 0 }')" "3 0"
done

# Before the first step the weights are the same whatever the plan.
for at in "${!names[@]}"; do
    [[ -n ${SMP_TEST_LONG-} || ${names[at]} == @(one|whole) ]] || continue
    run_plan "${names[at]}" "${ranks[at]}" --steps 0 --seed 9 --export-weights "first.$at"
    expect_equal "${names[at]}: first weights" "$(cmp "first.$at" first.0 && echo same)" same
done

# Steps behind a checkpoint are those of the job that was not interrupted.
for at in 2 3; do
    name=${names[at]}
    [[ -n ${SMP_TEST_LONG-} || $name = shards ]] || continue
    run_plan "$name" 4 --data text.txt --steps 5 --seed 5
    cp "$name.weights" whole.weights
    cp "$name.loss" whole.loss
    cp -r "saved.$at" kept
    run_plan "$name" 4 --data text.txt --steps 5 --seed 5 --checkpoint "saved.$at" --resume
    expect_equal "$name: weights" "$(cat "$name.weights")" "$(cat whole.weights)"
    expect_equal "$name: last losses" "$(cat "$name.loss")" "$(tail -n 2 whole.loss)"
done

# Another plan of as many devices per op, split as the checkpoint says, goes on with its bits; one that chooses for
# itself does not.
plan own 2 2 1 1 simple 1 4
plan moved 2 2 1 1 simple 1 4 --split-from kept
plan newest 2 2 1 1 simple 1 4 --split-from kept/checkpoint-0000000003.smp
expect_exit 1 smp-partition check own.yaml --same-bits-as shards.yaml
expect_exit 0 smp-partition check moved.yaml --same-bits-as shards.yaml
expect_equal "plans of a directory and of its last file" "$(cmp moved.yaml newest.yaml && echo same)" same
run_plan moved 2 --data text.txt --steps 5 --seed 5 --checkpoint kept --resume
expect_no_match err 'other splitting'
expect_equal "moved: weights" "$(cat moved.weights)" "$(cat whole.weights)"
expect_bad '--split-from: saved\.0 splits nothing' smp-partition "$model" --split-from saved.0
mkdir empty
expect_bad '--split-from: empty holds no checkpoint' smp-partition "$model" --split-from empty
head -c 100 moved.yaml >broken.smp
expect_bad 'broken\.smp: the header is damaged' smp-partition "$model" --split-from broken.smp
finish

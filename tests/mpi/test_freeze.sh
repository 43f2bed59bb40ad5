#!/usr/bin/env bash
# Frozen weights: the same bits however the model is split, and no plan trains them. Bad patterns.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
model=tiny.yaml
sed 's/layers: 4/layers: 2/' "$SMP_EXAMPLES/gpt-tiny.yaml" >$model
write_text text.txt 20000

train() { # name, ranks, option...
    local name=$1 n=$2
    shift 2
    expect_exit 0 smp-partition "$model" -n "$n" --microbatch-size 2 --gradient-blocks 2 \
        --freeze 'wte.*' --freeze wpe.weight --freeze 'h0.*' "$@" -o "$name.yaml"
    expect_exit 0 mpirun -n "$n" smp-run "$name.yaml" --data text.txt --steps 3 \
        --export-weights "$name.safetensors"
}

train one 1 --stages 1 --microbatches 8
train deep 2 --stages 2 --chunks 2 --microbatches 8 --recompute all
train shards 4 --stages 2 --ddp 2 --microbatches 4 --shard 2 --shard-what weights
for other in deep shards; do
    cmp -s one.safetensors $other.safetensors && same=yes || same=no
    expect_equal "weights of $other are those of one process" "$same" yes
done
expect_exit 0 smp-partition "$model" -n 1 --stages 1 --microbatch-size 2 --microbatches 8 -o all.yaml
expect_exit 0 mpirun -n 1 smp-run all.yaml --data text.txt --steps 3 --export-weights all.safetensors
cmp -s one.safetensors all.safetensors && same=yes || same=no
expect_equal "weights are those of a run that trains all" "$same" no
expect_exit 0 smp-partition check one.yaml

# What is frozen is as it was at first, nothing else is.
expect_exit 0 mpirun -n 1 smp-run one.yaml --steps 0 --export-weights start.safetensors
values() { python3 "$SMP_SOURCE_DIR/tests/data/safetensors_values.py" "$1.safetensors" | grep -E "$2"; }
frozen='^(wte|wpe|h0)\.'
[ "$(values start "$frozen" | wc -l)" -ge 14 ] || fail "frozen weights: $(values start "$frozen" | wc -l)"
expect_equal "frozen weights" "$(values one "$frozen" | cksum)" "$(values start "$frozen" | cksum)"
expect_equal "trained weights that stand still" \
    "$(values one . | grep -vE "$frozen" | grep -cFxf <(values start . | grep -vE "$frozen") || true)" 0

# Stopped, and gone on with by another plan; what was frozen may be trained, and the other way round.
expect_exit 0 mpirun -n 4 smp-run shards.yaml --data text.txt --steps 1 --checkpoint saved
expect_exit 0 mpirun -n 1 smp-run one.yaml --data text.txt --steps 3 --resume --checkpoint saved \
    --export-weights resumed.safetensors
cmp -s one.safetensors resumed.safetensors && same=yes || same=no
expect_equal "weights of a run that was stopped" "$same" yes
expect_exit 0 mpirun -n 1 smp-run all.yaml --data text.txt --steps 4 --resume --checkpoint saved
expect_exit 0 mpirun -n 4 smp-run shards.yaml --data text.txt --steps 5 --resume --checkpoint saved

# What is saved is in the prediction.
step() { sed -nE 's/.*step_us: ([0-9]+).*/\1/p' "$1"; }
peak() { sed -nE 's/.*peak_bytes: \[([0-9]+)\].*/\1/p' "$1"; }
expect_equal "a step with frozen weights is predicted to be shorter" \
    "$(($(step one.yaml) < $(step all.yaml)))" 1
expect_equal "frozen weights are predicted to take less memory" \
    "$(($(peak one.yaml) < $(peak all.yaml)))" 1

expect_exit 2 smp-partition "$model" -n 1 --freeze 'wtee.weight'
expect_match err "no weight of model 'gpt-tiny' matches 'wtee.weight', nearest is 'wte.weight'"
expect_exit 2 smp-partition "$model" -n 1 --freeze '*'
expect_match err 'no weight that the loss depends on is left to train'
finish

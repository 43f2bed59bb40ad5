#!/usr/bin/env bash
# Weights in 16 bits whose fp32 values lie in host memory, beside their states, on emulated GPUs: the
# bits of a job that keeps all on the device, in pipelines, replicas and shards, with norms of weights
# and steps that overflow; and of checkpoints, exports and given weights, which know no difference.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
export SMP_EMULATE_PROTECT=0 # test_cuda_train.sh has it on
limit_s=180
steps=$([ -n "${SMP_TEST_LONG-}" ] && echo 20 || echo 4)
write_text text.txt 20000
head -c 100 text.txt >held.txt
sed -e 's/^let: .*/let: {T: 8, d: 16, heads: 2, layers: 1, vocab: 128}/' "$SMP_EXAMPLES/gpt-tiny.yaml" >model.yaml
cat >cluster.yaml <<'END'
smp: 1
name: four
nodes: 1
devices_per_node: 4
device: {name: gpu, memory: 2GB, compute: {fp32: 60TFLOP/s, tf32: 400TFLOP/s, bf16: 900TFLOP/s}, bandwidth: 3TB/s}
links:
  intra_node: {bandwidth: 400GB/s, latency_us: 3}
  inter_node: {bandwidth: 50GB/s, latency_us: 8}
  host: {bandwidth: 25GB/s, latency_us: 10}
overlap: true
END

plan() { # file precision devices stages ddp pipeline microbatches [options of smp-partition]
    expect_exit 0 smp-partition model.yaml --cluster cluster.yaml --device cuda --precision "$2" \
        -n "$3" --stages "$4" --ddp "$5" --pipeline "$6" --microbatches "$7" --microbatch-size 1 \
        -o "$1" --explain "${@:8}"
}

# train NAME RANKS PLAN [options]: losses in NAME.loss, hashes of weights in NAME.weights.
train() {
    expect_exit 0 mpirun -n "$2" smp-run-emulated "$3" --device cuda --share-gpus --data text.txt --json \
        --checksum --lr 0.003 --warmup 5 --decay-steps 50 --clip 1 --seed 11 --steps "$steps" "${@:4}"
    grep -E '^\{' out >"$1.json" || true
    sed -nE 's/.*"loss": ?([^,}]*).*/\1/p' "$1.json" >"$1.loss"
    sed -nE 's/.*"replica": [0-9]+, "weights": "([0-9a-f]+)".*/\1/p' out | sort -u >"$1.weights"
    [ -s "$1.weights" ] || fail "$1: no hash of weights"
}

same() { # name reference
    expect_equal "$1 against $2: losses" "$(cmp "$1.loss" "$2.loss" && echo same)" same
    expect_equal "$1 against $2: weights" "$(cat "$1.weights")" "$(cat "$2.weights")"
}

bytes() { # plan key
    sed -nE "s/.*$2: \[([0-9]+).*/\1/p" "$1"
}

# What leaves the device is what the host has: of 5,488 weights two states each, and of 3,216 of
# the one layer the fp32 values.
plan near.yaml bf16 1 1 1 simple 2 --offload-states none
plan far.yaml bf16 1 1 1 simple 2 --offload-states all
expect_match out "offload: the optimizer's states, with weights in fp32 that are read in 16 bits alone"
moved=$(($(bytes near.yaml peak_bytes) - $(bytes far.yaml peak_bytes)))
expect_equal 'bytes that moved' "$moved" "$(bytes far.yaml host_bytes)"
train near 1 near.yaml
train far 1 far.yaml
same far near
plan split.yaml bf16 2 2 1 interleaved 2 --offload-states all
train split 2 split.yaml
same split near

# Replicas and shards, in steps of which the first ones overflow.
steps=$([ -n "${SMP_TEST_LONG-}" ] && echo 10 || echo 6)
plan near.yaml fp16 2 1 2 simple 1 --offload-states none
scale=(--loss-scale-init 16777216 --scale-window 4)
train near 2 near.yaml "${scale[@]}"
expect_match near.json '"grad_norm": null'
for shard in '' '--shard 2 --shard-what optimizer' '--shard 2 --shard-what gradients --bucket-bytes 8192' \
    '--shard 2 --shard-what weights'; do
    # shellcheck disable=SC2086 # words
    plan far.yaml fp16 2 1 2 simple 1 --offload-states all $shard
    train far 2 far.yaml "${scale[@]}"
    same far near
done

# Norms of whole weights, of which ranks have parts.
steps=3
plan near.yaml bf16 2 1 2 simple 1 --offload-states none
plan far.yaml bf16 2 1 2 simple 1 --offload-states all --shard 2
for optimizer in lamb lars; do
    train near 2 near.yaml --optimizer "$optimizer"
    train far 2 far.yaml --optimizer "$optimizer"
    same far near
done

# Evaluations read weights that have not been gathered; checkpoints of either are of both; so are exports.
for way in 'near far' 'far near'; do
    read -r from to <<<"$way"
    rm -rf saved
    steps=2
    export SMP_EMULATE_PROTECT=1 # the host reads what is its own
    train "first.$from" 2 "$from.yaml" --checkpoint saved --eval-data held.txt --export-weights "$from.safetensors"
    export SMP_EMULATE_PROTECT=0
    grep '"eval_loss"' out >"$from.evaluation"
    steps=4
    train "rest.$to" 2 "$to.yaml" --checkpoint saved --resume
done
same first.far first.near
same rest.far rest.near
expect_equal 'evaluations' "$(cat far.evaluation)" "$(cat near.evaluation)"
expect_equal 'exports' "$(cmp far.safetensors near.safetensors && echo same)" same
steps=2
train given.near 2 near.yaml --weights near.safetensors
train given.far 2 far.yaml --weights near.safetensors
same given.far given.near

# Before any step a rank has rounded its own part alone: what reads all gathers.
for plan in near far; do
    expect_exit 0 mpirun -n 2 smp-run-emulated "$plan.yaml" --device cuda --share-gpus --steps 0 \
        --weights near.safetensors --predict "$plan.npy" --tensor logits --predict-data held.txt
done
expect_equal 'predictions' "$(cmp far.npy near.npy && echo same)" same
finish

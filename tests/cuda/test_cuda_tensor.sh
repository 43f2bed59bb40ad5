#!/usr/bin/env bash
# Training on emulated GPUs whose operators several of them compute together: through NCCL and through
# host memory the same bits, however the network is split into stages besides; near to one process on
# the CPU; and a network that fails in the middle of an operator ends the job and is named. SMP_TEST_LONG: more
# steps, all through both, and more plans that differ from others in the number of devices or of bits alone.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
limit_s=180
export SMP_EMULATE_LAZY=1 # no kernel is loaded while another device is waited for
export SMP_EMULATE_PROTECT=0 # test_cuda_train.sh has it on
export SMP_EMULATE_DEVICES=8 SMP_EMULATE_MULTIPROCESSORS=64
steps=$([ -n "${SMP_TEST_LONG-}" ] && echo 4 || echo 2)
write_text text.txt 20000

# The quickstart's model, smaller, with dropout.
layers=$([ -n "${SMP_TEST_LONG-}" ] && echo 2 || echo 1) length=$((8 * layers))
sed -e "s/^let: .*/let: {T: 12, d: 32, heads: 4, layers: $layers, vocab: 128}/" \
    -e '/name: wpe/a\  - {op: dropout, name: drop, in: x, out: x, p: 0.1}' \
    "$SMP_EXAMPLES/gpt-tiny.yaml" >gpt.yaml
expect_match gpt.yaml 'op: dropout'
sed -e "s/^let: .*/let: {T: $length, d: 32, heads: 4, kv_heads: 2, hidden: 48, experts: 4, layers: $layers, vocab: 128}/" \
    "$SMP_EXAMPLES/moe-tiny.yaml" >moe.yaml

cat >cluster.yaml <<'END'
smp: 1
name: four
nodes: 1
devices_per_node: 4
device: {name: gpu, memory: 2GB, compute: {fp32: 60TFLOP/s, tf32: 400TFLOP/s, bf16: 900TFLOP/s}, bandwidth: 3TB/s}
links:
  intra_node: {bandwidth: 400GB/s, latency_us: 3}
  inter_node: {bandwidth: 50GB/s, latency_us: 8}
overlap: true
END

plan() { # model device precision ranks stages ddp pipeline [options of smp-partition]
    expect_exit 0 smp-partition "$1" --cluster cluster.yaml --device "$2" --precision "$3" -n "$4" \
        --stages "$5" --ddp "$6" --pipeline "$7" --microbatches 2 --microbatch-size 2 -o plan.yaml "${@:8}"
}

train() { # name ranks program device: losses in NAME.loss, weight hashes in NAME.weights
    expect_exit 0 mpirun -n "$2" "$3" plan.yaml --device "$4" --share-gpus --data text.txt --steps "$steps" --json \
        --checksum --lr 0.003 --warmup 3 --decay-steps 50 --clip 1 --seed 11
    sed -nE 's/.*"loss": ?([^,}]*).*/\1/p' out >"$1.loss"
    sed -nE 's/.*"replica": [0-9]+, "weights": "([0-9a-f]+)".*/\1/p' out | sort -u >"$1.weights"
    [ "$(wc -l <"$1.weights")" -eq 1 ] || fail "$1: weight hashes $(tr '\n' ' ' <"$1.weights"), expected one"
}

same() { # name reference
    expect_equal "$1 against $2: losses" "$(cat "$1.loss")" "$(cat "$2.loss")"
    expect_equal "$1 against $2: weights" "$(cat "$1.weights")" "$(cat "$2.weights")"
}

near() { # name reference limit: losses differ by at most LIMIT of the reference's
    local worst
    worst=$(paste "$1.loss" "$2.loss" | awk -v limit="$3" -v steps="$steps" '
        { d = ($1 - $2) / $2; d = d < 0 ? -d : d; if (d > worst) worst = d }
        END { print (NR == steps && worst <= limit) ? "near" : worst }')
    expect_equal "$1 against $2" "$worst" near
}

# The plan that was made last, through NCCL.
nccl() { # name ranks
    [ -z "${SMP_TEST_LONG-}" ] || { both "$@"; return; }
    train "$1" "$2" smp-run-emulated cuda
    expect_match err 'transport nccl$'
}

# And through host memory too.
both() { # name ranks
    SMP_EMULATE_DEVICES=1 train "$1" "$2" smp-run-emulated cuda
    expect_match err 'transport staged \[nccl: rank 0: two ranks share GPU'
    train "$1.nccl" "$2" smp-run-emulated cuda
    expect_match err 'transport nccl$'
    same "$1.nccl" "$1"
}

# Megatron-LM's layers, the vocabulary too; with positions between them; queries of positions.
blocks=(--split '*.attn.qkv:columns/3' --split '*.attn:packed heads' --split '*.attn.proj:rows'
    --split '*.mlp.fc:columns' --split '*.mlp.gelu:elements@1' --split '*.mlp.proj:rows')
vocabulary=(--split wte:rows --split lm_head:columns --split loss:classes)
positions=(--split 'h*.ln_?:positions@0' --split 'h*.res_?:elements@0' --split wpe:positions
    --split drop:elements@0 --split ln_f:positions@0)

plan gpt.yaml cpu fp32 1 1 1 simple
train cpu 1 smp-run cpu
plan gpt.yaml cpu fp32 2 1 1 simple --tensor 2 "${blocks[@]}" "${vocabulary[@]}"
train cpu2 2 smp-run cpu
plan gpt.yaml cuda fp32 4 1 1 simple --tensor 4 "${blocks[@]}" "${vocabulary[@]}"
nccl t4 4
near t4 cpu 1e-5
plan gpt.yaml cuda fp32 2 1 1 simple --tensor 2 "${blocks[@]}" "${vocabulary[@]}"
both t2 2
near t2 cpu 1e-5
near t2 cpu2 1e-5
# Who waits for a slow device in the middle of operators is not taken for one.
for devices in ${SMP_TEST_LONG:+1} 4; do # NCCL, or through host memory
    SMP_EMULATE_DEVICES=$devices SMP_EMULATE_SLOW='1 3000' expect_exit 0 mpirun -n 2 smp-run-emulated plan.yaml --share-gpus \
        --device cuda --data text.txt --steps 12 --json
    expect_equal 'slow devices of a group' "$(sed -nE 's/.*"slow_rank": ([0-9]+).*/\1/p' out)" 1
done
plan gpt.yaml cuda fp32 2 1 1 simple --tensor 2 "${blocks[@]}" "${vocabulary[@]}" "${positions[@]}"
both positions 2
near positions cpu 1e-5

# Weight gradients beside the exchanges of a group, which the plan above has: the bits of one without.
expect_match plan.yaml 'tensor_overlap: true'
plan gpt.yaml cuda fp32 2 1 1 simple --tensor 2 --tensor-overlap no "${blocks[@]}" "${vocabulary[@]}" "${positions[@]}"
nccl apart 2
same apart positions

# Two GPUs for the vocabulary at both ends, one for the layers between: what one sends goes to two, and back from one.
cat >ends.yaml <<END
smp: 1
split: [{op: wte, as: rows}, {op: lm_head, as: columns}, {op: loss, as: classes}]
stages:
  - {ops: [wte..drop], tensor: 2}
  - {ops: [h0.ln_1..h$((layers - 1)).res_2], tensor: 1}
  - {ops: [ln_f..loss], tensor: 2}
END
sed 's/^devices_per_node: .*/devices_per_node: 5/' cluster.yaml >five.yaml
plan gpt.yaml cuda fp32 5 3 1 simple --cluster five.yaml --fix ends.yaml
expect_match plan.yaml 'devices: 5, pipeline: 3, ddp: 1, tensor: 2'
both ends 5
near ends cpu 1e-5

# Long samples: keys travel around, of runs of positions and of zigzags, and tokens of a mixture to their experts.
ring=(--split '*:positions@0' --split '*:elements@0' --split '*.attn:packed ring' "${vocabulary[@]}")
zigzag=(--split '*:positions@0/2' --split '*.res_?:elements@0/2' --split '*:zigzag' --split '*.attn:zigzag ring'
    --split '*.gate:experts' --split '*.up:experts' --split '*.down:experts' --split '*.silu:elements@0'
    --split '*.gated:elements@0' "${vocabulary[@]}")
plan moe.yaml cpu fp32 1 1 1 simple
train moe 1 smp-run cpu
for devices in 2 ${SMP_TEST_LONG:+4}; do
    plan gpt.yaml cuda fp32 "$devices" 1 1 simple --tensor "$devices" "${ring[@]}"
    nccl "ring$devices" "$devices"
    near "ring$devices" cpu 1e-5
    plan moe.yaml cuda fp32 "$devices" 1 1 simple --tensor "$devices" "${zigzag[@]}"
    expect_equal "what the mixture is split by" "$(grep -cE 'h[01].(attn, as: "zigzag ring"|(dispatch|combine), as: zigzag)' plan.yaml)" $((3 * layers))
    both "moe$devices" "$devices"
    near "moe$devices" moe 1e-5
done
# Rows, and sums of rows, travel around beside the products.
plan gpt.yaml cuda fp32 4 1 1 simple --tensor 4 "${blocks[@]}" "${vocabulary[@]}" "${positions[@]}" \
    --split '*.mlp.fc:ring columns' --split '*.mlp.proj:ring rows'
expect_equal "products in a ring" "$(grep -cE 'h[01].mlp.(fc, as: "ring columns"|proj, as: "ring rows")' plan.yaml)" $((2 * layers))
nccl products 4
near products cpu 1e-5

# Stages of groups: the bits of one. Replicas of groups: those of replicas alone, nearly.
if [ -n "${SMP_TEST_LONG-}" ]; then
    plan moe.yaml cuda fp32 4 2 1 1f1b --tensor 2 "${zigzag[@]}"
    both moe.stages 4
    same moe.stages moe2
fi
plan gpt.yaml cuda fp32 4 2 1 1f1b --tensor 2 "${blocks[@]}" "${vocabulary[@]}"
nccl stages 4
same stages t2
plan gpt.yaml cpu fp32 2 1 2 simple
train replicas 2 smp-run cpu
plan gpt.yaml cuda fp32 4 1 2 simple --tensor 2 "${blocks[@]}" "${positions[@]}"
nccl groups 4
near groups replicas 1e-5

# In bf16, where half as much goes between devices.
plan gpt.yaml cuda bf16 1 1 1 simple
train half 1 smp-run-emulated cuda
plan gpt.yaml cuda bf16 2 1 1 simple --tensor 2 "${blocks[@]}" "${vocabulary[@]}" "${positions[@]}"
both half2 2
near half2 half 2e-3
if [ -n "${SMP_TEST_LONG-}" ]; then
    plan moe.yaml cuda bf16 1 1 1 simple
    train half.moe 1 smp-run-emulated cuda
    plan moe.yaml cuda bf16 2 1 1 simple --tensor 2 "${zigzag[@]}"
    both half2.moe 2
    near half2.moe half.moe 5e-3
fi

# A network that fails while ranks connect, or in an operator.
plan gpt.yaml cuda fp32 2 1 1 simple --tensor 2 "${blocks[@]}"
for after in 1 12; do
    SMP_EMULATE_NCCL_FAIL=$after run mpirun -n 2 smp-run-emulated plan.yaml --device cuda --data text.txt --steps 1
    [ "$status" -ne 0 ] || fail "a network that failed at message $after did not end the job"
    expect_match err 'rank [01].*devices that compute layers together: .*remote process exited'
done
finish

#!/usr/bin/env bash
# Training on emulated GPUs: however the network is split over ranks that share one, and whatever order
# streams and threads take, the same bits; near to the CPU; and what happens where there is no GPU, or
# too small a one. SMP_TEST_LONG: every split in every precision, and more steps.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
limit_s=180
steps=3 half=1 far=12 # of a job, of its first half, of one that is compared with the CPU's
[ -z "${SMP_TEST_LONG-}" ] || steps=14 half=10 far=50
write_text text.txt 20000
export SMP_EMULATE_CAPABILITY=90 # GELU in epilogues, forward and backward

# The quickstart's model, smaller, with dropout.
layers=$([ -n "${SMP_TEST_LONG-}" ] && echo 2 || echo 1)
sed -e "s/^let: .*/let: {T: 12, d: 32, heads: 2, layers: $layers, vocab: 128}/" \
    -e '/name: wpe/a\  - {op: dropout, name: drop, in: x, out: x, p: 0.1}' \
    "$SMP_EXAMPLES/gpt-tiny.yaml" >model.yaml
expect_match model.yaml 'op: dropout'

cat >cluster.yaml <<'END'
smp: 1
name: four
nodes: 1
devices_per_node: 4
device: {name: gpu, memory: 2GB, compute: {fp32: 60TFLOP/s, tf32: 400TFLOP/s, bf16: 900TFLOP/s, fp8: 1800TFLOP/s}, bandwidth: 3TB/s}
links:
  intra_node: {bandwidth: 400GB/s, latency_us: 3}
  inter_node: {bandwidth: 50GB/s, latency_us: 8}
overlap: true
END

plan() { # file precision devices stages ddp pipeline microbatches [options of smp-partition]
    expect_exit 0 smp-partition model.yaml --cluster cluster.yaml --device cuda --precision "$2" \
        -n "$3" --stages "$4" --ddp "$5" --pipeline "$6" --microbatches "$7" --microbatch-size 1 \
        -o "$1" "${@:8}"
}

# train NAME RANKS PROGRAM PLAN [options]: losses in NAME.loss, weight hashes in NAME.weights.
train() {
    local name=$1 ranks=$2
    shift 2
    expect_exit 0 mpirun -n "$ranks" "$@" --data text.txt --json --checksum --lr 0.003 --warmup 5 \
        --decay-steps 50 --clip 1 --seed 11
    grep -E '^\{' out >"$name.json" || true
    sed -nE 's/.*"loss": ?([^,}]*).*/\1/p' "$name.json" >"$name.loss"
    sed -nE 's/.*"replica": [0-9]+, "weights": "([0-9a-f]+)".*/\1/p' out >"$name.weights"
    [ -s "$name.weights" ] || fail "$name: no weight hash"
}

same() { # name reference
    expect_equal "$1 against $2: losses" "$(cmp "$1.loss" "$2.loss" && echo same)" same
    expect_equal "$1 against $2: weights" "$(sort -u "$1.weights")" "$(sort -u "$2.weights")"
}

# close NAME REFERENCE LIMIT: the last losses of NAME's reference differ by at most LIMIT of them.
close() {
    local worst
    worst=$(tail -n "$(wc -l <"$1.loss")" "$2.loss" | paste "$1.loss" - | awk -v limit="$3" '
        { d = ($1 - $2) / $2; d = d < 0 ? -d : d; if (d > worst) worst = d }
        END { print (NR > 0 && worst <= limit) ? "close" : worst }')
    expect_equal "$1 against $2" "$worst" close
}

on_gpu=(smp-run-emulated --device cuda --share-gpus)

# One GPU for 1, 2 and 4 ranks, each run in another order: the same losses and weights.
for precision in fp32 bf16 fp16 fp8; do
    # Once is enough to see whether the host reads device memory, which takes time.
    [ "$precision" = fp32 ] || export SMP_EMULATE_PROTECT=0
    plan one.yaml "$precision" 1 1 1 simple 4
    SMP_EMULATE_ORDER=forward train "$precision" 1 "${on_gpu[@]}" one.yaml --steps "$steps"
    expect_match err "device cuda \\(.*\\), $precision"
    expect_equal "$precision: different losses" \
        "$(sort -u "$precision.loss" | wc -l | tr -d ' ')" "$steps"
    order=3
    case ${SMP_TEST_LONG:+all}$precision in
    fp32) splits=("4 interleaved" "2 zero-bubble" "2 interleaved --recompute all --chunks 2") ;;
    bf16) splits=("2 interleaved --recompute all") ;;
    fp16) splits=("2 interleaved --chunks 2") ;;
    fp8) splits=("2 zero-bubble") ;;
    *)
        splits=("2 interleaved" "4 interleaved" "2 zero-bubble" "2 interleaved --recompute all"
            "2 interleaved --chunks 2" "2 interleaved --recompute all --chunks 2")
        ;;
    esac
    for split in "${splits[@]}"; do
        # shellcheck disable=SC2086 # words
        set -- $split
        plan split.yaml "$precision" "$1" "$1" 1 "$2" 4 "${@:3}"
        SMP_EMULATE_ORDER=$((order++)) train split "$1" "${on_gpu[@]}" split.yaml --steps "$steps"
        expect_match err 'transport staged .*nccl: .*share'
        same split "$precision"
    done
done

unset SMP_EMULATE_PROTECT

# fp8 is not bf16, though near to it, and no card before Ada has it.
expect_equal "fp8 is not bf16" "$(cmp -s fp8.loss bf16.loss || echo differs)" differs
close fp8 bf16 0.01
SMP_EMULATE_CAPABILITY=80 expect_bad 'fp8 on .*: compute capability 8.0, products in fp8 need 8.9.*--precision bf16' \
    "${on_gpu[@]}" one.yaml --data text.txt --steps 1

# A GPU per rank: another transport, the same bits.
plan split.yaml fp32 2 2 1 interleaved 4
SMP_EMULATE_DEVICES=2 SMP_EMULATE_MULTIPROCESSORS=17 train split 2 "${on_gpu[@]}" split.yaml --steps "$steps"
expect_match err 'transport nccl$'
same split fp32

# Replicas: the same bits on each, and those of one replica to rounding.
ranks=$([ -n "${SMP_TEST_LONG-}" ] && echo 4 || echo 2)
plan ddp.yaml fp32 "$ranks" $((ranks / 2)) 2 interleaved 2
train ddp "$ranks" "${on_gpu[@]}" ddp.yaml --steps "$steps"
expect_equal "replicas" "$(wc -l <ddp.weights | tr -d ' ')" 2
expect_equal "replicas are the same" "$(sort -u ddp.weights | wc -l | tr -d ' ')" 1
close ddp fp32 1e-5

export SMP_EMULATE_PROTECT=0 # above it was on: the rest in less time

# Near to the CPU over many steps; the plan may be one for the CPU.
expect_exit 0 smp-partition model.yaml -n 1 --pipeline simple --microbatches 4 --microbatch-size 1 \
    -o cpu.yaml
train cpu 1 smp-run-emulated cpu.yaml --steps "$far"
train gpu 1 "${on_gpu[@]}" cpu.yaml --steps "$far" --trace trace.json
close gpu cpu 1e-3
expect_json trace.json
expect_exit 0 mpirun -n 1 "${on_gpu[@]}" cpu.yaml --data text.txt --steps 2 --precision tf32
expect_match err 'device cuda .*, tf32'

# Branches that meet again, tensors that jump over stages, a tied linear weight.
several=4 # ranks
sed 's/^let: .*/let: {T: 16, d: 32, vocab: 128}/' "$SMP_EXAMPLES/branches.yaml" >small.yaml
for precision in fp32 bf16 ${SMP_TEST_LONG:+fp16}; do
    for ranks in 1 $several; do
        expect_exit 0 smp-partition small.yaml --cluster cluster.yaml \
            --device cuda --precision "$precision" -n "$ranks" --stages "$ranks" \
            --pipeline interleaved --microbatches 4 --microbatch-size 1 -o branches.yaml
        SMP_EMULATE_ORDER=$ranks train "branches-$ranks" "$ranks" "${on_gpu[@]}" branches.yaml \
            --steps "$steps"
    done
    same "branches-$several" branches-1
    [ -n "${SMP_TEST_LONG-}" ] || several=2
done

# A gate and its product, a sum and its norm: in one stage as one kernel, parted by stages, and repeated.
sed 's/^let: .*/let: {T: 12, d: 32, heads: 2, kv_heads: 1, hidden: 96, layers: 2, vocab: 128}/' \
    "$SMP_EXAMPLES/llama-tiny.yaml" >llama.yaml
cat >parted.yaml <<END
smp: 1
stages:
  - {ops: [wte..h0.silu]}
  - {ops: [h0.gated..h1.res_1]}
  - {ops: [h1.norm_2..loss]}
END
pairs() { # name model ranks pipeline [options of smp-partition]
    expect_exit 0 smp-partition "$2.yaml" --cluster cluster.yaml --device cuda --precision bf16 -n "$3" --ddp 1 \
        --pipeline "$4" --microbatches 2 --microbatch-size 2 -o "$1.plan" "${@:5}"
    train "$1" "$3" "${on_gpu[@]}" "$1.plan" --steps "$steps"
}
pairs llama llama 1 simple --stages 1
pairs llama-parted llama 3 simple --stages 3 --fix parted.yaml
same llama-parted llama
pairs llama-repeated llama 1 simple --stages 1 --recompute all
same llama-repeated llama

# Likewise a batchnorm and a sum, and their relus, on images that lie channels last; with the gradients of
# weights apart, too.
cat >image.yaml <<END
smp: 1
name: image
let: {T: 12, d: 32, vocab: 128}
inputs:
  tokens: {dtype: int32, shape: [T]}
  targets: {dtype: int32, shape: [T]}
ops:
  - {op: embedding, name: wte, in: tokens, out: x, rows: vocab, features: d}
  - {op: reshape, name: pixels, in: x, out: x, shape: [3, 4, d]}
  - {op: transpose, name: image, in: x, out: x, axes: [2, 0, 1]}
  - {op: batchnorm, name: norm_1, in: x, out: x}
  - {op: relu, name: relu_1, in: x, out: x}
  - {op: max_pool, name: pool, in: x, out: y, kernel: 3, stride: 1, padding: 1}
  - {op: batchnorm, name: norm_2, in: y, out: y}
  - {op: add, name: sum, in: [x, y], out: x}
  - {op: relu, name: relu_2, in: x, out: x}
  - {op: transpose, name: back, in: x, out: x, axes: [1, 2, 0]}
  - {op: reshape, name: rows, in: x, out: x, shape: [T, d]}
  - {op: linear, name: head, in: x, out: z, features: vocab}
  - {op: cross_entropy, name: loss, in: [z, targets], out: loss}
loss: loss
END
cat >parted.yaml <<END
smp: 1
stages:
  - {ops: [wte..norm_1]}
  - {ops: [relu_1..sum]}
  - {ops: [relu_2..loss]}
END
pairs image image 1 simple --stages 1
pairs image-parted image 3 zero-bubble --stages 3 --fix parted.yaml
same image-parted image
pairs image-repeated image 1 simple --stages 1 --recompute all
same image-repeated image

# A checkpoint is of no device and of no plan.
train half 1 smp-run-emulated cpu.yaml --steps "$half" --checkpoint from-cpu
train rest 1 "${on_gpu[@]}" cpu.yaml --steps "$steps" --checkpoint from-cpu --resume
head -n "$steps" cpu.loss >cpu-rest.loss
close rest cpu-rest 1e-3
plan one.yaml bf16 1 1 1 simple 4
plan two.yaml bf16 2 2 1 interleaved 4
train half 1 "${on_gpu[@]}" one.yaml --steps "$half" --checkpoint from-gpu
train rest 2 "${on_gpu[@]}" two.yaml --steps "$steps" --checkpoint from-gpu --resume
tail -n "$((steps - half))" bf16.loss >bf16-rest.loss
cp bf16.weights bf16-rest.weights
same rest bf16-rest

# No GPU, no kernel for it, no room, no such precision.
SMP_EMULATE_DEVICES=0 expect_exit 1 "${on_gpu[@]}" cpu.yaml --data text.txt --steps 1
expect_one_message '^smp-run: no GPU: '
SMP_EMULATE_DRIVER=12080 expect_exit 1 "${on_gpu[@]}" cpu.yaml --data text.txt --steps 1
expect_one_message '^smp-run: no GPU: the driver is of CUDA 12\.8, expected 13\.0, which is driver 580, or later'
expect_exit 1 mpirun -n 1 "${on_gpu[@]}" two.yaml --data text.txt : \
    -n 1 -x SMP_EMULATE_DEVICES=0 "${on_gpu[@]}" two.yaml --data text.txt
expect_match err 'smp-run: rank 1: no GPU: '
SMP_EMULATE_DEVICES=0 expect_exit 0 smp-run-emulated --device auto cpu.yaml --data text.txt --steps 1
expect_match err 'device cpu .*\[cuda: no GPU: '
expect_exit 0 smp-run-emulated --device auto cpu.yaml --data text.txt --steps 1
expect_match err 'device cuda '
expect_no_match err 'transport' # one rank has none
SMP_EMULATE_MEMORY=133000000 expect_exit 3 "${on_gpu[@]}" cpu.yaml --data text.txt --steps 1
expect_one_message 'rank 0 .* needs .* MiB on .*the plan says .* are free'
SMP_EMULATE_MEMORY=1000000 expect_exit 3 "${on_gpu[@]}" cpu.yaml --data text.txt --steps 1
expect_one_message 'Emulated GPU, GPU 0, .*need 64 MiB of workspace, .* are free'
SMP_EMULATE_MEMORY=205000000 expect_exit 3 mpirun -n 2 "${on_gpu[@]}" two.yaml --data text.txt
expect_match err 'the 2 ranks that share it need'
SMP_EMULATE_MEMORY=500000000 expect_exit 3 "${on_gpu[@]}" cpu.yaml --data text.txt --steps 1
expect_one_message 'rank 0 .* 512 MiB for libraries \(assumed\); .* are free'

# Libraries that take 700 MiB when kernels run for the first time: measured by smp-profile and by a run,
# not planned with, and refused before they are missing.
export SMP_EMULATE_LIBRARIES=734003200
expect_exit 0 smp-profile-emulated "$SMP_EXAMPLES/mlp.yaml" --device cuda --dtype fp32 --microbatch-size 4 \
    -o profile.yaml
expect_match profile.yaml '^libraries: 734003200$'
expect_match profile.yaml "^memory: $(((4096 - 64 - 700) << 20))\$" # less what matrix products work in
expect_exit 0 smp-partition "$SMP_EXAMPLES/mlp.yaml" --profile profile.yaml --device cuda -n 1 --microbatches 2 \
    -o measured.yaml
SMP_EMULATE_MEMORY=700000000 expect_exit 3 "${on_gpu[@]}" measured.yaml --data text.txt --steps 1
expect_one_message 'rank 0 .* 700 MiB for libraries \(as the plan says\); .* are free'
SMP_EMULATE_MEMORY=700000000 expect_exit 1 "${on_gpu[@]}" cpu.yaml --data text.txt --steps 1
expect_match err 'first run of the kernels: .*out of memory'
expect_exit 0 "${on_gpu[@]}" cpu.yaml --data text.txt --steps 4 --profile-out profile.yaml
expect_match profile.yaml '^libraries: 7340[0-9]{5}$'
unset SMP_EMULATE_LIBRARIES
expect_bad 'tf32 on the CPU' smp-run-emulated cpu.yaml --data text.txt --precision tf32
plan narrow.yaml tf32 1 1 1 simple 4
expect_bad 'the plan is for cuda in tf32, the job on cpu .*--precision' smp-run-emulated narrow.yaml \
    --data text.txt
SMP_EMULATE_DEVICES=0 expect_bad 'no device can run it: cuda: no GPU: .*; cpu: .*tf32' \
    smp-run-emulated --device auto narrow.yaml --data text.txt
expect_bad "precision: got 'half'" smp-run-emulated cpu.yaml --data text.txt --precision half
expect_bad "device: got 'gpu'" smp-run-emulated cpu.yaml --data text.txt --device gpu

# A kernel that fails, before the first step and in one: where the device was.
SMP_EMULATE_FAIL=5 expect_exit 1 "${on_gpu[@]}" one.yaml --data text.txt --steps 1
expect_match err 'rank 0, Emulated GPU, .*first run of the kernels: .*illegal memory access'
SMP_EMULATE_FAIL=700 expect_exit 1 mpirun -n 2 "${on_gpu[@]}" two.yaml --data text.txt --steps 50
expect_match err 'rank [01] \(replica 0, pipeline rank [01], stage [0-3], micro-batch [0-3], action '
expect_match err 'illegal memory access'
finish

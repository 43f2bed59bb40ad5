#!/usr/bin/env bash
# Which algorithm of the library computes each matrix product, on emulated GPUs, where the algorithms of
# a product give different bits: all ranks take the same one, whoever refuses another; a profile keeps
# the fastest, the plan carries it, a run repeats it; what was chosen elsewhere is not taken, anywhere.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
limit_s=60
write_text text.txt 2000
export SMP_EMULATE_PROTECT=0 SMP_EMULATE_CAPABILITY=90 # GELU in the epilogue

cat >model.yaml <<'END'
smp: 1
name: products
inputs:
  tokens: {dtype: int32, shape: [6]}
  targets: {dtype: int32, shape: [6]}
ops:
  - {op: embedding, name: wte, in: tokens, out: x, rows: 128, features: 24}
  - {op: linear, name: up, in: x, out: u, features: 96}
  - {op: gelu, name: gelu, in: u, out: g}
  - {op: linear, name: down, in: g, out: y, features: 24}
  - {op: linear, name: head, in: y, out: logits, features: 128, bias: false}
  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}
loss: loss
END

cat >cluster.yaml <<'END'
smp: 1
name: two
nodes: 1
devices_per_node: 2
device: {name: gpu, memory: 2GB, compute: {fp32: 60TFLOP/s}, bandwidth: 3TB/s}
links:
  intra_node: {bandwidth: 400GB/s, latency_us: 3}
END

plan() { # file ranks microbatches [options of smp-partition]: the same sums on one rank and on two
    expect_exit 0 smp-partition model.yaml --cluster cluster.yaml --device cuda --precision fp32 \
        -n "$2" --stages 1 --ddp "$2" --gradient-blocks 2 --pipeline simple --microbatches "$3" \
        --microbatch-size 2 -o "$1" "${@:4}"
}

job=(smp-run-emulated --device cuda --share-gpus --data text.txt --steps 3 --checksum --json --lr 0.01)

# weights NAME: of the last run, the hash of its weights, the same on each replica.
weights() {
    sed -nE 's/.*"weights": "([0-9a-f]+)".*/\1/p' out | sort -u >"$1"
    expect_equal "$1: one hash" "$(wc -l <"$1" | tr -d ' ')" 1
}

# alone NAME WORDS [PLAN]: one rank, for which the library refuses what the words say.
alone() {
    SMP_EMULATE_BLAS_REFUSE=$2 expect_exit 0 "${job[@]}" "${3:-one.yaml}"
    weights "$1"
}

# replicas NAME WORDS0 WORDS1: two, each with words of its own.
replicas() {
    expect_exit 0 mpirun -n 1 -x SMP_EMULATE_BLAS_REFUSE="$2" "${job[@]}" two.yaml : \
        -n 1 -x SMP_EMULATE_BLAS_REFUSE="$3" "${job[@]}" two.yaml
    weights "$1"
}

plan one.yaml 1 4
plan two.yaml 2 2
alone first ''
expect_match err '^smp-run: 9 matrix products by cuBLASLt 13\.0\.0$'
alone second run-first
job+=(--profile-out third.yaml)
alone third run-first,run-second
unset 'job[-1]' 'job[-1]'
alone apart gelu,bias,dgelu,bgrad
expect_equal 'bits of four choices' "$(sort -u first second third apart | wc -l | tr -d ' ')" 4

# One rank refuses, both go on to what all can run, in as many rounds as that takes.
replicas refused '' run-first
expect_match err ', 9 not by the first algorithm, which was refused \(.*: the functionality requested'
expect_equal 'refused on rank 1' "$(cat refused)" "$(cat second)"
replicas refused run-second run-first
expect_equal 'the first refused on rank 1, the second on rank 0' "$(cat refused)" "$(cat third)"
replicas refused run-gelu,run-bias,run-dgelu,run-bgrad ''
expect_equal 'no epilogue on rank 0' "$(cat refused)" "$(cat apart)"
replicas refused gelu,bias,dgelu,bgrad ''
expect_equal 'rank 0 has shorter lists, which count' "$(cat refused)" "$(cat apart)"
expect_exit 1 mpirun -n 1 "${job[@]}" two.yaml : -n 1 -x SMP_EMULATE_BLAS_REFUSE=run "${job[@]}" two.yaml
expect_match err 'rank 1, .*first run of the kernels: .*product .*: cuBLASLt refuses algorithm 3 of 3'

# The profile of a run has what it chose, a plan made with it too, and another run takes that and says so.
choices() { # FILE: products and their algorithms, one each line
    tr '{' '\n' <"$1" | sed -nE 's/.*(product: "[^"]*", algorithm: "[^"]*").*/\1/p' | sort
}
expect_equal 'choices of a run' "$(choices third.yaml | wc -l | tr -d ' ')" 9
plan one.yaml 1 4 --profile third.yaml
plan two.yaml 2 2 --profile third.yaml
expect_equal 'choices of the plan' "$(choices two.yaml)" "$(choices third.yaml)"
expect_exit 0 mpirun -n 2 "${job[@]}" two.yaml --profile-out again.yaml
expect_match err '^smp-run: 9 matrix products by cuBLASLt 13\.0\.0, 9 as the plan says$'
weights planned
expect_equal 'the bits of what was chosen' "$(cat planned)" "$(cat third)"
expect_equal 'choices of the second run' "$(choices again.yaml)" "$(choices third.yaml)"

# smp-profile keeps the fastest for each, whichever that is on an emulated GPU: with an epilogue apart
# there are more products.
expect_exit 0 smp-profile-emulated model.yaml --device cuda --microbatch-size 2 -o profile.yaml
expect_match profile.yaml '^  library: "cuBLASLt 13\.0\.0"'
expect_match profile.yaml 'product: "nn 12x24x128 float32 float32", algorithm: "id 0 .*", us: [0-9]'
n=$(choices profile.yaml | wc -l | tr -d ' ')
plan profiled.yaml 1 4 --profile profile.yaml
alone profiled '' profiled.yaml
expect_match err "^smp-run: $n matrix products by cuBLASLt 13\\.0\\.0, $n as the plan says\$"

# Choices for another card, or another library on one rank: nobody takes them. One that the library does
# not know is refused, by name, and the others are taken.
sed 's/"Emulated GPU", library/"Another GPU", library/' one.yaml >other.yaml
alone other '' other.yaml
expect_match err "0 \[the plan's choice .* not taken: Emulated GPU with .* here, it was made on Another GPU"
expect_equal 'of another card' "$(cat other)" "$(cat first)"
expect_exit 0 mpirun -n 1 "${job[@]}" two.yaml : -n 1 -x SMP_EMULATE_BLAS_VERSION=120901 "${job[@]}" two.yaml
expect_match err "not taken: rank 1: .*cuBLASLt 12\.9\.1 here, it was made on .* with cuBLASLt 13\.0\.0\]"
weights other
expect_equal 'another library on rank 1' "$(cat other)" "$(cat first)"
sed -E 's/(nt 12x128x24 [^:]*: "[^:]*: )../\1ff/' one.yaml >other.yaml
alone other '' other.yaml
expect_match err ', 8 as the plan says, 1 not by the first .*refused \(nt 12x128x24 .*: the functionality'
sed -E 's/format: 1/format: 2/' one.yaml >other.yaml
expect_bad "products: format: got '2'" "${job[@]}" other.yaml

# Two lanes between two stages, each of which may keep two multiprocessors busy: every product is told
# how many are left, and has the bits that it has alone.
plan one.yaml 1 4
expect_exit 0 smp-partition model.yaml --cluster cluster.yaml --device cuda -n 2 --stages 2 \
    --pipeline interleaved --gradient-blocks 2 --microbatches 4 --microbatch-size 2 -o stages.yaml
export SMP_EMULATE_DEVICES=2 SMP_EMULATE_MULTIPROCESSORS=64
SMP_EMULATE_BLAS_LEFT=60 expect_exit 0 mpirun -n 2 "${job[@]}" stages.yaml
expect_match err 'transport nccl$'
sed -nE 's/.*"replica": [0-9]+, "weights": "([0-9a-f]+)".*/\1/p' out | sort -u >stages
SMP_EMULATE_BLAS_LEFT=0 alone first ''
expect_equal 'two stages' "$(cat stages)" "$(cat first)"
finish

#!/usr/bin/env bash
# Memory limits that a plan just keeps: what is known to fit is found, and more memory never loses it.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$SMP_EXAMPLES/gpt-tiny.yaml
shape=(-n 4 --stages 4 --chunks 1 --microbatches 8 --microbatch-size 16 --pipeline interleaved --effort full)

# highest_peak PLAN
highest_peak() {
    sed -nE 's/.*peak_bytes: \[([0-9, ]*)\].*/\1/p' "$1" | tr -d ' ' | tr ',' '\n' | sort -n | tail -n 1
}

# The least peak is a limit that can be kept.
expect_exit 0 smp-partition "$model" "${shape[@]}" --optimize memory -o least.yaml
expect_exit 0 smp-partition "$model" "${shape[@]}" --memory "$(highest_peak least.yaml)" -o tight.yaml
expect_match tight.yaml 'recompute: (true|\[)'

# What fits without recomputation fits under every larger limit.
expect_exit 0 smp-partition "$model" "${shape[@]}" --recompute none --memory 34MiB -o none.yaml
peak=$(highest_peak none.yaml)
limits=(0 700000)
[ -z "${SMP_TEST_LONG-}" ] || limits+=(200000 1300000 2000000)
for more in "${limits[@]}"; do
    expect_exit 0 smp-partition "$model" "${shape[@]}" --recompute none --memory $((peak + more)) -o more.yaml
done

# Inference keeps nothing for a backward pass.
cat >inference.yaml <<'MODEL'
smp: 1
name: keeps-nothing
mode: inference
ops:
  - {op: opaque, name: a, out: x, cost: {forward_us: 5, stash_bytes: 1GB, output_bytes: 4000}}
  - {op: opaque, name: b, in: x, out: y, cost: {forward_us: 5, stash_bytes: 1GB, output_bytes: 4000}}
MODEL
expect_exit 0 smp-partition inference.yaml -n 2 --stages 2 --memory 1MB -o inference-plan.yaml
expect_match inference-plan.yaml 'stash_bytes: 0'
expect_no_match inference-plan.yaml 'stash_bytes: [1-9]'

# A pin beyond the last stage is shown in its place; a plan that cannot fit has the whole reason.
sed -i 's/4000}}$/4000}, stage: 7}/' inference.yaml
expect_bad "inference\.yaml:5:5: op 'a' is pinned to stage 7" smp-partition inference.yaml -n 2 --stages 2 --chunks 1
expect_exit 3 smp-partition check least.yaml --memory 1MB
expect_match out 'best of the same numbers: none fits \(.*It would fit with .*\)$'
finish

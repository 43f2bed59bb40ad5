#!/usr/bin/env bash
# smp-partition check --same-bits-as: what decides the bits of a run, and what does not.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$SMP_EXAMPLES/gpt-tiny.yaml

# Do two plans train to the same bits? Whatever does not decide them differs in the first pairs.
bits() { # name, option...
    expect_exit 0 smp-partition "$model" --microbatch-size 2 --effort quick -o "$1.yaml" "${@:2}"
}
same_bits() { # plan plan
    expect_exit 0 smp-partition check "$1.yaml" --same-bits-as "$2.yaml"
    expect_match out "^$1\.yaml and $2\.yaml: the same bits\$"
}
other_bits() { # plan plan reason
    expect_exit 1 smp-partition check "$1.yaml" --same-bits-as "$2.yaml"
    expect_match err "^smp-partition: $1\.yaml and $2\.yaml: other bits: $3\$"
}
blocks=(--gradient-blocks 4 --microbatches)
bits one -n 1 "${blocks[@]}" 4
bits piped -n 2 --stages 2 --chunks 2 --pipeline zero-bubble --recompute all "${blocks[@]}" 4
bits shards -n 4 --stages 1 --ddp 4 --shard 2 --bucket-bytes 64KiB "${blocks[@]}" 1
same_bits one piped
same_bits one shards
bits ungrouped -n 2 --stages 1 --ddp 2 --microbatches 2
other_bits one ungrouped 'gradient blocks: 4 and 2'
bits large -n 1 "${blocks[@]}" 8
other_bits one large 'global batch: 8 and 16'
bits coarse -n 1 --microbatch-size 1 "${blocks[@]}" 8
other_bits one coarse 'micro-batch size: 2 and 1'
bits half -n 1 --precision bf16 "${blocks[@]}" 4
other_bits one half 'precision: fp32 and bf16'
bits states -n 1 --state-precision bf16 "${blocks[@]}" 4
other_bits one states 'state precision: fp32 and bf16'
bits wire -n 4 --stages 1 --ddp 4 --gradient-wire bf16 "${blocks[@]}" 1
other_bits shards wire 'gradient wire: fp32 and bf16'
bits wires -n 2 --stages 1 --ddp 2 --gradient-wire bf16 "${blocks[@]}" 2
other_bits wire wires 'gradient wire bf16, ddp: 4 and 2'
bits alone -n 1 --gradient-wire bf16 "${blocks[@]}" 4 # no replica sends anything
same_bits one alone
bits frozen -n 1 --freeze 'wpe.*' "${blocks[@]}" 4
other_bits one frozen 'number of frozen weights: 0 and 1'
bits columns -n 2 --stages 1 --tensor 2 --split '*:whole' --split 'h0.mlp.fc:columns' "${blocks[@]}" 4
bits rows -n 2 --stages 1 --tensor 2 --split '*:whole' --split 'h0.mlp.fc:rows' "${blocks[@]}" 4
other_bits one columns 'tensor: 1 and 2'
other_bits columns rows 'split: h0\.mlp\.fc:columns and h0\.mlp\.fc:rows'
sed '/name: fc_1/a\  - {op: batchnorm, name: norm, in: h, out: h, sync: true}' "$SMP_EXAMPLES/mlp.yaml" >joint.yaml
grep -q sync joint.yaml || fail "examples/mlp.yaml has no op fc_1"
for ddp in 1 2; do
    expect_exit 0 smp-partition joint.yaml -n "$ddp" --stages 1 --ddp "$ddp" --microbatches $((4 / ddp)) \
        --microbatch-size 2 --gradient-blocks 4 -o "joint_$ddp.yaml"
done
other_bits joint_1 joint_2 "op 'norm' adds up over replicas, ddp: 1 and 2"
sed 's/fingerprint: "[0-9a-f]*"/fingerprint: "0000000000000001"/' one.yaml >model.yaml
other_bits one model 'model: gpt-tiny \([0-9a-f]{16}\) and gpt-tiny \(0{15}1\)'
expect_exit 1 smp-partition check one.yaml --same-bits-as large.yaml --json
expect_json out
expect_match out '^\{"same_bits": false, "reason": "global batch: 8 and 16"\}$'
expect_bad 'absent\.yaml' smp-partition check one.yaml --same-bits-as absent.yaml
finish

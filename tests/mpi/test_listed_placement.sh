#!/usr/bin/env bash
# A plan that lists its devices: processes play the roles that the list gives them, and train the same bits. In
# the list the first process belongs to the second replica, so that nothing may depend on its being the first
# rank of the first one.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
limit_s=120
write_text text.txt 60000

sed 's/^let: .*/let: {T: 32, d: 32, heads: 4, layers: 2, vocab: 256}/' "$SMP_EXAMPLES/gpt-tiny.yaml" >gpt.yaml
expect_exit 0 smp-partition gpt.yaml -n 4 --stages 2 --ddp 2 --pipeline interleaved \
    --chunks 1 --microbatches 4 --placement cluster --recompute none -o cluster.yaml
sed 's/placement: cluster/placement: [3, 1, 0, 2]/' cluster.yaml >listed.yaml
expect_exit 0 smp-partition check listed.yaml -o checked.yaml
expect_match checked.yaml 'placement: \[3, 1, 0, 2\]'
expect_exit 2 smp-partition check listed.yaml --ddp 1
expect_match out 'the placement lists the devices of 2 ranks \* 2 replicas'

# train NAME MORE...: losses in NAME.loss, weights in NAME.weights.
train() {
    local name=$1
    shift
    expect_exit 0 mpirun -n 4 smp-run "$name.yaml" --data text.txt --json --checksum --lr 0.003 --seed 11 "$@"
    sed -nE 's/.*"loss": ?([^,}]*).*/\1/p' out >"$name.loss"
    sed -nE 's/.*"replica": [0-9]+, "weights": "([0-9a-f]+)".*/\1/p' out >"$name.weights"
}
for name in cluster listed; do
    train "$name" --steps 2 --checkpoint "kept-$name" --save-every 2
    mv "$name.loss" "$name.first"
    train "$name" --steps 4 --checkpoint "kept-$name" --resume
    cat "$name.loss" >>"$name.first"
done
expect_equal losses "$(cmp cluster.first listed.first && echo same)" same
expect_equal weights "$(cat listed.weights)" "$(cat cluster.weights)"
expect_equal "replicas" "$(wc -l <listed.weights | tr -d ' ')" 2
expect_equal "steps" "$(wc -l <listed.first | tr -d ' ')" 4

expect_exit 0 mpirun -n 4 smp-run listed.yaml --data text.txt --steps 2 --trace trace.json --profile-out measured.yaml
expect_exit 0 smp-partition check listed.yaml --trace predicted.json
expect_equal "processes of the first replica" \
    "$(grep -oE '"rank [0-9]+"' predicted.json | sort -u | tr -d '\n')" '"rank 1""rank 3"'
finish

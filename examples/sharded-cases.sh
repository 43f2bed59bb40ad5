#!/usr/bin/env bash
# Prints again the table of sharded training in README.md: GPT-2 of 10 and 30 billion parameters, planned
# with and without shards. A plan takes at most SECONDS_EACH (default 2), those whose ranks and shards are
# searched, for the batch that was published (512 where none was), ten times as much: one and a half minutes in all.
#   examples/sharded-cases.sh [BIN]        BIN: folder of smp-partition, default build/bin
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=${1:-$here/../build/bin}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp "$here/gpt2-10b.yaml" "$scratch/10b.yaml"
cp "$here/gpt2-30b.yaml" "$scratch/30b.yaml"
sed 's/T: 2048/T: 512/' "$here/gpt2-30b.yaml" >"$scratch/30b-512.yaml"

# Model, cluster, devices, ranks, samples of a micro-batch, micro-batches, degree, offload; "auto": searched, with
# samples of a step in place of micro-batches.
echo "| model | devices | ranks x replicas | micro-batches | shard | samples/s |"
echo "|---|---|---|---|---|---|"
taken() { # key: its number in the plan, or 1
    sed -nE "s/^parallel: .*[{ ]$1: ([0-9]+).*/\1/p" "$scratch/plan.yaml" | grep . || echo 1
}
while read -r model cluster devices ranks size count shard offload; do
    shape=(--chunks 1 --pipeline 1f1b)
    limit=${SECONDS_EACH:-2}
    [ "$ranks" != 1 ] || shape=(--chunks 48 --pipeline breadth-first)
    [ "$shard" = 1 ] || shape+=(--shard "$shard" --shard-what "$([ "$ranks" = 1 ] && echo weights || echo optimizer)")
    batch=(--microbatch-size "$size" --microbatches "$count")
    [ "$ranks" != auto ] || shape=(--shard auto) limit=$((10 * limit)) batch=(--global-batch "$count")
    status=0
    "$bin/smp-partition" "$scratch/$model.yaml" --cluster "$here/cluster-$cluster.yaml" -n "$devices" \
        --stages "$ranks" --tensor 1 --device cuda --precision fp16 "${batch[@]}" \
        --offload "${offload:=none}" --offload-states "$offload" --time-limit "$limit" "${shape[@]}" -o "$scratch/plan.yaml" >"$scratch/out" 2>&1 || status=$?
    case $status in
    0) answer=$(sed -nE 's/^predicted: .* ([0-9.]+) samples.*/\1/p' "$scratch/out") ;;
    3) answer="$(sed -nE 's/.* (needs?) ([0-9.]+ [KMGT]iB),.*/needs \2/p' "$scratch/out")" ;;
    *) cat "$scratch/out" >&2 && exit 1 ;;
    esac
    if [ "$ranks" = auto ]; then
        what=$(sed -nE 's/^parallel: .*shard_what: ([a-z]+).*/ \1,/p' "$scratch/plan.yaml")
        size=$(sed -nE 's/^batch: .*microbatch_size: ([0-9]+).*/\1/p' "$scratch/plan.yaml")
        ranks=$(taken pipeline) count=$(sed -nE 's/^batch: .*microbatches: ([0-9]+).*/\1/p' "$scratch/plan.yaml")
        shard="$(taken shard),$what searched"
        shard=${shard/#1,/none,}
    fi
    [ "$offload" = none ] || shard="$shard, offload"
    echo "| $model | $devices, $cluster | $ranks x $((devices / ranks)) | $count of $size | $shard | $answer |"
done <<'CASES'
10b v100-32g 8 8 2 64 1
10b v100-32g 8 1 4 2 8
10b v100-32g 8 1 4 8 8
10b v100-32g 8 1 4 8 8 auto
10b a100-40g-16 8 1 4 1 8
10b a100-40g-16 16 1 4 1 16
30b-512 a100-40g-16 24 1 4 1 24
30b-512 a100-40g-16 32 1 4 1 32
30b-512 a100-40g-16 80 1 4 1 80
30b-512 a100-40g-16 128 16 4 96 1
30b-512 a100-40g-16 128 32 4 192 1
30b-512 a100-40g-16 128 16 4 96 8
30b-512 a100-40g-16 128 1 24 1 64
30b-512 a100-40g-16 128 1 24 1 64 auto
30b-512 a100-40g-16 128 1 16 1 64
30b a100-40g-32 256 32 1 192 1
30b a100-40g-32 256 1 6 1 128
30b a100-40g-32 256 1 6 1 128 auto
30b a100-40g-32 256 1 2 1 128
10b v100-32g 8 auto auto 512 auto
30b-512 a100-40g-16 128 auto auto 3072 auto
30b a100-40g-32 256 auto auto 1536 auto
CASES

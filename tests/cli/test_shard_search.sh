#!/usr/bin/env bash
# --shard auto: of the degrees that --explain lists the fastest is taken, with --optimize memory the
# smallest; and one tensor that fits nowhere, however it is sharded.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$SMP_EXAMPLES/gpt-small.yaml
search_s=1
[ -z "${SMP_TEST_LONG-}" ] || search_s=20

search() { # speed|memory
    expect_exit 0 smp-partition "$model" -n 4 --tensor 1 --stages 1 --microbatches 1 --microbatch-size 2 --chunks 4 \
        --pipeline breadth-first --shard auto --optimize "$1" --explain -o "$1.yaml"
    sed -nE 's/^  (none|[0-9]+, [a-z]+): ([0-9.]+) samples\/s, peak ([0-9.]+) MiB$/\1;\2;\3/p' out >"$1.tried"
}
taken() { # plan
    sed -nE 's/.*shard: ([0-9]+), shard_what: ([a-z]+).*/\1, \2/p' "$1"
}
search speed
expect_equal 'degrees that may be faster' "$(cut -d ';' -f 1 speed.tried | tr '\n' ';')" 'none;2, optimizer;4, optimizer;'
expect_equal 'the fastest' "$(taken speed.yaml)" "$(sort -t ';' -k 2,2nr speed.tried | head -n 1 | cut -d ';' -f 1)"
search memory
expect_equal 'all degrees' "$(wc -l <memory.tried | tr -d ' ')" 7
expect_equal 'the smallest' "$(taken memory.yaml)" "$(sort -t ';' -k 3,3n memory.tried | head -n 1 | cut -d ';' -f 1)"
expect_equal 'weights in shards' "$(taken memory.yaml)" '4, weights'

# What does not fit without shards is advised with them, and the advice holds.
expect_exit 3 smp-partition "$model" -n 4 --tensor 1 --stages 1 --microbatches 1 --memory 100MB --shard 1 -o none.yaml
expect_match err 'It would fit with --shard auto \(step [0-9.]+ ms: '
expect_exit 0 smp-partition "$model" -n 4 --tensor 1 --stages 1 --microbatches 1 --memory 100MB --shard auto --time-limit "$search_s" -o advised.yaml
[ -n "$(taken advised.yaml)" ] || fail 'a plan without shards'

# Groups of devices that leave too few replicas for the shards asked for are no choice.
expect_exit 3 smp-partition "$model" --cluster "$SMP_EXAMPLES/cluster-laptop.yaml" -n 4 --stages 1 --shard 4 \
    --microbatches 1 --memory 10MB --effort quick
expect_match err 'does not fit'

# Weights are gathered when they are needed where only that fits; no buckets where they bring nothing. The plan
# is found at once; what the search does with more time is not looked at.
sed 's/T: 2048/T: 512/' "$SMP_EXAMPLES/gpt2-30b.yaml" >30b.yaml
published=(smp-partition 30b.yaml --cluster "$SMP_EXAMPLES/cluster-a100-40g-16.yaml" -n 128 --stages 1 --tensor 1 --device cuda
    --precision bf16 --microbatch-size 24 --microbatches 1 --chunks 48 --pipeline breadth-first --shard 64
    --shard-what weights --memory 41GiB --offload none --offload-states none --time-limit "$search_s"
    -o 30b.plan.yaml)
expect_exit 3 "${published[@]}" --prefetch 1
expect_exit 0 "${published[@]}"
expect_match 30b.plan.yaml 'shard: 64, shard_what: weights, prefetch: 0'
expect_no_match 30b.plan.yaml 'bucket_bytes'

cat >wide.yaml <<'END'
smp: 1
name: wide
inputs:
  tokens:  {dtype: int32, shape: [16]}
  targets: {dtype: int32, shape: [16]}
ops:
  - {op: embedding, name: wte, in: tokens, out: x, rows: 256, features: 16}
  - {op: linear, name: wide, in: x, out: y, features: 65536}
  - {op: linear, name: narrow, in: y, out: x, features: 16}
  - {op: linear, name: head, in: x, out: logits, features: 256}
  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}
loss: loss
END
for shards in auto 4; do
    expect_exit 3 smp-partition wide.yaml -n 4 --tensor 1 --ddp 4 --stages 1 --shard "$shards" --shard-what weights --memory 5MB \
        "${brief[@]}" -o none.yaml
    expect_equal 'messages' "$(wc -l <err | tr -d ' ')" 1
    expect_match err "model 'wide' does not fit: .* needs? .* more than the device's 4.8 MiB"
    [ ! -e none.yaml ] || fail 'a plan that does not fit was written'
done
expect_bad 'prefetch: got' smp-partition "$model" -n 4 --tensor 1 --shard 4 --prefetch x
expect_bad 'bucket-bytes: got' smp-partition "$model" -n 4 --tensor 1 --bucket-bytes 0
# A plan by hand may say it as well.
for what in optimizer gradients weights; do
    printf 'smp: 1\nmodel: {path: %s}\nparallel: {pipeline: 1, ddp: 2, shard: 2, shard_what: %s}\nstages:\n  - {ops: ["*"]}\n' \
        "$model" "$what" >by-hand.yaml
    expect_exit 0 smp-partition check by-hand.yaml -o filled-in.yaml
    expect_match filled-in.yaml "shard: 2, shard_what: $what"
done
finish

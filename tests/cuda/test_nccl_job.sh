#!/usr/bin/env bash
# Jobs on emulated GPUs whose messages and sums go through emulated NCCL: the same bits as through
# host memory; a network that fails ends the job and is named, and so does a rank that fails in
# opening NCCL. Over host memory they share a GPU, which NCCL refuses.
# A rank whose kernels take longer is named as slow, not the one that waits for it.
# An operator that adds up over replicas is refused. SMP_TEST_LONG: a larger model, more shards and replicas.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
limit_s=120
export SMP_EMULATE_LAZY=1 # no kernel is loaded while a message is waited for
export SMP_EMULATE_DEVICES=4 SMP_EMULATE_MULTIPROCESSORS=64
write_text text.txt 20000
model=$SMP_EXAMPLES/branches.yaml
[ -n "${SMP_TEST_LONG-}" ] || {
    sed 's/^let: .*/let: {T: 8, d: 32, vocab: 128}/' "$model" >branches.yaml
    model=branches.yaml
}

train() { # plan, ranks: one step, the weights' hashes in `weights`
    expect_exit 0 mpirun -n "$2" smp-run-emulated "$1" --device cuda --data text.txt --steps 1 --clip 1 --seed 3 \
        --checksum "${@:3}"
    sed -nE 's/.*replica ([0-9]+) weights ([0-9a-f]+).*/\1 \2/p' out >weights
}

compare() { # name, ranks, arguments of smp-partition: both transports
    expect_exit 0 smp-partition "$model" -n "$2" --microbatch-size 1 \
        --microbatches 3 "${@:3}" -o plan.yaml
    SMP_EMULATE_DEVICES=1 train plan.yaml "$2" --share-gpus
    expect_match err 'transport staged \[nccl: rank 0: two ranks share GPU'
    mv weights staged
    train plan.yaml "$2"
    expect_match err 'transport nccl$'
    [ -s weights ] || fail "$1: no weight hash"
    expect_equal "$1: weights" "$(cat weights)" "$(cat staged)"
}

name_slow() { # GPUs (1: over host memory), slow rank, arguments of smp-partition
    expect_exit 0 smp-partition "$model" -n 2 --microbatch-size 1 --pipeline simple --chunks 1 "${@:3}" -o plan.yaml
    for devices in $1; do
        SMP_EMULATE_DEVICES=$devices SMP_EMULATE_PROTECT=0 SMP_EMULATE_SLOW="$2 3000" expect_exit 0 mpirun -n 2 \
            smp-run-emulated plan.yaml --device cuda --share-gpus --data text.txt --steps 12 --json
        expect_equal "${*:3}: slow ranks" "$(sed -nE 's/.*"slow_rank": ([0-9]+).*/\1/p' out)" "$2"
    done
}

compare 'two stages per rank' 2 --stages 2 --pipeline interleaved --chunks 2
compare 'two replicas' 2 --stages 1 --ddp 2 --pipeline simple --chunks 1

# Two slices of one GPU; a GPU for each of the ranks that see nothing else; one for both is to be asked for.
SMP_EMULATE_MIG=1 train plan.yaml 2
expect_match err 'transport staged \[nccl: rank 0: two ranks share GPU 0000:17:00\.0'
SMP_EMULATE_MEMORY=734003200 train plan.yaml 2
expect_match err 'transport staged \[nccl: .*communicators may take 360 MiB, .* takes 51[0-9.]+ MiB; 6[0-9.]+ MiB are free'
sort -u -k 2,2 weights | cut -d ' ' -f 2 >whole
rank=(smp-run-emulated plan.yaml --device cuda --data text.txt --steps 1)
for second in 1 0; do
    expect_exit $((second ? 0 : 2)) mpirun -n 1 -x CUDA_VISIBLE_DEVICES=0 "${rank[@]}" : \
        -n 1 -x CUDA_VISIBLE_DEVICES=$second "${rank[@]}"
    expect_match err "$([ $second = 1 ] && echo 'transport nccl$' || echo '2 ranks on this host see 1 GPU: .*--share-gpus')"
done
if [ "$(nproc)" -gt 1 ]; then # told once, and by no rank that is not bound
    expect_exit 0 mpirun -n 2 taskset -c 0 "${rank[@]}"
    expect_equal 'ranks that are bound' "$(grep -cE 'transport nccl \[ranks are bound to few cores \(1\).*--bind-to numa' err)" 1
fi

# Sharded states, in buckets: the bits of two replicas that share nothing.
for what in optimizer gradients weights; do
    compare "$what in shards" 2 --stages 1 --ddp 2 --shard 2 --shard-what "$what" --pipeline breadth-first \
        --chunks 3 --bucket-bytes 4KiB
    expect_equal "$what in shards, against none" "$(cut -d ' ' -f 2 weights | sort -u)" "$(cat whole)"
done
[ -z "${SMP_TEST_LONG-}" ] || # in_blocks has them below
    compare 'two groups' 4 --stages 1 --ddp 4 --shard 2 --shard-what weights --pipeline breadth-first --chunks 2 \
        --bucket-bytes 4KiB

# The promise for replicas: with one number of gradient blocks the bits of one rank; of twelve, replicas and groups
# have several sums to send.
in_blocks() { # blocks, ranks, micro-batches, arguments: one hash in `bits`
    expect_exit 0 smp-partition "$model" -n "$2" --microbatch-size 1 --microbatches "$3" \
        --stages 1 --gradient-blocks "$1" "${@:4}" -o plan.yaml
    train plan.yaml "$2"
    expect_equal "${*:4}: replicas" "$(wc -l <weights | tr -d ' ')" "$2"
    cut -d ' ' -f 2 weights | sort -u >bits
}
ways=('12 2 6 --ddp 2 --pipeline simple --chunks 1'
    '12 4 3 --ddp 4 --shard 2 --shard-what weights --pipeline breadth-first --chunks 2 --bucket-bytes 4KiB'
    '4 4 1 --ddp 4 --shard 4 --shard-what weights --node-replicas 2 --pipeline breadth-first --chunks 2')
[ -z "${SMP_TEST_LONG-}" ] || ways+=('4 4 1 --ddp 4 --pipeline simple --chunks 1'
    '4 2 2 --ddp 2 --pipeline simple --chunks 1'
    '12 4 3 --ddp 4 --pipeline simple --chunks 1 --gradient-wire fp32'
    '4 4 1 --ddp 4 --shard 2 --shard-what weights --pipeline breadth-first --chunks 2 --bucket-bytes 4KiB'
    '4 4 1 --ddp 4 --shard 4 --shard-what gradients --pipeline simple --chunks 1')
for blocks in 4 12; do
    in_blocks "$blocks" 1 "$blocks" --ddp 1 --pipeline simple --chunks 1
    mv bits "one$blocks"
done
for options in "${ways[@]}"; do
    # shellcheck disable=SC2086
    in_blocks $options
    expect_equal "in blocks: $options" "$(cat bits)" "$(cat "one${options%% *}")"
done

name_slow "1${SMP_TEST_LONG:+ 4}" 1 --stages 1 --ddp 2 --microbatches 1
name_slow "${SMP_TEST_LONG:+1 }4" 0 --stages 2 --microbatches 2
compare 'two ranks, two replicas in a group' 4 --stages 2 --ddp 2 --shard 2 --shard-what gradients \
    --pipeline interleaved --chunks 1

expect_exit 0 smp-partition "$model" -n 2 --stages 2 --pipeline interleaved \
    --chunks 1 --microbatches 3 --microbatch-size 1 -o plan.yaml
for after in 1 2; do # while ranks connect
    SMP_EMULATE_NCCL_FAIL=$after run mpirun -n 2 "${rank[@]}"
    [ "$status" -ne 0 ] || fail 'a network that failed at the start did not end the job'
    expect_match err 'rank [01]: messages (to|from) pipeline rank [01]: .*remote process exited'
done
export SMP_EMULATE_NCCL_FAIL=9
run mpirun -n 2 "${rank[@]}"
[ "$status" -ne 0 ] || fail 'a failed network did not end the job'
expect_match err 'rank [01] \(replica 0, .*messages (to|from) pipeline rank [01]: .*remote process exited'
unset SMP_EMULATE_NCCL_FAIL

# A rank that fails while communicators are made, is killed there, or hangs, itself or in NCCL alone: the
# others leave, and who it was is said.
for fault in error kill hang stuck; do
    begin=$SECONDS
    run mpirun -n 1 "${rank[@]}" --timeout 2 : \
        -n 1 -x SMP_EMULATE_NCCL_INIT=$fault "${rank[@]}" --timeout 2
    [ "$status" -ne 0 ] || fail "NCCL's start, $fault: did not end the job"
    [ $((SECONDS - begin)) -lt 20 ] || fail "NCCL's start, $fault: took $((SECONDS - begin)) s"
    expect_no_match err 'CUDA emulator' # who aborts frees nothing that a call still uses
    case $fault in
    error) expect_match err 'rank 1: ncclCommInitRankConfig: .*system error' ;;
    kill) expect_match err 'process rank 1 .*exited on signal 9|rank 1: no answer' ;;
    hang) expect_match err 'rank 0 waits for the other ranks to open NCCL; rank 1: no answer' ;;
    stuck) expect_match err 'rank 1: NCCL does not return from: ncclCommInitRankConfig' ;;
    esac
done
SMP_EMULATE_NCCL_VERSION=22304 train plan.yaml 2
expect_match err 'transport staged \[nccl: .*NCCL 2\.23\.4, expected 2\.24 or later'

cat >joint.yaml <<'END'
smp: 1
name: joint
inputs:
  tokens: {dtype: int32, shape: [8]}
  targets: {dtype: int32, shape: [8]}
ops:
  - {op: embedding, name: wte, in: tokens, out: x, rows: 256, features: 8}
  - {op: batchnorm, name: norm, in: x, out: x, sync: true}
  - {op: linear, name: head, in: x, out: logits, features: 256}
  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}
loss: loss
END
for ddp in 1 2; do
    expect_exit 0 smp-partition joint.yaml -n "$ddp" --stages 1 --ddp "$ddp" --pipeline simple --chunks 1 \
        --microbatches 1 --microbatch-size 2 -o plan.yaml
    expect_exit $((ddp - 1)) mpirun -n "$ddp" "${rank[@]}"
done
expect_match err "op 'norm' \(batchnorm\) adds up over replicas, which device 'cuda' cannot"
finish

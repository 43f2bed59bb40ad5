#!/usr/bin/env bash
# Stashes that travel to host memory or to a file, and states of the optimizer that lie there: all steps
# give the same losses and the same weights as without, and checkpoints the same bytes, whatever the
# schedule. A far side that fails is told with rank, stage, micro-batch and action.
# shellcheck source=training.sh
source "$(dirname "${BASH_SOURCE[0]}")/training.sh"
# Updates of states next door go on beside the next step, wherever cores are scarce too, and slowly.
export SMP_UPDATE_THREAD=1 SMP_UPDATE_DELAY=200

cat >cluster.yaml <<'END'
smp: 1
name: four
nodes: 1
devices_per_node: 4
device: {name: cpu, memory: 2GB, compute: {fp32: 100GFLOP/s}, bandwidth: 20GB/s}
links:
  intra_node: {bandwidth: 10GB/s, latency_us: 3}
  host: {bandwidth: 4GB/s, latency_us: 10}
END

# away MODEL DEVICES STAGES DDP PIPELINE CHUNKS MICROBATCHES RECOMPUTE REFERENCE [option...]
away() {
    plan away.yaml "$1" "$2" "$3" "$4" "$5" "$6" "$7" 1 "$8" --cluster cluster.yaml "${@:10}"
    expect_match away.yaml 'host_bytes: \[.*[1-9]'
    train away.yaml "$2" away
    sort -u -o away.weights away.weights # replicas are alike
    same away "$9"
}

plan reference.yaml "$tiny" 1 1 1 simple 1 8 1
train reference.yaml 1 gpt
if [ -n "${SMP_TEST_LONG-}" ]; then
    away "$tiny" 1 1 1 simple 1 8 none gpt --offload all --loading-horizon 2
    away "$tiny" 4 4 1 interleaved 1 8 none gpt --offload all --loading-horizon 1
    away "$tiny" 4 4 1 zero-bubble 1 8 none gpt --offload all
fi
away "$tiny" 1 1 1 simple 1 8 none gpt --offload all --loading-horizon 1
away "$tiny" 4 4 1 interleaved 1 8 none gpt --offload all --loading-horizon 2
expect_match away.yaml 'S[0-9]+\.0 .*L[0-9]+\.0 '
away "$tiny" 2 2 1 interleaved 2 8 none gpt --offload all
away "$tiny" 2 2 1 zero-bubble 1 8 none gpt --offload all
away "$tiny" 2 2 1 breadth-first 2 8 none gpt --offload all --offload-states

# Replicas, and states in shards: a tree of sums of their own.
plan reference.yaml "$tiny" 1 1 1 simple 1 8 1 none --gradient-blocks 2
train reference.yaml 1 blocks
away "$tiny" 2 1 2 simple 1 4 none blocks --offload all --gradient-blocks 2
away "$tiny" 2 1 2 interleaved 1 4 none blocks --offload all --offload-states --gradient-blocks 2 \
    --shard 2 --shard-what optimizer
[ -z "${SMP_TEST_LONG-}" ] || away "$tiny" 4 2 2 interleaved 1 4 none blocks --offload all --offload-states \
    --gradient-blocks 2 --shard 2 --shard-what optimizer
away "$tiny" 2 1 2 breadth-first 2 4 none blocks --offload-states --gradient-blocks 2 \
    --shard 2 --shard-what weights

# Groups of devices that compute ops together: the bits of groups that keep everything.
plan reference.yaml "$tiny" 2 1 1 simple 1 8 1 none --cluster cluster.yaml --tensor 2 --split '*.mlp.fc:columns' \
    --split '*.mlp.proj:rows'
train reference.yaml 2 groups
away "$tiny" 2 1 1 simple 1 8 none groups --tensor 2 --split '*.mlp.fc:columns' --split '*.mlp.proj:rows' \
    --offload all --offload-states
[ -z "${SMP_TEST_LONG-}" ] || away "$tiny" 4 2 1 interleaved 1 8 none groups --tensor 2 --split '*.mlp.fc:columns' \
    --split '*.mlp.proj:rows' --offload all --offload-states

# Running statistics, tied weights, skips; a file in place of memory.
write_models
mkdir far
for model in residual ties; do
    plan reference.yaml "$model.yaml" 1 1 1 simple 1 6 4
    train reference.yaml 1 "$model"
    plan away.yaml "$model.yaml" 1 1 1 simple 1 6 4 none --cluster cluster.yaml --offload all \
        --offload-states
    train away.yaml 1 away --offload-to far
    same away "$model"
done
expect_equal "files left in the folder" "$(find far -type f | wc -l)" 0

# A checkpoint is the same bytes wherever the states lie, and each resumes what the other saved.
run_on() { # plan ranks steps folder [option...]
    expect_exit 0 mpirun -n "$2" smp-run "$1" --data text.txt --steps "$3" --checkpoint "$4" "${@:5}"
}
plan near.yaml "$tiny" 2 2 1 simple 1 8 1
plan far.yaml "$tiny" 2 2 1 simple 1 8 1 none --cluster cluster.yaml --offload all \
    --offload-states
run_on near.yaml 2 3 near
run_on far.yaml 2 3 away --offload-to far
expect_exit 0 cmp near/checkpoint-0000000003.smp away/checkpoint-0000000003.smp
run_on near.yaml 2 6 away --resume
run_on far.yaml 2 6 near --resume
expect_exit 0 cmp near/checkpoint-0000000006.smp away/checkpoint-0000000006.smp

# A prediction is a forward of its own: nothing travels in it.
head -c 1300 text.txt >few.txt
for kind in near far; do
    run_on "$kind.yaml" 2 6 near --resume --predict "$kind.npy" --predict-data few.txt
done
expect_exit 0 cmp near.npy far.npy

# What a run tells of it: predicted and measured copies, and waiting for them.
expect_exit 0 env SMP_THROTTLE_HOST=3e8 mpirun -n 2 smp-run far.yaml --data text.txt --steps 4 \
    --trace trace.json --report page.html
expect_json trace.json
expect_match out '^rank .* offload '
for pid in 1 2; do
    for letter in S L; do
        expect_match trace.json "\"name\":\"${letter}[0-9]+\.0\",\"cat\":\"offload\",\"ph\":\"X\",\"pid\":$pid"
    done
done
expect_match page.html 'offload'
expect_exit 0 mpirun -n 2 smp-run far.yaml --data text.txt --steps 2 --log log.csv --json
expect_match out '"predicted": \{[^}]*"offload_us": [0-9]'

# Without a folder, a disk that is full in the middle.
expect_exit 2 mpirun -n 2 smp-run far.yaml --data text.txt --offload-to none
expect_match err "rank [01]: offload to 'none': no file can be made there: No such file"
expect_exit 1 mpirun -n 2 -x LD_PRELOAD="$SMP_BIN_DIR/bad_disk.so" -x FAIL_WRITE='(deleted)' \
    -x FAIL_AFTER=9000000 -x BAD_RANK=1 smp-run far.yaml --data text.txt --offload-to far
expect_match err "rank 1 .*stage 1, micro-batch [0-7], action S[0-7]\.0\): offload to 'far': writing \
[0-9]+ bytes at [0-9]+ of its file: No space left on device"

# A copy that gets nowhere is waited for no longer than anything else.
expect_exit 1 env SMP_THROTTLE_HOST=1000 mpirun -n 2 smp-run far.yaml --data text.txt --timeout 1
expect_match err "no progress for 1 s: rank [01] waits for the stash of micro-batch [0-7] of stage [01] \
on its way out \(memory\)"
finish

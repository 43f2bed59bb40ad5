#!/usr/bin/env bash
# States in memory that outlives a job: ranks that are killed, anywhere, cost at most one step that was done; what
# goes on from memory, under the same plan or another, has the bits of a run that nobody disturbed.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
write_text text.txt 60000
sed 's/^let: .*/let: {T: 16, d: 32, heads: 4, layers: 2, vocab: 256}/' "$SMP_EXAMPLES/gpt-tiny.yaml" >tiny.yaml
cat >cluster.yaml <<'END'
smp: 1
name: two
nodes: 1
devices_per_node: 2
device: {name: cpu, memory: 2GB, compute: {fp32: 100GFLOP/s}, bandwidth: 20GB/s}
links:
  intra_node: {bandwidth: 10GB/s, latency_us: 3}
  host: {bandwidth: 4GB/s, latency_us: 10}
END
common=(--data text.txt --json --checksum --lr 0.003 --warmup 3 --decay-steps 30 --clip 1 --seed 5 --steps 16)
keep=(--checkpoint saved --keep-every 1 --keep-in "$PWD/keep")

plan() { # name devices stages ddp option...
    expect_exit 0 smp-partition tiny.yaml -n "$2" --stages "$3" --ddp "$4" --microbatches $((4 / $4)) \
        --microbatch-size 1 --gradient-blocks 2 --pipeline interleaved --chunks 1 "${@:5}" "${brief[@]}" -o "$1.yaml"
}

weights() {
    sed -nE 's/.*"weights": "([0-9a-f]+)".*/\1/p' out | sort -u
}

whole() { # plan ranks: what a run without faults computes
    expect_exit 0 mpirun -n "$2" smp-run "$1.yaml" "${common[@]}" "${@:3}"
    losses out >whole.loss
    weights >whole.weights
    expect_equal "steps" "$(wc -l <whole.loss | tr -d ' ')" 16
    expect_equal "hashes" "$(wc -l <whole.weights | tr -d ' ')" 1
}

# life PLAN:RANKS FAULT PLAN:RANKS [FAULT PLAN:RANKS...]: each run but the last dies of its fault.
life() {
    local name=$* last=0 resumed=0 auto=() fault
    rm -rf saved keep
    : >life.loss
    while [ $# -gt 1 ]; do
        fault=$2
        rm -f fault.log
        run mpirun -n "${1#*:}" env LD_PRELOAD="$SMP_BIN_DIR/make_fault.so" FAULT="$fault" FAULT_LOG="$PWD/fault.log" \
            smp-run "${1%:*}.yaml" "${common[@]}" "${keep[@]}" "${auto[@]}"
        checks=$((checks + 1))
        if [ "$status" -eq 0 ] || [ ! -s fault.log ]; then
            fail "$name: no fault '$fault'"
        fi
        losses out >>life.loss
        last=$(losses out | tail -n 1 | cut -d' ' -f1)
        auto=(--resume=auto)
        shift 2
    done
    expect_exit 0 mpirun -n "${1#*:}" smp-run "${1%:*}.yaml" "${common[@]}" "${keep[@]}" "${auto[@]}"
    resumed=$(sed -nE 's/^smp-run: resumed from memory, step ([0-9]+) of .*/\1/p' err)
    checks=$((checks + 1))
    if [ "${resumed:-0}" -lt $((${last:-0} - 1)) ] || [ "${resumed:-0}" -eq 0 ]; then
        fail "$name: step $last was done, resumed after step '$resumed'"
    fi
    losses out >>life.loss
    sort -n -u life.loss >once.loss
    expect_equal "$name: losses" "$(cmp once.loss whole.loss && echo same)" same
    expect_equal "$name: weights" "$(weights)" "$(cat whole.weights)"
    expect_equal "$name: what is left" "$(ls -d keep 2>/dev/null)" ""
}

# Stages, replicas, states in parts: killed in a product, in a message, while a state is written.
plan one 1 1 1
plan two 2 2 1
plan four 4 2 2
plan parts 2 1 2 --shard 2 --shard-what weights
whole one 1
life two:2 "1 pwrite 236 kill 0" four:4
life four:4 "3 dnnl_sgemm 700 kill 0" one:1
life parts:2 "0 pwrite 250 kill 0" two:2 "0 MPI_Iallreduce 40 kill 0" parts:2
if [ -n "${SMP_TEST_LONG-}" ]; then
    for at in 150 151 152 153 175 200 222 277; do
        life two:2 "0 pwrite $at kill 0" parts:2 "1 pwrite 125 kill 0" four:4
        life parts:2 "1 pwrite $at kill 0" two:2
    done
fi

plan away 2 2 1 --cluster cluster.yaml --offload-states
SMP_UPDATE_THREAD=1 SMP_UPDATE_DELAY=200 life away:2 "1 pwrite 236 kill 0" one:1

# States in bf16, weights that are frozen, and in parts of a group of devices.
plan narrow 2 2 1 --state-precision bf16
whole narrow 2
life narrow:2 "1 pwrite 200 kill 0" narrow:2
plan frozen 2 2 1 --freeze 'wte.*' --freeze 'h0.*'
whole frozen 2
life frozen:2 "1 pwrite 200 kill 0" frozen:2
plan group 2 1 1 --tensor 2
whole group 2
life group:2 "1 pwrite 300 kill 0" group:2

# What is damaged in memory is passed over for what is on the disk.
rm -rf saved keep
expect_exit 0 mpirun -n 2 smp-run two.yaml "${common[@]}" --checkpoint saved --steps 5
run mpirun -n 2 env LD_PRELOAD="$SMP_BIN_DIR/make_fault.so" FAULT="1 pwrite 236 kill 0" smp-run two.yaml \
    "${common[@]}" "${keep[@]}" --resume
whole one 1
for kept in keep/checkpoint-*.smp; do
    printf 'damage' | dd of="$kept" bs=1 seek=$(($(behind_header "$kept") + 2000)) conv=notrunc status=none
done
expect_exit 0 mpirun -n 1 smp-run one.yaml "${common[@]}" "${keep[@]}" --resume
expect_match err '^smp-run: .*keep/checkpoint-.*is damaged; took the one before, saved/checkpoint-0000000005.smp'
expect_equal "steps after damage" "$(losses out)" "$(tail -n 11 whole.loss)"
expect_equal "weights after damage" "$(weights)" "$(cat whole.weights)"

# Without --resume a state is not lost by accident; what is wrong with options and folders is said.
rm -rf saved keep
run mpirun -n 2 env LD_PRELOAD="$SMP_BIN_DIR/make_fault.so" FAULT="1 pwrite 236 kill 0" smp-run two.yaml \
    "${common[@]}" "${keep[@]}"
expect_exit 2 mpirun -n 2 smp-run two.yaml "${common[@]}" "${keep[@]}"
expect_match err 'keep: holds the state of a run that was not ended: continue it with --resume, or remove it'
chmod 755 keep
expect_exit 2 mpirun -n 2 smp-run two.yaml "${common[@]}" "${keep[@]}" --resume
expect_match err 'keep: states are kept in a folder of one.s own that nobody else can enter \(mode 700\)'
expect_bad '--keep-every needs --checkpoint DIR' smp-run one.yaml "${common[@]}" --keep-every 1
expect_bad 'states are kept there, and removed at the end' smp-run one.yaml "${common[@]}" --checkpoint keep \
    --keep-every 1 --keep-in ./keep/
expect_bad '--keep-in needs --keep-every K' smp-run one.yaml "${common[@]}" --checkpoint saved --keep-in keep
finish

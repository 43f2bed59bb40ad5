#!/usr/bin/env bash
# Loss scaling: steps that overflow are skipped on every rank of a pipeline, of replicas and of shards,
# and the scale goes by its rule (tests/tools/check_scale.py); resuming keeps bits; a power of two
# changes none in fp32; a scale that can fall no further ends a job that gets nowhere.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
python3 "$SMP_SOURCE_DIR/tests/data/model_inputs.py" . 96 x:float:5 y:float:2
# plan FILE [options]: four micro-batches of two samples in all
plan() {
    expect_exit 0 smp-partition "$SMP_EXAMPLES/mlp.yaml" --microbatch-size 2 --gradient-blocks 2 "${@:2}" -o "$1"
}
# train NAME RANKS PLAN [options]: lines of steps in NAME, without times; hashes, each once, behind them
train() {
    expect_exit 0 mpirun -n "$2" smp-run "$3" --data x=x.npy --data y=y.npy --no-shuffle --log-every 1 --json \
        --checksum --lr 0.01 "${@:4}"
    sed -nE 's/"step_us.*"lr"/"lr"/; /^\{"step/p' out >"$1"
    sed -nE 's/.*"weights": "([0-9a-f]+)".*/\1/p' out | sort -u >>"$1"
}
# put FILE.npy ELEMENT VALUE
put() {
    python3 -c 'import struct, sys
with open(sys.argv[1], "r+b") as file:
    file.seek(128 + 4 * int(sys.argv[2]))
    file.write(struct.pack("<f", float(sys.argv[3])))' "$@"
}
same() {
    expect_equal "$1 and $2" "$(cmp "$1" "$2" && echo same)" same
}
plan one.yaml -n 1 --microbatches 4
plan pipeline.yaml -n 2 --stages 2 --microbatches 4
plan zero-bubble.yaml -n 2 --stages 2 --microbatches 4 --pipeline zero-bubble
plan replicas.yaml -n 2 --stages 1 --ddp 2 --microbatches 2
cat >cluster.yaml <<'END'
smp: 1
nodes: 1
devices_per_node: 2
device: {name: core, memory: 1GB, compute: {fp32: 100GFLOP/s}, bandwidth: 10GB/s}
links: {intra_node: {bandwidth: 5GB/s, latency_us: 5}, host: {bandwidth: 5GB/s, latency_us: 5}}
overlap: true
END
plan far.yaml --cluster cluster.yaml --stages 2 --microbatches 4 --offload all --offload-states
expect_match far.yaml offload_states
export SMP_UPDATE_THREAD=1 SMP_UPDATE_DELAY=200 # beside the next step, slowly
plan shards.yaml -n 2 --stages 1 --ddp 2 --microbatches 2 --shard 2 --shard-what weights --chunks 2 --pipeline breadth-first

# Gradients of 2^24 times the loss's are too large for fp16; a sample of 1e5 is, whatever the scale.
put x.npy $((5 * (8 * 8 + 3))) 1e5 # step 9 of every 12
scale=(--loss-scale-init 16777216 --scale-window 4 --delayed-shift 2)
train one 1 one.yaml --precision fp16 --steps 30 "${scale[@]}"
expect_exit 0 python3 "$SMP_SOURCE_DIR/tests/tools/check_scale.py" one 16777216 4 1 2
expect_match out '^[0-9]+ skipped, [0-9]+ doubled, [0-9]+ halved$'
for split in pipeline zero-bubble far replicas shards; do
    train "$split" 2 "$split.yaml" --precision fp16 --steps 30 "${scale[@]}"
    same "$split" one
done
# Steps of 1, 2, .. overflow until the scale fits, 9 and 21 by their input.
for step in 1 9 21; do
    expect_equal "step $step" "$(sed -n "${step}p" one | grep -c '"grad_norm": null')" 1
done
expect_equal "last steps" "$(sed -n '25p' one | grep -c '"grad_norm": null' || true)" 0

# The state is in checkpoints: any plan goes on with it. Older ones begin anew.
train first 2 pipeline.yaml --precision fp16 --steps 17 "${scale[@]}" --checkpoint saved
expect_match saved/checkpoint-0000000017.smp '^loss-scale [0-9]+ good [0-3] left [12]$'
train rest 2 replicas.yaml --precision fp16 --steps 30 "${scale[@]}" --checkpoint saved --resume
sed 's/"skipped": [0-9]*/"skipped": N/' rest >resumed
tail -n 14 one | sed 's/"skipped": [0-9]*/"skipped": N/' >expected
same resumed expected

# In fp32 and bf16 when asked; a power of two changes no bit there, whatever the optimizer.
python3 "$SMP_SOURCE_DIR/tests/data/model_inputs.py" . 96 x:float:5
ways=("adamw 0" "adamw 0.5" "sgd 0.5" "lion 0" "lamb 0.5" "lars 0")
[ -z "${SMP_TEST_LONG-}" ] || ways+=("sgd 0" "lion 0.5" "lamb 0" "lars 0.5")
for way in "${ways[@]}"; do
    options=(--steps 6 --optimizer "${way% *}" --clip "${way#* }")
    train plain 1 one.yaml "${options[@]}"
    if [ "$way" = "adamw 0" ] || [ -n "${SMP_TEST_LONG-}" ]; then
        train off 1 one.yaml "${options[@]}" --loss-scale off
        same off plain
    fi
    expect_no_match plain loss_scale
    train scaled 1 one.yaml "${options[@]}" --loss-scale 4096
    expect_equal "$way: lines" "$(grep -c '"loss_scale": 4096}' scaled)" 6
    sed -i 's/, "loss_scale": 4096//' scaled
    same scaled plain
done
expect_exit 0 mpirun -n 1 smp-run one.yaml --data x=x.npy --data y=y.npy --steps 4 --loss-scale auto --log log.csv
expect_equal "log" "$(grep -c ',skipped,loss_scale,\|,0,65536,' log.csv)" 5
expect_match out '^step .*  scale 65536$'
put x.npy $((2 * 8 * 5)) 1e25
train auto 2 replicas.yaml --steps 8 --loss-scale auto --loss-scale-init 1000 --scale-window 2 --delayed-shift 1
expect_exit 0 python3 "$SMP_SOURCE_DIR/tests/tools/check_scale.py" auto 1000 2 1 1

# While the scale can fall, skipped steps are no failure; at its least they are.
python3 "$SMP_SOURCE_DIR/tests/data/model_inputs.py" . 8 x:float:5 y:float:2
put y.npy 0 inf
expect_exit 1 mpirun -n 2 smp-run replicas.yaml --data x=x.npy --data y=y.npy --steps 40 --log-every 1 --json --precision fp16 \
    --loss-scale-init 8 --delayed-shift 2 --max-skipped 3
expect_equal "messages" "$(grep -c 'smp-run: 3 steps in a row changed nothing' err || true)" 1
expect_match err 'the last one step 7:'

expect_bad "loss scale 'often': expected auto, off, or a number from" \
    smp-run one.yaml --data x=x.npy --data y=y.npy --loss-scale often
expect_bad 'scale window' smp-run one.yaml --data x=x.npy --data y=y.npy --delayed-shift 0
finish

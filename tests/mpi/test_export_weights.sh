#!/usr/bin/env bash
# --export-weights: one file in the safetensors format, the same bytes however the model was split, from a run
# or from its checkpoint; a disk that fails leaves nothing.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
model=tiny.yaml
sed 's/layers: 4/layers: 2/' "$SMP_EXAMPLES/gpt-tiny.yaml" >$model
write_text text.txt 20000

plan() { # file devices stages ddp pipeline chunks microbatches [option...]
    expect_exit 0 smp-partition "$model" -n "$2" --stages "$3" --ddp "$4" --pipeline "$5" --chunks "$6" \
        --microbatches "$7" --microbatch-size 1 --gradient-blocks 4 -o "$1" "${@:8}"
}

run_plan() { # ranks plan [option...]
    expect_exit 0 mpirun -n "$1" smp-run "$2" "${@:3}"
}

same() { # what file
    expect_equal "$1: bytes" "$(cmp "$2" one.safetensors && echo same)" same
}

plan one.yaml 1 1 1 1f1b 1 4
run_plan 1 one.yaml --data text.txt --steps 2 --checkpoint saved --export-weights one.safetensors
expect_exit 0 python3 "$SMP_SOURCE_DIR/tests/data/safetensors_values.py" one.safetensors
expect_equal "tensors" "$(wc -l <out | tr -d ' ')" 28
expect_match out '^wte\.weight 256x128 '
expect_match out '^h0\.attn\.qkv\.weight 384x128 '
expect_match out '^ln_f\.bias 128 '
expect_equal "other values" "$(cut -d' ' -f 3 out | grep -vcx 0)" 28

while read -r size name ranks stages ddp pipeline chunks microbatches options; do
    [ "$size" = always ] || [ -n "${SMP_TEST_LONG-}" ] || continue
    # shellcheck disable=SC2086 # words
    plan "$name.yaml" "$ranks" "$stages" "$ddp" "$pipeline" "$chunks" "$microbatches" $options
    run_plan "$ranks" "$name.yaml" --data text.txt --steps 2 --export-weights "$name.safetensors"
    same "$name" "$name.safetensors"
done <<'PLANS'
always two 2 2 1 zero-bubble 1 4
always chunks 2 2 1 interleaved 2 4
always ddp 2 1 2 simple 1 2
long both 4 2 2 1f1b 1 2
always optimizer 4 2 2 1f1b 1 2 --shard 2
long weights 4 1 4 breadth-first 3 1 --shard 4 --shard-what weights
always groups 4 1 4 breadth-first 3 1 --shard 2 --shard-what weights
PLANS

# A checkpoint becomes a file without data, a step or a new checkpoint, whatever the plan.
before=$(checkpoints saved)
jobs=("1 one" "2 ddp")
[ -z "${SMP_TEST_LONG-}" ] || jobs+=("4 both")
for job in "${jobs[@]}"; do
    run_plan "${job% *}" "${job#* }.yaml" --checkpoint saved --resume --steps 0 --export-weights again.safetensors
    same "resumed, $job" again.safetensors
    expect_equal "output" "$(wc -c <out | tr -d ' ')" 0
done
expect_equal "checkpoints" "$(checkpoints saved)" "$before"
run_plan 2 two.yaml --steps 0 --export-weights first.safetensors
expect_equal "before the first step" "$(cmp -s first.safetensors one.safetensors && echo same)" ""
expect_bad 'no --data' smp-run one.yaml --steps 1 --export-weights new.safetensors

# A pipe takes it as well.
run_plan 2 two.yaml --checkpoint saved --resume --steps 0 --export-weights /dev/stdout
same "by a pipe" out

# Found before the first step.
expect_exit 1 mpirun -n 2 smp-run two.yaml --data text.txt --steps 2 --export-weights absent/w.safetensors
expect_match err 'absent/w.safetensors: cannot write the weights: No such file or directory'
expect_equal "messages" "$(grep '^smp-run: ' err | grep -vc ': resumed after')" 1
expect_no_match out step

# The disk is full at once, or in the middle of a weight of the other rank: what was there stays, alone.
printf 'older' >old.safetensors
for after in 0 1500000; do
    expect_exit 1 mpirun -n 2 env LD_PRELOAD="$SMP_BIN_DIR/bad_disk.so" FAIL_WRITE=.tmp FAIL_AFTER=$after \
        smp-run two.yaml --checkpoint saved --resume --steps 0 --export-weights old.safetensors
    expect_match err '^smp-run: rank 0: old\.safetensors: cannot write: No space left on device'
    expect_equal "messages" "$(grep '^smp-run: ' err | grep -vc ': resumed after')" 1
    expect_equal "what was there" "$(cat old.safetensors)" older
    expect_equal "files" "$(find . -name 'old.safetensors*' | tr '\n' ' ')" "./old.safetensors "
done
expect_exit 1 mpirun -n 2 env LD_PRELOAD="$SMP_BIN_DIR/bad_disk.so" FAIL_SYNC=.tmp \
    smp-run two.yaml --checkpoint saved --resume --steps 0 --export-weights old.safetensors
expect_match err '^smp-run: rank 0: old\.safetensors: cannot write: Input/output error'
expect_equal "files" "$(find . -name 'old.safetensors*' | tr '\n' ' ')" "./old.safetensors "

# The same in a folder: a set that is not all there replaces nothing, and leaves nothing.
run_plan 2 two.yaml --checkpoint saved --resume --steps 0 --export-weights set/ --export-size 500KB
set_of() {
    (cd set && sha256sum -- *)
}
before=$(set_of)
files=$(find set -type f | wc -l | tr -d ' ')
expect_equal "files of the set" "$files" 6
for after in 0 1200000; do
    expect_exit 1 mpirun -n 2 env LD_PRELOAD="$SMP_BIN_DIR/bad_disk.so" FAIL_WRITE=.tmp FAIL_AFTER=$after \
        smp-run two.yaml --steps 0 --export-weights set/ --export-size 500KB
    expect_match err '^smp-run: rank 0: set/([0-9a-f]{16}\.)?model-0000[1-5]-of-00005\.safetensors: cannot write: No space left on device'
    expect_equal "the set that was there" "$(set_of)" "$before"
done
run_plan 2 two.yaml --steps 0 --export-weights set/ --export-size 500KB
expect_equal "another set" "$([ "$(set_of)" != "$before" ] && find set -type f | wc -l | tr -d ' ')" "$files"

# Killed at any change of a name: the index names one whole set, the old one or the new one. The next export
# leaves nothing but its own.
export_pair() {
    smp-run one.yaml --steps 0 --export-weights pair/ --export-size 1500KB "$@" >out 2>err </dev/null
}
indexed() { # what the index names, in the order of the tensors
    sed -nE 's|^ *"[^"]*": "([^"]*\.safetensors)",?$|pair/\1|p' pair/model.safetensors.index.json | xargs cat | sha256sum
}
export_pair
new=$(indexed)
cp -r pair new_pair
export_pair --checkpoint saved --resume
old=$(indexed)
cp -r pair old_pair
olds=0 news=0 status=9
for kill in {1..30}; do
    status=0
    LD_PRELOAD="$SMP_BIN_DIR/bad_disk.so" KILL_IN=pair/ KILL_AT=$kill export_pair || status=$?
    case $(indexed) in
    "$old") olds=$((olds + 1)) ;;
    "$new") news=$((news + 1)) ;;
    *) fail "killed at change $kill: the index names no whole set" ;;
    esac
    [ "$status" -eq 9 ] || break
    [ $((kill % 4)) -ne 0 ] || cp old_pair/* pair/ # beside what is left
done
expect_equal "exit code of the last one" "$status" 0
if [ "$olds" -lt 3 ] || [ "$news" -lt 3 ]; then
    fail "$olds exports left the old set, $news the new one"
fi
expect_equal "the set at the end" "$(diff -r pair new_pair && find pair -type f | wc -l)" 3

# A matrix of more than one block (4 Mi values) is transposed block by block, however it lies.
cat >wide.yaml <<'MODEL'
smp: 1
inputs:
  x: {dtype: float32, shape: [1500]}
  y: {dtype: float32, shape: [3002]}
ops:
  - {op: linear, name: wide, in: x, out: z, features: 3002}
  - {op: mse, name: loss, in: [z, y], out: loss}
loss: loss
MODEL
echo 'wide.weight = turned transposed' >turned.txt
while read -r size name ranks options; do
    [ "$size" = always ] || [ -n "${SMP_TEST_LONG-}" ] || continue
    # shellcheck disable=SC2086 # words
    expect_exit 0 smp-partition wide.yaml -n "$ranks" --microbatch-size 1 --microbatches 1 -o wide.plan $options
    run_plan "$ranks" wide.plan --steps 0 --export-weights "$name.safetensors" --weights-map turned.txt
    expect_equal "transposed by $name" "$(cmp turned.safetensors "$name.safetensors" && echo same)" same
done <<'PLANS'
always turned 1 --stages 1
always tensor 2 --stages 1 --tensor 2
always shards 2 --stages 1 --ddp 2 --shard 2 --shard-what weights --pipeline breadth-first --chunks 2
long quarters 4 --stages 1 --ddp 4 --shard 4 --shard-what weights --pipeline breadth-first --chunks 2
PLANS
expect_exit 0 smp-partition wide.yaml -n 1 --microbatch-size 1 --microbatches 1 -o wide.plan
run_plan 1 wide.plan --steps 0 --export-weights wide.safetensors
python3 - wide.safetensors turned.safetensors <<'PYTHON' || fail "a transposed matrix of two blocks"
import array, json, sys

def read(path, name):
    with open(path, "rb") as file:
        content = file.read()
    length = int.from_bytes(content[:8], "little")
    tensor = json.loads(content[8:8 + length])[name]
    begin, end = (8 + length + at for at in tensor["data_offsets"])
    return tensor["shape"], array.array("f", content[begin:end])

shape, weight = read(sys.argv[1], "wide.weight")
turned_shape, turned = read(sys.argv[2], "turned")
assert shape == [3002, 1500] and turned_shape == [1500, 3002], (shape, turned_shape)
assert all(weight[c::1500] == turned[c * 3002:(c + 1) * 3002] for c in range(1500))
PYTHON
finish

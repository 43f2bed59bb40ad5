#!/usr/bin/env bash
# smp-export: what it takes and what it refuses. Whether the outputs are right: torch/test_export_onnx.py.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

run smp-export "$SMP_EXAMPLES/mlp.yaml" --onnx x.onnx --weights absent.safetensors
if grep -q 'built without ONNX' err; then
    echo "skipped: built without ONNX"
    exit 77
fi
write_good_model model.yaml

expect_bad 'got 0 arguments, expected one: smp-export MODEL' smp-export
expect_bad 'no --onnx FILE' smp-export model.yaml
expect_bad 'no trained weights: give one of --checkpoint DIR and --weights FILE' smp-export model.yaml --onnx x.onnx
expect_bad 'both: give one of' smp-export model.yaml --onnx x.onnx --checkpoint c --weights w
expect_bad '--names and --weights-map need --weights' smp-export model.yaml --onnx x.onnx --checkpoint c --names hf-gpt2
expect_bad '--best needs --checkpoint' smp-export model.yaml --onnx x.onnx --weights w --best
expect_bad '--onxn: unknown option, nearest is --onnx' smp-export model.yaml --onxn x.onnx

model=$SMP_EXAMPLES/gpt-tiny.yaml
write_text text.txt 3000
expect_exit 0 smp-partition "$model" -n 2 --tensor 2 --microbatch-size 4 --microbatches 2 -o plan.yaml
expect_exit 0 mpirun -n 2 smp-run plan.yaml --data text.txt --steps 2 --checkpoint run --export-weights w.safetensors
expect_bad 'absent.*cannot read the checkpoint directory' smp-export "$model" --onnx x.onnx --checkpoint absent
mkdir empty
expect_bad 'empty: holds no checkpoint' smp-export "$model" --onnx x.onnx --checkpoint empty
expect_bad 'run: holds no checkpoint that was evaluated' smp-export "$model" --onnx x.onnx --checkpoint run --best
expect_bad 'is of another model' smp-export "$SMP_EXAMPLES/llama-tiny.yaml" --onnx x.onnx --checkpoint run
expect_bad "no operator or tensor 'logit'; did you mean 'logits'" smp-export "$model" --onnx x.onnx --checkpoint run --tensor logit
expect_bad "'tokens' is an input of the model" smp-export "$model" --onnx x.onnx --checkpoint run --tensor tokens
expect_bad "gpt-tiny\.yaml:[0-9]+:[0-9]+: op 'loss' \(cross_entropy\): cannot be exported to ONNX: a loss" \
    smp-export "$model" --onnx x.onnx --checkpoint run --tensor loss
expect_equal "no file of what failed" "$(ls x.onnx* 2>/dev/null)" ""

expect_exit 0 smp-export "$model" --onnx x.onnx --checkpoint run
expect_match out '^x\.onnx: [0-9]+ nodes, 52 weights, 3\.[0-9] MiB$'
expect_exit 0 smp-export plan.yaml --onnx y.onnx --weights w.safetensors
expect_equal "of a model and its checkpoint, or of a plan with two devices and exported weights" "$(cmp x.onnx y.onnx && echo same)" same
expect_exit 0 smp-export "$model" --onnx z.onnx --checkpoint run --external-data
expect_match out ' in z\.onnx\.data$'
expect_equal "a small file beside the data" "$([ "$(wc -c <z.onnx)" -lt 100000 ] && [ "$(wc -c <z.onnx.data)" -gt 3000000 ] && echo yes)" yes

# Killed at any change of a name, the model has its own weights: the old ones or the new ones.
sed 's/layers: [0-9]*/layers: 1/' "$model" >one.yaml
expect_exit 0 smp-partition one.yaml -n 1 --microbatches 1 -o one.plan
expect_exit 0 smp-run one.plan --steps 0 --export-weights one.safetensors
whole_model() { # are the weights of pair.onnx those that it names, and of how many layers?
    local data layers=1
    data=$(grep -aoE 'pair\.onnx\.data2?' pair.onnx | sort -u)
    ! grep -aq 'h1\.mlp' pair.onnx || layers=4
    cmp -s "$data" "$layers.data" && echo "$layers"
}
four=(smp-export "$model" --checkpoint run --external-data) one=(smp-export one.yaml --weights one.safetensors --external-data)
expect_exit 0 "${one[@]}" --onnx pair.onnx
cp pair.onnx.data 1.data
cp z.onnx.data 4.data
seen='' kill=0 status=9
while [ "$status" -eq 9 ] && [ "$kill" -lt 12 ]; do
    kill=$((kill + 1))
    run "${one[@]}" --onnx pair.onnx
    LD_PRELOAD="$SMP_BIN_DIR/bad_disk.so" KILL_IN=pair.onnx KILL_AT=$kill run "${four[@]}" --onnx pair.onnx
    seen+="$(whole_model || echo broken) "
done
expect_match <(echo "$seen") '^1 (1 )*(4 )+$'
expect_exit 0 "${four[@]}" --onnx pair.onnx
expect_equal "files of the last one" "$(find . -name 'pair.onnx*' | wc -l)" 2

expect_exit 0 smp-export "$model" --onnx part.onnx --checkpoint run --tensor h0.mlp.gelu --tensor h1.ln_1
expect_match out ' 1[0-9] weights,' # what these outputs do not need is not there

expect_bad "op 'snake' \(snake\): cannot be exported to ONNX: an operator of a plugin" smp-export "$SMP_EXAMPLES/plugin/snake.yaml" \
    --onnx x.onnx --weights s.safetensors --plugin "$SMP_BIN_DIR/snake.so"
cat >opaque.yaml <<'END'
smp: 1
mode: inference
inputs:
  x: {dtype: float32, shape: [4]}
ops:
  - {op: opaque, name: what, in: x, out: y, shape: [4], cost: {forward_us: 1}}
  - {op: relu, name: last, in: y, out: z}
END
expect_bad "opaque\.yaml:6:5: op 'what' \(opaque\): cannot be exported to ONNX: it is only planned" \
    smp-export opaque.yaml --onnx x.onnx --weights s.safetensors

# A value that changed on the disk is found by its hash.
python3 -c "
with open('run/checkpoint-0000000002.smp', 'r+b') as f:
    f.seek(50000)
    byte = f.read(1)
    f.seek(50000)
    f.write(bytes([byte[0] ^ 1]))"
expect_bad "checkpoint-0000000002\.smp: weight 'wte\.weight' is damaged" smp-export "$model" --onnx x.onnx --checkpoint run
finish

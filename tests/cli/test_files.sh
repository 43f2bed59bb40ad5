#!/usr/bin/env bash
# Files that programs read and write: what is no file is refused at once, an input is never written over, and a
# file that cannot be made takes nothing else away.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
limit_s=20
write_text text.txt 20000
cp "$SMP_EXAMPLES/mlp.yaml" model.yaml
quick=(-n 2 --stages 2 --ddp 1 --chunks 1 --microbatches 2 --pipeline simple)
expect_exit 0 smp-partition model.yaml "${quick[@]}" -o plan.yaml

# A pipe is not waited for, and a device that never ends is not read.
mkfifo pipe
for path in pipe /dev/zero; do
    expect_bad "$path: got a .*, expected a regular file" smp-partition "$path"
    expect_bad "$path: got a .*, expected a regular file" smp-partition check "$path"
    expect_bad "$path: got a .*, expected a regular file" smp-partition model.yaml --cluster "$path"
    expect_bad "$path: got a .*, expected a regular file" smp-import "$path"
    expect_bad "$path: got a .*, expected a regular file" smp-run "$path" --data text.txt --steps 1
done
mkdir saved
mkfifo saved/checkpoint-0000000001.smp
expect_exit 0 smp-partition "$SMP_EXAMPLES/gpt-tiny.yaml" -n 1 --microbatches 1 -o gpt.yaml
expect_bad 'saved/checkpoint-0000000001.smp: got a pipe' smp-run gpt.yaml --data text.txt --steps 1 --checkpoint saved --resume
# Links are followed, and outputs may be what a user has.
ln -s model.yaml link.yaml
expect_exit 0 smp-partition link.yaml "${quick[@]}" -o /dev/stdout
expect_match out '^programs:'

# An input stays what it was, whatever it is called.
ln -s model.yaml other.yaml
ln model.yaml hard.yaml
for path in model.yaml ./model.yaml other.yaml hard.yaml; do
    expect_bad "$path: it is read, too" smp-partition model.yaml "${quick[@]}" -o "$path"
    expect_bad "$path: it is read, too" smp-partition model.yaml "${quick[@]}" --export "json:$path"
    expect_bad "$path: it is read, too" smp-profile model.yaml -o "$path"
done
expect_bad 'plan.yaml: it is read, too' smp-partition model.yaml --fix plan.yaml -o plan.yaml
expect_bad 'plan.yaml: it is read, too' smp-partition check plan.yaml --svg plan.yaml
expect_bad 'gpt.yaml: it is read, too' smp-run gpt.yaml --data text.txt --steps 1 --trace gpt.yaml
expect_bad 'text.txt: it is read, too' smp-run gpt.yaml --data text.txt --steps 1 --report text.txt
cp "$SMP_BIN_DIR/snake.so" plugin.so
cp plugin.so model.onnx
mkdir plans
cp "$SMP_EXAMPLES/gpt-tiny.yaml" plans/tiny.yaml
(cd plans && smp-partition tiny.yaml -n 1 --microbatches 1 -o plan.yaml >/dev/null)
expect_bad 'plans/tiny.yaml: it is read, too' smp-run plans/plan.yaml --data text.txt --steps 1 --log plans/tiny.yaml
expect_bad 'plugin.so: it is read, too' smp-partition model.yaml "${quick[@]}" --plugin ./plugin.so -o plugin.so
expect_bad 'plugin.so: it is read, too' smp-run gpt.yaml --data text.txt --steps 1 --plugin ./plugin.so --log plugin.so
expect_bad 'plugin.so: it is read, too' smp-export model.yaml --plugin ./plugin.so --onnx plugin.so --checkpoint saved
expect_bad 'model.onnx: it is read, too' smp-import ./model.onnx -o new.yaml --weights model.onnx
expect_equal 'the model' "$(cmp model.yaml "$SMP_EXAMPLES/mlp.yaml" && echo same)" same

# ... nor is what a pattern, a folder or an index finds written over; files that are new may lie there.
mkdir -p texts images/cat hf
cp text.txt texts/a.txt
cp text.txt images/cat/x.png
for name in model-00001-of-00002 model-00002-of-00002 other; do echo x >hf/$name.safetensors; done
echo '{"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}' \
    >hf/model.safetensors.index.json
expect_bad 'texts/a.txt: it is read, too' smp-run gpt.yaml --data 'texts/*.txt' --steps 1 --log texts/a.txt
expect_bad 'images/cat/../cat/x.png: it is read, too' smp-run gpt.yaml --data x=images --steps 1 --trace images/cat/../cat/x.png
index=(--weights hf/model.safetensors.index.json)
expect_bad 'hf/model-00002-of-00002.safetensors: it is read, too' smp-run gpt.yaml --data text.txt "${index[@]}" \
    --export-weights hf/model-00002-of-00002.safetensors
expect_bad 'hf/: it is read, too' smp-run gpt.yaml --data text.txt "${index[@]}" --export-weights hf/
expect_bad 'hf/: it is read, too' smp-run gpt.yaml --data text.txt --weights hf --export-weights hf/
expect_bad 'hf/other.safetensors: it is read, too' smp-run gpt.yaml --data text.txt --weights hf --export-weights hf/other.safetensors
expect_bad 'hf/model-00001-of-00002.safetensors: it is read, too' smp-export gpt.yaml "${index[@]}" \
    --onnx hf/model-00001-of-00002.safetensors
mkdir kept
cp text.txt kept/checkpoint-0000000001.smp
expect_bad 'kept/checkpoint-0000000001.smp: it is read, too' smp-export gpt.yaml --checkpoint kept \
    --onnx kept/checkpoint-0000000001.smp
cp text.txt beside.onnx.data2
expect_bad 'beside.onnx.data2: it is read, too' smp-export gpt.yaml --weights beside.onnx.data2 --onnx beside.onnx
expect_exit 2 smp-run gpt.yaml --data text.txt "${index[@]}" --export-weights hf/other.safetensors
expect_no_match err 'it is read, too'
expect_exit 0 smp-run gpt.yaml --data 'texts/*.txt' --steps 1 --log texts/log.csv
[ -s texts/log.csv ] || fail "no log beside the data"

# Of a file of another kind nothing is shown that may be secret.
for text in 'SECRET' 'SECRET: x' '[SECRET]' 'SECRET,1' 'SECRET SECRET' '!SECRET x' '*SECRET' $'SECRET: 1\nSECRET: 2'; do
    for name in secret.yaml secret.json secret.safetensors secret.csv; do
        echo "$text" >$name
        expect_exit 2 smp-partition "$name"
        expect_no_match err SECRET
    done
    for name in secret.json secret.safetensors; do
        expect_exit 2 smp-export model.yaml --onnx new.onnx --weights $name
        expect_no_match err 'SECRET|5211894499117319507'
    done
done

# An export that cannot say the plan: the plan is there all the same, and shown.
rm -f plan.yaml
expect_exit 2 smp-partition model.yaml "${quick[@]}" -o plan.yaml --export megatron-layout:refused --svg plan.svg
expect_match err 'smp-partition: megatron-layout: '
expect_match out '^ *stage'
expect_equal 'files' "$(ls plan.yaml plan.svg)" "$(printf 'plan.svg\nplan.yaml')"
[ ! -e refused ] || fail 'what was refused is there'
expect_exit 0 smp-partition check plan.yaml

# A document of another kind is named.
expect_bad 'model.yaml:[0-9]+:1: this is a model, expected a plan: plan it first with smp-partition' \
    smp-run model.yaml --data text.txt --steps 1
expect_bad 'plan.yaml:[0-9]+:1: this is a plan, expected a model' smp-partition plan.yaml
expect_bad 'this is a cluster, expected a model' smp-partition "$SMP_EXAMPLES/cluster-a100.yaml"
expect_bad 'this is a model, expected a cluster' smp-partition model.yaml --cluster model.yaml

# A model that could be run, but says no loss, is not planned to be refused afterwards.
sed '/^loss:/d' model.yaml >lossless.yaml
expect_bad "lossless.yaml: the model has no 'loss'" smp-partition lossless.yaml "${quick[@]}"
finish

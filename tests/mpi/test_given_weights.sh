#!/usr/bin/env bash
# --weights: what was exported under one plan begins a run under every other with the same bits, under the model's
# names or others', from one file or several; parts of it; and what is refused before the first step.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
model=tiny.yaml
sed 's/layers: 4/layers: 2/' "$SMP_EXAMPLES/gpt-tiny.yaml" >$model
write_text text.txt 20000

plan() { # file devices [option...]
    expect_exit 0 smp-partition "$model" -n "$2" --microbatch-size 1 --gradient-blocks 4 -o "$1" "${@:3}"
}

# The hash of replica 0 after a run.
hash_of() { # ranks plan [option...]
    expect_exit 0 mpirun -n "$1" smp-run "$2" --checksum "${@:3}"
    sed -n 's/^replica 0 weights //p' out
}

plan one.yaml 1 --stages 1 --microbatches 4
plan two.yaml 2 --stages 2 --microbatches 4
plan split.yaml 4 --stages 2 --tensor 2 --microbatches 4
replicas=$([ -n "${SMP_TEST_LONG-}" ] && echo 4 || echo 2)
plan shards.yaml "$replicas" --stages 1 --ddp "$replicas" --shard "$replicas" --shard-what weights \
    --pipeline breadth-first --chunks 2 --microbatches $((4 / replicas))
want=$(hash_of 1 one.yaml --data text.txt --steps 2 --export-weights own.safetensors)
run mpirun -n 1 smp-run one.yaml --steps 0 --weights own.safetensors
if grep -q 'without Jansson' err; then
    echo "skipped: built without Jansson"
    exit 77
fi
more=$(hash_of 1 one.yaml --data text.txt --steps 2 --weights own.safetensors)
expect_equal "other weights, other steps" "$([ "$want" != "$more" ] && echo other)" other
expect_exit 0 mpirun -n 4 smp-run split.yaml --steps 0 --weights own.safetensors --names hf-gpt2 \
    --export-weights hf.safetensors
expect_exit 0 mpirun -n "$replicas" smp-run shards.yaml --steps 0 --weights own.safetensors --names hf-gpt2 \
    --export-weights hf/ --export-size 500KB
expect_equal "files" "$(find hf -name 'model-0000?-of-00005.safetensors' | wc -l | tr -d ' ')" 5
expect_json hf/model.safetensors.index.json

files=(own.safetensors hf.safetensors hf/model.safetensors.index.json)
for job in "1 one" "2 two" "$replicas shards" "4 split"; do
    [ "$job" != "4 split" ] || [ -n "${SMP_TEST_LONG-}" ] || files=(hf/model.safetensors.index.json)
    for file in "${files[@]}"; do
        got=$(hash_of "${job% *}" "${job#* }.yaml" --steps 0 --weights "$file" --names hf-gpt2)
        expect_equal "$job $file" "$got" "$want"
    done
done
# Trained on from them, and back under their names: the bits of one process.
expect_equal "two steps on" "$(hash_of "$replicas" shards.yaml --data text.txt --steps 2 --weights hf.safetensors \
    --names hf-gpt2)" "$more"
expect_exit 0 mpirun -n 2 smp-run two.yaml --steps 0 --weights hf/model.safetensors.index.json --names hf-gpt2 \
    --export-weights again.safetensors
expect_equal "bytes" "$(cmp hf.safetensors again.safetensors && echo same)" same

# Rules of a file: the model's q, k and v in three tensors, and the first layer alone.
cat >map.txt <<'MAP'
# packed here, apart there
h{i}.attn.qkv.* = "layer {i} q.*" + "layer {i} k.*" + "layer {i} v.*"
MAP
expect_exit 0 mpirun -n 2 smp-run two.yaml --steps 0 --weights own.safetensors --weights-map map.txt \
    --export-weights apart.safetensors
expect_exit 0 python3 "$SMP_SOURCE_DIR/tests/data/safetensors_values.py" apart.safetensors
expect_match out '^layer 1 k\.weight 128x128 '
expect_equal "stacked" "$(hash_of "$replicas" shards.yaml --steps 0 --weights apart.safetensors --weights-map map.txt)" "$want"
expect_exit 0 mpirun -n 2 smp-run two.yaml --steps 0 --weights apart.safetensors --weights-map map.txt \
    --weights-only 'h0.*' --weights-only 'ln_f*' --export-weights part.safetensors
expect_match err 'apart\.safetensors: [0-9]+ of 36 tensors are of no weight that was asked for'
values() { # file pattern
    python3 "$SMP_SOURCE_DIR/tests/data/safetensors_values.py" "$1" | grep -E "$2"
}
expect_equal "what was asked for" "$(values part.safetensors '^(h0|ln_f|layer 0)')" \
    "$(values apart.safetensors '^(h0|ln_f|layer 0)')"
expect_exit 0 mpirun -n 1 smp-run one.yaml --steps 0 --weights-map map.txt --export-weights first.safetensors
expect_equal "the rest" "$(values part.safetensors '^(h[1-9]|w|layer [1-9])')" \
    "$(values first.safetensors '^(h[1-9]|w|layer [1-9])')"

# The same weights as llm.c's files.
python3 - own.safetensors own.bin <<'PYTHON'
import json, struct, sys

with open(sys.argv[1], "rb") as file:
    content = file.read()
(length,) = struct.unpack("<Q", content[:8])
header = json.loads(content[8 : 8 + length])


def values(name):
    begin, end = header[name]["data_offsets"]
    return content[8 + length + begin : 8 + length + end]


inner = [f"{n}.{w}" for n in ("ln_1", "attn.qkv", "attn.proj", "ln_2", "mlp.fc", "mlp.proj") for w in ("weight", "bias")]
names = ["wte.weight", "wpe.weight", *(f"h{i}.{n}" for n in inner for i in range(2)), "ln_f.weight", "ln_f.bias"]
with open(sys.argv[2], "wb") as file:
    file.write(struct.pack("<256i", 20240326, 3, 64, 256, 2, 4, 128, 256, *[0] * 248))
    file.write(b"".join(map(values, names)))
PYTHON
expect_equal "llm.c" "$(hash_of 4 split.yaml --steps 0 --weights own.bin)" "$want"

# Refused by all ranks alike, with one message, before the first step.
refused() { # regex option...
    expect_exit 2 mpirun -n 2 smp-run two.yaml --data text.txt --steps 1 "${@:2}"
    expect_match err "$1"
    expect_equal "messages" "$(grep -c '^smp-run: ' err)" 1
    expect_no_match out step
}
printf '{"h0.attn.qkv.weight": 1}' >broken.safetensors
refused 'broken\.safetensors: byte 0: a header of' --weights broken.safetensors
refused "has no tensor 'layer 0 q\.weight' for weight 'h0\.attn\.qkv\.weight'" \
    --weights hf.safetensors --weights-map map.txt --weights-only 'h0.attn*'
refused "no weight of the model is like 'h9\.\*'" --weights own.safetensors --weights-only 'h9.*'
echo 'wte.weight = h0.attn.qkv.weight' >shape.txt
refused "tensor 'h0\.attn\.qkv\.weight' is 384x128, which does not make weight 'wte\.weight' of 256x128" \
    --weights own.safetensors --weights-map shape.txt
printf 'wte.weight = a\nwpe.weight = b part 3/3\n' >wrong.txt
refused 'wrong\.txt:2:21: part: expected K/N' --weights own.safetensors --weights-map wrong.txt
refused "hf-gtp2.*expected hf-gpt2" --weights own.safetensors --names hf-gtp2
echo '* = all' >all.txt
refused "'wte\.weight' and 'wpe\.weight' both become tensor 'all'" --export-weights x.safetensors --weights-map all.txt
for options in "--weights a --checkpoint c --resume" "--weights-only a" "--names hf-gpt2" "--weights-map a" \
    "--export-size 1GB" "--export-weights w/ --export-size none"; do
    # shellcheck disable=SC2086 # words
    expect_bad '--(weights|names|export)' smp-run one.yaml --data text.txt $options
done
refused 'expected a folder' --export-weights x.safetensors --export-size 1GB
finish

#!/usr/bin/env bash
# smp-import: a model that it writes predicts; what is broken, hostile or beyond limits is refused, in a GiB of memory, with
# the file and the place.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

expect_exit 0 smp-import --help
expect_match out 'usage: smp-import MODEL.onnx'
for option in -o --weights --loss --dim; do
    expect_match out "^  $option "
done
expect_exit 0 smp-import --version
expect_bad 'unknown option.*weights' smp-import --weigths x model.onnx
expect_bad '--dim' smp-import model.onnx --dim T=none

# A folder needs no ONNX.
mkdir -p llama/model
cp "$tests_dir/fuzz/corpus/config/llama.json" llama/model/config.json
expect_exit 0 smp-import llama/model -o llama/model.yaml --loss cross_entropy
expect_match out 'llama/model.yaml: 36 operators; weights: smp-run --weights llama/model --names hf-llama'
expect_match llama/model.yaml 'q_rope", in: q, out: q, heads: heads, base: 500000, scaling: llama3, factor: 8, original_positions: 16'
expect_exit 0 smp-partition llama/model.yaml -n 2 --stages 2
expect_exit 0 smp-import llama/model
expect_match out 'mode: inference'
expect_bad '--loss: got .mse., expected cross_entropy' smp-import llama/model --loss mse
expect_bad '--weights: is for ONNX files, and llama/model is a folder' smp-import llama/model --weights w.safetensors
expect_bad 'llama/model/config.json: it is read, too' smp-import llama/model -o llama/model/config.json
expect_bad 'llama/config.json: cannot open' smp-import llama
printf '{"model_type": ' >llama/config.json
expect_bad 'llama/config.json:1:15:' smp-import llama

run smp-import absent.onnx
if grep -q 'built without ONNX' err; then
    echo "skipped: built without ONNX"
    exit 77
fi
expect_bad 'absent\.onnx: cannot open' smp-import absent.onnx

python3 - "$tests_dir/fuzz" <<'EOF'
import sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
from onnx_seeds import *

def write(name, data):
    with open(name + ".onnx", "wb") as file:
        file.write(data)

for name, data in SEEDS.items():
    write(name[5:], data)
x, y, w = value("x", FLOAT, "N", 3), value("y", FLOAT, "N", 3), floats("w", 3, 3)
one = [node("MatMul", "x w", "y")]
def outside(where, size=36):
    return (field(1, 3) + field(1, 3) + field(2, FLOAT) + field(8, "w") + field(14, 1)
            + field(13, field(1, "location") + field(2, where)) + field(13, field(1, "length") + field(2, str(size))))
def wrapped(number, size, head=b""): # the start of a field of `head` and `size` bytes more
    return varint(number << 3 | 2) + varint(len(head) + size) + head
heads = [] # from the inside: what is within another is copied once
size = 0
for _ in range(30000):
    heads.append(wrapped(1, size, wrapped(5, size, field(1, "a") + wrapped(6, size))))
    size += len(heads[-1])
deep = b"".join(reversed(heads))
write("empty", b"")
write("text", b"smp: 1\n")
write("cut", SEEDS["onnx/linear"][:-9])
write("deep", field(7, deep))
write("twice", model([x], [y], one, [w]) + field(7, b""))
write("newer", model([x], [y], one, [w], opset=99))
write("last", model([x], [y], [node("Gemm", "x w b", "h"), node("LayerNormalization", "h b b", "n"), node("Gelu", "n", "y")],
                    [w, floats("b", 3)], opset=21))
write("short", model([x], [y], one, [w[:-3] + field(9, b"")[:0] + w[-3:] + field(9, b"123")]))
write("same", model([x], [y], one, [w, w]))
write("unmade", model([x], [y], [node("Relu", "z", "y")], [w]))
write("again", model([x], [y], [node("Relu", "x", "y"), node("Relu", "x", "y")], [w]))
write("sides", model([value("x", FLOAT, "N", "S")], [y], one, [w]))
write("large", model([x], [y], one, [field(1, 1 << 40) + field(1, 1 << 40) + field(2, FLOAT) + field(8, "w")]))
write("minus", model([x], [y], one, [field(1, -3) + field(2, FLOAT) + field(8, "w")]))
write("unknown", model([x], [value("y", FLOAT, "M", "K")], [node("Strange", "x", "y")]))
write("up", model([x], [y], one, [outside("../w.bin")]))
write("root", model([x], [y], one, [outside("/w.bin")]))
write("gone", model([x], [y], one, [outside("gone.bin")]))
write("link", model([x], [y], one, [outside("link.bin")]))
write("beyond", model([x], [y], one, [outside("w.bin")]))
write("beside", model([x], [y], one, [outside("full.bin")]))
write("overlap", model([x], [y], [node("MatMul", "x w", "h"), node("MatMul", "h v", "y")],
                       [outside("full.bin"), outside("full.bin").replace(field(8, "w"), field(8, "v"))]))
write("chain", attention(0.5, [node("Identity", "t", "i0")] + [node("Identity", "i%d" % i, "i%d" % (i + 1)) for i in range(20000)]
                         + [node("Relu", "i20000", "u")]))
def named(i, name):
    return field(1, "x" if i == 0 else "v%d" % (i - 1)) + field(2, "y" if i == 39999 else "v%d" % i) + field(3, name) + field(4, "Relu")
write("numbers", model([x], [y], [named(i, "a_%d" % (i + 2) if i < 20000 else "a") for i in range(40000)]))
def split(first): # as of node(), which takes long for so many
    names = "".join("\x12\x06%06x" % i for i in range(first, first + (1 << 16)))
    return field(1, "x") + names.encode() + field(3, "Split%x" % first) + field(4, "Split")
write("many", model([x], [y], [split(i << 16) for i in range(1, 17)]))
write("filled", model([x], [value("y", FLOAT, 1)],
                      [node("ConstantOfShape", "s", "c%d" % i) for i in range(200)] + [node("ReduceSum", "c0", "y", keepdims=0)],
                      [ints("s", 1 << 13, 1 << 13)]))
write("names", field(7, field(1, b"") * (4 << 20)))
EOF
head -c 8 /dev/zero >w.bin
head -c 36 /dev/zero >full.bin
ln -s full.bin link.bin

# A model for inference with its weights: what ONNX says of x in rows of 3, with all values known.
expect_exit 0 smp-import linear.onnx -o linear.yaml --weights linear.safetensors
expect_match out '^linear.yaml: 2 operators, 0 of them planned and not run; 2 weights'
expect_exit 0 smp-partition linear.yaml -n 1 --microbatch-size 2 -o linear.plan
python3 - <<'EOF'
import struct
with open("x.npy", "wb") as file:
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
    head += b" " * (118 - len(head) - 1) + b"\n"
    file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + struct.pack("<6f", 1, 2, 3, -1, 0, 1))
EOF
expect_exit 0 smp-run linear.plan --data x=x.npy --weights linear.safetensors --steps 0 --predict y.npy --no-shuffle
expect_equal "predictions" "$(python3 - <<'EOF'
import struct
from math import isclose
data = open("y.npy", "rb").read()[-32:]
w = [0.1 * (i % 7) - 0.2 for i in range(12)]
want = [max(0, sum(a * b for a, b in zip(x, w[3 * i:3 * i + 3])) + w[i]) for x in ((1, 2, 3), (-1, 0, 1)) for i in range(4)]
print(all(isclose(a, b, abs_tol=1e-6) for a, b in zip(struct.unpack("<8f", data), want)))
EOF
)" True
expect_exit 0 smp-import linear.onnx --loss cross_entropy
expect_match out 'op: cross_entropy, name: loss'
expect_bad 'cross_entropy or mse' smp-import linear.onnx --loss crossentropy
expect_exit 0 smp-import last.onnx
expect_match out 'op: gelu, '
expect_no_match out 'op: opaque'
expect_exit 0 smp-import opaque.onnx
expect_match out '# Softplus: no operator of SMP does this'
expect_match out 'op: opaque, name: Softplusf'
expect_exit 0 smp-import broadcast.onnx
expect_match out "# Add: input '[ab]' is a constant"
expect_exit 0 smp-import remainders.onnx --weights remainders.safetensors -o remainders.yaml
expect_equal "remainders and quotients" "$(python3 - <<'EOF'
import struct
print(*(float(v) for v in struct.unpack("<15f", open("remainders.safetensors", "rb").read()[-60:])))
EOF
)" "1.5 -1.5 0.0 3.0 0.0 -2.0 2.0 0.0 0.0 6.0 -2.0 -2.0 9.223372036854776e+18 9.223372036854776e+18 0.0"
expect_exit 0 smp-import repeats.onnx
expect_no_match out 'op: opaque'
expect_exit 0 smp-import repeats.onnx --loss mse
expect_match out "# Add: 'g' is computed from other constants"
for name in fraction aspect; do
    expect_exit 0 smp-import $name.onnx
    expect_match out '# Resize: its (factor is not whole|shape does not follow)'
done
expect_exit 0 smp-import concat.onnx
expect_match out 'op: concat, .*, axis: 0}'
expect_exit 0 smp-import training.onnx
expect_match out '# BatchNormalization: statistics of a batch in an inference'

ulimit -v $((1 << 20))
bad() { # name regex option...
    local name=$1 regex=$2
    shift 2
    expect_bad "$name\.onnx: $regex" smp-import "$name.onnx" "$@"
}
bad empty 'has 0 bytes'
bad text 'byte [0-9]+: '
bad cut 'byte [0-9]+: a field of .* has [0-9]+ bytes, the message'
bad deep 'byte [0-9]+: nested deeper than 64'
bad twice 'byte [0-9]+: graph of .* is there twice'
bad newer 'operator set 99, expected 1 to 21'
bad short "byte [0-9]+: raw_data of .* is there twice"
bad same "initializer 1 'w': is there twice"
bad unmade "node 0 'Reluy' \(Relu\) at byte [0-9]+: reads 'z', which nothing before it makes"
bad again "node 1 'Reluy' \(Relu\) at byte [0-9]+: makes 'y', which is there already"
bad sides "input 'x': dimension 1 is 'S', expected a number"
bad large "initializer 0 'w': more than 2\^40 values"
bad minus "initializer 0 'w': dimension 0 is -3"
bad unknown "node 0 'Strangey' \(Strange\) at byte [0-9]+: the shape of what it makes is not known"
bad up "initializer 0 'w': its data lie in '\.\./w\.bin', expected a file in the model's folder"
bad root "initializer 0 'w': its data lie in '/w\.bin'"
bad gone "initializer 0 'w': cannot open"
bad link "initializer 0 'w': cannot open"
bad beyond "initializer 0 'w': its data go on after the end of their file"
bad split "node 0 'Splita' \(Split\) at byte [0-9]+: the shape of what it makes is not known"
bad sizes "node 0 'Strangey' \(Strange\) at byte [0-9]+: the shape of what it makes is not known"
bad overlap "initializer 1 'v': its data overlap those of others"
bad many 'has more than 1048576 values|takes more than'
bad names 'byte 0: |takes more than|has 4194304 nodes'
expect_exit 0 smp-import beside.onnx
expect_exit 0 smp-import chain.onnx
expect_match out '# Identity: too many steps that change nothing'
expect_exit 0 smp-import numbers.onnx
expect_match out 'op: relu, name: a_40000,'
run smp-import filled.onnx # constants that are too large together stay unknown
checks=$((checks + 1))
[ "$status" -eq 0 ] || [ "$status" -eq 2 ] || fail "exit code $status"
expect_exit 0 smp-import sides.onnx --dim S=3
finish

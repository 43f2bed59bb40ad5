"""smp-export --onnx: models of examples/, trained a few steps here, and every operator by itself make the same of samples
in ONNX Runtime as smp-run --predict does; onnx's checker finds nothing; what has no meaning in ONNX is refused."""

import os
import re
import sys
import tempfile

import numpy

from programs import require, run

sys.path.append(os.environ.get("SMP_TORCH_PEERS", ""))
try:
    import onnx
    import onnxruntime
    from safetensors.numpy import load_file, save_file
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)

TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
CLOSE = 1e-5
MOST_OUTPUTS = 64  # that a command names


def inputs_of(text):
    """name: (type, shape, bound, split) as numbers; `let` is filled in."""
    let = dict(re.findall(r"(\w+): (\d+)", (re.search(r"^let: \{(.*)\}", text, re.M) or [None, ""])[1]))
    body = re.search(r"^inputs:\n((?:  .*\n|\n)+)", text, re.M)[1]
    found = re.findall(r"^  (\w+): +\{dtype: (\w+), shape: \[(.*?)\](, split: false)?\}(?: *# below (\d+))?", body, re.M)
    return {name: (kind, [int(let.get(d.strip(), d)) for d in shape.split(",") if d.strip()], int(bound or 0), not unsplit)
            for name, kind, shape, unsplit, bound in found}


def make_inputs(folder, text, samples, bounds, seed):
    draw = numpy.random.default_rng(seed)
    made = {}
    for name, (kind, shape, bound, split) in inputs_of(text).items():
        size = [samples, *shape] if split else shape
        if kind == "int32":
            values = draw.integers(0, bounds.get(name, bound), size).astype("int32")
        else:
            values = draw.standard_normal(size).astype("float32")
        if name.startswith("mask"):
            values[..., 0] = 1
        made[name] = values
        numpy.save(f"{folder}/{name}.npy", values)
    return made, [word for name in made for word in ("--data", f"{name}={name}.npy")]


def differ(got, wanted):
    """The largest difference, relative to values above 1."""
    require(got.shape == wanted.shape and got.dtype == wanted.dtype, f"{got.dtype} {got.shape}, expected {wanted.dtype} {wanted.shape}")
    require(numpy.isfinite(wanted).all(), "values are finite")
    return float((numpy.abs(got.astype("float64") - wanted) / numpy.maximum(1, numpy.abs(wanted))).max())


def session_of(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def in_runtime(path, made, output=None):
    """What ONNX Runtime makes of the inputs that the model has, with no more of them than these."""
    session = session_of(path)
    names = [i.name for i in session.get_inputs()]
    require(set(names) <= set(made), f"inputs {names}")
    return session.run([output] if output else None, {name: made[name] for name in names})[0], names


def check_file(path, wanted):
    onnx.checker.check_model(path, full_check=True)
    model = onnx.load(path, load_external_data=False)
    require([o.version for o in model.opset_import] == [17] and model.ir_version == 8, "the opset")
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    shapes = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in inferred.graph.output}
    for shape in shapes.values():
        require(shape == ["batch", *wanted.shape[1:]], f"{path}: the output is {shape}")
    return model


# Bounds of int32 inputs; what is left out is not read by the logits.
MODELS = {
    "gpt-tiny": {"tokens": 256, "targets": 256},
    "llama-tiny": {"tokens": 256, "targets": 256},
    "moe-tiny": {"tokens": 256, "targets": 256},
    "bert-small": {"tokens": 260, "segments": 2, "mask": 2, "targets": 260},
    "t5-small": {"tokens": 266, "decoder_tokens": 266, "mask": 2, "targets": 266},
    "resnet-small": {"label": 10},
    "vit-class": {"label": 10},
    "vit-digits": {"label": 10},
    "branches": {"tokens": 256, "targets": 256},
}


def check_model(folder, name):
    model = f"{TREE}/examples/{name}.yaml"
    with open(model, encoding="utf-8") as file:
        text = file.read()
    made, data = make_inputs(folder, text, 8, MODELS[name], 3)
    run(folder, "smp-partition", model, "-n", "1", "--microbatch-size", "4", "--microbatches", "2", "-o", "plan")
    run(folder, "smp-run", "plan", *data, "--steps", "4", "--lr", "0.01", "--checkpoint", name)
    run(folder, "smp-run", "plan", *data, "--steps", "0", "--checkpoint", name, "--resume", "--predict", "wanted.npy",
        "--export-weights", "model.safetensors")
    out = run(folder, "smp-export", model, "--onnx", "model.onnx", "--checkpoint", name)
    wanted = numpy.load(f"{folder}/wanted.npy")
    check_file(f"{folder}/model.onnx", wanted)
    got, names = in_runtime(f"{folder}/model.onnx", made)
    off = differ(got, wanted)
    require(off < CLOSE, f"{name}: outputs differ by {off}")
    one, _ = in_runtime(f"{folder}/model.onnx", {k: v[3:4] for k, v in made.items()})
    require(differ(one, wanted[3:4]) < CLOSE, f"{name}: a single sample")
    require(not set(names) & {"targets", "label"}, f"{name}: targets are no input: {names}")
    run(folder, "smp-export", "plan", "--onnx", "again.onnx", "--weights", "model.safetensors")
    require(same_bytes(folder, "model.onnx", "again.onnx"), f"{name}: the same of the plan and of exported weights")
    if name in ("gpt-tiny", "resnet-small"):
        check_apart(folder, model, name, made, wanted)
    print(f"{name}: {out.strip()}; differs by {off:.1e} of {numpy.abs(wanted).max():.2f}")


def check_apart(folder, model, name, made, wanted):
    run(folder, "smp-export", model, "--onnx", "apart.onnx", "--checkpoint", name, "--external-data")
    tensors = [t for t in check_file(f"{folder}/apart.onnx", wanted).graph.initializer if t.external_data]
    places = [{e.key: e.value for e in t.external_data} for t in tensors]
    data = places[0]["location"]  # of two names the one that the model before did not use
    require(data in ("apart.onnx.data", "apart.onnx.data2"), f"{name}: weights in {data}")
    require(len(tensors) > 40 and all(p["location"] == data and int(p["offset"]) % 4096 == 0 for p in places),
            f"{name}: {len(tensors)} weights apart")
    end = max(int(p["offset"]) + int(p["length"]) for p in places)
    require(os.path.getsize(f"{folder}/{data}") == end, f"{name}: the file of weights ends with the last one")
    require(differ(in_runtime(f"{folder}/apart.onnx", made)[0], wanted) < CLOSE, f"{name}: with weights apart")


def same_bytes(folder, a, b):
    with open(f"{folder}/{a}", "rb") as x, open(f"{folder}/{b}", "rb") as y:
        return x.read() == y.read()


HEAD = "smp: 1\nmode: inference\ninputs:\n%s\nops:\n%s\n"
X23 = "  x: {dtype: float32, shape: [6, 12]}\n"
IMAGE = "  x: {dtype: float32, shape: [4, 9, 7]}\n"
QKV = "  q: {dtype: float32, shape: [6, 12]}\n  k: {dtype: float32, shape: [6, %d]}\n  v: {dtype: float32, shape: [6, %d]}\n"
PACKED = "  x: {dtype: float32, shape: [7, 36]}\n"
MASK = "  mask: {dtype: int32, shape: [%d]} # below 2\n"
OPERATORS = [
    *[(X23, f"{{op: {op}, in: x, out: y}}") for op in ("relu", "silu", "sigmoid", "tanh", "softmax", "gelu", "layernorm", "rmsnorm",
                                                       "position_embedding", "mean_pool", "flatten")],
    (X23, "{op: gelu, in: x, out: y, approximate: erf}"),
    (X23, "{op: layernorm, in: x, out: y, eps: 0.1}"),
    (X23, "{op: rmsnorm, in: x, out: y, eps: 0.1}"),
    (X23, "{op: rmsnorm, in: x, out: y, offset: 1}"),
    (X23, "{op: rope, in: x, out: y, heads: 3, scaling: longrope, factors: [1.5, 4], attention_factor: 1.2}"),
    (PACKED, "{op: attention, in: x, out: y, heads: 3, causal: true, softcap: 0.5}"),
    (X23, "{op: dropout, in: x, out: y, p: 0.5}"),
    (X23, "{op: scale, in: x, out: y, factor: -0.3}"),
    (X23, "{op: linear, in: x, out: y, features: 5}"),
    (X23, "{op: linear, in: x, out: y, features: 5, bias: false}"),
    ("  x: {dtype: float32, shape: [12]}\n", "{op: linear, in: x, out: y, features: 5}"),
    ("  x: {dtype: float32, shape: [12]}\n", "{op: linear, in: x, out: y, features: 5, bias: false}"),
    ("  x: {dtype: float32, shape: [12]}\n", "{op: batchnorm, in: x, out: y}"),
    ("  x: {dtype: float32, shape: [12]}\n", "{op: groupnorm, in: x, out: y, groups: 3}"),
    (X23 + X23.replace("x:", "z:"), "{op: add, in: [x, z, x], out: y}"),
    (X23 + X23.replace("x:", "z:"), "{op: sub, in: [x, z], out: y}"),
    (X23 + X23.replace("x:", "z:"), "{op: mul, in: [x, z], out: y}"),
    (X23 + X23.replace("x:", "z:"), "{op: concat, in: [x, z], out: y, axis: 0}"),
    (X23 + X23.replace("x:", "z:"), "{op: concat, in: [x, z], out: y}"),
    ("  x: {dtype: float32, shape: [6, 12]}\n  z: {dtype: float32, shape: [6, 12], split: false}\n", "{op: sub, in: [x, z], out: y}"),
    ("  x: {dtype: float32, shape: [6, 12]}\n  z: {dtype: float32, shape: [6, 12], split: false}\n",
     "{op: sub, in: [x, z], out: d}\n  - {op: gelu, in: d, out: y}"),
    (X23 + "  z: {dtype: float32, shape: [6, 1]}\n", "{op: mul_rows, in: [x, z], out: y}"),
    (X23, "{op: bias, in: x, out: y}"),
    (X23, "{op: bias, in: x, out: y, axis: 0}"),
    (X23, "{op: sum, in: x, out: y, axis: 0}"),
    (X23, "{op: sum, in: x, out: y}"),
    (X23, "{op: mean, in: x, out: y, axis: 0}"),
    (X23, "{op: mean, in: x, out: y}"),
    (X23, "{op: reshape, in: x, out: y, shape: [3, -1, 2]}"),
    (X23, "{op: transpose, in: x, out: y, axes: [1, 0]}"),
    (IMAGE, "{op: transpose, in: x, out: y, axes: [2, 0, 1]}"),
    (X23, "{op: slice, in: x, out: y, axis: 0, begin: 1, end: 4}"),
    (X23, "{op: slice, in: x, out: y, begin: -5, end: -1}"),
    (X23, "{op: split, in: x, out: [a, b, y], axis: 0}"),
    (X23, "{op: split, in: x, out: [y, b], sizes: [5, 7]}"),
    ("  x: {dtype: int32, shape: [6]} # below 9\n", "{op: embedding, in: x, out: y, rows: 9, features: 5}"),
    ("  x: {dtype: int32, shape: []} # below 9\n", "{op: embedding, in: x, out: y, rows: 9, features: 5}"),
    ("  x: {dtype: int32, shape: [6, 2]} # below 9\n", "{op: slice, in: x, out: y, axis: 0, begin: 1}"),
    (X23, "{op: parameter, out: p, shape: [6, 12]}\n  - {op: mul, in: [x, p], out: y}"),
    (IMAGE, "{op: batchnorm, in: x, out: y, eps: 0.01}"),
    (IMAGE, "{op: groupnorm, in: x, out: y, groups: 2, eps: 0.01}"),
    (IMAGE, "{op: conv2d, in: x, out: y, channels: 6, kernel: 3}"),
    (IMAGE, "{op: conv2d, in: x, out: y, channels: 6, kernel: [3, 2], stride: [2, 1], padding: [1, 0], dilation: [2, 1], groups: 2,"
            " bias: false}"),
    (IMAGE, "{op: upsample, in: x, out: y, factor: 3}"),
    (IMAGE, "{op: global_avg_pool, in: x, out: y}"),
    (IMAGE, "{op: max_pool, in: x, out: y, kernel: 3}"),
    (IMAGE, "{op: max_pool, in: x, out: y, kernel: 3, stride: 2, padding: 1}"),
    (IMAGE, "{op: avg_pool, in: x, out: y, kernel: 2}"),
    (IMAGE, "{op: avg_pool, in: x, out: y, kernel: 3, stride: 2, padding: 1}"),
    ("  x: {dtype: float32, shape: [3, 6, 4]}\n", "{op: patchify, in: x, out: y, patch: 2}"),
    ("  x: {dtype: float32, shape: [6, 4]}\n", "{op: patchify, in: x, out: y, patch: 2}"),
    ("  x: {dtype: float32, shape: [7, 32]}\n", "{op: rope, in: x, out: y, heads: 4}"),
    ("  x: {dtype: float32, shape: [7, 32]}\n", "{op: rope, in: x, out: y, heads: 4, rotated: 3, base: 100}"),
    ("  x: {dtype: float32, shape: [7, 32]}\n", "{op: rope, in: x, out: y, heads: 4, interleaved: true}"),
    (PACKED, "{op: attention, in: x, out: y, heads: 4}"),
    (PACKED, "{op: attention, in: x, out: y, heads: 3, causal: true}"),
    (PACKED, "{op: attention, in: x, out: y, heads: 3, causal: true, window: 3, scale: 0.7}"),
    (PACKED, "{op: attention, in: x, out: y, heads: 3, alibi: true}"),
    (PACKED, "{op: attention, in: x, out: y, heads: 3, causal: true, alibi: true}"),
    (PACKED, "{op: attention, in: x, out: y, heads: 3, buckets: 8, max_distance: 5}"),
    (PACKED, "{op: attention, in: x, out: y, heads: 3, buckets: 4, max_distance: 5, causal: true}"),
    (PACKED + MASK % 7, "{op: attention, in: [x, mask], out: y, heads: 3, buckets: 8, max_distance: 5}"),
    (PACKED + (MASK % 7).replace("mask", "holes"), "{op: attention, in: [x, holes], out: y, heads: 3, causal: true}"),
    (QKV % (4, 4), "{op: attention, in: [q, k, v], out: y, heads: 6, kv_heads: 2}"),
    (QKV % (2, 2), "{op: attention, in: [q, k, v], out: y, heads: 6, kv_heads: 1, causal: true, alibi: true}"),
    (QKV % (4, 4) + (MASK % 6).replace("mask", "holes"),
     "{op: attention, in: [q, k, v, holes], out: y, heads: 6, kv_heads: 2, causal: true, buckets: 4, max_distance: 5}"),
    ((QKV % (12, 12)).replace("[6, 12]}\n  k", "[3, 12]}\n  k"), "{op: attention, in: [q, k, v], out: y, heads: 2}"),
    ("  x: {dtype: float32, shape: [3, 5, 6]}\n", "{op: expert_linear, in: x, out: y, features: 4}"),
    *[("  x: {dtype: float32, shape: [7, 5]}\n  r: {dtype: float32, shape: [7, 4]}\n",
       f"{{op: load_balance, in: r, out: l}}\n  - {{op: expert_dispatch, in: [x, l], out: e, {how}}}\n  - {{op: scale, in: e, out: e, factor: 2}}\n"
       f"  - {{op: expert_combine, in: [e, l], out: y, {how}}}")
      for how in ("top_k: 2", "top_k: 1, capacity: 0.5", "top_k: 3, capacity: 0, gates: all")],
]


def draw_weights(folder):
    """Of plan: every weight by chance, variances above 0."""
    run(folder, "smp-run", "plan", "--steps", "0", "--export-weights", "op.safetensors")
    draw = numpy.random.default_rng(11)
    shapes = {name: w.shape for name, w in load_file(f"{folder}/op.safetensors").items()}
    weights = {name: draw.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    weights = {name: abs(w) + 0.1 if name.endswith("running_var") else w for name, w in weights.items()}
    save_file(weights, f"{folder}/drawn.safetensors")


def check_operator(folder, inputs, ops):
    ops = re.sub(r"\{op: (\w+), ", r"{op: \1, name: \1, ", "  - " + ops)
    text = HEAD % (inputs.rstrip("\n"), ops)
    with open(f"{folder}/op.yaml", "w", encoding="utf-8") as file:
        file.write(text)
    made, data = make_inputs(folder, text, 5, {}, 7)
    asked = ["--tensor", "y"]
    run(folder, "smp-partition", "op.yaml", "-n", "1", "--microbatch-size", "5", "--microbatches", "1", "-o", "plan")
    draw_weights(folder)
    run(folder, "smp-run", "plan", *data, "--steps", "0", "--weights", "drawn.safetensors", "--predict", "wanted.npy", *asked)
    run(folder, "smp-export", "op.yaml", "--onnx", "op.onnx", "--weights", "drawn.safetensors", *asked)
    wanted = numpy.load(f"{folder}/wanted.npy")
    check_file(f"{folder}/op.onnx", wanted)
    got, _ = in_runtime(f"{folder}/op.onnx", made)
    off = differ(got, wanted)
    require(off < CLOSE, f"{text}: differs by {off}")
    return off


def one_model():
    """All operators in one model, those with alike inputs of the same; outputs y0, y1, ... The text, and which outputs are
    integers."""
    given, ops, integers = {}, "", []
    for number, (inputs, text) in enumerate(OPERATORS):
        own = {}
        for line in inputs.splitlines():
            name = line.split(":")[0].strip()
            own[name] = given.setdefault(line, f"{name}_{len(given)}")
        for word in re.findall(r"\b(?:in|out): (?:\[(.*?)\]|(\w+))", text):
            own.update((name, own.get(name, f"{name}{number}")) for name in "".join(word).split(", "))
        text = re.sub(r"\b(?:in|out): (\[.*?\]|\w+)", lambda m: re.sub(r"\w+(?!\w*:)", lambda n: own[n[0]], m[0]), text)
        ops += "  - " + re.sub(r"\{op: (\w+), ", rf"{{op: \g<1>, name: o{number}.\g<1>, ", text) + "\n"
        if "int32" in inputs and "op: slice" in text:
            integers.append(f"y{number}")
    rest = [f"y{n}" for n in range(len(OPERATORS)) if f"y{n}" not in integers]
    ops += "".join(f"  - {{op: flatten, name: r{y}, in: {y}, out: r{y}}}\n" for y in rest)
    row = [f"r{y}" for y in rest]
    while len(row) > 1:  # 32 inputs at most
        out = f"r{len(row)}"
        ops += f"  - {{op: concat, name: {out}, in: [{', '.join(row[:32])}], out: {out}}}\n"
        row = [out, *row[32:]]
    ops = ops.replace(f"out: {row[0]}}}", "out: row}")
    lines = [re.sub(r"\w+", name, line, count=1) for line, name in given.items()]
    return HEAD % ("\n".join(lines), ops.rstrip("\n")), integers


def check_together(folder):
    """As check_operator does each by itself, in one session; smp-run predicts what they make in a row."""
    text, integers = one_model()
    with open(f"{folder}/op.yaml", "w", encoding="utf-8") as file:
        file.write(text)
    made, data = make_inputs(folder, text, 5, {}, 7)
    run(folder, "smp-partition", "op.yaml", "-n", "1", "--microbatch-size", "5", "--microbatches", "1", "-o", "plan")
    draw_weights(folder)
    wanted = {}
    for name in ("row", *integers):
        run(folder, "smp-run", "plan", *data, "--steps", "0", "--weights", "drawn.safetensors", "--predict", "wanted.npy",
            "--tensor", name)
        wanted[name] = numpy.load(f"{folder}/wanted.npy")
    outputs, got, at, worst = [f"y{number}" for number in range(len(OPERATORS))], {}, 0, 0
    for begin in range(0, len(outputs), MOST_OUTPUTS):
        got.update(outputs_of(folder, outputs[begin:begin + MOST_OUTPUTS], made))
    for y, case in zip(outputs, OPERATORS):
        if y not in wanted:
            size = got[y][0].size
            wanted[y] = wanted["row"][:, at:at + size].reshape(got[y].shape)
            at += size
        off = differ(got[y], wanted[y])
        require(off < CLOSE, f"{case}: differs by {off}")
        worst = max(worst, off)
    require(at == wanted["row"].shape[1], f"{at} numbers in a row of {wanted['row'].shape}")
    return worst


def outputs_of(folder, outputs, made):
    """What ONNX Runtime makes of op.yaml, by name."""
    asked = [word for y in outputs for word in ("--tensor", y)]
    run(folder, "smp-export", "op.yaml", "--onnx", "op.onnx", "--weights", "drawn.safetensors", *asked)
    onnx.checker.check_model(f"{folder}/op.onnx", full_check=True)
    session = session_of(f"{folder}/op.onnx")
    got = dict(zip(outputs, session.run(outputs, {i.name: made[i.name] for i in session.get_inputs()})))
    inferred = onnx.shape_inference.infer_shapes(onnx.load(f"{folder}/op.onnx"), strict_mode=True, data_prop=True)
    shapes = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in inferred.graph.output}
    for y in outputs:
        require(shapes[y] == ["batch", *got[y].shape[1:]], f"{y}: the output is {shapes[y]}")
    return got


def main():
    long = os.environ.get("SMP_TEST_LONG")
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or MODELS:
            check_model(folder, name)
        worst = max(check_operator(folder, *case) for case in OPERATORS) if long else check_together(folder)
        print(f"{len(OPERATORS)} operators differ by at most", worst)


main()

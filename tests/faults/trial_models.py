"""Models, data and plans for the trials: small ones, drawn by a generator of random numbers."""
import array
import struct

# Small, but with what makes a split hard: weights used twice, skips over stages, dropout, sums over
# replicas in operators.
GPT = """smp: 1
name: gpt
let: {{T: {T}, d: {d}, layers: {layers}, vocab: 128}}
inputs:
  tokens:  {{dtype: int32, shape: [T]}}
  targets: {{dtype: int32, shape: [T]}}
ops:
  - {{op: embedding, name: wte, in: tokens, out: x, rows: vocab, features: d}}
  - {{op: position_embedding, name: wpe, in: x, out: x}}
  - repeat: layers
    as: i
    ops:
      - {{op: layernorm, name: "h{{i}}.ln", in: x, out: a}}
      - {{op: linear, name: "h{{i}}.qkv", in: a, out: a, features: 3*d}}
      - {{op: attention, name: "h{{i}}.attn", in: a, out: a, heads: 2, causal: true}}
      - {{op: linear, name: "h{{i}}.proj", in: a, out: a, features: d}}
      - {{op: dropout, name: "h{{i}}.drop", in: a, out: a, p: 0.1}}
      - {{op: add, name: "h{{i}}.res", in: [x, a], out: x}}
  - {{op: layernorm, name: ln_f, in: x, out: x}}
  - {{op: linear, name: head, in: x, out: y, features: vocab, bias: false, weight: wte.weight}}
  - {{op: cross_entropy, name: loss, in: [y, targets], out: loss}}
loss: loss
"""

BRANCHES = """smp: 1
name: branches
let: {{T: {T}, d: {d}, vocab: 128}}
inputs:
  tokens:  {{dtype: int32, shape: [T]}}
  targets: {{dtype: int32, shape: [T]}}
ops:
  - {{op: embedding, name: wte, in: tokens, out: e, rows: vocab, features: d}}
  - {{op: layernorm, name: left.ln, in: e, out: left}}
  - {{op: linear, name: left.fc, in: left, out: left, features: d}}
  - {{op: linear, name: right.fc, in: e, out: right, features: d}}
  - {{op: tanh, name: right.tanh, in: right, out: right}}
  - {{op: mul, name: gate, in: [left, right], out: h}}
  - {{op: linear, name: mid.fc, in: h, out: h, features: d}}
  - {{op: relu, name: mid.relu, in: h, out: h}}
  - {{op: linear, name: again, in: h, out: h, features: d, weight: right.fc.weight}}
  - {{op: add, name: skip_1, in: [h, left], out: h}}
  - {{op: add, name: skip_2, in: [h, e], out: h}}
  - {{op: layernorm, name: ln_f, in: h, out: h}}
  - {{op: linear, name: head, in: h, out: y, features: vocab}}
  - {{op: cross_entropy, name: loss, in: [y, targets], out: loss}}
loss: loss
"""

MLP = """smp: 1
name: mlp
let: {{features: 6, outputs: 3, hidden: {d}, layers: {layers}}}
inputs:
  x: {{dtype: float32, shape: [features]}}
  y: {{dtype: float32, shape: [outputs]}}
ops:
  - {{op: linear, name: first, in: x, out: h, features: hidden}}
  - repeat: layers
    as: i
    ops:
      - {{op: tanh, name: "h{{i}}.tanh", in: h, out: h}}
      - {{op: batchnorm, name: "h{{i}}.norm", in: h, out: h, sync: true}}
      - {{op: linear, name: "h{{i}}.fc", in: h, out: h, features: hidden}}
  - {{op: linear, name: last, in: h, out: h, features: outputs}}
  - {{op: mse, name: loss, in: [h, y], out: loss}}
loss: loss
"""


def _write_array(path, rows, columns, rng):
    """float32 values as .npy, version 1.0."""
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }" % (rows, columns)
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    values = array.array("f", (rng.uniform(-1.0, 1.0) for _ in range(rows * columns)))
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)))
        file.write(header.encode() + values.tobytes())


# Steps of milliseconds on a core, so that something may happen between them.
LARGER = {"gpt": {"T": (32, 64), "d": (48, 64, 96), "layers": (3, 4)},
          "branches": {"T": (64, 128), "d": (96, 128), "layers": (1,)},
          "mlp": {"T": (1,), "d": (192, 256), "layers": (3, 4)}}
SMALL = {"T": (4, 8, 16), "d": (8, 16, 32), "layers": (1, 2, 3)}


def write_model(folder, rng, sizes_of=None):
    """model.yaml and its data in the folder, of small sizes or of some of those. Returns the family,
    the first data file and the options of smp-run that name the data."""
    family = rng.choice(("gpt", "branches", "mlp"))
    template = {"gpt": GPT, "branches": BRANCHES, "mlp": MLP}[family]
    sizes = {name: rng.choice(values) for name, values in (sizes_of[family] if sizes_of else SMALL).items()}
    (folder / "model.yaml").write_text(template.format(**sizes))
    if family == "mlp":
        _write_array(folder / "x.npy", 200, 6, rng)
        _write_array(folder / "y.npy", 200, 3, rng)
        return family, folder / "x.npy", ["--data", "x=x.npy", "--data", "y=y.npy"]
    text = "".join(rng.choice("abcdefghij klmnop\n") for _ in range(4000))
    (folder / "text.txt").write_text(text)
    return family, folder / "text.txt", ["--data", "text.txt"]


# How groups of devices compute a family's ops: rules for what is worth exchanging something for. Small models
# are left whole by the planner.
SPLITS = {
    "gpt": (("*.qkv:columns/3", "*.attn:packed heads", "*.proj:rows", "wte:rows", "head:columns", "loss:classes"),
            ("*.ln:positions@0", "*.qkv:positions@0", "*.attn:packed heads", "*.drop:elements@0", "*.res:elements@0",
             "*.proj:rows")),
    "branches": (("left.fc:columns", "right.fc:rows", "mid.fc:rows", "mid.relu:elements@1", "gate:elements@1",
                  "again:rows", "head:columns"),),
    "mlp": (("first:columns", "*.tanh:elements@0", "*.norm:channels", "*.fc:rows"),),
}


def processes(options):
    return options["stages"] * options["ddp"] * options.get("tensor", 1)


def draw_plan(rng, family):
    """Options of smp-partition; not every drawn combination is a plan."""
    if rng.random() < 0.3:
        options = draw_whole(rng, 2)
        options["tensor"] = 2
        options["split"] = ("*:whole", *rng.choice(SPLITS[family]))
        return options
    return draw_whole(rng, 4)


def draw_whole(rng, most):
    """For at most so many devices."""
    ddp = rng.choice([ddp for ddp in (1, 1, 2, 2, 4, 8) if ddp <= most])
    stages = rng.randint(1, most // ddp)
    options = {"stages": stages, "ddp": ddp, "chunks": rng.choice((1, 1, 2)) if stages > 1 else 1,
               "microbatches": rng.choice((1, 2, 4)), "microbatch-size": rng.choice((1, 2)),
               "pipeline": "auto"}
    if stages > 1:
        options["pipeline"] = rng.choice(("simple", "interleaved", "zero-bubble", "breadth-first"))
    if ddp > 1 and rng.random() < 0.6:
        options["shard"] = rng.choice([s for s in (2, 4) if s <= ddp])
        options["shard-what"] = rng.choice(("optimizer", "gradients", "weights"))
        if stages == 1 and rng.random() < 0.5:
            options.update(chunks=2, pipeline="breadth-first")
    if ddp > 1 and rng.random() < 0.5:
        options["bucket-bytes"] = rng.choice(("512B", "4KiB"))
    if ddp > 2 and "shard" not in options and rng.random() < 0.5:
        options["node-replicas"] = 2
    return options


def one_stage(options):
    """A plan with the same replicas and micro-batches, so with the same results."""
    whole = dict(options, stages=1, chunks=1, pipeline="auto")
    how = ("shard", "shard-what", "bucket-bytes", "node-replicas")
    return {name: value for name, value in whole.items() if name not in how}

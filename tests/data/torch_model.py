"""A model file of SMP, computed by PyTorch: for comparisons of losses and of speed.

Model(path) reads the YAML (PyYAML) and unrolls it; run() takes tensors by name and returns the
loss, op by op. Weights come from a checkpoint of smp-run, so both begin with the same.
"""
import fnmatch
import json
import math
import re
import struct

import torch
import torch.nn.functional as F
import yaml

import make_torch_values as ops

COMMON = {"op", "name", "in", "out", "stage", "group", "cost", "weight", "tie", "when"}
WORDS = {"approximate", "gates", "scaling"}  # attributes that are words, not expressions


class Op:
    def __init__(self, text, variables):
        def fill(value):
            if isinstance(value, list):
                return [fill(v) for v in value]
            return re.sub(r"\{([^}]*)\}", lambda m: str(number(m[1], variables)), str(value))

        def attribute(key, value):
            if isinstance(value, list):
                return [attribute(key, v) for v in value]
            words = not isinstance(value, str) or key in WORDS
            return value if words else number(value, variables)

        self.kind, self.name = text["op"], fill(text["name"])
        inputs = text.get("in", [])
        self.inputs = fill(inputs if isinstance(inputs, list) else [inputs])
        outs = text["out"] if isinstance(text["out"], list) else [text["out"]]
        self.outs = fill(outs)
        self.attr = {k: attribute(k, v) for k, v in text.items() if k not in COMMON}
        self.tie = {role: fill(name) for role, name in text.get("tie", {}).items()}
        if "weight" in text:
            role = "relative_bias" if self.kind == "attention" else "weight"
            self.tie[role] = fill(text["weight"])

    def get(self, key, default):
        return self.attr.get(key, default)


def number(text, variables):
    """An expression of the model format: integers, division truncates."""
    if isinstance(text, list):
        return [number(item, variables) for item in text]
    try:
        return float(text) if re.fullmatch(r"-?\d*\.?\d+(e-?\d+)?", str(text), re.I) \
            and not re.fullmatch(r"-?\d+", str(text)) else \
            int(eval(str(text).replace("/", "//"), {"__builtins__": {}}, variables))
    except (NameError, SyntaxError) as error:
        raise SystemExit(f"torch_model.py: expression '{text}': {error}")


def unroll(items, variables):
    for item in items:
        if not number(item.get("when", 1), variables):
            continue
        if "op" in item:
            yield Op(item, variables)
            continue
        for i in range(number(item.get("repeat", 1), variables)):
            more = dict(variables)
            if "as" in item:
                more[item["as"]] = i
            yield from unroll(item["ops"], more)


def roles(op, x):
    """Names and shapes of the op's weights, in order; x: the shape of a sample of its input."""
    kind, get = op.kind, op.get
    if kind == "embedding":
        return [("weight", [get("rows", 0), get("features", 0)])]
    if kind == "position_embedding":
        return [("weight", x)]
    if kind == "parameter":
        return [("weight", get("shape", 0))]
    if kind == "expert_linear":
        return [("weight", [x[0], get("features", 0), x[-1]])]
    if kind == "linear":
        made = [("weight", [get("features", 0), x[-1]]), ("bias", [get("features", 0)])]
    elif kind == "conv2d":
        kernel = pair(get("kernel", 0))
        made = [("weight", [get("channels", 0), x[0] // get("groups", 1)] + kernel),
                ("bias", [get("channels", 0)])]
    elif kind == "layernorm":
        return [("weight", x[-1:]), ("bias", x[-1:])]
    elif kind == "rmsnorm":
        return [("weight", x[-1:])]
    elif kind == "groupnorm":
        return [("weight", x[:1]), ("bias", x[:1])]
    elif kind == "batchnorm":
        return [(r, x[:1]) for r in ("weight", "bias", "running_mean", "running_var")]
    elif kind == "attention" and "buckets" in op.attr:
        return [("relative_bias", [get("buckets", 0), get("heads", 0)])]
    else:
        return []
    return made if get("bias", True) else made[:1]


def pair(value):
    value = value if isinstance(value, list) else [value]
    return value * 2 if len(value) == 1 else list(value)


def attention(op, inputs, weights):
    heads, get = op.get("heads", 1), op.get
    floats = [x for x in inputs if x.is_floating_point()]
    counts = inputs[-1] if not inputs[-1].is_floating_point() else None
    q, k, v = floats if len(floats) == 3 else floats[0].chunk(3, -1)
    kv_heads = get("kv_heads", heads)
    if kv_heads != heads:
        k, v = (ops.heads(x, kv_heads).repeat_interleave(heads // kv_heads, 1)
                .transpose(1, 2).flatten(2) for x in (k, v))
    rows, causal, scale = q.shape[1], get("causal", False), get("scale", None)
    if counts is None and not {"window", "alibi", "buckets", "softcap"} & op.attr.keys():
        out = F.scaled_dot_product_attention(*(ops.heads(x, heads) for x in (q, k, v)),
                                             is_causal=causal, scale=scale)
        return out.transpose(1, 2).reshape(q.shape)
    bias = 0
    if get("alibi", False):
        bias = ops.alibi(heads, rows).to(q.dtype)
    elif "buckets" in op.attr:
        bias = ops.t5_bias(weights[0], rows, not causal, get("max_distance", 128))
    return ops.attention(q, k, v, heads, causal, counts, op.attr.get("window"), bias, scale,
                         get("softcap", 0))


def rope_frequencies(op, width):
    """Of pairs, and what cosines and sines are multiplied with; as transformers' modeling_rope_utils.py has them."""
    base, factor = float(op.get("base", 10000)), float(op.get("factor", 1))
    kind, original = op.get("scaling", "none"), float(op.get("original_positions", 0))
    plain = base ** (-torch.arange(0, width, 2).double() / width)
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "llama3":
        low, high, wave = op.get("low_freq_factor", 1), op.get("high_freq_factor", 4), 2 * math.pi / plain
        smooth = (original / wave - low) / (high - low)
        between = (1 - smooth) * plain / factor + smooth * plain
        return torch.where(wave < original / high, plain, torch.where(wave > original / low, plain / factor, between)), 1.0
    if kind == "yarn":
        low, high = (width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
                     for turns in (op.get("beta_fast", 32), op.get("beta_slow", 1)))
        low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
        ramp = ((torch.arange(width // 2).double() - low) / (high - low or 0.001)).clamp(0, 1)
        magnitude = op.get("attention_factor", 0) or (0.1 * math.log(factor) + 1 if factor > 1 else 1.0)
        return plain / factor * ramp + plain * (1 - ramp), magnitude
    if kind == "longrope":
        return plain / torch.tensor(op.attr["factors"]).double(), op.get("attention_factor", 0) or 1.0
    return plain, 1.0


def rope(op, x):
    heads = op.get("heads", 1)
    rotated = op.get("rotated", heads)
    width = x.shape[-1] // heads * rotated
    turn = ops.rope_interleaved if op.get("interleaved", False) else ops.rope
    frequencies, magnitude = rope_frequencies(op, x.shape[-1] // heads)
    turned = (magnitude * turn(x[..., :width].double(), rotated, frequencies)).to(x.dtype)
    return torch.cat([turned, x[..., width:]], -1) if rotated < heads else turned


def sliced(op, x):
    axis = op.get("axis", -1)
    axis += 1 if axis >= 0 else x.dim()
    size = x.shape[axis]
    begin, end = op.get("begin", 0), op.get("end", 0)
    begin, end = begin + size * (begin < 0), end + size * (end <= 0)
    return x.narrow(axis, begin, end - begin)


def sample_axis(op, default=-1):
    axis = op.get("axis", default)
    return axis + 1 if axis >= 0 else axis


def split(op, x):
    n = len(op.outs)
    return x.split(op.get("sizes", [x.shape[sample_axis(op)] // n] * n), sample_axis(op))


def norm2d(op, x, w, training):
    return F.batch_norm(x, w[2], w[3], w[0], w[1], training, op.get("momentum", 0.1),
                        op.get("eps", 1e-5))


def route(op, logits):
    """By sample, of each choice of a token: expert, place there (-1: it was full) and gate."""
    tokens, experts = logits.shape[-2:]
    top_k, factor = op.get("top_k", 2), op.get("capacity", 1.25)
    places = math.ceil(factor * top_k * tokens / experts) if factor > 0 else tokens
    places = min(places, tokens)
    values, expert = logits.topk(top_k, -1)  # (samples, tokens, top_k)
    shares = logits.softmax(-1).gather(-1, expert)
    gate = shares if op.get("gates", "chosen") == "all" else values.softmax(-1)
    slot = torch.full(expert.shape, -1)
    for sample in range(len(logits)):
        used = [0] * experts
        for k in range(top_k):
            for t in range(tokens):
                e = int(expert[sample, t, k])
                if used[e] < places:
                    slot[sample, t, k] = used[e]
                    used[e] += 1
    return expert, slot, gate, places


def chosen(op, logits):
    """For each choice that has a place: sample, token, expert, place and gate, in a row."""
    expert, slot, gate, places = route(op, logits)
    sample, token, k = (slot >= 0).nonzero(as_tuple=True)
    at = (sample, token, k)
    return sample, token, expert[at], slot[at], gate[at], places


def dispatch(op, x, logits):
    sample, token, expert, slot, _, places = chosen(op, logits)
    out = x.new_zeros(len(x), logits.shape[-1], places, x.shape[-1])
    return out.index_put((sample, expert, slot), x[sample, token])


def combine(op, y, logits):
    sample, token, expert, slot, gate, _ = chosen(op, logits)
    out = y.new_zeros(len(y), logits.shape[1], y.shape[-1])
    rows = gate[:, None] * y[sample, expert, slot]
    return out.index_put((sample, token), rows, accumulate=True)


def balance(op, logits):
    """The loss of load_balance, added up over samples."""
    experts, top_k = logits.shape[-1], op.get("top_k", 2)
    picked = torch.zeros_like(logits).scatter(-1, logits.topk(top_k, -1).indices, 1.0)
    share = picked.mean(1) / top_k
    return op.get("coefficient", 0.01) * experts * (share * logits.softmax(-1).mean(1)).sum()


KINDS = {
    "embedding": lambda op, x, w: F.embedding(x[0], w[0], padding_idx=row if (row := op.get("padding_idx", -1)) >= 0 else None),
    "position_embedding": lambda op, x, w: x[0] + w[0],
    "rope": lambda op, x, w: rope(op, x[0]),
    "linear": lambda op, x, w: F.linear(x[0], *w),
    "conv2d": lambda op, x, w: F.conv2d(
        x[0], w[0], w[1] if len(w) > 1 else None, pair(op.get("stride", 1)),
        pair(op.get("padding", 0)), pair(op.get("dilation", 1)), op.get("groups", 1)),
    "layernorm": lambda op, x, w: F.layer_norm(x[0], x[0].shape[-1:], *w, op.get("eps", 1e-5)),
    "rmsnorm": lambda op, x, w: F.rms_norm(
        x[0], x[0].shape[-1:], w[0] + op.get("offset", 0), op.get("eps", 1e-5)),
    "groupnorm": lambda op, x, w: F.group_norm(x[0], op.get("groups", 1), *w, op.get("eps", 1e-5)),
    "gelu": lambda op, x, w: F.gelu(
        x[0], approximate="tanh" if op.get("approximate", "tanh") == "tanh" else "none"),
    "relu": lambda op, x, w: F.relu(x[0]),
    "silu": lambda op, x, w: F.silu(x[0]),
    "sigmoid": lambda op, x, w: torch.sigmoid(x[0]),
    "tanh": lambda op, x, w: torch.tanh(x[0]),
    "softmax": lambda op, x, w: F.softmax(x[0], -1),
    "add": lambda op, x, w: sum(x[1:], x[0]),
    "sub": lambda op, x, w: x[0] - x[1],
    "mul": lambda op, x, w: x[0] * x[1],
    "mul_rows": lambda op, x, w: x[0] * x[1],
    "scale": lambda op, x, w: x[0] * op.attr["factor"],
    "attention": attention,
    "flatten": lambda op, x, w: x[0].flatten(1),
    "reshape": lambda op, x, w: x[0].reshape(x[0].shape[0], *op.attr["shape"]),
    "concat": lambda op, x, w: torch.cat(x, sample_axis(op)),
    "split": lambda op, x, w: split(op, x[0]),
    "slice": lambda op, x, w: sliced(op, x[0]),
    "transpose": lambda op, x, w: x[0].permute(0, *(a + 1 for a in op.attr["axes"])),
    "sum": lambda op, x, w: x[0].sum(sample_axis(op)),
    "mean": lambda op, x, w: x[0].mean(sample_axis(op)),
    "upsample": lambda op, x, w: F.interpolate(x[0], scale_factor=op.attr["factor"]),
    "global_avg_pool": lambda op, x, w: x[0].mean((2, 3)),
    "max_pool": lambda op, x, w: F.max_pool2d(
        x[0], op.attr["kernel"], op.get("stride", None), op.get("padding", 0)),
    "avg_pool": lambda op, x, w: F.avg_pool2d(
        x[0], op.attr["kernel"], op.get("stride", None), op.get("padding", 0)),
    "patchify": lambda op, x, w: ops.patches(x[0], op.attr["patch"]),
    "mean_pool": lambda op, x, w: x[0].mean(1),
    "dropout": lambda op, x, w: x[0],  # its random numbers are SMP's own: for shapes
    "expert_linear": lambda op, x, w: torch.einsum("bepi,eoi->bepo", x[0], w[0]),
    "expert_dispatch": lambda op, x, w: dispatch(op, *x),
    "expert_combine": lambda op, x, w: combine(op, *x),
    "cross_entropy": lambda op, x, w: ops.cross_entropy(*x, op.get("label_smoothing", 0.0)),
    "mse": lambda op, x, w: F.mse_loss(*x),
    "bce_with_logits": lambda op, x, w: F.binary_cross_entropy_with_logits(*x),
}


def apply(op, x, w, batch, training=True):
    """The outputs of an op from its inputs and weights."""
    if op.kind == "parameter":
        out = w[0].expand(batch, *w[0].shape)
    elif op.kind == "batchnorm":
        out = norm2d(op, x[0], w, training)
    else:
        out = KINDS[op.kind](op, x, w)
    return out if isinstance(out, tuple) else (out,)


class Model:
    def __init__(self, path):
        with open(path) as file:
            text = yaml.safe_load(file)
        variables = {}
        for name, value in (text.get("let") or {}).items():
            variables[name] = number(value, variables)
        self.inputs = {name: (what["dtype"], number(what["shape"], variables))
                       for name, what in text["inputs"].items()}
        self.unsplit = {name for name, what in text["inputs"].items()
                        if not what.get("split", True)}  # one array for all samples
        self.ops = list(unroll(text["ops"], variables))
        self.loss = text["loss"]
        self.weight = {}  # by name, in the order of the model
        self.running = set()
        self.uses = {}  # op name -> its weights' names
        self.classes = {}  # cross_entropy's name -> how many
        self.hidden_losses = []  # of the last run, by load_balance: sums over its samples
        with torch.no_grad():
            self._declare()

    def _declare(self):
        """Finds shapes by running two samples, and with them the weights."""
        shape = {name: what[1] for name, what in self.inputs.items()}
        inputs = {name: torch.zeros([2] + shape[name],
                                    dtype=torch.float32 if self.inputs[name][0] == "float32"
                                    else torch.int64) for name in shape}

        def declare(op, x):
            names = []
            for role, size in roles(op, list(x[0].shape[1:]) if x else []):
                name = op.tie.get(role, f"{op.name}.{role}")
                if name not in self.weight:
                    ones = role == "running_var"
                    self.weight[name] = torch.ones(size) if ones else torch.zeros(size)
                    if role.startswith("running"):
                        self.running.add(name)
                names.append(name)
            self.uses[op.name] = names
            if op.kind == "cross_entropy":
                self.classes[op.name] = x[0].shape[-1]

        self.run(inputs, training=False, before=declare)

    def run(self, inputs, training=True, before=None):
        made = dict(inputs)
        batch = next(iter(inputs.values())).shape[0]
        self.hidden_losses = []
        for op in self.ops:
            x = [made[name] for name in op.inputs]
            if before:
                before(op, x)
            w = [self.weight[name] for name in self.uses[op.name]]
            if op.kind == "load_balance":
                self.hidden_losses.append(balance(op, x[0]))
                made[op.outs[0]] = x[0]
                continue
            made.update(zip(op.outs, apply(op, x, w, batch, training)))
        return made[self.loss]

    def load(self, path, states=2):
        """Weights of a checkpoint (exec/state/README.md) with so many optimizer states."""
        with open(path, "rb") as file:
            raw = file.read()
        place = 8 + int.from_bytes(raw[:8], "little") + 4096
        for name, value in self.weight.items():
            n = value.numel()
            values = struct.unpack_from(f"<{n}f", raw, place)
            self.weight[name] = torch.tensor(values).reshape(value.shape)
            if name not in self.running:
                self.weight[name].requires_grad_()
            place += (4 * n + 8 * -(-n // (1 << 14))) * (1 + states)  # a hash for each piece
        if place != len(raw):
            raise SystemExit(f"{path}: {len(raw)} bytes, the model's weights take {place}")

    def load_weights(self, path):
        """Those of smp-run --export-weights, in double."""
        with open(path, "rb") as file:
            head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            body = file.read()
        for name, value in self.weight.items():
            begin, end = head[name]["data_offsets"]
            made = torch.frombuffer(bytearray(body[begin:end]), dtype=torch.float32)
            self.weight[name] = made.reshape(value.shape).double()
            if name not in self.running:
                self.weight[name].requires_grad_()

    def freeze(self, patterns):
        for name, w in self.weight.items():
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                w.requires_grad_(False)

    def trained(self):
        return [w for name, w in self.weight.items()
                if name not in self.running and w.requires_grad]

    def rows(self, inputs):
        """What the loss of a micro-batch is the mean over."""
        op = next(op for op in self.ops if op.outs == [self.loss])
        if op.kind == "cross_entropy":
            return int((inputs[op.inputs[1]] != -1).sum())
        return next(iter(inputs.values())).shape[0]


class AdamW:
    """As smp-run's default: decay on matrices, the global norm of the gradient at most 1."""

    def __init__(self, weights, lr, decay=0.1, betas=(0.9, 0.95), clip=1.0):
        groups = [{"params": [w for w in weights if w.dim() > 1], "weight_decay": decay},
                  {"params": [w for w in weights if w.dim() <= 1], "weight_decay": 0.0}]
        self.weights, self.clip = weights, clip
        self.inner = torch.optim.AdamW([g for g in groups if g["params"]], lr=lr, betas=betas)

    def step(self):
        norm = math.sqrt(sum(float(w.grad.double().square().sum()) for w in self.weights))
        for w in self.weights:
            w.grad.mul_(min(1.0, self.clip / norm) if norm > 0 else 1.0)
        self.inner.step()
        self.inner.zero_grad(set_to_none=False)

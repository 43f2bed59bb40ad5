"""Small networks of every family, drawn by a generator of random numbers, for test_promise.py."""


class Drawn:
    """A model file that grows op by op. `judge`: can PyTorch tell its losses? (Its dropout draws other numbers.)"""

    def __init__(self, family):
        self.family, self.inputs, self.ops, self.weights, self.made = family, [], [], [], 0
        self.judge = True

    def input(self, name, shape, dtype="float32", more=""):
        self.inputs.append(f"  {name}: {{dtype: {dtype}, shape: {list(shape)}{more}}}")
        return name

    def op(self, kind, name, *inputs, out=None, **attributes):
        """The tensor that it makes, or with out=n those."""
        self.made += 1
        outs = [f"t{self.made}" + (f"_{i}" if out else "") for i in range(out or 1)]
        self.judge = self.judge and kind != "dropout"
        words = {"op": kind, "name": name, "in": list(inputs), "out": outs if out else outs[0], **attributes}
        if not inputs:
            del words["in"]
        self.ops.append("  - {" + ", ".join(f"{k}: {word(v)}" for k, v in words.items()) + "}")
        return outs if out else outs[0]

    def text(self):
        return "\n".join(["smp: 1", f"name: {self.family}", "inputs:", *self.inputs, "ops:", *self.ops,
                          "loss: " + f"t{self.made}", ""])


def word(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(word, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {word(v)}" for k, v in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) and not value.replace("_", "").isalnum() else str(value)


def maybe(rng, share):
    return rng.random() < share


class Transformer:
    """The parts of a transformer that every family chooses from, chosen once a model."""

    def __init__(self, rng, model, d, heads):
        self.rng, self.m, self.d, self.heads = rng, model, d, heads
        self.kind = rng.choice(("layernorm", "rmsnorm"))
        self.bias = maybe(rng, 0.5)
        self.dropout = rng.choice((0, 0, 0, 0.2))
        self.gated = maybe(rng, 0.4)
        self.act = rng.choice(("gelu", "silu", "tanh", "relu"))
        self.first_mlp = None

    def norm(self, name, x):
        return self.m.op(self.kind, name, x)

    def linear(self, name, x, features, **more):
        return self.m.op("linear", name, x, features=features, **({} if self.bias else {"bias": False}), **more)

    def residual(self, name, x, y):
        if self.dropout:
            y = self.m.op("dropout", f"{name}.drop", y, p=self.dropout)
        return self.m.op("add", f"{name}.res", x, y)

    def self_attention(self, name, x, how, mask=None):
        """`how`: attributes of the attention, and rope."""
        d, heads = self.d, self.heads
        how = dict(how)
        rope, scaling = how.pop("rope", False), how.pop("scaling", {})
        masks = [mask] if mask else []
        if maybe(self.rng, 0.5) and not rope:
            x = self.linear(f"{name}.qkv", x, 3 * d)
            x = self.m.op("attention", f"{name}.attn", x, *masks, heads=heads, **how)
        else:
            kv = self.rng.choice((heads, max(1, heads // 2)))
            q = self.linear(f"{name}.q", x, d)
            k = self.linear(f"{name}.k", x, d // heads * kv)
            v = self.linear(f"{name}.v", x, d // heads * kv)
            if rope:
                q = self.m.op("rope", f"{name}.q_rope", q, heads=heads)
                k = self.m.op("rope", f"{name}.k_rope", k, heads=kv)
            x = self.m.op("attention", f"{name}.attn", q, k, v, *masks, heads=heads, kv_heads=kv, **how)
        return self.linear(f"{name}.proj", x, d)

    def cross_attention(self, name, x, memory, mask):
        q = self.linear(f"{name}.q", x, self.d)
        k, v = self.m.op("split", f"{name}.split", self.linear(f"{name}.kv", memory, 2 * self.d), out=2)
        x = self.m.op("attention", f"{name}.cross", q, k, v, *([mask] if mask else []), heads=self.heads)
        return self.linear(f"{name}.proj", x, self.d)

    def mlp(self, name, x):
        hidden = 2 * self.d
        tie = {}
        if self.first_mlp and maybe(self.rng, 0.2) and not self.gated:
            tie = {"weight": f"{self.first_mlp}.fc.weight"}
        self.first_mlp = self.first_mlp or name
        h = self.linear(f"{name}.fc", x, hidden, **tie)
        h = self.m.op(self.act, f"{name}.act", h)
        if self.gated:
            h = self.m.op("mul", f"{name}.gate", h, self.linear(f"{name}.up", x, hidden))
        return self.linear(f"{name}.down", h, self.d)

    def experts(self, name, x):
        n = self.rng.choice((2, 4))
        how = {"top_k": self.rng.choice((1, 2)), "capacity": self.rng.choice((0, 1.0, 1.25)),
               "gates": self.rng.choice(("chosen", "all"))}
        r = self.m.op("linear", f"{name}.router", x, features=n, bias=False)
        if maybe(self.rng, 0.7):
            r = self.m.op("load_balance", f"{name}.balance", r, top_k=how["top_k"])
        e = self.m.op("expert_dispatch", f"{name}.dispatch", x, r, **how)
        e = self.m.op("expert_linear", f"{name}.up", e, features=2 * self.d)
        e = self.m.op(self.act, f"{name}.act", e)
        e = self.m.op("expert_linear", f"{name}.down", e, features=self.d)
        return self.m.op("expert_combine", f"{name}.combine", e, r, **how)


def language(rng, mixture=False):
    m = Drawn("mixture" if mixture else "language")
    length, heads, vocab = rng.choice((4, 6, 8)), rng.choice((2, 4)), rng.choice((16, 30))
    d = heads * rng.choice((4, 8))
    tokens, targets = m.input("tokens", [length], "int32"), m.input("targets", [length], "int32")
    t = Transformer(rng, m, d, heads)
    where = rng.choice(("table", "rope", "alibi", "buckets"))
    how = {"causal": True, **{"rope": {"rope": True}, "alibi": {"alibi": True},
                              "buckets": {"buckets": 4, "max_distance": 8}}.get(where, {})}
    if where == "rope":
        how["scaling"] = rng.choice(({}, {"scaling": "linear", "factor": 2.0}, {
            "scaling": "llama3", "factor": 8.0, "original_positions": 16}, {
            "scaling": "yarn", "factor": 4.0, "original_positions": 24}))
    if maybe(rng, 0.3):
        how["window"] = 3
    x = first = m.op("embedding", "wte", tokens, rows=vocab, features=d)
    if where == "table":
        x = m.op("position_embedding", "wpe", x)
    if maybe(rng, 0.3):  # the same for every sample of a step
        shared = m.input("shared", [length, d], more=", split: false")
        x = m.op("add", "shared.add", x, shared)
    for i in range(rng.randint(1, 3)):
        x = t.residual(f"h{i}.a", x, t.self_attention(f"h{i}", t.norm(f"h{i}.ln_1", x), how))
        a = t.norm(f"h{i}.ln_2", x)
        expert = mixture and (i == 0 or maybe(rng, 0.5))
        x = t.residual(f"h{i}.m", x, t.experts(f"h{i}.x", a) if expert else t.mlp(f"h{i}", a))
    if maybe(rng, 0.4):  # skips stages
        x = m.op("add", "skip", x, first)
    x = t.norm("ln_f", x)
    tie = {"weight": "wte.weight"} if maybe(rng, 0.6) else {}
    x = m.op("linear", "head", x, features=vocab, bias=False, **tie)
    smoothing = {"label_smoothing": 0.1} if maybe(rng, 0.3) else {}
    m.op("cross_entropy", "loss", x, targets, **smoothing)
    m.freezable = ["wte.*", "h0.*", "*ln*"] if not tie else ["h0.*", "*ln*"]
    return m


def mixture(rng):
    return language(rng, mixture=True)


def translation(rng):
    """Encoder and decoder, with padding."""
    m = Drawn("translation")
    heads, vocab, rows, length = 2, 20, rng.choice((4, 6)), rng.choice((3, 5))
    d = heads * rng.choice((4, 8))
    source, mask = m.input("source", [rows], "int32"), m.input("mask", [rows], "int32")
    tokens, targets = m.input("tokens", [length], "int32"), m.input("targets", [length], "int32")
    mask = mask if maybe(rng, 0.7) else None
    if mask is None:
        m.inputs = [line for line in m.inputs if not line.startswith("  mask")]
    t = Transformer(rng, m, d, heads)
    x = m.op("embedding", "wte", source, rows=vocab, features=d)
    for i in range(rng.randint(1, 2)):
        x = t.residual(f"e{i}.a", x, t.self_attention(f"e{i}", t.norm(f"e{i}.ln_1", x), {}, mask))
        x = t.residual(f"e{i}.m", x, t.mlp(f"e{i}", t.norm(f"e{i}.ln_2", x)))
    memory = t.norm("e.ln_f", x)
    x = m.op("embedding", "again", tokens, rows=vocab, features=d, tie={"weight": "wte.weight"})
    for i in range(rng.randint(1, 2)):
        x = t.residual(f"d{i}.a", x, t.self_attention(f"d{i}", t.norm(f"d{i}.ln_1", x), {"causal": True}))
        x = t.residual(f"d{i}.c", x, t.cross_attention(f"d{i}.x", t.norm(f"d{i}.ln_x", x), memory, mask))
        x = t.residual(f"d{i}.m", x, t.mlp(f"d{i}", t.norm(f"d{i}.ln_2", x)))
    x = m.op("linear", "head", t.norm("ln_f", x), features=vocab)
    m.op("cross_entropy", "loss", x, targets)
    m.freezable = ["e0.*", "*ln*"]
    return m


def images(rng):
    """A residual network with statistics of a micro-batch, or of groups of channels."""
    m = Drawn("images")
    size, channels, classes = rng.choice((6, 8)), rng.choice((4, 8)), 5
    norm = rng.choice(("batchnorm", "batchnorm", "groupnorm"))
    act = rng.choice(("relu", "silu"))

    def conv(name, x, out, kernel=3, stride=1):
        x = m.op("conv2d", name, x, channels=out, kernel=kernel, stride=stride, padding=kernel // 2, bias=False)
        return m.op(norm, f"{name}.norm", x, **({"groups": 2} if norm == "groupnorm" else {}))

    image = m.input("image", [3, size, size])
    label = m.input("label", [], "int32")
    x = m.op(act, "stem.act", conv("stem", image, channels))
    wide = channels
    for i in range(rng.randint(1, 3)):
        stride = rng.choice((1, 2)) if i else 1
        out = wide * 2 if stride == 2 else wide
        y = m.op(act, f"b{i}.act_1", conv(f"b{i}.a", x, out, stride=stride))
        y = conv(f"b{i}.b", y, out)
        x = m.op("add", f"b{i}.res", x if stride == 1 else conv(f"b{i}.skip", x, out, 1, stride), y)
        x = m.op(act, f"b{i}.act_2", x)
        wide = out
    if maybe(rng, 0.5):
        x = m.op("global_avg_pool", "pool", x)
    else:
        x = m.op("flatten", "flat", m.op(rng.choice(("max_pool", "avg_pool")), "pool", x, kernel=2, stride=1))
    if maybe(rng, 0.3):
        x = m.op("dropout", "drop", x, p=0.3)
    m.op("cross_entropy", "loss", m.op("linear", "head", x, features=classes), label)
    m.freezable = ["stem.*", "b0.*"]
    return m


def denoiser(rng):
    """Down and up again, with a skip that is concatenated."""
    m = Drawn("denoiser")
    c = rng.choice((4, 8))
    image, noise = m.input("image", [2, 6, 6]), m.input("noise", [2, 6, 6])
    time = m.input("time", [6])

    def block(name, x, out):
        x = m.op("conv2d", name, x, channels=out, kernel=3, padding=1)
        return m.op("silu", f"{name}.act", m.op("groupnorm", f"{name}.norm", x, groups=2))

    skip = x = block("in", image, c)
    x = m.op("conv2d", "halve", x, channels=2 * c, kernel=3, stride=2, padding=1)
    s = m.op("linear", "time.fc", time, features=2 * c * 9)
    x = m.op("add", "time.add", x, m.op("reshape", "time.map", s, shape=[2 * c, 3, 3]))
    if maybe(rng, 0.6):
        r = m.op("transpose", "mid.tokens", m.op("reshape", "mid.rows", x, shape=[2 * c, 9]), axes=[1, 0])
        a = m.op("linear", "mid.qkv", m.op("layernorm", "mid.ln", r), features=6 * c)
        r = m.op("add", "mid.res", r, m.op("attention", "mid.attn", a, heads=2))
        x = m.op("reshape", "mid.map", m.op("transpose", "mid.back", r, axes=[1, 0]), shape=[2 * c, 3, 3])
    x = block("up", m.op("concat", "up.cat", m.op("upsample", "up.twice", x, factor=2), skip, axis=0), c)
    m.op("mse", "loss", m.op("conv2d", "last", x, channels=2, kernel=3, padding=1), noise)
    m.freezable = ["in.*", "time.*"]
    return m


def dense(rng):
    m = Drawn("dense")
    width = rng.choice((6, 9, 12))
    x, y = m.input("x", [rng.choice((3, 8))]), m.input("y", [3])
    shared = m.input("shared", [width], more=", split: false") if maybe(rng, 0.5) else None
    x = m.op("linear", "first", x, features=width)
    for i in range(rng.randint(1, 4)):
        act = rng.choice(("tanh", "sigmoid", "silu", "gelu"))
        h = m.op("linear", f"h{i}.fc", m.op(act, f"h{i}.act", x), features=width,
                 **({"weight": "h0.fc.weight"} if i and maybe(rng, 0.3) else {}))
        if shared and i == 0:
            h = m.op("mul", "shared.mul", h, shared)
        if maybe(rng, 0.3):
            h = m.op("batchnorm", f"h{i}.norm", h)
        if maybe(rng, 0.2):
            h = m.op("dropout", f"h{i}.drop", h, p=0.2)
        x = m.op(rng.choice(("add", "sub", "mul")), f"h{i}.join", x, h)
    if shared and "shared.mul" not in "".join(m.ops):
        x = m.op("mul", "shared.mul", x, shared)
    m.op(rng.choice(("mse", "bce_with_logits")), "loss", m.op("linear", "last", x, features=3), y)
    m.freezable = ["first.*", "h0.*"]
    return m


FAMILIES = (language, mixture, translation, images, denoiser, dense)

"""Weights between PyTorch and smp-run. A GPT-2 with Hugging Face's names and layouts, saved by the safetensors package,
trains two steps here to PyTorch's losses, predicts its logits, is exported under those names, and PyTorch loads it bit for bit. Of six families
the names and shapes are those of Hugging Face's transformers; of each, whatever is saved loads and comes back bit for bit."""

import math
import os
import re
import subprocess
import sys
import tempfile

import numpy
import torch
from torch import nn
from torch.nn import functional

TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PROGRAMS = os.path.dirname(os.environ["SMP_PARTITION"])

try:
    from safetensors.torch import load_file, save_file
except ImportError:
    print("skipped: no safetensors in this Python")
    sys.exit(77)


class Conv1D(nn.Module):
    """A linear layer whose matrix has inputs as rows."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.05)
        self.bias = nn.Parameter(torch.randn(outputs) * 0.05)

    def forward(self, x):
        return x @ self.weight + self.bias


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads, self.c_attn, self.c_proj = heads, Conv1D(3 * d, d), Conv1D(d, d)

    def forward(self, x):
        batch, length, d = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.c_attn(x).split(d, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, d))


class MLP(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(4 * d, d), Conv1D(d, 4 * d)

    def forward(self, x):
        return self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = nn.LayerNorm(d), Attention(d, heads), nn.LayerNorm(d), MLP(d)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    """The table of tokens is the output layer, too."""

    def __init__(self, vocab, length, d, heads, layers):
        super().__init__()
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(vocab, d), "wpe": nn.Embedding(length, d),
                                          "h": nn.ModuleList(Block(d, heads) for _ in range(layers)),
                                          "ln_f": nn.LayerNorm(d)})

    def logits(self, tokens):
        t = self.transformer
        x = t["wte"](tokens) + t["wpe"](torch.arange(tokens.shape[1]))
        for block in t["h"]:
            x = block(x)
        return t["ln_f"](x) @ t["wte"].weight.T

    def forward(self, tokens, targets):
        return functional.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())


def run(folder, *command, ranks=0):
    start = ["mpirun", "-n", str(ranks)] if ranks else []
    result = subprocess.run([*start, os.path.join(PROGRAMS, command[0]), *command[1:]], cwd=folder, capture_output=True,
                            text=True, timeout=120, check=False)
    if result.returncode != 0:
        sys.exit(f"{command}: {result.returncode}\n{result.stdout}\n{result.stderr[-3000:]}")
    return result.stdout


def plan(folder, model, name, *options):
    run(folder, "smp-partition", model, "-o", name, *options)


def require(holds, what):
    if not holds:
        sys.exit(f"does not hold: {what}")


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.contiguous().view(torch.int32).equal(b.contiguous().view(torch.int32))


def check_gpt2(folder):
    torch.manual_seed(1)
    vocab, length, d, heads, layers, batch = 96, 24, 32, 4, 2, 8
    module = GPT2(vocab, length, d, heads, layers)
    for name, weight in module.named_parameters():
        nn.init.normal_(weight, 1.0 if "ln_" in name and name.endswith("weight") else 0.0, 0.1)
    tokens, targets = (torch.randint(vocab, (batch, length)) for _ in range(2))
    numpy.save(f"{folder}/tokens.npy", tokens.numpy().astype("int32"))
    numpy.save(f"{folder}/targets.npy", targets.numpy().astype("int32"))
    save_file(module.state_dict(), f"{folder}/gpt2.safetensors", metadata={"format": "pt"})
    with open(f"{TREE}/examples/gpt-tiny.yaml", encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"let: .*", f"let: {{T: {length}, d: {d}, heads: {heads}, layers: {layers}, vocab: {vocab}}}", text)
    with open(f"{folder}/gpt2.yaml", "w", encoding="utf-8") as file:
        file.write(text)
    data = ["--data", "tokens=tokens.npy", "--data", "targets=targets.npy", "--no-shuffle"]
    train = ["--optimizer", "sgd", "--momentum", "0", "--weight-decay", "0", "--clip", "0", "--lr", "0.5", "--json"]
    plan(folder, "gpt2.yaml", "gpt2.plan", "-n", "4", "--stages", "2", "--tensor", "2", "--microbatches", "4",
         "--microbatch-size", "2")
    out = run(folder, "smp-run", "gpt2.plan", *data, *train, "--steps", "2", "--weights", "gpt2.safetensors", "--names", "hf-gpt2",
              "--export-weights", "trained.safetensors", ranks=4)
    ours = [float(x) for x in re.findall(r'"loss": ?([0-9.]+)', out)]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    theirs = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = module(tokens, targets)
        theirs.append(loss.item())
        loss.backward()
        optimizer.step()
    require(len(ours) == 2 and all(abs(a - b) < 1e-5 * b for a, b in zip(ours, theirs)), f"losses {ours} are {theirs}")
    require(ours[1] < ours[0] - 0.01, f"the loss falls: {ours}")
    trained = load_file(f"{folder}/trained.safetensors")
    for name, weight in module.named_parameters():
        require(torch.allclose(trained[name], weight, rtol=1e-4, atol=1e-5), f"trained {name}")
    print(module.load_state_dict(trained), "after", ours)
    check_checkpoint(folder, data, train)
    save_file({k: v.clone() for k, v in module.state_dict().items()}, f"{folder}/kept.safetensors")
    run(folder, "smp-run", "gpt2.plan", *data, "--steps", "0", "--weights", "kept.safetensors", "--names", "hf-gpt2",
        "--export-weights", "back.safetensors", "--predict", "logits.npy", ranks=4)
    with torch.no_grad():
        expected = module.logits(tokens)
    logits = torch.from_numpy(numpy.load(f"{folder}/logits.npy"))
    require(logits.shape == expected.shape and torch.allclose(logits, expected, rtol=1e-5, atol=1e-5), "predicted logits")
    print("logits differ by", (logits - expected).abs().max().item(), "of", expected.abs().max().item())
    back = load_file(f"{folder}/back.safetensors")
    require(back.keys() == trained.keys() and all(same_bits(back[k], trained[k]) for k in back), "there and back, bit for bit")


def check_checkpoint(folder, data, train):
    """A checkpoint is a file of safetensors: weights, states and the header, of which PyTorch makes the weights that are exported."""
    run(folder, "smp-run", "gpt2.plan", *data, *train[2:], "--steps", "3", "--checkpoint", "saved", "--export-weights", "own.safetensors",
        ranks=4)
    saved, own = load_file(f"{folder}/saved/checkpoint-0000000003.smp"), load_file(f"{folder}/own.safetensors")
    states = {name + end for name in own for end in ("#1", "#2", "#hashes")}
    require(saved.keys() == own.keys() | states | {"#checkpoint"}, f"tensors of a checkpoint: {sorted(saved.keys() ^ own.keys())[:5]}")
    require(all(same_bits(saved[name], own[name]) for name in own), "weights of a checkpoint are those exported")
    require(all(saved[name + "#2"].min() >= 0 and saved[name + "#2"].max() > 0 for name in own), "second moments")
    require(bytes(saved["#checkpoint"].tolist()).startswith(b"SMP checkpoint 6\n"), "the header")
    run(folder, "smp-run", "gpt2.plan", "--steps", "0", "--weights", "saved/checkpoint-0000000003.smp", "--export-weights", "same.safetensors",
        ranks=4)
    same = load_file(f"{folder}/same.safetensors")
    require(all(same_bits(same[name], own[name]) for name in own), "a checkpoint as given weights")


def llama_names():
    d, kv, hidden, vocab = 128, 64, 384, 256
    yield "model.embed_tokens.weight", (vocab, d)
    for i in range(4):
        p = f"model.layers.{i}."
        yield from ((p + f"self_attn.{n}_proj.weight", (rows, d)) for n, rows in (("q", d), ("k", kv), ("v", kv), ("o", d)))
        yield from ((p + f"mlp.{n}_proj.weight", s) for n, s in (("gate", (hidden, d)), ("up", (hidden, d)), ("down", (d, hidden))))
        yield from ((p + n + ".weight", (d,)) for n in ("input_layernorm", "post_attention_layernorm"))
    yield "model.norm.weight", (d,)


def gpt2_names():
    d = 128
    yield from (("transformer.wte.weight", (256, d)), ("transformer.wpe.weight", (64, d)))
    for i in range(4):
        p = f"transformer.h.{i}."
        for n, s in (("attn.c_attn", (d, 3 * d)), ("attn.c_proj", (d, d)), ("mlp.c_fc", (d, 4 * d)), ("mlp.c_proj", (4 * d, d))):
            yield from ((p + n + ".weight", s), (p + n + ".bias", s[1:]))
        yield from ((p + f"ln_{k}.{w}", (d,)) for k in (1, 2) for w in ("weight", "bias"))
    yield from ((f"transformer.ln_f.{w}", (d,)) for w in ("weight", "bias"))


def dense(name, outputs, inputs):
    yield from ((name + ".weight", (outputs, inputs)), (name + ".bias", (outputs,)))


def norm(name, d):
    yield from ((name + ".weight", (d,)), (name + ".bias", (d,)))


def bert_names():
    d, vocab = 128, 260
    p = "bert.embeddings."
    yield from ((p + "word_embeddings.weight", (vocab, d)), (p + "token_type_embeddings.weight", (2, d)),
                (p + "position_embeddings.weight", (64, d)), *norm(p + "LayerNorm", d))
    for i in range(4):
        p = f"bert.encoder.layer.{i}."
        for n in ("query", "key", "value"):
            yield from dense(p + "attention.self." + n, d, d)
        yield from (*dense(p + "attention.output.dense", d, d), *norm(p + "attention.output.LayerNorm", d),
                    *dense(p + "intermediate.dense", 4 * d, d), *dense(p + "output.dense", d, 4 * d), *norm(p + "output.LayerNorm", d))
    p = "cls.predictions."
    yield from (*dense(p + "transform.dense", d, d), *norm(p + "transform.LayerNorm", d), (p + "bias", (vocab,)))


def t5_names():
    d, ff, vocab = 128, 256, 266
    yield "shared.weight", (vocab, d)
    for stack, last in (("encoder", 1), ("decoder", 2)):
        for i in range(2):
            p = f"{stack}.block.{i}.layer."
            for layer, name in ((0, "SelfAttention"), (1, "EncDecAttention"))[:last]:
                yield from ((f"{p}{layer}.{name}.{n}.weight", (d, d)) for n in "qkvo")
            yield from ((f"{p}{k}.layer_norm.weight", (d,)) for k in range(last + 1))
            yield from ((f"{p}{last}.DenseReluDense.wi.weight", (ff, d)), (f"{p}{last}.DenseReluDense.wo.weight", (d, ff)))
        yield f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight", (32, 4)
        yield f"{stack}.final_layer_norm.weight", (d,)


VIT = """
smp: 1
name: vit
let: {size: 32, d: 32, heads: 4, layers: 2, classes: 10}
inputs:
  image: {dtype: float32, shape: [3, size, size]}
  label: {dtype: int32, shape: []}
ops:
  - {op: patchify, name: patches, in: image, out: x, patch: 8}
  - {op: linear, name: embed, in: x, out: x, features: d}
  - {op: parameter, name: class, out: token, shape: [1, d]}
  - {op: concat, name: tokens, in: [token, x], out: x, axis: 0}
  - {op: position_embedding, name: position, in: x, out: x}
"""


def vit_model():
    """The blocks of an example behind patches of three channels."""
    with open(f"{TREE}/examples/vit-class.yaml", encoding="utf-8") as file:
        text = file.read()
    return VIT + text[text.index("  - repeat: layers"):]


def vit_names():
    d = 32
    p = "vit.embeddings."
    yield from ((p + "cls_token", (1, 1, d)), (p + "position_embeddings", (1, 17, d)),
                (p + "patch_embeddings.projection.weight", (d, 3, 8, 8)), (p + "patch_embeddings.projection.bias", (d,)))
    for i in range(2):
        p = f"vit.encoder.layer.{i}."
        for n in ("query", "key", "value"):
            yield from dense(p + "attention.attention." + n, d, d)
        yield from (*dense(p + "attention.output.dense", d, d), *dense(p + "intermediate.dense", 4 * d, d),
                    *dense(p + "output.dense", d, 4 * d), *norm(p + "layernorm_before", d), *norm(p + "layernorm_after", d))
    yield from (*norm("vit.layernorm", d), *dense("classifier", 10, d))


def resnet_names():
    def convolution(name, outputs, inputs, kernel):
        yield name + ".convolution.weight", (outputs, inputs, kernel, kernel)
        yield from ((f"{name}.normalization.{w}", (outputs,)) for w in ("weight", "bias", "running_mean", "running_var"))

    yield from convolution("resnet.embedder.embedder", 64, 3, 3)
    before = 64
    for s, c in enumerate((64, 128, 256, 512)):
        for b in range(2):
            p = f"resnet.encoder.stages.{s}.layers.{b}."
            yield from (*convolution(p + "layer.0", c, before, 3), *convolution(p + "layer.1", c, c, 3))
            if before != c:
                yield from convolution(p + "shortcut", c, before, 1)
            before = c
    yield from dense("classifier.1", 10, 512)


FAMILIES = {"hf-gpt2": ("gpt-tiny", gpt2_names), "hf-llama": ("llama-tiny", llama_names), "hf-bert": ("bert-small", bert_names),
            "hf-t5": ("t5-small", t5_names), "hf-vit": (None, vit_names), "hf-resnet": ("resnet-18", resnet_names)}


def check_family(folder, family):
    example, names = FAMILIES[family]
    model = f"{TREE}/examples/{example}.yaml"
    if not example:
        model = f"{folder}/{family}.yaml"
        with open(model, "w", encoding="utf-8") as file:
            file.write(vit_model())
    tensors = {name: torch.randn(shape) for name, shape in names()}
    extra = {"resnet.embedder.embedder.normalization.num_batches_tracked": torch.tensor(7)} if family == "hf-resnet" else {}
    save_file({**tensors, **extra}, f"{folder}/{family}.safetensors")
    plan(folder, model, f"{family}.plan", "-n", "2", "--stages", "2", "--microbatch-size", "1", "--microbatches", "2")
    run(folder, "smp-run", f"{family}.plan", "--steps", "0", "--weights", f"{family}.safetensors", "--names", family,
        "--export-weights", f"{family}.back.safetensors", ranks=2)
    back = load_file(f"{folder}/{family}.back.safetensors")
    require(back.keys() == tensors.keys(), f"{family}: names {sorted(back.keys() ^ tensors.keys())[:6]}")
    for name, tensor in tensors.items():
        require(same_bits(back[name], tensor), f"{family}: {name} {tuple(back[name].shape)} {tuple(tensor.shape)}")
    count = sum(math.prod(t.shape) for t in tensors.values())
    print(f"{family}: {len(tensors)} tensors, {count} values there and back")


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_gpt2(folder)
        for family in FAMILIES if os.environ.get("SMP_TEST_LONG") else ("hf-bert", "hf-vit"):  # of test_names.py all
            check_family(folder, family)


main()

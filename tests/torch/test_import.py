"""Models that PyTorch exports to ONNX, by both of its exporters: imported, planned on two ranks and trained here, their first
losses are those of the module. One that is told by name: ResNet, GPT, BERT, T5 and a block of LLaMA, and classes of
transformers. Weights are those that the class begins with: ones and zeroes, which the exporters store once."""

import functools
import os
import re
import subprocess
import sys
import tempfile
import warnings

import numpy
import torch
from torch import nn
from torch.nn import functional

PROGRAMS = os.path.dirname(os.environ["SMP_PARTITION"])
PEERS = os.environ.get("SMP_TORCH_PEERS")
if PEERS:
    sys.path.append(PEERS)
try:
    import onnx
    import onnxscript  # noqa: F401
except ImportError:
    print("skipped: no onnx and onnxscript beside PyTorch (tests/torch/peers.txt)")
    sys.exit(77)

from zoo import DECODERS, ENCODERS, of_transformers  # noqa: E402

LAST_OPSET = 21  # that smp-import takes
VOCAB, LENGTH, WIDTH, HEADS, BATCH = 48, 12, 32, 4, 4


def heads_of(x, heads=HEADS):
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def merged(x):
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


class GPTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (heads_of(t) for t in self.qkv(self.ln_1(x)).split(WIDTH, dim=2))
        x = x + self.proj(merged(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))
        return x + self.out(functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """The table of tokens is the output layer, too."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h, self.ln_f = nn.ModuleList(GPTBlock() for _ in range(2)), nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.down = nn.Identity()
        if stride != 1:
            self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + self.down(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
        self.pool, self.blocks = nn.MaxPool2d(3, 2, 1), nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2))
        self.avg, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 10)

    def forward(self, image):
        x = self.blocks(self.pool(functional.relu(self.bn1(self.conv1(image)))))
        return self.fc(torch.flatten(self.avg(x), 1))


class BERTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.dense = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH, eps=1e-12), nn.LayerNorm(WIDTH, eps=1e-12)
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, hidden):
        """Scores written out, as in BERT's first implementation."""
        q, k, v = (heads_of(layer(x)) for layer in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5 + hidden
        x = self.norm_1(x + self.dense(merged(scores.softmax(-1) @ v)))
        return self.norm_2(x + self.out(functional.gelu(self.fc(x))))


class BERT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.positions, self.types = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH), nn.Embedding(2, WIDTH)
        self.norm, self.layer = nn.LayerNorm(WIDTH, eps=1e-12), nn.ModuleList(BERTBlock() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens, types, mask):
        x = self.norm(self.words(tokens) + self.types(types) + self.positions(torch.arange(tokens.shape[1])))
        hidden = (1.0 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        for layer in self.layer:
            x = layer(x, hidden)
        return self.head(x)


class RMSNorm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(WIDTH)), eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def bucket_of(distance, both):
    """T5's bucket of key - query: of 8, up to a distance of 20."""
    buckets, most, first = 8, 20, 0
    if both:
        buckets //= 2
        first = (distance > 0).long() * buckets
        distance = distance.abs()
    else:
        distance = -distance.clamp(max=0)
    exact = buckets // 2
    far = exact + (torch.log(distance.float().clamp(min=1) / exact) / numpy.log(most / exact) * (buckets - exact)).long()
    return first + torch.where(distance < exact, distance, far.clamp(max=buckets - 1))


class T5Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x, memory, bias):
        q, k, v = heads_of(self.q(x)), heads_of(self.k(memory)), heads_of(self.v(memory))
        scores = q @ k.transpose(-1, -2)
        scores = scores if bias is None else scores + bias
        return self.o(merged(scores.softmax(-1) @ v))


class T5Layer(nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.norms = nn.ModuleList(RMSNorm() for _ in range(3 if decoder else 2))
        self.attention, self.cross = T5Attention(), T5Attention() if decoder else None
        self.wi, self.wo = nn.Linear(WIDTH, 64, bias=False), nn.Linear(64, WIDTH, bias=False)

    def forward(self, x, bias, memory=None):
        y = self.norms[0](x)
        x = x + self.attention(y, y, bias)
        if self.cross:
            x = x + self.cross(self.norms[1](x), memory, None)
        return x + self.wo(functional.relu(self.wi(self.norms[-1](x))))


class T5Stack(nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.decoder, self.relative_bias = decoder, nn.Embedding(8, HEADS)
        self.layers, self.norm = nn.ModuleList(T5Layer(decoder) for _ in range(2)), RMSNorm()

    def forward(self, x, memory=None):
        place = torch.arange(LENGTH)
        distance = place[None, :] - place[:, None]
        bias = self.relative_bias(bucket_of(distance, not self.decoder)).permute(2, 0, 1)[None]
        if self.decoder:
            bias = bias + torch.full((LENGTH, LENGTH), torch.finfo(torch.float32).min).triu(1)
        for layer in self.layers:
            x = layer(x, bias, memory)
        return self.norm(x)


class T5(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.encoder, self.decoder = nn.Embedding(VOCAB, WIDTH), T5Stack(False), T5Stack(True)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens, decoder_tokens):
        return self.lm_head(self.decoder(self.shared(decoder_tokens), self.encoder(self.shared(tokens))))


class LLaMA(nn.Module):
    """One block: grouped heads, rotary positions, SwiGLU."""

    def __init__(self):
        super().__init__()
        self.embed, self.kv = nn.Embedding(VOCAB, WIDTH), HEADS // 2
        self.q, self.o = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = nn.Linear(WIDTH, WIDTH // 2, bias=False), nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.gate, self.up, self.down = nn.Linear(WIDTH, 64, bias=False), nn.Linear(WIDTH, 64, bias=False), nn.Linear(64, WIDTH, bias=False)
        self.norm_1, self.norm_2, self.norm = RMSNorm(), RMSNorm(), RMSNorm()
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)

    def turn(self, x):
        w = x.shape[-1]
        angles = torch.arange(LENGTH).float()[:, None] / 10000 ** (torch.arange(0, w, 2).float() / w)[None]
        angles = torch.cat((angles, angles), -1)[None, None]
        half = torch.cat((-x[..., w // 2:], x[..., : w // 2]), -1)
        return x * angles.cos() + half * angles.sin()

    def repeated(self, x):
        b, h, t, w = x.shape
        return x[:, :, None].expand(b, h, HEADS // h, t, w).reshape(b, HEADS, t, w)

    def forward(self, tokens):
        x = self.embed(tokens)
        y = self.norm_1(x)
        q, k, v = self.turn(heads_of(self.q(y))), self.turn(heads_of(self.k(y), self.kv)), heads_of(self.v(y), self.kv)
        y = functional.scaled_dot_product_attention(q, self.repeated(k), self.repeated(v), is_causal=True)
        x = x + self.o(merged(y))
        y = self.norm_2(x)
        return self.lm_head(self.norm(x + self.down(functional.silu(self.gate(y)) * self.up(y))))


def tokens():
    drawn = torch.randint(VOCAB, (BATCH, LENGTH))
    drawn[:, :3] = 0  # which pads in some classes: its row learns nothing there
    return drawn


def padding():
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[1, 9:] = 0
    mask[3, 5:] = 0
    return mask


class Logits(nn.Module):
    """A class of transformers (zoo.py), without what it returns beside."""

    def __init__(self, name):
        super().__init__()
        self.module = of_transformers(*{**DECODERS, **ENCODERS}[name])

    def forward(self, tokens):
        return self.module(tokens).logits


REAL = ("gpt2", "phi3", "distilbert")
CASES = {  # inputs by name, classes of the targets and their shape
    "gpt": (GPT, {"tokens": tokens}, VOCAB, (LENGTH,)),
    "resnet": (ResNet, {"image": lambda: torch.randn(BATCH, 3, 32, 32)}, 10, ()),
    "bert": (BERT, {"tokens": tokens, "types": lambda: torch.randint(2, (BATCH, LENGTH)), "mask": padding}, VOCAB, (LENGTH,)),
    "t5": (T5, {"tokens": tokens, "decoder_tokens": tokens}, VOCAB, (LENGTH,)),
    "llama": (LLaMA, {"tokens": tokens}, VOCAB, (LENGTH,)),
    **{name: (functools.partial(Logits, name), {"tokens": tokens}, VOCAB, (LENGTH,)) for name in REAL},
}


def run(folder, *command, ranks=0):
    start = ["mpirun", "-n", str(ranks)] if ranks else []
    result = subprocess.run([*start, os.path.join(PROGRAMS, command[0]), *command[1:]], cwd=folder, capture_output=True,
                            text=True, timeout=120, check=False)
    if result.returncode != 0:
        sys.exit(f"{command}: {result.returncode}\n{result.stdout}\n{result.stderr[-3000:]}")
    return result.stdout


def export(module, inputs, path, dynamo, opset=None):
    """The newer exporter folds batchnorms into convolutions: such a network trains no longer as it did. Without opset: its own.
    Classes of transformers compute masks of any batch by operators that are not read."""
    names = list(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            shapes = None if isinstance(module, Logits) else {name: {0: torch.export.Dim("batch")} for name in names}
            torch.onnx.export(module, tuple(inputs.values()), path, input_names=names, dynamic_shapes=shapes, dynamo=True,
                              verbose=False, opset_version=opset)
            require_opset(path, opset)
        else:
            torch.onnx.export(module, tuple(inputs.values()), path, input_names=names, dynamo=False, do_constant_folding=False,
                              dynamic_axes={name: {0: "batch"} for name in names}, training=torch.onnx.TrainingMode.TRAINING)


def require_opset(path, opset):
    version = next(x.version for x in onnx.load(path, load_external_data=False).opset_import if not x.domain)
    if opset and version != opset:
        sys.exit(f"{path}: opset {version}, expected {opset}")


def losses_here(folder, inputs, targets, name):
    data = ["--data", "targets=targets.npy", "--no-shuffle"]
    numpy.save(f"{folder}/targets.npy", targets.numpy().astype("int32"))
    for key, value in inputs.items():
        value = value.numpy()
        numpy.save(f"{folder}/{key}.npy", value.astype("float32" if value.dtype.kind == "f" else "int32"))
        data += ["--data", f"{key}={key}.npy"]
    said = run(folder, "smp-import", f"{name}.onnx", "-o", f"{name}.yaml", "--weights", f"{name}.safetensors", "--loss", "cross_entropy")
    if " 0 of them planned" not in said:
        with open(f"{folder}/{name}.yaml", encoding="utf-8") as file:
            sys.exit(f"{said}{file.read()}")
    run(folder, "smp-partition", f"{name}.yaml", "-o", f"{name}.plan", "-n", "2", "--stages", "2", "--microbatches", "1",
        "--microbatch-size", str(BATCH))
    out = run(folder, "smp-run", f"{name}.plan", *data, "--weights", f"{name}.safetensors", "--steps", "2", "--json", "--optimizer", "sgd",
              "--momentum", "0", "--weight-decay", "0", "--clip", "0", "--lr", "0.5", ranks=2)
    return [float(x) for x in re.findall(r'"loss": ?([0-9.]+)', out)]


def losses_there(module, inputs, targets):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(*inputs.values()).flatten(0, -2), targets.flatten())
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    return losses


def check(folder, name, dynamo, opset=None):
    torch.manual_seed(3)
    make, inputs, classes, shape = CASES[name]
    module = make()
    inputs = {key: draw() for key, draw in inputs.items()}
    targets = torch.randint(classes, (BATCH, *shape))
    module.train()
    export(module, inputs, f"{folder}/{name}.onnx", dynamo, opset)
    ours, theirs = losses_here(folder, inputs, targets, name), losses_there(module, inputs, targets)
    print(name, "dynamo" if dynamo else "torchscript", opset or "", ours, theirs)
    if len(ours) != 2 or any(abs(a - b) > 1e-5 * b for a, b in zip(ours, theirs)) or not theirs[1] < theirs[0]:
        sys.exit(f"{name}: losses {ours}, expected {theirs}")


for case in sys.argv[1:] or CASES:
    newer = ((True, None), (True, LAST_OPSET)) if case in ("gpt", "llama") else ((True, None),) if case != "resnet" else ()
    older = () if case in REAL else ((False, None),)  # which cannot export them
    for how in (*older, *(newer if os.environ.get("SMP_TEST_LONG") else newer[-1:])):
        with tempfile.TemporaryDirectory() as scratch:
            check(scratch, case, *how)

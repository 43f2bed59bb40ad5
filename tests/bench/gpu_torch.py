#!/usr/bin/env python3
"""Training in PyTorch on one GPU, or with FSDP2 on several, the measure that tests/gpu.sh holds SMP against.

The same networks, batches and optimizer as examples/gpt2-*.yaml (tied output layer, packed qkv),
llama3-8b.yaml and resnet-50.yaml: bf16 autocast over fp32 weights, scaled_dot_product_attention,
AdamW (fused), gradients accumulated over micro-batches and clipped to norm 1. Prints one JSON object:
samples per second, the median over --steps steps after --warmup, and the peak of allocated memory.
--data: bytes of a file as tokens, as smp-run reads them, or random images; else random ones.

--fsdp, below torchrun: every process has these micro-batches and a GPU of its own; weights lie in shards,
and each block's are gathered before its forward and its backward pass, in bf16. Samples are those of
all processes; the first prints.
"""
import argparse
import contextlib
import json
import os
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.ln_1(x)).split(width, dim=2)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(batch, length, width))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers, width, heads, length, vocabulary):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        features = width // heads * kv_heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, n, bias=False)
                                          for n in (width, features, features, width))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape

        def turn(a):
            first, second = a.chunk(2, dim=-1)
            return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

        a = self.norm_1(x)
        q = self.q(a).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = (part(a).view(batch, length, self.kv_heads, -1).transpose(1, 2)
                for part in (self.k, self.v))
        a = F.scaled_dot_product_attention(turn(q).to(v.dtype), turn(k).to(v.dtype), v,
                                           is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(x.shape))
        m = self.norm_2(x)
        return x + self.down(F.silu(self.gate(m)) * self.up(m))


class Llama(nn.Module):
    def __init__(self, layers, width, heads, length, vocabulary, kv_heads, hidden):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, kv_heads, hidden)
                                    for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        half = width // heads // 2
        angle = torch.outer(torch.arange(length), 500000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, tokens, targets):
        x = self.wte(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


def normed(channels_in, channels, kernel, stride=1):
    return nn.Sequential(nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, bias=False),
                         nn.BatchNorm2d(channels))


class Bottleneck(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv_1, self.conv_2 = normed(channels_in, channels, 1), normed(channels, channels, 3,
                                                                           stride)
        self.conv_3 = normed(channels, 4 * channels, 1)
        self.shortcut = nn.Identity() if channels_in == 4 * channels else \
            normed(channels_in, 4 * channels, 1, stride)

    def forward(self, x):
        a = F.relu(self.conv_2(F.relu(self.conv_1(x))))
        return F.relu(self.shortcut(x) + self.conv_3(a))


class ResNet50(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        self.stem, blocks, width = normed(3, 64, 7, 2), [], 64
        for stage, (number, channels) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512))):
            for block in range(number):
                blocks.append(Bottleneck(width, channels, 2 if block == 0 and stage > 0 else 1))
                width = 4 * channels
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(width, classes)

    def forward(self, images, labels):
        x = F.max_pool2d(F.relu(self.stem(images)), 3, 2, 1)
        return F.cross_entropy(self.head(self.blocks(x).mean((2, 3))), labels)


def make_model(args):
    if args.kind == "resnet":
        return ResNet50()
    shape = args.layers, args.width, args.heads, args.length, args.vocabulary
    return GPT(*shape) if args.kind == "gpt" else Llama(*shape, args.kv_heads, args.hidden)


def make_batches(args, device):
    """Inputs and targets of every micro-batch."""
    samples = args.microbatches, args.microbatch_size
    if args.kind == "resnet":
        images = torch.randn(*samples, 3, args.length, args.length, device=device)
        return list(zip(images, torch.randint(1000, samples, device=device)))
    n = args.microbatches * args.microbatch_size * (args.length + 1)
    if args.data:
        with open(args.data, "rb") as file:
            tokens = torch.frombuffer(bytearray(file.read(n)), dtype=torch.uint8).long()
        tokens = tokens.repeat(-(-n // len(tokens)))[:n].to(device)
    else:
        tokens = torch.randint(args.vocabulary, (n,), device=device)
    tokens = tokens.view(*samples, args.length + 1)
    return [(part[:, :-1], part[:, 1:]) for part in tokens]


def share_out(model, args):
    """FSDP2 over all processes: what is gathered is in 16 bits, what is added up in 32."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    half = torch.bfloat16 if args.precision == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=("gpt", "llama", "resnet"), default="gpt")
    parser.add_argument("--data")
    parser.add_argument("--device", default="cuda", help="cpu: to try this script")
    for name, value in (("layers", 12), ("width", 768), ("heads", 12), ("length", 1024),
                        ("vocabulary", 50304), ("microbatch-size", 32), ("microbatches", 8),
                        ("kv-heads", 8), ("hidden", 8192),
                        ("steps", 20), ("warmup", 5)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="bf16")
    args = parser.parse_args()

    world = 1
    if args.fsdp:
        torch.distributed.init_process_group("nccl" if args.device == "cuda" else "gloo")
        world = torch.distributed.get_world_size()
        if args.device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = args.precision != "fp32"
    synchronize = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    model = make_model(args).to(args.device)
    if args.fsdp:
        model = share_out(model, args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    run = torch.compile(model) if args.compile else model
    cast = (lambda: torch.autocast(args.device, torch.bfloat16)) if args.precision == "bf16" else \
        contextlib.nullcontext
    data = make_batches(args, args.device)

    took = []
    for step in range(args.warmup + args.steps):
        synchronize()
        begin = time.perf_counter()
        for i, (given, wanted) in enumerate(data):
            if args.fsdp:
                model.set_is_last_backward(i + 1 == len(data))
            with cast():
                loss = run(given, wanted) / args.microbatches
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        synchronize()
        if step >= args.warmup:
            took.append(time.perf_counter() - begin)
    samples = args.microbatches * args.microbatch_size * world
    if args.fsdp:
        first = torch.distributed.get_rank() == 0
        torch.distributed.destroy_process_group()
        if not first:
            return
    print(json.dumps({"samples_per_s": samples / statistics.median(took),
                      "step_ms": 1e3 * statistics.median(took),
                      "memory_gib": torch.cuda.max_memory_allocated() / 2**30,
                      "torch": torch.__version__, "loss": loss.item() * args.microbatches}))


def matmul_peak():
    """TFLOP/s of a bf16 product of two 8192 x 8192 matrices of random values."""
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(5):
        a @ b
    rates = []
    for _ in range(5):
        begin.record()
        for _ in range(20):
            a @ b
        end.record()
        end.synchronize()
        rates.append(20 * 2 * n**3 / (begin.elapsed_time(end) * 1e9))
    return statistics.median(rates)


if __name__ == "__main__":
    import sys
    if sys.argv[1:] == ["--matmul-peak"]:
        print(json.dumps({"matmul_tflops": matmul_peak()}))
    else:
        main()

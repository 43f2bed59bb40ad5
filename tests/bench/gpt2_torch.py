#!/usr/bin/env python3
"""GPT-2 training in PyTorch on one GPU, the measure that tests/gpu.sh holds SMP against.

The same network, batch and optimizer as examples/gpt2-*.yaml: bf16 autocast over fp32 weights, packed
qkv, scaled_dot_product_attention, tanh GELU, tied output layer, AdamW (fused), gradients accumulated
over micro-batches and clipped to norm 1. Prints one JSON object: tokens per second, the median over
--steps steps after --warmup, and the peak of allocated memory.
"""
import argparse
import contextlib
import json
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
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def main():
    parser = argparse.ArgumentParser()
    for name, value in (("layers", 12), ("width", 768), ("heads", 12), ("length", 1024),
                        ("vocabulary", 50304), ("microbatch-size", 32), ("microbatches", 4),
                        ("steps", 20), ("warmup", 5)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="bf16")
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = args.precision != "fp32"
    model = GPT(args.layers, args.width, args.heads, args.length, args.vocabulary).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    run = torch.compile(model) if args.compile else model
    cast = (lambda: torch.autocast("cuda", torch.bfloat16)) if args.precision == "bf16" else \
        contextlib.nullcontext
    shape = (args.microbatches, args.microbatch_size, args.length + 1)
    data = torch.randint(args.vocabulary, shape, device="cuda")

    took = []
    for step in range(args.warmup + args.steps):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for batch in data:
            with cast():
                loss = run(batch[:, :-1], batch[:, 1:]) / args.microbatches
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        torch.cuda.synchronize()
        if step >= args.warmup:
            took.append(time.perf_counter() - begin)
    tokens = args.microbatches * args.microbatch_size * args.length
    print(json.dumps({"tokens_per_s": tokens / statistics.median(took),
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

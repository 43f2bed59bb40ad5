#!/usr/bin/env python3
"""One rank of PyTorch's training of a GPT on CPUs; bench_tensor.py starts it, and is its peer.

    tensor_torch.py KIND RANK WORLD FOLDER MICROBATCH_SIZE MICROBATCHES STEPS LR

KIND is one of KINDS below. FOLDER holds model.yaml, a GPT with the names of examples/gpt-small.yaml;
weights.pt, by these names; and NAME.npy for every input. MICROBATCHES are those of the whole step.
Prints one JSON object: seconds and loss of every step, bytes held before there was a model and at
the worst moment of training. gloo, one thread, fp32, eager, AdamW as smp-run's, fused.

- tensor: Megatron-LM's split by torch.distributed.tensor.parallel: ColwiseParallel and
  RowwiseParallel in every block, the vocabulary split for the table, the logits and the loss. The
  rows of packed q, k and v are ordered by device, so that one product makes a device's heads.
- pipeline: torch.distributed.pipelining, as many blocks on every rank, 1F1B. Both ends have the
  tied table and add up its gradients.
- ddp: DistributedDataParallel, gradients reduced behind the last micro-batch alone.
"""
import contextlib
import json
import pathlib
import sys
import time

import numpy
import torch
import torch.distributed as dist
import yaml
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, loss_parallel,
                                               parallelize_module)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

sys.dont_write_bytecode = True
from sharded_torch import forget_peak, held  # noqa: E402

KINDS = ["one", "ddp", "pipeline", "tensor"]


class Positions(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, width))

    def forward(self, x):
        return x + self.weight


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.size = width // heads  # of a head; how many there are, the product says

    def forward(self, x):
        q, k, v = (p.unflatten(-1, (-1, self.size)).transpose(1, 2)
                   for p in self.qkv(x).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(a.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.mlp = nn.ModuleDict({"fc": nn.Linear(width, 4 * width),
                                  "proj": nn.Linear(4 * width, width)})

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["proj"](F.gelu(self.mlp["fc"](self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Some blocks of a GPT; the first has the table, the last the logits. Names are the model's."""

    def __init__(self, size, blocks):
        super().__init__()
        width, self.first, self.last = size["d"], 0 in blocks, size["layers"] - 1 in blocks
        self.blocks = [f"h{i}" for i in blocks]
        if self.first:
            self.wte, self.wpe = nn.Embedding(size["vocab"], width), Positions(size["T"], width)
        for name in self.blocks:
            self.add_module(name, Block(width, size["heads"]))
        if self.last:
            self.ln_f = nn.LayerNorm(width)
            self.lm_head = nn.Linear(width, size["vocab"], bias=False)
            self.tie()

    def tie(self):
        if self.first and self.last:
            self.lm_head.weight = self.wte.weight

    @torch.no_grad()
    def load(self, weights, devices=1):
        for name, weight in self.named_parameters():
            value = weights["wte.weight" if name == "lm_head.weight" else name]
            if ".qkv." in name:
                value = value.unflatten(0, (3, devices, -1)).transpose(0, 1).reshape(value.shape)
            weight.copy_(value)

    def forward(self, x):
        if self.first:
            x = self.wpe(self.wte(x))
        for name in self.blocks:
            x = self.get_submodule(name)(x)
        return self.lm_head(self.ln_f(x)) if self.last else x


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def groups(module, decay=0.1):
    """Weights that decay and those that do not; whole ones and DTensors are not updated in one call."""
    weights = list(module.parameters())
    kinds = [(matrix, part) for matrix in (True, False) for part in (True, False)]
    found = [([w for w in weights if (w.dim() > 1, isinstance(w, DTensor)) == kind], kind[0])
             for kind in kinds]
    return [{"params": some, "weight_decay": decay if matrix else 0.0}
            for some, matrix in found if some]


def clip(parts, wholes, copies, limit=1.0):
    """Gradients to a norm of at most `limit`: parts are counted on every rank, wholes, which all
    ranks have alike, once, copies of what another rank counts not at all."""
    def square(gradients):
        norms = torch._foreach_norm(gradients) if gradients else []
        return sum((norm.square() for norm in norms), torch.zeros(()))

    total = square(parts)
    if parts and dist.get_world_size() > 1:
        dist.all_reduce(total)
    norm = (total + square(wholes)).sqrt()
    torch._foreach_mul_(parts + wholes + copies, torch.clamp(limit / (norm + 1e-6), max=1.0))


class Trainer:
    def __init__(self, kind, size, weights, batch, microbatches, lr):
        self.kind, self.rank, self.world = kind, dist.get_rank(), dist.get_world_size()
        self.microbatches = microbatches // (self.world if kind == "ddp" else 1)
        blocks = range(size["layers"])
        if kind == "pipeline":
            each = size["layers"] // self.world
            blocks = blocks[self.rank * each:(self.rank + 1) * each]
        self.module = GPT(size, blocks)
        self.module.load(weights, self.world if kind == "tensor" else 1)
        self.run = self.module
        getattr(self, f"make_{kind}")(batch, size)
        self.optimizer = torch.optim.AdamW(groups(self.module), lr=lr, betas=(0.9, 0.95),
                                           fused=True)

    def make_one(self, *_):
        pass

    def make_ddp(self, *_):
        self.run = DistributedDataParallel(self.module, gradient_as_bucket_view=True)

    def make_tensor(self, *_):
        mesh = init_device_mesh("cpu", (self.world,))
        plan = {"wte": RowwiseParallel(input_layouts=Replicate()),
                "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
        for block in self.module.blocks:
            plan |= {f"{block}.attn.qkv": ColwiseParallel(), f"{block}.attn.proj": RowwiseParallel(),
                     f"{block}.mlp.fc": ColwiseParallel(), f"{block}.mlp.proj": RowwiseParallel()}
        parallelize_module(self.module, mesh, plan)
        self.module.tie()

    def make_pipeline(self, *_):
        stage = PipelineStage(self.module, self.rank, self.world, torch.device("cpu"))
        self.schedule = Schedule1F1B(stage, self.microbatches, loss_fn=loss_of)

    def step(self, tokens, targets):
        if self.kind == "pipeline":
            loss = self.pipeline(tokens, targets)
        else:
            loss = self.accumulate(tokens, targets)
        clip(*self.gradients())
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.kind in ("ddp", "pipeline"):
            dist.all_reduce(loss)
        return float(loss) / (self.world if self.kind == "ddp" else 1)

    def accumulate(self, tokens, targets):
        total = torch.zeros(())
        for i, (x, y) in enumerate(zip(tokens, targets, strict=True)):
            later = self.kind == "ddp" and i + 1 < len(tokens)
            with self.run.no_sync() if later else contextlib.nullcontext(), \
                    loss_parallel() if self.kind == "tensor" else contextlib.nullcontext():
                loss = loss_of(self.run(x), y) / len(tokens)
                loss.backward()
            loss = loss.detach()
            total += loss.full_tensor() if isinstance(loss, DTensor) else loss
        return total

    def pipeline(self, tokens, targets):
        losses = []
        if self.rank == 0:
            self.schedule.step(tokens.flatten(0, 1))
        elif self.rank + 1 == self.world:
            self.schedule.step(target=targets.flatten(0, 1), losses=losses)
        else:
            self.schedule.step()
        if self.rank in (0, self.world - 1):
            self.add_up_table()
        return sum(loss.detach() for loss in losses) / len(tokens) if losses else torch.zeros(())

    def add_up_table(self):
        if not hasattr(self, "ends"):
            self.ends = dist.new_group([0, self.world - 1], use_local_synchronization=True)
        table = self.module.wte if self.module.first else self.module.lm_head
        dist.all_reduce(table.weight.grad, group=self.ends)

    def gradients(self):
        """As clip takes them."""
        parts, wholes, copies = [], [], []
        for name, weight in self.module.named_parameters():
            gradient, split = weight.grad, self.kind == "pipeline"
            if isinstance(gradient, DTensor):
                split = any(place.is_shard() for place in gradient.placements)
                gradient = gradient.to_local()
            if self.kind == "pipeline" and name == "lm_head.weight" and self.rank > 0:
                copies.append(gradient)
            else:
                (parts if split else wholes).append(gradient)
        return parts, wholes, copies


def load(folder, kind, rank, world, batch, microbatches, steps):
    """Tokens and targets of every step, (micro-batches of this rank, samples, positions)."""
    data = []
    for name in ("tokens", "targets"):
        made = torch.from_numpy(numpy.load(folder / f"{name}.npy")).long()
        made = made.reshape(steps, microbatches, batch, -1)
        if kind == "ddp":
            made = made.unflatten(1, (world, -1))[:, rank]
        data.append(made.clone())
    return list(zip(*data, strict=True))


def main():
    kind, folder = sys.argv[1], pathlib.Path(sys.argv[4])
    rank, world, batch, microbatches, steps = (int(sys.argv[i]) for i in (2, 3, 5, 6, 7))
    if kind not in KINDS:
        raise SystemExit(f"tensor_torch.py: '{kind}', expected one of {', '.join(KINDS)}")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{kind}.store", rank=rank,
                            world_size=world)
    size = yaml.safe_load((folder / "model.yaml").read_text())["let"]
    toy = {"T": 8, "d": 16, "heads": 2, "layers": world, "vocab": 16}
    inputs = torch.zeros(world, 2, 8, dtype=torch.int64)
    names = GPT(toy, range(world)).state_dict()
    Trainer(kind, toy, names, 2, world, 1e-3).step(inputs[:1] if kind == "ddp" else inputs,
                                                   inputs[:1] if kind == "ddp" else inputs)
    forget_peak()
    before = held("VmRSS")
    weights = torch.load(folder / "weights.pt")
    data = load(folder, kind, rank, world, batch, microbatches, steps)
    trainer = Trainer(kind, size, weights, batch, microbatches, float(sys.argv[8]))
    del weights
    forget_peak()
    seconds, losses = [], []
    for tokens, targets in data:
        dist.barrier()
        begin = time.perf_counter()
        losses.append(trainer.step(tokens, targets))
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": seconds, "losses": losses, "before": before,
                      "peak": held("VmHWM")}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

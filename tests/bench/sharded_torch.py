#!/usr/bin/env python3
"""One rank of a data-parallel job of PyTorch on CPUs; bench_sharded.py starts it, and is its peer.

    sharded_torch.py KIND RANK WORLD FOLDER MICROBATCH_SIZE MICROBATCHES STEPS LR

KIND is one of KINDS below. FOLDER holds model.yaml, weights.pt, and NAME.npy for every input.
Prints one JSON object: seconds and loss of every step, and in bytes what the process held before
there was a model and at the worst moment of training. gloo (which has all that FSDP2 calls, as of
PyTorch 2.15), one thread, fp32, eager, AdamW as smp-run's, fused.

Ops whose names begin alike up to a number and a dot (h0.ln_1, h0.attn, ...) are a module of their
own, which FSDP2 gathers and lets go as one.
"""
import contextlib
import ctypes
import gc
import json
import pathlib
import re
import sys
import time

import numpy
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "data"))
sys.dont_write_bytecode = True
from torch_model import Model, apply  # noqa: E402

# What the ranks share out: nothing; the optimizer's states (ZeRO-1); gradients as well (ZeRO-2: the
# weights are gathered once a step, gradients reduced behind every micro-batch); the weights as well
# (ZeRO-3).
KINDS = ["ddp", "zero1", "fsdp2-gradients", "fsdp2-weights"]


class Part(torch.nn.Module):
    """Ops with their weights: tensors named in reads come in, those in makes go out."""

    def __init__(self, ops, model, reads, makes):
        super().__init__()
        self.ops, self.uses, self.reads, self.makes = ops, model.uses, reads, makes
        for name in dict.fromkeys(name for op in ops for name in self.uses[op.name]):
            self.register_parameter(self.key(name), torch.nn.Parameter(model.weight[name]))

    @staticmethod
    def key(weight):
        return weight.replace(".", "/")  # torch wants no dots

    def forward(self, *tensors):
        made = dict(zip(self.reads, tensors))
        self.compute(self.ops, made)
        return tuple(made[name] for name in self.makes)

    def compute(self, ops, made):
        for op in ops:
            x = [made[name] for name in op.inputs]
            w = [getattr(self, self.key(name)) for name in self.uses[op.name]]
            made.update(zip(op.outs, apply(op, x, w, x[0].shape[0] if x else 0)))


class Network(Part):
    """A model file: blocks as parts, the weights of all other ops its own."""

    def __init__(self, model):
        behind, live = [], {model.loss}  # what is read later, behind every op
        for op in reversed(model.ops):
            behind.insert(0, set(live))
            live = live - set(op.outs) | set(op.inputs)
        runs = []  # [block's name or None, its ops, what is read behind it]
        for op, later in zip(model.ops, behind):
            block = re.match(r"\w*\d(?=\.)", op.name)
            block = block and block[0]
            if not runs or runs[-1][0] != block:
                runs.append([block, [], later])
            runs[-1][1].append(op)
            runs[-1][2] = later
        super().__init__([op for block, ops, _ in runs if not block for op in ops], model, [], [])
        self.parts, self.loss = torch.nn.ModuleDict(), model.loss
        self.runs = [(block, ops) for block, ops, _ in runs]
        for block, ops, later in runs:
            if block:
                self.parts[block] = Part(ops, model, *self.borders(ops, later))
        held = [name for part in self.modules() for name in part._parameters]
        if len(held) != len(set(held)):
            raise SystemExit("sharded_torch.py: blocks share weights, which FSDP2 cannot gather")

    @staticmethod
    def borders(ops, later):
        reads, made = [], set()
        for op in ops:
            reads += [x for x in op.inputs if x not in made and x not in reads]
            made |= set(op.outs)
        return reads, sorted(made & later)

    def forward(self, made):
        made = dict(made)
        for block, ops in self.runs:
            if block:
                part = self.parts[block]
                made.update(zip(part.makes, part(*(made[name] for name in part.reads))))
            else:
                self.compute(ops, made)
        return made[self.loss]


def groups(module, decay=0.1):
    weights = list(module.parameters())
    return [group for group in (
        {"params": [w for w in weights if w.dim() > 1], "weight_decay": decay},
        {"params": [w for w in weights if w.dim() <= 1], "weight_decay": 0.0}) if group["params"]]


class Trainer:
    def __init__(self, kind, module, lr):
        self.kind, self.world = kind, dist.get_world_size()
        settings = dict(lr=lr, betas=(0.9, 0.95), fused=True)
        if kind.startswith("fsdp2"):
            mesh = init_device_mesh("cpu", (self.world,))
            for part in getattr(module, "parts", {}).values():
                fully_shard(part, mesh=mesh, reshard_after_forward=kind == "fsdp2-weights")
            self.module = fully_shard(module, mesh=mesh)
        else:
            self.module = DistributedDataParallel(module, gradient_as_bucket_view=True)
        if kind == "zero1":
            self.optimizer = ZeroRedundancyOptimizer(groups(module), torch.optim.AdamW, **settings)
        else:
            self.optimizer = torch.optim.AdamW(groups(self.module), **settings)

    def boundary(self, last):
        """What a user sets around a micro-batch for speed and memory."""
        if not self.kind.startswith("fsdp2"):
            return contextlib.nullcontext() if last else self.module.no_sync()
        self.module.set_is_last_backward(last)
        if self.kind == "fsdp2-gradients":
            self.module.set_reshard_after_backward(last)
        return contextlib.nullcontext()

    def step(self, parts):
        total = torch.zeros(())
        for i, part in enumerate(parts):
            with self.boundary(i + 1 == len(parts)):
                loss = self.module(part) / len(parts)
                loss.backward()
                total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.all_reduce(total)
        return float(total) / self.world


class Toy(torch.nn.Module):
    """The smallest network: what its training leaves in memory belongs to the libraries."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, part):
        return self.linear(part["x"]).square().mean()


def held(key):
    """VmRSS or VmHWM of this process in bytes."""
    text = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"^{key}:\s*(\d+) kB", text, re.M)[1])


def forget_peak():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again at VmRSS


def load(folder, model, rank, world, batch, microbatches, steps):
    """Of every step this rank's micro-batches: its part of the global batch, as smp-run cuts it."""
    data = {}
    for name, (_, shape) in model.inputs.items():
        made = torch.from_numpy(numpy.load(folder / f"{name}.npy"))
        made = made if made.is_floating_point() else made.long()
        data[name] = made.reshape(steps, world, microbatches, batch, *shape)[:, rank].clone()
    return [[{name: x[s, m] for name, x in data.items()} for m in range(microbatches)]
            for s in range(steps)]


def main():
    kind, folder = sys.argv[1], pathlib.Path(sys.argv[4])
    rank, world, batch, microbatches, steps = (int(sys.argv[i]) for i in (2, 3, 5, 6, 7))
    if kind not in KINDS:
        raise SystemExit(f"sharded_torch.py: '{kind}', expected one of {', '.join(KINDS)}")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{kind}.store", rank=rank,
                            world_size=world)
    Trainer(kind, Toy(), 1e-3).step([{"x": torch.ones(8, 8)}] * 2)
    forget_peak()
    before = held("VmRSS")
    model = Model(folder / "model.yaml")
    model.weight = torch.load(folder / "weights.pt")
    parts = load(folder, model, rank, world, batch, microbatches, steps)
    trainer = Trainer(kind, Network(model), float(sys.argv[8]))
    del model
    forget_peak()
    seconds, losses = [], []
    for part in parts:
        dist.barrier()
        begin = time.perf_counter()
        losses.append(trainer.step(part))
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"seconds": seconds, "losses": losses, "before": before,
                      "peak": held("VmHWM")}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

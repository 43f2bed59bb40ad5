"""smp_torch's step(seed=...): dropout draws the same numbers on one, two and four processes, with replicas, halves of backwards
and recomputation, and in one process that seeds each operator that draws."""

import json
import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import smp_torch
from forks import in_a_fork, run_ranks
from smp_torch.drawing import seed_of
from zoo import DECODERS, of_transformers

MICROBATCHES, SIZE, WIDTH, LENGTH, VOCABULARY, SEEDS = 4, 2, 16, 8, 64, (11, 12)
MOST = 1e-12  # in double


class Noisy(nn.Module):
    """Dropout in place, in attention and of nothing, noise, like a tensor and of a shape, and what draws in no_grad."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.none = nn.Dropout(0.0)

    def forward(self, x):
        for layer in self.layers:
            y = torch.tanh(functional.dropout(layer(x), 0.3, inplace=True))
            z = y.unsqueeze(1)
            y = functional.scaled_dot_product_attention(z, z, z, dropout_p=0.2).squeeze(1)
            with torch.no_grad():
                noise = torch.randn_like(x)
            x = self.none(x) + functional.alpha_dropout(y, 0.1, training=True) + 0.1 * noise
        return x + 0.1 * torch.rand(WIDTH, dtype=x.dtype)


def noisy():
    return Noisy(), lambda x: x, torch.randn(2 * MICROBATCHES * SIZE, LENGTH, WIDTH), lambda output, x: output.square().mean()


def gpt2():
    module = of_transformers(*DECODERS["gpt2"])
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.1
    batch = torch.randint(3, VOCABULARY, (2 * MICROBATCHES * SIZE, LENGTH))
    return module, lambda x: {"input_ids": x, "labels": x}, batch, lambda output, x: output.loss


MODELS = {"noisy": noisy, "gpt2": gpt2}
CASES = [  # model, ranks, replicas, words for smp-partition
    ("noisy", 1, 1, "--stages", "1"),
    ("noisy", 2, 1, "--stages", "2", "--chunks", "2", "--pipeline", "zero-bubble"),
    ("noisy", 4, 2, "--stages", "2", "--recompute", "all"),
    ("noisy", 4, 2, "--stages", "2", "--shard", "2"),
    ("gpt2", 2, 1, "--stages", "2", "--recompute", "all"),
]
if not os.environ.get("SMP_TEST_LONG"):
    CASES = [CASES[1], CASES[3], CASES[4]]


def make(name, replicas):
    torch.manual_seed(7)
    module, named, batch, loss = MODELS[name]()
    batch = batch[:replicas * MICROBATCHES * SIZE]
    return module.double(), named, batch.double() if batch.is_floating_point() else batch, loss


class Seeded(TorchDispatchMode):
    """What step() says it does, in one process."""

    def __init__(self, seed, microbatch):
        super().__init__()
        self.key, self.number = (seed, microbatch), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded in function.tags:
            torch.manual_seed(seed_of(*self.key, self.number))
            self.number += 1
        return function(*args, **(kwargs or {}))


def alone(name, replicas):
    module, named, batch, loss_fn = make(name, replicas)
    losses = []
    for seed in SEEDS:
        total = 0.0
        for i, part in enumerate(batch.split(SIZE)):
            arguments = named(part)
            with Seeded(seed, i):
                output = module(**arguments) if isinstance(arguments, dict) else module(arguments)
            loss = loss_fn(output, part) / (replicas * MICROBATCHES)
            loss.backward()
            total += loss.item()
        losses.append(total)
    return losses, {n: p.grad for n, p in module.named_parameters()}


def rank(name, ranks, replicas, options, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    module, named, batch, loss_fn = make(name, replicas)
    before = torch.random.get_rng_state()
    model = smp_torch.parallelize(module, named(batch[:SIZE]), loss_fn, target=batch[:SIZE], budget_s=0.1,
                                  options=["--microbatches", str(MICROBATCHES), "--time-limit", "0.1", "--partitioner",
                                           "equal-parameters", *options])
    made = torch.random.get_rng_state()
    own = batch.chunk(replicas)[model.replica]
    losses = [model.step(named(own), own, seed=seed).item() for seed in SEEDS]
    gradients = {n: p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for n, p in model.named_parameters()}
    if not torch.equal(before, made) or not torch.equal(before, torch.random.get_rng_state()):
        sys.exit("the generator is not what it was")
    torch.save(gradients, f"{folder}/{dist.get_rank()}")
    losses.append(model.step(named(own), own).item())
    if dist.get_rank() == 0:
        print(json.dumps(losses))
    dist.barrier()
    dist.destroy_process_group()


def references():
    return {case: alone(*case) for case in {(name, replicas) for name, _, replicas, *_ in CASES}}


def check(name, ranks, replicas, *options, folder, wanted, expected):
    code, output, errors = run_ranks(ranks, rank, name, ranks, replicas, options, folder)
    if code:
        sys.exit(f"{name} on {ranks} ranks: {output}{errors[-3000:]}")
    *losses, free = json.loads(output.splitlines()[-1])
    found = {n: g for r in range(ranks) for n, g in torch.load(f"{folder}/{r}").items()}
    largest = max(g.abs().max() for g in expected.values())
    off = max(((found[n] - g).abs().max() / largest).item() for n, g in expected.items())
    apart = max(abs(a - b) for a, b in zip(losses, wanted, strict=True))
    print(f"{name}, {ranks} ranks {' '.join(options)}: losses {apart:.2g} apart, gradients {off:.2g}", flush=True)
    if not (off <= MOST and apart <= MOST) or losses[0] == losses[1] or free in losses:
        sys.exit(f"{losses}, without a seed {free}; expected {wanted}")


warnings.filterwarnings("ignore")
with tempfile.TemporaryDirectory() as scratch:
    made = in_a_fork(references)
    for case in CASES:
        check(*case, folder=scratch, wanted=made[case[0], case[2]][0], expected=made[case[0], case[2]][1])

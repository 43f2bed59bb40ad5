"""smp_torch with torch.autocast: modules with regions inside, and parallelize() and step() in one. Gradients and losses on two
processes are those of one that goes through the same micro-batches, to the bit where stages begin at layers."""

import contextlib
import json
import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import smp_torch
from forks import in_a_fork, run_ranks
from smp_torch.trace import Trace
from zoo import DECODERS, of_transformers

MICROBATCHES, SIZE, WIDTH, LENGTH, VOCABULARY = 4, 2, 16, 8, 64


class Layer(nn.Module):
    """A region with a region without autocast, one without gradients, and a weight used twice; then one more."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.linear(torch.tanh(self.linear(x)))
            with torch.no_grad():
                scale = 1 / self.linear(x).norm(dim=-1, keepdim=True)
            with torch.autocast("cpu", enabled=False):
                y = self.norm(y.float())
            y = y * scale
        with torch.no_grad():
            shift = self.linear(x).mean()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x + self.linear(y) + shift


class Regions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def regions():
    return Regions(), torch.randn(SIZE, WIDTH), torch.randn(SIZE, WIDTH), functional.mse_loss


def llama():
    """Types follow those of what comes in. Traced, transformers repeats keys and values, else attention does."""
    module = of_transformers(*DECODERS["llama"])
    example = torch.randint(3, VOCABULARY, (SIZE, LENGTH))

    def loss(output, target):
        return functional.cross_entropy(output.logits.flatten(0, 1), target.flatten())

    return module, example, example.flip(1), loss


def recomputed():
    """Under the user's checkpoint, in the user's autocast."""
    module, example, target, loss = regions()

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = module, Regions()

        def forward(self, x):
            return self.second(checkpoint(self.first, x, use_reentrant=False))

    return Whole(), example, target, loss


CASES = {  # name: model, whether in an autocast, words for smp-partition, how far gradients may be apart
    "regions": (regions, False, ["--chunks", "2", "--cut-at", "layers"], 0),
    "regions in a region": (regions, True, ["--chunks", "2", "--cut-at", "layers", "--pipeline", "zero-bubble"], 0),
    "cut in regions": (regions, False, ["--chunks", "2", "--partitioner", "equal-parameters"], 0.01),  # casts a weight twice
    "checkpoint": (recomputed, True, ["--recompute", "all", "--cut-at", "layers"], 0),
    "llama, recomputed": (llama, True, ["--recompute", "all"], 0.01),
}
if not os.environ.get("SMP_TEST_LONG"):
    del CASES["regions"], CASES["llama, recomputed"]


def make(name):
    torch.manual_seed(7)
    module, example, target, loss = CASES[name][0]()
    if getattr(getattr(module, "config", None), "use_cache", False):
        module.config.use_cache = False
    batch, targets = (torch.cat([_another(x) for _ in range(MICROBATCHES)]) for x in (example, target))
    return module, example, target, loss, batch, targets


def _another(x):
    return torch.randn_like(x) if x.is_floating_point() else x[torch.randperm(len(x))].roll(int(torch.randint(5, ())), -1)


def region(inside):
    return torch.autocast("cpu", dtype=torch.bfloat16) if inside else contextlib.nullcontext()


def alone(name):
    module, _, _, loss_fn, batch, targets = make(name)
    total = 0.0
    for x, y in zip(batch.split(SIZE), targets.split(SIZE)):
        with region(CASES[name][1]):
            loss = loss_fn(module(x), y) / MICROBATCHES
        loss.backward()
        total += loss.item()
    return total, {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


def rank(name, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    module, example, target, loss, batch, targets = make(name)
    with region(CASES[name][1]):
        model = smp_torch.parallelize(module, example, loss, target=target, budget_s=0.2,
                                      options=["--microbatches", str(MICROBATCHES), "--stages", "2", "--time-limit", "0.1",
                                               *CASES[name][2]])
        total = model.step(batch, targets)
    refused = ""
    own = not CASES[name][1] if dist.get_rank() == 0 else CASES[name][1]  # of one process; the other does not wait
    try:
        with region(own):
            model.step(batch, targets)
    except ValueError as error:
        refused = str(error)
    torch.save({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, f"{folder}/{dist.get_rank()}")
    if dist.get_rank() == 0:
        print(json.dumps([total.item(), refused]))
    dist.barrier()
    dist.destroy_process_group()


def references():
    return {name: alone(name) for name in CASES}


def check(name, folder, wanted_loss, wanted):
    code, output, errors = run_ranks(2, rank, name, folder)
    if code:
        sys.exit(f"{name}: {output}{errors[-3000:]}")
    loss, refused = json.loads(output.splitlines()[-1])
    found = {n: g for r in range(2) for n, g in torch.load(f"{folder}/{r}").items()}
    apart = {n: (found[n] - g).abs().max().item() / g.abs().max().item() for n, g in wanted.items()}
    print(f"{name}: loss {abs(loss - wanted_loss):.2g} apart, gradients at most {max(apart.values()):.2g}", flush=True)
    if set(found) != set(wanted) or max(apart.values()) > CASES[name][3] or abs(loss - wanted_loss) > 1e-6:
        sys.exit(f"{name}: {apart}, loss {loss}, expected {wanted_loss}")
    if "traced in" not in refused or "the same torch.autocast" not in refused:
        sys.exit(f"{name}: step() in another autocast: {refused!r}")


def operators_apart():
    """Each operator of a region is one of the trace: 11 in a layer, and the head."""
    module, example, *_ = regions()
    trace = Trace(module, (example,))
    linear = [op for op in trace.ops if op.node.target is torch.ops.aten.linear.default]
    cast = [op for op in linear if trace.modes[op.node].casts]
    bare = [op for op in linear if not trace.modes[op.node].grad]
    if (len(linear), len(cast), len(bare)) != (21, 16, 8):
        sys.exit(f"{len(linear)} linear operators, {len(cast)} in autocast, {len(bare)} in no_grad, of {len(trace.ops)}")


warnings.filterwarnings("ignore")
operators_apart()
with tempfile.TemporaryDirectory() as scratch:
    made = in_a_fork(references)
    for case in CASES:
        check(case, scratch, *made[case])

"""smp_torch.parallelize of modules whose arguments and outputs have structure: numbers, None and strings, dictionaries, lists and
dataclasses, keyword arguments. Gradients and losses are those of one process; what cannot be split is refused by name."""

import dataclasses
import importlib.util
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping

sys.path.append(os.environ.get("SMP_TORCH_PEERS", ""))
if not importlib.util.find_spec("transformers"):
    print("skipped: no transformers beside PyTorch (tests/torch/peers.txt)")
    sys.exit(77)

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree
from transformers import BatchEncoding
from transformers.utils import ModelOutput

import smp_torch
from forks import run_ranks
from smp_torch.trace import moved

MICROBATCHES, SIZE, WIDTH, MOST = 4, 2, 6, 1e-12


@dataclasses.dataclass
class Plain:
    hidden: torch.Tensor
    logits: torch.Tensor
    steps: int
    cache: object = None
    parts: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Named(ModelOutput):
    loss: torch.Tensor = None
    logits: torch.Tensor = None
    states: tuple = None


class Module(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.output = output

    def forward(self, x, *rest, scale=1.0, mask=None, extra=None, mode="tanh", **more):
        states = []
        for part in rest:
            if isinstance(part, Plain):
                part = part.hidden * part.steps + part.logits
            x = x + (part["a"] * part["n"] if isinstance(part, dict) else 0 if part is None else part)
        for layer in self.layers:
            x = torch.tanh(layer(x)) if mode == "tanh" else torch.sigmoid(layer(x))
            if mask is not None:
                x = torch.where(mask, x, -x)
            states.append(x * scale)
        if extra is not None:
            x = x * extra["weight"] + sum(extra["list"])
        return self.output(x, states, **more)


def tensors(*shape, n=SIZE):
    return torch.randn(n, *shape or (WIDTH,), dtype=torch.float64)


def output_loss(output):
    return sum(t.square().mean() for t in _pytree.tree_leaves(output) if isinstance(t, torch.Tensor) and t.is_floating_point())


CASES = {  # name: output of the module, its arguments for n samples, loss of an output
    "numbers and None": (lambda x, s: (x, None, 3, x.shape[0], "name", True), lambda n: tensors(n=n),
                         lambda o: o[0].square().mean()),
    "dictionary": (lambda x, s: {"a": x, "rest": {"states": s[:2], "n": 2, "none": None}}, lambda n: tensors(n=n),
                   lambda o: o["a"].mean() + o["rest"]["states"][1].square().mean() * o["rest"]["n"]),
    "list": (lambda x, s: [x, s, []], lambda n: tensors(n=n), lambda o: o[0].mean() + o[1][0].square().mean() + len(o[2])),
    "dataclass": (lambda x, s: Plain(x, s[0], 5, parts=s), lambda n: tensors(n=n),
                  lambda o: (o.hidden * o.steps).square().mean() + o.logits.mean() + o.parts[2].square().mean()),
    "ModelOutput": (lambda x, s: Named(logits=x, loss=x.square().mean(), states=tuple(s)), lambda n: tensors(n=n),
                    lambda o: o.loss + o["logits"].mean() + o.states[0].square().mean()),
    "same tensor twice": (lambda x, s: {"x": x, "again": x, "view": x.view(-1)}, lambda n: tensors(n=n),
                          lambda o: output_loss(o) + o["again"].mean()),
    "keywords": (lambda x, s: x, lambda n: {"x": tensors(n=n), "scale": 2.0, "mask": tensors(n=n) > 0, "mode": "sigmoid",
                                            "extra": None}, output_loss),
    "keywords of a BatchEncoding": (lambda x, s: x, lambda n: BatchEncoding({"x": tensors(n=n), "scale": 2.0}), output_loss),
    "no batch": (lambda x, s: x, lambda n: {"x": tensors(n=n), "scale": torch.tensor(0.5, dtype=torch.float64),
                                            "mask": torch.arange(WIDTH) % 2 == 0}, output_loss),
    "nested keywords": (lambda x, s: (x, s[0]), lambda n: {"x": tensors(n=n), "extra": {
        "weight": tensors(n=n), "list": [tensors(n=n), tensors(n=n)]}, "mask": None}, output_loss),
    "dataclass argument": (lambda x, s: x, lambda n: (tensors(n=n), Plain(tensors(n=n), tensors(n=n), 3)), output_loss),
    "nested arguments": (lambda x, s: x, lambda n: (tensors(n=n), None, {"a": tensors(n=n), "n": 3}, tensors(n=n)), output_loss),
}


def make(name):
    torch.manual_seed(7)
    output, arguments, loss = CASES[name]
    return Module(output).double(), arguments(SIZE), arguments(MICROBATCHES * SIZE), loss


def called(module, batch):
    if isinstance(batch, Mapping):
        return module(**batch)
    return module(*batch) if isinstance(batch, tuple) else module(batch)


def alone(name):
    module, _, batch, loss_fn = make(name)
    total = 0.0
    for i in range(MICROBATCHES):
        def chunk(t, i=i):
            return t.chunk(MICROBATCHES)[i] if t.dim() and len(t) == MICROBATCHES * SIZE else t

        part = _pytree.tree_map_only(torch.Tensor, chunk, dict(batch) if isinstance(batch, Mapping) else batch)
        loss = loss_fn(called(module, part)) / MICROBATCHES
        loss.backward()
        total += loss.item()
    return total, {n: p.grad for n, p in module.named_parameters()}


def rank(folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in CASES:
        module, example, batch, loss = make(name)
        model = smp_torch.parallelize(module, example, loss, budget_s=0.1,
                                      options=["--microbatches", str(MICROBATCHES), "--time-limit", "0.1", "--partitioner",
                                               "equal-parameters", "--stages", "2"])
        if isinstance(batch, dict):
            batch = dict(reversed(batch.items()))
        total = model.step(batch)
        made = [None] * dist.get_world_size()
        dist.all_gather_object(made, {n: p.grad for n, p in model.named_parameters()})
        if dist.get_rank() == 0:
            torch.save((total, {n: g for part in made for n, g in part.items()}), f"{folder}/{name}")
        if name == "keywords":
            refuses(model, batch)
    for arguments, loss_fn, words in (({"x": tensors(), "seed": 1.0}, output_loss, "argument 'seed'"),
                                      ({"x": tensors()}, fails, "no loss")):
        try:
            smp_torch.parallelize(Module(lambda x, s, seed=0: x + seed).double(), arguments, loss_fn, budget_s=0.1,
                                  options=["--microbatches", str(MICROBATCHES), "--time-limit", "0.1", "--stages", "2"])
        except Exception as error:
            said = str(error)
        if words not in said:
            sys.exit(f"parallelize() said {said}, expected {words}")
    if not moved([Own(tensors())], "meta")[0].tensor.is_meta:
        sys.exit("a tensor in a dataclass stays on its device")
    dist.barrier()
    dist.destroy_process_group()


@dataclasses.dataclass
class Own:
    tensor: torch.Tensor


class Unsent(Exception):
    """Which cannot be pickled."""

    def __init__(self, words):
        super().__init__(words)
        self.words = lambda: words


def fails(output):
    raise Unsent("no loss")


def refuses(model, batch):
    """In all processes, also where only the first has such a batch."""
    short = {**batch, "x": batch["x"][1:]}
    without = {name: x for name, x in batch.items() if name != "mask"}
    for *other, words in (
            ({**batch, "x": batch["x"].float()}, "torch.float32"), (short, "torch.Size([7, 6])"), (without, "arguments"),
            ({**batch, "scale": 3.0}, "got 3.0"), ({**batch, "mask": None}, "got None"), (batch, batch["x"], "got a target"),
            ({**batch, "extra": batch["x"]}, "torch.Size([8, 6])")):
        try:
            model.step(*other if dist.get_rank() == 0 else (batch,))
        except ValueError as error:
            said = str(error)
        if (words if dist.get_rank() == 0 else "another process") not in said:
            sys.exit(f"step() with {words} said {said}")


def references(folder):
    torch.set_num_threads(1)
    torch.export.register_dataclass(Plain)  # in this fork: the ranks' smp_torch has to
    torch.save({name: alone(name) for name in CASES}, f"{folder}/alone")


warnings.filterwarnings("ignore")
with tempfile.TemporaryDirectory() as scratch:
    for ranks, main in ((1, references), (2, rank)):
        code, output, errors = run_ranks(ranks, main, scratch)
        if code:
            sys.exit(f"{output}{errors[-3000:]}")
    for case, (wanted, expected) in torch.load(f"{scratch}/alone").items():
        total, found = torch.load(f"{scratch}/{case}")
        worst = max((found[n] - g).abs().max().item() for n, g in expected.items())
        if not (abs(total - wanted) <= MOST and worst <= MOST):
            sys.exit(f"{case}: loss {total}, expected {wanted}; gradients {worst:.2g} apart")
print(f"{len(CASES)} structures of arguments and outputs have the gradients of one process")

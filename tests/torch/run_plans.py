"""A rank of test_build.py: runs one step of each plan, and compares gradients and losses with one process.

Rank 0 prints one line per plan: its path, the largest error of a gradient relative to the largest of its weight (or a
thousandth of the model's), and that of the losses. All in double, so that what is only rounding is far below what is wrong.
"""

import copy
import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import smp_torch
from small_models import small
from smp_torch.building import plain_name
from smp_torch.plan import read_plan
from smp_torch.trace import Trace


def reference(module, inputs, target, loss_fn, replicas, microbatches, kwargs):
    """Gradients of the mean over the batch, and losses of micro-batches, of one process that goes through them in
    turn."""
    module = copy.deepcopy(module)
    n = replicas * microbatches
    losses = []
    for m in range(n):
        out = module(*(x.chunk(n)[m] for x in inputs), **{k: x.chunk(n)[m] for k, x in kwargs.items()})
        loss = loss_fn(out, target.chunk(n)[m])
        (loss / n).backward()
        losses.append(loss.item())
    return {name: p.grad for name, p in module.named_parameters()}, losses


def run(plan, module, example, inputs, target, loss_fn, example_kwargs=None, kwargs=None, check=False):
    """The largest errors of gradients and of losses on this rank."""
    kwargs = kwargs or {}
    expected, expected_losses = reference(module, inputs, target, loss_fn, plan.ddp, plan.microbatches, kwargs)
    module = copy.deepcopy(module)
    stages, schedule = smp_torch.build(module, plan, example, loss_fn, kwargs=example_kwargs, check=check)
    replica = next(d for d in range(plan.ddp) for r in range(plan.pipeline) if plan.device(d, r) == dist.get_rank())
    own = [x.chunk(plan.ddp)[replica] for x in [*inputs, target]]
    named = {k: x.chunk(plan.ddp)[replica] for k, x in kwargs.items()}
    losses = []
    args = own[:-1] if any(s.is_first for s in stages) else []
    named = named if any(s.is_first for s in stages) else {}
    worst = 0.0
    largest = max(g.abs().max().item() for g in expected.values() if g is not None)
    for step in range(2):  # the second adds up
        losses.clear()
        if any(s.is_last for s in stages):
            schedule.step(*args, target=own[-1], losses=losses, **named)
        else:
            schedule.step(*args, **named)
    for stage in stages:
        for name, p in stage.submod.named_parameters():
            name = plain_name(stage, name)
            if p.requires_grad:
                wanted = torch.zeros_like(p) if expected[name] is None else 2 * expected[name]
                scale = max(wanted.abs().max().item(), 1e-3 * largest)
                if isinstance(p.grad, DTensor) != (plan.shard > 1):
                    sys.exit(f"{name}: in shards: {not plan.shard > 1}, expected {plan.shard > 1}")
                gradient = p.grad.full_tensor() if plan.shard > 1 else wanted - wanted if p.grad is None else p.grad
                error = (gradient - wanted).abs().max().item() / scale
                worst = max(worst, error)
    worst_loss = 0.0
    if losses:
        wanted = expected_losses[replica * plan.microbatches:][:plan.microbatches]
        worst_loss = max(abs(a.item() - b) / abs(b) for a, b in zip(losses, wanted, strict=True))
    return worst, worst_loss


def make(name):
    """(module, example, loss_fn, target) in double."""
    torch.manual_seed(7)
    module, example, loss_fn, target = small(name)
    return module.double(), tuple(x.double() if x.is_floating_point() else x for x in example), loss_fn, target


def trace(name):
    """What build() has PyTorch make of the model, in a second, whatever the plan: once for all plans and ranks."""
    module, example, _, _ = make(name)
    made = Trace(module, example)
    return made.program, made.fake_values()


def run_plans(name, paths, traced):
    torch.set_num_threads(1)
    program, values = traced
    torch.export.export = lambda *_, **__: program
    Trace.fake_values = lambda _: values
    dist.init_process_group("gloo")
    module, example, loss_fn, target = make(name)
    for path in paths:
        plan = read_plan(path)
        n = plan.ddp * plan.microbatches
        torch.manual_seed(8)
        inputs = [torch.cat([_another(x) for _ in range(n)]) for x in example]
        targets = torch.cat([_another(target) for _ in range(n)])
        worst = torch.tensor(run(plan, module, example, inputs, targets, loss_fn))
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            print(f"{path} {worst[0].item():.3g} {worst[1].item():.3g}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def _another(x):
    return torch.randn_like(x) if x.is_floating_point() else x[torch.randperm(len(x))].roll(int(torch.randint(5, ())), -1)

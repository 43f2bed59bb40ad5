"""profile(): a module and an example of its input become an SMP model and a profile."""

import inspect
import os
import time
import warnings

import torch

from .files import model_text, profile_text
from .measure import measure, median_us
from .split_cost import split_cost
from .trace import Trace, tensors_of


class Profile:
    """What was written: `model` and `profile` are paths, `ratio` is what the module took over the sum of its operators,
    `split` how much longer it takes with its backward in halves, `trace` the graph, `seconds` what it took to make."""

    def __init__(self, model, profile, ratio, split, trace, seconds):
        self.model = model
        self.profile = profile
        self.ratio = ratio
        self.split = split
        self.trace = trace
        self.seconds = seconds


def profile(module, args, loss_fn, path, *, target=None, kwargs=None, link=None, budget_s=6.0):
    """Measures every operator of `module` and writes an SMP model to `path` and its profile beside it
    (`x.yaml`: `x.profile.yaml`).

    args: the module's positional arguments (kwargs: the others), one micro-batch, batch dimension first. What stands
    behind the module's own arguments is the target.
    loss_fn: `loss_fn(output, target)`, or `loss_fn(output)`, a scalar, the mean over the micro-batch.
    link: messages between two processes, a list of (bytes, us) by rising bytes; without, the planner estimates.
    budget_s: about how long it measures, tracing left out.
    """
    start = time.perf_counter()
    args, target = _split_target(module, tuple(args), target)
    loss = _bind_loss(loss_fn, target)
    training = module.training
    module.train()
    try:
        trace = Trace(module, args, kwargs)
        m = measure(trace, args, kwargs, loss, 0.8 * budget_s)
        split = split_cost(trace, m, loss, 0.2 * budget_s)
    finally:
        module.train(training)
    name = type(module).__name__.lower()
    inputs = {n.name: t for n, t in zip(trace.inputs, tensors_of((args, kwargs or {})))}
    targets = {f"target{i or ''}": t for i, t in enumerate(tensors_of(target))}
    base, extension = os.path.splitext(path)
    beside = f"{base}.profile{extension or '.yaml'}"
    size = max(1, next(iter(tensors_of(args)), torch.empty(1)).shape[0])
    with open(path, "w", encoding="utf-8") as file:
        file.write(model_text(trace, m, name, inputs, targets))
    with open(beside, "w", encoding="utf-8") as file:
        file.write(profile_text(trace, m, name, size, _rates(), link))
    return Profile(path, beside, m.ratio, split, trace, time.perf_counter() - start)


def _split_target(module, args, target):
    if target is not None:
        return args, target
    parameters = inspect.signature(module.forward).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return args, None
    n = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    if len(args) <= n:
        return args, None
    return args[:n], args[n] if len(args) == n + 1 else args[n:]


def _bind_loss(loss_fn, target):
    if target is not None:
        return lambda output: loss_fn(output, target)
    try:
        parameters = inspect.signature(loss_fn).parameters.values()
        n = sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
    except (TypeError, ValueError):
        n = 1
    if n < 2:
        return loss_fn
    warnings.warn("smp_torch.profile: no target was given, so the loss is measured against zeroes like the output")
    return lambda output: loss_fn(output, torch.zeros_like(output))


def _rates():
    """Bytes of weights that AdamW updates in a second, and of gradients added to others."""
    weight = torch.zeros(1 << 20, requires_grad=True)
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight])
    other = torch.ones_like(weight)
    update_us = median_us(optimizer.step, 0.02)
    add_us = median_us(lambda: weight.grad.add_(other), 0.01)
    return 4e6 * weight.numel() / update_us, 4e6 * weight.numel() / add_us

"""profile(): a module and an example of its input become an SMP model and a profile."""

import inspect
import os
import time
import warnings
from collections.abc import Callable

import torch
from torch import nn

from .building import LOSS
from .devices import device_of, median_us
from .files import model_text, profile_text
from .measure import measure
from .modes import without_autocast
from .split_cost import split_cost
from .trace import Trace, samples_of, tensors_of


class Profile:
    """What was written: `model` and `profile` are paths, `ratio` is what the module took over the sum of its operators,
    `split` how much longer it takes with its backward in halves, `trace` the graph, `seconds` what it took to make."""

    def __init__(self, model, trace, measurement, split, write):
        base, extension = os.path.splitext(model)
        self.model = model
        self.profile = f"{base}.profile{extension or '.yaml'}"
        self.ratio = measurement.ratio
        self.split = split
        self.trace = trace
        self.seconds = 0.0
        self._measurement = measurement
        self._write = write
        write(self)

    def rescale(self, stages, measured):
        """Scales what operators take so that each stage, a list of names, takes what a run measured, a map with forward_us and
        backward_us, and writes the files again: what a process does between operators, and how it finds the caches, only a
        run knows."""
        cost_of = {op.name: cost for op, cost in self._measurement.costs.items()}
        cost_of[LOSS] = self._measurement.loss
        for names, took in zip(stages, measured, strict=True):
            costs = [cost_of[name] for name in names]
            forward, backward = sum(c.forward_us for c in costs), sum(c.backward_us for c in costs)
            for c in costs:
                c.forward_us *= took["forward_us"] / forward if forward else 1
                for part in ("backward_us", "backward_input_us", "backward_weight_us"):
                    setattr(c, part, getattr(c, part) * (took["backward_us"] / backward if backward else 1))
        self._write(self)


def profile(module: nn.Module, args: tuple, loss_fn: Callable, path: str, *, target: torch.Tensor | None = None,
            kwargs: dict | None = None, link: list[tuple[int, float]] | None = None, budget_s: float = 6.0) -> Profile:
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
    trace = Trace(module, args, kwargs)
    loss = trace.under_ambient(loss)
    with without_autocast():
        m = measure(trace, args, kwargs, loss, 0.8 * budget_s)
        split = split_cost(trace, m, loss, 0.2 * budget_s)
    name = type(module).__name__.lower()
    inputs = {n.name: t for n, t in zip(trace.inputs, tensors_of((args, kwargs or {})))}
    targets = {f"target{i or ''}": t for i, t in enumerate(tensors_of(target))}
    size = max(1, samples_of(args, kwargs))
    rates = _rates(module, trace.kind)

    def write(made):
        with open(made.model, "w", encoding="utf-8") as file:
            file.write(model_text(trace, m, name, inputs, targets))
        with open(made.profile, "w", encoding="utf-8") as file:
            file.write(profile_text(trace, m, name, size, rates, link))

    made = Profile(path, trace, m, split, write)
    made.seconds = time.perf_counter() - start
    return made


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


def _rates(module, kind):
    """Bytes of weights that AdamW updates in a second, and of gradients added to others."""
    weight = torch.zeros(1 << 20, requires_grad=True, device=device_of(module))
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight])
    other = torch.ones_like(weight)
    update_us = median_us(kind, optimizer.step, 0.02)
    add_us = median_us(kind, lambda: weight.grad.add_(other), 0.01)
    return 4e6 * weight.numel() / update_us, 4e6 * weight.numel() / add_us

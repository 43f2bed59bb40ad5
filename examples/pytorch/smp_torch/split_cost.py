"""How much longer a stage takes whose backward comes in halves: measured on the second half of the module."""

import time
from types import SimpleNamespace

import torch
from torch.autograd.graph import get_gradient_edge

from .building import LOSS, Cut, shaped
from .split_backward import backward_input, backward_weight


def _middle(trace, m):
    """Where half of the forward's time is over, at the next place that cuts no group."""
    total, passed, half = sum(m.costs[op].forward_us for op in trace.ops), 0.0, 1
    for half, op in enumerate(trace.ops, 1):
        passed += m.costs[op].forward_us
        if 2 * passed >= total:
            break
    place = {op: i for i, op in enumerate(trace.ops)}
    spans = [(min(place[op] for op in ops), max(place[op] for op in ops)) for ops in m.groups]
    cuts = [i for i in range(1, len(trace.ops)) if not any(a < i <= b for a, b in spans)]
    return min(cuts, key=lambda i: abs(i - half)) if cuts else None


def split_cost(trace, m, loss, budget_s):
    """Forward, I and W of the second half over forward and whole backward; 1 where nothing can be cut."""
    at = _middle(trace, m)
    if at is None:
        return 1.0
    names = [op.name for op in trace.ops]
    plan = SimpleNamespace(stages=[names[:at], [*names[at:], LOSS]], ranks=[0, 1], recompute=[set(), set()])
    cut = Cut(trace, plan)
    stage = cut.module(1)
    weights = [p for p in stage.parameters() if p.requires_grad]
    grads = [p.grad for p in weights]
    buffers = [(b, b.detach().clone()) for b in stage.buffers()]
    times = {False: [], True: []}
    end = time.perf_counter() + budget_s
    while not times[True] or time.perf_counter() < end:
        for halves in times:
            times[halves].append(_time(cut, stage, m, loss, weights, halves))
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)
    for p, gradient in zip(weights, grads):
        p.grad = gradient
    return min(times[True]) / min(times[False])


def _time(cut, stage, m, loss, weights, halves):
    inputs = [m.values[n].detach().requires_grad_() if n in m.differentiable else m.values[n] for n in cut.sent[0]]
    kind = cut.trace.kind
    start = kind.stamp()
    with torch.enable_grad():
        value = loss(shaped(cut.trace, stage(*inputs)))
    if not halves or not any(x.requires_grad for x in inputs):
        value.backward()
    else:
        _, groups = backward_input([(get_gradient_edge(value), None)], inputs, weights)
        backward_weight(weights, groups)
    end = kind.stamp()
    kind.synchronize()
    return kind.us(start, end)

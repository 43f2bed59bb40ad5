"""Dropout and other random numbers that do not depend on how many processes there are: each operator that draws is seeded by
itself, from the step's seed, the micro-batch's number in the whole batch and its own number in the module."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def seed_of(*numbers):
    """One of 64 bits (the mixing of splitmix64)."""
    mixed = 0
    for n in numbers:
        mixed = (mixed ^ n) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed


def seed_operator(draw, number):
    """Before an operator that draws; draw: (kind of device, seed, micro-batch), or None."""
    if draw is not None:
        kind, *numbers = draw
        kind.seed(seed_of(*numbers, number))


class _Counter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.drawn = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.drawn += torch.Tag.nondeterministic_seeded in function.tags
        return function(*args, **(kwargs or {}))


def number_draws(trace, values):
    """node -> its number, of operators that draw; values: of trace.fake_values(). What draws nothing, such as a dropout of 0,
    has none."""
    counter, numbers = _Counter(), {}
    for node in trace.modes:
        tags = getattr(node.target, "tags", None)  # a function of the user's has none
        if node.op != "call_function" or node not in values or tags is not None and torch.Tag.nondeterministic_seeded not in tags:
            continue
        before = counter.drawn
        with counter, torch.random.fork_rng(trace.kind.generators()):  # what makes a tensor of nothing draws
            trace.run_node(node, values)
        if counter.drawn > before:
            numbers[node] = before
    return numbers

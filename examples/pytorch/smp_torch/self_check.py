"""Before the first step: does the module that was cut make what the module itself makes?

One micro-batch through the stages, one after the other in this process, and through the module: outputs, and gradients of a
random sum of them, have to agree. What a trace loses without a word is found here, not after a week.
"""

import contextlib

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from .devices import device_of, kind_of
from .trace import tensors_of

LARGE = 50_000_000  # weights: of larger modules the gradients of some are compared
SAMPLED = 16
ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-4}  # of the largest value; kernels are the same ones
COARSE = 3e-2  # of narrower types, and where autocast makes some: a weight of two stages is cast in both


def check_stages(module, cut, args, kwargs, shaped, process_group=None):
    """Collective: the first process compares, all raise ValueError where something differs. Buffers, gradients and the random
    generators are afterwards as they were."""
    wrong = [None]
    if dist.get_rank(process_group) == 0:
        try:
            wrong = [difference(module, cut, args, kwargs or {}, shaped)]
        except Exception as error:  # for which the others wait, too
            wrong = [f"{type(error).__name__}: {error}"]
    first = dist.get_global_rank(process_group, 0) if process_group else 0
    dist.broadcast_object_list(wrong, first, group=process_group)
    if wrong[0]:
        raise ValueError(f"the module, cut into stages, does not do what it does whole: {wrong[0]}. "
                         "build(..., check=False) runs it all the same")


def difference(module, cut, args, kwargs, shaped):
    """What differs first, in words, or None."""
    weights = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
    if sum(p.numel() for _, p in weights) > LARGE:
        weights = weights[::max(1, len(weights) // SAMPLED)]

    def stages(*args, **kwargs):
        values = cut.module(0)(*args, **kwargs)
        for s in range(1, cut.n):
            values = cut.module(s)(*values)
        return shaped(values)

    rounding = {} if any(m.casts for m in cut.trace.modes.values()) else ROUNDING
    whole, cut_up = (_run(module, call, weights, args, kwargs) for call in (cut.trace.under_ambient(module), stages))
    for i, (a, b) in enumerate(zip(whole[0], cut_up[0], strict=True)):
        error, allowed = _error(a, b, rounding)
        if not error <= allowed:
            return f"tensor {i} of its output is off by {error:.2g} of the largest value"
    seen = {id(cut.trace.value_of(name)) for s in range(cut.n) for name in cut.weights(s)}
    for (name, weight), gradient in zip(weights, whole[1], strict=True):
        if id(weight) not in seen and gradient is not None and gradient.any():
            return f"'{name}' has a gradient, and is in no stage"
    largest = max([g.abs().max().item() for g in whole[1] if g is not None and g.numel()], default=0.0)
    for (name, weight), a, b in zip(weights, whole[1], cut_up[1], strict=True):
        zero = torch.zeros_like(weight)
        error, allowed = _error(zero if a is None else a, zero if b is None else b, rounding, 1e-3 * largest)
        if not error <= allowed:
            return f"the gradient of '{name}' is off by {error:.2g} of its largest value"
    return None


def _run(module, call, weights, args, kwargs):
    """Output tensors, and the gradients of the weights."""
    kind = kind_of(device_of(module))
    with _state_kept(module), torch.enable_grad():
        with _Seeded(kind):
            out = tensors_of(call(*args, **kwargs))
        kind.seed(2)
        total = sum((o * torch.randn_like(o)).sum() for o in out if o.requires_grad)
        if isinstance(total, torch.Tensor):
            with _Seeded(kind):  # of checkpoints, which run forward again
                total.backward()  # not autograd.grad(), which a user's checkpoints may not know
        return [o.detach() for o in out], [p.grad for _, p in weights]


class _Seeded(TorchDispatchMode):
    """Each operator draws the same random numbers wherever it stands: stages may run them in another order."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded in function.tags:
            self.kind.seed(1)
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def _state_kept(module):
    buffers = [(b, b.detach().clone()) for b in module.buffers()]
    gradients = [(p, p.grad) for p in module.parameters()]
    for p, _ in gradients:
        p.grad = None
    try:
        with torch.random.fork_rng(kind_of(device_of(module)).generators()):
            yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for p, gradient in gradients:
            p.grad = gradient


def _error(wanted, got, rounding, least=0.0):
    """The largest difference over the largest value or `least`; how much of it is rounding."""
    if wanted.shape != got.shape or wanted.dtype != got.dtype:
        return float("inf"), 0.0
    if not wanted.numel():
        return 0.0, 0.0
    if not wanted.is_floating_point():
        return (0.0 if torch.equal(wanted, got) else float("inf")), 0.0
    allowed = rounding.get(wanted.dtype, COARSE)
    wanted, got = wanted.double().nan_to_num(), got.double().nan_to_num()
    scale = max(wanted.abs().max().item(), least)
    off = (wanted - got).abs().max().item()
    return (off / scale if scale else off), allowed

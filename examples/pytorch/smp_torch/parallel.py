"""parallelize(): a module of a script that torchrun starts, planned and split over its processes."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils import _pytree

from .building import build, plain_name
from .devices import device_of, kind_of
from .links import measure_curve, this_machine
from .plan import Plan, read_plan
from .planner import best_plan
from .profiling import profile
from .trace import is_batch, moved, samples_of


class GradScaler(torch.amp.GradScaler):
    """PyTorch's; collective: gradients that overflow in one process count in all, so that these skip steps together and have one
    scale."""

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        for own in found.values():
            found_inf += own.to(found_inf.device)
        dist.all_reduce(found_inf, op=dist.ReduceOp.MAX)
        return {found_inf.device: found_inf}


class Parallel:
    """A module that is split over the processes.

    plan: its Plan. device: that of this process. batch_size: samples that step() takes. replica, replicas: which part of the
    data this process takes, for a DistributedSampler. module: what was given; of its weights those of this process's stages are
    trained.
    """

    def __init__(self, module, plan, stages, schedule, has_target, args, kwargs):
        self.module, self.plan, self.stages, self.schedule = module, plan, stages, schedule
        self.device = stages[0].device
        self.replicas = plan.ddp
        self.batch_size = plan.microbatches * plan.microbatch_size
        self.replica = next(d for d in range(plan.ddp) for r in range(plan.pipeline) if plan.device(d, r) == dist.get_rank())
        self._has_target = has_target
        samples = samples_of(args, kwargs)
        example, self._spec = _pytree.tree_flatten((args, kwargs))
        self._order = list(kwargs)
        self._example = [(x.dtype, torch.Size([self.plan.microbatches * samples, *x.shape[1:]])) if is_batch(x, samples) else
                         _typed(x) for x in example]
        self._first = any(s.is_first for s in stages)
        self._last = any(s.is_last for s in stages)
        self._weights = {plain_name(s, name): p for s in stages for name, p in s.submod.named_parameters()}
        names = [None] * dist.get_world_size()
        dist.all_gather_object(names, list(self._weights))
        ranks = [plan.device(self.replica, r) for r in range(plan.pipeline)]
        before = {name for rank in ranks[:ranks.index(dist.get_rank())] for name in names[rank]}
        self._counted = [p for name, p in self._weights.items() if name not in before]  # of several stages, once

    def step(self, batch, target: torch.Tensor | None = None, scaler: GradScaler | None = None,
             seed: int | None = None) -> torch.Tensor:
        """Collective. Forward and backward of a batch of this replica, as many samples as the example has times the plan's
        micro-batches; gradients are added to those there are. Returns the mean loss over all replicas, in every process.

        batch: as the example was given.
        scaler: scales the loss that goes backward.
        seed: another one in each step; dropout then draws the same numbers on any number of processes. Without, each process
            draws from its own generator."""
        args, kwargs = _arguments(batch)
        args, kwargs, target = moved((args, kwargs, target), self.device)
        kwargs = {name: kwargs[name] for name in [*self._order, *kwargs] if name in kwargs}
        self._check(args, kwargs, target)
        losses = []
        given = {"scaler": scaler, "seed": seed}
        if scaler is not None:
            if not isinstance(scaler, GradScaler):
                raise TypeError(f"step() got a {type(scaler).__module__}.{type(scaler).__name__}, which knows the overflows of "
                                "its own process alone: take smp_torch.GradScaler")
            scaler.scale(torch.zeros((), device=self.device))  # makes its scale where no loss is
        if self._last:
            given |= {"losses": losses, "target": target if self._has_target else torch.zeros(self.plan.microbatches)}
        if self._first:
            self.schedule.step(*args, **kwargs, **given, return_outputs=False)
        else:
            self.schedule.step(**given, return_outputs=False)
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for loss in losses:
            total += loss.detach().to(total) / len(losses)
        dist.all_reduce(total)
        return total / self.replicas

    def _check(self, args, kwargs, target):
        """Collective: where one process has another batch, none waits for it."""
        wrong = self._difference(args, kwargs, target)
        any_wrong = torch.tensor(float(wrong is not None), device=self.device)
        dist.all_reduce(any_wrong)
        if any_wrong:
            raise ValueError(f"step(): {wrong or 'another process has another batch'}; expected {self.plan.microbatches} "
                             f"micro-batches of {self.plan.microbatch_size} samples, {self.batch_size}, else as in the example")

    def _difference(self, args, kwargs, target):
        """From the example, in words."""
        leaves, spec = _pytree.tree_flatten((args, kwargs))
        if spec != self._spec:
            return f"arguments {spec}, the example has {self._spec}"
        for given, example in zip(leaves, self._example, strict=True):
            got = _typed(given)
            if type(got) is not type(example) or got != example:
                return f"got {got}, where the example makes it {example}"
        if self._has_target and not (isinstance(target, torch.Tensor) and target.dim() and target.shape[0] == self.batch_size):
            return f"the target is {tuple(target.shape) if isinstance(target, torch.Tensor) else type(target).__name__}"
        if not self._has_target and target is not None:
            return "got a target, which the example has not"
        return self.schedule.other_autocast()

    def parameters(self) -> list[nn.Parameter]:
        """Those that this process trains, for an optimizer; an empty one where it has none, since optimizers want one."""
        return [p for p in self.schedule.parameters() if p.requires_grad] or [nn.Parameter(torch.empty(0))]

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """By their names in the module."""
        return list(self._weights.items())

    def zero_grad(self) -> None:
        for p in self.schedule.parameters():
            p.grad = None

    def clip_grad_norm_(self, most: float) -> torch.Tensor:
        """Collective. As torch.nn.utils.clip_grad_norm_ of the whole module; returns its norm."""
        squares = torch.zeros((), dtype=torch.float64, device=self.device)
        for p in {id(p): p for p in self._counted}.values():
            if p.grad is not None:
                own = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad
                squares += own.double().square().sum() * (self.plan.shard if own is not p.grad else 1) / self.replicas
        dist.all_reduce(squares)
        norm = squares.sqrt()
        for p in self.parameters():
            if p.grad is not None:
                p.grad.mul_(torch.clamp(most / (norm + 1e-6), max=1.0).to(p.grad.dtype))
        return norm

    def state_dict(self, whole: bool = True) -> dict[str, torch.Tensor]:
        """Collective if `whole`: that of the module, with its names, in every process. Otherwise what this process has, for
        torch.distributed.checkpoint."""
        own = self._own_state()
        if not whole:
            return own
        own = {name: (x.full_tensor() if isinstance(x, DTensor) else x).cpu() for name, x in own.items()}
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, own)
        found = {name: x for part in parts for name, x in part.items()}
        return {name: found.get(first, x) for name, (first, x) in self._named_state().items()}

    def _own_state(self):
        """What this process has of the module's state; its stages hold constants of the trace, too."""
        known = {first for first, _ in self._named_state().values()}
        own = {plain_name(s, name): x for s in self.stages for name, x in s.submod.state_dict().items()}
        return {name: x for name, x in own.items() if name in known}

    def _named_state(self):
        """Name in the module -> (the name that its stages have it under, its value here)."""
        first = {}
        for name, p in self.module.named_parameters(remove_duplicate=False):
            first.setdefault(id(p), name)
        owner = {name: first[id(p)] for name, p in self.module.named_parameters(remove_duplicate=False)}
        return {name: (owner.get(name, name), x) for name, x in self.module.state_dict().items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Of state_dict(), whole or what this process has."""
        own = self._own_state()
        missing = [name for name in own if name not in state]
        if missing:
            raise KeyError(f"load_state_dict: no '{missing[0]}'")
        with torch.no_grad():
            for name, x in own.items():
                value = state[name]
                if isinstance(x, DTensor) and not isinstance(value, DTensor):
                    value = distribute_tensor(value.to(x.device), x.device_mesh, x.placements)
                x.copy_(value)


def parallelize(module: nn.Module, example, loss_fn: Callable, plan: Plan | dict | str | None = None, *,
                target: torch.Tensor | None = None, options: Sequence[str] = (), device: str | None = None, budget_s: float = 6.0,
                check: bool = True) -> Parallel:
    """Collective over all processes of the default group, each with the same module. Returns a Parallel.

    example: one micro-batch of the module's arguments: a tensor, a tuple of them, or a dictionary of arguments by name.
    loss_fn: `loss_fn(output, target)`, the mean over the micro-batch; without `target`, `loss_fn(output)`, as for a
        module that makes its loss of its arguments.
    plan: path of a plan, or of its `--export json`; without, the first process profiles the module, and smp-partition plans it.
    options: more words for smp-partition, such as ["--stages", "2", "--global-batch", "64"].
    device: "cpu" or "cuda", of which each process takes that of its LOCAL_RANK, else its current one; without, the kind that
        the module is on.
    budget_s: about how long it is profiled.
    check: compare the stages with the module before the first step.

    Weights and buffers are those of the first process. What a module of transformers caches between tokens is turned off.
    """
    device = kind_of(device or device_of(module)).place()
    if device != device_of(module):
        module.to(device)
    args, kwargs = _arguments(example)
    args, kwargs, target = moved((args, kwargs, target), device)
    if getattr(getattr(module, "config", None), "use_cache", False):
        module.config.use_cache = False
        _say("use_cache is turned off: a step of training caches nothing")
    with torch.no_grad():
        for x in [*module.parameters(), *module.buffers()]:
            dist.broadcast(x.data, 0)
    if plan is None:
        plan = _make_plan(module, args, kwargs, loss_fn, target, options, budget_s)
    plan = read_plan(plan)
    with_target = loss_fn if target is not None else lambda output, _: loss_fn(output)
    stages, schedule = build(module, plan, args, with_target, kwargs=kwargs, device=device, check=check)
    return Parallel(module, plan, stages, schedule, target is not None, args, kwargs)


def _make_plan(module, args, kwargs, loss_fn, target, options, budget_s):
    """The plan as `--export json` has it, in every process."""
    n = dist.get_world_size()
    kind = kind_of(device_of(module))
    curve = measure_curve(kind.place()) if n > 1 else None
    made, failed = [None, None], None
    if dist.get_rank() == 0:
        try:
            with tempfile.TemporaryDirectory(prefix="smp-torch-") as folder, torch.random.fork_rng(kind.generators()):
                own = profile(module, args, loss_fn, os.path.join(folder, "model.yaml"), target=target, kwargs=kwargs,
                              budget_s=budget_s)
                if n > 1 and "--cluster" not in options:
                    options = [*options, "--cluster", this_machine(folder, n, kind, curve)]
                _say(best_plan(own, f"{folder}/plan", ["-n", str(n), *options]))
                with open(f"{folder}/plan.json", encoding="utf-8") as file:
                    made[0] = file.read()
        except Exception as error:  # all processes end with it; not each error can be sent
            failed, made[1] = error, f"in the first process, {type(error).__name__}: {error}"
    dist.broadcast_object_list(made, 0)
    if made[1] is not None:
        raise failed or RuntimeError(made[1])
    return json.loads(made[0])


def _arguments(batch):
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (batch if isinstance(batch, tuple) else (batch,)), {}


def _typed(leaf):
    return (leaf.dtype, leaf.shape) if isinstance(leaf, torch.Tensor) else leaf


def _say(text):
    if dist.get_rank() == 0:
        print(f"smp_torch: {text}", flush=True)

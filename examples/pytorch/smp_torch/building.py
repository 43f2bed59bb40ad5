"""build(): a module and a plan become this process's pipeline stages and the schedule that runs them."""

import inspect
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining.microbatch import TensorChunkSpec, _Replicate
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree

from .devices import device_of
from .drawing import number_draws
from .modes import modes_now, without_autocast
from .plan import Plan, read_plan
from .self_check import check_stages
from .sharding import Tie, shard_stages
from .split_backward import SplitStage
from .stage_module import StageModule
from .trace import Trace, is_batch, moved, samples_of, touches_change

LOSS = "loss"  # the operator of the model file that stands for loss_fn


class Cut:
    """Which operators and tensors each stage has, from a trace and a plan."""

    def __init__(self, trace, plan):
        self.trace = trace
        self.plan = plan
        by_name = {op.name: op for op in trace.ops}
        stage_of = {}
        for stage, names in enumerate(plan.stages):
            for name in names:
                if name != LOSS and name not in by_name:
                    raise ValueError(f"the plan's operator '{name}' is not in the module: the plan is of another "
                                     "module, or of another version of PyTorch")
                stage_of[name] = stage
        missing = [op.name for op in trace.ops if op.name not in stage_of]
        if missing:
            raise ValueError(f"the plan has no stage for operator '{missing[0]}' of the module")
        self.n = len(plan.stages)
        self.ops = [[op for op in trace.ops if stage_of[op.name] == s] for s in range(self.n)]
        self._find_crossing(stage_of)
        self.values = trace.fake_values()
        self.draws = number_draws(trace, self.values)
        self.kept = touches_change(trace, self.values) | {op for op in trace.ops if op.mutates_buffer}

    def _find_crossing(self, stage_of):
        """Tensors that cross each border, in the order in which they are made."""
        made = {n: 0 for n in self.trace.inputs}
        last = {}
        for op in self.trace.ops:
            stage = stage_of[op.name]
            made.update({n: stage for n in [op.node, *op.outputs]})
            for node in op.reads:
                last[node] = max(last.get(node, 0), stage)
        returned = [n for n in self.trace.output if isinstance(n, torch.fx.Node)]
        for node in returned:
            if node not in made:
                raise ValueError(f"the module returns '{node.name}', which depends on no input: return it outside")
            last[node] = self.n - 1
        self.sent = [[n for n in made if made[n] <= s < last.get(n, -1)] for s in range(self.n - 1)] + [returned]

    def weights(self, stage):
        return list(dict.fromkeys(w for op in self.ops[stage] for w in op.weights))

    def module(self, stage):
        is_last = stage == self.n - 1
        received = self.trace.inputs if stage == 0 else self.sent[stage - 1]
        return StageModule(self.trace, self.ops[stage], [n.name for n in received],
                           [] if is_last else [n.name for n in self.sent[stage]],
                           self.trace.output if is_last else None, self.recomputed(stage), stage == 0, self.draws)

    def recomputed(self, stage):
        """Operators made again in the backward: not those that would change something twice, or read what was changed
        meanwhile."""
        return {op for op in self.ops[stage] if op.name in self.plan.recompute[stage]} - self.kept

    def differentiable(self, node):
        value = self.values[node]
        return isinstance(value, torch.Tensor) and value.requires_grad


class PlanSchedule(_PipelineScheduleRuntime):
    """A plan's own order of actions. Beyond what the class it stands on does, a step adds up the gradients of weights
    that several stages share, averages over replicas where no DistributedDataParallel can, and scales the loss once:
    gradients are those of the mean over the batch, losses those of the micro-batches."""

    def __init__(self, stages, cut, loss_fn, ties, replicas, specs):
        self._ambient = cut.trace.ambient
        self._ties = ties
        self._replicas = replicas  # process group, or None
        self._scaler = None
        self._generators = cut.trace.kind.generators()
        self._joins_outputs = all(cut.values[n].dim() for n in cut.sent[-1])  # numbers of micro-batches are no batch
        super().__init__(stages, cut.plan.microbatches, loss_fn=loss_fn, scale_grads=False, args_chunk_spec=specs[0],
                         kwargs_chunk_spec=specs[1], max_active_stages=cut.plan.most_gathered)
        self.pipeline_order = {
            rank: [_Action.from_str(f"{stage}{kind}{microbatch}") for stage, kind, microbatch in order]
            for rank, order in enumerate(cut.plan.orders)}
        self._prepare_schedule_with_comms(self.pipeline_order)

    def _compute_loss(self, output, target, loss_kwargs=None):
        loss = super()._compute_loss(output, target, loss_kwargs) / self._n_microbatches
        return self._scaler.scale(loss) if self._scaler else loss

    def _update_losses(self, stages, losses):
        super()._update_losses(stages, losses)
        if losses:
            scale = self._scaler.get_scale() if self._scaler else 1.0
            losses[:] = [loss * (self._n_microbatches / scale) for loss in losses]

    def other_autocast(self):
        """Than the module was traced in: in words, or None."""
        if modes_now().casts == self._ambient.casts:
            return None
        return (f"in {modes_now()}, of a module that was traced in {self._ambient}: call build() or parallelize() under the same "
                "torch.autocast")

    def parameters(self):
        """The weights of this process, each once."""
        return list({id(p): p for stage in self._stages for p in stage.submod.parameters()}.values())

    def step(self, *args, scaler=None, seed=None, **kwargs):
        """scaler: a GradScaler, which scales the loss that goes backward; not the losses that are returned.
        seed: of random numbers (drawing.py); the generators are afterwards as they were."""
        self._scaler = scaler
        for stage in self._stages:
            stage.seed = seed
        if wrong := self.other_autocast():
            raise ValueError(f"step() {wrong}")
        reduced = self.parameters() if self._replicas else [weight for tie in self._ties for weight in tie.weights]
        before = [p.grad for p in reduced]
        for p in reduced:
            p.grad = None
        kwargs.setdefault("return_outputs", self._joins_outputs)
        with without_autocast(), torch.random.fork_rng(self._generators, seed is not None):  # forwards have their own modes
            output = super().step(*args, **kwargs)
        for tie in self._ties:
            tie.add_up()
        if self._replicas:
            self._average(reduced)
        for p, gradient in zip(reduced, before):
            if gradient is not None:
                p.grad = gradient if p.grad is None else gradient.add_(p.grad)
        return output

    def _average(self, parameters):
        n = dist.get_world_size(self._replicas)
        for p in parameters:
            if p.grad is not None:
                dist.all_reduce(p.grad, group=self._replicas)
                p.grad.div_(n)


_OPTIONS = {name for step in (PlanSchedule.step, _PipelineScheduleRuntime.step)
            for name, p in inspect.signature(step).parameters.items() if p.default is not p.empty}


def build(module: nn.Module, plan: Plan | dict | str, args: tuple | None = None, loss_fn: Callable | None = None, *,
          kwargs: dict | None = None, device: torch.device | str | None = None, process_group: dist.ProcessGroup | None = None,
          check: bool = True) -> tuple[list[SplitStage], PlanSchedule]:
    """Collective over all processes, of which there must be pipeline * ddp. Returns (stages, schedule): the stages of
    this process, PipelineStage objects, and the schedule for `schedule.step(*inputs, target=target, losses=losses)`, which
    takes the whole batch of a replica.

    plan: path of a plan or of its `--export json` (or what that holds).
    args, kwargs: an example of one micro-batch, as given to profile(); the tensors' values do not matter.
    loss_fn: `loss_fn(output, target)`, the mean over a micro-batch.
    device: that of this process, to which the module is moved; without, where it is.
    check: compare one micro-batch of the stages with the module itself first; ValueError says what differs.

    Weights are those of `module`, which has to be the same in all processes; parameters of a stage keep their names.
    """
    plan = read_plan(plan)
    if args is None:
        raise TypeError("build() needs args, an example of the module's input for one micro-batch")
    if taken := _OPTIONS & set(kwargs or {}):
        raise ValueError(f"argument '{min(taken)}' of the module: step() has one of that name, give this by position")
    world = dist.get_world_size(process_group)
    if world != plan.pipeline * plan.ddp:
        raise ValueError(f"the plan is for {plan.pipeline} ranks * {plan.ddp} replicas, there are {world} processes")
    device = torch.device(device or device_of(module))
    if device != device_of(module):
        module.to(device)
    args, kwargs = moved((tuple(args), kwargs), device)
    trace = Trace(module, args, kwargs)
    cut = Cut(trace, plan)
    if check:
        with without_autocast():
            check_stages(module, cut, args, kwargs, lambda output: shaped(trace, output), process_group)
    groups = _Groups(plan, process_group)
    stages = _make_stages(cut, groups, device)
    ties = _tie(cut, groups)
    if plan.shard > 1:
        for name, p in module.named_parameters():
            if p._backward_hooks or p._post_accumulate_grad_hooks:
                raise ValueError(f"parameter '{name}' has a hook, which FSDP's shards would lose")
        shard_stages(plan, groups, stages)
        averaged = False
    else:
        averaged = plan.ddp > 1 and not groups.wrap_replicas(cut, stages)
    ties = [tie for name, group in ties if (tie := _tie_of(cut, stages, name, group))]
    loss = loss_fn and trace.under_ambient(lambda output, target: loss_fn(shaped(trace, output), target))
    return stages, PlanSchedule(stages, cut, loss, ties, groups.replicas if averaged else None, _chunk_specs(args, kwargs))


def _chunk_specs(args, kwargs):
    """How arguments become those of micro-batches: what has no batch goes to all."""
    samples = samples_of(args, kwargs)
    return _pytree.tree_map(lambda x: TensorChunkSpec(0) if is_batch(x, samples) else _Replicate(), (tuple(args), kwargs or {}))


def shaped(trace, output):
    """The module's output as the module returns it."""
    tensors = iter(output if isinstance(output, tuple) else (output,))
    return trace.out_spec.unflatten([next(tensors) if isinstance(n, torch.fx.Node) else n for n in trace.output])


def plain_name(stage, name):
    """The module's name of a weight or buffer of a stage."""
    return name.removeprefix("module.") if isinstance(stage.submod, DistributedDataParallel) else name


class _Groups:
    """Process groups; every process makes all of them in one order."""

    def __init__(self, plan, base):
        self.plan = plan
        self.rank = dist.get_rank(base)
        of = (lambda r: dist.get_global_rank(base, r)) if base else (lambda r: r)
        self.members = of
        for replica in range(plan.ddp):
            ranks = [of(plan.device(replica, r)) for r in range(plan.pipeline)]
            group = dist.new_group(ranks)
            if of(self.rank) in ranks:
                self.pipeline, self.replica, self.stage_rank = group, replica, ranks.index(of(self.rank))
        for r in range(plan.pipeline):
            ranks = [of(plan.device(d, r)) for d in range(plan.ddp)]
            group = dist.new_group(ranks) if plan.ddp > 1 else None
            if of(self.rank) in ranks:
                self.replicas = group

    def of_ranks(self, pipeline_ranks):
        """A group of some pipeline ranks, of this process's replica; (None, first) for others."""
        mine = None
        first = 0
        for replica in range(self.plan.ddp):
            ranks = [self.members(self.plan.device(replica, r)) for r in pipeline_ranks]
            group = dist.new_group(ranks)
            if replica == self.replica:
                mine, first = (group if self.stage_rank in pipeline_ranks else None), ranks[0]
        return mine, first

    def wrap_replicas(self, cut, stages):
        """DistributedDataParallel, where it can: it neither knows split backwards nor a weight in two stages of one
        process."""
        weights = [w for stage in stages for w in cut.weights(stage.stage_index)]
        shared = [False] * self.plan.pipeline
        for r in range(self.plan.pipeline):
            own = [w for s, rank in enumerate(self.plan.ranks) if rank == r for w in cut.weights(s)]
            shared[r] = len(own) != len(set(own))
        if self.plan.splits_backward or any(shared) or not weights:
            return False
        for stage in stages:
            if any(p.requires_grad for p in stage.submod.parameters()):
                stage.submod = DistributedDataParallel(stage.submod, process_group=self.replicas, broadcast_buffers=False)
        return True


def _make_stages(cut, groups, device):
    def like(node):
        value = cut.values[node]
        return torch.empty(value.shape, dtype=value.dtype, device=device, requires_grad=cut.differentiable(node))

    stages = []
    for s, rank in enumerate(cut.plan.ranks):
        if rank != groups.stage_rank:
            continue
        received = cut.trace.inputs if s == 0 else cut.sent[s - 1]
        stages.append(SplitStage(
            cut.module(s), groups.replica * cut.plan.microbatches, s, cut.n, device,
            input_args=tuple(like(n) for n in received), output_args=tuple(like(n) for n in cut.sent[s]), group=groups.pipeline))
    return stages


def _tie(cut, groups):
    """(weight's name, group; None where one process has it alone) of this process's weights. What stages of several
    processes share starts with one value."""
    users = {}
    for s, rank in enumerate(cut.plan.ranks):
        for weight in cut.weights(s):
            users.setdefault(weight, set()).add(rank)
    ties = []
    made = {}
    for name, ranks in users.items():
        ranks = tuple(sorted(ranks))
        if len(ranks) == 1:
            if groups.stage_rank in ranks:
                ties.append((name, None))
            continue
        if ranks not in made:
            made[ranks] = groups.of_ranks(ranks)
        group, first = made[ranks]
        if group is not None:
            with torch.no_grad():
                dist.broadcast(cut.trace.value_of(name), first, group=group)
            ties.append((name, group))
    return ties


def _tie_of(cut, stages, name, group):
    """None if there is nothing to add up: in shards, stages of one process have a shared weight each for itself."""
    if not cut.trace.value_of(name).requires_grad:
        return None
    found = {id(p): p for stage in stages for n, p in stage.submod.named_parameters() if plain_name(stage, n) == name}
    return Tie(list(found.values()), group) if group or len(found) > 1 else None

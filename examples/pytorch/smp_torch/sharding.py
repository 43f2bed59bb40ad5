"""States in shards by FSDP2 (Zhao et al., PyTorch FSDP, VLDB 2023), and weights that several stages have."""

import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def shard_stages(plan, groups, stages):
    """Collective. A stage is what is gathered and reduced at a time, as a chunk is in the plan; groups of plan.shard
    replicas that follow each other hold one copy. What the plan leaves whole, FSDP shards too, between steps."""
    ranks = torch.tensor([[groups.members(plan.device(d, r)) for d in range(plan.ddp)] for r in range(plan.pipeline)])
    mesh = DeviceMesh(stages[0].device.type, ranks.view(plan.pipeline, plan.ddp // plan.shard, plan.shard),
                      mesh_dim_names=("pipeline", "replicate", "shard"))
    mesh = mesh["shard"] if plan.shard == plan.ddp else mesh["replicate", "shard"]
    # A stage's outputs are views, and nobody changes them in place.
    warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module .* returned a view")
    for stage in stages:
        if any(p.requires_grad for p in stage.submod.parameters()):
            fully_shard(stage.submod, mesh=mesh, reshard_after_forward=False)


class Tie:
    """Parameters of this process that are one weight, and the process group in which others have it too (or None)."""

    def __init__(self, weights, group):
        self.weights = weights
        self.group = group

    def add_up(self):
        for weight in self.weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        total, *others = [_own(weight.grad) for weight in self.weights]
        for other in others:
            total.add_(other)
        if self.group:
            dist.all_reduce(total, group=self.group)
        for other in others:
            other.copy_(total)


def _own(tensor):
    """The part of it that this process has."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

"""PyTorch modules in, running pipelines out: profile() for the planner, build() from its plan.

    smp_torch.profile(module, args, loss_fn, "model.yaml", target=target)
    $ smp-partition model.yaml --profile model.profile.yaml --stages 2 --export json:plan.json
    stages, schedule = smp_torch.build(module, "plan.json", args, loss_fn)
    schedule.step(batch, target=target, losses=losses)
"""

from .building import build
from .profiling import profile

__all__ = ["build", "profile"]

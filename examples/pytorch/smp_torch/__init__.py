"""PyTorch modules in, running pipelines out.

In a script of your own that torchrun starts:

    model = smp_torch.parallelize(module, example, loss_fn, target=target)
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model.step(batch, target)

or by hand, profile() for the planner and build() from its plan:

    smp_torch.profile(module, args, loss_fn, "model.yaml", target=target)
    $ smp-partition model.yaml --profile model.profile.yaml --stages 2 --export json:plan.json
    stages, schedule = smp_torch.build(module, "plan.json", args, loss_fn)
    schedule.step(batch, target=target, losses=losses)
"""

from .building import build
from .parallel import GradScaler, Parallel, parallelize
from .profiling import profile

__all__ = ["GradScaler", "Parallel", "build", "parallelize", "profile"]

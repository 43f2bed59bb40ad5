"""A rank of test_foreign.py and test_exports.py: runs schedules of one shape in PyTorch, one after the other. Rank 0 prints
a line for each that ends; one that takes longer than so many seconds hangs."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime


def stage_ranks(path):
    owner = {}
    with open(path, encoding="utf-8") as file:
        for rank, line in enumerate(file):
            for cell in line.strip().split(","):
                action = _Action.from_str(cell)
                for part in (action.sub_actions or [action]) if action else []:
                    if str(part.computation_type.value) in "FBIW":
                        owner[part.stage_index] = rank
    return owner


def run(path, n_stages, microbatches, dialect):
    owner = stage_ranks(path)
    example = torch.zeros(2, 4)
    stages = []
    for s in range(n_stages):
        if owner[s] == dist.get_rank():
            stages.append(PipelineStage(torch.nn.Linear(4, 4), s, n_stages, torch.device("cpu"),
                                        input_args=(example.clone().requires_grad_(s > 0),),
                                        output_args=(example.clone().requires_grad_(),)))
    schedule = _PipelineScheduleRuntime(stages, microbatches, loss_fn=torch.nn.functional.mse_loss)
    schedule._load_csv(path, format=dialect)
    batch = torch.randn(2 * microbatches, 4)
    args = [batch] if any(s.is_first for s in stages) else []
    given = {"target": batch, "losses": []} if any(s.is_last for s in stages) else {}
    schedule.step(*args, **given)
    if any(p.grad is None for s in stages for p in s.submod.parameters()):
        raise RuntimeError("a weight got no gradient")


def run_schedules(n_stages, microbatches, dialect, paths, seconds=60):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
    for path in paths:
        run(path, n_stages, microbatches, dialect)
        dist.barrier()
        if dist.get_rank() == 0:
            print(f"ended {path}", flush=True)
    dist.destroy_process_group()

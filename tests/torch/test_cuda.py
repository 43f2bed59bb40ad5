"""smp_torch.parallelize on cards: losses and gradients of one process on one of them, in fp32 and in bf16 autocast, recomputed
too; as many ranks as there are cards, four at most.

    tests/torch/with_torch.sh tests/torch/test_cuda.py [cpu]

cpu: two ranks without cards, to try this file.
"""

import contextlib
import os
import sys
import warnings

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a process that has asked CUDA itself can have no forks

import torch
import torch.distributed as dist

import smp_torch
from forks import run_ranks
from smp_torch.devices import KINDS
from small_models import small

DEVICE = "cpu" if sys.argv[1:] == ["cpu"] else "cuda"
RANKS = 2 if DEVICE == "cpu" else min(4, torch.cuda.device_count())
MICROBATCHES = 4
CASES = {"fp32": (False, 1e-4, []), "bf16": (True, 2e-2, []), "bf16, recomputed": (True, 2e-2, ["--recompute", "all"])}
if not RANKS:
    print("skipped: no card with CUDA")
    sys.exit(77)


def make():
    torch.manual_seed(7)
    module, args, loss_fn, target = small("gpt")
    batch = tuple(torch.cat([x.roll(i, 1) for i in range(MICROBATCHES)]) for x in (*args, target))
    return module, args, loss_fn, target, batch


def autocast(bf16):
    return torch.autocast(DEVICE, dtype=torch.bfloat16) if bf16 else contextlib.nullcontext()


def alone(name, device):
    module, _, loss_fn, _, batch = make()
    module.to(device)
    total = 0.0
    for parts in zip(*(x.to(device).chunk(MICROBATCHES) for x in batch)):
        with autocast(CASES[name][0]):
            loss = loss_fn(module(*parts[:-1]), parts[-1]) / MICROBATCHES
        loss.backward()
        total += loss.item()
    return total, {n: p.grad.cpu() for n, p in module.named_parameters()}


def rank():
    torch.set_num_threads(1)
    dist.init_process_group(KINDS[DEVICE].backend)
    os.environ["LOCAL_RANK"] = str(dist.get_rank())
    device = KINDS[DEVICE].place()
    for name, (bf16, most, options) in CASES.items():
        module, args, loss_fn, target, batch = make()
        with autocast(bf16):
            model = smp_torch.parallelize(module, args, loss_fn, target=target, device=DEVICE, budget_s=1.0,
                                          options=["--microbatches", str(MICROBATCHES), "--stages", str(RANKS), *options])
            loss = model.step(batch[:-1], batch[-1]).item()
        wanted, expected = alone(name, device)
        worst = max(((p.grad.cpu() - expected[n]).abs().max() / expected[n].abs().max()).item()
                    for n, p in model.named_parameters())
        print(f"{name}, {RANKS} ranks on {device}: loss {abs(loss - wanted):.2g} apart, gradients {worst:.2g}", flush=True)
        if not (abs(loss - wanted) <= most and worst <= most) or any(p.device != device for _, p in model.named_parameters()):
            sys.exit(f"{name}: loss {loss}, expected {wanted}; gradients {worst} apart")
        norm = model.clip_grad_norm_(1.0)
        if not norm.isfinite() or set(model.state_dict()) != set(module.state_dict()):
            sys.exit(f"norm {norm}")
    dist.barrier()
    dist.destroy_process_group()


warnings.filterwarnings("ignore")
code, output, errors = run_ranks(RANKS, rank)
print(output)
if code:
    sys.exit(errors[-3000:])

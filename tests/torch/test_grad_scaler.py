"""smp_torch.GradScaler: on two and four processes a training loop with fp16, unscaled and clipped gradients and a batch
that overflows in the first stage of one replica has, step by step, the losses, norms, scales and weights of one process with
PyTorch's."""

import json
import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import smp_torch
from forks import in_a_fork, run_ranks

MICROBATCHES, SIZE, WIDTH, STEPS, OVERFLOW = 4, 2, 16, 6, 2
CASES = {  # name: ranks, replicas, fp16, fused, words for smp-partition
    "2 stages": (2, 1, False, False, ["--stages", "2"]),
    "2 stages, fp16": (2, 1, True, True, ["--stages", "2"]),
    "2 replicas": (4, 2, False, False, ["--stages", "2", "--shard", "1"]),
    "2 replicas, shards": (4, 2, False, False, ["--stages", "2", "--shard", "2"]),
}
if not os.environ.get("SMP_TEST_LONG"):
    CASES = {name: CASES[name] for name in ("2 stages, fp16", "2 replicas, shards")}


class Sines(nn.Module):
    """What overflows in the gradient of one layer stays there."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.sin(layer(x).float())
        return x


def make():
    torch.manual_seed(7)
    return Sines(), torch.randn(SIZE, WIDTH), torch.randn(SIZE, WIDTH)


def batches(name):
    torch.manual_seed(8)
    n = CASES[name][1] * MICROBATCHES * SIZE
    made = [(torch.randn(n, WIDTH), torch.randn(n, WIDTH)) for _ in range(STEPS)]
    made[OVERFLOW][0][-1] *= 6e4 if CASES[name][2] else 1e38
    return made


def autocast(name):
    return torch.autocast("cpu", dtype=torch.float16, enabled=CASES[name][2])


def tools(name, scaler, parameters):
    return (scaler("cpu", init_scale=4096.0, growth_interval=2),
            torch.optim.AdamW(parameters, lr=1e-2, fused=CASES[name][3] or None))


def alone(name):
    module, _, _ = make()
    scaler, optimizer = tools(name, torch.amp.GradScaler, module.parameters())
    said, n = [], CASES[name][1] * MICROBATCHES
    for x, y in batches(name):
        total = 0.0
        for part, wanted in zip(x.chunk(n), y.chunk(n)):
            with autocast(name):
                loss = functional.mse_loss(module(part), wanted) / n
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        said.append([total, norm.item(), scaler.get_scale()])
    return said, module.state_dict()


def rank(name, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    module, example, target = make()
    with autocast(name):
        model = smp_torch.parallelize(module, example, functional.mse_loss, target=target, budget_s=0.1,
                                      options=["--microbatches", str(MICROBATCHES), "--time-limit", "0.1", "--partitioner",
                                               "equal-parameters", *CASES[name][4]])
    scaler, optimizer = tools(name, smp_torch.GradScaler, model.parameters())
    said = []
    for x, y in batches(name):
        with autocast(name):
            loss = model.step(x.chunk(model.replicas)[model.replica], y.chunk(model.replicas)[model.replica], scaler=scaler)
        scaler.unscale_(optimizer)
        norm = model.clip_grad_norm_(0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        said.append([loss.item(), norm.item(), scaler.get_scale()])
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, [scale for _, _, scale in said])
    if any(other != everyone[0] for other in everyone):
        sys.exit(f"scales {everyone}")
    try:
        model.step(*batches(name)[0], scaler=torch.amp.GradScaler("cpu"))
    except TypeError as error:
        refused = str(error)
    except ValueError:  # replicas take less than that
        refused = "take smp_torch.GradScaler"
    state = model.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, f"{folder}/state")
        print(json.dumps([said, refused]))
    dist.barrier()
    dist.destroy_process_group()


def references():
    return {name: alone(name) for name in CASES}


def check(name, folder, wanted, expected):
    code, output, errors = run_ranks(CASES[name][0], rank, name, folder)
    if code:
        sys.exit(f"{name}: {output}{errors[-3000:]}")
    said, refused = json.loads(output.splitlines()[-1])
    state = torch.load(f"{folder}/state")
    off = max((state[n] - x).abs().max().item() for n, x in expected.items())
    said, wanted = torch.tensor(said), torch.tensor(wanted)
    near = [i for i in range(STEPS) if i != OVERFLOW]  # what is a rounding apart has other sines there
    apart = (said - wanted)[near].abs().max().item()
    print(f"{name}: scales {said[:, 2].tolist()}; losses and norms {apart:.2g} apart, weights {off:.2g}", flush=True)
    if not torch.equal(said.isfinite(), wanted.isfinite()) or apart > 1e-5 or off > 1e-5:
        sys.exit(f"{name}: {said}, expected {wanted}")
    if not torch.equal(said[:, 2], wanted[:, 2]) or wanted[OVERFLOW, 1].isfinite() or not wanted[near].isfinite().all():
        sys.exit(f"{name}: {said}, expected {wanted}")
    if "take smp_torch.GradScaler" not in refused:
        sys.exit(refused)


warnings.filterwarnings("ignore")
with tempfile.TemporaryDirectory() as scratch:
    made = in_a_fork(references)
    for case in CASES:
        check(case, scratch, *made[case])

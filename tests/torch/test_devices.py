"""Kinds of devices in smp_torch: a device that tells its times only when it is synchronized is profiled and trained on with its
own clock alone; CUDA's calls, replaced. test_cuda.py runs on a card."""

import os
import sys
import tempfile
import unittest.mock
import warnings
from types import SimpleNamespace

import torch
import torch.distributed as dist

import smp_torch
import smp_torch.train
from forks import run_ranks
from smp_torch import devices
from smp_torch.planner import make_plan
from small_models import small

US = 1000  # from one stamp to the next


class Stamp:
    def __init__(self, at):
        self.at, self.known = at, False


class Later(devices.Cpu):
    """Its clock ticks with each stamp."""

    stamps = []

    @classmethod
    def stamp(cls):
        cls.stamps.append(Stamp(len(cls.stamps)))
        return cls.stamps[-1]

    @classmethod
    def synchronize(cls):
        for stamp in cls.stamps[::-1]:
            if stamp.known:
                break
            stamp.known = True

    @staticmethod
    def us(start, end):
        if not start.known or not end.known:
            raise RuntimeError("a time is read before the device has told it")
        return US * (end.at - start.at)


def profile_later(folder):
    torch.set_num_threads(1)
    with unittest.mock.patch.dict(devices.KINDS, cpu=Later):
        module, args, loss_fn, target = small("gpt")
        made = smp_torch.profile(module, args, loss_fn, f"{folder}/model.yaml", target=target, budget_s=0.5)
        costs = [*made._measurement.costs.values(), made._measurement.loss]
        for part in ("forward_us", "backward_us"):
            total = sum(getattr(c, part) for c in costs)
            if abs(total - US) > 1e-6 or any(c.forward_us <= 0 for c in costs):
                sys.exit(f"{part} of all operators is {total}, of the whole module {US}")
        if made.split <= 0:
            sys.exit(f"halves of backwards take {made.split}")
    make_plan(made.model, made.profile, f"{folder}/plan", ["-n", "2", "--stages", "2", "--microbatches", "4", "--time-limit",
                                                           "0.1"])


def train_later(folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plan = smp_torch.plan.read_plan(f"{folder}/plan.json")
    with (unittest.mock.patch.dict(devices.KINDS, cpu=Later),
          unittest.mock.patch.object(smp_torch.train, "make", lambda *_: small("gpt"))):
        _, _, took = smp_torch.train.train("", plan, "cpu", 2, 0.0, 1)
    halves = 2 if plan.splits_backward else 1
    for stage, spent in took.items():
        with_loss = stage == len(plan.stages) - 1
        if spent["forward_us"] != US * (1 + with_loss) or spent["backward_us"] not in (US, halves * US):
            sys.exit(f"stage {stage} took {spent}")
    dist.barrier()
    dist.destroy_process_group()


def cuda_calls():
    """What Cuda asks of torch.cuda."""
    asked = []

    class Event:
        def __init__(self, enable_timing):
            asked.append(("event", enable_timing))

        def record(self):
            self.at = len(asked)

        def elapsed_time(self, other):
            return 0.001 * (other.at - self.at)

    fake = SimpleNamespace(Event=Event, synchronize=lambda: asked.append("synchronize"), set_device=lambda d: asked.append(d),
                           manual_seed=lambda n: asked.append(("seed", n)),
                           device_count=lambda: 2, current_device=lambda: 1,
                           get_device_properties=lambda _: SimpleNamespace(total_memory=100))
    with unittest.mock.patch.object(torch, "cuda", fake), unittest.mock.patch.dict(os.environ, LOCAL_RANK="0"):
        kind = devices.kind_of("cuda")
        kind.place()
        del os.environ["LOCAL_RANK"]
        if kind.place() != torch.device("cuda", 1) or asked != [torch.device("cuda", 0), torch.device("cuda", 1)]:
            sys.exit(f"LOCAL_RANK 0, and the current device, are {asked}")
        kind.seed(5)
        if asked[-1] != ("seed", 5) or torch.initial_seed() != 5:
            sys.exit(f"seeded by {asked[-1]}, {torch.initial_seed()}")
        if devices.median_us(kind, lambda: None, 0.0) != 1 or asked.count("synchronize") != 4:
            sys.exit(f"asked for {asked}")
        if kind.generators() != [1] or kind.memory_bytes(2) != 90 or kind.memory_bytes(4) != 45 or "nccl" not in kind.backend:
            sys.exit(f"{kind.generators()}, {kind.memory_bytes(2)}, {kind.memory_bytes(4)}, {kind.backend}")
    try:
        devices.kind_of("meta")
    except ValueError as error:
        if "smp_torch runs on cpu and cuda" not in str(error):
            sys.exit(str(error))
    else:
        sys.exit("a meta device is none to run on")


warnings.filterwarnings("ignore")
cuda_calls()
with tempfile.TemporaryDirectory() as scratch:
    for n, main in ((1, profile_later), (2, train_later)):
        code, output, errors = run_ranks(n, main, scratch)
        if code:
            sys.exit(f"{output}{errors[-3000:]}")
print("times are those of the device's own clock, read when it is synchronized")

"""Splits the modules of zoo.py: each is profiled, planned in two stages of two chunks and in four stages (in the ordinary run
in one of the two, in turn), and stepped twice, with the gradients of one process, or refused with a reason."""

import json
import os
import sys
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
from torch.utils import _pytree

import smp_torch
from forks import run_ranks
from run_plans import run
from smp_torch.plan import read_plan
from smp_torch.planner import make_plan
from smp_torch.trace import Trace
from zoo import ZOO

PLANS = {2: ["--chunks", "2", "--pipeline", "zero-bubble"], 4: ["--chunks", "1", "--pipeline", "zero-bubble"]}
MICROBATCHES = 4
LONG = bool(os.environ.get("SMP_TEST_LONG"))


def make(name):
    torch.manual_seed(7)
    return ZOO[name]()


def _take(traced):
    """What PyTorch makes of the module, once for all ranks."""
    torch.set_num_threads(1)
    program, values = traced
    torch.export.export = lambda *_, **__: program
    Trace.fake_values = lambda _: values


def plan_all(name, plans, folder, traced):
    """A rank of its own: who has gone backward can fork no ranks that do."""
    _take(traced)
    case = make(name)
    made = smp_torch.profile(case.module, case.args, case.loss, f"{folder}/model.yaml", target=case.target, kwargs=case.kwargs,
                             budget_s=0.1)
    for ranks, options in plans.items():
        make_plan(made.model, made.profile, f"{folder}/{ranks}", ["-n", str(ranks), "--stages", str(ranks), "--time-limit", "0.1",
                                                                  "--microbatches", str(MICROBATCHES), *options])


def run_plan(name, path, traced):
    _take(traced)
    dist.init_process_group("gloo")
    case, plan = make(name), read_plan(path)
    torch.manual_seed(8)
    args, kwargs, target = _pytree.tree_map(_batch, (list(case.args), case.kwargs, case.target))
    worst = torch.tensor(run(plan, case.module, case.args, args, target, case.loss, case.kwargs, kwargs, check=True))
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(json.dumps(worst.tolist()))
    dist.barrier()
    dist.destroy_process_group()


def _batch(example):
    """Other values than those of the example, for all micro-batches."""
    def another():
        if example.is_floating_point():
            return torch.randn_like(example)
        return example[torch.randperm(len(example))]
    return torch.cat([another() for _ in range(MICROBATCHES)])


def failure(name, plans):
    """What goes wrong, or None."""
    case = make(name)
    wrong = split(name, case, plans)
    if case.refused:
        return None if wrong and case.refused in wrong else f"is not refused ('{case.refused}'): {wrong}"
    return wrong


def split(name, case, plans):
    try:
        made = Trace(case.module, case.args, case.kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    traced = made.program, made.fake_values()
    with tempfile.TemporaryDirectory() as folder:
        code, _, errors = run_ranks(1, plan_all, name, plans, folder, traced)
        if code:
            return f"planning: {errors[-1500:]}"
        for ranks in plans:
            code, output, errors = run_ranks(ranks, run_plan, name, f"{folder}/{ranks}.json", traced)
            if code:
                return f"{ranks} ranks: {errors[-1500:]}"
            gradients, losses = json.loads(output.splitlines()[-1])
            if not (gradients <= case.rounding and losses <= case.rounding):
                return f"{ranks} ranks: gradients off by {gradients:.2g}, losses by {losses:.2g}"
    return None


def run_cases(names):
    """Prints what fails and how many there were; exits."""
    warnings.filterwarnings("ignore")
    failed, refused = 0, 0
    start = time.perf_counter()
    for number, name in enumerate(names):
        some = list(PLANS)[number % len(PLANS)]
        wrong = failure(name, PLANS if LONG else {some: PLANS[some]})
        if wrong:
            failed += 1
            print(f"FAILED {name}: {wrong}", flush=True)
        elif make(name).refused:
            refused += 1
    print(f"{len(names) - failed - refused} of {len(names)} modules have the gradients of one process, {refused} are refused "
          f"with the reason, {failed} fail; {time.perf_counter() - start:.0f} s")
    sys.exit(bool(failed))

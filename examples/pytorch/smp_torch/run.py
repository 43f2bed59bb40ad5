"""python -m smp_torch run FILE.py:FUNCTION [options]: profiles a module, plans it, trains it with PyTorch on as many
processes as the plan has devices, and prints the predicted step beside the measured one."""

import argparse
import importlib.util
import json
import os
import sys
import tempfile

import torch

from . import profile
from .devices import KINDS
from .launch import launch
from .links import this_machine
from .plan import read_plan
from .planner import best_plan
from .trace import moved

TUNE_STEPS = 4

HELP = """\
FUNCTION returns (module, args, loss_fn, target) of one micro-batch: args a tuple of tensors with the batch first,
loss_fn(output, target) the mean over it. Options that are not listed go to smp-partition: --stages, --ddp, --chunks,
--microbatches, --pipeline, --recompute, --memory and so on."""


def load(spec):
    """The function that FILE.py:FUNCTION names."""
    path, _, name = spec.rpartition(":")
    if not path:
        raise SystemExit(f"smp_torch: got '{spec}', expected FILE.py:FUNCTION")
    found = importlib.util.spec_from_file_location("smp_torch_user", path)
    if found is None or not os.path.exists(path):
        raise SystemExit(f"smp_torch: {path}: no such Python file")
    module = importlib.util.module_from_spec(found)
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    found.loader.exec_module(module)
    if not hasattr(module, name):
        raise SystemExit(f"smp_torch: {path} has no function '{name}'")
    return getattr(module, name)


def make(spec, seed, device):
    """(module, args, loss_fn, target), the same in every process, on its device."""
    function = load(spec)
    torch.manual_seed(seed)
    made = function()
    if not isinstance(made, tuple) or len(made) != 4 or not isinstance(made[1], tuple):
        raise SystemExit(f"smp_torch: {spec} returned {type(made).__name__}, expected (module, args, loss_fn, target) with a "
                         "tuple of tensors for args")
    module, args, loss_fn, target = made
    return module.to(device), *moved((args, loss_fn, target), device)


def _parser():
    parser = argparse.ArgumentParser(prog="python -m smp_torch run", description=__doc__, epilog=HELP,
                                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("function", metavar="FILE.py:FUNCTION")
    parser.add_argument("-n", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--device", choices=list(KINDS), default="cpu", help="what each process runs on (default cpu)")
    parser.add_argument("--steps", type=int, default=10, help="steps to train (default 10)")
    parser.add_argument("--lr", type=float, default=1e-3, help="of AdamW (default 0.001)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tune", type=int, default=1, metavar="N",
                        help="plan again N times with what the stages took in a run of a few steps (default 1)")
    parser.add_argument("--folder", help="where model, profile and plan are kept (default: a temporary one)")
    parser.add_argument("--plan", help="run this plan (JSON) instead of making one")
    parser.add_argument("--json", help="write what was measured to this file")
    return parser


def run(arguments):
    parser = _parser()
    options, planner_options = parser.parse_known_args(arguments)
    threads = max(1, (os.cpu_count() or 1) // options.n)
    if options.folder:
        os.makedirs(options.folder, exist_ok=True)
        _run(options, planner_options, options.folder, threads)
        return
    with tempfile.TemporaryDirectory(prefix="smp-torch-") as folder:
        _run(options, planner_options, folder, threads)


def _run(options, planner_options, folder, threads):
    plan = options.plan or _make_plan(options, planner_options, folder, threads)
    train_plan(options.function, plan, options.device, options.steps, options.lr, options.seed, threads, options.json or "")


def _make_plan(options, planner_options, folder, threads):
    torch.set_num_threads(threads)
    kind = KINDS[options.device]
    module, args, loss_fn, target = make(options.function, options.seed, kind.place())
    made = profile(module, args, loss_fn, os.path.join(folder, "model.yaml"), target=target)
    print(f"profiled {len(made.trace.ops)} operators in {made.seconds:.1f} s; with backwards in halves they take "
          f"{100 * (made.split - 1):.0f} % longer", flush=True)
    if options.n > 1 and "--cluster" not in planner_options:
        planner_options = [*planner_options, "--cluster", this_machine(folder, options.n, kind)]
    planner_options = ["-n", str(options.n), *planner_options]
    shown = tuned_plan(made, options.function, folder, planner_options, options.device, options.tune, options.seed, threads)
    print(shown, flush=True)
    return os.path.join(folder, "plan.json")


def tuned_plan(made, function, folder, planner_options, device, tune, seed, threads):
    """Makes plan.yaml and plan.json of a Profile in `folder`; returns what the planner prints. Stages that run take longer
    than their operators by themselves, not all by the same: so many times they are run, and planned with what they took."""
    out = os.path.join(folder, "plan")
    shown = best_plan(made, out, planner_options)
    for _ in range(tune):
        plan = read_plan(f"{out}.json")
        train_plan(function, f"{out}.json", device, TUNE_STEPS, 0.0, seed, threads, f"{out}.measured", quiet=True)
        with open(f"{out}.measured", encoding="utf-8") as file:
            made.rescale(plan.stages, json.load(file)["stages"])
        shown = best_plan(made, out, planner_options)
    return shown


def train_plan(function, plan, device, steps, lr, seed, threads, output="", quiet=False):
    """Trains in as many processes as the plan has devices."""
    read = read_plan(plan)
    launch(read.pipeline * read.ddp, "smp_torch.train", [function, plan, device, str(steps), str(lr), str(seed), str(threads),
                                                         output], threads, quiet)

"""python -m smp_torch run FILE.py:FUNCTION [options]: profiles a module, plans it, trains it with PyTorch on as many
processes as the plan has devices, and prints the predicted step beside the measured one."""

import argparse
import importlib.util
import os
import sys
import tempfile

import torch

from . import profile
from .launch import launch
from .links import this_machine
from .plan import read_plan
from .planner import best_plan

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


def make(spec, seed):
    """(module, args, loss_fn, target), the same in every process."""
    function = load(spec)
    torch.manual_seed(seed)
    made = function()
    if not isinstance(made, tuple) or len(made) != 4 or not isinstance(made[1], tuple):
        raise SystemExit(f"smp_torch: {spec} returned {type(made).__name__}, expected (module, args, loss_fn, target) with a "
                         "tuple of tensors for args")
    return made


def _parser():
    parser = argparse.ArgumentParser(prog="python -m smp_torch run", description=__doc__, epilog=HELP,
                                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("function", metavar="FILE.py:FUNCTION")
    parser.add_argument("-n", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--steps", type=int, default=10, help="steps to train (default 10)")
    parser.add_argument("--lr", type=float, default=1e-3, help="of AdamW (default 0.001)")
    parser.add_argument("--seed", type=int, default=1)
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
    arguments = [options.function, plan, str(options.steps), str(options.lr), str(options.seed), str(threads),
                 options.json or ""]
    read = read_plan(plan)
    launch(read.pipeline * read.ddp, "smp_torch.train", arguments, threads)


def _make_plan(options, planner_options, folder, threads):
    torch.set_num_threads(threads)
    module, args, loss_fn, target = make(options.function, options.seed)
    made = profile(module, args, loss_fn, os.path.join(folder, "model.yaml"), target=target)
    print(f"profiled {len(made.trace.ops)} operators in {made.seconds:.1f} s; with backwards in halves they take "
          f"{100 * (made.split - 1):.0f} % longer", flush=True)
    if options.n > 1 and "--cluster" not in planner_options:
        planner_options = [*planner_options, "--cluster", this_machine(folder, options.n)]
    out = os.path.join(folder, "plan")
    print(best_plan(made, out, ["-n", str(options.n), *planner_options]), flush=True)
    return f"{out}.json"

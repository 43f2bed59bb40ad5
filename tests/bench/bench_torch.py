#!/usr/bin/env python3
"""Plans of SMP in PyTorch itself: a ResNet, a GPT and a T5 (examples/pytorch/models.py) on two processes, against equal
layers under PyTorch's own 1F1B order, and one process. Ratios of one round, three rounds.

    tests/torch/with_torch.sh tests/bench/bench_torch.py [--rounds 3] [--steps 8] [--microbatches 8] [MODEL...]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch

TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(TREE, "examples", "pytorch"))
from smp_torch import profile  # noqa: E402
from smp_torch.devices import Cpu  # noqa: E402
from smp_torch.links import this_machine  # noqa: E402
from smp_torch.planner import find_planner  # noqa: E402
from smp_torch.run import make, tuned_plan  # noqa: E402

MODELS = os.path.join(TREE, "examples", "pytorch", "models.py")


def equal_layers(trace, stages):
    """Operator names per stage: as many layers in each, in order; what stands before the first layer of a stage is of
    the stage before it."""
    layers = []
    for op in trace.ops:
        layer = _layer(op.name)
        if layer and layer not in layers:
            layers.append(layer)
    first = {layers[len(layers) * s // stages]: s for s in range(1, stages)}
    cut, stage = [[] for _ in range(stages)], 0
    for op in trace.ops:
        stage = max(stage, first.get(_layer(op.name), 0))
        cut[stage].append(op.name)
    cut[-1].append("loss")
    return cut


def _layer(name):
    parts = name.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 and parts[1].isdigit() and parts[0] != "stem" else None


def plan_equal(made, folder, stages, options):
    """A plan file of equal layers, in the order of 1F1B."""
    sketch = os.path.join(folder, "equal.yaml")
    with open(sketch, "w", encoding="utf-8") as file:
        json.dump({"smp": 1, "stages": [{"ops": ops} for ops in equal_layers(made.trace, stages)]}, file)
    out = os.path.join(folder, "equal.json")
    subprocess.run([find_planner(), "check", sketch, "--model", made.model, "--profile", made.profile, "--pipeline", "1f1b",
                    "--effort", "quick", "--export", f"json:{out}", *options], check=True, stdout=subprocess.DEVNULL)
    return out


def one_process(spec, seed, microbatches, steps):
    """Microseconds of a step: micro-batches one after the other, then AdamW."""
    module, args, loss_fn, target = make(spec, seed, "cpu")
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    times = []
    for _ in range(steps + 1):
        start = time.perf_counter()
        for _ in range(microbatches):
            (loss_fn(module(*args), target) / microbatches).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(1e6 * (time.perf_counter() - start))
    return statistics.median(times[1:])


def run(spec, plan, steps, folder):
    out = os.path.join(folder, "measured.json")
    subprocess.run([sys.executable, "-m", "smp_torch", "run", spec, "--plan", plan, "--steps", str(steps), "--json", out],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(out, encoding="utf-8") as file:
        return json.load(file)


def round_of(name, options, folder):
    spec = f"{MODELS}:{name}"
    module, args, loss_fn, target = make(spec, 1, "cpu")
    made = profile(module, args, loss_fn, os.path.join(folder, "model.yaml"), target=target)
    common = ["--microbatches", str(options.microbatches), "--cluster", this_machine(folder, 2, Cpu)]
    tuned_plan(made, spec, folder, ["-n", "2", "--stages", "2", *common], "cpu", 1, 1, 1)
    equal = run(spec, plan_equal(made, folder, 2, common), options.steps, folder)
    ours = run(spec, os.path.join(folder, "plan.json"), options.steps, folder)
    alone = one_process(spec, 1, options.microbatches, options.steps)
    return made, alone, equal, ours


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["resnet", "gpt", "t5"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--microbatches", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | one process | equal layers, 1F1B | SMP | SMP / equal | predicted / measured | profiled in |")
    print("|---|---|---|---|---|---|---|")
    for name in options.models:
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory() as folder:
                made, alone, equal, ours = round_of(name, options, folder)
            print(f"| {name} | {alone / 1e3:.0f} ms | {alone / equal['step_us']:.2f} x | {alone / ours['step_us']:.2f} x | "
                  f"{equal['step_us'] / ours['step_us']:.2f} | {ours['predicted_us'] / ours['step_us']:.2f}, equal "
                  f"{equal['predicted_us'] / equal['step_us']:.2f} | {made.seconds:.1f} s |", flush=True)


main()

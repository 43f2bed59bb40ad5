"""profile, smp-partition and build together: for every schedule of SMP one step run by PyTorch has the gradients and the
losses of one process, of a ResNet (in-place, batch norm), a GPT (tied) and a T5 (tied, skips, integer and boolean
tensors).

SMP_TORCH_ALL=1 runs all combinations, otherwise a part of them.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time

import torch

import smp_torch
from small_models import small
from smp_torch.planner import make_plan

SCHEDULES = {
    "gpipe": ["simple"],
    "1f1b": ["interleaved"],
    "interleaved": ["interleaved", "--chunks", "2"],
    "zb-h1": ["zero-bubble"],
    "zb-h2": ["zero-bubble", "--active-microbatches", "{2p-1}"],
    "zb-v": ["zero-bubble", "--chunks", "2"],
    "bfs": ["breadth-first", "--chunks", "2"],
    "auto": ["auto", "--chunks", "1"],
    "auto-2": ["auto", "--chunks", "2"],
}
EXTRA = {
    "ddp": ["interleaved", "--stages", "2", "--ddp", "2"],
    "ddp-zb": ["zero-bubble", "--stages", "2", "--ddp", "2", "--placement", "spread"],
    "ddp-tied": ["interleaved", "--stages", "2", "--chunks", "2", "--ddp", "2"],
    "shards": ["interleaved", "--stages", "2", "--chunks", "2", "--ddp", "2", "--shard", "2", "--shard-what", "weights"],
    "shards-zb": ["zero-bubble", "--stages", "2", "--ddp", "2", "--shard", "2", "--shard-what", "gradients"],
    "shards-v": ["zero-bubble", "--stages", "2", "--chunks", "2", "--ddp", "2", "--shard", "2", "--placement", "spread"],
    "shards-groups": ["interleaved", "--stages", "1", "--chunks", "2", "--ddp", "4", "--shard", "2"],
    "recompute": ["interleaved", "--stages", "2", "--recompute", "all"],
    "recompute-zb": ["zero-bubble", "--stages", "2", "--chunks", "2", "--recompute", "all"],
}
MOST_ERROR = 1e-12
LOSS_ERROR = 1e-12


def combinations(everything):
    cases = [(s, ranks, m) for s in SCHEDULES for ranks in (2, 4) for m in (4, 6, 7, 8)]
    return cases if everything else random.Random(5).sample(cases, 5) + [("zb-v", 2, 6), ("auto-2", 2, 4)]


def plan_all(name, folder, cases):
    """ranks -> paths of plans"""
    module, args, loss_fn, target = small(name)
    made = smp_torch.profile(module, args, loss_fn, f"{folder}/{name}.yaml", target=target, budget_s=0.5)
    plans = {}
    for schedule, ranks, m in cases:
        options = [o.replace("{2p-1}", str(2 * ranks - 1)) for o in SCHEDULES[schedule]]
        out = f"{folder}/{name}-{schedule}-{ranks}-{m}"
        make_plan(made.model, made.profile, out, ["-n", str(ranks), "--stages", str(ranks), "--microbatches", str(m),
                                                  "--time-limit", "2", "--pipeline", *options])
        plans.setdefault(ranks, []).append(f"{out}.json")
    for extra, options in EXTRA.items():
        ranks = 4 if "--ddp" in options else 2
        out = f"{folder}/{name}-{extra}"
        make_plan(made.model, made.profile, out, ["-n", str(ranks), "--microbatches", "4", "--time-limit", "2", "--pipeline",
                                                  *options])
        plans.setdefault(ranks, []).append(f"{out}.json")
    if name == "resnet":
        plans[2].append(nothing_to_learn(made, folder))
    return plans


def nothing_to_learn(made, folder):
    """A plan whose first stage only counts batches: what the second receives has no gradient."""
    out = f"{folder}/counts"
    make_plan(made.model, made.profile, out, ["-n", "2", "--stages", "2", "--chunks", "1", "--microbatches", "4", "--time-limit",
                                              "2", "--pipeline", "zero-bubble"])
    with open(f"{out}.json", encoding="utf-8") as file:
        plan = json.load(file)
    first, second = plan["stages"]
    ops = first["ops"] + second["ops"]
    first["ops"] = [next(name for name in ops if name.endswith(".add_"))]
    second["ops"] = [name for name in ops if name not in first["ops"]]
    with open(f"{out}.json", "w", encoding="utf-8") as file:
        json.dump(plan, file)
    return f"{out}.json"


def _errors(text):
    """The lines that say what went wrong, without those of the launcher."""
    lines = [line for line in text.splitlines() if "rror" in line and "torch/distributed/elastic" not in line]
    return "\n".join(line[:1000] for line in lines[:8])


def run(name, ranks, plans):
    worker = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_plans.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), worker, name]
    result = subprocess.run([*command, *plans], capture_output=True, text=True, timeout=900, check=False)
    if result.returncode != 0:
        sys.exit(f"{name} on {ranks} ranks failed:\n{result.stdout}\n{_errors(result.stderr)}")
    lines = [line.split() for line in result.stdout.splitlines() if line.count(" ") == 2]
    if [line[0] for line in lines] != plans:
        sys.exit(f"{name} on {ranks} ranks: got {result.stdout}")
    return [(os.path.basename(path), float(error), float(loss)) for path, error, loss in lines]


def main():
    torch.set_num_threads(1)
    cases = combinations(os.environ.get("SMP_TORCH_ALL"))
    failed = []
    for name in ("resnet", "gpt", "t5"):
        start = time.perf_counter()
        results = []
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(7)
            for ranks, plans in plan_all(name, folder, cases).items():
                results += run(name, ranks, plans)
        bad = [r for r in results if not (r[1] <= MOST_ERROR and r[2] <= LOSS_ERROR)]
        failed += bad
        worst = max(r[1] for r in results)
        print(f"{name}: {len(results) - len(bad)} of {len(results)} plans have the gradients of one process, largest error "
              f"{worst:.2g}, {time.perf_counter() - start:.0f} s", flush=True)
    for path, error, loss in failed:
        print(f"FAILED {path}: gradients {error:.3g}, losses {loss:.3g}")
    sys.exit(1 if failed else 0)


main()

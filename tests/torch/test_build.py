"""profile, smp-partition and build together: for every schedule of SMP one step run by PyTorch has the gradients and the
losses of one process, of a ResNet (in-place, batch norm), a GPT (tied) and a T5 (tied, skips, integer and boolean
tensors).

SMP_TEST_LONG=1 runs all combinations, otherwise a part of them.
"""

import json
import os
import sys
import tempfile
import time

import torch

import smp_torch
from forks import run_ranks
from run_plans import run_plans, trace
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
LONG = bool(os.environ.get("SMP_TEST_LONG"))
SEARCH_S = "0.5" if LONG else "0.1"
MOST_ERROR = 1e-12
LOSS_ERROR = 1e-12


def combinations(number):
    """Of the model of that number: (schedule, ranks, micro-batches), and which of EXTRA. In the ordinary run a schedule is
    run by one model, on two ranks or on four, in turn, and so is an extra."""
    counts = (4, 6, 7, 8)
    if LONG:
        return [(s, ranks, m) for s in SCHEDULES for ranks in (2, 4) for m in counts], list(EXTRA)
    cases = [(s, 2 + i // 3 % 2 * 2, counts[i % 4]) for i, s in enumerate(SCHEDULES) if i % 3 == number]
    extras = [e for i, e in enumerate(EXTRA) if i % 3 == number]
    return cases, extras + ["recompute"] * (number == 0)  # of what is changed in place


def ranks_of(options):
    return 4 if "--ddp" in options else 2


def plan_all(name, folder, cases, extras):
    """Prints ranks -> paths of plans. A rank of its own: who has gone backward can fork no ranks that do."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    module, args, loss_fn, target = small(name)
    made = smp_torch.profile(module, args, loss_fn, f"{folder}/{name}.yaml", target=target, budget_s=0.5)
    plans = {}
    for schedule, ranks, m in cases:
        options = [o.replace("{2p-1}", str(2 * ranks - 1)) for o in SCHEDULES[schedule]]
        out = f"{folder}/{name}-{schedule}-{ranks}-{m}"
        make_plan(made.model, made.profile, out, ["-n", str(ranks), "--stages", str(ranks), "--microbatches", str(m),
                                                  "--time-limit", SEARCH_S, "--pipeline", *options])
        plans.setdefault(ranks, []).append(f"{out}.json")
    for extra in extras:
        options, ranks = EXTRA[extra], ranks_of(EXTRA[extra])
        out = f"{folder}/{name}-{extra}"
        make_plan(made.model, made.profile, out, ["-n", str(ranks), "--microbatches", "4", "--time-limit", SEARCH_S,
                                                  "--pipeline", *options])
        plans.setdefault(ranks, []).append(f"{out}.json")
    if name == "resnet":
        plans[2].append(nothing_to_learn(made, folder))
    print(json.dumps(plans))


def nothing_to_learn(made, folder):
    """A plan whose first stage only counts batches: what the second receives has no gradient."""
    out = f"{folder}/counts"
    make_plan(made.model, made.profile, out, ["-n", "2", "--stages", "2", "--chunks", "1", "--microbatches", "4", "--time-limit",
                                              SEARCH_S, "--pipeline", "zero-bubble"])
    with open(f"{out}.json", encoding="utf-8") as file:
        plan = json.load(file)
    first, second = plan["stages"]
    ops = first["ops"] + second["ops"]
    first["ops"] = [next(name for name in ops if name.endswith(".add_"))]
    second["ops"] = [name for name in ops if name not in first["ops"]]
    with open(f"{out}.json", "w", encoding="utf-8") as file:
        json.dump(plan, file)
    return f"{out}.json"


def output_of(ranks, main, *arguments):
    code, output, errors = run_ranks(ranks, main, *arguments, seconds=900)
    if code != 0:
        sys.exit(f"{main.__name__} of {arguments[0]} on {ranks} ranks failed:\n{output}\n{errors[-3000:]}")
    return output


def plans_of(name, folder, cases, extras):
    return json.loads(output_of(1, plan_all, name, folder, cases, extras).splitlines()[-1])


def run(name, ranks, plans, traced):
    output = output_of(ranks, run_plans, name, plans, traced)
    lines = [line.split() for line in output.splitlines() if line.count(" ") == 2]
    if [line[0] for line in lines] != plans:
        sys.exit(f"{name} on {ranks} ranks: got {output}")
    return [(os.path.basename(path), float(error), float(loss)) for path, error, loss in lines]


def main():
    failed = []
    for number, name in enumerate(("resnet", "gpt", "t5")):
        start = time.perf_counter()
        results = []
        with tempfile.TemporaryDirectory() as folder:
            traced = trace(name)
            for ranks, plans in plans_of(name, folder, *combinations(number)).items():
                results += run(name, int(ranks), plans, traced)
        bad = [r for r in results if not (r[1] <= MOST_ERROR and r[2] <= LOSS_ERROR)]
        failed += bad
        worst = max(r[1] for r in results)
        print(f"{name}: {len(results) - len(bad)} of {len(results)} plans have the gradients of one process, largest error "
              f"{worst:.2g}, {time.perf_counter() - start:.0f} s", flush=True)
    for path, error, loss in failed:
        print(f"FAILED {path}: gradients {error:.3g}, losses {loss:.3g}")
    sys.exit(1 if failed else 0)


main()

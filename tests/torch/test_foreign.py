"""Schedules that PyTorch makes, read in all its dialects, and with actions exchanged at random: what smp-partition judges free of
deadlock runs in PyTorch, what it judges stuck hangs there or is refused."""

import contextlib
import csv
import io
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter

import torch
from torch.distributed.pipelining import schedules

from forks import run_jobs
from run_schedules import run_schedules
from smp_torch.planner import find_planner

MAKERS = {"Interleaved1F1B": False, "LoopedBFS": False, "InterleavedZeroBubble": False, "ZBVZeroBubble": True,
          "DualPipeV": True}  # whether stages are folded into a V
SHAPES = [(2, 4), (2, 8), (4, 8)]  # ranks, micro-batches
STUCK = 4  # schedules that are left to hang, each for seconds


class FakeStage:
    """What a schedule asks of a stage before it runs."""

    def __init__(self, index, n, ranks):
        self.stage_index, self.num_stages, self.group_size, self.group_rank = index, n, ranks, 0
        self.is_first, self.is_last = index == 0, index == n - 1
        self.submod, self.has_backward, self.stage_index_to_group_rank = torch.nn.Linear(1, 1), True, {}


def generate(folder):
    """(path, ranks, micro-batches, dialect) of all schedules, in both dialects."""
    made = []
    for name, folded in MAKERS.items():
        for ranks, m in SHAPES:
            n = 2 * ranks
            stages = [FakeStage(0, n, ranks), FakeStage(n - 1 if folded else ranks, n, ranks)]
            schedule = schedules.get_schedule_class(name)(stages, m, loss_fn=torch.nn.functional.mse_loss)
            runtime = isinstance(schedule, schedules._PipelineScheduleRuntime)
            for dialect in ("compute_only", "compute_comms") if runtime else ("compute_only",):
                path = f"{folder}/{name}-{ranks}-{m}-{dialect}.csv"
                schedule._dump_csv(path, **({"format": dialect} if runtime else {}))
                made.append((path, ranks, m, dialect))
    return made


def check(path):
    result = subprocess.run([find_planner(), "check", path, "--json", "--effort", "quick"], capture_output=True, text=True,
                            check=False)
    verdict = json.loads(result.stdout)
    if (result.returncode == 0) != verdict["legal"]:
        sys.exit(f"{path}: {result.returncode}, {result.stdout} {result.stderr}")
    return verdict


def check_counts(path, ranks, m, dialect):
    """The verdict against what the file says by itself."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    actions = [schedules._Action.from_str(cell) for row in rows for cell in row]
    parts = [p for a in actions if a for p in (a.sub_actions or [a])]
    counts = Counter(p.computation_type.value for p in parts)
    verdict = check(path)
    wanted = {"pipeline": ranks, "stages": 2 * ranks, "microbatches": m, "communicates": dialect == "compute_comms"}
    if not verdict["legal"] or any(verdict[k] != v for k, v in wanted.items()) or counts["F"] != 2 * ranks * m:
        sys.exit(f"{path}: {verdict}, expected {wanted}, {counts}")
    # Forward 1, backward 2, a half of it 1: every rank is busy for 3 with each micro-batch of its two stages.
    if any(r["busy"] != 6 * m for r in verdict["ranks"]):
        sys.exit(f"{path}: {verdict['ranks']}")


def exchanged(path, out, rng):
    """A copy with two actions of one rank exchanged."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = [[c for c in row if c] for row in csv.reader(file)]
    row = rng.choice(rows)
    i = rng.randrange(len(row) - 1)
    k = min(len(row) - 1, i + rng.randint(1, 6))
    row[i], row[k] = row[k], row[i]
    with open(out, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def run(cases, seconds):
    """Of each case (ranks, micro-batches, dialect, paths): those that end in PyTorch, until one does not, and errors. All
    cases run at the same time, and so many seconds without a message are a hang."""
    made = run_jobs([(ranks, run_schedules, 2 * ranks, m, dialect, paths, seconds) for ranks, m, dialect, paths in cases], 600)
    return [([line.split(" ", 1)[1] for line in output.splitlines() if line.startswith("ended ")], errors)
            for _, output, errors in made]


def lowers(path, ranks):
    """Can PyTorch put sends and receives into it?"""
    with open(path, newline="", encoding="utf-8") as file:
        rows = [[schedules._Action.from_str(c) for c in row] for row in csv.reader(file)]
    owner = {p.stage_index: r for r, row in enumerate(rows) for a in row if a for p in (a.sub_actions or [a])}
    try:
        schedules._add_send_recv(dict(enumerate(rows)), lambda s: owner[s], 2 * ranks)
    except AssertionError:
        return False
    return True


def before_its_forward(verdict):
    """A backward before its own forward: PyTorch puts messages into such an order, and fails when it runs."""
    message = verdict["findings"][0]["message"]
    return " of rank" in message and message.count("stands at") == 1


def main():
    rng = random.Random(11)
    counts = Counter()
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            made = generate(folder)
        by_shape = {}
        for path, ranks, m, dialect in made:
            check_counts(path, ranks, m, dialect)
            by_shape.setdefault((ranks, m, dialect), []).append(path)
        hanging = []
        for number in range(150):
            path, ranks, m, dialect = rng.choice(made)
            out = f"{folder}/exchanged-{number}.csv"
            exchanged(path, out, rng)
            verdict = check(out)
            kind = "free" if verdict["legal"] else verdict["findings"][0]["kind"]
            counts[dialect, kind] += 1
            if dialect == "compute_only" and kind != "order" and not (kind == "deadlock" and before_its_forward(verdict)):
                if lowers(out, ranks) != verdict["legal"]:
                    sys.exit(f"{out}: PyTorch says otherwise: {verdict['findings']}\n{open(out, encoding='utf-8').read()}")
            if verdict["legal"] and ranks == 2:
                by_shape[ranks, m, dialect].append(out)
            elif kind == "deadlock" and dialect == "compute_comms" and ranks == 2:
                hanging.append((out, ranks, m, dialect))
        ended = 0
        for (ranks, m, dialect), paths in by_shape.items():
            done, errors = run([(ranks, m, dialect, paths)], 60)[0]
            if done != paths:
                sys.exit(f"judged free of deadlock, but it does not end: {paths[len(done)]}\n{errors[-3000:]}\n"
                         f"{open(paths[len(done)], encoding='utf-8').read()}")
            ended += len(done)
        stuck = [(ranks, m, dialect, [path]) for path, ranks, m, dialect in hanging[:STUCK]]
        for (path, *_), (done, _) in zip(hanging, run(stuck, 6)):
            if done:
                sys.exit(f"judged stuck, but it ends: {path}\n{open(path, encoding='utf-8').read()}")
    print(f"{len(made)} schedules and {sum(counts.values())} with actions exchanged: {dict(counts)}; {ended} run in PyTorch, "
          f"{min(STUCK, len(hanging))} of {len(hanging)} that are stuck left to hang")
    if not ended or len(hanging) < STUCK:
        sys.exit("too few cases")


main()

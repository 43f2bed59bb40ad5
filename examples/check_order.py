#!/usr/bin/env python3
"""Is the order of a pipeline one that can run and trains right? Judges it with nothing of SMP.

    check_order.py PLAN.json       as `smp-partition MODEL --export json:PLAN.json` writes it
    check_order.py ORDER.csv       as `--export torch-csv:ORDER.csv` does: for PyTorch's pipelining

Every stage has one forward and one backward (whole, B, or in halves, I and W) of each micro-batch;
forwards and weight gradients of a stage stand in micro-batch order, so that sums have one order; in a
plan every message that is awaited is sent, and sums over replicas and the optimizer come last. Then it
is run: each rank does its actions in order, an action waits for the neighbouring stages, messages take
no time. What a rank has reached only grows, so one run that ends proves that none waits for ever.
Prints the time of a step and the share of it in which ranks stand still; exit code 1 where the order
is wrong. Stages of a plan are taken to be a chain, each reading from the one before.
"""
import csv
import json
import re
import sys
from collections import defaultdict

ACTION = re.compile(r"([<>]?)([FBIW])(\d+)\.(\d+)$")
CELL = re.compile(r"(\d+)([FBIW])(\d+)")


def read_json(path):
    """The rows, a list of (sign, kind, micro-batch, stage) for each rank, and the time of (kind, stage)."""
    with open(path, encoding="utf-8") as file:
        plan = json.load(file)
    chunk = defaultdict(list)  # rank -> its stages
    times = {}
    for stage in plan["stages"]:
        chunk[stage["rank"]].append(stage["stage"])
        back = stage["backward_us"]
        first = stage.get("backward_input_us", back / 2)
        for kind, us in (("F", stage["forward_us"]), ("B", back), ("I", first), ("W", back - first)):
            times[kind, stage["stage"]] = us
    rows = []
    for rank, program in enumerate(plan["programs"]):
        words = program.split()
        found = [ACTION.match(word) for word in words]
        rows.append([(m[1], m[2], int(m[3]), chunk[rank][int(m[4])]) for m in found if m])
        last = max(i for i, m in enumerate(found) if m)
        if "B" in program and (words[-1] != "O" or not any(w[0] == "R" for w in words)):
            sys.exit(f"rank {rank}: a step ends with R of each chunk and O")
        if any(word[0] == "O" for word in words[:last]):
            sys.exit(f"rank {rank}: the optimizer runs before the last action")
    return rows, times


def read_csv(path):
    with open(path, encoding="utf-8") as file:
        rows = [[("", kind, int(m), int(s)) for cell in row for s, kind, m in CELL.findall(cell)]
                for row in csv.reader(file) if row]
    weight = {"F": 1, "B": 2, "I": 1, "W": 1}
    return rows, {(kind, s): weight[kind] for row in rows for _, kind, _, s in row}


def check_rows(rows):
    """What is missing, twice or out of order; the stages' ranks."""
    home, done = {}, defaultdict(list)
    for rank, row in enumerate(rows):
        for sign, kind, m, s in row:
            if home.setdefault(s, rank) != rank:
                sys.exit(f"stage {s} lies on rank {home[s]} and on rank {rank}")
            done[sign + kind, s].append(m)
    stages = range(max(home) + 1)
    batch = sorted(done["F", 0])
    for s in stages:
        whole, halves = done["B", s], done["I", s]
        if done["F", s] != batch or batch != list(range(len(batch))):
            sys.exit(f"stage {s}: forwards {done['F', s]}, expected 0 to {len(batch) - 1} in order")
        if sorted(whole + halves) not in (batch, []) or sorted(halves) != done["W", s]:
            sys.exit(f"stage {s}: not one backward of each micro-batch: B {whole}, I {halves}, W {done['W', s]}")
        weights = [m for sign, kind, m, t in rows[home[s]] if t == s and not sign and kind in "BW"]
        if weights != sorted(weights):
            sys.exit(f"stage {s}: weight gradients {weights} are not in micro-batch order")
        for kind in "FB":
            if sorted(done["<" + kind, s]) not in (batch, []):
                sys.exit(f"stage {s}: receives <{kind} of {done['<' + kind, s]}, expected each once")
    return home, len(stages)


def needs(action, n_stage, plan, home):
    """What has to be done before an action, besides what stands before it in its row: of each, one."""
    sign, kind, m, s = action
    made = {"F": [("", "F", m, s)], "B": [("", "B", m, s), ("", "I", m, s)]}
    if sign == ">":
        return [made[kind]]
    if kind == "W":
        return [[("", "I", m, s)]]
    message = "F" if kind == "F" else "B"
    wanted = [] if sign or kind == "F" else [made["F"]]
    other = s - 1 if kind == "F" else s + 1
    if not 0 <= other < n_stage:
        return wanted
    if sign == "<":
        return wanted + [[(">", message, m, other)]]
    if plan and home[other] != home[s]:
        return wanted + [[("<", message, m, s)]]
    return wanted + [[(sign, k, m, other) for sign, k, m, _ in made[message]]]


def run(rows, times, home, n_stage, plan):
    """Runs the rows; the time at which the last action ends."""
    end, at, clock = {}, [0] * len(rows), [0.0] * len(rows)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row):
                action = row[at[rank]]
                waits = [[end[a] for a in some if a in end] for some in needs(action, n_stage, plan, home)]
                if not all(waits):
                    break
                start = max([clock[rank]] + [min(w) for w in waits])
                sign, kind, _, s = action
                clock[rank] = end[action] = start + (0 if sign else times[kind, s])
                at[rank] += 1
                moved = True
    stuck = [f"rank {r} at {''.join(map(str, row[at[r]][:3]))} of stage {row[at[r]][3]}"
             for r, row in enumerate(rows) if at[r] < len(row)]
    if stuck:
        sys.exit("they wait for ever: " + ", ".join(stuck))
    return max(clock)


def main():
    plan = sys.argv[1].endswith(".json")
    rows, times = read_json(sys.argv[1]) if plan else read_csv(sys.argv[1])
    home, n_stage = check_rows(rows)
    step = run(rows, times, home, n_stage, plan)
    busy = sum(times[kind, s] for row in rows for sign, kind, _, s in row if not sign)
    print(f"{n_stage} stages on {len(rows)} ranks, {len(rows[0])} actions on rank 0: right; a step takes "
          f"{step:g}, ranks stand still for {1 - busy / step / len(rows):.3f} of it")


if __name__ == "__main__":
    main()

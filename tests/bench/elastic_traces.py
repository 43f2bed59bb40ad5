#!/usr/bin/env python3
"""Lives of clusters replayed: what is left of a job's speed while nodes go and come.

    python3 tests/bench/elastic_traces.py BIN CONFIGS TRACES [--models NAME,...] [--plans FILE.json]
                                          [--batch N] [--effort NAME] [--set COST=SECONDS ...]

BIN: the folder of the programs. CONFIGS: published throughput by number of nodes, the group
elastic-throughput-by-nodes. TRACES: a folder of CSVs `milliseconds,add|remove,node`. Needs PyYAML.

Every job is planned for every number of nodes, twice: under what its first plan fixed (global batch,
gradient blocks, micro-batch size), so that `check --same-bits-as` holds, and freely. It runs under the
fastest plan for the nodes at hand or fewer; who is in no plan waits. (Every plan is searched twice, once
with one chunk: of few layers on many nodes the search within a second may see none.)

Each trace is then replayed step by step: when a node that is in use goes, the job falls back to the
newest state that is complete in memory, and to the disk where a node went together with its partner; it
pays for finding out, planning, starting and loading. When nodes come it grows at the next step, if what
is gained before the next event, as events came so far, is more than what it costs.

The limit is the job that always runs under the best of all free plans, at no cost. Others are replayed
by their own throughput with what their sources say of their recovery, beside a limit of their own
throughput at no cost. What compares are shares: of the limit, and of what 30 nodes do for as many node
hours. Samples a second are predicted here, measured there, on other software and in another precision.
"""
import argparse
import concurrent.futures
import csv
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import yaml

sys.dont_write_bytecode = True
import measured  # noqa: E402

NODES = range(11, 31)  # a plan for 15 may be one of 11

# As Oobleck's artifact has them (branch sosp23-artifact). Batches as its simulator's, that of GPT-3 medium
# rounded up from 819.2; GPT-2 is its example's, the medium one.
MODELS = {
    "BERT-large": dict(batch=8192, kind="bert-large", layers=24, hidden=1024, heads=16, seq=512, vocab=30522),
    "GPT-2": dict(batch=1024, kind="gpt", layers=24, hidden=1024, heads=16, seq=1024, vocab=50257),
    "GPT-3-medium": dict(batch=832, kind="gpt", layers=24, hidden=1024, heads=16, seq=2048, vocab=50257),
    "GPT-3-2.7B": dict(batch=512, kind="gpt", layers=32, hidden=2560, heads=32, seq=2048, vocab=50257),
    "GPT-3-6.7B": dict(batch=1024, kind="gpt", layers=32, hidden=4096, heads=32, seq=2048, vocab=50257),
}
# One A40 a node; links assumed, 200 Gbit/s.
LINK_BYTES_PER_S = 25e9
CLUSTER = {"smp": 1, "name": "a40-30x1", "nodes": 30, "devices_per_node": 1, "device": {"description": "a40"},
           "links": {"inter_node": {"bandwidth": "25GB/s", "latency_us": 10},
                     "host": {"bandwidth": "24GB/s", "latency_us": 10}}, "overlap": True}

# Seconds that going on takes. A node that is gone is known by its heartbeat; plans for one and two nodes
# fewer are made ahead, others cost what they cost here. Start: assumed for 30 nodes. Loading: what a node's
# part takes on its link, and reading it from memory, come to it.
COSTS = {"detect": 5.0, "start": 5.0, "save_every": 600.0, "first_horizon": 3600.0}
STATE_BYTES = 12  # a parameter: its value and AdamW's two moments, fp32
MEMORY_BYTES_PER_S = 8e9

# Published: seconds of reconfiguration, checkpoints of Varuna (every tenth step), and Bamboo's throughput, whose
# GPT-3 models do not fit (the artifact's simulators, 2023).
OOBLECK_S = {"BERT-large": 2, "GPT-2": 2, "GPT-3-medium": 3, "GPT-3-2.7B": 6, "GPT-3-6.7B": 10}
VARUNA_S = {"BERT-large": 76, "GPT-2": 83, "GPT-3-medium": 78.7, "GPT-3-2.7B": 515, "GPT-3-6.7B": 701}
VARUNA_SAVE_S = {"BERT-large": 15.8, "GPT-2": 11.5, "GPT-3-medium": 11.2, "GPT-3-2.7B": 50, "GPT-3-6.7B": 120}
BAMBOO_S = {"BERT-large": 76, "GPT-2": 80}
BAMBOO_RATES = {"BERT-large": (49.689, 74.534, 99.379, 119.255), "GPT-2": (11.262, 16.893, 22.525, 27.030)}


# ---- plans

def parameters(model):
    d = model["hidden"]
    return model["layers"] * (12 * d * d + 13 * d) + (model["vocab"] + model["seq"]) * d


def gradient_blocks(blocks, microbatches, devices):
    """As the supervisor chooses them (tools/elastic/plans.c): of multiples of the first plan's, up to two for each
    device, the least with which replicas of any number are busy for nine tenths of what they can be with any."""
    multiples = [n for n in range(blocks, 2 * devices + 1, blocks) if microbatches % n == 0] or [blocks]
    busy = {n: sum(n / (ddp * -(-n // ddp)) for ddp in range(1, min(n, devices) + 1)) for n in multiples}
    return min(n for n in multiples if busy[n] >= 0.9 * max(busy.values()))


class Planner:
    """Plans of one model, each made once."""

    def __init__(self, name, options, folder):
        self.name, self.options, self.folder = name, options, folder
        self.model = MODELS[name]
        self.batch = options.batch or self.model["batch"]
        job = {"id": re.sub(r"\W", "-", name.lower()), "model": self.model, "tp": 1, "software": {"dropout": False}}
        (folder / "model.yaml").write_text(measured.model_text(job))
        cluster = dict(CLUSTER, device={"description": str(measured.DEVICES / "a40.yaml")})
        (folder / "cluster.yaml").write_text(yaml.safe_dump(cluster, sort_keys=False))

    def plan(self, nodes, *more):
        """What is predicted of a plan; None if there is none."""
        kind = "".join(f"{word}" for word in more).replace("--", "-")
        path = self.folder / f"plan-{nodes}{kind}.yaml"
        command = [self.options.programs / "smp-partition", "model.yaml", "--cluster", "cluster.yaml", "-n", nodes,
                   "--global-batch", self.batch, "--device", "cuda", "--precision", self.options.precision,
                   "--tensor", 1, "--effort", self.options.effort, "--json", "-o", path, *more]
        began = time.monotonic()
        run = subprocess.run([str(word) for word in command], cwd=self.folder, capture_output=True, text=True)
        if run.returncode not in (0, 3):
            sys.exit(f"{' '.join(map(str, command))}: {run.stderr}")
        if run.returncode == 3:
            return None
        said = json.loads(run.stdout)
        return {"rate": said["predicted"]["samples_per_s"], "stages": said["parallel"]["pipeline"],
                "ddp": said["parallel"]["ddp"], "microbatch": said["batch"]["microbatch_size"], "path": str(path),
                "search_s": time.monotonic() - began}

    def same_bits(self, path, first):
        run = subprocess.run([self.options.programs / "smp-partition", "check", path, "--same-bits-as", first],
                             capture_output=True, text=True, cwd=self.folder)
        return run.returncode == 0

    def all_plans(self):
        """{"free": {nodes: plan}, "fixed": {nodes: plan}, ...}"""
        most = max(NODES)
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            free = {n: plan for n, plan in zip(NODES, pool.map(self.plan, NODES)) if plan}
            first = free[most]
            blocks = gradient_blocks(first["ddp"], self.batch // first["microbatch"], most)
            words = ["--gradient-blocks", blocks, "--microbatch-size", first["microbatch"]]
            fixed = list(pool.map(lambda n: self.plan(n, *words), NODES))
        fixed = {n: plan for n, plan in zip(NODES, fixed) if plan}
        for n, plan in fixed.items():
            if not self.same_bits(plan["path"], fixed[most]["path"]):
                sys.exit(f"{self.name}: the plan for {n} nodes has other bits than that for {most}")
        return {"batch": self.batch, "blocks": blocks, "microbatch": first["microbatch"], "free": free, "fixed": fixed}


def best(plans, nodes):
    """(nodes that are used, plan): the fastest for so many or fewer."""
    return max(((n, plan) for n, plan in plans.items() if n <= nodes), key=lambda found: found[1]["rate"],
               default=(0, {"rate": 0.0, "search_s": 0.0}))


# ---- traces

def read_trace(path):
    """[(seconds, nodes that come, nodes that go)]"""
    moments = {}
    for ms, what, node in csv.reader(path.open()):
        came, gone = moments.setdefault(int(ms) / 1000, ([], []))
        (came if what == "add" else gone).append(node)
    return [(at, *moments[at]) for at in sorted(moments)]


class System:
    """What a system does with so many nodes, and what going on costs it."""

    batch = 0

    def choose(self, nodes):
        """(nodes in use, samples a second)"""
        raise NotImplementedError

    def state_at(self, life, at):
        """After a failure at `at`: the step that is gone back to."""
        raise NotImplementedError

    def recovery_s(self, life, lost):
        """{phase: seconds} of going on, after so many nodes are lost; 0: nodes have come."""
        raise NotImplementedError


class Elastic(System):
    """smp-run --elastic, with the plans that were made."""

    def __init__(self, name, plans, costs):
        self.plans, self.costs, self.batch = plans["fixed"], costs, plans["batch"]
        self.state_bytes = STATE_BYTES * parameters(MODELS[name])

    def choose(self, nodes):
        used, plan = best(self.plans, nodes)
        return used, plan["rate"]

    def copy_s(self, nodes):
        """From the end of a step to a state that is complete: to memory and to the partner."""
        part = self.state_bytes / max(nodes, 1)
        return part / MEMORY_BYTES_PER_S + part / LINK_BYTES_PER_S

    def state_at(self, life, at):
        if life.partners_lost:
            return life.disk_step
        since = at - life.began - (life.step - life.first) * life.step_s
        behind = life.step > life.first and since < self.copy_s(len(life.used))
        return life.step - 1 if behind else life.step

    def recovery_s(self, life, lost):
        nodes, _ = self.choose(len(life.nodes))
        phases = {"start": self.costs["start"], "load": self.copy_s(nodes)}
        if lost:
            ahead = lost <= 2
            phases["detect"] = self.costs["detect"]
            phases["plan"] = 0.0 if ahead else best(self.plans, len(life.nodes))[1]["search_s"]
        return phases

    def grows(self, life, horizon_s):
        _, rate = self.choose(len(life.nodes))
        cost_s = sum(self.recovery_s(life, 0).values())
        return (rate - life.rate) * horizon_s > rate * cost_s


class Published(System):
    """By a table of throughput. `kept`: what survives a failure: the "last" step, every "tenth", or "all" that was
    computed, of the step under way, too."""

    def __init__(self, rates, batch, recovery_s, kept, save_s=0.0):
        self.batch, self.seconds, self.kept, self.save_s = batch, recovery_s, kept, save_s
        self.rates = rates

    def choose(self, nodes):
        nodes = min(nodes, max(self.rates))
        rate = self.rates.get(nodes, 0.0)
        if rate and self.save_s:
            rate = self.batch / (self.batch / rate + self.save_s / 10)
        return nodes, rate

    def state_at(self, life, at):
        if self.kept == "all":
            return life.first + max(at - life.began, 0.0) / life.step_s
        return life.step - life.step % 10 if self.kept == "tenth" else life.step

    def recovery_s(self, life, lost):
        return {"reconfigure": self.seconds}

    def grows(self, life, horizon_s):
        return self.choose(len(life.nodes))[1] > life.rate


class Life:
    """A job of one system on one trace; steps one after the other, all of a length between two events."""

    def __init__(self, system, trace, costs):
        self.system, self.trace, self.costs = system, trace, costs
        self.nodes, self.used = [], []  # at hand; in the plan, in the order of its ranks
        self.rate = self.step_s = 0.0
        self.step = self.first = 0  # finished; with which the plan began
        self.began = math.inf  # of its first step; inf: the job stands
        self.disk_step, self.disk_at = 0, 0.0
        self.partners_lost = False
        self.lost = {}  # seconds of training time that were for nothing, by cause
        self.failures = self.to_disk = self.growths = 0
        self.last_events = []

    def note(self, cause, seconds):
        self.lost[cause] = self.lost.get(cause, 0.0) + seconds

    def advance(self, until):
        """Finishes the steps that end by then."""
        if self.began < until and self.step_s > 0:
            done = int((until - self.began) / self.step_s)
            while self.disk_at + self.costs["save_every"] <= self.began + done * self.step_s:
                self.disk_at += self.costs["save_every"]
                self.disk_step = self.first + max(int((self.disk_at - self.began) / self.step_s), 0)
            self.step = max(self.step, self.first + done)

    def start(self, at, phases):
        count, self.rate = self.system.choose(len(self.nodes))
        if self.rate <= 0.0:
            self.began, self.used = math.inf, []
            return
        at_hand, stayed = set(self.nodes), set(self.used)
        stay = [node for node in self.used if node in at_hand]
        others = [node for node in self.nodes if node not in stayed]
        self.used = [*stay, *others][:count]
        self.step_s = self.system.batch / self.rate
        for phase, seconds in phases.items():
            self.note(phase, seconds)
        self.began, self.first = at + sum(phases.values()), self.step

    def fail(self, at, gone):
        ranks = {node: rank for rank, node in enumerate(self.used)}
        dead = {ranks[node] for node in gone if node in ranks}
        count = len(self.used)
        self.partners_lost = any((rank + count // 2) % count in dead for rank in dead) and count > 1
        self.failures += 1
        self.to_disk += self.partners_lost
        back = self.system.state_at(self, at)
        if at > self.began:
            self.note("steps", at - self.began - (back - self.first) * self.step_s)
        elif self.began < math.inf:  # while it was still going on from the one before
            self.note("start", at - self.began)
        self.step = max(back, 0)
        self.start(at, self.system.recovery_s(self, len(dead)))

    def boundary(self, at):
        """When the step ends that is under way."""
        if at <= self.began:
            return self.began
        return self.began + math.ceil((at - self.began) / self.step_s - 1e-9) * self.step_s

    def grow(self, at, end):
        """At the end of the step under way, if that comes before the next event."""
        when = self.boundary(at)
        gaps = [b - a for a, b in zip(self.last_events, self.last_events[1:]) if b > a]
        horizon = sum(gaps) / len(gaps) if gaps else self.costs["first_horizon"]
        if when >= end or not self.system.grows(self, horizon):
            return
        self.advance(when + 1e-6)
        self.growths += 1
        self.start(when, self.system.recovery_s(self, 0))

    def run(self):
        """Samples a second, over all of the trace."""
        end = self.trace[-1][0]
        for i, (at, came, gone) in enumerate(self.trace):
            self.advance(at)
            self.last_events.append(at)
            self.nodes = [node for node in self.nodes if node not in gone] + came
            if any(node in self.used for node in gone):
                self.fail(at, gone)
            if self.began == math.inf and at < end:
                self.start(at, {} if i == 0 else self.system.recovery_s(self, 0))
            elif i + 1 < len(self.trace) and self.system.choose(len(self.nodes))[1] > self.rate:
                self.grow(at, self.trace[i + 1][0])
        under_way = (end - self.began) / self.step_s - (self.step - self.first) if self.began < end else 0.0
        return (self.step + min(max(under_way, 0.0), 1.0)) * self.system.batch / end


def limit(trace, rate_of):
    """Samples a second where each number of nodes has its rate at once."""
    nodes, samples, before = 0, 0.0, 0.0
    for at, came, gone in trace:
        samples += rate_of(nodes) * (at - before)
        nodes, before = nodes + len(came) - len(gone), at
    return samples / before


# ---- tables

def published(name, configs):
    """{system: System} of what is published of a model."""
    found = {}
    for job in configs:
        if job["group"] != "elastic-throughput-by-nodes" or job["model"]["kind"] != name:
            continue
        rates, batch = job["measured"]["samples_s_by_nodes"], job["samples_per_step"]
        if job["system"] == "oobleck":
            found["Oobleck"] = Published(rates, batch, OOBLECK_S[name], "last")
        elif job["system"] == "varuna":
            found["Varuna"] = Published(rates, batch, VARUNA_S[name], "tenth", VARUNA_SAVE_S[name])
    if name in BAMBOO_RATES:
        least, low, high, most = BAMBOO_RATES[name]
        rates = {n: most if n == 30 else high if n > 23 else low if n > 17 else least for n in range(15, 31)}
        found["Bamboo"] = Published(rates, found["Oobleck"].batch, BAMBOO_S[name], "all")
    return found


def print_plans(all_plans):
    print("| model, batch, gradient blocks, micro-batch | 30 nodes: replicas x stages, samples/s | with half of the "
          "nodes, of half the speed | the best free plan is faster by, mean, most | search, s |\n|---|---|---|---|---|")
    for name, plans in all_plans.items():
        pairs = [(best(plans["fixed"], n)[1]["rate"], best(plans["free"], n)[1]["rate"]) for n in range(15, 31)]
        extra = [free / fixed - 1 for fixed, free in pairs if fixed > 0]
        _, plan = best(plans["fixed"], 30)
        searches = sorted(plan["search_s"] for plan in plans["fixed"].values())
        half = best(plans["fixed"], 15)[1]["rate"] / plan["rate"] * 2
        print(f"| {name}, {plans['batch']}, {plans['blocks']}, {plans['microbatch']} "
              f"| {plan['ddp']} x {plan['stages']}, {plan['rate']:.4g} | {half:.3f} "
              f"| {100 * sum(extra) / len(extra):.1f} %, {100 * max(extra):.1f} % | {searches[len(searches) // 2]:.1f} |")


def print_trace(path, all_plans, configs, costs):
    trace = read_trace(path)
    nodes, moments = limit(trace, lambda n: n), sum(bool(gone) for _, _, gone in trace)
    print(f"\n{path.stem}: {trace[-1][0] / 3600:.1f} hours, {nodes:.1f} nodes on average, nodes go at {moments} "
          "moments\n")
    print("| model | SMP, samples/s (share of its limit, of node hours) | failures (to the disk), growths "
          "| lost: steps, detect, plan, start, load | Oobleck | Varuna | Bamboo |\n|---|---|---|---|---|---|---|")

    def cell(got, most, all_nodes):
        return f"{got:.4g} ({got / most:.3f}, {got / (all_nodes * nodes / 30):.3f})"

    for name, plans in all_plans.items():
        life = Life(Elastic(name, plans, costs), trace, costs)
        got = life.run()
        most = limit(trace, lambda n: best(plans["free"], n)[1]["rate"])
        lost = ", ".join(f"{life.lost.get(cause, 0.0):.0f}" for cause in ("steps", "detect", "plan", "start", "load"))
        cells = [name, cell(got, most, best(plans["free"], 30)[1]["rate"]),
                 f"{life.failures} ({life.to_disk}), {life.growths}", f"{lost} s"]
        others = published(name, configs)
        for system in (others.get(other) for other in ("Oobleck", "Varuna", "Bamboo")):
            if system:
                most = limit(trace, lambda n: system.rates.get(min(n, 30), 0.0))
                cells.append(cell(Life(system, trace, costs).run(), most, system.rates[30]))
            else:
                cells.append("-")
        print(f"| {' | '.join(cells)} |")


def parse():
    parser = argparse.ArgumentParser(description="Lives of clusters replayed.")
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("configs", type=pathlib.Path)
    parser.add_argument("traces", type=pathlib.Path)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--plans", type=pathlib.Path, help="are read from here if it is there, else written")
    parser.add_argument("--batch", type=int, help="global batch of every model")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--set", action="append", default=[], metavar="COST=SECONDS", help=", ".join(COSTS))
    options = parser.parse_args()
    options.programs = options.programs.resolve()
    return options


def plans_of(options):
    """{model: plans}; made for what is not in the file."""
    kept = {}
    if options.plans and options.plans.exists():
        kept = json.loads(options.plans.read_text())
    for name in options.models.split(","):
        if name not in kept:
            with tempfile.TemporaryDirectory() as folder:
                kept[name] = Planner(name, options, pathlib.Path(folder)).all_plans()
            if options.plans:
                options.plans.write_text(json.dumps(kept, indent=1) + "\n")
    for plans in kept.values():  # JSON has no numbers for keys
        for kind in ("free", "fixed"):
            plans[kind] = {int(n): plan for n, plan in plans[kind].items()}
    return {name: kept[name] for name in options.models.split(",")}


def main():
    options = parse()
    costs = dict(COSTS)
    for change in options.set:
        key, value = change.split("=")
        costs[key] = float(value)
    all_plans = plans_of(options)
    configs = yaml.safe_load(options.configs.read_text())["configs"]
    print_plans(all_plans)
    for path in sorted(options.traces.glob("*.csv")):
        print_trace(path, all_plans, configs, costs)


if __name__ == "__main__":
    sys.exit(main())

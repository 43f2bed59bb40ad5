#!/usr/bin/env python3
"""Failures of a very large job, simulated: 16,384 H100 train a LLaMA 3 of 405 billion parameters.

    python3 tests/bench/elastic_large.py BIN [--days N] [--seeds N] [--repair HOURS] [--start SECONDS] [--effort NAME]

BIN: the folder of the programs. Failures come as published of Llama 3's training (Grattafiori et al. 2024): 419
unexpected interruptions in 54 days, 78 % of them by hardware. A host with broken hardware is away until it is repaired;
after another failure its processes start again. Hosts are planned for as smp-run --elastic does: under the first plan's
global batch, micro-batch size and gradient blocks.

Beside it stands a job that restarts from checkpoints of every ten minutes and needs all of its hosts: what is broken is
replaced by a spare host at once. It finds failures, starts and loads as fast as the elastic job does, and saves at no
cost, so what differs is the work that is lost. Steps are predicted and nothing was measured on 16,384 GPUs; starting
takes what MegaScale (Jiang et al. 2024) tells of more than 10,000 GPUs, 30 s.
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import elastic_traces as traces  # noqa: E402
import measured  # noqa: E402

HOSTS, PER_HOST, BATCH = 2048, 8, 2048
PARAMETERS = 405.9e9
STATE_BYTES = 12
HOST_LINK_BYTES_PER_S = 8 * 50e9
FAILURES_A_DAY, OF_HARDWARE = 419 / 54, 0.78
MODEL = {"kind": "llama3-405b", "layers": 126, "hidden": 16384, "heads": 128, "kv_heads": 8, "ffn": 53248,
         "vocab": 128256, "seq": 8192, "swiglu": True, "untied": True}
CLUSTER = f"""smp: 1
name: h100-2048x8
nodes: {HOSTS}
devices_per_node: {PER_HOST}
device: {{description: {measured.DEVICES}/h100-80gb-sxm.yaml, memory: 80GB}}
links:
  intra_node: {{bandwidth: 370GB/s, latency_us: 5}}
  inter_node: {{bandwidth: 50GB/s, latency_us: 8}}
  host: {{bandwidth: 48GB/s, latency_us: 10}}
overlap: true
"""


def plan(programs, folder, devices, first, effort):
    """What is predicted of the plan for so many devices; None if there is none."""
    words = ["--microbatch-size", first["batch"]["microbatch_size"], "--gradient-blocks", first["blocks"],
             "--tensor", first["parallel"]["tensor"]] if first else []
    command = [programs / "smp-partition", "model.yaml", "--cluster", "cluster.yaml", "-n", devices, "--global-batch",
               BATCH, "--device", "cuda", "--precision", "bf16", "--effort", effort, "--json", "-o",
               f"plan-{devices}.yaml", *words]
    run = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True)
    if run.returncode == 3:
        return None
    if run.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {run.stderr}")
    return json.loads(run.stdout)


def all_plans(programs, most_away, effort):
    """{hosts: {"rate": samples a second, ...}} for all hosts, and with up to most_away of them away."""
    plans = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        job = {"id": MODEL["kind"], "model": MODEL, "tp": 8, "software": {"dropout": False}}
        (folder / "model.yaml").write_text(measured.model_text(job))
        (folder / "cluster.yaml").write_text(CLUSTER)
        first = plan(programs, folder, HOSTS * PER_HOST, None, effort)
        first["blocks"] = traces.gradient_blocks(first["parallel"]["ddp"], BATCH // first["batch"]["microbatch_size"],
                                                 HOSTS * PER_HOST)
        replica = first["parallel"]["pipeline"] * first["parallel"]["tensor"] // PER_HOST  # in hosts
        for hosts in sorted({HOSTS, *range(HOSTS - most_away, HOSTS), *range(HOSTS - 4 * replica, HOSTS, replica)}):
            said = plan(programs, folder, hosts * PER_HOST, first, effort)
            if said:
                plans[hosts] = {"rate": said["predicted"]["samples_per_s"], "search_s": 10.0, **said["parallel"]}
    return plans


def trace_of(days, repair_s, spare, random_numbers):
    """[(seconds, hosts that come, hosts that go)]; where there are spare hosts, another comes at once."""
    at, events, away = 0.0, [(0.0, [f"h{i}" for i in range(HOSTS)], [])], {}
    n = HOSTS
    hosts = list(events[0][1])
    while True:
        at += random_numbers.expovariate(FAILURES_A_DAY / 86400)
        if at >= days * 86400:
            break
        for host, back in sorted(away.items(), key=lambda entry: entry[1]):
            if back <= at:
                events.append((back, [host], []))
                hosts.append(host)
                del away[host]
        host = random_numbers.choice(hosts)
        broken = random_numbers.random() < OF_HARDWARE
        if not broken or spare:
            n += 1
            events.append((at, [f"h{n}"] if broken else [host], [host]))
            hosts[hosts.index(host)] = f"h{n}" if broken else host
        else:
            events.append((at, [], [host]))
            hosts.remove(host)
            away[host] = at + random_numbers.expovariate(1 / repair_s)
    events.append((days * 86400.0, [], []))
    return events


class Large(traces.Elastic):
    """The elastic job: a host's part of the state lies in its memory and in its partner's."""

    def __init__(self, plans, costs):
        self.plans, self.costs, self.batch = plans, costs, BATCH
        self.state_bytes = STATE_BYTES * PARAMETERS

    def copy_s(self, nodes):
        part = self.state_bytes / max(nodes, 1)
        return part / traces.MEMORY_BYTES_PER_S + part / HOST_LINK_BYTES_PER_S


class Restarted(Large):
    """All hosts or none, from the last checkpoint."""

    def choose(self, nodes):
        return (HOSTS, self.plans[HOSTS]["rate"]) if nodes >= HOSTS else (0, 0.0)

    def state_at(self, life, at):
        return life.disk_step


def main():
    parser = argparse.ArgumentParser(description="Failures of a job on 16,384 GPUs, simulated.")
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--days", type=float, default=54)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--repair", type=float, default=4.0, help="mean hours until a broken host is back")
    parser.add_argument("--start", type=float, default=30.0, help="seconds to start all ranks")
    parser.add_argument("--effort", default="normal")
    options = parser.parse_args()
    costs = dict(traces.COSTS, start=options.start)
    plans = all_plans(options.programs.resolve(), 3, options.effort)
    full = plans[HOSTS]["rate"]
    for hosts in sorted(plans, reverse=True):
        of = plans[hosts]
        print(f"{hosts} hosts: {of['ddp']} x {of['pipeline']} x {of['tensor']}, {of['rate']:.4g} samples/s, "
              f"{of['rate'] / full:.4f}")
    print("| | effective time | failures (to the disk), growths | lost: steps, detect, plan, start, load, a day |")
    print("|---|---|---|---|")
    for name, system, spare in (("elastic, spare hosts", Large, True), ("elastic, none", Large, False),
                                ("restarts, spare hosts", Restarted, True)):
        lives = []
        for seed in range(options.seeds):
            life = traces.Life(system(plans, costs),
                               trace_of(options.days, 3600 * options.repair, spare, random.Random(seed)), costs)
            lives.append((life.run() / full, life))
        mean = [statistics.mean(life.lost.get(cause, 0.0) for _, life in lives) / options.days
                for cause in ("steps", "detect", "plan", "start", "load")]
        shares = [share for share, _ in lives]
        print(f"| {name} | {statistics.mean(shares):.4f} ({min(shares):.4f} to {max(shares):.4f}) "
              f"| {statistics.mean(life.failures for _, life in lives):.0f} "
              f"({statistics.mean(life.to_disk for _, life in lives):.1f}), "
              f"{statistics.mean(life.growths for _, life in lives):.0f} "
              f"| {', '.join(f'{seconds:.0f}' for seconds in mean)} s |")


if __name__ == "__main__":
    sys.exit(main())

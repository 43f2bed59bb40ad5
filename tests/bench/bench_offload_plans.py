#!/usr/bin/env python3
"""Offload of activations on the simulator: what it saves and what it costs.

    tests/bench/bench_offload_plans.py [BIN]      BIN: folder of smp-partition, default build/bin

Pipelines as Megatron-LM has them, of GPTs of 30 and 175 billion parameters on A100 of 80 GB, each with a link
of 25 GB/s (PCIe 4.0 x16) in either direction to its host. A row for each of: nothing offloaded, everything, and
as much as the planner takes to fit when a device has room for half of the activations of the rank that holds
most of them in the first row: by recomputing alone, and by whichever is better. "activations": what that rank
holds at its peak beside what lives for ever. PipeOffload (Wan et al., ICML 2025) halves activation memory at a
negligible cost; the aim here is half of it for at most 3 % of the step. No time is measured, so the table is
the same on every machine that is done within the time limit. Prints Markdown.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOST = "  host: {bandwidth: 25GB/s, latency_us: 10}\n"
CASES = [  # name, model, cluster, options
    ("30b, 16 stages, 1F1B", "gpt2-30b", "cluster-a100", "-n 16 --stages 16 --chunks 1 --microbatches 64 --pipeline interleaved"),
    ("30b, 16 stages, zero-bubble", "gpt2-30b", "cluster-a100", "-n 16 --stages 16 --chunks 1 --microbatches 64 --pipeline zero-bubble"),
    ("30b, 8 x tensor 2, 2 chunks", "gpt2-30b", "cluster-a100",
     "-n 16 --tensor 2 --stages 8 --chunks 2 --microbatches 64 --pipeline interleaved"),
    ("175b, 16 x tensor 8, 1F1B", "gpt-175b", "cluster-a100-1k",
     "-n 128 --tensor 8 --stages 16 --chunks 1 --microbatches 64 --pipeline interleaved"),
    ("175b, 16 x tensor 8, zero-bubble", "gpt-175b", "cluster-a100-1k",
     "-n 128 --tensor 8 --stages 16 --chunks 1 --microbatches 64 --pipeline zero-bubble"),
    ("175b, 16 x tensor 8, 3 chunks", "gpt-175b", "cluster-a100-1k",
     "-n 128 --tensor 8 --stages 16 --chunks 3 --microbatches 64 --pipeline interleaved"),
]


def plan(binary, folder, model, cluster, options):
    """Step in microseconds, activations of each rank and what it keeps for ever in bytes, what the plan names;
    None: nothing fits."""
    command = [binary / "smp-partition", ROOT / f"examples/{model}.yaml", "--cluster", folder / f"{cluster}.yaml",
               "--device", "cuda", "--precision", "bf16", "--microbatch-size", "1", "--time-limit", "60", "--offload-states", "none",
               "-o", folder / "plan.yaml", "--report", folder / "plan.html", *options.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 3:
        return None
    if done.returncode:
        sys.exit(done.stderr)
    text = (folder / "plan.yaml").read_text()
    page = (folder / "plan.html").read_text()
    memory = json.loads(re.search(r'"memory":(\[\{"fixed".*?\])', page).group(1))
    return {"step": float(re.search(r"step_us: ([0-9.e+]+)", text).group(1)),
            "activations": [m["reserved"] - m["fixed"] for m in memory],
            "fixed": [m["fixed"] for m in memory],
            "recompute": sum("recompute: false" not in line for line in text.splitlines() if "{stage:" in line),
            "offload": len(re.findall(r"offload_bytes: [1-9]", text)),
            "horizon": (re.search(r"loading_horizon: (\d+)", text) or [0, "-"])[1]}


def fullest(p):
    return max(range(len(p["activations"])), key=lambda rank: p["activations"][rank])


def row(name, what, p, base):
    if p is None:
        print(f"| {name} | {what} | does not fit | | | | |")
        return
    gib = 2.0 ** 30
    rank = fullest(base)
    now, then = p["activations"][rank], base["activations"][rank]
    print(f"| {name} | {what} | {p['step'] / 1e6:.3f} | {100 * (p['step'] / base['step'] - 1):+.1f} % | "
          f"{now / gib:.1f} | {now / then:.2f} | "
          f"{p['offload']} ({p['horizon']}), {p['recompute']} |")


def main():
    binary = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/bin").resolve()
    print("| case | offload | step, s | | activations, GiB | of none | stages that offload (horizon), recompute |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for cluster in {case[2] for case in CASES}:
            text = (ROOT / f"examples/{cluster}.yaml").read_text()
            (folder / f"{cluster}.yaml").write_text(re.sub(r"  host:.*\n", HOST, text))
        for name, model, cluster, options in CASES:
            ask = lambda more: plan(binary, folder, model, cluster, f"{options} {more}")
            base = ask("--offload none --recompute none --memory 1TiB")
            row(name, "none", base, base)
            row("", "all", ask("--offload all --recompute none --memory 1TiB"), base)
            rank = fullest(base)
            limit = f"--memory {int(base['fixed'][rank] + 0.5 * base['activations'][rank])}B"
            row("", "half the memory: recompute", ask(f"--offload none {limit}"), base)
            row("", "half the memory: auto", ask(limit), base)


if __name__ == "__main__":
    main()

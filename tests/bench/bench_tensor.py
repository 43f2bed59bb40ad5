#!/usr/bin/env python3
"""Tensor parallelism of two processes beside a pipeline of two, two replicas and one process: SMP
and PyTorch's torch.distributed.tensor.parallel, pipelining and DistributedDataParallel.

    python3 tests/bench/bench_tensor.py BIN [--set NAME=VALUE ...] [--microbatch-size B]
        [--microbatches M] [--steps S] [--rounds R] [--only smp|torch] [--json FILE]

BIN: the folder of the programs. Needs torch, NumPy and PyYAML. The model is examples/gpt-small.yaml,
10.8 million parameters; --set changes a number under its `let:`. The same samples, micro-batches
and first weights on both sides, one thread a process, fp32, AdamW. The jobs of a round follow one
another, behind a profile that SMP's plans of that round are made with. A step is the median round's
median, a peak the largest of all ranks and rounds. Losses that disagree end it with 1.
"""
import argparse
import json
import pathlib
import sys
import tempfile

import torch
import yaml

sys.dont_write_bytecode = True
import bench_sharded  # noqa: E402
from bench_sharded import ROOT, TOLERANCE, WARM, WORLD, Job, disagreement, median_of, run  # noqa: E402

# A name; ranks, replicas, options of smp-partition.
OURS = {
    "SMP, one process": (1, 1, ["--stages", 1, "--chunks", 1]),
    "SMP, ddp 2": (WORLD, WORLD, ["--stages", 1, "--chunks", 1]),
    "SMP, pipeline 2": (WORLD, 1, ["--stages", WORLD, "--chunks", 1]),
    "SMP, tensor 2": (WORLD, 1, ["--stages", 1, "--chunks", 1, "--tensor", WORLD]),
}
# Its counterpart; KIND of tensor_torch.py, ranks.
PEERS = {
    "PyTorch, one process": ("SMP, one process", "one", 1),
    "PyTorch, DDP": ("SMP, ddp 2", "ddp", WORLD),
    "PyTorch, 1F1B, 2 stages": ("SMP, pipeline 2", "pipeline", WORLD),
    "PyTorch, tensor 2": ("SMP, tensor 2", "tensor", WORLD),
}


def profile(job):
    """Costs of ops, and of links between two ranks, measured now."""
    path = job.folder / "profile.yaml"
    environment = dict(bench_sharded.os.environ, OMPI_ALLOW_RUN_AS_ROOT="1",
                       OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1")
    run(["mpirun", "-n", WORLD, job.programs / "smp-profile", job.path, "--microbatch-size",
         job.batch, "--links", "-o", path], env=environment)
    return ["--profile", path]


def own(result):
    return (result["peak"] - result["before"]) / (1 << 20)


def print_table(results):
    one = next(iter(results.values()))["step_ms"]
    print("| | ms a step | over one process | predicted | over measured | MiB of its own "
          "| PyTorch over SMP |\n|---|---|---|---|---|---|---|")
    for title, result in results.items():
        step, predicted = result["step_ms"], result.get("predicted_ms")
        ours = results.get(PEERS[title][0]) if title in PEERS else None
        print(f"| {title} | {step:.0f} | {step / one:.2f} | "
              + (f"{predicted:.0f} | {predicted / step:.2f}" if predicted else "- | -")
              + f" | {own(result):.0f} | "
              + (f"{step / ours['step_ms']:.2f}, {own(result) / own(ours):.2f}" if ours else "-")
              + " |")


def parse():
    parser = argparse.ArgumentParser(description="Tensor parallelism of SMP beside PyTorch's.")
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--microbatch-size", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=8, help="per step, of all processes")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("smp", "torch"))
    parser.add_argument("--without", action="append", default=[], metavar="NAME",
                        help="leaves out a line of the table")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if options.microbatches % WORLD or options.steps <= WARM:
        parser.error(f"expected a multiple of {WORLD} micro-batches and over {WARM} steps")
    return options


def measure(options, text, folder):
    programs = options.programs.resolve()
    toy_text = yaml.safe_load((ROOT / "examples/linear.yaml").read_text())
    toy = Job(programs, f"{folder}/toy", toy_text, options.microbatch_size, 1, WARM + 1)
    job = Job(programs, f"{folder}/job", text, options.microbatch_size,
              options.microbatches // WORLD, options.steps)
    weights = job.write_weights()
    ours = {} if options.only == "torch" else OURS
    peers = {} if options.only == "smp" else PEERS
    rounds = {name: [] for name in [*ours, *peers] if name not in options.without}
    for _ in range(options.rounds):
        job.profile = profile(job) if ours else []
        for name in rounds:
            if name in ours:
                ranks, replicas, more = ours[name]
                before = toy.smp(["--stages", 1], ranks=ranks, replicas=ranks)["peak"]
                rounds[name].append(dict(job.smp(more, ranks, replicas), before=before))
            else:
                _, kind, ranks = peers[name]
                rounds[name].append(job.torch(kind, {}, "tensor_torch.py", ranks, whole=True))
    results = {name: median_of(made) for name, made in rounds.items()}
    for name, made in rounds.items():
        if "predicted_ms" in made[0]:
            results[name]["predicted_ms"] = bench_sharded.statistics.median(
                result["predicted_ms"] for result in made)
    return weights, results


def main():
    options = parse()
    text = yaml.safe_load((ROOT / "examples/gpt-small.yaml").read_text())
    for change in options.set:
        name, _, value = change.partition("=")
        if name not in text["let"] or not value.isdigit():
            raise SystemExit(f"bench_tensor.py: --set {change}: expected NAME=NUMBER, NAME one of "
                             f"{', '.join(text['let'])}")
        text["let"][name] = int(value)
    with tempfile.TemporaryDirectory() as folder:
        weights, results = measure(options, text, folder)
    off = disagreement(results)
    print(f"{text['name']}, {weights} weights of {weights * 4 / (1 << 20):.1f} MiB, "
          f"{options.microbatches} micro-batches of {options.microbatch_size}; "
          f"PyTorch {torch.__version__}\n")
    print_table(results)
    print(f"\nlosses of {options.steps} steps: at most {max(off.values()):.1e} apart, relative")
    if options.json:
        options.json.write_text(json.dumps({"options": vars(options), "torch": torch.__version__,
                                            "weights": weights, "results": results,
                                            "disagreement": off}, default=str, indent=1) + "\n")
    for name, value in off.items():
        if not value <= TOLERANCE:  # also what is not a number
            raise SystemExit(f"bench_tensor.py: {name}: losses {value:.1e} away from the first's")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Data-parallel training with two processes, states on both or shared out: SMP against PyTorch's
DistributedDataParallel, ZeroRedundancyOptimizer (ZeRO-1) and fully_shard (FSDP2).

    python3 tests/bench/bench_sharded.py BIN [--model FILE] [--set NAME=VALUE ...]
        [--microbatch-size B] [--microbatches M] [--steps S] [--rounds R] [--json FILE]

BIN: the folder of the programs. Needs torch, NumPy and PyYAML. --set changes a number under `let:`
of the model, such as --set layers=12 --set d=768. The same samples, micro-batches and first weights
on both sides, one thread a process, fp32, AdamW. The jobs of a round follow one another. A step is
the median round's median, a peak the largest of all ranks and rounds. Losses that disagree end it
with 1.

Memory is the most that the system says a process held. What it held without a model (libraries and
the interpreter; a toy was trained) is told apart: of PyTorch in the process itself, where setting
up the model does not count; of SMP by a job of its own, and all that smp-run does counts.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import torch
import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests/data"))
sys.dont_write_bytecode = True
import make_torch_models  # noqa: E402
import model_inputs  # noqa: E402
from torch_model import Model  # noqa: E402

WORLD, WARM, LR = 2, 2, 1e-3
# What SMP shares out: a name, and its options.
OURS = {"SMP, ddp 2": []} | {f"SMP, {what} in shards": ["--shard", "2", "--shard-what", what]
                             for what in ("optimizer", "gradients", "weights")}
OURS["SMP, weights in shards, 8 units"] = [*OURS["SMP, weights in shards"], "--chunks", "8",
                                           "--pipeline", "breadth-first"]
# PyTorch's sides, and how malloc is set. By itself glibc keeps what FSDP2 lets go, which then takes
# more memory than DDP; told to map large blocks it gives them back, and page faults cost time.
RETURNS = {"MALLOC_MMAP_THRESHOLD_": "1048576"}
PEERS = {"PyTorch DDP": ("ddp", {}), "PyTorch ZeRO-1": ("zero1", {}),
         "PyTorch FSDP2, weights gathered once a step": ("fsdp2-gradients", {}),
         "the same, malloc gives back": ("fsdp2-gradients", RETURNS),
         "PyTorch FSDP2": ("fsdp2-weights", {}),
         "FSDP2, malloc gives back": ("fsdp2-weights", RETURNS)}
# Rounding only: the sides add in different orders. beta2 of 0.951 instead of 0.95 makes 6e-7.
TOLERANCE = 5e-7
# What a rank of mpirun needed at most, written by a parent that is small.
PEAK = """
import os, sys
child = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
status, usage = os.wait4(child, 0)[1:]
with open(sys.argv[1] + os.environ["OMPI_COMM_WORLD_RANK"], "w") as file:
    file.write(str(1024 * usage.ru_maxrss))
sys.exit(os.waitstatus_to_exitcode(status))
"""


def run(words, **more):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True, **more)
    if done.returncode:
        raise SystemExit(f"bench_sharded.py: {words[0]} ended with {done.returncode}")
    return done.stdout


class Job:
    """A model file with arrays for its inputs, in a folder."""

    def __init__(self, programs, folder, text, batch, microbatches, steps):
        self.programs, self.folder = programs, pathlib.Path(folder)
        self.batch, self.microbatches, self.steps = batch, microbatches, steps
        self.profile = []  # options of smp-partition
        self.folder.mkdir()
        self.path = self.folder / "model.yaml"
        self.path.write_text(yaml.safe_dump(text, sort_keys=False))
        self.model = Model(self.path)
        samples = WORLD * batch * microbatches * steps
        for line in make_torch_models.input_kinds(self.model):
            # "class" leaves out one of eight targets: then micro-batches would weigh unequally
            name, kind, shape = model_inputs.parse(line.replace(":class-", ":index-"))
            model_inputs.write_npy(self.folder / f"{name}.npy",
                                   model_inputs.values(name, kind, shape, samples),
                                   [samples] + shape)
        self.data = [word for name in self.model.inputs
                     for word in ("--data", f"{name}={self.folder}/{name}.npy")]

    def write_weights(self):
        make_torch_models.BIN = self.programs
        first = make_torch_models.first_weights(self.path, self.folder, self.batch,
                                                WORLD * self.microbatches)
        self.model.load(first)
        torch.save({name: w.detach() for name, w in self.model.weight.items()},
                   self.folder / "weights.pt")
        return sum(w.numel() for w in self.model.weight.values())

    def smp(self, options, ranks=WORLD, replicas=WORLD):
        plan = self.folder / "plan.yaml"
        run([self.programs / "smp-partition", self.path, "-n", ranks, "--ddp", replicas,
             "--recompute", "none", "--microbatch-size", self.batch, "--microbatches",
             WORLD * self.microbatches // replicas, *self.profile, *options, "-o", plan])
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1",
                           OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1")
        out = run(["mpirun", "-n", ranks, sys.executable, "-S", "-E", "-c", PEAK,
                   self.folder / "peak-", self.programs / "smp-run", plan, *self.data,
                   "--no-shuffle", "--steps", self.steps, "--lr", LR, "--json"], env=environment)
        steps = [line for line in map(json.loads, out.splitlines()) if "step_us" in line]
        return {"step_ms": statistics.median(s["step_us"] / 1e3 for s in steps[WARM:]),
                "predicted_ms": steps[0]["predicted_us"] / 1e3,
                "losses": [s["loss"] for s in steps],
                "peak": max(int((self.folder / f"peak-{r}").read_text()) for r in range(ranks))}

    def torch(self, kind, malloc, program="sharded_torch.py", ranks=WORLD, whole=False):
        """`whole`: the program wants the micro-batches of the step, not of a process."""
        (self.folder / f"{kind}.store").unlink(missing_ok=True)
        environment = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", **malloc)
        ranks = [subprocess.Popen([str(word) for word in (
            sys.executable, HERE / program, kind, rank, ranks, self.folder, self.batch,
            self.microbatches * (WORLD if whole else 1), self.steps, LR)],
            stdout=subprocess.PIPE, text=True, env=environment) for rank in range(ranks)]
        try:
            out = [rank.communicate()[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        if any(rank.returncode for rank in ranks):
            raise SystemExit(f"{program}: PyTorch's {kind} failed")
        made = [json.loads(line) for line in out]
        return {"step_ms": 1e3 * statistics.median(made[0]["seconds"][WARM:]),
                "losses": made[0]["losses"], "peak": max(rank["peak"] for rank in made),
                "before": max(rank["before"] for rank in made)}


def median_of(rounds):
    return {"step_ms": statistics.median(r["step_ms"] for r in rounds),
            "peak": max(r["peak"] for r in rounds), "before": max(r["before"] for r in rounds),
            "steps_ms": [r["step_ms"] for r in rounds], "losses": rounds[0]["losses"]}


def disagreement(results):
    """The largest relative difference of a loss from those of SMP, ddp 2."""
    right = next(iter(results.values()))["losses"]
    return {name: max(abs(a - b) / abs(b) for a, b in zip(result["losses"], right, strict=True))
            for name, result in results.items()}


def print_table(results):
    plain, mib = next(iter(results.values())), 1 << 20
    print("| | ms a step | over SMP's ddp 2 | peak MiB | without a model | for the model "
          "| over SMP's ddp 2 |\n|---|---|---|---|---|---|---|")
    for title, result in results.items():
        own = (result["peak"] - result["before"]) / mib
        unit = (plain["peak"] - plain["before"]) / mib
        print(f"| {title} | {result['step_ms']:.0f} | {result['step_ms'] / plain['step_ms']:.2f} "
              f"| {result['peak'] / mib:.0f} | {result['before'] / mib:.0f} | {own:.0f} "
              f"| {own / unit:.2f} |")


def parse():
    parser = argparse.ArgumentParser(description="SMP beside PyTorch, two replicas.")
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "examples/gpt-small.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--microbatch-size", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=2, help="per process and step")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args()


def main():
    options = parse()
    programs = options.programs.resolve()
    text = yaml.safe_load(options.model.read_text())
    for change in options.set:
        name, _, value = change.partition("=")
        if name not in text.get("let", {}) or not value.isdigit():
            raise SystemExit(f"bench_sharded.py: --set {change}: expected NAME=NUMBER, NAME one of "
                             f"{', '.join(text.get('let', {}))}")
        text["let"][name] = int(value)
    help_text = run([programs / "smp-partition", "--help"])
    ours = {name: more for name, more in OURS.items() if not more or "--shard-what" in help_text}
    with tempfile.TemporaryDirectory() as folder:
        toy_text = yaml.safe_load((ROOT / "examples/linear.yaml").read_text())
        toy = Job(programs, f"{folder}/toy", toy_text, options.microbatch_size, 2, WARM + 1)
        job = Job(programs, f"{folder}/job", text, options.microbatch_size, options.microbatches,
                  options.steps)
        weights = job.write_weights()
        rounds = {name: [] for name in [*ours, *PEERS]}
        for _ in range(options.rounds):
            for name, more in ours.items():
                rounds[name].append(dict(job.smp(more), before=toy.smp([])["peak"]))
            for name, (kind, malloc) in PEERS.items():
                rounds[name].append(job.torch(kind, malloc))
    results = {name: median_of(made) for name, made in rounds.items()}
    off = disagreement(results)
    print(f"{text['name']}, {weights} weights of {weights * 4 / (1 << 20):.1f} MiB, {WORLD} "
          f"processes, each {options.microbatches} micro-batches of {options.microbatch_size}; "
          f"PyTorch {torch.__version__}\n")
    print_table(results)
    print(f"\nlosses of {options.steps} steps: at most {max(off.values()):.1e} apart, relative")
    if options.json:
        options.json.write_text(json.dumps({"options": vars(options), "torch": torch.__version__,
                                            "weights": weights, "results": results,
                                            "disagreement": off}, default=str, indent=1) + "\n")
    for name, value in off.items():
        if not value <= TOLERANCE:  # also what is not a number
            raise SystemExit(f"bench_sharded.py: {name}: losses {value:.1e} away from SMP's")


if __name__ == "__main__":
    main()

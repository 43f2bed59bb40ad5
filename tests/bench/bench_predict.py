#!/usr/bin/env python3
"""Predicted against measured steps of whole models on two cores, each case a row of a table.

    python3 tests/bench/bench_predict.py BIN [--steps N] [--only PATTERN] [--kinds KIND,...] [--own]

BIN: the folder of the programs. Needs PyYAML. Ten models by five kinds: one rank, two stages under 1F1B,
zero-bubble and with two chunks each, two replicas; by name also tensor2, tensor2x2 (two stages of two) and
tensor4. Predicted with a profile of both ranks taken before and (--own) with what operators cost in the run
itself (--profile-out): what is missing then is nothing of operators, and the machine was no faster meanwhile.
Measured: the median of N steps (default 12) after two to warm up. Nothing else may run on the machine.
"""
import argparse
import fnmatch
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/data"))
sys.dont_write_bytecode = True
import model_inputs  # noqa: E402

# Model, samples of a micro-batch, micro-batches of a rank.
MODELS = """
examples/gpt-tiny.yaml:16:2 examples/gpt-small.yaml:4:4 examples/llama-tiny.yaml:16:2
examples/bert-small.yaml:16:2 examples/t5-small.yaml:16:2 examples/vit-digits.yaml:32:2
examples/vit-class.yaml:32:2 examples/resnet-small.yaml:32:2 examples/resnet-18.yaml:8:2
tests/data/models/unet.yaml:16:2
""".split()
STAGES = ["--stages", "2", "--ddp", "1", "--tensor", "1"]
KINDS = {  # ranks, micro-batches by those of one rank, options
    "one": (1, 1, []),
    "1f1b": (2, 2, [*STAGES, "--pipeline", "1f1b", "--chunks", "1"]),
    "zero-bubble": (2, 2, [*STAGES, "--pipeline", "zero-bubble", "--chunks", "1"]),
    "chunks": (2, 2, [*STAGES, "--pipeline", "interleaved", "--chunks", "2"]),
    "replicas": (2, 1, ["--stages", "1", "--ddp", "2", "--tensor", "1"]),
    "tensor2": (2, 1, ["--stages", "1", "--ddp", "1", "--tensor", "2"]),
    "tensor2x2": (4, 2, ["--stages", "2", "--ddp", "1", "--tensor", "2", "--pipeline", "1f1b", "--chunks", "1"]),
    "tensor4": (4, 1, ["--stages", "1", "--ddp", "1", "--tensor", "4"]),
}
USUAL = "one,1f1b,zero-bubble,chunks,replicas"


def launch(ranks, words):
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    run = subprocess.run(["mpirun", "--oversubscribe", "-n", str(ranks), *map(str, words)], capture_output=True,
                         text=True, env=environment)
    if run.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: {run.stderr[-800:]}")
    return run.stdout


def inputs_of(model):
    """Name, kind and shape of every input, by the ops outside of repeats that read it."""
    let = model.get("let", {})

    def number(text):
        return int(eval(str(text).replace("/", "//"), {"__builtins__": {}}, let))

    let = {name: value if isinstance(value, list) else number(value) for name, value in let.items()}
    for name, about in model["inputs"].items():
        kind = "index-2" if about["dtype"] == "int32" else "float"
        for op in model["ops"]:
            read = op.get("in", [])
            read = read if isinstance(read, list) else [read]
            if name in read and op.get("op") == "embedding":
                kind = f"index-{number(op['rows'])}"
            elif name in read and op.get("op") == "cross_entropy":
                kind = "class-2"
            elif name in read and op.get("op") == "bce_with_logits":
                kind = "share"
        if name == "mask" and about["dtype"] == "int32":
            kind = "mask"
        yield name, kind, [number(size) for size in about["shape"]]


def make_data(model, samples, folder):
    words = []
    for name, kind, shape in inputs_of(model):
        made = model_inputs.values(name, kind, shape, samples)
        model_inputs.write_npy(f"{folder}/{name}.npy", made, [samples] + shape)
        words += ["--data", f"{name}={folder}/{name}.npy"]
    return words


def plan_of(options, path, size, microbatches, ranks, more, profile, plan):
    """Makes the plan; its step in milliseconds."""
    run = subprocess.run([options.bin / "smp-partition", path, "-n", str(ranks), "--microbatch-size", str(size),
                          "--microbatches", str(microbatches), "--recompute", "none", "--profile", profile, *more,
                          "-o", plan], capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"{path.stem}: {run.stderr}")
    predicted = yaml.safe_load(pathlib.Path(plan).read_text())["predicted"]
    return (predicted["step_us"] + predicted.get("waits_us", 0)) / 1e3


def measure(options, ranks, plan, data, extra):
    out = launch(ranks, [options.bin / "smp-run", plan, *data, "--steps", options.steps + 2, "--lr", "1e-4",
                         "--json", *extra])
    rows = [json.loads(line) for line in out.splitlines() if line.startswith('{"step":')][2:]
    return statistics.median(row["step_us"] for row in rows) / 1e3


def report(name, ratios):
    near = sum(abs(ratio - 1) <= 0.05 for ratio in ratios)
    print(f"{name}: {near} of {len(ratios)} within 5 %, mean signed error "
          f"{100 * (statistics.mean(ratios) - 1):+.1f} %, mean error "
          f"{100 * statistics.mean(abs(ratio - 1) for ratio in ratios):.1f} %")


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("bin", type=lambda text: pathlib.Path(text).resolve())
    options.add_argument("--steps", type=int, default=12)
    options.add_argument("--only", default="*")
    options.add_argument("--kinds", default=USUAL)
    options.add_argument("--own", action="store_true")
    options = options.parse_args()
    print(f"| model | kind | ms | predicted / measured |{' by its own profile |' if options.own else ''}")
    print(f"|---|---|---|---|{'---|' if options.own else ''}")
    ratios, closed = [], []
    for entry in MODELS:
        path, size, microbatches = entry.split(":")
        path, size, microbatches = ROOT / path, int(size), int(microbatches)
        if not fnmatch.fnmatch(path.stem, options.only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            data = make_data(yaml.safe_load(path.read_text()), 4 * size * microbatches, folder)
            profile, own, plan = (f"{folder}/{name}.yaml" for name in ("profile", "own", "plan"))
            launch(2, [options.bin / "smp-profile", path, "--microbatch-size", size, "--links", "-o", profile])
            for kind in options.kinds.split(","):
                ranks, times, more = KINDS[kind]
                asked = (options, path, size, times * microbatches, ranks, more)
                predicted = plan_of(*asked, profile, plan)
                measured = measure(options, ranks, plan, data, ["--profile-out", own] if options.own else [])
                ratios.append(predicted / measured)
                row = f"| {path.stem} | {kind} | {measured:.1f} | {ratios[-1]:.3f} |"
                if options.own:
                    closed.append(plan_of(*asked, own, plan) / measured)
                    row += f" {closed[-1]:.3f} |"
                print(row, flush=True)
    print()
    report("profile", ratios)
    if closed:
        report("its own profile", closed)


if __name__ == "__main__":
    main()

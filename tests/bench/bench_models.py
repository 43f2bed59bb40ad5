#!/usr/bin/env python3
"""A training step of whole models: SMP against PyTorch, eager, op by op as tests/data/torch_model.py
runs them, and SMP in bf16 where the processor has it.

    python3 tests/bench/bench_models.py BIN [MODEL.yaml:SAMPLES:MICROBATCHES ...]

BIN: the folder of the programs. Needs torch and PyYAML. Rounds alternate; a figure is the median step
of the median round. One process and one thread against one thread; two processes, planned as -n 2
gives, against two threads.
"""
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/data"))
sys.dont_write_bytecode = True
import make_torch_models  # noqa: E402
import model_inputs  # noqa: E402
from torch_model import AdamW, Model  # noqa: E402

STEPS, ROUNDS = 10, 3
MODELS = """
examples/gpt-tiny.yaml:16:2 examples/gpt-small.yaml:4:4 examples/llama-tiny.yaml:16:2
examples/bert-small.yaml:16:2 examples/t5-small.yaml:16:2 examples/vit-digits.yaml:32:2
examples/vit-class.yaml:32:2 examples/resnet-small.yaml:32:2 examples/resnet-18.yaml:16:2
tests/data/models/unet.yaml:16:2
""".split()


def torch_step(model, data, batch, microbatches, threads):
    torch.set_num_threads(threads)
    optimizer, times = AdamW(model.trained(), 1e-4), []
    for _ in range(STEPS):
        begin = time.perf_counter()
        for m in range(microbatches):
            part = {name: x[m * batch:(m + 1) * batch] for name, x in data.items()}
            (model.run(part) / microbatches).backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times[2:])


def smp_step(programs, path, folder, model, batch, microbatches, ranks, precision):
    plan = f"{folder}/plan-{ranks}-{precision}.yaml"
    # of as many samples: two replicas would double them
    made = subprocess.run([programs / "smp-partition", path, "-n", str(ranks), "--ddp", "1",
                           "--precision", precision, "--microbatch-size", str(batch),
                           "--microbatches", str(microbatches), "-o", plan], capture_output=True)
    if made.returncode:
        return float("nan")
    data = [word for name in model.inputs for word in ("--data", f"{name}={folder}/{name}.npy")]
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       OMP_NUM_THREADS="1")
    run = subprocess.run(["mpirun", "-n", str(ranks), programs / "smp-run", plan, *data, "--steps",
                          str(STEPS), "--lr", "1e-4"], capture_output=True, env=environment,
                         text=True)
    found = re.search(r"median step ([0-9.]+) (us|ms|s)", run.stdout + run.stderr)
    return float(found[1]) * {"us": 1e-3, "ms": 1, "s": 1e3}[found[2]] if found else float("nan")


def main():
    programs = pathlib.Path(sys.argv[1]).resolve()
    make_torch_models.BIN = programs
    print("| model, micro-batches | one thread, ms (PyTorch) | as fast | two, ms (PyTorch) | as fast "
          "| bf16 beside fp32 |\n|---|---|---|---|---|---|")
    for line in sys.argv[2:] or MODELS:
        path, batch, microbatches = line.split(":")
        batch, microbatches = int(batch), int(microbatches)
        model, samples, data = Model(ROOT / path), batch * microbatches, {}
        with tempfile.TemporaryDirectory() as folder:
            for text in make_torch_models.input_kinds(model):
                name, kind, shape = model_inputs.parse(text)
                made = model_inputs.values(name, kind, shape, samples)
                model_inputs.write_npy(f"{folder}/{name}.npy", made, [samples] + shape)
                data[name] = torch.tensor(made).reshape([samples] + shape)
                data[name] = data[name].long() if made.typecode == "i" else data[name]
            model.load(make_torch_models.first_weights(ROOT / path, folder, batch, microbatches))
            rounds = []
            for _ in range(ROUNDS):
                def ours(ranks, precision):
                    return smp_step(programs, ROOT / path, folder, model, batch, microbatches, ranks,
                                    precision)
                rounds.append([torch_step(model, data, batch, microbatches, 1), ours(1, "fp32"),
                               torch_step(model, data, batch, microbatches, 2), ours(2, "fp32"),
                               ours(1, "bf16")])
        peer, one, peers, two, half = (statistics.median(column) for column in zip(*rounds))
        print(f"| {pathlib.Path(path).stem}, {microbatches} of {batch} | {one:.1f} ({peer:.1f}) "
              f"| {peer / one:.2f} | {two:.1f} ({peers:.1f}) | {peers / two:.2f} | {one / half:.2f} |",
              flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes torch_models.txt: the losses of ten steps of whole models as PyTorch computes them, from
the weights that smp-run begins with, on arrays of model_inputs.py; fp32, one thread.

Made with PyTorch 2.15 and PyYAML 6; tests/mpi/test_torch_models.sh reads the result. SMP_BIN_DIR
names the folder of the programs.

    python3 tests/data/make_torch_models.py [MODEL.yaml[+FREEZE,...]:SAMPLES:MICROBATCHES:LR ...] > FILE
"""
import os
import pathlib
import subprocess
import sys
import tempfile

import torch

import model_inputs
from torch_model import AdamW, Model

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = pathlib.Path(os.environ.get("SMP_BIN_DIR", ROOT / "build/bin"))
STEPS = 10
# Samples of a micro-batch, micro-batches, learning rate; behind the model patterns of the weights
# that are frozen, if any. AdamW divides by gradients' sizes, so where
# some are nearly 0 rounding decides their signs: with batchnorm, at 1e-3, PyTorch in float is 4e-3
# from itself in double.
MODELS = """
examples/mlp.yaml:8:2:1e-3
examples/gpt-tiny.yaml:2:2:1e-3
examples/llama-tiny.yaml:2:2:1e-3
examples/bert-small.yaml:2:2:1e-3
examples/t5-small.yaml:2:2:1e-4
examples/vit-digits.yaml:4:2:1e-3
examples/vit-class.yaml:4:2:1e-3
examples/resnet-small.yaml:8:2:1e-5
tests/data/models/bottleneck.yaml:8:2:1e-5
tests/data/models/unet.yaml:2:2:1e-3
tests/data/models/variants.yaml:2:3:1e-3
examples/gpt-tiny.yaml+wte.*,wpe.*,h0.*,h1.*.weight:2:2:1e-3
examples/resnet-small.yaml+stem.*,s0.*,s1.*:8:2:1e-5
""".split()


def input_kinds(model):
    """NAME:KIND:SHAPE of every input, by who reads it."""
    for name, (dtype, shape) in model.inputs.items():
        kind = "float"
        for op in model.ops:
            if name not in op.inputs:
                continue
            if op.kind == "embedding":
                kind = f"index-{op.attr['rows']}"
            elif op.kind == "cross_entropy":
                kind = f"class-{model.classes[op.name]}"
            elif op.kind == "attention" and dtype == "int32":
                kind = "mask"
            elif op.kind == "bce_with_logits" and op.inputs[1] == name:
                kind = "share"
            break
        yield f"{name}:{kind}:{'x'.join(map(str, shape))}"


def first_weights(path, folder, batch, microbatches):
    """What smp-run begins with: a checkpoint behind a step that changes no weight."""
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    plan = f"{folder}/plan.yaml"
    subprocess.run([BIN / "smp-partition", path, "-n", "1", "--microbatch-size", str(batch),
                    "--microbatches", str(microbatches), "-o", plan], check=True,
                   stdout=subprocess.DEVNULL)
    data = [word for name in Model(path).inputs
            for word in ("--data", f"{name}={folder}/{name}.npy")]
    subprocess.run([BIN / "smp-run", plan, *data, "--steps", "1", "--lr", "0", "--checkpoint",
                    f"{folder}/first"], check=True, stdout=subprocess.DEVNULL, env=environment)
    return f"{folder}/first/checkpoint-0000000001.smp"


def main():
    torch.set_num_threads(1)
    print(f"# PyTorch {torch.__version__}, written by make_torch_models.py")
    for line in sys.argv[1:] or MODELS:
        entry, batch, microbatches, lr = line.split(":")
        path, _, frozen = entry.partition("+")
        batch, microbatches = int(batch), int(microbatches)
        model = Model(ROOT / path)
        kinds = list(input_kinds(model))
        samples = STEPS * batch * microbatches
        data = {}
        with tempfile.TemporaryDirectory() as folder:
            for text in kinds:
                name, kind, shape = model_inputs.parse(text)
                made = model_inputs.values(name, kind, shape, samples)
                model_inputs.write_npy(f"{folder}/{name}.npy", made, [samples] + shape)
                data[name] = torch.tensor(made).reshape([samples] + shape)
                if made.typecode == "i":
                    data[name] = data[name].long()
            model.load(first_weights(ROOT / path, folder, batch, microbatches))
        model.freeze(frozen.split(",") if frozen else [])
        optimizer = AdamW(model.trained(), float(lr))
        losses = []
        for step in range(STEPS):
            parts = [{name: x[begin: begin + batch] for name, x in data.items()}
                     for begin in range(step * batch * microbatches,
                                        (step + 1) * batch * microbatches, batch)]
            rows = [model.rows(part) for part in parts]
            total = 0.0
            for part, counted in zip(parts, rows):
                loss = model.run(part) * (counted / sum(rows))
                loss.backward()
                total += float(loss.detach().double())
            optimizer.step()
            losses.append(total)
        print(entry, batch, microbatches, lr, ",".join(kinds), *(f"{loss:.9g}" for loss in losses),
              flush=True)


if __name__ == "__main__":
    main()

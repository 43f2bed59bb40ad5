"""The loss scale of smp-run beside PyTorch's: a linear layer trained on samples of which some overflow has, step by step, the scale
of torch.amp.GradScaler with --delayed-shift 1, skips what it skips, and ends with its weights; with larger ones it has the scale of
Megatron-Core's DynamicGradScaler, whose hysteresis it is, if that is installed."""

import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest.mock

import numpy
import torch

MEGATRON = os.path.join(os.environ.get("SMP_TORCH_PEERS", ""), "megatron", "core", "optimizer", "grad_scaler.py")
PROGRAMS = os.path.dirname(os.environ["SMP_PARTITION"])
MODEL = """smp: 1
name: line
inputs:
  x: {dtype: float32, shape: [4]}
  y: {dtype: float32, shape: [3]}
ops:
  - {op: linear, name: line, in: x, out: p, features: 3}
  - {op: mse, name: loss, in: [p, y], out: loss}
loss: loss
"""
STEPS, BATCH, INIT, LR = 100, 4, 1024.0, 0.05


def run(folder, *command):
    result = subprocess.run([os.path.join(PROGRAMS, command[0]), *command[1:]], cwd=folder, capture_output=True, text=True,
                            check=False)
    if result.returncode != 0:
        sys.exit(f"{command}: {result.returncode}\n{result.stderr}")
    return result.stdout


def train(folder, window, shift, *options):
    """(scale, skipped) of each step"""
    out = run(folder, "smp-run", "plan.yaml", "--data", "x=x.npy", "--data", "y=y.npy", "--no-shuffle", "--steps", str(STEPS),
              "--optimizer", "sgd", "--momentum", "0", "--weight-decay", "0", "--clip", "0", "--lr", str(LR), "--log-every", "1",
              "--json", "--loss-scale", "auto", "--loss-scale-init", str(INIT), "--scale-window", str(window), "--delayed-shift",
              str(shift), "--min-scale", "1e-6", *options)
    steps = [json.loads(line) for line in out.splitlines() if line.startswith('{"step"')]
    assert len(steps) == STEPS
    return [(s["loss_scale"], s["grad_norm"] is None) for s in steps]


def weights(path):
    """Of a file of weights, by name, without the safetensors package."""
    with open(path, "rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    return {name: torch.from_numpy(numpy.frombuffer(data[slice(*t["data_offsets"])], numpy.float32).reshape(t["shape"]).copy())
            for name, t in head.items() if name != "__metadata__"}


def train_torch(folder, x, y, window):
    first = weights(f"{folder}/first.safetensors")
    line = torch.nn.Linear(4, 3)
    with torch.no_grad():
        line.weight.copy_(first["line.weight"])
        line.bias.copy_(first["line.bias"])
    optimizer = torch.optim.SGD(line.parameters(), lr=LR)
    scaler = torch.amp.GradScaler("cpu", init_scale=INIT, growth_factor=2.0, backoff_factor=0.5, growth_interval=window)
    steps = []
    for step in range(STEPS):
        part = slice(step * BATCH, (step + 1) * BATCH)
        scale, before = scaler.get_scale(), line.weight.detach().clone()
        optimizer.zero_grad()
        scaler.scale(torch.nn.functional.mse_loss(line(x[part]), y[part])).backward()
        scaler.step(optimizer)
        scaler.update()
        steps.append((scale, torch.equal(before, line.weight)))
    return steps, line


def megatron_scales(overflows, window, shift):
    spec = importlib.util.spec_from_file_location("grad_scaler", MEGATRON)
    grad_scaler = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(grad_scaler)
    make = torch.tensor
    with unittest.mock.patch("torch.tensor", lambda *a, device=None, **k: make(*a, **k)):  # it asks for a GPU
        scaler = grad_scaler.DynamicGradScaler(initial_scale=INIT, min_scale=1e-6, growth_factor=2.0, backoff_factor=0.5,
                                               growth_interval=window, hysteresis=shift)
    scales = []
    for overflowed in overflows:
        scales.append(scaler.scale.item())
        scaler.update(overflowed)
    return scales


def main():
    compared, has_megatron = 0, os.path.exists(MEGATRON)
    if os.environ.get("SMP_TEST_LONG") and not has_megatron:
        sys.exit(f"no {MEGATRON} (tests/torch/peers-long.txt)")
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/model.yaml", "w", encoding="utf-8") as file:
            file.write(MODEL)
        generator = torch.Generator().manual_seed(3)
        x, y = torch.randn(STEPS * BATCH, 4, generator=generator), torch.randn(STEPS * BATCH, 3, generator=generator)
        bad = random.Random(5).sample(range(STEPS), STEPS // 6)
        for step in bad:
            x[step * BATCH + step % BATCH, step % 4] = 1e30  # its square is no float
        numpy.save(f"{folder}/x.npy", x.numpy())
        numpy.save(f"{folder}/y.npy", y.numpy())
        run(folder, "smp-partition", "model.yaml", "-n", "1", "--microbatches", "2", "--microbatch-size", str(BATCH // 2), "-o",
            "plan.yaml")
        run(folder, "smp-run", "plan.yaml", "--steps", "0", "--export-weights", "first.safetensors")
        for window in (1, 2, 3, 5):
            ours = train(folder, window, 1, "--export-weights", "last.safetensors")
            theirs, line = train_torch(folder, x, y, window)
            assert ours == theirs, next(pair for pair in zip(ours, theirs) if pair[0] != pair[1])
            assert [i for i, (_, skipped) in enumerate(ours) if skipped] == sorted(bad)
            last = weights(f"{folder}/last.safetensors")
            error = max((last["line.weight"] - line.weight).abs().max().item(), (last["line.bias"] - line.bias).abs().max().item())
            assert error < 1e-5, error
            scales = sorted({scale for scale, _ in ours})
            print(f"window {window}: GradScaler's {len(scales)} scales from {scales[0]} to {scales[-1]}; weights differ by {error:.2g}")
            for shift in (1, 2, 3) if has_megatron else ():
                ours = train(folder, window, shift)
                scales = megatron_scales([skipped for _, skipped in ours], window, shift)
                assert scales == [scale for scale, _ in ours], (window, shift)
                compared += 1
    left = "no Megatron-Core: left to the long run (SMP_TEST_LONG)"
    print(f"Megatron-Core's scales in {compared} runs" if compared else left)


main()

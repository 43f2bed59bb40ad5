#!/usr/bin/env python3
"""Writes torch_updates.txt: the losses of ten steps of gpt-tiny.yaml under options of smp-run, with
PyTorch's optimizers (for those that it lacks, their papers' formulas on its tensors), its
parameter groups and its lr_scheduler, from the weights that smp-run begins with; fp32, one thread.

Made with PyTorch 2.15 and PyYAML 6; tests/mpi/test_torch_updates.sh reads the result. SMP_BIN_DIR
names the folder of the programs.

    python3 tests/data/make_torch_updates.py > tests/data/torch_updates.txt
"""
import argparse
import fnmatch
import math
import shlex
import tempfile

import torch
from torch.optim import lr_scheduler

import model_inputs
from make_torch_models import ROOT, STEPS, first_weights, input_kinds
from torch_model import Model

MODEL, BATCH, MICROBATCHES = "examples/gpt-tiny.yaml", 2, 2
CASES = """
--lr 0.001 --lr-schedule constant --warmup 3
--lr 0.001 --lr-schedule linear --warmup 3 --decay-steps 9 --min-lr 0.0001
--lr 0.001 --lr-schedule cosine --warmup 3 --decay-steps 9 --min-lr 0.0001
--lr 0.001 --lr-schedule inverse-sqrt --warmup 3
--lr 0.001 --weights-like 'wte.*:weight-decay=0,lr=0.1' --weights-like 'h?.ln*:weight-decay=0.05,beta1=0.5' --weights-like 'h1.*:beta2=0.99,epsilon=1e-6'
--lr 0.1 --optimizer sgd --nesterov --weight-decay 0
--lr 0.1 --optimizer sgd --nesterov --weight-decay 0 --lr-schedule linear --decay-steps 12 --weights-like 'h*:momentum=0.5,lr=2'
--lr 0.0003 --optimizer lion --beta2 0.99 --weight-decay 0.3
--lr 0.01 --optimizer lamb --weights-like '*.bias:lr=0.1'
--lr 1 --optimizer lars --trust-coefficient 0.02 --weights-like '*.bias:lr=0.01'
""".strip().splitlines()


def parse(text):
    parser = argparse.ArgumentParser()
    for name, default in (("lr", 1e-3), ("min-lr", 0.0), ("weight-decay", 0.1), ("momentum", 0.9),
                          ("beta1", 0.9), ("beta2", 0.95), ("epsilon", 1e-8),
                          ("trust-coefficient", 1e-3)):
        parser.add_argument(f"--{name}", type=float, default=default)
    for name in ("warmup", "decay-steps"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--lr-schedule", default="constant")
    parser.add_argument("--nesterov", action="store_true")
    parser.add_argument("--weights-like", action="append", default=[])
    return parser.parse_args(shlex.split(text))


def settings_of(o, name, weight):
    """Of one weight."""
    made = {"lr": 1.0, "weight-decay": o.weight_decay if weight.dim() > 1 else 0.0,
            "momentum": o.momentum, "beta1": o.beta1, "beta2": o.beta2, "epsilon": o.epsilon}
    for entry in o.weights_like:
        pattern, _, values = entry.rpartition(":")
        if fnmatch.fnmatchcase(name, pattern):
            made.update((key, float(value)) for key, _, value in
                        (pair.partition("=") for pair in values.split(",")))
    return made


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, program 1."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (w,), (b1, b2) = group["params"], group["betas"]
            m = self.state[w].setdefault("m", torch.zeros_like(w))
            direction = torch.sign(b1 * m + (1 - b1) * w.grad) + group["weight_decay"] * w
            w -= group["lr"] * direction
            m.mul_(b2).add_((1 - b2) * w.grad)


class Lamb(torch.optim.Optimizer):
    """You et al. 2020, algorithm 2; the ratio is 1 for vectors."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (w,), (b1, b2) = group["params"], group["betas"]
            state = self.state[w]
            t = state["t"] = state.get("t", 0) + 1
            m = state.setdefault("m", torch.zeros_like(w)).mul_(b1).add_((1 - b1) * w.grad)
            v = state.setdefault("v", torch.zeros_like(w)).mul_(b2).add_((1 - b2) * w.grad ** 2)
            r = (m / (1 - b1 ** t)) / ((v / (1 - b2 ** t)).sqrt() + group["eps"])
            r += group["weight_decay"] * w
            ratio = w.double().norm() / r.double().norm() if w.dim() > 1 else 1.0
            w -= group["lr"] * float(ratio) * r


class Lars(torch.optim.Optimizer):
    """You et al. 2017, algorithm 1; the local rate is 1 for vectors."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (w,), decay = group["params"], group["weight_decay"]
            b = self.state[w].setdefault("b", torch.zeros_like(w))
            size, slope = float(w.double().norm()), float(w.grad.double().norm())
            local = group["eta"] * size / (slope + decay * size) if w.dim() > 1 else 1.0
            b.mul_(group["momentum"]).add_(group["lr"] * local * (w.grad + decay * w))
            w -= b


def make_optimizer(o, model):
    groups = []
    for name, weight in model.weight.items():
        s = settings_of(o, name, weight)
        group = {"params": [weight], "lr": o.lr * s["lr"], "weight_decay": s["weight-decay"]}
        if o.optimizer in ("sgd", "lars"):
            group["momentum"] = s["momentum"]
        else:
            group["betas"] = (s["beta1"], s["beta2"])
        if o.optimizer in ("adamw", "lamb"):
            group["eps"] = s["epsilon"]
        groups.append(group)
    if o.optimizer == "adamw":
        return torch.optim.AdamW(groups)
    if o.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=o.momentum, nesterov=o.nesterov)
    if o.optimizer == "lars":
        return Lars(groups, {"eta": o.trust_coefficient})
    return (Lion if o.optimizer == "lion" else Lamb)(groups, {})


def make_schedule(o, optimizer):
    """Epoch 0 is step 1."""
    first = max(o.warmup, 1)
    left = o.decay_steps - o.warmup
    behind = {
        "constant": lambda: lr_scheduler.ConstantLR(optimizer, 1.0),
        "linear": lambda: lr_scheduler.LinearLR(optimizer, 1.0, o.min_lr / o.lr, left),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, left, o.min_lr),
        "inverse-sqrt": lambda: lr_scheduler.LambdaLR(
            optimizer, lambda epoch: math.sqrt(first / (first + epoch)))}
    if o.warmup == 0:
        made = behind[o.lr_schedule]()
        if o.decay_steps > 0:
            made.step()  # step 1 has a part of the decay behind it
        return made
    warm = lr_scheduler.LinearLR(optimizer, 1 / o.warmup, 1.0, o.warmup - 1)
    return lr_scheduler.SequentialLR(optimizer, [warm, behind[o.lr_schedule]()], [o.warmup - 1])


def train(o, model, data):
    optimizer = make_optimizer(o, model)
    schedule = make_schedule(o, optimizer)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        parts = [{name: x[begin: begin + BATCH] for name, x in data.items()}
                 for begin in range(step * BATCH * MICROBATCHES, (step + 1) * BATCH * MICROBATCHES,
                                    BATCH)]
        rows = [model.rows(part) for part in parts]
        total = 0.0
        for part, counted in zip(parts, rows):
            loss = model.run(part) * (counted / sum(rows))
            loss.backward()
            total += float(loss.detach().double())
        squares = sum(float(w.grad.double().square().sum()) for w in model.trained())
        for w in model.trained():
            w.grad.mul_(min(1.0, 1.0 / math.sqrt(squares)))
        optimizer.step()
        schedule.step()
        yield total


def main():
    torch.set_num_threads(1)
    model, samples = Model(ROOT / MODEL), STEPS * BATCH * MICROBATCHES
    kinds, data = list(input_kinds(model)), {}
    with tempfile.TemporaryDirectory() as folder:
        for text in kinds:
            name, kind, shape = model_inputs.parse(text)
            made = model_inputs.values(name, kind, shape, samples)
            model_inputs.write_npy(f"{folder}/{name}.npy", made, [samples] + shape)
            data[name] = torch.tensor(made).reshape([samples] + shape).long()
        path = first_weights(ROOT / MODEL, folder, BATCH, MICROBATCHES)
        print(f"# PyTorch {torch.__version__}, written by make_torch_updates.py")
        print(f"# {MODEL}, micro-batches of {BATCH}, {MICROBATCHES} of them: {' '.join(kinds)}")
        for case in CASES:
            model.load(path)
            losses = train(parse(case), model, data)
            print(case, "|", *(f"{loss:.9g}" for loss in losses), flush=True)


if __name__ == "__main__":
    main()

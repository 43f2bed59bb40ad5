"""`python -m smp_torch run` from an empty folder: it profiles, plans and trains a ResNet, a GPT and a T5 on two processes, the
loss falls, and what is wrong on the command line is said in one line. SMP_TEST_LONG=1 starts all of it as a user does;
otherwise that is one training, and the others are forks of this process, which measure and plan for a shorter time."""

import functools
import importlib
import json
import multiprocessing
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import unittest.mock
from types import SimpleNamespace

import torch

import smp_torch.links
import smp_torch.run
import smp_torch.train
from forks import Job, run_ranks

LONG = bool(os.environ.get("SMP_TEST_LONG"))
TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")

SMALL = """
import models

def resnet():
    return models.resnet(batch=4, size=16, width=8, blocks=(1, 1, 2, 1))

def gpt():
    return models.gpt(batch=2, length=16, vocabulary=64, d=32, layers=4, heads=4)

def t5():
    return models.t5(batch=2, length=12, vocabulary=64, d=32, layers=3, heads=4)

def nothing():
    return 1
"""


def run_command(folder, *arguments):
    return subprocess.run([sys.executable, "-m", "smp_torch", "run", *arguments], cwd=folder, capture_output=True, text=True,
                          timeout=300, check=False)


def run(folder, *arguments):
    """The same in forks. That of the command has gone backward when it wants ranks: they are forks of this process, too."""
    if LONG:
        return run_command(folder, *arguments)
    here, there = multiprocessing.Pipe()
    job = Job(1, command, here, there, folder, arguments)
    there.close()
    try:
        while job.running:
            job.look()
            if here.poll(0.02) and (request := receive(here)):
                here.send(run_ranks(request[0], rank, folder, *request[1:]))
        return SimpleNamespace(returncode=job.code, stdout=job.read("out"), stderr=job.read("err"))
    finally:
        job.close()


def receive(pipe):
    try:
        return pipe.recv()
    except EOFError:
        return None


def command(here, there, folder, arguments):
    here.close()

    def launch(processes, module, arguments, _threads=1, quiet=False):
        there.send((processes, module, arguments))
        code, output, errors = there.recv()
        if code != 0:
            raise RuntimeError(f"{module} failed in one of {processes} processes: {errors}")
        if not quiet:
            print(output, end="")

    os.chdir(folder)
    sys.argv = ["smp_torch", "run", *arguments]
    profile = functools.partial(smp_torch.profile, budget_s=0.5)
    with (unittest.mock.patch("smp_torch.run.launch", launch), unittest.mock.patch("smp_torch.links.launch", launch),
          unittest.mock.patch("smp_torch.run.profile", profile)):
        runpy.run_module("smp_torch", run_name="__main__")


def rank(folder, module, arguments):
    os.chdir(folder)
    sys.argv = [module, *arguments]
    importlib.import_module(module).main()


def check_trains(folder, name):
    result = run(folder, f"train.py:{name}", "--stages", "2", "--microbatches", "4", "--steps", "12", "--lr", "0.01", "--json",
                 f"{name}.json", "--folder", f"kept-{name}", "--tune", "1" if name == "gpt" else "0",
                 *(() if LONG else ("--time-limit", "0.5")))
    if result.returncode != 0 or "predicted" not in result.stdout:
        sys.exit(f"{name}: {result.returncode}\n{result.stdout}\n{result.stderr[-3000:]}")
    with open(f"{folder}/{name}.json", encoding="utf-8") as file:
        measured = json.load(file)
    first, last = measured["loss"][0], measured["loss"][-1]
    if not last < 0.9 * first or measured["predicted_us"] <= 0 or measured["step_us"] <= 0:
        sys.exit(f"{name}: {measured}")
    for kept in ("model.yaml", "model.profile.yaml", "plan.yaml", "plan.json"):
        if not os.path.exists(f"{folder}/kept-{name}/{kept}"):
            sys.exit(f"{name}: no {kept}")
    print(f"{name}: loss {first:.4g} to {last:.4g}, predicted / measured {measured['predicted_us'] / measured['step_us']:.2f}")


def check_refuses(folder, expected, *arguments):
    result = run(folder, *arguments)
    lines = [line for line in result.stderr.strip().splitlines() if "triton not found" not in line]  # which PyTorch says
    if result.returncode == 0 or len(lines) != 1 or expected not in lines[0]:
        sys.exit(f"{arguments}: got {result.returncode} {result.stderr[-2000:]}, expected {expected}")


def check_command(folder):
    """The plan that is there, from a shell."""
    result = run_command(folder, "train.py:gpt", "--plan", "kept-gpt/plan.json", "--steps", "4", "--lr", "0.01",
                         "--json", "again.json")
    if result.returncode != 0 or "predicted" not in result.stdout:
        sys.exit(f"the command: {result.returncode}\n{result.stdout}\n{result.stderr[-3000:]}")
    with open(f"{folder}/again.json", encoding="utf-8") as file:
        again = json.load(file)
    with open(f"{folder}/gpt.json", encoding="utf-8") as file:
        before = json.load(file)
    if not len(again["loss"]) == 6 or any(abs(a - b) > 1e-4 * b for a, b in zip(again["loss"], before["loss"])):
        sys.exit(f"the command: losses {again['loss']}, expected {before['loss']}")


def main():
    torch.export.export(torch.nn.Linear(1, 1), (torch.zeros(1, 1),), strict=False)  # what it imports then, forks need not
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(os.path.join(TREE, "examples", "pytorch", "models.py"), folder)
        with open(f"{folder}/train.py", "w", encoding="utf-8") as file:
            file.write(SMALL)
        # Their gradients are compared in test_build.py.
        for name in ("resnet", "gpt", "t5") if os.environ.get("SMP_TEST_LONG") else ("gpt",):
            check_trains(folder, name)
        check_command(folder)
        check_refuses(folder, "no such Python file", "absent.py:gpt")
        check_refuses(folder, "has no function 'bert'", "train.py:bert")
        check_refuses(folder, "expected (module, args, loss_fn, target)", "train.py:nothing")
        check_refuses(folder, "expected a divisor of the number of devices", "train.py:gpt", "--stages", "3")


main()

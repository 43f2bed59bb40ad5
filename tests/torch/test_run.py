"""`python -m smp_torch run` from an empty folder: it profiles, plans and trains a ResNet, a GPT and a T5 on two processes, the
loss falls, and what is wrong on the command line is said in one line."""

import json
import os
import shutil
import subprocess
import sys
import tempfile

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


def run(folder, *arguments):
    return subprocess.run([sys.executable, "-m", "smp_torch", "run", *arguments], cwd=folder, capture_output=True, text=True,
                          timeout=300, check=False)


def check_trains(folder, name):
    result = run(folder, f"train.py:{name}", "--stages", "2", "--microbatches", "4", "--steps", "12", "--lr", "0.01",
                 "--json", f"{name}.json", "--folder", f"kept-{name}", "--tune", "1" if name == "gpt" else "0")
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
    lines = result.stderr.strip().splitlines()
    if result.returncode == 0 or len(lines) != 1 or expected not in lines[0]:
        sys.exit(f"{arguments}: got {result.returncode} {result.stderr[-2000:]}, expected {expected}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(os.path.join(TREE, "examples", "pytorch", "models.py"), folder)
        with open(f"{folder}/train.py", "w", encoding="utf-8") as file:
            file.write(SMALL)
        for name in ("resnet", "gpt", "t5"):
            check_trains(folder, name)
        check_refuses(folder, "no such Python file", "absent.py:gpt")
        check_refuses(folder, "has no function 'bert'", "train.py:bert")
        check_refuses(folder, "expected (module, args, loss_fn, target)", "train.py:nothing")
        check_refuses(folder, "expected a divisor of the number of devices", "train.py:gpt", "--stages", "3")


main()

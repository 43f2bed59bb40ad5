"""Random networks under random plans: the same bits as of one process, and PyTorch's losses.

    test_promise.py [--seed S] [--cases N] [--case K] [--keep DIR]

Each case draws a network of some family (drawn_models.py) and a plan, and trains a few steps: on one process (with
tensor parallelism: one group), under the plan, often in two parts under two plans, the second resumed from the first's
checkpoint. Losses and weights are the same to the bit. Where PyTorch can judge (fp32, no dropout, AdamW or SGD), its
losses in double, from the same weights on the same data, agree to rounding.

20 cases, 2,000 with $SMP_TEST_LONG, $SMP_TEST_CASES where set. A case is a function of seed and number; one that
fails is repeated by its command, which is printed."""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

import torch

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(os.environ.get("SMP_TORCH_PEERS", ""))
sys.path.append(str(TREE / "tests/data"))

try:
    import yaml  # noqa: F401
except ImportError:
    print("skipped: no PyYAML in this Python")
    sys.exit(77)

import drawn_models  # noqa: E402
import make_torch_models  # noqa: E402
import model_inputs  # noqa: E402
from torch_model import AdamW, Model  # noqa: E402

PROGRAMS = pathlib.Path(os.environ["SMP_PARTITION"]).parent
MPIRUN = ["bash", str(TREE / "tests/mpi/mpirun.sh")]
STEPS = 4
# Of a loss, relative. Adam divides a gradient by itself: in one of 718 networks a weight whose gradient was rounding
# (3.6e-7 beside 1.8) moved by 0.11 of the rate otherwise, which alone made 1.2e-5 of it.
TOLERANCE = 3e-5
MOST_RANKS = 4

CLUSTER = """smp: 1
name: four
nodes: 1
devices_per_node: 4
device: {name: cpu, memory: 2GB, compute: {fp32: 100GFLOP/s, bf16: 200GFLOP/s, fp16: 100GFLOP/s}, bandwidth: 20GB/s}
links:
  intra_node: {bandwidth: 10GB/s, latency_us: 3}
  inter_node: {bandwidth: 10GB/s, latency_us: 3}
  host: {bandwidth: 8GB/s, latency_us: 5}
overlap: true
"""

# How a group of devices can compute an operator; small models are left whole by the planner.
SPLITS = {
    "linear": ("columns", "rows", "positions@0", "ring columns", "ring rows"),
    "attention": ("heads", "packed heads", "queries", "ring"),
    "embedding": ("rows", "features"), "conv2d": ("columns", "rows"), "cross_entropy": ("classes",),
    "expert_linear": ("experts", "columns", "rows"), "expert_dispatch": ("experts", "positions"),
    "layernorm": ("positions@0",), "rmsnorm": ("positions@0",), "dropout": ("elements@0",),
    "add": ("elements@0", "elements@1"), "gelu": ("elements@1",), "batchnorm": ("channels",),
    "groupnorm": ("channels",)}


def has_bf16():
    return bool({"avx512_bf16", "amx_bf16"} & set(pathlib.Path("/proc/cpuinfo").read_text().split()))


class Failure(Exception):
    """What does not hold."""


class Case:
    def __init__(self, seed, number, folder):
        self.folder, self.commands, self.refused = pathlib.Path(folder), [], 0
        self.rng = random.Random(f"{seed}:{number}")
        self.apart = 0.0  # from PyTorch

    def run(self, *command, ranks=0):
        """Exit code and output; a program that crashes is a failure."""
        start = [*MPIRUN, "-n", str(ranks)] if ranks > 1 else []
        command = [*start, PROGRAMS / command[0], *map(str, command[1:])]
        shown = shlex.join(map(str, command))
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode in (0, 1) or command[0] == MPIRUN[0]:
            self.commands.append(shown)
        if done.returncode not in (0, 2, 3):
            raise Failure(f"exit code {done.returncode}\n{done.stdout[-500:]}{done.stderr[-1500:]}")
        return done.returncode, done.stdout + done.stderr

    # What is trained, whatever the plan.

    def draw_job(self):
        rng = self.rng
        self.model = rng.choice(drawn_models.FAMILIES)(rng)
        (self.folder / "model.yaml").write_text(self.model.text())
        (self.folder / "cluster.yaml").write_text(CLUSTER)
        self.tensor = rng.choice((1, 1, 1, 2))
        self.blocks = rng.choice((1, 2, 2, 4, 4, 3, 6, 12))
        self.microbatches = self.blocks * rng.choice((1, 2) if self.blocks < 6 else (1,))  # of all replicas
        self.size = rng.choice((2, 3) if "batchnorm" in self.model.text() else (1, 2, 3))
        self.freeze = [p for p in self.model.freezable if rng.random() < 0.15]
        self.precision = rng.choice(("fp32",) * 6 + ("bf16" if has_bf16() else "fp16", "fp16"))
        self.states = rng.choice(("fp32",) * 7 + ("bf16",))
        self.optimizer = rng.choice(("adamw",) * 8 + ("sgd", "sgd", "lion", "lamb", "lars", "novograd"))
        self.judged = self.model.judge and self.precision == "fp32" and self.states == "fp32" and (
            self.optimizer in ("adamw", "sgd"))
        self.train = ["--optimizer", self.optimizer, "--lr", "0.001", "--json", "--log-every", "1", "--checksum",
                      "--seed", rng.randint(1, 99)]
        if self.judged or rng.random() < 0.3:
            self.train.append("--no-shuffle")
        if self.optimizer == "sgd" and rng.random() < 0.5:
            self.train.append("--nesterov")

    def write_data(self):
        judge = Model(self.folder / "model.yaml")
        samples = STEPS * self.microbatches * self.size
        self.data = {}
        for text in make_torch_models.input_kinds(judge):
            name, kind, shape = model_inputs.parse(text)
            whole = name in judge.unsplit
            sizes = shape if whole else [samples, *shape]
            made = model_inputs.values(name, kind, shape, 1 if whole else samples)
            model_inputs.write_npy(self.folder / f"{name}.npy", made, sizes)
            values = torch.tensor(made).reshape(sizes)
            values = values.long() if made.typecode == "i" else values.double()
            self.data[name] = values.expand(samples, *shape) if whole else values
            self.train += ["--data", f"{name}={name}.npy"]
        self.judge = judge

    # Plans.

    def draw_plan(self):
        """Options of smp-partition; not every combination is a plan."""
        rng, most = self.rng, MOST_RANKS // self.tensor
        ddp = rng.choice([d for d in (1, 1, 2, 3, 4) if d <= most and self.blocks % d == 0])
        stages = rng.randint(1, most // ddp)
        options = {"stages": stages, "ddp": ddp, "chunks": rng.choice((1, 1, 2)) if stages > 1 else 1,
                   "recompute": rng.choice(("auto", "none", "all")), "pipeline": "auto",
                   "placement": rng.choice(("cluster", "spread", "auto"))}
        if stages > 1:
            options["pipeline"] = rng.choice(self.rules)
        if rng.random() < 0.3:
            options["offload"] = "all"
        if rng.random() < 0.3:
            options["offload-states"] = "all"
        if ddp > 1 and rng.random() < 0.6:
            options["shard"] = rng.choice([s for s in (2, 3, 4) if ddp % s == 0])
            options["shard-what"] = rng.choice(("optimizer", "gradients", "weights"))
            if stages == 1 and rng.random() < 0.5:
                options.update(chunks=2, pipeline="breadth-first")
        if ddp > 1 and rng.random() < 0.5:
            options["bucket-bytes"] = rng.choice(("512B", "4KiB"))
        if ddp == 4 and self.blocks == 4 and rng.random() < 0.3:
            options["node-replicas"] = 2
        if self.tensor > 1:
            options["tensor-overlap"] = rng.choice(("auto", "no", "yes"))
        return options

    def write_plan(self, name, options):
        options = {"microbatches": self.microbatches // options["ddp"], "microbatch-size": self.size,
                   "gradient-blocks": self.blocks, "precision": self.precision, "state-precision": self.states,
                   "tensor": self.tensor, "effort": "full", **options}
        ranks = options["stages"] * options["ddp"] * self.tensor
        command = ["smp-partition", "model.yaml", "--cluster", "cluster.yaml", "-n", ranks, "-o", name]
        for key, value in options.items():
            command += [f"--{key}", value]
        for pattern in self.freeze:
            command += ["--freeze", pattern]
        for rule in self.split:
            command += ["--split", rule]
        code, text = self.run(*command)
        self.refused += code != 0
        self.why = text
        self.ranks = ranks
        if code == 0 and self.rng.random() < 0.3:
            self.edit_plan(name, ranks // self.tensor)
        return code == 0

    def edit_plan(self, name, devices):
        """By hand: devices in any order, single operators that are made again."""
        text = (self.folder / name).read_text()
        order = self.rng.sample(range(devices), devices)
        text = re.sub(r"placement: \w+", f"placement: {order}", text)
        pattern = self.rng.choice("aehlrt")
        text = text.replace("recompute: false", f'recompute: ["*{pattern}*"]')
        (self.folder / f"edited-{name}").write_text(re.sub(r"(?m)^predicted:.*\n", "", text))
        code, _ = self.run("smp-partition", "check", f"edited-{name}", "--time-limit", "0.05", "-o", f"checked-{name}")
        if code == 0:
            (self.folder / f"checked-{name}").replace(self.folder / name)
            self.commands.append(f"mv checked-{name} {name}")

    def draw_split(self):
        """Rules for operators by name; what cannot be is taken back."""
        self.split = ["*:whole"] if self.tensor > 1 else []
        for line in self.model.ops if self.tensor > 1 else ():
            kind, name = re.match(r'  - {op: (\w+), name: "?([^",]+)"?', line).groups()
            if kind in SPLITS and self.rng.random() < 0.5:
                self.split.append(f"{name}:{self.rng.choice(SPLITS[kind])}")

    def write_one(self):
        self.draw_split()
        while not self.write_plan("one.yaml", {"stages": 1, "ddp": 1, "recompute": "none"}):
            refused = re.search(r"op '([^']+)'", self.why)
            kept = [rule for rule in self.split if not (refused and rule.startswith(f"{refused[1]}:"))]
            if len(kept) == len(self.split):  # a tied weight's other use, for one
                kept = self.split[:-1]
            if not kept:
                raise Failure(f"one process: {self.why}")
            self.split = kept

    def write_plans(self):
        """one.yaml of one process or group, then first.yaml and second.yaml; their ranks."""
        self.write_one()
        ranks = [self.ranks]
        for name in ("first.yaml", "second.yaml"):
            while not self.write_plan(name, self.draw_plan()):
                if self.refused > 200:
                    raise Failure(f"no plan is taken: {self.why}")
            ranks.append(self.ranks)
        return ranks

    # What comes out.

    def result(self, plan, ranks, *more):
        """Losses as they are printed, and the hashes of the replicas."""
        code, text = self.run("smp-run", plan, *self.train, *more, ranks=ranks)
        losses = re.findall(r'"step": \d+, .*?"loss": ?([^,}]+)', text)
        weights = set(re.findall(r'"weights": "([0-9a-f]+)"', text))
        if code or not losses or not weights:
            raise Failure(f"exit code {code}: {text[-1500:]}")
        return losses, weights

    def check(self):
        self.draw_job()
        self.write_data()
        ranks = self.write_plans()
        losses, weights = self.result("one.yaml", ranks[0], "--steps", STEPS)
        if len(losses) != STEPS or len(weights) != 1:
            raise Failure(f"one process: losses {losses}, weights {weights}")
        cut = self.rng.choice((0, 1, 2, 3))
        made = []
        if cut:
            made, _ = self.result("first.yaml", ranks[1], "--steps", cut, "--checkpoint", "saved")
        more, last = self.result("second.yaml", ranks[2], "--steps", STEPS,
                                 *(("--checkpoint", "saved", "--resume") if cut else ()))
        made += more
        if made != losses or last != weights:
            raise Failure(f"losses {made}, weights {last}\nof one process: {losses}, {weights}")
        if self.judged:
            self.run("smp-run", "one.yaml", *self.train, "--steps", 0, "--export-weights", "begin.safetensors",
                     ranks=ranks[0])
            self.compare_with_torch([float(loss) for loss in losses])

    def compare_with_torch(self, losses):
        expected = torch_losses(self)
        self.apart = max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))
        if not self.apart <= TOLERANCE:
            raise Failure(f"losses {losses}\nof PyTorch:  {expected}, {self.apart:.1e} apart")


def torch_losses(case):
    model, batch = case.judge, case.microbatches * case.size
    model.load_weights(case.folder / "begin.safetensors")
    model.freeze(case.freeze)
    if case.optimizer == "adamw":
        optimizer = AdamW(model.trained(), 0.001)
    else:
        optimizer = SGD(model.trained(), 0.001, "--nesterov" in case.train)
    losses = []
    for step in range(STEPS):
        parts = [{name: x[begin: begin + case.size] for name, x in case.data.items()}
                 for begin in range(step * batch, (step + 1) * batch, case.size)]
        rows = [model.rows(part) for part in parts]
        total = 0.0
        for part, counted in zip(parts, rows):
            loss = model.run(part) * (counted / sum(rows))
            (loss + sum(model.hidden_losses) / batch).backward()
            total += float(loss.detach())
        optimizer.step()
        losses.append(total)
    return losses


class SGD(AdamW):
    """As smp-run's, with its default momentum and decay of matrices, decoupled."""

    def __init__(self, weights, lr, nesterov, decay=0.1, momentum=0.9):
        super().__init__(weights, lr)
        self.lr, self.decay = lr, decay
        self.inner = torch.optim.SGD(weights, lr=lr, momentum=momentum, nesterov=nesterov)

    def step(self):
        with torch.no_grad():
            for w in self.weights:
                if w.dim() > 1:
                    w.mul_(1 - self.lr * self.decay)
        super().step()


def names_of_rules():
    text = subprocess.run([PROGRAMS / "smp-partition", "--help"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"--schedule NAME\|auto\s+schedule: (.*?)\n\s+--", text, re.S).group(1)
    return [name for name in re.findall(r"[a-z0-9-]+", found) if name not in ("auto",)]


def run_case(seed, number, rules, keep):
    folder = tempfile.mkdtemp(prefix=f"promise-{number}-", dir=keep)
    case = Case(seed, number, folder)
    case.rules = rules
    try:
        case.check()
    except (Failure, subprocess.TimeoutExpired, AssertionError) as error:
        print(f"FAILED: {sys.argv[0]} --seed {seed} --case {number}\n" + "\n".join(case.commands) +
              f"\n{error}\nleft in {folder}", flush=True)
        return False, case
    shutil.rmtree(folder)
    return True, case


def main():
    parser = argparse.ArgumentParser()
    many = 2000 if os.environ.get("SMP_TEST_LONG") else 20
    parser.add_argument("--seed", default="1")
    parser.add_argument("--cases", type=int, default=int(os.environ.get("SMP_TEST_CASES", many)))
    parser.add_argument("--case", type=int)
    parser.add_argument("--keep")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rules = names_of_rules()
    numbers = range(options.cases) if options.case is None else [options.case]
    print(f"seed {options.seed}, {len(numbers)} cases", flush=True)
    with concurrent.futures.ThreadPoolExecutor(2 if len(numbers) > 100 else 1) as several:
        results = list(several.map(lambda n: run_case(options.seed, n, rules, options.keep), numbers))
    failed = sum(not good for good, _ in results)
    judged = sum(case.judged for _, case in results)
    families = collections.Counter(case.model.family for _, case in results)
    print(f"{len(results) - failed} of {len(results)} hold, {judged} of them judged by PyTorch, at most "
          f"{max(case.apart for _, case in results):.1e} apart; {sum(case.refused for _, case in results)} draws "
          f"refused; {dict(families)}")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()

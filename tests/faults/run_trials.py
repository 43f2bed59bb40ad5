#!/usr/bin/env python3
"""Seeded trials of faults: a small model, a plan, a job, and one fault in it at a random call.

    run_trials.py [--trials N] [--every-kind] [--seed S] [--trial K] [--jobs J] [--keep DIR] [--gpus N]

Every trial first runs the job undisturbed, which gives the result and says how often each rank
makes each call; then with the fault, that make_fault.c makes in one rank; then it resumes what is
left. A fault that must end the job ends it within five seconds, or the patience that is set for a
rank that hangs; the rank and what it was doing is named; no process stays; the checkpoint that is
left resumes to the very bits of the undisturbed run. A fault that need not end the job changes
nothing at all.

With --every-kind the trials together make every kind of fault once, so some make several, one after
the other, in the same job.

With --gpus N the jobs are of N ranks with a GPU each, of which several are replicas, and the faults of
trials are those of GPU_FAULTS in turn: in a step, while sums run.

A trial is a function of seed and number, with --every-kind of the number of trials, too. One that
fails leaves its folder; the same command with `--trial K` repeats it. Needs the programs in
$SMP_BIN_DIR, and Python alone.
"""
import argparse
import concurrent.futures
import errno
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import trial_models
from trial_process import BIN, LIMIT_S, MPIRUN, TrialProcess, expect

END_S = 5.0  # from a fault, or from the end of the patience with a rank that hangs
GPU_END_S = 20.0  # the driver takes down what processes had on their GPUs

ACTIONS = ("dnnl_sgemm", "MPI_Isend", "MPI_Irecv", "MPI_Iallreduce", "MPI_Ibcast", "MPI_Iallgather",
           "MPI_Ialltoall")
FILES = ("pread", "pwrite", "write", "open", "close", "fsync", "ftruncate", "rename", "unlink",
         "mkdir", "opendir", "mmap")
BYTES = ("pread", "pwrite", "write")
SPACE = ("pwrite", "write", "open", "ftruncate", "mkdir")

# fault: (weight, calls at which it may happen, what becomes of the job)
FAULTS = {
    "kill": (4, ACTIONS + FILES, "ends"),
    "exit": (3, ACTIONS + FILES, "ends"),
    "stop": (3, ACTIONS + FILES, "ends"),
    "pause": (1, ACTIONS + FILES, "goes on"),
    "suspend": (1, ACTIONS, "goes on"),
    "sleep": (1, ACTIONS + FILES, "goes on"),
    "slow": (1, ACTIONS, "goes on"),
    "cut": (1, ("dnnl_sgemm",), "either"),
    "short": (3, BYTES, "goes on"),
    "interrupted": (1, BYTES, "goes on"),
    "error": (6, FILES, "either"),
    "full": (2, SPACE, "either"),
    "damage": (3, (), "goes on"),
}
GPU_FAULTS = ("stop", "kill", "error")  # when a sample is read: little else is called in a step there
ERRORS = {"mmap": (errno.ENOMEM,), "open": (errno.EIO, errno.EMFILE, errno.EACCES)}


class Job(TrialProcess):
    """One run of smp-run under mpirun, in the trial's folder."""

    def __init__(self, trial, name, plan, options, environment):
        ranks = trial_models.processes(trial.options if plan == "plan.yaml"
                                       else trial_models.one_stage(trial.options))
        preload = [f"LD_PRELOAD={BIN}/make_fault.so", *environment] if environment else []
        self.fault_log = trial.folder / f"{name}.log"
        super().__init__(trial.folder, name, [str(BIN / "smp-run"), plan, *trial.data, *options],
                         [*MPIRUN, "-n", str(ranks)], preload)

    def fault_time(self):
        text = self.fault_log.read_text() if self.fault_log.exists() else ""
        return float(text.split()[0]) if text else None

    def steps(self):
        return max(map(int, re.findall(r"^step (\d+) ", self.read("out"), re.M)), default=0)


class Trial:
    """A job and a fault in it; `kinds`: one of each of these instead. gpus: ranks on as many; 0: on
    CPUs."""

    def __init__(self, seed, number, base, kinds=(), gpus=0):
        self.rng = random.Random(f"{seed}/{number}")
        self.kinds = kinds
        self.gpus = gpus
        self.n_faults = 0
        self.folder = base / f"trial-{number}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.text = f"trial {number}:"

    def say(self, text):
        self.text += f" {text}"

    # The job.

    def partition(self, options, plan):
        command = [BIN / "smp-partition", "model.yaml", "-o", plan,
                   "-n", str(trial_models.processes(options))]
        for name, value in options.items():
            for text in value if isinstance(value, tuple) else (value,):
                command += [f"--{name}", str(text)]
        done = subprocess.run(command, cwd=self.folder, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        expect(done.returncode in (0, 2, 3), f"smp-partition: {done.stderr}")
        return done.returncode == 0

    def draw_plan(self):
        if not self.gpus:
            return trial_models.draw_plan(self.rng, self.family)
        while True:
            options = trial_models.draw_whole(self.rng, self.gpus)
            if options["ddp"] > 1 and trial_models.processes(options) == self.gpus:
                return options

    def draw(self):
        self.family, self.data_file, self.data = trial_models.write_model(self.folder, self.rng)
        while self.gpus and self.family == "mlp":  # its sums over replicas in operators: on CPUs alone
            self.family, self.data_file, self.data = trial_models.write_model(self.folder, self.rng)
        self.options = self.draw_plan()
        while not self.partition(self.options, "plan.yaml") or (
                "stop" in self.kinds and trial_models.processes(self.options) == 1):
            self.options = self.draw_plan()
        expect(self.partition(trial_models.one_stage(self.options), "one_stage.yaml"),
               "no plan with one stage")
        self.world = trial_models.processes(self.options)
        self.save_every = self.rng.randint(1, 3)
        if self.gpus:
            self.save_every = 4  # most of a job is steps
        self.last = self.save_every * 3 + self.rng.randint(0, 2)
        self.first = self.rng.choice((0, 0, self.save_every * 2))  # the job begins behind this step
        if self.gpus:
            self.first = 0
        self.data += ["--optimizer", self.rng.choice(("adamw", "sgd")), "--lr", "0.01",
                      "--log-every", "1", "--checksum", "--save-every", str(self.save_every)]
        if self.gpus:
            self.data += ["--device", "cuda"]
        self.tensor = self.options.get("tensor", 1) > 1
        self.traced = self.rng.random() < 0.3
        self.say("{} {stages}x{ddp} chunks {chunks} {pipeline} {microbatches}x{microbatch-size}"
                 .format(self.family, **self.options))
        for name in ("tensor", "shard", "shard-what", "bucket-bytes", "node-replicas"):
            if name in self.options:
                self.say(f"{name} {self.options[name]}")

    def start(self, name, last, checkpoint, plan="plan.yaml", more=(), environment=()):
        options = ["--steps", str(last), "--checkpoint", checkpoint, *more]
        if self.saved_steps(checkpoint):
            options.append("--resume")
        return Job(self, name, plan, options, environment)

    def run_well(self, name, *arguments, **more):
        job = self.start(name, *arguments, **more)
        code = job.wait()
        expect(code == 0, f"{name}: exit code {code}")
        return job

    def saved_steps(self, checkpoint):
        files = (self.folder / checkpoint).glob("checkpoint-*.smp")
        return sorted(int(file.stem.removeprefix("checkpoint-")) for file in files)

    def prepare(self):
        """Undisturbed: the result, the calls of every rank, and where the other job begins."""
        if self.first:
            self.run_well("first", self.first, "before")
            shutil.copytree(self.folder / "before", self.folder / "whole")
        job = self.run_well("whole", self.last, "whole",
                            more=["--trace", "whole.json"] if self.traced else [],
                            environment=[f"FAULT_COUNT={self.folder}/count"])
        self.weights = job.weights()
        expect(len(self.weights) == self.options["ddp"], "whole: a hash for every replica")
        self.calls = []
        for rank in range(self.world):
            lines = (self.folder / f"count.{rank}").read_text().splitlines()
            self.calls.append({name: int(n) for name, n in map(str.split, lines)})

    # The fault.

    def draw_fault(self):
        kinds = [kind for kind in FAULTS if self.world > 1 or kind != "stop"]
        self.kind = (self.kinds[self.n_faults] if self.kinds else
                     self.rng.choices(kinds, [FAULTS[kind][0] for kind in kinds])[0])
        self.n_faults += 1
        if self.kind == "damage":
            return
        _, calls, self.fate = FAULTS[self.kind]
        if self.gpus:
            calls = ("pread",)
        places = [(rank, call) for rank in range(self.world) for call in calls
                  if self.calls[rank][call] > 0]
        self.rank, self.call = self.rng.choice(places)
        n = self.calls[self.rank][self.call]
        # Data that is cut before it is opened is other data.
        self.at = self.rng.randint(max(n // 2, 1) if self.kind == "cut" else 1, n)
        if self.gpus:  # in steps, before the last samples are read ahead
            self.at = self.rng.randint(n // 2, n * 3 // 4)
        self.number = 0
        if self.kind == "error":
            self.number = self.rng.choice(ERRORS.get(self.call, (errno.EIO, errno.EDQUOT)))
        elif self.kind == "full":
            self.number = errno.ENOSPC
        elif self.kind == "exit":
            self.number = self.rng.choice((0, 3))
        elif self.kind in ("sleep", "slow"):
            self.number = 300 if self.kind == "sleep" else 10
        self.timeout = {"stop": 2 if self.gpus else 0.5, "suspend": 2}.get(self.kind, 20)
        self.say(f"| {self.kind}{f' {self.number}' * (self.number != 0)}, rank {self.rank}, "
                 f"{self.call} {self.at} of {n}")

    def start_with_fault(self):
        what = "stop" if self.kind in ("pause", "suspend") else self.kind
        name = f"fault-{self.n_faults}"
        return self.start(name, self.last, "saved",
                          more=["--timeout", str(self.timeout), "--timeout-start", str(30 * self.timeout),
                                "--timeout-save", str((2 if self.gpus else 30) * self.timeout)]
                          + (["--trace", "fault.json"] if self.traced else []),
                          environment=[
                              f"FAULT={self.rank} {self.call} {self.at} {what} {self.number}",
                              f"FAULT_LOG={self.folder}/{name}.log",
                              f"FAULT_FILE={self.data_file}"])

    def hold(self, job):
        """The others stand still, too (`suspend`), and all go on after a while."""
        end = time.monotonic() + LIMIT_S
        while job.fault_time() is None and job.process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        if self.kind == "suspend":
            job.signal(signal.SIGSTOP)
        time.sleep(1.5 * self.timeout if self.kind == "suspend" else 1.0)
        job.signal(signal.SIGCONT)

    def judge_end(self, job, code):
        """The job ended because of the fault: in time, with the reasons."""
        took, patience = job.ended - job.fault_time(), 0.0
        text = job.read("err")
        self.say(f"-> ended after {took:.1f} s, exit {code}")
        if self.kind == "stop":
            said = re.findall(r"no progress for ([0-9.]+) s: rank \d+ waits for .*; "
                              rf"rank {self.rank}: no answer", text)
            # Before there is a job ranks ask nobody: each says for how many it waits.
            early = re.findall(r"has not returned for ([0-9.]+) s: it waits for "
                               rf"(?:rank {self.rank}|{self.world - 1} other ranks)$", text, re.M)
            expect(len(said) == 1 or early, "the rank that hangs is not named, or not once")
            patience = float((said or early)[0])
        elif self.kind in ("kill", "exit"):
            expect(re.search(rf"process rank {self.rank} |,{self.rank}\]", text),
                   "the rank that is gone is not named")
            if self.world > 1 and job.steps() > self.first and not job.weights():
                device = rf", device \d of {self.options.get('tensor')}" * self.tensor
                expect(re.search(r"rank \d+ \(replica \d+, pipeline rank \d+" + device
                                 + r".*(\) was | action )", text),
                       "no other rank says what it was doing")
        else:
            reason = "ends at byte" if self.kind == "cut" else re.escape(os.strerror(self.number))
            reason += "|memory" * (self.call == "mmap")
            # What rank 0 finds wrong in the input (exit 2) is nobody's own.
            names = self.world > 1 and self.kind != "cut" and code == 1
            where = rf"rank {self.rank}\b.*" if names else ""
            expect(re.search(rf"^smp-run: .*{where}({reason})", text, re.M), "no reason is given")
        expect(took < patience + (GPU_END_S if self.gpus else END_S), f"ended {took:.1f} s after the fault")

    def judge(self, job, code):
        expect(job.fault_time() is not None, "the fault did not happen")
        if self.fate == "ends" or (self.fate == "either" and code != 0):
            expect(code != 0, "the job goes on")
            self.judge_end(job, code)
        else:
            self.say("-> goes on")
            expect(code == 0, f"exit code {code}")
            expect(job.weights() == self.weights, "the result is another one")
        # One save may have been on its way; a full disk takes none from the first on that failed.
        sure = (max(job.steps(), self.first) - 1) // self.save_every - 1
        unsaved = [int(n) for n in re.findall(r"checkpoint-(\d+)\.smp\S*: cannot", job.read("err"))]
        if self.kind == "full" and unsaved:
            sure = (min(unsaved) - 1) // self.save_every
        newest = max(self.saved_steps("saved"), default=0)
        expect(newest >= sure * self.save_every, f"what was saved is lost: {newest}")

    def run_fault(self):
        data = self.data_file.read_bytes()
        job = self.start_with_fault()
        if self.kind in ("pause", "suspend"):
            self.hold(job)
        self.judge(job, job.wait())
        self.data_file.write_bytes(data)

    # What is left.

    def resume(self):
        plan = self.rng.choice(("plan.yaml", "plan.yaml", "one_stage.yaml"))
        steps = self.saved_steps("saved")
        self.say(f"-> resumed from {steps[-1] if steps else 'nothing'}"
                 + " in one stage" * (plan == "one_stage.yaml"))
        job = self.run_well("resumed", self.last, "saved", plan=plan)
        expect(job.weights() == self.weights, "resumed: the result is another one")
        reported = "took the one before" in job.read("err")
        expect(reported == (self.kind == "damage"),
               "resumed: a damaged checkpoint is to be reported, and only that")

    def damage(self):
        """The newest checkpoint is broken on the disk."""
        shutil.rmtree(self.folder / "saved", ignore_errors=True)
        self.run_well("saved", self.save_every * 2, "saved")
        newest = self.folder / "saved" / f"checkpoint-{self.saved_steps('saved')[-1]:010d}.smp"
        content = bytearray(newest.read_bytes())
        how = self.rng.choice(("flip", "flip in the header", "truncate", "empty"))
        if how == "truncate":
            content = content[:self.rng.randrange(len(content))]
        elif how == "empty":
            content = b""
        else:
            at = self.rng.randrange(4096 if "header" in how else len(content))
            content[at] ^= 1 << self.rng.randrange(8)
        newest.write_bytes(content)
        self.say(f"| damage: {how}")

    def run(self):
        self.draw()
        self.prepare()
        for _ in self.kinds or (None,):
            shutil.rmtree(self.folder / "saved", ignore_errors=True)
            if self.first:
                shutil.copytree(self.folder / "before", self.folder / "saved")
            self.draw_fault()
            if self.kind == "damage":
                self.damage()
            else:
                self.run_fault()
            self.resume()


def kinds_of_trials(seed, trials):
    """Every kind of fault once: a list of kinds for each trial."""
    kinds = list(FAULTS)
    random.Random(f"{seed}/kinds").shuffle(kinds)
    kinds.sort(key=lambda kind: kind != "stop")  # the longest, beside all others
    return [kinds[number::trials] for number in range(trials)]


def run_trial(seed, number, base, kinds=(), gpus=0):
    """The kinds of its faults; None if it failed."""
    trial = Trial(seed, number, base, kinds, gpus)
    try:
        trial.run()
    except Exception as failure:  # of this trial alone, whatever it is
        print(f"{trial.text}: FAILED: {failure!r}; see {trial.folder}", flush=True)
        return None
    shutil.rmtree(trial.folder)
    print(f"{trial.text}: ok", flush=True)
    return trial.kinds or [trial.kind]


def main():
    parser = argparse.ArgumentParser(description="Seeded trials of faults.")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--every-kind", action="store_true", help="of fault, once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trial", type=int, help="only this one")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--gpus", type=int, default=0, help="ranks, on as many; default: on CPUs")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for those that fail")
    options = parser.parse_args()
    base = (options.keep or pathlib.Path(tempfile.mkdtemp(prefix="smp-faults-"))).resolve()
    numbers = range(options.trials) if options.trial is None else [options.trial]
    kinds = (kinds_of_trials(options.seed, options.trials) if options.every_kind
             else [()] * (max(numbers, default=0) + 1))
    if options.gpus:
        kinds = [(GPU_FAULTS[number % len(GPU_FAULTS)],) for number in range(len(kinds))]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        done = list(pool.map(lambda number: run_trial(options.seed, number, base, kinds[number],
                                                        options.gpus), numbers))
    failures = done.count(None)
    passed = [kind for kinds_done in done for kind in kinds_done or ()]
    counts = ", ".join(f"{kind} {passed.count(kind)}" for kind in FAULTS if kind in passed)
    print(f"{len(done)} trials with seed {options.seed}, {failures} failed; passed: {counts}")
    if failures == 0 and not options.keep:
        base.rmdir()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

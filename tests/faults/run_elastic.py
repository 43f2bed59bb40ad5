#!/usr/bin/env python3
"""Seeded lives of a job that loses and regains devices: smp-run --elastic, and what befalls it.

    run_elastic.py [--lives N] [--every-kind] [--part I/N] [--kinds K,...] [--seed S] [--life K]
                   [--jobs J] [--keep DIR] [--times] [--model FILE --devices N] [--hosts N]

A life is a small model, a range of devices, and one to three things that happen at random steps (KINDS
below). The job must come to its end by itself, or be started again by the same command where the
supervisor was ended. Then the plan of its first start runs undisturbed, without supervisor, and

  - every step has one row on standard output and one in the log, with the loss of the undisturbed
    run, digit for digit (after a reboot the rows since the state that is left are printed again);
  - the weights have the same hash;
  - of finished steps as many are lost as states are apart (--keep-every), at most;
  - no process and no state in memory stays.

With --hosts the job is on so many hosts (fake_hosts.py), of which some are lost and come back; with
--every-kind what may befall hosts happens once. With --model the model is that one, of tokens, its bytes a text, on N devices.

A life is a function of seed and number, with --every-kind of the number of lives, too. One that fails
leaves its folder; the same command with `--life K` repeats it. --times prints seconds from a death to
the next step. Needs the programs in $SMP_BIN_DIR, and Python alone.
"""
import argparse
import concurrent.futures
import csv
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import fake_hosts
import trial_models
from trial_process import BIN, MPIRUN, TrialProcess, expect

LIMIT_S = 120.0  # of a life without its undisturbed run
BEAT_LIMIT_S = 2.0
LOOK_S = 0.005
PHASES = ("detect", "plan", "start", "load")
GONE_S = 5.0  # for ranks to end after their supervisor
ROWS_OF_A_PIECE = 32  # that a supervisor prints at once: a pipe's 4 KiB

# What may befall a job: weight, devices that it takes at least, and what it is.
KINDS = {
    "kill": (4, 2, "a rank is killed"),
    "two": (2, 3, "two ranks are killed at once"),
    "again": (2, 2, "a rank is killed, then one of those that were started instead"),
    "stop": (2, 2, "a rank is stopped and does not go on"),
    "slow": (1, 2, "a rank is slow for a second: nothing is to happen"),
    "launcher": (1, 2, "mpirun is killed"),
    "full": (2, 2, "the disk of checkpoints is full, a rank is killed, there is space again"),
    "devices": (2, 2, "devices are taken away and given back"),
    "worn": (1, 2, "the rank of one device is killed three times: that is left out"),
    "supervisor": (2, 2, "the supervisor is killed, and started again"),
    "both": (1, 2, "a rank is killed, and the supervisor while it goes on from that; it is started again"),
    "reboot": (1, 2, "the supervisor is killed, and what was kept in memory is gone; it is started again"),
    "end": (1, 2, "the supervisor is asked to end by SIGTERM, and started again"),
}
# What needs a job of its own, by --kinds alone.
ALONE_KINDS = {
    "straggler": (0, 2, "a rank of two is slow for good: a plan without its device, or with less for it"),
}
# The same where the job is on hosts of its own (fake_hosts.py); the supervisor is on the first.
HOST_KINDS = {
    "host": (2, 3, "a host loses power, and what it kept is gone"),
    "host_back": (2, 3, "... and is started again some steps later"),
    "cut": (2, 3, "the link of a host goes down, and up again some steps later"),
}
KINDS_ON_HOSTS = ("kill", "again", "stop", "launcher", "devices", "supervisor", "end")


class Supervisor(TrialProcess):
    """One smp-run --elastic, and the rows that it prints."""

    def __init__(self, life, name):
        self.at = 0  # bytes of its output that were read
        self.steps = []
        on = [sys.executable, fake_hosts.__file__, "run", str(life.folder), "h1"] if life.hosts else []
        super().__init__(life.folder, name, [str(BIN / "smp-run"), "--elastic", *life.options], on,
                         environment=life.environment)

    def processes(self):
        """But for agents, which hold what is in memory after their supervisor is gone."""
        return [process for process in super().processes() if process not in self.agents()]

    def agents(self):
        return [process for process in super().processes() if is_agent(process)]

    def kill(self):
        super().kill()
        for process in self.agents():
            send(process, signal.SIGKILL)

    def look(self):
        """New rows: [(step, loss as printed)]."""
        with open(self.folder / f"{self.name}.out", errors="replace") as file:
            file.seek(self.at)
            text = file.read()
        whole = text[:text.rfind("\n") + 1]
        self.at += len(whole.encode())
        found = [(int(step), loss) for step, loss in
                 re.findall(r'^\{"step": (\d+), "loss": ([^,]+),', whole, re.M)]
        self.steps += [step for step, _ in found]
        return found

    def ranks(self):
        """{rank: process} of the job as it is now."""
        found = {}
        for process, words in self.environments().items():
            number = [word for word in words if word.startswith(b"OMPI_COMM_WORLD_RANK=")]
            if number and process_name(process) == "smp-run" and not is_agent(process):
                found[int(number[0].split(b"=")[1])] = process
        return found

    def launchers(self):
        return [process for process in self.processes()
                if process_name(process) in ("mpirun", "orterun", "prterun")]


def process_name(process):
    try:
        return pathlib.Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def is_agent(process):
    try:
        return b"--elastic-agent" in pathlib.Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def send(process, number):
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass


class Life:
    """A job and what befalls it; `kinds`: these instead of random ones."""

    def __init__(self, options, number, base, kinds):
        self.rng = random.Random(f"{options.seed}/{number}")
        self.model, self.most = options.model, options.devices
        self.folder = base / f"life-{number}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.memory = pathlib.Path(f"/dev/shm/smp-life-{os.getpid()}-{number}")
        self.beside = [self.memory.with_name(f"{self.memory.name}-{what}") for what in ("rows", "mpi", "agent")]
        self.full = self.folder / "full"
        self.text = f"life {number}:"
        self.kinds = kinds
        self.hosts = None  # fake_hosts.Hosts
        self.n_hosts = options.hosts
        self.n_supervisors = 0
        self.rows = []  # [(step, loss)] of all supervisors, in order
        self.reboots = []  # steps of the last rows before
        self.kills = []  # likewise of supervisors
        self.deaths = []  # [(time of the clock, kind)] after which the job has to go on by itself
        self.times = []  # [(kind, phase, seconds)]
        self.began = time.monotonic()

    def say(self, text):
        self.text += f" {text}"

    # The job.

    def draw(self):
        self.family, _, data = trial_models.write_model(self.folder, self.rng, trial_models.LARGER)
        if set(self.kinds) & set(HOST_KINDS):
            self.n_hosts = self.n_hosts or self.rng.randint(2, 4)
        of = {**KINDS, **ALONE_KINDS} if not self.n_hosts else {**{kind: KINDS[kind] for kind in KINDS_ON_HOSTS}, **HOST_KINDS}
        kinds = list(of)
        most = self.rng.choice((2, 2, 3, 3, 4, 4, 5, 6, 8))
        if not self.kinds:
            count = self.rng.choice((1, 1, 2, 3))
            self.kinds = self.rng.choices(kinds, [of[kind][0] for kind in kinds], k=count)
        self.most = self.most or max(most, self.n_hosts, *(of[kind][1] for kind in self.kinds))
        if "straggler" in self.kinds:
            expect(os.cpu_count() >= 2, "on one core ranks take turns: none is found slow")
            self.most = 2
        fewer = {"devices", "worn", "straggler", *HOST_KINDS} & set(self.kinds)
        if self.family == "mlp" and fewer:
            # Statistics of all replicas have the bits of one number of them: plans for fewer devices need not be.
            model = self.folder / "model.yaml"
            model.write_text(model.read_text().replace("sync: true", "sync: false"))
        self.keep_every = self.rng.choice((1, 1, 1, 2, 3))
        self.batch = self.rng.choice((12, 16, 24))
        self.last = (120 if self.family == "mlp" else 40) * (1 + len(self.kinds))
        if self.model:
            self.family, self.batch, data = self.model.stem, 4, ["--data", "text.txt"]
            self.last = 12 * (1 + len(self.kinds))
            (self.folder / "model.yaml").write_text(self.model.read_text())
            (self.folder / "text.txt").write_text(self.model.read_text() * 20)
        self.train = [*data, "--steps", str(self.last), "--log-every", "1", "--checksum", "--json",
                      "--optimizer", self.rng.choice(("adamw", "sgd")), "--lr", "0.01"]
        size = self.rng.choice((1, 2))
        plan_with = ["--global-batch", str(self.batch), "--microbatch-size", str(size), "--effort", "quick"]
        shape = self.draw_shape(size, fewer)
        while not self.is_plan([*plan_with, *shape]):
            shape = self.draw_shape(size, fewer)
        # No device is left out where there need not be a plan for fewer.
        all_stay = ["--failures-allowed", "9"] if not fewer and (self.family == "mlp" or "--tensor" in shape) else []
        self.options = ["model.yaml", "-n", f"1:{self.most}", *plan_with, *shape, *all_stay, *self.train,
                        "--checkpoint", "saved", "--save-every", str(self.rng.choice((7, 20))),
                        "--keep-every", str(self.keep_every), "--keep-in", str(self.memory),
                        "--log", "steps.csv", "--events", "events.jsonl",
                        "--beat-limit", f"{BEAT_LIMIT_S:g}", "--wait", "20"]
        self.environment = []
        if "full" in self.kinds:
            self.environment = [f"LD_PRELOAD={BIN}/make_fault.so", f"FAULT_FULL={self.full}",
                                "FAULT_FULL_IN=saved/checkpoint"]
        if "straggler" in self.kinds:
            self.environment = [f"LD_PRELOAD={BIN}/make_fault.so", "FAULT=1 dnnl_sgemm 1 drag 1"]
        self.draw_hosts()
        # Each at a step of its own, the last well before the end.
        room = self.last // (len(self.kinds) + 1)
        self.at = [room * i + self.rng.randint(2, max(room // 2, 2)) for i in range(len(self.kinds))]
        if self.kinds[0] == "supervisor" and self.rng.random() < 0.4:
            self.at[0] = 0
        self.say(f"{self.family} 1:{self.most} batch {self.batch} of {size} keep {self.keep_every} "
                 + " ".join(word.removeprefix("--") for word in shape if ":" not in word and word != "--split"))

    def draw_hosts(self):
        """As many devices on each as go round; the first has one at least."""
        if not self.n_hosts:
            return
        slots = [self.most // self.n_hosts + (n < self.most % self.n_hosts) for n in range(self.n_hosts)]
        (self.folder / "hostfile").write_text("".join(f"h{n + 1} slots={count}\n" for n, count in enumerate(slots)))
        # All hosts share the cores of one, which none of them knows: ranks are as fast as these let them be.
        self.options += ["--ignore-slow", "--hosts", "hostfile", "--agent", f"{sys.executable} {fake_hosts.__file__} shell {{host}}"]
        # What mpirun needs where all hosts share the cores of one.
        self.environment += ["OMPI_MCA_rmaps_base_oversubscribe=1", "OMPI_MCA_mpi_yield_when_idle=1"]
        self.hosts = fake_hosts.Hosts(self.folder)
        self.hosts.make(self.n_hosts)
        self.say(f"on {self.n_hosts} hosts")

    def draw_shape(self, size, fewer):
        """Options of the first plan; those after it have what they need of them."""
        if self.rng.random() < 0.3:
            return []
        tensor = self.family == "gpt" and self.most % 2 == 0 and not fewer
        if tensor and self.rng.random() < 0.3:
            rules = ("*:whole", *self.rng.choice(trial_models.SPLITS["gpt"]))
            return ["--tensor", "2", *(w for rule in rules for w in ("--split", rule))]
        ddp = self.rng.choice([n for n in (1, 2, 3, 4) if self.most % n == 0 and self.batch % (n * size) == 0])
        shape = ["--ddp", str(ddp), "--stages", str(self.most // ddp)]
        if ddp > 1 and self.rng.random() < 0.6:
            shape += ["--shard", str(ddp), "--shard-what", self.rng.choice(("optimizer", "gradients", "weights"))]
        return shape

    def is_plan(self, words):
        done = subprocess.run([BIN / "smp-partition", "model.yaml", "-n", str(self.most), *words],
                              cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
        expect(done.returncode in (0, 2, 3), f"smp-partition: {done.stderr}")
        return done.returncode == 0

    def start(self):
        self.n_supervisors += 1
        self.supervisor = Supervisor(self, f"supervisor-{self.n_supervisors}")

    def newest(self):
        return max((step for step, _ in self.rows), default=0)

    def look(self):
        new = self.supervisor.look()
        self.rows += new
        expect(time.monotonic() < self.began + LIMIT_S, f"still at step {self.newest()} after {LIMIT_S:g} s")
        return new

    def pass_steps(self, step):
        """Until the row of this step, or until the supervisor has ended: True, the job is at the step."""
        while True:
            ended = self.supervisor.process.poll() is not None
            self.look()
            if self.newest() >= step:
                return True
            if ended:
                return False
            time.sleep(LOOK_S)

    def wait_for_ranks(self, others_than=()):
        """{rank: process}, one at least, none of those that were there."""
        while True:
            ranks = self.supervisor.ranks()
            if ranks and not set(ranks.values()) & set(others_than):
                return ranks
            expect(self.supervisor.process.poll() is None, "the supervisor has ended: no ranks")
            self.look()
            time.sleep(LOOK_S)

    def recovered(self):
        """Until ranks have been started anew and there is a row that there was not."""
        starts = self.count("resumed")
        before = self.newest()
        while self.count("resumed") == starts and self.supervisor.process.poll() is None:
            self.look()
            time.sleep(LOOK_S)
        expect(self.pass_steps(min(before + 1, self.last)),
               f"ended at step {self.newest()}, exit code {self.supervisor.process.poll()}")

    def events(self):
        path = self.folder / "events.jsonl"
        lines = path.read_text().splitlines(True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def count(self, *names):
        return sum(event["event"] in names for event in self.events())

    def note_death(self):
        self.deaths.append((time.time(), self.kind))

    # What befalls it.

    def kill_ranks(self, count):
        ranks = self.wait_for_ranks()
        dead = self.rng.sample(sorted(ranks), min(count, len(ranks)))
        self.say("rank " + ", ".join(map(str, dead)) + f" of {len(ranks)}")
        self.note_death()
        for rank in dead:
            send(ranks[rank], signal.SIGKILL)
        return ranks

    def do_kill(self):
        self.kill_ranks(1)
        self.recovered()

    def do_two(self):
        self.kill_ranks(2)
        self.recovered()

    def do_again(self):
        ranks = self.kill_ranks(1)
        others = self.wait_for_ranks(ranks.values())
        time.sleep(self.rng.uniform(0.0, 0.5))
        send(self.rng.choice(sorted(others.values())), signal.SIGKILL)
        self.recovered()

    def do_stop(self):
        ranks = self.wait_for_ranks()
        rank = self.rng.choice(sorted(ranks))
        self.say(f"rank {rank} of {len(ranks)}")
        self.note_death()
        send(ranks[rank], signal.SIGSTOP)
        self.recovered()
        expect(process_name(ranks[rank]) != "smp-run", "the rank that was stopped is still there")

    def do_slow(self):
        ranks = self.wait_for_ranks()
        rank = self.rng.choice(sorted(ranks))
        self.say(f"rank {rank} of {len(ranks)}")
        failures = self.count("failure")
        for _ in range(20):
            send(ranks[rank], signal.SIGSTOP)
            time.sleep(0.04)
            send(ranks[rank], signal.SIGCONT)
            time.sleep(0.01)
        self.look()
        expect(self.count("failure") == failures, "a slow rank was taken for a dead one")
        self.pass_steps(min(self.newest() + 5, self.last - 10))
        expect(not any(event["event"] == "ended" and event["why"] == "slow" for event in self.events()),
               "another plan was taken for what soon was over")

    def do_straggler(self):
        def of(name):
            return [event for event in self.events() if event["event"] == name]
        while len(of("start")) < 2 and self.supervisor.process.poll() is None:
            self.look()
            time.sleep(LOOK_S)
        expect(self.pass_steps(min(self.newest() + 8, self.last)), f"ended at step {self.newest()}")
        slow, ended, starts = of("slow"), of("ended"), of("start")
        expect(slow and slow[0]["device"] == 1 and slow[0]["speed"] <= 0.8, f"the slow device is not told: {slow}")
        expect([event["why"] for event in ended] == ["slow"], f"not ended for the slow device: {ended}")
        record = (self.folder / "saved/elastic.yaml").read_text()
        expect('slow: [{device: "1"' in record, f"not in the record: {record}")
        self.say(f"speed {slow[0]['speed']}, {starts[1]['devices']} devices")
        # Neither rank has less to do for a device that is as slow: its plan's step would take up to so long.
        expect(starts[1]["predicted_us"] < 0.9 * starts[0]["predicted_us"] / slow[0]["speed"], f"not faster: {starts}")

    def do_launcher(self):
        self.wait_for_ranks()
        self.note_death()
        for process in self.supervisor.launchers():
            send(process, signal.SIGKILL)
        self.recovered()

    def do_full(self):
        self.full.touch()
        self.pass_steps(min(self.newest() + self.rng.randint(3, 15), self.last - 20))
        self.do_kill()
        self.full.unlink()

    def do_devices(self):
        control = self.folder / "saved" / "devices"
        used = len(self.wait_for_ranks())
        fewer = self.rng.randint(1, max(used - 1, 1))
        self.say(f"{fewer} of {used}")
        if fewer < used:
            self.note_death()
        replace_file(control, f"{fewer}\n")
        if fewer < used:
            self.recovered()
        expect(len(self.wait_for_ranks()) <= fewer, f"goes on with more than {fewer} devices")
        self.pass_steps(min(self.newest() + self.rng.randint(2, 8), self.last - 15))
        replace_file(control, f"{self.most}\n")
        self.pass_steps(min(self.newest() + 5, self.last - 10))

    def do_worn(self):
        for _ in range(3):
            ranks = self.wait_for_ranks()
            self.note_death()
            send(ranks[0], signal.SIGKILL)
            self.recovered()
        expect(self.count("left_out") > 0, "the device is not left out")

    def restart(self):
        self.supervisor.process.wait()
        self.supervisor.expect_gone(GONE_S)
        self.look()
        self.kills.append(self.newest())
        self.start()
        self.recovered()

    def do_supervisor(self):
        if self.newest() == 0:  # while it plans, or starts the first ranks
            time.sleep(self.rng.uniform(0.0, 1.5))
        self.note_death()
        self.supervisor.process.kill()
        self.restart()

    def do_both(self):
        self.kill_ranks(1)
        time.sleep(self.rng.uniform(0.0, 1.0))
        self.supervisor.process.kill()
        self.restart()

    def do_reboot(self):
        self.note_death()
        self.supervisor.process.kill()
        self.supervisor.process.wait()
        self.supervisor.expect_gone(GONE_S)
        self.forget()
        self.look()
        self.reboots.append(self.rows[-1][0])
        self.start()
        # From the disk, or from the beginning: the steps since are computed, and perhaps printed, again.
        self.pass_steps(min(self.newest() + 3, self.last))

    def do_end(self):
        self.supervisor.process.terminate()
        code = self.supervisor.process.wait(30)
        expect(code == 4, f"asked to end by SIGTERM: exit code {code}, expected 4")
        self.note_death()
        self.restart()

    def pick_host(self):
        """One that is in use, but not the supervisor's."""
        self.wait_for_ranks()
        start = [event for event in self.events() if event["event"] == "start"][-1]
        used = sorted({slot.split(":")[0] for slot in start["slots"]} - {"h1"})
        expect(used, f"no other host is in use: {start}")
        host = self.rng.choice(used)
        self.say(host)
        self.note_death()
        return host

    def wait_for_host(self, host):
        """It is up again, and the job has got on."""
        def is_up():
            states = [event["state"] for event in self.events() if event["event"] == "host" and event["host"] == host]
            return states[-1:] == ["up"]
        end = time.monotonic() + 45
        while not is_up():
            expect(self.supervisor.process.poll() is None, f"the job has ended before {host} was back")
            expect(time.monotonic() < end, f"{host} is not taken back")
            self.look()
            time.sleep(LOOK_S)

    def do_host(self):
        self.hosts.kill(self.pick_host())
        self.recovered()

    def do_host_back(self):
        host = self.pick_host()
        self.hosts.kill(host)
        self.recovered()
        self.pass_steps(min(self.newest() + self.rng.randint(1, 5), self.last - 20))
        self.hosts.start(host)
        self.wait_for_host(host)

    def do_cut(self):
        host = self.pick_host()
        self.hosts.link(host, "down")
        self.recovered()
        self.hosts.link(host, "up")
        self.wait_for_host(host)

    # What is left.

    def kept(self):
        """What is in memory, on any host."""
        roots = [""]
        if self.hosts:
            roots = [f"/proc/{self.hosts.process(f'h{n + 1}')}/root" for n in range(self.n_hosts)
                     if (self.hosts.state / f"h{n + 1}").exists()]
        return [root + str(path) for root in roots for path in (self.memory, *self.beside)
                if os.path.exists(root + str(path))]

    def judge(self):
        while self.supervisor.process.poll() is None:
            self.look()
            time.sleep(LOOK_S)
        code = self.supervisor.wait()
        self.look()
        expect(code == 0, f"exit code {code}")
        expect(not self.kept(), f"what was kept in memory is still there: {self.kept()}")
        expect(not self.supervisor.agents(), f"agents are still there: {self.supervisor.agents()}")
        saved = sorted((self.folder / "saved").glob("checkpoint-*.smp"))
        expect(saved and saved[-1].stem == f"checkpoint-{self.last:010d}", "the last step is not saved")
        left = [path.name for path in (self.folder / "saved").glob("*.part")]
        expect(not left, f"half written: {left}")
        self.judge_losses(*self.undisturbed())
        self.judge_events()

    def undisturbed(self):
        """{step: loss}, and the hash of the weights, of the job's first plan."""
        plan = self.folder / "saved/plan-1.yaml"
        expect(plan.exists(), "the first plan was not left")
        ranks = re.search(r"^parallel: \{devices: (\d+)", plan.read_text(), re.M)[1]
        job = TrialProcess(self.folder, "undisturbed", [str(BIN / "smp-run"), str(plan), *self.train],
                           [*MPIRUN, "-n", ranks])
        code = job.wait()
        expect(code == 0, f"undisturbed: exit code {code}")
        losses = dict(re.findall(r'^\{"step": (\d+), "loss": ([^,]+),', job.read("out"), re.M))
        expect(len(losses) == self.last, f"undisturbed: {len(losses)} steps")
        return {int(step): loss for step, loss in losses.items()}, job.weights()

    def judge_losses(self, losses, weights):
        for step, loss in self.rows:
            expect(loss == losses.get(step), f"step {step}: loss {loss}, undisturbed {losses.get(step)}")
        got, wanted = set(self.supervisor.weights()), set(weights)
        expect(len(wanted) == 1 and got == wanted, f"weights {sorted(got)}, undisturbed {sorted(wanted)}")
        with open(self.folder / "steps.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        expect([int(row["step"]) for row in rows] == list(range(1, self.last + 1)),
               "the log has not one row for each step")
        for row in rows:
            expect(row["loss"] == losses[int(row["step"])], f"log, step {row['step']}: loss {row['loss']}")
        self.judge_rows()

    def judge_rows(self):
        """On standard output, of all supervisors together, too; after a reboot nobody knows what was printed. What a
        supervisor had printed and not yet noted when it was killed, 4 KiB at most, is printed again."""
        steps = [step for step, _ in self.rows]
        for before, after in zip([0, *steps], [*steps, self.last + 1]):
            again = before if before in self.reboots else ROWS_OF_A_PIECE if before in self.kills else 0
            expect(after == before + 1 or before - again < after <= before,
                   f"the row of step {before} is followed by that of step {after}")

    def judge_events(self):
        """What the supervisor says of each death: that it saw one, and that no more finished steps are lost than
        states are apart."""
        events = self.events()
        resumed = [event for event in events if event["event"] == "resumed"]
        for event in resumed:
            expect(event["lost_steps"] <= self.keep_every or "reboot" in self.kinds,
                   f"{event['lost_steps']} steps were lost: {event}")
            start = [other for other in events if other["event"] == "start"
                     and other["incarnation"] == event["incarnation"]][-1]
            expect(start["moved_bytes"] < 0 or event["fetched_bytes"] <= start["moved_bytes"],
                   f"more bytes than expected came from other hosts: {start}, {event}")
        for at, kind in self.deaths:
            after = [event for event in resumed if event["time_s"] > at]
            expect(after, f"{kind}: nothing is said of going on")
            self.times += [(kind, phase, after[0][f"{phase}_s"]) for phase in PHASES]
            self.times.append((kind, "all", after[0]["time_s"] - at))
            if kind not in ("devices", "supervisor", "both", "reboot", "end"):
                expect(is_told(events, at, after[0]["time_s"]), f"{kind}: no failure is told")

    def run(self):
        try:
            self.draw()
            self.start()
            for kind, step in zip(self.kinds, self.at):
                expect(self.pass_steps(step), f"ended before step {step}")
                self.say(f"| {kind} at {self.newest()}")
                self.kind = kind
                getattr(self, f"do_{kind}")()
            self.judge()
        finally:
            if self.n_supervisors:
                self.supervisor.kill()
            if self.hosts and self.hosts.state.exists():
                self.hosts.remove()
            self.forget()

    def forget(self):
        for process in self.supervisor.agents() if self.n_supervisors else []:
            send(process, signal.SIGKILL)
        rows, mpi, agent = self.beside
        rows.unlink(missing_ok=True)
        agent.unlink(missing_ok=True)
        for folder in (self.memory, mpi):
            shutil.rmtree(folder, ignore_errors=True)


def is_told(events, begin, end):
    """A failure in that time; a host that is lost while no ranks run is none."""
    ran = False
    for event in events:
        lost = event["event"] == "failure" or (event.get("state") == "lost" and not ran)
        if lost and begin <= event["time_s"] <= end:
            return True
        ran = {"begin": False, "start": True, "ended": False}.get(event["event"], ran)
    return False


def replace_file(path, text):
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


def kinds_of_lives(seed, lives, on_hosts):
    """Every kind once: a list of kinds for each life."""
    kinds = list(HOST_KINDS if on_hosts else KINDS)
    random.Random(f"{seed}/kinds").shuffle(kinds)
    return [kinds[number::lives] for number in range(lives)]


def run_life(options, number, base, kinds):
    """The life; None if it failed."""
    life = Life(options, number, base, list(kinds))
    try:
        life.run()
    except Exception as failure:  # of this life alone, whatever it is
        print(f"{life.text}: FAILED: {failure!r}; see {life.folder}", flush=True)
        return None
    if not options.keep:
        shutil.rmtree(life.folder)
    print(f"{life.text}: ok, {life.n_supervisors} supervisors, {time.monotonic() - life.began:.1f} s", flush=True)
    return life


def print_times(lives):
    found = {}
    for life in lives:
        for kind, phase, seconds in life.times:
            found.setdefault((kind, phase), []).append(seconds)
    print(f"| what | times | {' | '.join(f'{phase} s' for phase in (*PHASES, 'to the next step'))} |")
    print("|---|---" + "|---" * (len(PHASES) + 1) + "|")
    for kind in (*KINDS, *HOST_KINDS):
        cells = []
        for phase in (*PHASES, "all"):
            seconds = found.get((kind, phase), [])
            cells.append(f"{statistics.median(seconds):.2f}, {max(seconds):.2f}" if seconds else "-")
        if cells != ["-"] * len(cells):
            print(f"| {kind} | {len(found.get((kind, PHASES[0]), []))} | {' | '.join(cells)} |")


def parse():
    parser = argparse.ArgumentParser(description="Seeded lives of elastic jobs.")
    parser.add_argument("--lives", type=int, default=12)
    parser.add_argument("--every-kind", action="store_true", help="of event, once")
    parser.add_argument("--kinds", type=lambda text: text.split(","), help="these, in every life")
    parser.add_argument("--part", default="1/1", help="I/N: every N-th life, from the I-th")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--life", type=int, help="only this one")
    parser.add_argument("--jobs", type=int, default=1, help="lives at a time")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for those that fail")
    parser.add_argument("--times", action="store_true", help="print seconds from a death to the next step")
    parser.add_argument("--model", type=pathlib.Path, help="instead of small ones")
    parser.add_argument("--devices", type=int, help="at most")
    parser.add_argument("--hosts", type=int, default=0, metavar="N", help="on so many hosts of its own; needs root")
    return parser.parse_args()


def main():
    options = parse()
    if options.hosts and not fake_hosts.can_be_made():
        print("no hosts can be made here")
        return fake_hosts.SKIPPED
    base = (options.keep or pathlib.Path(tempfile.mkdtemp(prefix="smp-lives-"))).resolve()
    part, parts = map(int, options.part.split("/"))
    numbers = range(part - 1, options.lives, parts) if options.life is None else [options.life]
    kinds = [options.kinds or ()] * (max(numbers, default=0) + 1)
    if options.every_kind:
        kinds = kinds_of_lives(options.seed, options.lives, options.hosts > 0)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        done = list(pool.map(lambda number: run_life(options, number, base, kinds[number]), numbers))
    lives = [life for life in done if life]
    failures = len(done) - len(lives)
    befell = [kind for life in lives for kind in life.kinds]
    counts = ", ".join(f"{kind} {befell.count(kind)}" for kind in (*KINDS, *ALONE_KINDS, *HOST_KINDS)
                       if kind in befell)
    print(f"{len(done)} lives with seed {options.seed}, {failures} failed; passed: {counts}")
    if options.times:
        print_times(lives)
    if failures == 0 and not options.keep:
        base.rmdir()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

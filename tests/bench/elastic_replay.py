#!/usr/bin/env python3
"""A published life of a cluster, lived by a real job on this machine in scaled time.

    SMP_BIN_DIR=BIN python3 tests/bench/elastic_replay.py TRACE [--devices 8] [--hosts] [--seconds 150] [--model FILE]
                                                          [--global-batch 16] [--seed 1] [--keep FOLDER]

TRACE: a CSV `milliseconds,add|remove,node`. Its nodes become that many devices of smp-run --elastic, its time so
many seconds. Where the scaled number falls, ranks on as many devices are killed, and DIR/devices names what is left;
where it rises, DIR/devices names more. With --hosts each device is a host of its own (../faults/fake_hosts.py, needs
root), which loses power and comes back: nobody is told, and what it kept is gone. At the end the job is asked to end.

What is printed: steps done, beside those that the job would have done at no cost, always at the rate that it had with
the devices at hand or fewer; recoveries, their seconds, and steps lost. Needs the programs, and Python alone.
"""
import argparse
import csv
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "faults"))
import fake_hosts  # noqa: E402
from trial_process import BIN, SOURCE, TrialProcess  # noqa: E402

BEAT_LIMIT_S = 2.0


def changes(path, devices, seconds):
    """[(second, devices at hand)], as the trace has them."""
    nodes, counts = set(), []
    for ms, what, node in csv.reader(path.open()):
        (nodes.add if what == "add" else nodes.discard)(node)
        counts.append((int(ms) / 1000, len(nodes)))
    most, last = max(n for _, n in counts), counts[-1][0]
    scaled = [(at * seconds / last, max(1, round(devices * n / most))) for at, n in counts]
    settled = [now for now, later in zip(scaled, scaled[1:] + [(None, None)]) if now[0] != later[0]]
    return [now for i, now in enumerate(settled) if i == 0 or now[1] != settled[i - 1][1]]


class Job(TrialProcess):
    """Its devices are slots of this machine."""

    def __init__(self, options, folder, more=(), launcher=(), environment=()):
        self.events_path = folder / "events.jsonl"
        text = folder / "text.txt"
        text.write_bytes(b"".join(p.read_bytes() for p in sorted((SOURCE / "examples").glob("*.yaml"))))
        super().__init__(folder, "job", [
            str(BIN / "smp-run"), "--elastic", str(options.model.resolve()), "-n", f"1:{options.devices}",
            "--global-batch", str(options.global_batch), "--microbatch-size", "1", "--effort", "quick",
            "--data", str(text), "--steps", "1000000", "--log-every", "100", "--checkpoint", "run",
            "--save-every", "1000000", "--keep-in", str(self.keep_in(folder)), "--beat-limit", str(BEAT_LIMIT_S),
            "--horizon", f"{options.seconds:g}", "--failures-allowed", "1000", "--events", str(self.events_path), *more],
            launcher, environment)

    def keep_in(self, folder):
        return folder / "keep"

    def events(self):
        try:
            text = self.events_path.read_text()
        except OSError:
            return []
        return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]

    def kill_slot(self, slot):
        """The rank that runs there now, if one does."""
        starts = [e for e in self.events() if e["event"] == "start"]
        if not starts or slot not in starts[-1]["slots"]:
            return
        rank = starts[-1]["slots"].index(slot)
        for process, words in self.environments().items():
            if f"OMPI_COMM_WORLD_RANK={rank}".encode() in words:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def change(self, gone, slots):
        """Devices `gone` are lost; `slots` are all that there are now."""
        for slot in gone:
            self.kill_slot(slot)
        path = self.folder / "run" / "devices"
        new = path.with_name("devices.new")
        new.write_text(",".join(map(str, sorted(slots))) + "\n")
        new.rename(path)

    def close(self):
        self.kill()


class HostsJob(Job):
    """Its devices are hosts; the supervisor is on the first."""

    def __init__(self, options, folder):
        self.hosts = fake_hosts.Hosts(folder)
        self.hosts.make(options.devices)
        self.up = set(range(options.devices))
        (folder / "hostfile").write_text("".join(f"h{n + 1} slots=1\n" for n in range(options.devices)))
        script = [sys.executable, fake_hosts.__file__]
        # Hosts share the cores of one machine, which none of them knows.
        super().__init__(options, folder, ["--ignore-slow", "--hosts", "hostfile", "--agent", f"{' '.join(script)} shell {{host}}"],
                         [*script, "run", str(folder), "h1"],
                         ["OMPI_MCA_rmaps_base_oversubscribe=1", "OMPI_MCA_mpi_yield_when_idle=1"])

    def keep_in(self, folder):
        return "/dev/shm/replay"

    def change(self, gone, slots):
        for slot in gone:
            self.hosts.kill(f"h{slot + 1}")
        for slot in slots - (self.up - set(gone)):
            self.hosts.start(f"h{slot + 1}")
        self.up = set(slots)

    def close(self):
        super().close()
        self.hosts.remove()


def rates(events):
    """{devices: steps a second} between events of one incarnation."""
    found, devices, before = {}, 0, None
    for event in events:
        if event["event"] == "start":
            devices, before = event["devices"], None
        if event["event"] == "steps":
            if before and event["time_s"] > before["time_s"]:
                found.setdefault(devices, []).append((event["step"] - before["step"]) / (event["time_s"] - before["time_s"]))
            before = event
    return {n: statistics.median(values) for n, values in found.items()}


def live(options, folder):
    chosen = random.Random(options.seed)
    moments = changes(options.trace, options.devices, options.seconds)
    job = (HostsJob if options.hosts else Job)(options, folder)
    try:
        while not any(e["event"] == "resumed" for e in job.events()):
            if job.process.poll() is not None:
                sys.exit(job.read("err"))
            time.sleep(0.05)
        slots, begun = set(range(options.devices)), time.time()
        for at, n in moments:
            time.sleep(max(0.0, begun + at - time.time()))
            gone = chosen.sample(sorted(slots - {0}), max(0, len(slots) - n))  # slot 0 has the home of rows
            slots -= set(gone)
            slots |= set(sorted(set(range(options.devices)) - slots)[:max(0, n - len(slots))])
            job.change(gone, slots)
        time.sleep(max(0.0, begun + options.seconds - time.time()))
        os.kill(next(p for p in job.processes() if p == job.process.pid or "--elastic" in pathlib.Path(
            f"/proc/{p}/cmdline").read_text()), signal.SIGTERM)
        ended = time.time()
        if job.wait() != 4:
            sys.exit(job.read("err"))
    finally:
        job.close()
    report(job, moments, begun, ended, options)


def report(job, moments, begun, ended, options):
    events = [e for e in job.events() if begun <= e["time_s"] <= ended + 60]
    rate = rates(job.events())
    done = max((e["step"] for e in events if e["event"] in ("steps", "ended")), default=0)
    first = next(e["step"] for e in job.events() if e["event"] == "resumed") + 1
    ideal, spans = 0.0, zip(moments, moments[1:] + [(ended - begun, 0)])
    for (at, n), (until, _) in spans:
        ideal += (until - at) * max((r for devices, r in rate.items() if devices <= n), default=min(rate.values()))
    back = [e for e in events if e["event"] == "resumed"]
    took = [sum(e[f"{phase}_s"] for phase in ("detect", "pause", "plan", "start", "load")) for e in back]
    print(f"{options.trace.name}: {len(moments) - 1} changes of 1 to {options.devices} devices in {ended - begun:.0f} s; "
          f"{done - first} steps of {ideal:.0f} at no cost, {(done - first) / ideal:.3f}")
    print("steps a second: " + ", ".join(f"{n} devices {r:.1f}" for n, r in sorted(rate.items())))
    print(f"{len(back)} times gone on, seconds each: median {statistics.median(took or [0]):.2f}, most {max(took or [0]):.2f}; "
          f"steps lost {sum(e['lost_steps'] for e in back)}, at most {max((e['lost_steps'] for e in back), default=0)}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--hosts", action="store_true")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--model", type=pathlib.Path, default=SOURCE / "examples/gpt-tiny.yaml")
    parser.add_argument("--global-batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for what the job leaves")
    return parser.parse_args()


def main():
    options = parse()
    if options.keep:
        options.keep.mkdir(parents=True)
        return live(options, options.keep.resolve())
    with tempfile.TemporaryDirectory() as folder:
        return live(options, pathlib.Path(folder))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What keeping states in memory (--keep-every 1) costs a step, of a job on one machine or on several hosts.

    python3 tests/bench/bench_keep.py BIN [--hosts N] [--model FILE] [--microbatches 4] [--steps 12] [--pairs 4]

BIN: the folder of the programs. Two ranks train as two replicas and as two stages, with --hosts a rank on each of N
hosts (namespaces of one machine, ../faults/fake_hosts.py, needs root), where each keeps a copy of another one's part
unless it has that part itself. Runs with and without states take turns; a row has the medians of their steps in
milliseconds, the cost, and the least and the most of a pair. Hosts of one machine share its cores, and what goes
between them goes through the kernel by these cores: no network card helps. Nothing else may run on the machine.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/faults"))
import fake_hosts  # noqa: E402

KINDS = {"replicas": ["--stages", "1", "--ddp", "{n}"], "stages": ["--stages", "{n}", "--ddp", "1"]}
WARM_UP = 3


def run(words, folder, environment=()):
    done = subprocess.run([str(word) for word in words], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, **dict(environment)})
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: {done.stderr[-800:]}")
    return done.stdout


def launcher(options, folder):
    """Words before the program, and the environment they need."""
    if not options.hosts:
        return ["bash", ROOT / "tests/mpi/mpirun.sh", "-n", "2"], {}
    (folder / "hostfile").write_text("".join(f"h{n + 1} slots=1\n" for n in range(options.hosts)))
    script = f"{sys.executable} {fake_hosts.__file__}"
    words = [*script.split(), "run", folder, "h1", "mpirun", "--mca", "plm_rsh_agent", f"{script} shell", "--mca", "btl",
             "self,vader,tcp", "--mca", "mpi_yield_when_idle", "1", "--bind-to", "none", "--hostfile", "hostfile",
             "-n", options.hosts, "-x", "PATH"]
    return words, {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "SMP_BIN_DIR": str(options.bin)}


def step_ms(options, folder, kind, keep_every):
    words, environment = launcher(options, folder)
    shutil.rmtree(folder / "saved", ignore_errors=True)
    out = run([*words, options.bin / "smp-run", f"{kind}.yaml", "--data", "text.txt", "--steps", WARM_UP + options.steps,
               "--lr", "1e-4", "--json", "--checkpoint", "saved",
               *(["--keep-every", keep_every, "--keep-in", "/dev/shm/bench-keep"] if keep_every else [])],
              folder, environment)
    rows = [json.loads(line) for line in out.splitlines() if line.startswith('{"step":')]
    return statistics.median(row["step_us"] for row in rows[WARM_UP:]) / 1e3


def compare(options, folder, kind, ranks):
    shape = [word.format(n=ranks) for word in KINDS[kind]]
    run([options.bin / "smp-partition", options.model, "-n", ranks, *shape, "--tensor", "1", "--microbatch-size", 4,
         "--microbatches", options.microbatches, "--recompute", "none", "-o", f"{kind}.yaml"], folder)
    pairs = [(step_ms(options, folder, kind, 0), step_ms(options, folder, kind, 1)) for _ in range(options.pairs)]
    without, with_states = (statistics.median(column) for column in zip(*pairs))
    costs = sorted(100 * (kept / bare - 1) for bare, kept in pairs)
    print(f"| {kind} | {options.hosts or 1} | {without:.1f} | {with_states:.1f} | {100 * (with_states / without - 1):+.1f} % | "
          f"{costs[0]:+.1f} to {costs[-1]:+.1f} % |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--hosts", type=int, default=0)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "examples/gpt-small.yaml")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=4)
    options = parser.parse_args()
    os.environ["SMP_BIN_DIR"] = str(options.bin)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_bytes(b"".join(p.read_bytes() for p in sorted((ROOT / "examples").glob("*.yaml"))))
        hosts = fake_hosts.Hosts(folder)
        if options.hosts:
            hosts.make(options.hosts)
        try:
            print("| kind | hosts | ms a step without | with states | cost | pairs |\n|---|---|---|---|---|---|")
            for kind in KINDS:
                compare(options, folder, kind, options.hosts or 2)
        finally:
            if options.hosts:
                hosts.remove()


if __name__ == "__main__":
    main()

"""Programs under trial: started in a folder, found by a mark in their environments, ended with all that
they started."""
import os
import pathlib
import re
import signal
import subprocess
import time

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("SMP_BIN_DIR", SOURCE / "build/test/bin"))
MPIRUN = ["bash", str(SOURCE / "tests/mpi/mpirun.sh")]

LIMIT_S = 150.0  # of one run


class Failure(Exception):
    """What is wrong with a trial."""


def expect(condition, text):
    if not condition:
        raise Failure(text)


class TrialProcess:
    """A command in a folder, its output in NAME.out and NAME.err. `launcher` stands before the mark, so
    it does not have it."""

    def __init__(self, folder, name, command, launcher=(), environment=()):
        self.folder, self.name = folder, name
        self.mark = f"SMP_TRIAL={folder}/{name}"
        with open(folder / f"{name}.out", "w") as out, open(folder / f"{name}.err", "w") as err:
            self.process = subprocess.Popen([*launcher, "env", self.mark, *environment, *command],
                                            cwd=folder, stdout=out, stderr=err,
                                            stdin=subprocess.DEVNULL, start_new_session=True)

    def read(self, suffix):
        return (self.folder / f"{self.name}.{suffix}").read_text(errors="replace")

    def environments(self):
        """Those of the processes with the mark: {process: [NAME=VALUE as bytes]}."""
        found = {}
        for environ in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                words = environ.read_bytes().split(b"\0")
            except OSError:
                continue  # gone, or not ours
            if self.mark.encode() in words:
                found[int(environ.parent.name)] = words
        return found

    def processes(self):
        return list(self.environments())

    def signal(self, number):
        for process in self.processes():
            try:
                os.kill(process, number)
            except ProcessLookupError:
                pass

    def wait(self, limit_s=LIMIT_S):
        """Its exit code; nothing of it is left."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failure(f"{self.name}: still runs after {limit_s:g} s") from None
        self.ended = time.monotonic()
        self.expect_gone(2.0)
        return code

    def expect_gone(self, limit_s):
        end = time.monotonic() + limit_s
        while self.processes() and time.monotonic() < end:
            time.sleep(0.05)
        if self.processes():
            self.kill()
            raise Failure(f"{self.name}: processes left behind")

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def weights(self):
        """A hash for every replica, of --checksum in lines or in JSON."""
        return re.findall(r'^(?:replica \d+ weights |\{"replica": \d+, "weights": ")([0-9a-f]{16})',
                          self.read("out"), re.M)

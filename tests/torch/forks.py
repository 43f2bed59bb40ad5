"""Ranks that are forks of this process: one that imports PyTorch takes seconds to start, a fork of one that has it next to
nothing. PyTorch refuses to go backward in a fork of a process that has done so."""

import functools
import os
import signal
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist


def _run(rank, n, folder, main, arguments):
    """Of a fork: its output goes to files, its process group is that of the other forks. Does not return."""
    code = 1
    try:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        dist.init_process_group = functools.partial(dist.init_process_group, init_method=f"file://{folder}/store", rank=rank,
                                                    world_size=n)
        main(*arguments)
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Job:
    """main(*arguments) in n ranks."""

    def __init__(self, n, main, *arguments):
        self.folder = tempfile.TemporaryDirectory()
        self.running, self.code = set(), 0
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(n):
            pid = os.fork()
            if pid == 0:
                _run(rank, n, self.folder.name, main, arguments)
            self.running.add(pid)

    def look(self):
        """Takes note of who has ended. As soon as one has failed the others, which may wait for it, are killed."""
        for pid in list(self.running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self.running.remove(pid)
                if status and not self.code:
                    self.code = os.waitstatus_to_exitcode(status)
                    self.kill()

    def kill(self):
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)

    def close(self):
        self.kill()
        for pid in self.running:
            os.waitpid(pid, 0)
        self.folder.cleanup()

    def read(self, name):
        with open(f"{self.folder.name}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read()


def run_jobs(jobs, seconds):
    """jobs: (number of ranks, function, argument...), all at the same time, at most so long. Of each: the exit code of the
    first rank that failed or 0, what its ranks printed, and their errors."""
    started = []
    try:
        started += [Job(*job) for job in jobs]
        end = time.monotonic() + seconds
        while any(job.running for job in started):
            for job in started:
                job.look()
            if time.monotonic() > end:
                raise TimeoutError(f"ranks run for over {seconds} s:\n" + "".join(job.read("err")[-2000:] for job in started))
            time.sleep(0.02)
        return [(job.code, job.read("out"), job.read("err")) for job in started]
    finally:
        for job in started:
            job.close()


def run_ranks(n, main, *arguments, seconds=300):
    return run_jobs([(n, main, *arguments)], seconds)[0]


def in_a_fork(make, *arguments):
    """What it returns, of a fork of its own: who has gone backward can fork no ranks that do."""
    with tempfile.TemporaryDirectory() as folder:
        code, _, errors = run_ranks(1, _save, make, arguments, f"{folder}/made")
        if code:
            sys.exit(errors[-3000:])
        return torch.load(f"{folder}/made")


def _save(make, arguments, path):
    torch.set_num_threads(1)
    torch.save(make(*arguments), path)

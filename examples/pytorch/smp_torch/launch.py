"""Starts a module of this package in several processes, as torchrun does."""

import os
import subprocess
import sys


def launch(processes, module, arguments, threads=1, quiet=False):
    """Waits; raises RuntimeError if one of them failed. Their output is this process's; quiet: nobody's."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m",
               module, *arguments]
    result = subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL if quiet else None)
    if result.returncode != 0:
        raise RuntimeError(f"{module} failed in one of {processes} processes")

"""Calls smp-partition."""

import os
import shutil
import subprocess


def find_planner():
    """SMP_PARTITION, else smp-partition of the PATH, else of the tree that this package stands in."""
    here = os.path.dirname(os.path.abspath(__file__))
    built = os.path.join(here, "..", "..", "..", "build", "bin", "smp-partition")
    for candidate in (os.environ.get("SMP_PARTITION"), shutil.which("smp-partition"), built):
        if candidate and os.access(candidate, os.X_OK):
            return os.path.abspath(candidate)
    raise FileNotFoundError("smp-partition is not on the PATH: build SMP (README), and put build/bin on the PATH or its "
                            "path into SMP_PARTITION")


def make_plan(model, profile, out, options=()):
    """Plans, writes `out`.yaml, `out`.json and what else `options` ask for; returns what smp-partition prints."""
    command = [find_planner(), model, "--profile", profile, "-o", f"{out}.yaml", "--export", f"json:{out}.json", *options]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(result.stderr.strip() or f"smp-partition exited with {result.returncode}")
    return result.stdout

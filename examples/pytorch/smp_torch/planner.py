"""Calls smp-partition."""

import os
import shutil
import subprocess

from .plan import read_plan


HERE = os.path.dirname(os.path.abspath(__file__))
OWN = os.path.join(HERE, "planner")  # in a wheel: the program and its libraries


def find_planner():
    """SMP_PARTITION, else that of the wheel, of the PATH, or of the tree that this package stands in."""
    built = os.path.join(HERE, "..", "..", "..", "build", "bin", "smp-partition")
    own = os.path.join(OWN, "smp-partition")
    for candidate in (os.environ.get("SMP_PARTITION"), own, shutil.which("smp-partition"), built):
        if candidate and os.access(candidate, os.X_OK):
            return os.path.abspath(candidate)
    raise FileNotFoundError("smp-partition is not on the PATH: build SMP (README), and put build/bin on the PATH or its "
                            "path into SMP_PARTITION")


def make_plan(model, profile, out, options=()):
    """Plans, writes `out`.yaml, `out`.json and what else `options` ask for; returns what smp-partition prints."""
    command = [find_planner(), model, "--profile", profile, "-o", f"{out}.yaml", "--export", f"json:{out}.json",
               "--tensor", "1", *options]  # PyTorch's pipelines have no groups that compute an operator together
    libraries = os.pathsep.join(filter(None, [os.environ.get("LD_LIBRARY_PATH"), OWN]))
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries} if command[0].startswith(OWN) else None
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode != 0:
        raise RuntimeError(result.stderr.strip() or f"smp-partition exited with {result.returncode}")
    return result.stdout


def best_plan(made, out, options=()):
    """Like make_plan, of a Profile. Where the order is left open, also what PyTorch makes of it: there a backward in halves
    takes longer than a whole one, which the planner does not know, so an order with halves has to be that much better."""
    shown = make_plan(made.model, made.profile, out, options)
    plan = read_plan(f"{out}.json")
    if not plan.splits_backward or any(o in ("--pipeline", "--schedule", "--schedule-from") for o in options):
        return shown
    whole_shown = make_plan(made.model, made.profile, f"{out}-whole", [*options, "--pipeline", "interleaved"])
    whole = read_plan(f"{out}-whole.json")

    def sample_us(p, factor):
        return factor * p.predicted["step_us"] / (p.microbatches * p.ddp)

    if sample_us(whole, 1.0) >= sample_us(plan, made.split):
        return shown
    for extension in ("yaml", "json"):
        os.replace(f"{out}-whole.{extension}", f"{out}.{extension}")
    return whole_shown

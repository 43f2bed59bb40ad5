"""The wheel of smp_torch: made of the smp-partition at hand, installed into an empty folder, it plans a module by itself."""

import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.dirname(os.environ["SMP_PARTITION"])
SCRIPT = """
import torch, smp_torch
from smp_torch.planner import find_planner, make_plan
planner = find_planner()
assert planner.startswith(FOLDER) and smp_torch.__file__.startswith(FOLDER), planner
module = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))
made = smp_torch.profile(module, (torch.randn(4, 16),), torch.nn.functional.mse_loss, "model.yaml", target=torch.randn(4, 16), budget_s=0.1)
print(make_plan(made.model, made.profile, "plan", ["-n", "2", "--stages", "2", "--microbatches", "4"]))
"""


def run(*command, folder, **environment):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SMP_", "PYTHONPATH", "LD_LIBRARY_PATH"))}
    result = subprocess.run(command, cwd=folder, env={**kept, **environment}, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{command}: {result.stdout}{result.stderr[-3000:]}")
    return result.stdout


if "libcuda" in run("ldd", f"{PROGRAMS}/smp-partition", folder="/") and not os.environ.get("SMP_TEST_LONG"):
    print("skipped: this smp-partition needs CUDA's libraries, the wheel's is built without")
    sys.exit(77)
with tempfile.TemporaryDirectory() as scratch:
    wheel = run("bash", f"{HERE}/../../examples/pytorch/wheel.sh", scratch, "--bin", PROGRAMS, folder=scratch, PYTHON=sys.executable).split()[-1]
    if os.path.getsize(wheel) > 40 << 20:
        sys.exit(f"{wheel} has {os.path.getsize(wheel)} bytes")
    site = f"{scratch}/site"
    run(sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target", site, wheel, folder=scratch)
    said = run(sys.executable, "-W", "ignore", "-c", SCRIPT.replace("FOLDER", repr(site)), folder=scratch, PYTHONPATH=site)
    if "2 pipeline ranks x 1 replica" not in said:
        sys.exit(said)
    print(os.path.basename(wheel), f"{os.path.getsize(wheel) / 1e6:.1f} MB, plans")

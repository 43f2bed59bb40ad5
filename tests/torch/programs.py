"""SMP's programs, called by tests."""

import os
import subprocess
import sys

PROGRAMS = os.path.dirname(os.environ["SMP_PARTITION"])


def require(holds, what):
    if not holds:
        sys.exit(f"does not hold: {what}")


def run(folder, *command, ranks=0, code=0):
    """What it prints, also of errors."""
    start = ["mpirun", "-n", str(ranks)] if ranks else []
    result = subprocess.run([*start, os.path.join(PROGRAMS, command[0]), *command[1:]], cwd=folder, capture_output=True,
                            text=True, timeout=300, check=False)
    require(result.returncode == code, f"{command}: {result.returncode}\n{result.stdout}\n{result.stderr[-3000:]}")
    return result.stdout + result.stderr

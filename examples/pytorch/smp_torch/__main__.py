"""python -m smp_torch: see smp_torch.run."""

import sys

from .run import run


def main():
    if sys.argv[1:2] != ["run"]:
        sys.exit("usage: python -m smp_torch run FILE.py:FUNCTION [options]   (run --help lists them)")
    try:
        run(sys.argv[2:])
    except (RuntimeError, ValueError, FileNotFoundError) as error:
        sys.exit(f"smp_torch: {error}")


main()

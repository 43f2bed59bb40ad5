"""Real classes of transformers, torchvision, timm and diffusers (zoo.py), split.

    tests/torch/with_torch.sh tests/torch/test_zoo.py [NAME...]

SMP_TEST_LONG=1 runs all, otherwise every fifth of those that are light.
"""

import os
import sys

from split_cases import run_cases
from zoo import HEAVY, TRAPS, ZOO

classes = [name for name in ZOO if name not in TRAPS]
run_cases(sys.argv[1:] or (classes if os.environ.get("SMP_TEST_LONG") else [n for n in classes if n not in HEAVY][::5]))

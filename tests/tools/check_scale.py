#!/usr/bin/env python3
"""The loss scale of a run against the rule, written independently of it.

check_scale.py LINES INIT WINDOW LEAST SHIFT: lines of `smp-run --json` from step 1 on. What overflowed has no gradient norm and
counts as skipped; the scale of every step follows from that.
"""
import json
import sys


def main():
    init, window, least, shift = float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
    with open(sys.argv[1], encoding="utf-8") as file:
        steps = [json.loads(line) for line in file if line.startswith('{"step"')]
    scale, hysteresis, good, skipped, doubled, halved = init, shift, 0, 0, 0, 0
    for number, step in enumerate(steps, 1):
        assert step["step"] == number and step["loss_scale"] == scale, (step, scale)
        overflowed = step["grad_norm"] is None
        skipped += overflowed
        assert step["skipped"] == skipped, step
        if not overflowed:
            good += 1
            if good == window:
                scale, good, hysteresis = 2 * scale, 0, shift
                doubled += 1
            continue
        good = 0
        if hysteresis > 1:
            hysteresis -= 1
        else:
            scale = max(scale / 2, least)
            halved += 1
    assert skipped > 0 and doubled > 0 and halved > 0, (skipped, doubled, halved)
    print(f"{skipped} skipped, {doubled} doubled, {halved} halved")


main()

#!/usr/bin/env python3
"""Fits figures of device descriptions to published steps (measured.py).

    python3 tests/bench/fit_device.py BIN CONFIGS --only PATTERN,... --fit KEY=START ... [--rounds N]

KEY: a figure of `efficiency:`, or link_intra_node and link_inter_node, factors of the links' rates.
Least absolute deviations of log(predicted / measured), by Gauss-Newton on iteratively reweighted
squares; derivatives are differences of whole predictions, so a round takes one pass over the jobs
for each figure. Needs PyYAML.
"""
import math
import statistics
import sys

sys.dont_write_bytecode = True
import measured  # noqa: E402

STEP = 0.1  # of the logarithm of a figure
SHARES = {"products", "attention_forward", "attention_backward", "memory"}


def residuals(jobs, options, figures):
    options.figures = figures
    rows = measured.predict_all(jobs, options)
    return [math.log(got / measured.step_of(job)) for job, got, _ in rows]


def solve(jacobian, residual):
    """The change of logarithms that least absolute deviations ask for. jacobian: a list for each figure."""
    n, change = len(jacobian), [0.0] * len(jacobian)
    for _ in range(50):
        off = [r + sum(j[i] * c for j, c in zip(jacobian, change)) for i, r in enumerate(residual)]
        weight = [1 / max(abs(o), 0.01) for o in off]
        rows = [[sum(w * a * b for w, a, b in zip(weight, jacobian[r], jacobian[c])) + (r == c) * 1e-3
                 for c in range(n)] + [-sum(w * a * b for w, a, b in zip(weight, jacobian[r], residual))]
                for r in range(n)]
        for p in range(n):
            for r in range(n):
                if r != p:
                    factor = rows[r][p] / rows[p][p]
                    rows[r] = [x - factor * y for x, y in zip(rows[r], rows[p])]
        change = [rows[r][n] / rows[r][r] for r in range(n)]
    return [min(max(c, -0.5), 0.5) for c in change]


def main():
    parser = measured.parser()
    parser.add_argument("--fit", nargs="+", required=True, metavar="KEY=START")
    parser.add_argument("--rounds", type=int, default=3)
    options = measured.finish(parser.parse_args())
    fixed = dict(options.figures)
    figures = {key: float(value) for key, value in (word.split("=") for word in options.fit)}
    jobs = [job for job, got, _ in measured.predict_all(measured.all_jobs(options), options) if got is not None]
    for turn in range(options.rounds + 1):
        now = residuals(jobs, options, fixed | figures)
        print(f"round {turn}: {len(jobs)} jobs, mean error {100 * statistics.mean(abs(math.expm1(r)) for r in now):.1f} %, "
              f"median {math.exp(statistics.median(now)):.3f}: " + " ".join(f"{k}={v:.4g}" for k, v in figures.items()),
              flush=True)
        if turn == options.rounds:
            break
        columns = []
        for key in figures:
            step = -STEP if key in SHARES else STEP
            moved = fixed | figures | {key: figures[key] * math.exp(step)}
            columns.append([(a - b) / step for a, b in zip(residuals(jobs, options, moved), now)])
        change = solve(columns, now)
        figures = {k: min(v * math.exp(c), 1) if k in SHARES else v * math.exp(c)
                   for (k, v), c in zip(figures.items(), change)}


if __name__ == "__main__":
    main()

#!/usr/bin/env bash
# Several plans beside each other: compare, --sweep, and the figures of a plan, each against what follows from the model.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

model=$SMP_EXAMPLES/gpt-tiny.yaml # 64 tokens; 4 layers of width 128 over 256 bytes, the output layer tied
expect_exit 0 smp-partition "$model" -n 4 --stages 2 --microbatches 8 --pipeline simple -o one.yaml
expect_exit 0 smp-partition "$model" -n 4 --effort quick -o two.yaml
expect_match out '^global batch 512 samples; 834.3 k parameters; .* tokens.s; .*FLOP.s per device, MFU'
expect_exit 0 smp-partition "$model" -n 3 --effort quick --json # no power of two divides by 3
expect_exit 0 smp-partition compare one.yaml two.yaml --csv plans.csv --svg plans.svg --tokens 1e9 --price 2
expect_match out '^one.yaml .* simple .* 8 x 1 '
expect_exit 0 smp-partition "$model" -n 2 --csv sweep.csv --effort quick --sweep global-batch=64,63 --sweep ddp=1,2
expect_match out '^global-batch=63 ddp=2: no plan: a global batch of 63 samples'
expect_exit 0 smp-partition "$model" -n 2 --effort quick --global-batch 64 --sweep T=16,32 --sweep ddp=2 --csv set.csv
expect_exit 0 smp-partition "$model" -n 2 --effort quick --global-batch 64 --set T=16 --ddp 2 -o set.yaml
grep -q '^model: .*set: \["T=16"\]' set.yaml || fail "set.yaml: no T=16"
expect_exit 0 smp-partition check set.yaml # the model is opened with it
expect_exit 0 smp-partition compare set.yaml --csv set-alone.csv
expect_exit 0 smp-partition "$model" --fix set.yaml -o fixed.yaml # and kept
grep -q '^model: .*set: \["T=16"\]' fixed.yaml || fail "fixed.yaml: no T=16"
expect_exit 2 smp-partition "$model" -n 2 --sweep Tx=16,32
expect_match err "no option of the search, and not of the model: .*did you mean 'T'"
expect_exit 0 smp-partition "$model" -n 2 --ddp 2 --global-batch 64 --effort quick -o alone.yaml
expect_exit 0 smp-partition compare alone.yaml --csv alone.csv

cat >check.py <<'PYTHON'
import csv, xml.etree.ElementTree as tree

T, d, layers, vocab = 64, 128, 4, 256
matrices = layers * 12 * d * d + vocab * d
parameters = matrices + T * d + layers * 13 * d + 2 * d
# Products and attention (one block of 64 by 64 scores a head), forward and twice as much backward.
flops = 3 * T * (2 * matrices + layers * 4 * T * d)

def near(a, b, part, what):
    assert abs(a - b) <= part * abs(b), f"{what}: got {a}, expected {b}"

plans, sweep, alone = (list(csv.DictReader(open(f))) for f in ("plans.csv", "sweep.csv", "alone.csv"))
assert [r["plan"] for r in plans] == ["one.yaml", "two.yaml"]
for r in plans + [r for r in sweep if not r["reason"]]:
    n = {k: float(v) for k, v in r.items() if k not in ("plan", "reason", "degrees", "schedule", "days", "cost")}
    assert n["parameters"] == parameters, n
    near(n["samples_per_s"], n["global_batch"] / n["step_s"], 1e-6, "samples/s")
    near(n["tokens_per_s"], T * n["samples_per_s"], 1e-6, "tokens/s")
    near(n["device_flops_per_s"], flops * n["samples_per_s"] / n["devices"], 0.01, "FLOP/s")
    near(sum(n[k] for k in ("compute", "fill_and_drain", "imbalance", "transfer", "reduction")), 1, 1e-3, "shares")
    near(float(r["days"] or 0), 1e9 / n["tokens_per_s"] / 86400 if r in plans else 0, 1e-4, "days")
assert plans[1]["global_batch"] == "512"
near(float(plans[0]["cost"]), 2 * 24 * 4 * float(plans[0]["days"]), 1e-4, "cost")
assert [r["plan"] for r in sweep] == [f"global-batch={b} ddp={d}" for b in (64, 63) for d in (1, 2)]
assert [bool(r["reason"]) for r in sweep] == [False, False, False, True]
for key in ("step_s", "degrees", "schedule", "peak_bytes"):
    assert sweep[1][key] == alone[0][key], key
lengths, set_alone = (list(csv.DictReader(open(f))) for f in ("set.csv", "set-alone.csv"))
assert [r["plan"] for r in lengths] == ["T=16 ddp=2", "T=32 ddp=2"]
for r, t in zip(lengths, (16, 32)):
    near(float(r["tokens_per_s"]), t * float(r["samples_per_s"]), 1e-6, "tokens/s of another length")
assert lengths[0]["step_s"] == set_alone[0]["step_s"]
bars = [e for e in tree.parse("plans.svg").iter() if e.tag.endswith("rect") and e.get("height") == "18"]
length = {}
for bar in bars:
    length[bar.get("y")] = length.get(bar.get("y"), 0) + float(bar.get("width"))
(a, b), (p, q) = [length[y] for y in sorted(length)], [1 / float(r["samples_per_s"]) for r in plans]
near(a / b, p / q, 0.01, "bars")
PYTHON
expect_exit 0 python3 check.py

# Days and cost: 1e9 tokens at these tokens a second.
expect_exit 0 smp-partition "$model" -n 2 --stages 2 --microbatches 4 --tokens 1e9 --price 2
expect_match out '^1.0 B tokens: [0-9.]* days on 2 devices, [0-9.]* device hours, which cost '
expect_exit 2 smp-partition "$SMP_EXAMPLES/mlp.yaml" -n 2 --tokens 1e9
expect_match err 'no embedding of model .mlp. reads any'
expect_exit 2 smp-partition "$model" --price 2
expect_exit 2 smp-partition "$model" --csv a.csv
expect_exit 2 smp-partition "$model" --sweep n=2 -o plan.yaml
expect_exit 2 smp-partition "$model" --sweep n=2,
expect_exit 2 smp-partition "$model" --sweep explain=1
expect_match err "'explain' is no option of the search"
expect_exit 2 smp-partition "$model" --sweep n=2,x
expect_exit 3 smp-partition "$model" --sweep n=2 --global-batch 63 --ddp 2
expect_exit 2 smp-partition compare
expect_match err 'at least one'
expect_exit 2 smp-partition compare one.yaml none.yaml
expect_exit 2 smp-partition compare one.yaml --stages 2
finish

#!/usr/bin/env bash
# An input with `split: false` from a file: smp-run trains and evaluates as with a model that finds the
# array once for every sample of its data; what does not fit is refused before the first step.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"

cat >npy.py <<'END'
"""npy.py FILE DESCR SHAPE REPEAT: values of one array of the shape, so often one behind the other."""
import math
import struct
import sys

file, descr, shape, repeat = sys.argv[1], sys.argv[2], eval(sys.argv[3]), int(sys.argv[4])
n = math.prod(shape)
whole = shape if repeat == 0 else (repeat,) + shape
if file.startswith("x"):
    values = [math.sin(1 + i * 0.37) for i in range(n)]
else:
    values = [0.0 if i % 3 == 0 else 1.0 + i / 8 for i in range(n)] * max(repeat, 1)
head = repr({"descr": descr, "fortran_order": False, "shape": whole}).encode()
head += b" " * (-(len(head) + 11) % 64) + b"\n"
with open(file, "wb") as out:
    out.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
    out.write(struct.pack("<%df" % len(values), *values))
END
python3 npy.py x.npy '<f4' '(30, 8)' 0
python3 npy.py y.npy '<f4' '(30, 8)' 0
python3 npy.py mask.npy '<f4' '(8,)' 0
python3 npy.py masks.npy '<f4' '(8,)' 30

model() { # split
    cat <<END
smp: 1
inputs:
  x: {dtype: float32, shape: [8]}
  mask: {dtype: float32, shape: [8], split: $1}
  y: {dtype: float32, shape: [8]}
ops:
  - {op: linear, name: a, in: x, out: h, features: 8}
  - {op: mul, name: cut, in: [h, mask], out: h}
  - {op: gelu, name: b, in: h, out: h}
  - {op: linear, name: c, in: h, out: h, features: 8}
  - {op: mul, name: cut2, in: [h, mask], out: h}
  - {op: mse, name: loss, in: [h, y], out: loss}
loss: loss
END
}
model false >one.yaml
model true >many.yaml

train() { # plan, mask, ranks: the losses of steps and evaluations
    expect_exit 0 mpirun -n "$3" smp-run "$1" --data x=x.npy --data y=y.npy --data mask="$2" --eval-data x=x.npy \
        --eval-data y=y.npy --eval-data mask="$2" --eval-every 3 --steps 9 --lr 0.01 --json --checksum
    grep -oE '"(loss|eval_loss|weights|checksum)": ?"?[^,}]*' out >"$1.losses" || true
}
for ranks in 2 4; do
    for kind in one many; do
        expect_exit 0 smp-partition "$kind.yaml" -n "$ranks" --stages 2 --tensor 1 --microbatches 2 --microbatch-size 2 \
            -o "$kind-$ranks.yaml"
    done
    train "one-$ranks.yaml" mask.npy "$ranks"
    train "many-$ranks.yaml" masks.npy "$ranks"
    expect_equal "$ranks ranks: lines, with the weights of each replica" "$(wc -l <"one-$ranks.yaml.losses")" $((12 + ranks / 2))
    expect_equal "$ranks ranks: bits" "$(diff "one-$ranks.yaml.losses" "many-$ranks.yaml.losses" || true)" ""
done

data=(--data x=x.npy --data y=y.npy)
expect_exit 2 mpirun -n 2 smp-run one-2.yaml "${data[@]}" --data mask=masks.npy --steps 1
expect_match err "masks\.npy: got array shape \(30, 8\), expected \[8\] for the input 'mask', which has split: false"
expect_exit 2 mpirun -n 2 smp-run many-2.yaml "${data[@]}" --data mask=mask.npy --steps 1
expect_match err "mask\.npy: got array shape \(8\), expected samples of \[8\]"
expect_exit 2 mpirun -n 2 smp-run one-2.yaml "${data[@]}" --data mask=mask.npy --data mask=mask.npy --steps 1
expect_match err "input 'mask' has two sources: mask\.npy and mask\.npy"
expect_exit 2 mpirun -n 2 smp-run one-2.yaml "${data[@]}" --steps 1
expect_match err "input 'mask' of model .* has no data"
sed 's/shape: \[8\]}/shape: [8], split: no}/' one.yaml >none.yaml
expect_exit 0 smp-partition none.yaml -n 1 -o none-1.yaml
expect_exit 2 smp-run none-1.yaml --data x=mask.npy --data y=mask.npy --data mask=mask.npy --steps 1
expect_match err "all inputs have split: false"
sed 's/split: false/split: 3/' one.yaml >bad.yaml
expect_exit 2 smp-partition bad.yaml -n 1 -o bad-1.yaml
expect_match err "bad\.yaml:4:[0-9]+: input 'mask': split"
sed 's/split: false/splitt: false/' one.yaml >bad.yaml
expect_exit 2 smp-partition bad.yaml -n 1 -o bad-1.yaml
expect_match err "'split'"
finish

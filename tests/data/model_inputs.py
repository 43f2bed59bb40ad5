#!/usr/bin/env python3
"""Arrays for the inputs of a model, the same wherever they are made; the standard library alone.

    python3 tests/data/model_inputs.py FOLDER SAMPLES INPUT...

Each INPUT is NAME:KIND:SHAPE, SHAPE as 3x28x28 or empty, and becomes FOLDER/NAME.npy of so many
samples. KIND: float (in [-1, 1)), share (float in [0, 1)), index-N (below N), class-N (below N, one
of eight -1) or mask (ones, then zeros, at least one 1).
"""
import array
import sys


def numbers(seed):
    """Endless 24-bit numbers of a seed (splitmix64, Steele et al. 2014)."""
    mask = (1 << 64) - 1
    state = seed
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield (z ^ (z >> 31)) >> 40


def seed_of(name):
    seed = 0
    for byte in name.encode():
        seed = seed * 131 + byte
    return seed


def values(name, kind, shape, samples):
    """An array of samples * elements, 'f' or 'i'."""
    count = samples
    for size in shape:
        count *= size
    draw = numbers(seed_of(name))
    kind, _, bound = kind.partition("-")
    if kind == "float":
        return array.array("f", (next(draw) / (1 << 23) - 1 for _ in range(count)))
    if kind == "share":
        return array.array("f", (next(draw) / (1 << 24) for _ in range(count)))
    if kind == "index":
        return array.array("i", (next(draw) % int(bound) for _ in range(count)))
    if kind == "class":
        return array.array("i", (-1 if next(draw) % 8 == 0 and shape else next(draw) % int(bound)
                                 for _ in range(count)))
    if kind == "mask":
        rows = array.array("i")
        for _ in range(samples):
            ones = 1 + next(draw) % shape[-1]
            rows.extend(1 if i < ones else 0 for i in range(shape[-1]))
        return rows
    raise SystemExit(f"model_inputs.py: no kind of input '{kind}'")


def write_npy(path, made, shape):
    """NumPy's format, version 1.0."""
    head = "{'descr': '<%s4', 'fortran_order': False, 'shape': (%s,), }" % (
        made.typecode, ", ".join(map(str, shape)))
    head = head.ljust(117) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode())
        made.tofile(file)


def parse(text):
    name, kind, shape = text.split(":")
    return name, kind, [int(size) for size in shape.split("x") if size]


def main():
    folder, samples = sys.argv[1], int(sys.argv[2])
    for text in sys.argv[3:]:
        name, kind, shape = parse(text)
        write_npy(f"{folder}/{name}.npy", values(name, kind, shape, samples), [samples] + shape)


if __name__ == "__main__":
    main()

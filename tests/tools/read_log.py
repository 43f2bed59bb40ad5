#!/usr/bin/env python3
"""Reads a log of smp-run, written independently of it.

read_log.py FILE.csv | events.out.tfevents...: prints a line for each step, "step name=value ...", of what a
resumed run must repeat (no times, no memory), and checks the rest: framing and checksums, heads, ranges.
"""
import csv
import struct
import sys

REPEATED = ["loss", "lr", "grad_norm", "skipped", "loss_scale", "eval_loss", "accuracy", "accuracy_top5"]
HEAD = ["step", "loss", "lr", "grad_norm", "samples_per_s", "step_us", "predicted_us", "skipped", "loss_scale", "bubble",
        "memory_peak_bytes", "eval_loss", "accuracy", "accuracy_top5"]
TABLE = []
for number in range(256):
    for _ in range(8):
        number = number >> 1 ^ 0x82F63B78 * (number & 1)
    TABLE.append(number)


def masked(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        length, crc = struct.unpack_from("<QI", data, at)
        assert crc == masked(data[at:at + 8]), f"byte {at}: checksum of a length"
        body = data[at + 12:at + 12 + length]
        assert len(body) == length and struct.unpack_from("<I", data, at + 12 + length)[0] == masked(body), \
            f"byte {at}: checksum of a record"
        yield body
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 2:
            n, at = varint(data, at)
            value, at = data[at:at + n], at + n
        else:
            n = {1: 8, 5: 4}[key & 7]
            value, at = struct.unpack("<d" if n == 8 else "<f", data[at:at + n])[0], at + n
        yield key >> 3, value


def events(path):
    first = True
    for record in records(open(path, "rb").read()):
        event = dict(fields(record))
        assert event[1] > 1.5e9, "no wall time"
        if first:
            assert event[3] == b"brain.Event:2", event
        else:
            row = {"step": event[2]}
            for number, value in fields(event[5]):
                assert number == 1
                value = dict(fields(value))
                row[value[1].decode().replace("eval/loss", "eval/eval_loss").replace(
                    "memory/", "memory/memory_").split("/")[1]] = value[2]
            yield row
        first = False
    assert not first, "no version"


def table(path):
    lines = csv.reader(open(path, newline=""))
    assert next(lines) == HEAD
    for cells in lines:
        assert len(cells) == len(HEAD), cells
        yield {name: float(cell) for name, cell in zip(HEAD, cells) if cell}


for row in table(sys.argv[1]) if sys.argv[1].endswith(".csv") else events(sys.argv[1]):
    assert set(row) >= set(HEAD[:11]) - {"loss_scale"}, row
    assert row["step_us"] > 0 and row["predicted_us"] > 0 and row["samples_per_s"] > 0, row
    assert 0 <= row["bubble"] < 1 and row["memory_peak_bytes"] > 1e6, row
    assert 0 < row["samples_per_s"] * row["step_us"] <= 4.08e6, row  # four samples, and the waiting for data
    print(int(row["step"]), *(f"{name}={row[name]:.6g}" for name in REPEATED if name in row))

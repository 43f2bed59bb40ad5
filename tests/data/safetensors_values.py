"""Reads a file in the safetensors format by its description alone, refuses what breaks it, and prints a line
for every tensor in the order of the file: name, shape, sum of the values' magnitudes, hash of their bytes.

usage: safetensors_values.py FILE
"""
import hashlib
import json
import math
import struct
import sys


def no_pair_twice(pairs):
    assert len(dict(pairs)) == len(pairs), "a key is there twice"
    return dict(pairs)


def main(path):
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    assert length % 8 == 0 and 8 + length <= len(content), f"a header of {length} bytes"
    header = json.loads(content[8 : 8 + length].decode(), object_pairs_hook=no_pair_twice)
    values = content[8 + length :]
    assert header.pop("__metadata__") == {"format": "pt"}
    end = 0
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        assert sorted(tensor) == ["data_offsets", "dtype", "shape"], tensor
        begin, end_before, end = tensor["data_offsets"][0], end, tensor["data_offsets"][1]
        assert tensor["dtype"] == "F32" and begin == end_before, (name, tensor)
        assert end - begin == 4 * math.prod(tensor["shape"]), (name, tensor)
        floats = struct.unpack(f"<{(end - begin) // 4}f", values[begin:end])
        total = math.fsum(abs(x) for x in floats)
        digest = hashlib.sha256(values[begin:end]).hexdigest()[:16]
        print(name, "x".join(map(str, tensor["shape"])), f"{total:.9g}", digest)
    assert end == len(values), f"{len(values)} bytes of values, the header says {end}"


main(sys.argv[1])

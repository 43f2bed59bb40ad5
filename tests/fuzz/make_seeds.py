#!/usr/bin/env python3
"""Writes seeds of the formats whose files are no text: make_seeds.py FOLDER makes FOLDER/idx, FOLDER/image
and FOLDER/onnx, with the same bytes every time. The JPEG images, 4 x 4 pixels of libjpeg's, stand here
compressed."""
import base64
import os
import struct
import sys
import zlib

import onnx_seeds

GREY_JPEG = (
    "eNr7f+P/AwYBLzdPNwZGRgYGRiBk+H+bwRnIowz8P8DAzcHAwsDCyCjI8P8IgzzQcFaIFAMUMDIxs7CysXNwcnED"
    "FWwVYGBiZGZmYmFmZWVhAcrWAuUZWARZhRQNHdmEAxPZlQpFjBonLuRQdtp4UDTo4gcV46SiJk4uMXEJSSlVNXUN"
    "TS0TUzNzC0srZxdXN3cPT6/gkNCw8IjIqOSU1LT0jMys4pLSsvKKyqrmlta29o7OrkmTp0ydNn3GzFmLFi9Zumz5"
    "ipWrNm3esnXb9h07dx06fOToseMnTp66dPnK1WvXb9y89fDR4ydPnz1/8fLVx0+fv3z99v3Hz1//bzFwgPxjz/B3"
    "wQ/R/wwsOv8Zmgr+MxzacbH+0Zn/DNX/4kr2/3zK/tfh9f+bAHoKdT8="
)
PROGRESSIVE_JPEG = (
    "eNr7f+P/AwYBLzdPNwZGRgYGRiBk+H+bwRnIowyADGGk2JBDDIIcDCwMLMyMSgxMgozMgoz/jzCIgp2KAjiAwiIY"
    "oiz/bzHwMDMyMAkwCwD9tuYwO1CZmAAjmkJ2VlGgQg6gKCMrU4dK5XyQYYLohjGA1TAzMtoz1uNRwARTICUANA5F"
    "DTMDo2pg8iKoXWz2TDzuzsuOgtSKCmC4vRHmJHvFXdNh/gAawcAgwEzAfQKE3AdRIIBdAchKAa7v/28CAKUuQkA="
)


def idx(code, dims, values):
    return struct.pack(">HBB", 0, code, len(dims)) + struct.pack(">%dI" % len(dims), *dims) + values


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(colour, channels, interlaced=0):
    rows = b"".join(b"\0" + bytes(range(4 * channels)) for _ in range(4))
    if interlaced:  # Adam7: the rows of passes 1, 4, 5, 6 and 7, the others have none
        widths = [1, 1, 2, 2, 2, 4, 4]
        rows = b"".join(b"\0" + bytes(range(w * channels)) for w in widths)
    head = struct.pack(">IIBBBBB", 4, 4, 8, colour, 0, 0, interlaced)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 0))
            + chunk(b"IEND", b""))


def packed(text):
    return zlib.decompress(base64.b64decode(text))


SEEDS = {
    "idx/u1": idx(0x08, [2, 3], bytes([0, 1, 2, 6, 5, 4])),
    "idx/i2": idx(0x0B, [1, 1, 3], struct.pack(">3h", 6, 0, 3)),
    "idx/i4": idx(0x0C, [1, 3], struct.pack(">3i", 6, -1, 3)),
    "idx/f8": idx(0x0E, [1, 3], struct.pack(">3d", 6, -1, 0.5)),
    "image/grey.png": png(0, 1),
    "image/colour.png": png(2, 3),
    "image/alpha.png": png(6, 4),
    "image/interlaced.png": png(0, 1, 1),
    "image/grey.jpg": packed(GREY_JPEG),
    "image/progressive.jpg": packed(PROGRESSIVE_JPEG),
}

for name, data in {**SEEDS, **onnx_seeds.SEEDS}.items():
    path = os.path.join(sys.argv[1], name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)

#!/usr/bin/env bash
# Makes the arrays for vit-digits.yaml from Debian's package dataset-fashion-mnist (MIT licence):
#   fashion-mnist.sh [FOLDER]      default: fashion-mnist
# writes {train,test}-{images,labels}.npy. An IDX file is a header of 8 (labels) or 16 bytes
# (images) and the bytes themselves; an .npy file is another header and the same bytes.
set -euo pipefail

source_folder=${SMP_FASHION_MNIST:-/usr/share/datasets/fashion-mnist}
target_folder=${1:-fashion-mnist}

if [ ! -r "$source_folder/train-images-idx3-ubyte.gz" ]; then
    echo "fashion-mnist: no data in $source_folder: apt-get install dataset-fashion-mnist" >&2
    exit 1
fi
mkdir -p "$target_folder"

# npy_header SHAPE: version 1.0, unsigned bytes; 10 bytes, then text up to byte 128.
npy_header() {
    printf '\x93NUMPY\x01\x00\x76\x00'
    printf '%-117s\n' "{'descr': '|u1', 'fortran_order': False, 'shape': ($1), }"
}

# convert FILE HEADER_BYTES VALUES SHAPE NAME
convert() {
    local target=$target_folder/$5.npy bytes
    {
        npy_header "$4"
        zcat "$source_folder/$1.gz" | tail -c "+$(($2 + 1))"
    } >"$target.part"
    bytes=$(wc -c <"$target.part")
    if [ "$bytes" -ne "$((128 + $3))" ]; then
        rm -f "$target.part"
        echo "fashion-mnist: $1.gz: got $((bytes - 128)) values, expected $3" >&2
        exit 1
    fi
    mv "$target.part" "$target"
    echo "$target ($4)"
}

convert train-images-idx3-ubyte 16 $((60000 * 28 * 28)) "60000, 28, 28" train-images
convert train-labels-idx1-ubyte 8 60000 "60000," train-labels
convert t10k-images-idx3-ubyte 16 $((10000 * 28 * 28)) "10000, 28, 28" test-images
convert t10k-labels-idx1-ubyte 8 10000 "10000," test-labels

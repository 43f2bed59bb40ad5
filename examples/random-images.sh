#!/usr/bin/env bash
# Makes images of random pixels in random classes, to try a model or to time it:
#   random-images.sh SIZE CLASSES COUNT [FOLDER]      default: random-images
# writes images.npy, unsigned bytes (COUNT, 3, SIZE, SIZE), and labels.npy, int32 (COUNT); the same
# ones every time.
set -euo pipefail

size=${1:?side of the images in pixels}
classes=${2:?number of classes}
count=${3:?number of images}
folder=${4:-random-images}
mkdir -p "$folder"

# array TYPE SHAPE VALUES LIMIT BYTES: VALUES random numbers below LIMIT, BYTES bytes each, as .npy of version 1.0.
array() {
    printf '\x93NUMPY\x01\x00\x76\x00'
    printf '%-117s\n' "{'descr': '$1', 'fortran_order': False, 'shape': ($2), }"
    LC_ALL=C awk -v n="$3" -v limit="$4" -v bytes="$5" 'BEGIN {
        srand(1)
        for (i = 0; i < n; i++) {
            value = int(limit * rand())
            for (b = 0; b < bytes; b++) {
                printf "%c", value % 256
                value = int(value / 256)
            }
        }
    }'
}

array '|u1' "$count, 3, $size, $size" $((count * 3 * size * size)) 256 1 >"$folder/images.npy"
array '<i4' "$count," "$count" "$classes" 4 >"$folder/labels.npy"

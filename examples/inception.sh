#!/usr/bin/env bash
# Prints inception.yaml: Inception-v3 (Szegedy et al. 2016) with the layer shapes of torchvision's
# inception_v3, without the auxiliary head, every convolution, normalisation, activation, pooling and
# concatenation an op of its own. The ops are opaque: their costs follow from the shapes.
#   examples/inception.sh [SAMPLES] >inception.yaml       samples in a micro-batch (default 32)
set -euo pipefail
awk -v samples="${1:-32}" '
# 2 operations per multiplication and addition at the rate below; the backward pass does them twice,
# once for the input (not for the image) and once for the weight. All else moves bytes: it reads its
# inputs and writes its output, forward; backward it also reads or writes what it saved.
BEGIN {
    flops_per_us = 7e6     # 7 TFLOP/s: half of the peak of a V100 in fp32
    bytes_per_us = 0.72e6  # 720 GB/s: four fifths of its memory bandwidth
    header()
    stem()
    inception_a(32)
    inception_a(64)
    inception_a(64)
    inception_b()
    inception_c(128)
    inception_c(160)
    inception_c(160)
    inception_c(192)
    inception_d()
    inception_e()
    inception_e()
    head()
}

function header() {
    print "# Inception-v3 as opaque ops, printed by inception.sh: shapes of torchvision'\''s inception_v3 (Szegedy et"
    print "# al. 2016), fp32, micro-batches of " samples " images of 299 x 299. Convolutions at 7 TFLOP/s, the rest at"
    print "# 720 GB/s, which a V100 sustains. Branches run side by side in 11 modules: 35,683 sets of ops are closed"
    print "# under predecessors, and any of them can be the front part of a pipeline."
    print "#   smp-partition inception.yaml --cluster cluster-v100.yaml --stages 8 --microbatch-size 32"
    print "smp: 1"
    print "name: inception-v3"
    print "ops:"
}

# A tensor: its name, and channels, height and width by name.
function bytes(tensor) {
    return 4 * samples * channels[tensor] * height[tensor] * width[tensor]
}

function emit(name, inputs, forward_us, backward_us, weights, stash) {
    printf "  - {op: opaque, name: %s, %sout: %s, cost: {forward_us: %.3f, backward_us: %.3f, weight_bytes: %d, stash_bytes: %.0f, output_bytes: %.0f}}\n",
        name, inputs == "" ? "" : "in: " inputs ", ", name, forward_us, backward_us, 4 * weights,
        stash, bytes(name)
}

function shape(tensor, c, h, w) {
    channels[tensor] = c
    height[tensor] = h
    width[tensor] = w
}

# Convolution, batch normalisation and ReLU. The output of the convolution is saved for the
# normalisation, that of the ReLU for itself and for what reads it.
function conv(name, from, c, kh, kw, stride, padded,    h, w, macs, out) {
    h = padded ? height[from] : int((height[from] - kh) / stride) + 1
    w = padded ? width[from] : int((width[from] - kw) / stride) + 1
    macs = samples * h * w * c * channels[from] * kh * kw
    out = name ".conv"
    shape(out, c, h, w)
    emit(out, from == "image" ? "" : from, 2 * macs / flops_per_us,
         (from == "image" ? 2 : 4) * macs / flops_per_us, c * channels[from] * kh * kw, bytes(out))
    shape(name ".bn", c, h, w)
    emit(name ".bn", out, 2 * bytes(out) / bytes_per_us, 3 * bytes(out) / bytes_per_us, 2 * c, 0)
    shape(name ".relu", c, h, w)
    emit(name ".relu", name ".bn", 2 * bytes(out) / bytes_per_us, 3 * bytes(out) / bytes_per_us, 0,
         bytes(out))
    return name ".relu"
}

function pool(name, from, stride,    h, w) {
    h = stride == 1 ? height[from] : int((height[from] - 3) / stride) + 1
    w = stride == 1 ? width[from] : int((width[from] - 3) / stride) + 1
    shape(name, channels[from], h, w)
    emit(name, from, (bytes(from) + bytes(name)) / bytes_per_us,
         (bytes(from) + (stride == 1 ? 1 : 2) * bytes(name)) / bytes_per_us, 0, bytes(name))
    return name
}

# Joins up to four tensors; "" for one that is missing.
function concat(name, a, b, c, d,    part, n, i, list, total) {
    n = split(a " " b " " c " " d, part, " ")
    for (i = 1; i <= n; i++) {
        list = list (i > 1 ? ", " : "") part[i]
        total += channels[part[i]]
    }
    shape(name, total, height[a], width[a])
    emit(name, "[" list "]", 2 * bytes(name) / bytes_per_us, 2 * bytes(name) / bytes_per_us, 0,
         bytes(name))
    x = name
}

# The modules read and replace x, the tensor that all branches of a module start from.
function module() {
    m = "mixed" n_module++
}

function stem() {
    shape("image", 3, 299, 299)
    x = conv("stem1", "image", 32, 3, 3, 2, 0)
    x = conv("stem2", x, 32, 3, 3, 1, 0)
    x = conv("stem3", x, 64, 3, 3, 1, 1)
    x = pool("stem3.pool", x, 2)
    x = conv("stem4", x, 80, 1, 1, 1, 1)
    x = conv("stem5", x, 192, 3, 3, 1, 0)
    x = pool("stem5.pool", x, 2)
}

function inception_a(pool_features,    one, five, double, pooled) {
    module()
    one = conv(m ".1x1", x, 64, 1, 1, 1, 1)
    five = conv(m ".5x5_2", conv(m ".5x5_1", x, 48, 1, 1, 1, 1), 64, 5, 5, 1, 1)
    double = conv(m ".3x3dbl_2", conv(m ".3x3dbl_1", x, 64, 1, 1, 1, 1), 96, 3, 3, 1, 1)
    double = conv(m ".3x3dbl_3", double, 96, 3, 3, 1, 1)
    pooled = conv(m ".pool_1", pool(m ".pool", x, 1), pool_features, 1, 1, 1, 1)
    concat(m ".concat", one, five, double, pooled)
}

function inception_b(    three, double, pooled) {
    module()
    three = conv(m ".3x3", x, 384, 3, 3, 2, 0)
    double = conv(m ".3x3dbl_2", conv(m ".3x3dbl_1", x, 64, 1, 1, 1, 1), 96, 3, 3, 1, 1)
    double = conv(m ".3x3dbl_3", double, 96, 3, 3, 2, 0)
    pooled = pool(m ".pool", x, 2)
    concat(m ".concat", three, double, pooled, "")
}

function inception_c(c,    one, seven, double, pooled) {
    module()
    one = conv(m ".1x1", x, 192, 1, 1, 1, 1)
    seven = conv(m ".7x7_2", conv(m ".7x7_1", x, c, 1, 1, 1, 1), c, 1, 7, 1, 1)
    seven = conv(m ".7x7_3", seven, 192, 7, 1, 1, 1)
    double = conv(m ".7x7dbl_2", conv(m ".7x7dbl_1", x, c, 1, 1, 1, 1), c, 7, 1, 1, 1)
    double = conv(m ".7x7dbl_4", conv(m ".7x7dbl_3", double, c, 1, 7, 1, 1), c, 7, 1, 1, 1)
    double = conv(m ".7x7dbl_5", double, 192, 1, 7, 1, 1)
    pooled = conv(m ".pool_1", pool(m ".pool", x, 1), 192, 1, 1, 1, 1)
    concat(m ".concat", one, seven, double, pooled)
}

function inception_d(    three, seven, pooled) {
    module()
    three = conv(m ".3x3_2", conv(m ".3x3_1", x, 192, 1, 1, 1, 1), 320, 3, 3, 2, 0)
    seven = conv(m ".7x7x3_2", conv(m ".7x7x3_1", x, 192, 1, 1, 1, 1), 192, 1, 7, 1, 1)
    seven = conv(m ".7x7x3_4", conv(m ".7x7x3_3", seven, 192, 7, 1, 1, 1), 192, 3, 3, 2, 0)
    pooled = pool(m ".pool", x, 2)
    concat(m ".concat", three, seven, pooled, "")
}

# Two branches split once more; their halves are joined with the others.
function inception_e(    one, three, double, pooled, left, right) {
    module()
    one = conv(m ".1x1", x, 320, 1, 1, 1, 1)
    three = conv(m ".3x3_1", x, 384, 1, 1, 1, 1)
    double = conv(m ".3x3dbl_2", conv(m ".3x3dbl_1", x, 448, 1, 1, 1, 1), 384, 3, 3, 1, 1)
    pooled = conv(m ".pool_1", pool(m ".pool", x, 1), 192, 1, 1, 1, 1)
    left = conv(m ".3x3_2a", three, 384, 1, 3, 1, 1)
    right = conv(m ".3x3_2b", three, 384, 3, 1, 1, 1)
    concat(m ".3x3_2", left, right, "", "")
    three = x
    left = conv(m ".3x3dbl_3a", double, 384, 1, 3, 1, 1)
    right = conv(m ".3x3dbl_3b", double, 384, 3, 1, 1, 1)
    concat(m ".3x3dbl_3", left, right, "", "")
    concat(m ".concat", one, three, x, pooled)
}

function head(    macs) {
    shape("pool", channels[x], 1, 1)
    emit("pool", x, bytes(x) / bytes_per_us, bytes(x) / bytes_per_us, 0, bytes("pool"))
    shape("fc", 1000, 1, 1)
    macs = samples * channels["pool"] * 1000
    emit("fc", "pool", 2 * macs / flops_per_us, 4 * macs / flops_per_us, channels["pool"] * 1000 + 1000,
         bytes("fc"))
    shape("loss", 0, 0, 0)
    emit("loss", "fc", 2 * bytes("fc") / bytes_per_us, 2 * bytes("fc") / bytes_per_us, 0, bytes("fc"))
}'

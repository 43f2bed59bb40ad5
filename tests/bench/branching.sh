#!/usr/bin/env bash
# Prints a branching network of opaque ops with about DOWNSETS sets of ops that are closed under
# predecessors, each of which can be the front part of a pipeline: modules of two to five parallel
# chains between a fork and a join, as in Inception. Costs and sizes spread over two orders of
# magnitude; tensors get smaller, and ops lighter, towards the end. The comment says how many
# downsets there are.
#   branching.sh DOWNSETS SEED
set -euo pipefail
awk -v downsets="${1:?downsets}" -v seed="${2:?seed}" '
function random() { # Lehmer generator: the same numbers everywhere
    seed = (seed * 48271) % 2147483647
    return seed / 2147483647
}

function whole(least, most) {
    return least + int(random() * (most - least + 1))
}

function op(name, inputs, depth,    us, size) {
    us = exp(log(100) * random()) * 20 / (1 + depth)
    size = exp(log(30) * random()) * 300000 / (1 + depth)
    text = text sprintf("  - {op: opaque, name: %s, %sout: %s, cost: {forward_us: %.1f, backward_us: %.1f, weight_bytes: %d, stash_bytes: %d, output_bytes: %d}}\n",
        name, inputs == "" ? "" : "in: [" inputs "], ", name, us, us * (1.5 + random()),
        1000 * us, size, size)
    n_op++
}

BEGIN {
    seed = seed * 7919 + 104729
    for (i = 0; i < 20; i++)
        random()
    module = 0
    op("stem", "", 0)
    last = "stem"
    count = 2
    while (count < downsets) {
        # A module adds every choice of one front per chain, and one for its join.
        chains = whole(2, 5)
        closed = 1
        joined = ""
        for (c = 0; c < chains; c++) {
            ops = whole(2, chains > 3 ? 9 : 15)
            if (count + closed * (ops + 1) > 1.1 * downsets)
                ops = int((1.1 * downsets - count) / closed) - 1
            if (ops < 1)
                break
            closed *= ops + 1
            from = last
            for (o = 0; o < ops; o++) {
                name = "m" module ".c" c "_" o
                op(name, from, module / 4)
                from = name
            }
            joined = joined (c > 0 ? ", " : "") from
        }
        name = "m" module ".join"
        op(name, joined, module / 4)
        last = name
        count += closed
        module++
    }
    printf "# %d ops, %d downsets\nsmp: 1\nname: branching\nops:\n%s", n_op, count, text
}'

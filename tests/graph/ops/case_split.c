/* split: random and large models (one to four outputs, along any axis); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    static const char *const outputs[] = {"y", "[y, z]", "[y, z, u]", "[y, z, u, v]"};
    int n_out = (int)random_int(rng, 1, 4), n_dim = 1 + round % 3, length = 0;
    int axis = (int)random_int(rng, -n_dim, n_dim - 1), size = (int)random_int(rng, 1, 7);
    bool alike = round % 2 == 0;
    char shape[64] = "[", sizes[64] = ", sizes: [";
    for (int k = 0; k < n_out; k++) {
        size = alike ? size : (int)random_int(rng, 1, 7);
        snprintf(sizes + strlen(sizes), 16, "%s%d", k ? ", " : "", size);
        length += size;
    }
    for (int d = 0; d < n_dim; d++)
        snprintf(shape + strlen(shape), 16, "%s%d", d ? ", " : "",
                 d == (axis + n_dim) % n_dim ? length : (int)random_int(rng, 1, 7));
    model_input(m, "a", "float32", strcat(shape, "]"));
    model_write(m, "ops:\n  - {op: split, name: op, in: a, out: %s", outputs[n_out - 1]);
    if (!alike)
        model_write(m, "%s]", sizes);
    if (axis != -1)
        model_write(m, ", axis: %d", axis);
    model_write(m, "}\n");
}

static void reference(const reference_call *c)
{
    const smp_shape *in = &ref_in(c, 0)->shape;
    int64_t axis = ref_attr(c, "axis")->i, outer = c->batch, inner = 1, at = 0, begin = 0;
    axis += axis < 0 ? in->n_dim : 0;
    for (int64_t i = 0; i < axis; i++)
        outer *= in->dim[i];
    for (int64_t i = axis + 1; i < in->n_dim; i++)
        inner *= in->dim[i];
    for (int k = 0; k < c->op->n_out; k++) {
        int64_t length = c->graph->tensor[c->op->out + k].shape.dim[axis];
        for (int64_t o = 0; o < outer; o++)
            for (int64_t i = begin * inner; i < (begin + length) * inner; i++)
                c->out[at++] = c->in[0][o * in->dim[axis] * inner + i];
        begin += length;
    }
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [50, 224]", "in: a, out: [y, z, u], sizes: [64, 32, 128]"},
    {2, 2, "a: float32 [90, 131]", "in: a, out: [y, z], sizes: [65, 66]"},
    {2, 2, "a: float32 [210, 66]", "in: a, out: [y, z, u], axis: 0"},
    {2, 2, "a: int32 [9, 13]", "in: a, out: [y, z], sizes: [8, 5]"},
    {2, 2, "a: float32 [24, 5, 4]", "in: a, out: [y, z], axis: 0, sizes: [8, 16]"},
    {0},
};

OP_CASE(split) = {
    .make = make, .reference = reference, .tolerance = 1e-6, .exact = true, .large = LARGE};

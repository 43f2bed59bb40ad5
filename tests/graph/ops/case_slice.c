/* slice: random and large models (along any axis, counted from either end); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64] = "[";
    int n_dim = 1 + round % 3, dim[3], axis = (int)random_int(rng, 0, n_dim - 1);
    for (int d = 0; d < n_dim; d++) {
        dim[d] = (int)random_int(rng, 1, 9);
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%d", d ? ", " : "",
                 dim[d]);
    }
    model_input(m, "a", "float32", strcat(shape, "]"));
    int begin = (int)random_int(rng, 0, dim[axis] - 1);
    int end = (int)random_int(rng, begin + 1, dim[axis]);
    model_write(m, "ops:\n  - {op: slice, name: op, in: a, out: y, axis: %d",
                round % 2 ? axis : axis - n_dim);
    if (begin > 0 || round % 5 == 0)
        model_write(m, ", begin: %d", round % 4 == 1 ? begin - dim[axis] : begin);
    if (end < dim[axis] || round % 5 == 1)
        model_write(m, ", end: %d", round % 4 == 2 ? end - dim[axis] : end);
    model_write(m, "}\n");
}

static void reference(const reference_call *c)
{
    const smp_shape *shape = &ref_in(c, 0)->shape;
    int64_t axis = ref_attr(c, "axis")->i, outer = c->batch, inner = 1, at = 0;
    int64_t begin = ref_attr(c, "begin")->i, end = ref_attr(c, "end")->i;
    axis += axis < 0 ? shape->n_dim : 0;
    for (int64_t i = 0; i < axis; i++)
        outer *= shape->dim[i];
    for (int64_t i = axis + 1; i < shape->n_dim; i++)
        inner *= shape->dim[i];
    begin += begin < 0 ? shape->dim[axis] : 0;
    end += end <= 0 ? shape->dim[axis] : 0;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t k = begin; k < end; k++)
            for (int64_t i = 0; i < inner; i++)
                c->out[at++] = c->in[0][(o * shape->dim[axis] + k) * inner + i];
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [50, 64]", "in: a, begin: 16, end: -16"},
    {2, 2, "a: float32 [90, 65]", "in: a, begin: 3, end: 64"},
    {2, 2, "a: float32 [200, 66]", "in: a, axis: 0, begin: -150"},
    {2, 2, "a: int32 [9, 8]", "in: a, axis: 0, begin: 2, end: -3"},
    {2, 2, "a: float32 [24, 5, 4]", "in: a, axis: 0, begin: 8"},
    {0},
};

OP_CASE(slice) = {
    .make = make, .reference = reference, .tolerance = 1e-6, .exact = true, .large = LARGE};

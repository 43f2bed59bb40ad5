/* bias: random and large models, along the last dimension and others; the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    const int dims = 1 + round % 4;
    model_input(m, "a", "float32", random_shape(shape, rng, dims, 9));
    if (round % 3 == 0)
        model_write(m, "ops:\n  - {op: bias, name: op, in: a, out: y}\n");
    else
        model_write(m, "ops:\n  - {op: bias, name: op, in: a, out: y, axis: %d}\n",
                    (int)random_int(rng, -dims, dims - 1));
}

static void reference(const reference_call *c)
{
    const smp_shape *shape = &ref_in(c, 0)->shape;
    int64_t axis = ref_attr(c, "axis")->i, inner = 1;
    axis += axis < 0 ? shape->n_dim : 0;
    for (int64_t k = axis + 1; k < shape->n_dim; k++)
        inner *= shape->dim[k];
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        c->out[i] = c->in[0][i] + c->param[0][i / inner % shape->dim[axis]];
}

/* A sum, and one more for the gradient of the bias. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, 1, 0, 1);
}

static const large_case LARGE[] = {
    {5, 2, "a: float32 [70, 512]", ""},
    {3, 2, "a: float32 [290, 33]", ""},
    {4, 2, "a: float32 [12, 20, 24]", "axis: 0"},
    {4, 2, "a: float32 [9, 19, 17]", "axis: -3"},
    {2, 2, "a: float32 [300, 40, 8]", "axis: 1"},
    {2, 2, "a: float32 [24, 9, 8]", "axis: 0"},
    {0},
};

OP_CASE(bias) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 1e-5, .large = LARGE};

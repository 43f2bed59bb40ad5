/* mean: random and large models (along any axis); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    int n_dim = 1 + round % 3, axis = (int)random_int(rng, -n_dim, n_dim - 1);
    model_input(m, "a", "float32", random_shape(shape, rng, n_dim, round % 5 == 0 ? 40 : 9));
    model_write(m, "ops:\n  - {op: mean, name: op, in: a, out: y");
    if (axis == -1)
        model_write(m, "}\n");
    else
        model_write(m, ", axis: %d}\n", axis);
}

/* [outer][size][inner], the batch in outer */
static int64_t split(const reference_call *c, int64_t *size, int64_t *inner)
{
    const smp_shape *shape = &ref_in(c, 0)->shape;
    int64_t axis = ref_attr(c, "axis")->i;
    axis += axis < 0 ? shape->n_dim : 0;
    *size = shape->dim[axis];
    *inner = 1;
    for (int64_t i = axis + 1; i < shape->n_dim; i++)
        *inner *= shape->dim[i];
    return ref_count(c, 0) / (*size * *inner);
}

static void reference(const reference_call *c)
{
    int64_t size, inner, outer = split(c, &size, &inner);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            double sum = 0;
            for (int64_t k = 0; k < size; k++)
                sum += c->in[0][(o * size + k) * inner + i];
            c->out[o * inner + i] = sum / (double)size;
        }
}

/* A sum along the dimension and one product; a product for each element. */
static reference_flops flops(const reference_call *c)
{
    int64_t size, inner, outer = split(c, &size, &inner);
    reference_flops count = ref_flops_each(c, 1, 1, 0);
    count.forward += (double)(outer * inner);
    return count;
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [100, 200]", "axis: 0"}, {3, 2, "a: float32 [70, 1031]", ""},
    {2, 2, "a: float32 [2, 20000]", ""},        {2, 2, "a: float32 [9, 33, 40]", "axis: 1"},
    {40, 2, "a: float32 [5, 33]", "axis: 0"},   {0},
};

OP_CASE(mean) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 2e-6, .large = LARGE};

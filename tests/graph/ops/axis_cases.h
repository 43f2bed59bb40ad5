/* What the cases of sum and mean share: a dimension of any size, and the sums along it. */
#ifndef SMP_TESTS_GRAPH_OPS_AXIS_CASES_H
#define SMP_TESTS_GRAPH_OPS_AXIS_CASES_H

#include "tests/graph/ops/op_cases.h"

static inline void axis_make(model_text *m, uint64_t *rng, int round, const char *op)
{
    char shape[64];
    int n_dim = 1 + round % 3, axis = (int)random_int(rng, -n_dim, n_dim - 1);
    model_input(m, "a", "float32", random_shape(shape, rng, n_dim, round % 5 == 0 ? 40 : 9));
    model_write(m, "ops:\n  - {op: %s, name: op, in: a, out: y", op);
    if (axis == -1)
        model_write(m, "}\n");
    else
        model_write(m, ", axis: %d}\n", axis);
}

/* [outer][size][inner], the batch in outer */
static inline int64_t axis_split(const reference_call *c, int64_t *size, int64_t *inner)
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

/* Sums along the dimension, or means. */
static inline void axis_sums(const reference_call *c, bool mean)
{
    int64_t size, inner, outer = axis_split(c, &size, &inner);
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            double sum = 0;
            for (int64_t k = 0; k < size; k++)
                sum += c->in[0][(o * size + k) * inner + i];
            c->out[o * inner + i] = mean ? sum / (double)size : sum;
        }
}

static const large_case AXIS_LARGE[] = {
    {2, 2, "a: float32 [100, 200]", "axis: 0"},
    {3, 2, "a: float32 [70, 1031]", ""},
    {2, 2, "a: float32 [2, 20000]", ""},
    {2, 2, "a: float32 [9, 33, 40]", "axis: 1"},
    {40, 2, "a: float32 [5, 33]", "axis: 0"},
    {2, 2, "a: float32 [40, 9, 8]", "axis: 0"},
    {0},
};

#endif

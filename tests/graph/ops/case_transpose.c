/* transpose: random and large models (up to four dimensions in any order); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    int n_dim = 1 + round % 4, axes[4] = {0, 1, 2, 3};
    model_input(m, "a", "float32", random_shape(shape, rng, n_dim, 9));
    for (int i = n_dim - 1; i > 0; i--) {
        int other = (int)random_int(rng, 0, i), held = axes[i];
        axes[i] = axes[other];
        axes[other] = held;
    }
    model_write(m, "ops:\n  - {op: transpose, name: op, in: a, out: y, axes: [");
    for (int i = 0; i < n_dim; i++)
        model_write(m, "%s%d", i > 0 ? ", " : "", axes[i]);
    model_write(m, "]}\n");
}

static void reference(const reference_call *c)
{
    const smp_shape *in = &ref_in(c, 0)->shape;
    const int64_t *axes = ref_attr(c, "axes")->list.items, sample = ref_in(c, 0)->elements;
    for (int64_t i = 0; i < ref_count(c, 0); i++) {
        int64_t at[SMP_MAX_DIMS], rest = i % sample, place = 0;
        for (int d = in->n_dim - 1; d >= 0; rest /= in->dim[d--])
            at[d] = rest % in->dim[d];
        for (int d = 0; d < in->n_dim; d++)
            place = place * in->dim[axes[d]] + at[axes[d]];
        c->out[i / sample * sample + place] = c->in[0][i];
    }
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [50, 65]", "axes: [1, 0]"},
    {2, 2, "a: float32 [20, 6, 32]", "axes: [1, 0, 2]"},
    {3, 2, "a: float32 [20, 6, 18]", "axes: [1, 0, 2]"},
    {2, 2, "a: float32 [3, 5, 7, 2, 4, 3]", "axes: [5, 1, 3, 0, 4, 2]"},
    {2, 2, "a: int32 [9, 8]", "axes: [1, 0]"},
    {0},
};

OP_CASE(transpose) = {
    .make = make, .reference = reference, .tolerance = 1e-6, .exact = true, .large = LARGE};

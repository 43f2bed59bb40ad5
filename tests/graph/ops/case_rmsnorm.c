/* rmsnorm: random and large models (rows of one value, short and long); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    int columns = round % 8 == 0 ? 1 : (int)random_int(rng, 2, round % 8 == 7 ? 600 : 50);
    snprintf(shape, sizeof shape, "[%d, %d]", (int)random_int(rng, 1, 7), columns);
    model_input(m, "a", "float32", shape);
    model_write(m, "ops:\n  - {op: rmsnorm, name: op, in: a, out: y%s%s}\n",
                round % 2 == 0 ? "" : ", eps: 0.01", round % 3 == 1 ? ", offset: 1" : "");
}

static void reference(const reference_call *c)
{
    int64_t n = ref_last(c, 0);
    double eps = ref_attr(c, "eps")->f;
    for (int64_t r = 0; r < ref_count(c, 0) / n; r++) {
        const double *x = c->in[0] + r * n;
        double squares = 0;
        for (int64_t i = 0; i < n; i++)
            squares += x[i] * x[i];
        for (int64_t i = 0; i < n; i++)
            c->out[r * n + i] = x[i] / sqrt(squares / (double)n + eps) *
                                (c->param[0][i] + (double)ref_attr(c, "offset")->i);
    }
}

/* Square and sum, normalised, scaled. The gradient of x needs x normalised, a product with the
 * weight, a sum of products (2), and three more; that of the weight x normalised, a product and a
 * sum. An offset is one more sum, both ways. */
static reference_flops flops(const reference_call *c)
{
    const double offset = (double)ref_attr(c, "offset")->i;
    return ref_flops_each(c, 4 + offset, 7 + offset, 3);
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [9, 768]", ""},
    {1, 1e4, "a: float32 [5, 1027]", ""},
    {1, 2, "a: float32 [5, 1027]", "offset: 1"},
    {1, 2, "a: float32 [5, 1028]", "offset: 1"},
    {3, 2, "a: float32 [101, 64]", ""},
    {1, 2, "a: float32 [2, 8192]", ""},
    {2, 2, "a: float32 [75, 264]", ""}, /* on a GPU parts of the rows, and rows of so many warps */
    {1, 2, "a: float32 [70, 1304]", ""},
    {1, 2, "a: float32 [37, 2056]", ""},
    {0},
};

OP_CASE(rmsnorm) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 2e-5, .large = LARGE};

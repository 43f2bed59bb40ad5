/* layernorm: random and large models (rows of one value, short and long); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    int columns = round % 8 == 0 ? 1 : (int)random_int(rng, 3, round % 8 == 7 ? 600 : 50);
    snprintf(shape, sizeof shape, "[%d, %d]", (int)random_int(rng, 1, 7), columns);
    model_input(m, "a", "float32", shape);
    model_write(m, "ops:\n  - {op: layernorm, name: op, in: a, out: y%s}\n",
                round % 2 == 0 ? "" : ", eps: 0.01");
}

static void reference(const reference_call *c)
{
    int64_t n = ref_last(c, 0);
    double eps = ref_attr(c, "eps")->f;
    for (int64_t r = 0; r < ref_count(c, 0) / n; r++) {
        const double *x = c->in[0] + r * n;
        double mean = 0, variance = 0;
        for (int64_t i = 0; i < n; i++)
            mean += x[i] / (double)n;
        for (int64_t i = 0; i < n; i++)
            variance += (x[i] - mean) * (x[i] - mean) / (double)n;
        for (int64_t i = 0; i < n; i++)
            c->out[r * n + i] =
                (x[i] - mean) / sqrt(variance + eps) * c->param[0][i] + c->param[1][i];
    }
}

/* Mean, variance (3), normalised (2), scale, shift. The gradient of x needs x normalised (2), two
 * sums and their products (4), and four more; that of the weights x normalised, a product
 * and two sums. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, 8, 10, 5);
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [9, 768]", ""},
    {1, 1e4, "a: float32 [5, 1027]", ""},
    {3, 2, "a: float32 [101, 64]", ""},
    {1, 2, "a: float32 [2, 8192]", ""},
    {2, 2, "a: float32 [75, 264]", ""}, /* on a GPU parts of the rows, and rows of so many warps */
    {1, 2, "a: float32 [70, 1304]", ""},
    {1, 2, "a: float32 [37, 2056]", ""},
    {0},
};

OP_CASE(layernorm) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 2e-5, .large = LARGE};

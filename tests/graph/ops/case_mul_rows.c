/* mul_rows: random and large models; the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char a[64], b[64];
    const int rows = (int)random_int(rng, 1, 9);
    const int columns = (int)random_int(rng, 1, round % 4 == 3 ? 300 : 20);
    snprintf(a, sizeof a, round % 2 ? "[2, %d, %d]" : "[%d, %d]", rows, columns);
    snprintf(b, sizeof b, round % 2 ? "[2, %d, 1]" : "[%d, 1]", rows);
    model_input(m, "a", "float32", a);
    model_input(m, "b", "float32", b);
    model_write(m, "ops:\n  - {op: mul_rows, name: op, in: [a, b], out: y}\n");
}

static void reference(const reference_call *c)
{
    for (int64_t i = 0; i < ref_count(c, 0); i++)
        c->out[i] = c->in[0][i] * c->in[1][i / ref_last(c, 0)];
}

/* A product; two, and a sum over the row. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, 1, 3, 0);
}

static const large_case LARGE[] = {
    {3, 2, "a: float32 [70, 512]; b: float32 [70, 1]", "in: [a, b]"},
    {2, 2, "a: float32 [9, 4100]; b: float32 [9, 1]", "in: [a, b]"},
    {0},
};

OP_CASE(mul_rows) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 1e-5, .large = LARGE};

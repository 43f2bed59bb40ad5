/* reshape: random and large models (sizes that are given and one that is not); the naive
 * reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    int a = (int)random_int(rng, 1, 6), b = (int)random_int(rng, 1, 6);
    char shape[64];
    snprintf(shape, sizeof shape, "[%d, %d, 2]", a, b);
    model_input(m, "a", "float32", shape);
    static const char *const shapes[] = {"[-1]", "[2, -1]", "[%d, -1, 1]", "[2, %d, %d]"};
    char to[64];
    snprintf(to, sizeof to, shapes[round % 4], b, a);
    model_write(m, "ops:\n  - {op: reshape, name: op, in: a, out: y, shape: %s}\n", to);
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [129, 34]", "shape: [2, -1]"},
    {2, 2, "a: float32 [40, 1, 1]", "shape: [8, 5]"},
    {0},
};

OP_CASE(reshape) = {
    .make = make, .reference = ref_copy, .tolerance = 1e-6, .exact = true, .large = LARGE};

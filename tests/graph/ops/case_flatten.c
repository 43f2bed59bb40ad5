/* flatten: random and large models; the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    make_eltwise(m, rng, round, "op: flatten");
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [129, 33]", ""},
    {2, 2, "a: float32 [40, 1, 1]", ""},
    {0},
};

OP_CASE(flatten) = {
    .make = make, .reference = ref_copy, .tolerance = 1e-6, .exact = true, .large = LARGE};

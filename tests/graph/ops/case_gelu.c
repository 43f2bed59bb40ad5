/* gelu: random and large models (both approximations, far out too); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    static const char *const ops[] = {"op: gelu", "op: gelu, approximate: tanh",
                                      "op: gelu, approximate: erf", "op: gelu, approximate: none"};
    m->magnitude = round % 2 == 0 ? 2 : 6;
    make_eltwise(m, rng, round, ops[round % 4]);
}

static void reference(const reference_call *c)
{
    const double pi = 3.14159265358979323846;
    bool by_tanh = ref_attr(c, "approximate")->i == 0;
    for (int64_t i = 0; i < ref_count(c, 0); i++) {
        double x = c->in[0][i];
        c->out[i] = by_tanh ? 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))
                            : 0.5 * x * (1 + erf(x / sqrt(2)));
    }
}

/* Forward the function and what it is of and in, 8 or 4. Backward once more, and its
 * derivative: 17 besides tanh, or 6 and an exp besides erf, which is counted as in between. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, REF_FUNCTION + 6, REF_FUNCTION + 18, 0);
}

static const large_case LARGE[] = {
    {3, 1e4, "a: float32 [13331]", ""},
    {3, 1e4, "a: float32 [1331]", "approximate: erf"},
    {0},
};

OP_CASE(gelu) = {
    .make = make, .reference = reference, .flops = flops, .tolerance = 1e-5, .large = LARGE};

/* expert_linear: one expert and several, one place and many; the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    snprintf(shape, sizeof shape, "[%d, %d, %d]", round % 4 == 0 ? 1 : (int)random_int(rng, 2, 5),
             (int)random_int(rng, 1, 9), (int)random_int(rng, 1, 30));
    model_input(m, "a", "float32", shape);
    model_write(m, "ops:\n  - {op: expert_linear, name: op, in: a, out: y, features: %d}\n",
                (int)random_int(rng, 1, 30));
}

static void reference(const reference_call *c)
{
    const int64_t *x = ref_in(c, 0)->shape.dim;
    int64_t experts = x[0], places = x[1], in = x[2], features = ref_attr(c, "features")->i;
    for (int64_t r = 0; r < c->batch * experts * places; r++)
        for (int64_t f = 0; f < features; f++) {
            const double *w = c->param[0] + (r / places % experts * features + f) * in;
            double sum = 0;
            for (int64_t i = 0; i < in; i++)
                sum += c->in[0][r * in + i] * w[i];
            c->out[r * features + f] = sum;
        }
}

static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, 2.0 * (double)ref_attr(c, "features")->i,
                          2.0 * (double)ref_attr(c, "features")->i,
                          2.0 * (double)ref_attr(c, "features")->i);
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [6, 70, 72]", "features: 40"},
    {3, 2, "a: float32 [3, 33, 51]", "features: 65"},
    {0},
};

OP_CASE(expert_linear) = {.make = make,
                          .reference = reference,
                          .flops = flops,
                          .tolerance = 2e-5,
                          .multiplies = true,
                          .large = LARGE};

/* snake, the operator of examples/plugin/: random models; the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    model_input(m, "a", "float32", random_shape(shape, rng, 1 + round % 3, 9));
    model_write(m, "ops:\n  - {op: snake, name: op, in: a, out: y%s}\n",
                round % 2 == 0 ? "" : ", frequency: 0.5");
}

static void reference(const reference_call *c)
{
    const double frequency = ref_attr(c, "frequency")->f;
    for (int64_t i = 0; i < ref_count(c, 0); i++) {
        const double a = frequency * c->param[0][i % ref_last(c, 0)], x = c->in[0][i];
        c->out[i] = x + sin(a * x) * sin(a * x) / a;
    }
}

/* A sine and five more; the same; two sines and nine more. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, REF_FUNCTION + 5, REF_FUNCTION + 5, 2 * REF_FUNCTION + 9);
}

OP_CASE(snake) = {.make = make, .reference = reference, .flops = flops, .tolerance = 1e-5};

/* parameter: random and large models (a tensor of any shape, no inputs); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    random_shape(shape, rng, 1 + round % 3, 12);
    model_input(m, "a", "float32", "[1]"); /* a model has an input; nobody reads it */
    model_write(m, "ops:\n  - {op: parameter, name: op, out: y, shape: %s}\n", shape);
}

static void reference(const reference_call *c)
{
    int64_t n = c->graph->tensor[c->op->out].elements;
    for (int64_t i = 0; i < n * c->batch; i++)
        c->out[i] = c->param[0][i % n];
}

/* A sum for the gradient, for each element of every sample. */
static reference_flops flops(const reference_call *c)
{
    return (reference_flops){.backward_weight =
                                 (double)(c->graph->tensor[c->op->out].elements * c->batch)};
}

static const large_case LARGE[] = {
    {5, 1, "a: float32 [1]", "in: [], shape: [70, 512]"},
    {5, 1, "a: float32 [1]", "in: [], shape: [129, 33]"},
    {0},
};

OP_CASE(parameter) = {.make = make,
                      .reference = reference,
                      .flops = flops,
                      .tolerance = 2e-6,
                      .exact = true,
                      .large = LARGE};

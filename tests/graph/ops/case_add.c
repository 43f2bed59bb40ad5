/* add: random and large models, of two to five and of 32 inputs (also of a tensor with itself); the
 * naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    if (round % 3 < 2) {
        make_pair(m, rng, round, "add");
        return;
    }
    random_shape(shape, rng, round % 4, 9);
    model_input(m, "a", "float32", shape);
    model_input(m, "b", "float32", shape);
    model_input(m, "c", "float32", shape);
    model_write(m, "ops:\n  - {op: add, name: op, in: [c, a");
    for (int64_t n = round % 9 == 8 ? 30 : random_int(rng, 1, 3); n > 0; n--)
        model_write(m, n % 2 ? ", b" : ", c");
    model_write(m, "], out: y}\n");
}

static void reference(const reference_call *c)
{
    for (int64_t i = 0; i < ref_count(c, 0); i++) {
        double sum = 0;
        for (int slot = 0; slot < c->op->n_in; slot++)
            sum += c->in[slot][i];
        c->out[i] = sum;
    }
}

/* The sum; its gradients are what arrives. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, c->op->n_in - 1, 0, 0);
}

static const large_case LARGE[] = {
    {1, 1e4, "a: float32 [40003]; b: float32 [40003]", "in: [a, b]"},
    {2, 1e2, "a: float32 [40003]; b: float32 [40003]; c: float32 [40003]", "in: [a, b, c]"},
    {2, 1e-4, "a: float32 [64, 32]; b: float32 [64, 32]", "in: [a, b]"},
    {1, 2, "a: float32 [2, 16640]; b: float32 [2, 16640]",
     "in: [a, b]"}, /* rows of a large block */
    {0},
};

OP_CASE(add) = {.make = make,
                .reference = reference,
                .flops = flops,
                .tolerance = 1e-6,
                .exact = true,
                .large = LARGE};

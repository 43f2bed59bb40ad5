/* linear, and ring_linear of one device, which is the same: random and large models (matrix
 * product, also with a tied weight); the naive reference. Who includes it names LINEAR_KIND. */
#ifndef SMP_TESTS_GRAPH_OPS_LINEAR_CASES_H
#define SMP_TESTS_GRAPH_OPS_LINEAR_CASES_H

#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    char shape[64];
    int features = (int)random_int(rng, 1, round % 8 == 7 ? 300 : 40);
    if (round % 4 == 3) { /* tied to an embedding's table */
        int d = (int)random_int(rng, 1, 20);
        snprintf(shape, sizeof shape, "[%d, %d]", (int)random_int(rng, 1, 7), d);
        model_input(m, "a", "float32", shape);
        model_input(m, "b", "int32", "[2]");
        model_write(m,
                    "ops:\n  - {op: embedding, name: wte, in: b, out: e, rows: %d, features: %d}\n"
                    "  - {op: " LINEAR_KIND ", name: op, in: a, out: y, features: %d, bias: %s, "
                    "weight: wte.weight}\n",
                    features, d, features, round % 8 == 3 ? "true" : "false");
        return;
    }
    model_input(m, "a", "float32", random_shape(shape, rng, 1 + round % 3, 12));
    model_write(
        m, "ops:\n  - {op: " LINEAR_KIND ", name: op, in: a, out: y, features: %d, bias: %s}\n",
        features, round % 2 == 0 ? "true" : "false");
}

static void reference(const reference_call *c)
{
    int64_t in = ref_last(c, 0), features = ref_attr(c, "features")->i;
    for (int64_t r = 0; r < ref_count(c, 0) / in; r++)
        for (int64_t f = 0; f < features; f++) {
            double sum = c->op->n_param > 1 ? c->param[1][f] : 0;
            for (int64_t k = 0; k < in; k++)
                sum += c->in[0][r * in + k] * c->param[0][f * in + k];
            c->out[r * features + f] = sum;
        }
}

static reference_flops flops(const reference_call *c)
{
    int64_t in = ref_last(c, 0), features = ref_attr(c, "features")->i;
    reference_flops count = {0};
    for (int64_t r = 0; r < ref_count(c, 0) / in; r++)
        for (int64_t f = 0; f < features; f++) {
            double bias = c->op->n_param > 1;
            count.forward += bias;
            count.backward_weight += bias;
            for (int64_t k = 0; k < in; k++) {
                count.forward += 2;
                count.backward_input += 2;
                count.backward_weight += 2;
            }
        }
    return count;
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [33, 72]", "features: 96"},
    {3, 1e4, "a: float32 [45, 65]", "features: 131"},
    {1, 2, "a: float32 [7, 256]", "features: 512, bias: false"},
    {0},
};

#endif

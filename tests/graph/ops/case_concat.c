/* concat: random and large models (two to four inputs, along any axis); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    int n_in = (int)random_int(rng, 2, 4), n_dim = 1 + round % 3, dim[3];
    int axis = (int)random_int(rng, -n_dim, n_dim - 1);
    for (int d = 0; d < n_dim; d++)
        dim[d] = (int)random_int(rng, 1, 7);
    for (int i = 0; i < n_in; i++) {
        char shape[64] = "[", name[2] = {(char)('a' + i), 0};
        dim[axis < 0 ? axis + n_dim : axis] = (int)random_int(rng, 1, 7);
        for (int d = 0; d < n_dim; d++)
            snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%d", d ? ", " : "",
                     dim[d]);
        model_input(m, name, "float32", strcat(shape, "]"));
    }
    static const char *const inputs[] = {"[a, b]", "[a, b, c]", "[a, b, c, d]"};
    model_write(m, "ops:\n  - {op: concat, name: op, in: %s, out: y", inputs[n_in - 2]);
    if (axis == -1)
        model_write(m, "}\n");
    else
        model_write(m, ", axis: %d}\n", axis);
}

static void reference(const reference_call *c)
{
    const smp_shape *first = &ref_in(c, 0)->shape;
    int64_t axis = ref_attr(c, "axis")->i, outer = c->batch, inner = 1, at = 0;
    axis += axis < 0 ? first->n_dim : 0;
    for (int64_t i = 0; i < axis; i++)
        outer *= first->dim[i];
    for (int64_t i = axis + 1; i < first->n_dim; i++)
        inner *= first->dim[i];
    for (int64_t o = 0; o < outer; o++)
        for (int slot = 0; slot < c->op->n_in; slot++) {
            int64_t chunk = ref_in(c, slot)->shape.dim[axis] * inner;
            for (int64_t i = 0; i < chunk; i++)
                c->out[at++] = c->in[slot][o * chunk + i];
        }
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [50, 64]; b: float32 [50, 32]; c: float32 [50, 128]", "in: [a, b, c]"},
    {2, 2, "a: float32 [90, 65]; b: float32 [90, 66]", "in: [a, b]"},
    {2, 2, "a: float32 [200, 66]; b: float32 [10, 66]", "in: [a, b], axis: 0"},
    {2, 2, "a: int32 [9, 8]; b: int32 [9, 5]", "in: [a, b]"},
    {2, 2, "a: float32 [16, 5, 4]; b: float32 [8, 5, 4]", "in: [a, b], axis: 0"},
    {0},
};

OP_CASE(concat) = {
    .make = make, .reference = reference, .tolerance = 1e-6, .exact = true, .large = LARGE};

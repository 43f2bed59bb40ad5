/* patchify: random and large models (with and without channels); the naive reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    int patch = (int)random_int(rng, 1, 4);
    int height = patch * (int)random_int(rng, 1, 3), width = patch * (int)random_int(rng, 1, 4);
    char shape[64];
    if (round % 2 == 0)
        snprintf(shape, sizeof shape, "[%d, %d]", height, width);
    else
        snprintf(shape, sizeof shape, "[%d, %d, %d]", (int)random_int(rng, 1, 4), height, width);
    model_input(m, "a", "float32", shape);
    model_write(m, "ops:\n  - {op: patchify, name: op, in: a, out: y, patch: %d}\n", patch);
}

static void reference(const reference_call *c)
{
    const smp_shape *shape = &ref_in(c, 0)->shape;
    int64_t channels = shape->n_dim == 3 ? shape->dim[0] : 1;
    int64_t height = shape->dim[shape->n_dim - 2], width = shape->dim[shape->n_dim - 1];
    int64_t patch = ref_attr(c, "patch")->i;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t ch = 0; ch < channels; ch++)
            for (int64_t y = 0; y < height; y++)
                for (int64_t x = 0; x < width; x++) {
                    int64_t row = y / patch * (width / patch) + x / patch;
                    int64_t column = (ch * patch + y % patch) * patch + x % patch;
                    int64_t columns = channels * patch * patch;
                    c->out[b * ref_in(c, 0)->elements + row * columns + column] =
                        c->in[0][((b * channels + ch) * height + y) * width + x];
                }
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [3, 32, 48]", "patch: 16"},
    {2, 2, "a: float32 [3, 70, 84]", "patch: 14"},
    {0},
};

OP_CASE(patchify) = {
    .make = make, .reference = reference, .tolerance = 1e-6, .exact = true, .large = LARGE};

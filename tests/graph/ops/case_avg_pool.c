/* avg_pool: random and large models (overlapping windows, windows apart, padding); the naive
 * reference. */
#include "tests/graph/ops/op_cases.h"

static void make(model_text *m, uint64_t *rng, int round)
{
    int kernel = (int)random_int(rng, 1, 4), padding = (int)random_int(rng, 0, kernel / 2);
    char shape[64];
    snprintf(shape, sizeof shape, "[%d, %d, %d]", (int)random_int(rng, 1, 3),
             (int)random_int(rng, kernel, 9), (int)random_int(rng, kernel, 9));
    model_input(m, "a", "float32", shape);
    model_write(m, "ops:\n  - {op: avg_pool, name: op, in: a, out: y, kernel: %d", kernel);
    if (round % 3 > 0)
        model_write(m, ", stride: %d", (int)random_int(rng, 1, 5));
    model_write(m, ", padding: %d}\n", padding);
}

static void reference(const reference_call *c)
{
    const smp_shape *in = &ref_in(c, 0)->shape;
    const int64_t kernel = ref_attr(c, "kernel")->i, padding = ref_attr(c, "padding")->i;
    const int64_t stride = ref_attr(c, "stride")->i ? ref_attr(c, "stride")->i : kernel;
    const int64_t h = in->dim[1], w = in->dim[2];
    double *out = c->out;
    for (int64_t plane = 0; plane < c->batch * in->dim[0]; plane++)
        for (int64_t y = -padding; y + kernel <= h + padding; y += stride)
            for (int64_t x = -padding; x + kernel <= w + padding; x += stride) {
                double value = 0;
                for (int64_t i = 0; i < kernel * kernel; i++) {
                    int64_t py = y + i / kernel, px = x + i % kernel;
                    if (py >= 0 && py < h && px >= 0 && px < w)
                        value += c->in[0][(plane * h + py) * w + px];
                }
                *out++ = value / (double)(kernel * kernel);
            }
}

/* For each row of windows sums over the rows of each column, then, for each window, over columns,
 * and a product; for each row of pixels the same the other way round. */
static reference_flops flops(const reference_call *c)
{
    const double kernel = (double)ref_attr(c, "kernel")->i;
    const smp_shape *in = &ref_in(c, 0)->shape, *out = &c->graph->tensor[c->op->out].shape;
    const double rows = (double)(c->batch * out->dim[0] * out->dim[1]);
    const double in_rows = (double)(c->batch * in->dim[0] * in->dim[1]);
    const double windows = (double)out->dim[2], pixels = (double)in->dim[2];
    return (reference_flops){rows * (kernel * (pixels + windows) + windows),
                             (rows + in_rows) * kernel * windows + in_rows * pixels, 0};
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [3, 32, 33]", "kernel: 2"},
    {2, 2, "a: float32 [4, 28, 31]", "kernel: 3, stride: 2, padding: 1"},
    {0},
};

OP_CASE(avg_pool) = {.make = make,
                     .reference = reference,
                     .flops = flops,
                     .tolerance = 2e-6,
                     .exact = true,
                     .large = LARGE};

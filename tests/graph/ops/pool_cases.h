/* What the cases of the pools share: images with overlapping windows, windows apart, padding, rows
 * of less and of more than SMP_LANES windows. */
#ifndef SMP_TESTS_GRAPH_OPS_POOL_CASES_H
#define SMP_TESTS_GRAPH_OPS_POOL_CASES_H

#include "tests/graph/ops/op_cases.h"

static inline void pool_make(model_text *m, uint64_t *rng, int round, const char *op)
{
    int kernel = (int)random_int(rng, 1, 4), padding = (int)random_int(rng, 0, kernel / 2);
    char shape[64];
    snprintf(shape, sizeof shape, "[%d, %d, %d]", (int)random_int(rng, 1, 3),
             (int)random_int(rng, kernel, 9), (int)random_int(rng, kernel, round % 2 ? 9 : 40));
    model_input(m, "a", "float32", shape);
    model_write(m, "ops:\n  - {op: %s, name: op, in: a, out: y, kernel: %d", op, kernel);
    if (round % 3 > 0)
        model_write(m, ", stride: %d", (int)random_int(rng, 1, 5));
    model_write(m, ", padding: %d}\n", padding);
}

/* What a window comes to with one more of its pixels. */
typedef double pool_take(double so_far, double pixel);

/* Windows of the images, in order; first: what they begin with. Pixels of the padding are not
 * counted. */
static inline void pool_windows(const reference_call *c, double first, pool_take *take)
{
    const smp_shape *in = &ref_in(c, 0)->shape;
    const int64_t kernel = ref_attr(c, "kernel")->i, padding = ref_attr(c, "padding")->i;
    const int64_t stride = ref_attr(c, "stride")->i ? ref_attr(c, "stride")->i : kernel;
    const int64_t h = in->dim[1], w = in->dim[2];
    double *out = c->out;
    for (int64_t plane = 0; plane < c->batch * in->dim[0]; plane++)
        for (int64_t y = -padding; y + kernel <= h + padding; y += stride)
            for (int64_t x = -padding; x + kernel <= w + padding; x += stride, out++) {
                *out = first;
                for (int64_t i = 0; i < kernel * kernel; i++) {
                    int64_t py = y + i / kernel, px = x + i % kernel;
                    if (py >= 0 && py < h && px >= 0 && px < w)
                        *out = take(*out, c->in[0][(plane * h + py) * w + px]);
                }
            }
}

#endif

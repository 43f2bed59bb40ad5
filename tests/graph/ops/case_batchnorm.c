/* batchnorm: random and large models (channels alone, and with one to three dimensions of space);
 * the naive reference, of the running statistics too. */
#include "tests/graph/ops/op_cases.h"

enum { WEIGHT, BIAS, MEAN };

static void make(model_text *m, uint64_t *rng, int round)
{
    static const char *const ops[] = {"", ", eps: 0.01", ", momentum: 0.3", ", momentum: 1",
                                      ", sync: true"};
    char shape[64];
    if (m->batch == 1 && round % 4 == 0)
        m->batch = 4;
    if (round % 8 == 7)
        snprintf(shape, sizeof shape, "[%d, 7, %d]", (int)random_int(rng, 1, 3),
                 (int)random_int(rng, 30, 60));
    else
        random_shape(shape, rng, 1 + round % 4, 9);
    model_input(m, "a", "float32", shape);
    model_write(m, "ops:\n  - {op: batchnorm, name: op, in: a, out: y%s}\n",
                ops[random_int(rng, 0, 4)]);
}

/* Mean and biased variance of a channel over the micro-batch, and of how many values. */
static int64_t moments(const reference_call *c, int64_t channel, double *mean, double *variance)
{
    const int64_t channels = ref_in(c, 0)->shape.dim[0], n = ref_count(c, 0) / channels;
    *mean = *variance = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t space = n / c->batch, at = (i / space * channels + channel) * space + i % space;
        *mean += c->in[0][at] / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t space = n / c->batch, at = (i / space * channels + channel) * space + i % space;
        *variance += (c->in[0][at] - *mean) * (c->in[0][at] - *mean) / (double)n;
    }
    return n;
}

static void reference(const reference_call *c)
{
    const int64_t channels = ref_in(c, 0)->shape.dim[0];
    const int64_t space = ref_in(c, 0)->elements / channels;
    for (int64_t k = 0; k < channels; k++) {
        double mean = c->param[MEAN][k], variance = c->param[MEAN + 1][k];
        if (c->step.training)
            moments(c, k, &mean, &variance);
        for (int64_t s = 0; s < c->batch; s++)
            for (int64_t i = 0; i < space; i++) {
                int64_t at = (s * channels + k) * space + i;
                c->out[at] = (c->in[0][at] - mean) / sqrt(variance + ref_attr(c, "eps")->f) *
                                 c->param[WEIGHT][k] +
                             c->param[BIAS][k];
            }
    }
}

/* As one micro-batch after the other does: this one's value comes in, the following ones, which
 * here find what was there at first, take their part of it. */
static double running(const reference_call *c, int slot, int64_t i)
{
    const double momentum = ref_attr(c, "momentum")->f, old = c->param[slot][i];
    double mean, variance, value = old;
    const double n = (double)moments(c, i, &mean, &variance);
    const double unbiased = n > 1 ? variance * n / (n - 1) : variance;
    value = (1 - momentum) * value + momentum * (slot == MEAN ? mean : unbiased);
    for (int64_t later = 0; later < c->step.following; later++)
        value = (1 - momentum) * value + momentum * old;
    return value - old;
}

/* Mean, variance (3), normalised (2), scale, shift; the gradients as layernorm's. */
static reference_flops flops(const reference_call *c)
{
    return ref_flops_each(c, 8, 10, 5);
}

static const large_case LARGE[] = {
    {5, 2, "a: float32 [3, 28, 28]", ""},
    {64, 100, "a: float32 [70]", "eps: 1"},
    {3, 2, "a: float32 [300, 3, 3]", "momentum: 0.5"},
    {2, 2, "a: float32 [1, 64, 65]", ""},
    {3, 2, "a: float32 [72, 9, 7]", ""},
    {2, 2, "a: float32 [320, 5, 4]", ""},
    {2, 2, "a: float32 [8, 40, 41]", ""},
    {0},
};

OP_CASE(batchnorm) = {.make = make,
                      .reference = reference,
                      .flops = flops,
                      .tolerance = 2e-5,
                      .running = running,
                      .mixes_samples = true,
                      .large = LARGE};

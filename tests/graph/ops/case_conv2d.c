/* conv2d: random and large models (strides, padding, dilation, groups, depthwise, blocks of
 * channels, weights of an earlier one); the naive reference. */
#include "tests/graph/ops/op_cases.h"

/* "3", "[3, 1]", or nothing where the default is drawn. */
static void write_pair(model_text *m, uint64_t *rng, const char *name, int min, int max,
                       int pair[2])
{
    pair[0] = (int)random_int(rng, min, max);
    pair[1] = random_int(rng, 0, 1) ? pair[0] : (int)random_int(rng, min, max);
    if (pair[0] == pair[1])
        model_write(m, ", %s: %d", name, pair[0]);
    else
        model_write(m, ", %s: [%d, %d]", name, pair[0], pair[1]);
}

/* An image that the windows fit into, of few or, every fourth round, whole blocks of channels. */
static void make(model_text *m, uint64_t *rng, int round)
{
    model_text op = {.yaml = ""};
    const bool blocks = round % 4 == 3;
    const int groups = round % 3 == 2 ? (int)random_int(rng, 2, 4) : 1;
    const int unit = groups * (blocks ? 16 : 1);
    const bool depthwise = round % 6 == 5;
    const int in = unit * (int)random_int(rng, 1, blocks ? 1 : 5);
    const int out = depthwise ? in : unit * (int)random_int(rng, 1, blocks ? 2 : 5);
    int kernel[2], stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1};
    char shape[64];
    write_pair(&op, rng, "kernel", 1, round % 5 == 4 ? 1 : 3, kernel);
    if (round % 2 == 1)
        write_pair(&op, rng, "stride", 1, 3, stride);
    if (round % 7 != 0)
        write_pair(&op, rng, "padding", 0, 3, padding);
    if (round % 4 == 2)
        write_pair(&op, rng, "dilation", 1, 3, dilation);
    if (groups > 1)
        model_write(&op, ", groups: %d", depthwise ? in : groups);
    int size[2];
    for (int i = 0; i < 2; i++) {
        const int window = dilation[i] * (kernel[i] - 1) + 1 - 2 * padding[i];
        const int least = window > 1 ? window : 1;
        size[i] = (int)random_int(rng, least, least + (blocks ? 4 : 6));
    }
    snprintf(shape, sizeof shape, "[%d, %d, %d]", in, size[0], size[1]);
    model_input(m, "a", "float32", shape);
    model_input(m, "b", "float32", shape);
    model_write(m, "ops:\n");
    if (round % 8 == 6)
        model_write(m, "  - {op: conv2d, name: first, in: b, out: z, channels: %d%s}\n", out,
                    op.yaml);
    model_write(m, "  - {op: conv2d, name: op, in: a, out: y, channels: %d%s, bias: %s%s}\n", out,
                op.yaml, round % 2 == 0 ? "true" : "false",
                round % 8 == 6 ? ", weight: first.weight" : "");
}

/* (height, width) of an attribute that is a number or two, `otherwise` if it is not there. */
static void ref_pair(const reference_call *c, const char *name, int64_t otherwise, int64_t pair[2])
{
    const smp_attr_value *value = ref_attr(c, name);
    for (int i = 0; i < 2; i++)
        pair[i] =
            value->list.count == 0 ? otherwise : value->list.items[value->list.count == 2 ? i : 0];
}

/* One output: a window of the channels of its group. *flops: counted with padding. */
static double window_sum(const reference_call *c, int64_t sample, int64_t channel, int64_t line,
                         int64_t column, double *flops)
{
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    ref_pair(c, "kernel", 1, kernel);
    ref_pair(c, "stride", 1, stride);
    ref_pair(c, "padding", 0, padding);
    ref_pair(c, "dilation", 1, dilation);
    const smp_shape *in = &ref_in(c, 0)->shape;
    const int64_t groups = ref_attr(c, "groups")->i, of_group = in->dim[0] / groups;
    const int64_t group = channel / (ref_attr(c, "channels")->i / groups);
    double sum = 0;
    for (int64_t i = 0; i < of_group; i++)
        for (int64_t ky = 0; ky < kernel[0]; ky++)
            for (int64_t kx = 0; kx < kernel[1]; kx++) {
                const int64_t y = line * stride[0] + ky * dilation[0] - padding[0];
                const int64_t x = column * stride[1] + kx * dilation[1] - padding[1];
                *flops += 2;
                if (!c->in || y < 0 || y >= in->dim[1] || x < 0 || x >= in->dim[2])
                    continue;
                const int64_t plane = sample * in->dim[0] + group * of_group + i;
                const int64_t tap = (channel * of_group + i) * kernel[0] + ky;
                sum += c->in[0][(plane * in->dim[1] + y) * in->dim[2] + x] *
                       c->param[0][tap * kernel[1] + kx];
            }
    return sum;
}

static void reference(const reference_call *c)
{
    const smp_shape *out = &c->graph->tensor[c->op->out].shape;
    double flops = 0, *to = c->out;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t f = 0; f < out->dim[0]; f++)
            for (int64_t y = 0; y < out->dim[1]; y++)
                for (int64_t x = 0; x < out->dim[2]; x++)
                    *to++ = window_sum(c, b, f, y, x, &flops) +
                            (c->op->n_param > 1 ? c->param[1][f] : 0);
}

static reference_flops flops(const reference_call *c)
{
    const smp_shape *out = &c->graph->tensor[c->op->out].shape;
    const double outputs = (double)(c->batch * out->dim[0] * out->dim[1] * out->dim[2]);
    const double bias = c->op->n_param > 1 ? outputs : 0;
    double one = 0;
    window_sum(c, 0, 0, 0, 0, &one);
    return (reference_flops){outputs * one + bias, outputs * one, outputs * one + bias};
}

static const large_case LARGE[] = {
    {2, 2, "a: float32 [5, 33, 41]", "channels: 6, kernel: 3, padding: 1"},
    {2, 100, "a: float32 [16, 24, 24]", "channels: 32, kernel: [1, 3], stride: 2, padding: [0, 1]"},
    {3, 2, "a: float32 [12, 17, 16]", "channels: 24, kernel: 1, bias: false"},
    {3, 2, "a: float32 [12, 9, 7]", "channels: 24, kernel: 1"},
    {1, 2, "a: float32 [24, 20, 21]", "channels: 24, kernel: 3, groups: 24, dilation: 2"},
    {0},
};

OP_CASE(conv2d) = {.make = make,
                   .reference = reference,
                   .flops = flops,
                   .tolerance = 5e-6,
                   .multiplies = true,
                   .large = LARGE};

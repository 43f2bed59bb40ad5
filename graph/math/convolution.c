/* Convolution (graph/math/convolution.h): directly by oneDNN where it can, else by matrix products,
 * or by shifted planes in groups of few channels; which of them is settled when the convolution is
 * made, for each direction by itself.
 *
 * oneDNN 2.6 has direct ones for AVX2 and AVX-512, but not for every shape (groups of few
 * channels). Its own convolution by products is passed over: the whole unfolded image and four
 * times the weights as scratch, in any plan for a machine that might have to use it. */
#include "graph/math/convolution.h"

#include <stdlib.h>

#include "graph/math/convolution_direct.h"
#include "graph/math/convolution_planes.h"
#include "graph/math/convolution_gemm.h"
#include "graph/math/half.h"

struct smp_convolution {
    smp_convolution_shape shape;
    smp__direct *direct[SMP__DIRECTIONS]; /* NULL: by planes if they fit, by products */
    smp_convolution *wide;                /* in bf16 instead of NULL: in fp32, of a sample's copy */
};

/* Where products beat direct convolutions, measured at batch 8 on one core with AVX-512.
 *
 * With a 1 x 1 kernel there is nothing to unfold, and a large product needs no layouts of its own:
 * on 28 x 28 places it is 10 to 25 % faster, on 7 x 7 slower.
 *
 * Gradients of weights: products add in place, a direct convolution's result is reordered and
 * added. That takes long where weights are many and places few: with 512 -> 512 channels of 7 x 7 a
 * fifth of the time, with 2048 -> 512 and a 1 x 1 kernel half of it.
 *
 * Gradients of a few input channels: a direct convolution fills them up to a block of 16, and takes
 * as long as for those. */
enum { LARGE_PRODUCT = 256, MANY_PLACES = 1024, FEW_CHANNELS = 12, ALIGNMENT = 64 };

static bool by_products(const smp_convolution_shape *s, smp__direction direction)
{
    const bool is_1x1 = s->kernel[0] == 1 && s->kernel[1] == 1;
    const int64_t places = smp_convolution_places(s);
    if (s->groups > 1)
        return false;
    if (direction == SMP__BACKWARD_INPUT && s->in[SMP_CHANNELS] < FEW_CHANNELS)
        return true;
    if (s->half)
        return false;
    if (direction == SMP__BACKWARD_WEIGHT)
        return (is_1x1 ? places : s->batch * places) < MANY_PLACES;
    return is_1x1 && places >= LARGE_PRODUCT;
}

/* Groups of so few channels, on lines of so many places, take planes even where oneDNN has a
 * direct one, which fills up its blocks: 32 groups of 4 on 56 x 56 places run 1.4 times as fast, on
 * 14 x 14 equally, groups of 8 slower. For depthwise ones oneDNN has kernels of their own. */
enum { NARROW_GROUP = 8, WIDE_LINE = 28 };

static bool by_planes(const smp_convolution_shape *s)
{
    const int64_t in = s->in[SMP_CHANNELS] / s->groups, out = s->out[SMP_CHANNELS] / s->groups;
    return smp__planes_fit(s) && in > 1 && in < NARROW_GROUP && out < NARROW_GROUP &&
           s->out[SMP_WIDTH] >= WIDE_LINE;
}

static bool goes_direct(const smp_convolution_shape *s, smp__direction direction)
{
    return !by_planes(s) && !by_products(s, direction);
}

/* Without a direct convolution in bf16, one in fp32 takes a sample at a time. */
static smp_convolution_shape widened(const smp_convolution_shape *s)
{
    smp_convolution_shape wide = *s;
    wide.half = false;
    wide.batch = 1;
    return wide;
}

static int64_t elements(const int64_t size[3])
{
    return size[SMP_CHANNELS] * size[SMP_HEIGHT] * size[SMP_WIDTH];
}

/* Bytes of a sample in fp32. */
static int64_t copy_bytes(const int64_t size[3])
{
    return (elements(size) * (int64_t)sizeof(float) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Where the copies begin: after what the convolution in fp32 takes. */
static int64_t copies_place(const smp_convolution_shape *wide)
{
    return (smp_convolution_workspace(wide) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The most that any way takes, where it is the machine that decides. */
int64_t smp_convolution_workspace(const smp_convolution_shape *shape)
{
    int64_t bytes = smp__planes_fit(shape) ? smp__planes_workspace(shape)
                                           : smp__convolution_gemm_workspace(shape);
    if (shape->half) {
        const smp_convolution_shape wide = widened(shape);
        bytes = copies_place(&wide) + copy_bytes(shape->in) + copy_bytes(shape->out);
    }
    for (int d = SMP__FORWARD; d < SMP__DIRECTIONS; d++)
        if (goes_direct(shape, (smp__direction)d) && smp__direct_workspace(shape) > bytes)
            bytes = smp__direct_workspace(shape);
    return bytes;
}

static smp_status make_primitives(smp_convolution *c, bool bias, bool training)
{
    const smp_convolution_shape wide = widened(&c->shape);
    bool all = true;
    for (int d = SMP__FORWARD; d < (training ? SMP__DIRECTIONS : 1); d++) {
        if (goes_direct(&c->shape, (smp__direction)d))
            SMP_TRY(smp__direct_create(&c->shape, (smp__direction)d, bias, &c->direct[d]));
        all = all && c->direct[d];
    }
    return c->shape.half && !all ? smp_convolution_create(&wide, bias, training, &c->wide) : SMP_OK;
}

smp_status smp_convolution_create(const smp_convolution_shape *shape, bool bias, bool training,
                                  smp_convolution **out)
{
    smp_convolution *c = calloc(1, sizeof *c);
    if (!c)
        return smp_fail_memory(sizeof *c);
    c->shape = *shape;
    smp_status status = make_primitives(c, bias, training);
    if (status == SMP_OK)
        *out = c;
    else
        smp_convolution_destroy(c);
    return status;
}

void smp_convolution_destroy(smp_convolution *c)
{
    if (!c)
        return;
    for (int d = 0; d < SMP__DIRECTIONS; d++)
        smp__direct_destroy(c->direct[d]);
    smp_convolution_destroy(c->wide);
    free(c);
}

/* A sample in bf16, x or dx and y or dy, and its copies in fp32. */
typedef struct sample {
    uint16_t *half[2];
    float *wide[2];
    int64_t count[2];
} sample;

static sample sample_of(const smp_convolution *c, const void *x, const void *y, int64_t n,
                        char *workspace)
{
    const smp_convolution_shape *s = &c->wide->shape;
    const int64_t n_x = elements(s->in), n_y = elements(s->out);
    char *copy = workspace + copies_place(s);
    return (sample){.half = {(uint16_t *)x + n * n_x, (uint16_t *)y + n * n_y},
                    .wide = {(float *)copy, (float *)(copy + copy_bytes(s->in))},
                    .count = {n_x, n_y}};
}

static void widen(const sample *s, int array)
{
    smp__from_bf16(s->wide[array], s->half[array], s->count[array]);
}

static void narrow(const sample *s, int array)
{
    smp__to_bf16(s->half[array], s->wide[array], s->count[array]);
}

static const void *weights_of(const smp_convolution *c, smp_convolution_weights w)
{
    return c->shape.half ? (const void *)w.bf16 : w.fp32;
}

static smp_status forward_wide(smp_convolution *c, const void *x, smp_convolution_weights w,
                               const float *bias, void *y, void *workspace)
{
    for (int64_t n = 0; n < c->shape.batch; n++) {
        const sample s = sample_of(c, x, y, n, workspace);
        widen(&s, 0);
        SMP_TRY(smp_convolution_forward(c->wide, s.wide[0], w, bias, s.wide[1], workspace));
        narrow(&s, 1);
    }
    return SMP_OK;
}

smp_status smp_convolution_forward(smp_convolution *c, const void *x, smp_convolution_weights w,
                                   const float *bias, void *y, void *workspace)
{
    smp__direct *direct = c->direct[SMP__FORWARD];
    if (direct)
        return smp__direct_run(direct, x, weights_of(c, w), bias, y, workspace);
    if (c->wide)
        return forward_wide(c, x, w, bias, y, workspace);
    if (!smp__planes_fit(&c->shape))
        return smp__convolution_gemm_forward(&c->shape, x, w.fp32, bias, y, workspace);
    smp__planes_forward(&c->shape, x, w.fp32, bias, y, workspace);
    return SMP_OK;
}

static smp_status backward_input_wide(smp_convolution *c, const void *dy, smp_convolution_weights w,
                                      void *dx, void *workspace)
{
    for (int64_t n = 0; n < c->shape.batch; n++) {
        const sample s = sample_of(c, dx, dy, n, workspace);
        widen(&s, 1);
        SMP_TRY(smp_convolution_backward_input(c->wide, s.wide[1], w, s.wide[0], workspace));
        narrow(&s, 0);
    }
    return SMP_OK;
}

smp_status smp_convolution_backward_input(smp_convolution *c, const void *dy,
                                          smp_convolution_weights w, void *dx, void *workspace)
{
    smp__direct *direct = c->direct[SMP__BACKWARD_INPUT];
    if (direct)
        return smp__direct_run(direct, dy, weights_of(c, w), NULL, dx, workspace);
    if (c->wide)
        return backward_input_wide(c, dy, w, dx, workspace);
    if (!smp__planes_fit(&c->shape))
        return smp__convolution_gemm_backward_input(&c->shape, dy, w.fp32, dx, workspace);
    smp__planes_backward_input(&c->shape, dy, w.fp32, dx, workspace);
    return SMP_OK;
}

static smp_status backward_weight_wide(smp_convolution *c, const void *x, const void *dy, float *dw,
                                       void *workspace)
{
    for (int64_t n = 0; n < c->shape.batch; n++) {
        const sample s = sample_of(c, x, dy, n, workspace);
        widen(&s, 0);
        widen(&s, 1);
        SMP_TRY(smp_convolution_backward_weight(c->wide, s.wide[0], s.wide[1], dw, workspace));
    }
    return SMP_OK;
}

smp_status smp_convolution_backward_weight(smp_convolution *c, const void *x, const void *dy,
                                           float *dw, void *workspace)
{
    smp__direct *direct = c->direct[SMP__BACKWARD_WEIGHT];
    if (direct)
        return smp__direct_run(direct, x, dy, NULL, dw, workspace);
    if (c->wide)
        return backward_weight_wide(c, x, dy, dw, workspace);
    if (!smp__planes_fit(&c->shape))
        return smp__convolution_gemm_backward_weight(&c->shape, x, dy, dw, workspace);
    smp__planes_backward_weight(&c->shape, x, dy, dw, workspace);
    return SMP_OK;
}

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
#include "graph/math/convolution_product.h"

struct smp_convolution {
    smp_convolution_shape shape;
    smp__direct *direct[SMP__DIRECTIONS]; /* NULL: by planes if they fit, by products */
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
enum { LARGE_PRODUCT = 256, MANY_PLACES = 1024, FEW_CHANNELS = 12 };

static bool by_products(const smp_convolution_shape *s, smp__direction direction)
{
    const bool is_1x1 = s->kernel[0] == 1 && s->kernel[1] == 1;
    const int64_t places = smp_convolution_places(s);
    if (s->groups > 1)
        return false;
    if (direction == SMP__BACKWARD_WEIGHT)
        return (is_1x1 ? places : s->batch * places) < MANY_PLACES;
    if (direction == SMP__BACKWARD_INPUT && s->in[SMP_CHANNELS] < FEW_CHANNELS)
        return true;
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

/* Of every way where it is the machine that decides. */
int64_t smp_convolution_workspace(const smp_convolution_shape *shape)
{
    if (by_planes(shape))
        return smp__planes_workspace(shape);
    int64_t bytes =
        smp__planes_fit(shape) ? smp__planes_workspace(shape) : smp__product_workspace(shape);
    for (int d = SMP__FORWARD; d < SMP__DIRECTIONS; d++)
        if (!by_products(shape, (smp__direction)d) && smp__direct_workspace(shape) > bytes)
            bytes = smp__direct_workspace(shape);
    return bytes;
}

smp_status smp_convolution_create(const smp_convolution_shape *shape, bool bias, bool training,
                                  smp_convolution **out)
{
    smp_convolution *c = calloc(1, sizeof *c);
    if (!c)
        return smp_fail_memory(sizeof *c);
    c->shape = *shape;
    smp_status status = SMP_OK;
    for (int d = SMP__FORWARD; d < (training ? SMP__DIRECTIONS : 1) && status == SMP_OK; d++)
        if (!by_planes(shape) && !by_products(shape, (smp__direction)d))
            status = smp__direct_create(shape, (smp__direction)d, bias, &c->direct[d]);
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
    free(c);
}

smp_status smp_convolution_forward(smp_convolution *c, const float *x, const float *w,
                                   const float *bias, float *y, void *workspace)
{
    smp__direct *direct = c->direct[SMP__FORWARD];
    if (direct)
        return smp__direct_run(direct, x, w, bias, y, workspace);
    if (!smp__planes_fit(&c->shape))
        return smp__product_forward(&c->shape, x, w, bias, y, workspace);
    smp__planes_forward(&c->shape, x, w, bias, y, workspace);
    return SMP_OK;
}

smp_status smp_convolution_backward_input(smp_convolution *c, const float *dy, const float *w,
                                          float *dx, void *workspace)
{
    smp__direct *direct = c->direct[SMP__BACKWARD_INPUT];
    if (direct)
        return smp__direct_run(direct, dy, w, NULL, dx, workspace);
    if (!smp__planes_fit(&c->shape))
        return smp__product_backward_input(&c->shape, dy, w, dx, workspace);
    smp__planes_backward_input(&c->shape, dy, w, dx, workspace);
    return SMP_OK;
}

smp_status smp_convolution_backward_weight(smp_convolution *c, const float *x, const float *dy,
                                           float *dw, void *workspace)
{
    smp__direct *direct = c->direct[SMP__BACKWARD_WEIGHT];
    if (direct)
        return smp__direct_run(direct, x, dy, NULL, dw, workspace);
    if (!smp__planes_fit(&c->shape))
        return smp__product_backward_weight(&c->shape, x, dy, dw, workspace);
    smp__planes_backward_weight(&c->shape, x, dy, dw, workspace);
    return SMP_OK;
}

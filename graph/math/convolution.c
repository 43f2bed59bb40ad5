/* Convolution (graph/math/convolution.h): directly by oneDNN where it can, else by matrix products;
 * which of them is settled when the convolution is made, for each direction by itself.
 *
 * oneDNN 2.6 has direct ones for AVX2 and AVX-512, but not for every shape (groups of few channels).
 * Its own convolution by products is passed over: it takes workspace that depends on the machine,
 * and loops in C where groups are narrow. */
#include "graph/math/convolution.h"

#include <stdlib.h>

#include "graph/math/convolution_direct.h"
#include "graph/math/convolution_product.h"

struct smp_convolution {
    smp_convolution_shape shape;
    smp__direct *direct[SMP__DIRECTIONS]; /* NULL: by products */
};

int64_t smp_convolution_workspace(const smp_convolution_shape *shape)
{
    const int64_t direct = smp__direct_workspace(shape), product = smp__product_workspace(shape);
    return direct > product ? direct : product;
}

/* Where products beat a direct convolution.
 *
 * Gradients of a pointwise convolution's weights are one product a sample, which adds in place; a
 * direct one's are reordered and added. On few places that takes as long as the convolution (with
 * 2048 -> 512 channels of 7 x 7); at 56 x 56 the product is 10 % slower.
 *
 * Gradients of a few input channels: a direct convolution fills them up to a block of 16, and takes
 * four times as long for 3 of them. */
enum { FEW_PLACES = 1024, FEW_CHANNELS = 8 };

static bool by_products(const smp_convolution_shape *s, smp__direction direction)
{
    if (direction == SMP__BACKWARD_INPUT)
        return s->groups == 1 && s->in[SMP_CHANNELS] < FEW_CHANNELS;
    return direction == SMP__BACKWARD_WEIGHT && smp_convolution_is_pointwise(s) &&
           smp_convolution_places(s) < FEW_PLACES;
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
        if (!by_products(shape, (smp__direction)d))
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
    return direct ? smp__direct_run(direct, x, w, bias, y, workspace)
                  : smp__product_forward(&c->shape, x, w, bias, y, workspace);
}

smp_status smp_convolution_backward_input(smp_convolution *c, const float *dy, const float *w,
                                          float *dx, void *workspace)
{
    smp__direct *direct = c->direct[SMP__BACKWARD_INPUT];
    return direct ? smp__direct_run(direct, dy, w, NULL, dx, workspace)
                  : smp__product_backward_input(&c->shape, dy, w, dx, workspace);
}

smp_status smp_convolution_backward_weight(smp_convolution *c, const float *x, const float *dy,
                                           float *dw, void *workspace)
{
    smp__direct *direct = c->direct[SMP__BACKWARD_WEIGHT];
    return direct ? smp__direct_run(direct, x, dy, NULL, dw, workspace)
                  : smp__product_backward_weight(&c->shape, x, dy, dw, workspace);
}

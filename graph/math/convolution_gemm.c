/* Convolution by unfolding (Chellapilla, Puri, Simard 2006): the windows of a few output lines of
 * one sample and group become the columns of a matrix U [taps, places]; then
 *   y = W U,   dU = W^T dy,   dW += dy U^T   with W [out channels of the group, taps]
 * and dx is dU folded back: every place adds its window's gradients to the pixels they were read
 * from. As many lines at once as BLOCK_BYTES of U hold. Pointwise convolutions need no U: it is
 * x. */
#include "graph/math/convolution_gemm.h"

#include <string.h>

#include "graph/math/math.h"
#include "graph/math/vector.h"

/* A block of U stays in a second-level cache. */
#define BLOCK_BYTES ((int64_t)1 << 20)

/* One sample's group, of which lines begin .. end-1 of the output are at work. */
typedef struct part {
    const smp_convolution_shape *s;
    int64_t taps, places; /* of the group; of the sample */
    int64_t in, out;      /* channels of the group */
    int64_t begin, end;   /* lines of the output */
    int64_t pixels;       /* of a channel of the input */
} part;

static int64_t block_lines(const smp_convolution_shape *s)
{
    if (smp_convolution_is_pointwise(s))
        return s->out[SMP_HEIGHT];
    const int64_t line = smp_convolution_taps(s) * s->out[SMP_WIDTH] * (int64_t)sizeof(float);
    const int64_t most = BLOCK_BYTES / line;
    return most < 1 ? 1 : most < s->out[SMP_HEIGHT] ? most : s->out[SMP_HEIGHT];
}

int64_t smp__convolution_gemm_workspace(const smp_convolution_shape *s)
{
    if (smp_convolution_is_pointwise(s))
        return 0;
    return smp_convolution_taps(s) * block_lines(s) * s->out[SMP_WIDTH] * (int64_t)sizeof(float);
}

/* Places of a line whose pixel at `tap` lies within `size`: [*begin, *end). */
static void inside(int64_t tap, int64_t stride, int64_t padding, int64_t size, int64_t places,
                   int64_t *begin, int64_t *end)
{
    const int64_t first = tap - padding; /* pixel of place 0 */
    *begin = first >= 0 ? 0 : (-first + stride - 1) / stride;
    *end = first >= size ? 0 : (size - 1 - first) / stride + 1;
    *begin = *begin < places ? *begin : places;
    *end = *end < *begin ? *begin : *end < places ? *end : places;
}

/* One row of U, a tap (ky, kx) of one channel: from the channel's pixels, or back onto them. */
static void unfold_row(const part *p, int64_t ky, int64_t kx, const float *pixel, float *u)
{
    const smp_convolution_shape *s = p->s;
    const int64_t width = s->out[SMP_WIDTH], step = s->stride[1];
    const int64_t shift = kx * s->dilation[1] - s->padding[1];
    int64_t begin, end;
    inside(kx * s->dilation[1], step, s->padding[1], s->in[SMP_WIDTH], width, &begin, &end);
    for (int64_t line = p->begin; line < p->end; line++, u += width) {
        const int64_t y = line * s->stride[0] + ky * s->dilation[0] - s->padding[0];
        const bool outside = y < 0 || y >= s->in[SMP_HEIGHT] || begin == end;
        memset(u, 0, (size_t)(outside ? width : begin) * sizeof *u);
        if (outside)
            continue;
        const float *from = pixel + y * s->in[SMP_WIDTH] + begin * step + shift;
        if (step == 1)
            memcpy(u + begin, from, (size_t)(end - begin) * sizeof *u);
        for (int64_t i = step == 1 ? end : begin; i < end; i++)
            u[i] = from[(i - begin) * step];
        memset(u + end, 0, (size_t)(width - end) * sizeof *u);
    }
}

static void fold_row(const part *p, int64_t ky, int64_t kx, const float *u, float *pixel)
{
    const smp_convolution_shape *s = p->s;
    const int64_t width = s->out[SMP_WIDTH], step = s->stride[1];
    const int64_t shift = kx * s->dilation[1] - s->padding[1];
    int64_t begin, end;
    inside(kx * s->dilation[1], step, s->padding[1], s->in[SMP_WIDTH], width, &begin, &end);
    for (int64_t line = p->begin; line < p->end && begin < end; line++, u += width) {
        const int64_t y = line * s->stride[0] + ky * s->dilation[0] - s->padding[0];
        if (y < 0 || y >= s->in[SMP_HEIGHT])
            continue;
        float *to = pixel + y * s->in[SMP_WIDTH] + begin * step + shift;
        if (step == 1)
            smp__accumulate(to, u + begin, end - begin);
        for (int64_t i = step == 1 ? end : begin; i < end; i++)
            to[(i - begin) * step] += u[i];
    }
}

/* Rows of U in the order of a weight's elements: channel, then line, then column of the kernel. */
static void unfold(const part *p, const float *x, float *u)
{
    const int64_t row = (p->end - p->begin) * p->s->out[SMP_WIDTH];
    for (int64_t c = 0; c < p->in; c++, x += p->pixels)
        for (int64_t ky = 0; ky < p->s->kernel[0]; ky++)
            for (int64_t kx = 0; kx < p->s->kernel[1]; kx++, u += row)
                unfold_row(p, ky, kx, x, u);
}

static void fold(const part *p, const float *u, float *x)
{
    const int64_t row = (p->end - p->begin) * p->s->out[SMP_WIDTH];
    for (int64_t c = 0; c < p->in; c++, x += p->pixels)
        for (int64_t ky = 0; ky < p->s->kernel[0]; ky++)
            for (int64_t kx = 0; kx < p->s->kernel[1]; kx++, u += row)
                fold_row(p, ky, kx, u, x);
}

/* What a block does. x, y, w: of the sample's group; y from the block's first line on. */
typedef smp_status (*block_function)(const part *p, float *x, float *w, float *y, float *u);

static smp_status forward_block(const part *p, float *x, float *w, float *y, float *u)
{
    const int64_t n = (p->end - p->begin) * p->s->out[SMP_WIDTH];
    const bool is_input = smp_convolution_is_pointwise(p->s);
    if (!is_input)
        unfold(p, x, u);
    return smp_math_gemm(false, false, p->out, n, p->taps, 1, w, p->taps, is_input ? x : u, n, 1, y,
                         p->places);
}

static smp_status input_block(const part *p, float *x, float *w, float *y, float *u)
{
    const int64_t n = (p->end - p->begin) * p->s->out[SMP_WIDTH];
    const bool is_input = smp_convolution_is_pointwise(p->s);
    SMP_TRY(smp_math_gemm(true, false, p->taps, n, p->out, 1, w, p->taps, y, p->places, 0,
                          is_input ? x : u, n));
    if (!is_input)
        fold(p, u, x);
    return SMP_OK;
}

static smp_status weight_block(const part *p, float *x, float *w, float *y, float *u)
{
    const int64_t n = (p->end - p->begin) * p->s->out[SMP_WIDTH];
    const bool is_input = smp_convolution_is_pointwise(p->s);
    if (!is_input)
        unfold(p, x, u);
    return smp_math_gemm(false, true, p->out, p->taps, n, 1, y, p->places, is_input ? x : u, n, 1,
                         w, p->taps);
}

/* Every block of every group of every sample, in order. */
static smp_status for_each_block(const smp_convolution_shape *s, block_function block, float *x,
                                 float *w, float *y, float *u)
{
    part p = {
        .s = s,
        .taps = smp_convolution_taps(s),
        .places = smp_convolution_places(s),
        .in = s->in[SMP_CHANNELS] / s->groups,
        .out = s->out[SMP_CHANNELS] / s->groups,
        .pixels = s->in[SMP_HEIGHT] * s->in[SMP_WIDTH],
    };
    const int64_t lines = block_lines(s);
    for (int64_t i = 0; i < s->batch * s->groups; i++) {
        float *of_group = w + i % s->groups * p.out * p.taps;
        for (p.begin = 0; p.begin < s->out[SMP_HEIGHT]; p.begin = p.end) {
            p.end = p.begin + lines < s->out[SMP_HEIGHT] ? p.begin + lines : s->out[SMP_HEIGHT];
            SMP_TRY(block(&p, x, of_group, y + p.begin * s->out[SMP_WIDTH], u));
        }
        x += p.in * p.pixels;
        y += p.out * p.places;
    }
    return SMP_OK;
}

smp_status smp__convolution_gemm_forward(const smp_convolution_shape *s, const float *x,
                                         const float *w, const float *bias, float *y,
                                         float *workspace)
{
    const int64_t places = smp_convolution_places(s);
    float *plane = y;
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t c = 0; c < s->out[SMP_CHANNELS]; c++, plane += places)
            for (int64_t i = 0; i < places; i++)
                plane[i] = bias ? bias[c] : 0;
    return for_each_block(s, forward_block, (float *)x, (float *)w, y, workspace);
}

smp_status smp__convolution_gemm_backward_input(const smp_convolution_shape *s, const float *dy,
                                                const float *w, float *dx, float *workspace)
{
    const int64_t pixels = s->in[SMP_CHANNELS] * s->in[SMP_HEIGHT] * s->in[SMP_WIDTH];
    memset(dx, 0, (size_t)(s->batch * pixels) * sizeof *dx);
    return for_each_block(s, input_block, dx, (float *)w, (float *)dy, workspace);
}

smp_status smp__convolution_gemm_backward_weight(const smp_convolution_shape *s, const float *x,
                                                 const float *dy, float *dw, float *workspace)
{
    return for_each_block(s, weight_block, (float *)x, dw, (float *)dy, workspace);
}

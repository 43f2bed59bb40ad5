/* Square windows over the planes of [C, H, W], which max_pool and avg_pool share: attributes,
 * shapes, and which pixels a window has. As PyTorch has them: floor((H + 2 padding - kernel) /
 * stride) + 1 windows a column, the first one `padding` pixels outside. Used on the CPU and in
 * kernels. */
#ifndef SMP_GRAPH_OPS_POOL_H
#define SMP_GRAPH_OPS_POOL_H

#include "graph/ops/ops.h"

#ifdef __CUDACC__
#define SMP__POOL_BOTH __host__ __device__
#else
#define SMP__POOL_BOTH
#endif

enum { SMP__POOL_KERNEL, SMP__POOL_STRIDE, SMP__POOL_PADDING };

typedef struct smp__pool {
    int64_t planes; /* of the micro-batch */
    int64_t values; /* of a pixel of a plane: all channels where they lie last, else 1 */
    int64_t height, width, out_height, out_width;
    int64_t kernel, stride, padding;
    /* On the CPU a row of pixels is taken apart by place = x + padding: pixel x lies at place /
     * stride of phase place mod stride, of `pitch` floats. Column k of consecutive windows is then
     * consecutive: from k / stride of phase k mod stride on, and so are the windows of a phase's
     * pixels, from that many, at most `before`, in front of them. Both in whole SMP_LANES. */
    int64_t phases, before, pitch;
} smp__pool;

typedef struct smp__pool_range {
    int64_t begin, end;
} smp__pool_range;

/* Pixels of a line of `size` that are in window `at`. */
static inline SMP__POOL_BOTH smp__pool_range smp__pool_pixels(const smp__pool *p, int64_t at,
                                                              int64_t size)
{
    smp__pool_range r = {at * p->stride - p->padding, at * p->stride - p->padding + p->kernel};
    r.begin = r.begin < 0 ? 0 : r.begin;
    r.end = r.end > size ? size : r.end;
    return r;
}

/* Windows, of `count`, that have the pixel. */
static inline SMP__POOL_BOTH smp__pool_range smp__pool_windows(const smp__pool *p, int64_t pixel,
                                                               int64_t count)
{
    const int64_t place = pixel + p->padding;
    smp__pool_range r = {(place - p->kernel + p->stride) / p->stride, place / p->stride + 1};
    r.begin = place < p->kernel ? 0 : r.begin;
    r.end = r.end > count ? count : r.end;
    return r;
}

#ifdef __cplusplus
extern "C" {
#endif

extern const smp_attr_desc smp__pool_attrs[];
smp_status smp__pool_infer(smp_infer *infer);
smp__pool smp__pool_of(const smp_graph *graph, const smp_op *op, int64_t batch);

/* A row of pixels to its phases [phases][pitch], and back; to pixels that are in no window, zeros.
 * What stands between the pixels of the phases stays as it is. */
void smp__pool_spread(const smp__pool *p, const float *x, float *phase);
void smp__pool_join(const smp__pool *p, const float *phase, float *x);

#ifdef __cplusplus
}
#endif

#endif

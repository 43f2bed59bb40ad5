/* The sizes of a conv2d, for its kernels on the CPU and on a GPU, and how a GPU lays out a call. */
#ifndef SMP_GRAPH_OPS_CONV2D_H
#define SMP_GRAPH_OPS_CONV2D_H

#ifdef __cplusplus
extern "C" {
#endif

#include "graph/math/choice.h"
#include "graph/math/convolution.h"
#include "graph/model/op.h"

smp_convolution_shape smp__conv2d_shape(const smp_graph *graph, const smp_op *op, int64_t batch);

/* What a GPU multiplies: rows of windows, a row of all groups for each place, in which a group has
 * [kernel height, kernel width, channels / groups] and zeroes after them where that is no multiple
 * of 16 bytes; and filters, a row like that of one group for each output channel. */
typedef struct smp__conv2d_windows {
    int64_t taps;     /* values of a group's row, with zeroes */
    bool are_pixels;  /* x is its own windows */
    bool are_filters; /* filters are the weights as they are stored */
    bool are_packs;   /* a tap's channels are whole packs of 16 bytes, so that they move as such */
    /* x and y in [channels, height, width], and turned before and after; where no packs can be
     * moved, windows are read from x, and dx is written, in that order. */
    bool turns_x, turns_y;
} smp__conv2d_windows;

/* Samples that a call takes at once, a function of the sizes alone because it decides in which
 * parts weights' gradients are added, and so bits; and where it keeps what, in bytes of its
 * workspace. */
typedef struct smp__conv2d_room {
    int64_t samples; /* of a run; the last one may have fewer */
    int64_t filters, x, windows, y, end;
} smp__conv2d_room;

/* Bytes that the workspace may have besides filters, where one sample does not need more: only
 * tests change it. */
extern int64_t smp__conv2d_bound;

/* A call by cuDNN, of all samples at once: where it keeps filters (none where they are the weights,
 * but of a gradient) and images that are turned; and, from `trial` on, a call of ours beside it in
 * the first run, whose room has its results, too. */
typedef struct smp__conv2d_dnn_room {
    int64_t filters, x, y, trial, end;
    smp__conv2d_room ours; /* from `trial` on */
} smp__conv2d_dnn_room;

/* The algorithm that is ours, in the list of products; cuDNN's is its name. */
#define SMP__CONV2D_UNFOLD "unfold"

/* Its name among choices and products: all that a library's plan and its bits depend on. */
void smp__conv2d_about(char about[SMP__CHOICE_ABOUT], const smp_graph *graph, const smp_op *op,
                       int64_t batch, smp_op_part part);
/* Is it by a library, as the graph's `products` say? */
bool smp__conv2d_asks_dnn(const smp_graph *graph, const smp_op *op, int64_t batch,
                          smp_op_part part);
/* Is cuDNN asked for such a call at all? In 16 bits, of images that 31 bits count. */
bool smp__conv2d_suits_dnn(const smp_graph *graph, const smp_op *op, int64_t batch);
smp__conv2d_dnn_room smp__conv2d_dnn_room_of(const smp_graph *graph, const smp_op *op,
                                             int64_t batch, smp_op_part part);

smp__conv2d_windows smp__conv2d_windows_of(const smp_graph *graph, const smp_op *op);
smp__conv2d_room smp__conv2d_room_of(const smp_graph *graph, const smp_op *op, int64_t batch,
                                     smp_op_part part);

#ifdef __cplusplus
}
#endif

#endif

/* Attributes of the normalisations, and what several share. */
#ifndef SMP_GRAPH_OPS_NORM_H
#define SMP_GRAPH_OPS_NORM_H

#include "graph/ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SMP__CHANNEL_THREADS = 256 }; /* of a block that adds up channels */
enum { SMP__GROUPNORM_GROUPS, SMP__GROUPNORM_EPS };
enum { SMP__BATCHNORM_EPS, SMP__BATCHNORM_MOMENTUM, SMP__BATCHNORM_SYNC };
/* Weights of batchnorm. */
enum { SMP__BATCHNORM_WEIGHT, SMP__BATCHNORM_BIAS, SMP__BATCHNORM_MEAN, SMP__BATCHNORM_VARIANCE };

/* What a running statistic r with momentum mu is changed by: the share of this micro-batch times
 * (its value s - r). PyTorch has r = (1 - mu) r + mu s after each micro-batch; after all M of a
 * step that is r + sum over m of mu (1 - mu)^(M - 1 - m) (s_m - r) with the r of its beginning, and
 * of replicas the mean of that. So backward_weight can add it up: forward changes nothing and may
 * be done again. */
double smp__running_share(const smp_op_call *call, double momentum);

/* How a GPU adds up channels that lie last, values of so many bytes: a thread reads 16 bytes of
 * neighbouring channels, or one value where that does not divide them. Threads of a block that lie
 * across them; blocks across all of them; and in how many parts the rows of each slab are added:
 * enough to fill a large device, none too short to pay. */
static inline int smp__channel_width(int64_t channels, int value_bytes)
{
    return channels % (16 / value_bytes) == 0 ? 16 / value_bytes : 1;
}
static inline int smp__channel_lanes(int64_t channels, int value_bytes)
{
    int lanes = 1;
    while (lanes < 32 && lanes * smp__channel_width(channels, value_bytes) < channels)
        lanes *= 2;
    return lanes;
}
static inline int64_t smp__channel_tiles(int64_t channels, int value_bytes)
{
    const int64_t across =
        smp__channel_lanes(channels, value_bytes) * smp__channel_width(channels, value_bytes);
    return (channels + across - 1) / across;
}
static inline int64_t smp__channel_parts(int64_t slabs, int64_t rows, int64_t channels,
                                         int value_bytes)
{
    const int64_t lines = SMP__CHANNEL_THREADS / smp__channel_lanes(channels, value_bytes);
    const int64_t blocks = slabs * smp__channel_tiles(channels, value_bytes);
    const int64_t wanted = (512 + blocks - 1) / blocks, most = (rows + 8 * lines - 1) / (8 * lines);
    return wanted < most ? wanted : most;
}

/* The attributes of layernorm and rmsnorm, which normalise the rows of the last dimension of input
 * 0; the offset is rmsnorm's. */
enum { SMP__ROW_NORM_EPS, SMP__RMSNORM_OFFSET };

/* An output like the input; a weight, and maybe a bias. */
smp_status smp__infer_row_norm(smp_infer *infer, bool has_bias);

/* The rows of a call; and what backward needs, so many statistics of a row saved. On a GPU the sums
 * of parts of the rows stand in the workspace, (parts, n_param, columns). */
int64_t smp__norm_rows(const smp_op_call *call);
void smp__needs_norm(const smp_graph *graph, const smp_op *op, int statistics, smp_op_needs *needs);
void smp__cuda_needs_norm(const smp_graph *graph, const smp_op *op, int64_t batch, int statistics,
                          smp_op_needs *needs);

#ifdef __cplusplus
}
#endif

#endif

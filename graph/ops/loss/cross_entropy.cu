/* cross_entropy on a GPU, the formulas of cross_entropy.c. Forward reads the logits once (maximum
 * and sum of a row in one pass, cuda_row.cuh); the losses of the rows are added in double, in an
 * order that depends on the number of rows alone. Backward reads the logits and writes their
 * gradient in one pass, and may do so in place. Rows of any width: a vocabulary of odd size is read
 * in 16-byte accesses but for the ends of its rows. Bound by memory: O(rows * classes).
 *
 * aux holds the statistics of the rows and, after them, the number of targets that count. With
 * label smoothing the workspace holds the mean logits of the rows, after the parts.
 * A target out of range, which the CPU reports, makes the loss NaN here.
 *
 * Of several devices that each have a part of the classes, each makes its share of a row; all
 * gather them and put them together in one order, so that all have the same bits. */
#include "graph/cuda/cuda_row.cuh"
extern "C" {
#include "graph/ops/collective/collective.h"
#include "graph/ops/loss/loss.h"
}

#include <math.h>

namespace
{
struct alignas(8) row_stats {
    float max, sum;
};

/* What a device has of a row, as in cross_entropy.c. */
struct alignas(16) row_share {
    float max, sum, target, total;
};

enum { SHARE = sizeof(row_share) / sizeof(float) };

/* Sum of losses and number of targets of some rows. */
struct alignas(16) partial {
    double loss, count;
};

/* Where the parts of a micro-batch lie. */
struct layout {
    int64_t rows, classes;
    int64_t first, all; // of the classes of this device; how many there are in all
    int64_t counted;    // rows of samples; the rest is padding
    row_stats *stats;   // (rows)
    double *count;      // after the statistics
    int parts;          // as many as cuda_needs made room for
    float smoothing;
    float *mean;             // (rows); NULL without smoothing
    row_share *own, *shares; // (rows), (devices, rows) and, closely packed, (devices, counted)
    float *target_logit;     // (rows); these three NULL if one device has all classes
};

/* What a row's gradients are made from: scale times the column's p, less the shares of the target
 * and of each column. */
struct row_gradient {
    float max, factor, target_share, each_share; /* factor: scale / sum; all but max are 0 for an
                                                    ignored row */
    int64_t target;
    template <typename T> __device__ __forceinline__ T at(T x, bool is_target) const
    {
        const float p = factor != 0.0f ? smp_exp<T>(smp_float(x) - max) * factor : 0.0f;
        return smp_from<T>((is_target ? p - target_share : p) - each_share);
    }
};
} // namespace

template <typename T, bool ONE_WARP>
__global__ void __launch_bounds__(SMP_ROW_MAX_LANES)
    cross_entropy_rows(const T *logits, const int32_t *target, row_stats *stats, int64_t rows,
                       int64_t classes) // (rows, classes), (rows), (rows)
{
    __shared__ float scratch[32];
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride()) {
        row_stats s = {0.0f, 1.0f};
        if (target[r] != SMP__IGNORED_TARGET) {
            const smp_normalizer z = smp_normalize_row<T, ONE_WARP>(logits, r, classes, scratch);
            s.max = z.max;
            s.sum = z.sum;
        }
        if (threadIdx.x == 0)
            stats[r] = s;
    }
}

template <typename T, bool ONE_WARP>
__global__ void __launch_bounds__(SMP_ROW_MAX_LANES)
    cross_entropy_means(const T *logits, float *mean, int64_t rows,
                        int64_t classes) // (rows, classes), (rows)
{
    __shared__ float scratch[32];
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride()) {
        float sum = 0.0f;
        for (int64_t c = threadIdx.x; c < classes; c += blockDim.x)
            sum += smp_float(logits[r * classes + c]);
        sum = smp_row_sum<ONE_WARP>(sum, scratch);
        if (threadIdx.x == 0)
            mean[r] = sum / (float)classes;
    }
}

/* The sums over a block, on thread 0: always the same tree. */
static __device__ __forceinline__ partial block_sum(partial x)
{
    __shared__ partial scratch[SMP_BLOCK];
    scratch[threadIdx.x] = x;
    for (int half = SMP_BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) {
            scratch[threadIdx.x].loss += scratch[threadIdx.x + half].loss;
            scratch[threadIdx.x].count += scratch[threadIdx.x + half].count;
        }
    }
    return scratch[threadIdx.x];
}

/* This device's share of the rows, with the sum of logits if SMOOTH. */
template <typename T, bool ONE_WARP>
__global__ void __launch_bounds__(SMP_ROW_MAX_LANES)
    cross_entropy_shares(const T *logits, const int32_t *target, row_share *own, int64_t rows,
                         int64_t classes, int64_t first_class, bool smooth)
{
    __shared__ float scratch[32];
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride()) {
        const int64_t t = target[r] - first_class;
        row_share share = {0.0f, 0.0f, 0.0f, 0.0f};
        if (target[r] != SMP__IGNORED_TARGET) {
            const smp_normalizer z = smp_normalize_row<T, ONE_WARP>(logits, r, classes, scratch);
            share.max = z.max;
            share.sum = z.sum;
            share.target = t >= 0 && t < classes ? smp_float(logits[r * classes + t]) : 0.0f;
            float total = 0.0f;
            for (int64_t c = threadIdx.x; smooth && c < classes; c += blockDim.x)
                total += smp_float(logits[r * classes + c]);
            if (smooth)
                share.total = smp_row_sum<ONE_WARP>(total, scratch);
        }
        if (threadIdx.x == 0)
            own[r] = share;
    }
}

/* The shares of all devices (devices, rows) put together; mean: NULL without smoothing. */
static __global__ void __launch_bounds__(SMP_BLOCK)
    cross_entropy_join(const row_share *shares, const int32_t *target, row_stats *stats,
                       float *target_logit, float *mean, int64_t rows, int64_t devices,
                       int64_t classes)
{
    for (int64_t r = smp_thread(); r < rows; r += smp_threads()) {
        row_share whole = shares[r];
        double sum = 0;
        for (int64_t d = 1; d < devices; d++) {
            const row_share part = shares[d * rows + r];
            whole.max = fmaxf(whole.max, part.max);
            whole.target += part.target;
            whole.total += part.total;
        }
        for (int64_t d = 0; d < devices; d++)
            sum += (double)shares[d * rows + r].sum *
                   exp((double)shares[d * rows + r].max - (double)whole.max);
        const bool counts = target[r] != SMP__IGNORED_TARGET;
        stats[r].max = counts ? whole.max : 0.0f;
        stats[r].sum = counts ? (float)sum : 1.0f;
        target_logit[r] = whole.target;
        if (mean)
            mean[r] = (float)((double)whole.total / (double)classes);
    }
}

/* target_logit: NULL: `logits` are all there are. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    cross_entropy_parts(const T *logits, const float *target_logit, const int32_t *target,
                        const row_stats *stats, const float *mean, float smoothing, partial *part,
                        int64_t rows,
                        int64_t classes) // part: [gridDim.x]; mean: NULL without smoothing
{
    partial sum = {0, 0};
    for (int64_t r = (int64_t)blockIdx.x * SMP_BLOCK + threadIdx.x; r < rows;
         r += (int64_t)gridDim.x * SMP_BLOCK) {
        const int32_t t = target[r];
        if (t == SMP__IGNORED_TARGET)
            continue;
        sum.count += 1;
        if (t < 0 || t >= classes) {
            sum.loss += NAN;
            continue;
        }
        double logit =
            (double)(target_logit ? target_logit[r] : smp_float(logits[r * classes + t]));
        if (mean)
            logit += (double)smoothing * ((double)mean[r] - logit);
        sum.loss += log((double)stats[r].sum) + ((double)stats[r].max - logit);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(SMP_BLOCK)
    cross_entropy_mean(const partial *part, int parts, float *loss, double *count) // [parts], [1]
{
    partial sum = {0, 0};
    for (int i = threadIdx.x; i < parts; i += SMP_BLOCK) {
        sum.loss += part[i].loss;
        sum.count += part[i].count;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        *loss = sum.count > 0 ? (float)(sum.loss / sum.count) : 0.0f;
        *count = sum.count;
    }
}

/* hits: [SMP_OP_HITS] what other rows had, 0 at first; whole numbers, so their order does not
 * matter. */
template <typename T, bool ONE_WARP>
__global__ void __launch_bounds__(SMP_ROW_MAX_LANES)
    cross_entropy_hits(const T *logits, const int32_t *target, unsigned long long *hits,
                       int64_t rows, int64_t classes) // (rows, classes), (rows), [1]
{
    __shared__ float scratch[32];
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride()) {
        const T *x = logits + r * classes;
        const int32_t t = target[r];
        if (t < 0 || t >= classes)
            continue;
        const float best = smp_float(x[t]);
        float own = 0.0f; // classes before the target
        for (int64_t c = threadIdx.x; c < classes; c += blockDim.x)
            own += !(c < t ? smp_float(x[c]) < best : smp_float(x[c]) <= best);
        const float before = smp_row_sum<ONE_WARP>(own, scratch);
        if (threadIdx.x == 0 && before == 0.0f)
            atomicAdd(&hits[0], 1ull);
        if (threadIdx.x == 0 && before < (float)SMP_TOP)
            atomicAdd(&hits[1], 1ull);
    }
}

/* How many classes of this device stand before the target; as many as make no hit where it is
 * ignored. */
template <typename T, bool ONE_WARP>
__global__ void __launch_bounds__(SMP_ROW_MAX_LANES)
    cross_entropy_before(const T *logits, const int32_t *target, const float *target_logit,
                         float *before, int64_t rows, int64_t classes, int64_t first_class)
{
    __shared__ float scratch[32];
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride()) {
        const T *x = logits + r * classes;
        const int64_t t = target[r] - first_class;
        const float best = target_logit[r];
        float own = 0.0f;
        for (int64_t c = threadIdx.x; c < classes && target[r] >= 0; c += blockDim.x)
            own += !(c < t ? smp_float(x[c]) < best : smp_float(x[c]) <= best);
        const float sum = smp_row_sum<ONE_WARP>(own, scratch);
        if (threadIdx.x == 0)
            before[r] = target[r] < 0 ? (float)SMP_TOP : sum;
    }
}

static __global__ void __launch_bounds__(SMP_BLOCK)
    cross_entropy_count_hits(const float *before, unsigned long long *hits, int64_t rows)
{
    partial sum = {0, 0}; // of the first, of the top ones; exact: whole numbers
    for (int64_t r = threadIdx.x; r < rows; r += SMP_BLOCK) {
        sum.loss += before[r] == 0.0f ? 1.0 : 0.0;
        sum.count += before[r] < (float)SMP_TOP ? 1.0 : 0.0;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        hits[0] = (unsigned long long)sum.loss;
        hits[1] = (unsigned long long)sum.count;
    }
}

/* classes: of this device, from first_class on, of `all`. */
template <typename T, bool ONE_WARP>
__global__ void __launch_bounds__(SMP_ROW_MAX_LANES)
    cross_entropy_backward(const T *logits, const int32_t *target, const row_stats *stats,
                           const double *count, const float *dout, T *dlogits, int64_t rows,
                           int64_t counted, int64_t classes, int64_t first_class, int64_t all,
                           float smoothing)
{
    constexpr int N = smp_pack<T>::N;
    const float scale = *dout / (float)(*count > 0 ? *count : 1.0);
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride()) {
        const smp_row_parts parts = smp_split_row<T>(r, classes);
        const T *x = logits + r * classes;
        T *dx = dlogits + r * classes;
        row_gradient g = {stats[r].max, scale / stats[r].sum, scale * (1.0f - smoothing),
                          scale * (smoothing / (float)all), target[r] - first_class};
        if (r >= counted || target[r] == SMP__IGNORED_TARGET)
            g.factor = g.target_share = g.each_share = 0.0f;
        for (int64_t c = threadIdx.x; c < parts.head; c += blockDim.x)
            dx[c] = g.at(x[c], c == g.target);
        for (int64_t p = threadIdx.x; p < parts.packs; p += blockDim.x) {
            const int64_t first = parts.head + p * N;
            const int hit = (int)(g.target - first);
            smp_pack<T> pack = smp_load16(x + first);
            for (int k = 0; k < N; k++)
                pack.v[k] = g.at(pack.v[k], k == hit);
            smp_store(dx + first, pack);
        }
        for (int64_t c = parts.tail + threadIdx.x; c < classes; c += blockDim.x)
            dx[c] = g.at(x[c], c == g.target);
    }
}

static layout layout_of(const smp_op_call *call)
{
    smp_op_needs needs;
    smp_op_needs_get(call->graph, call->op, call->batch, &needs);
    layout l;
    l.rows = smp__count(smp__in(call->graph, call->op, SMP__TARGETS), call->batch);
    l.counted =
        smp__count(smp__in(call->graph, call->op, SMP__TARGETS), call->batch - call->padding);
    l.classes = smp__columns(smp__in(call->graph, call->op, SMP__LOGITS));
    l.stats = static_cast<row_stats *>(call->aux);
    l.count = reinterpret_cast<double *>(l.stats + l.rows);
    const double smoothing = call->op->attr[SMP__CROSS_ENTROPY_SMOOTHING].f;
    const int64_t devices = call->op->attr[SMP__CROSS_ENTROPY_DEVICES].i,
                  shares = devices > 1 ? devices + 1 : 0;
    const int64_t values = (smoothing > 0) + (devices > 1); /* of each row, after the shares */
    const int64_t behind = l.rows * (shares * (int64_t)sizeof(row_share) + values * 4);
    l.smoothing = (float)smoothing;
    l.all = l.classes * devices;
    l.first = devices > 1 ? call->graph->device * l.classes : 0;
    l.parts = (int)((needs.workspace_bytes - behind) / (int64_t)sizeof(partial));
    row_share *own =
        reinterpret_cast<row_share *>(static_cast<partial *>(call->workspace) + l.parts);
    float *of_rows = reinterpret_cast<float *>(own + shares * l.rows);
    l.mean = smoothing > 0 ? of_rows : NULL;
    l.own = devices > 1 ? own : NULL;
    l.shares = devices > 1 ? own + l.rows : NULL;
    l.target_logit = devices > 1 ? of_rows + (smoothing > 0 ? l.rows : 0) : NULL;
    return l;
}

template <typename T> static smp_status count_hits(const smp_op_call *call, const layout &l)
{
    cudaStream_t stream = smp_cuda_of(call)->stream;
    unsigned long long *hits = reinterpret_cast<unsigned long long *>(call->hits);
    const int lanes = smp_row_lanes<T>(l.classes);
    const auto kernel =
        lanes == SMP_WARP ? cross_entropy_hits<T, true> : cross_entropy_hits<T, false>;
    SMP_TRY(SMP_CUDA(cudaMemsetAsync, hits, 0, SMP_OP_HITS * sizeof *hits, stream));
    SMP_LAUNCH(kernel, smp_row_grid(l.counted, lanes), smp_row_block(lanes), 0, stream,
               static_cast<const T *>(call->in[SMP__LOGITS]),
               static_cast<const int32_t *>(call->in[SMP__TARGETS]), hits, l.counted, l.classes);
    return SMP_OK;
}

/* Over all classes: what stands before the target, summed over the devices. */
template <typename T>
static smp_status count_hits_together(const smp_op_call *call, const layout &l,
                                      const smp_op_group *group)
{
    cudaStream_t stream = smp_cuda_of(call)->stream;
    float *before = reinterpret_cast<float *>(l.own); /* the shares have been put together */
    const int lanes = smp_row_lanes<T>(l.classes);
    const auto kernel =
        lanes == SMP_WARP ? cross_entropy_before<T, true> : cross_entropy_before<T, false>;
    SMP_LAUNCH(kernel, smp_row_grid(l.counted, lanes), smp_row_block(lanes), 0, stream,
               static_cast<const T *>(call->in[SMP__LOGITS]),
               static_cast<const int32_t *>(call->in[SMP__TARGETS]),
               static_cast<const float *>(l.target_logit), before, l.counted, l.classes, l.first);
    SMP_TRY(smp__cuda_launched("cross_entropy hits"));
    SMP_TRY(group->all_reduce(group->context, before, l.counted));
    SMP_LAUNCH(cross_entropy_count_hits, 1, SMP_BLOCK, 0, stream,
               static_cast<const float *>(before),
               reinterpret_cast<unsigned long long *>(call->hits), l.counted);
    return smp__cuda_launched("cross_entropy hits");
}

/* Statistics, means and the targets' logits of rows whose classes are those of several devices. */
template <typename T>
static smp_status make_rows_together(const smp_op_call *call, const layout &l,
                                     const smp_op_group *group)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int32_t *target = static_cast<const int32_t *>(call->in[SMP__TARGETS]);
    const int lanes = smp_row_lanes<T>(l.classes);
    const auto kernel =
        lanes == SMP_WARP ? cross_entropy_shares<T, true> : cross_entropy_shares<T, false>;
    SMP_LAUNCH(kernel, smp_row_grid(l.counted, lanes), smp_row_block(lanes), 0, cuda->stream,
               static_cast<const T *>(call->in[SMP__LOGITS]), target, l.own, l.counted, l.classes,
               l.first, l.mean != NULL);
    SMP_TRY(smp__cuda_launched("cross_entropy shares"));
    SMP_TRY(group->all_gather(group->context, reinterpret_cast<const float *>(l.own),
                              reinterpret_cast<float *>(l.shares), l.counted * SHARE));
    SMP_LAUNCH(cross_entropy_join, smp_grid(cuda, l.counted), SMP_BLOCK, 0, cuda->stream,
               static_cast<const row_share *>(l.shares), target, l.stats, l.target_logit, l.mean,
               l.counted, (int64_t)group->size, l.all);
    return smp__cuda_launched("cross_entropy join");
}

/* Statistics and means of rows of which this device has all classes. */
template <typename T> static smp_status make_rows(const smp_op_call *call, const layout &l)
{
    cudaStream_t stream = smp_cuda_of(call)->stream;
    const T *logits = static_cast<const T *>(call->in[SMP__LOGITS]);
    const int32_t *target = static_cast<const int32_t *>(call->in[SMP__TARGETS]);
    const int lanes = smp_row_lanes<T>(l.classes);
    const auto kernel =
        lanes == SMP_WARP ? cross_entropy_rows<T, true> : cross_entropy_rows<T, false>;
    SMP_LAUNCH(kernel, smp_row_grid(l.rows, lanes), smp_row_block(lanes), 0, stream, logits, target,
               l.stats, l.counted, l.classes);
    if (l.mean) {
        const auto means =
            lanes == SMP_WARP ? cross_entropy_means<T, true> : cross_entropy_means<T, false>;
        SMP_LAUNCH(means, smp_row_grid(l.rows, lanes), smp_row_block(lanes), 0, stream, logits,
                   l.mean, l.counted, l.classes);
    }
    return smp__cuda_launched("cross_entropy rows");
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    cudaStream_t stream = smp_cuda_of(call)->stream;
    const layout l = layout_of(call);
    const T *logits = static_cast<const T *>(call->in[SMP__LOGITS]);
    const int32_t *target = static_cast<const int32_t *>(call->in[SMP__TARGETS]);
    const row_stats *stats = l.stats;
    partial *part = static_cast<partial *>(call->workspace);
    const smp_op_group *group;
    SMP_TRY(smp__group_of(call, call->op->attr[SMP__CROSS_ENTROPY_DEVICES].i, &group));
    SMP_TRY(l.shares ? make_rows_together<T>(call, l, group) : make_rows<T>(call, l));
    SMP_LAUNCH(cross_entropy_parts<T>, l.parts, SMP_BLOCK, 0, stream, logits,
               static_cast<const float *>(l.target_logit), target, stats,
               static_cast<const float *>(l.mean), l.smoothing, part, l.counted, l.all);
    SMP_LAUNCH(cross_entropy_mean, 1, SMP_BLOCK, 0, stream, static_cast<const partial *>(part),
               l.parts, static_cast<float *>(call->out[0]), l.count);
    if (call->hits)
        SMP_TRY(l.shares ? count_hits_together<T>(call, l, group) : count_hits<T>(call, l));
    return smp__cuda_launched("cross_entropy");
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    if (!call->din[SMP__LOGITS])
        return SMP_OK;
    const layout l = layout_of(call);
    const int lanes = smp_row_lanes<T>(l.classes);
    const auto kernel =
        lanes == SMP_WARP ? cross_entropy_backward<T, true> : cross_entropy_backward<T, false>;
    SMP_LAUNCH(kernel, smp_row_grid(l.rows, lanes), smp_row_block(lanes), 0,
               smp_cuda_of(call)->stream, static_cast<const T *>(call->in[SMP__LOGITS]),
               static_cast<const int32_t *>(call->in[SMP__TARGETS]),
               static_cast<const row_stats *>(l.stats), static_cast<const double *>(l.count),
               call->dout[0], reinterpret_cast<T *>(call->din[SMP__LOGITS]), l.rows, l.counted,
               l.classes, l.first, l.all, l.smoothing);
    return smp__cuda_launched("cross_entropy backward");
}

SMP_CUDA_KERNELS(cross_entropy) = {.forward = SMP_TYPED(forward),
                                   .backward_input = SMP_TYPED(backward_input)};

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
#include "graph/ops/loss/cross_entropy.cuh"

#include <math.h>

#include "graph/cuda/cuda_row.cuh"
extern "C" {
#include "graph/ops/collective/collective.h"
}

namespace
{
enum { SHARE = sizeof(smp_row_share) / sizeof(float) };
typedef smp_class_rows layout;

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
    cross_entropy_rows(const T *logits, const int32_t *target, smp_row_stats *stats, int64_t rows,
                       int64_t classes) // (rows, classes), (rows), (rows)
{
    __shared__ float scratch[32];
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride()) {
        smp_row_stats s = {0.0f, 1.0f};
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
static __device__ __forceinline__ smp_loss_part block_sum(smp_loss_part x)
{
    __shared__ smp_loss_part scratch[SMP_BLOCK];
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
    cross_entropy_shares(const T *logits, const int32_t *target, smp_row_share *own, int64_t rows,
                         int64_t classes, int64_t first_class, bool smooth)
{
    __shared__ float scratch[32];
    for (int64_t r = smp_first_row(); r < rows; r += smp_row_stride()) {
        const int64_t t = target[r] - first_class;
        smp_row_share share = {0.0f, 0.0f, 0.0f, 0.0f};
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
    cross_entropy_join(const smp_row_share *shares, const int32_t *target, smp_row_stats *stats,
                       float *target_logit, float *mean, int64_t rows, int64_t devices,
                       int64_t classes)
{
    for (int64_t r = smp_thread(); r < rows; r += smp_threads()) {
        smp_row_share whole = shares[r];
        double sum = 0;
        for (int64_t d = 1; d < devices; d++) {
            const smp_row_share part = shares[d * rows + r];
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
                        const smp_row_stats *stats, const float *mean, float smoothing,
                        smp_loss_part *part, int64_t rows,
                        int64_t classes) // part: [gridDim.x]; mean: NULL without smoothing
{
    smp_loss_part sum = {0, 0};
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
    cross_entropy_mean(const smp_loss_part *part, int parts, float *loss,
                       double *count) // [parts], [1]
{
    smp_loss_part sum = {0, 0};
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
    smp_loss_part sum = {0, 0}; // of the first, of the top ones; exact: whole numbers
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
    cross_entropy_backward(const T *logits, const int32_t *target, const smp_row_stats *stats,
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
    layout l = {};
    l.rows = smp__count(smp__in(call->graph, call->op, SMP__TARGETS), call->batch);
    l.counted =
        smp__count(smp__in(call->graph, call->op, SMP__TARGETS), call->batch - call->padding);
    l.classes = smp__columns(smp__in(call->graph, call->op, SMP__LOGITS));
    l.logits = call->in[SMP__LOGITS];
    l.target = static_cast<const int32_t *>(call->in[SMP__TARGETS]);
    l.stats = static_cast<smp_row_stats *>(call->aux);
    l.count = reinterpret_cast<double *>(l.stats + l.rows);
    const double smoothing = call->op->attr[SMP__CROSS_ENTROPY_SMOOTHING].f;
    const int64_t devices = call->op->attr[SMP__CROSS_ENTROPY_DEVICES].i,
                  shares = devices > 1 ? devices + 1 : 0;
    l.smoothing = (float)smoothing;
    l.devices = devices;
    l.first = devices > 1 ? call->graph->device * l.classes : 0;
    l.parts = (int)(smp__cross_entropy_parts_bytes(l.rows) / (int64_t)sizeof(smp_loss_part));
    l.part = static_cast<smp_loss_part *>(call->workspace);
    smp_row_share *own = reinterpret_cast<smp_row_share *>(l.part + l.parts);
    float *of_rows = reinterpret_cast<float *>(own + shares * l.rows);
    l.mean = smoothing > 0 ? of_rows : NULL;
    l.own = devices > 1 ? own : NULL;
    l.shares = devices > 1 ? own + l.rows : NULL;
    l.target_logit = devices > 1 ? of_rows + (smoothing > 0 ? l.rows : 0) : NULL;
    l.before = reinterpret_cast<float *>(l.own); /* once the shares have been put together */
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
               static_cast<const T *>(l.logits), l.target, hits, l.counted, l.classes);
    return SMP_OK;
}

/* Over all classes: what stands before the target, summed over the devices. */
template <typename T>
static smp_status find_before(const smp_op_call *call, const layout &l, const smp_op_group *group)
{
    cudaStream_t stream = smp_cuda_of(call)->stream;
    const int lanes = smp_row_lanes<T>(l.classes);
    const auto kernel =
        lanes == SMP_WARP ? cross_entropy_before<T, true> : cross_entropy_before<T, false>;
    SMP_LAUNCH(kernel, smp_row_grid(l.counted, lanes), smp_row_block(lanes), 0, stream,
               static_cast<const T *>(l.logits), l.target,
               static_cast<const float *>(l.target_logit), l.before, l.counted, l.classes, l.first);
    SMP_TRY(smp__cuda_launched("cross_entropy hits"));
    return l.devices > 1 ? group->all_reduce(group->context, l.before, l.counted) : SMP_OK;
}

/* Statistics, means and the targets' logits of rows whose classes are those of several devices, or
 * whose logits are not there when the losses are added; for hits the classes before a target. */
template <typename T> static smp_status make_shares(const smp_op_call *call, const layout &l)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int lanes = smp_row_lanes<T>(l.classes);
    const auto kernel =
        lanes == SMP_WARP ? cross_entropy_shares<T, true> : cross_entropy_shares<T, false>;
    const smp_op_group *group = NULL;
    if (l.devices > 1)
        SMP_TRY(smp__group_of(call, l.devices, &group));
    SMP_LAUNCH(kernel, smp_row_grid(l.counted, lanes), smp_row_block(lanes), 0, cuda->stream,
               static_cast<const T *>(l.logits), l.target, l.own, l.counted, l.classes, l.first,
               l.mean != NULL);
    SMP_TRY(smp__cuda_launched("cross_entropy shares"));
    if (group)
        SMP_TRY(group->all_gather(group->context, reinterpret_cast<const float *>(l.own),
                                  reinterpret_cast<float *>(l.shares), l.counted * SHARE));
    SMP_LAUNCH(cross_entropy_join, smp_grid(cuda, l.counted), SMP_BLOCK, 0, cuda->stream,
               static_cast<const smp_row_share *>(group ? l.shares : l.own), l.target, l.stats,
               l.target_logit, l.mean, l.counted, l.devices, l.classes * l.devices);
    SMP_TRY(smp__cuda_launched("cross_entropy join"));
    return call->hits ? find_before<T>(call, l, group) : SMP_OK;
}

/* Statistics and means of rows of which this device has all classes. */
template <typename T> static smp_status make_rows(const smp_op_call *call, const layout &l)
{
    cudaStream_t stream = smp_cuda_of(call)->stream;
    const T *logits = static_cast<const T *>(l.logits);
    const int lanes = smp_row_lanes<T>(l.classes);
    const auto kernel =
        lanes == SMP_WARP ? cross_entropy_rows<T, true> : cross_entropy_rows<T, false>;
    SMP_LAUNCH(kernel, smp_row_grid(l.rows, lanes), smp_row_block(lanes), 0, stream, logits,
               l.target, l.stats, l.counted, l.classes);
    if (l.mean) {
        const auto means =
            lanes == SMP_WARP ? cross_entropy_means<T, true> : cross_entropy_means<T, false>;
        SMP_LAUNCH(means, smp_row_grid(l.rows, lanes), smp_row_block(lanes), 0, stream, logits,
                   l.mean, l.counted, l.classes);
    }
    return smp__cuda_launched("cross_entropy rows");
}

template <typename T> static smp_status add_losses(const smp_op_call *call, const layout &l)
{
    cudaStream_t stream = smp_cuda_of(call)->stream;
    SMP_LAUNCH(cross_entropy_parts<T>, l.parts, SMP_BLOCK, 0, stream,
               static_cast<const T *>(l.logits), static_cast<const float *>(l.target_logit),
               l.target, static_cast<const smp_row_stats *>(l.stats),
               static_cast<const float *>(l.mean), l.smoothing, l.part, l.counted,
               l.classes * l.devices);
    SMP_LAUNCH(cross_entropy_mean, 1, SMP_BLOCK, 0, stream,
               static_cast<const smp_loss_part *>(l.part), l.parts,
               static_cast<float *>(call->out[0]), l.count);
    if (call->hits && l.before)
        SMP_LAUNCH(cross_entropy_count_hits, 1, SMP_BLOCK, 0, stream,
                   static_cast<const float *>(l.before),
                   reinterpret_cast<unsigned long long *>(call->hits), l.counted);
    return smp__cuda_launched("cross_entropy");
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const layout l = layout_of(call);
    SMP_TRY(l.own ? make_shares<T>(call, l) : make_rows<T>(call, l));
    SMP_TRY(add_losses<T>(call, l));
    return call->hits && !l.before ? count_hits<T>(call, l) : SMP_OK;
}

template <typename T>
static smp_status make_gradient(const smp_op_call *call, const layout &l, void *dlogits)
{
    const int lanes = smp_row_lanes<T>(l.classes);
    const auto kernel =
        lanes == SMP_WARP ? cross_entropy_backward<T, true> : cross_entropy_backward<T, false>;
    SMP_LAUNCH(kernel, smp_row_grid(l.rows, lanes), smp_row_block(lanes), 0,
               smp_cuda_of(call)->stream, static_cast<const T *>(l.logits), l.target,
               static_cast<const smp_row_stats *>(l.stats), static_cast<const double *>(l.count),
               call->dout[0], static_cast<T *>(dlogits), l.rows, l.counted, l.classes, l.first,
               l.classes * l.devices, l.smoothing);
    return smp__cuda_launched("cross_entropy backward");
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    return call->din[SMP__LOGITS] ? make_gradient<T>(call, layout_of(call), call->din[SMP__LOGITS])
                                  : SMP_OK;
}

smp_status smp_class_rows_make(const smp_op_call *call, const smp_class_rows *rows)
{
    return SMP_AS(smp_dtype_of_call(call), make_shares, call, *rows);
}

smp_status smp_class_rows_add(const smp_op_call *call, const smp_class_rows *rows)
{
    return SMP_AS(smp_dtype_of_call(call), add_losses, call, *rows);
}

smp_status smp_class_rows_gradient(const smp_op_call *call, const smp_class_rows *rows,
                                   void *dlogits)
{
    return SMP_AS(smp_dtype_of_call(call), make_gradient, call, *rows, dlogits);
}

SMP_CUDA_KERNELS(cross_entropy) = {.forward = SMP_TYPED(forward),
                                   .backward_input = SMP_TYPED(backward_input)};

/* embedding on a GPU.
 *
 * Forward copies rows of the fp32 weights, rounded where the target is of 16 bits. An index outside
 * the table, which only unchecked data can hold, makes a row of NaN and has no gradient. A row of
 * the table that another device has is one of zeroes.
 *
 * The weight gradient needs no atomics: positions are sorted by row, stably, and one warp adds
 * the positions of a row in their order, starting from the accumulator: the sums of the CPU's
 * kernel, bit for bit. O(n * features) memory traffic; a row that occurs often is a long sum, so
 * the columns of a row are spread over warps and a warp has eight rows of dout in flight. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/cuda/cuda_order.cuh"
#include "graph/ops/embedding/embedding.h"

enum { IN_FLIGHT = 8 };

template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    embedding_forward(const int32_t *index, const float *weight, T *out, int64_t n,
                      smp__own_rows rows, int64_t features)
// index (n), weight (rows.count, features), out (n, features), features a multiple of W
{
    const int64_t columns = features / W;
    for (int64_t i = smp_thread(); i < n * columns; i += smp_threads()) {
        const int64_t position = i / columns, column = i - position * columns;
        const int64_t at = index[position], row = at - rows.first;
        float value[W];
        if (row >= 0 && row < rows.count)
            smp_read<W>(value, weight + row * features + column * W);
        else
            for (int k = 0; k < W; k++)
                value[k] = at >= 0 && at < rows.all ? 0.0f : NAN;
        smp_write<W>(out + i * W, value);
    }
}

/* sum += the rows of dout at the first `run` positions that the lanes hold, in order. */
template <int W, typename T>
__device__ __forceinline__ void embedding_add_run(float (&sum)[W], const T *dout, int32_t position,
                                                  int run, int64_t features, bool inside)
{
    for (int begin = 0; begin < run; begin += IN_FLIGHT) {
        float value[IN_FLIGHT][W];
        for (int k = 0; k < IN_FLIGHT; k++) {
            const int64_t at = __shfl_sync(0xffffffffu, position, (begin + k) % SMP_WARP);
            if (begin + k < run && inside)
                smp_read<W>(value[k], dout + at * features);
        }
        for (int k = 0; k < IN_FLIGHT; k++)
            for (int e = 0; e < W; e++)
                if (begin + k < run && inside)
                    sum[e] += value[k][e];
    }
}

/* A warp takes one place of the order and 32 W columns. If the place is the first of its row, it
 * goes on to the last one, 32 places at a time. */
template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    embedding_gradient(const int32_t *index, const int32_t *order, const T *dout, float *dweight,
                       int64_t n, smp__own_rows rows, int64_t padding, int64_t features)
// index, order (n), dout (n, features), dweight (rows.count, features) +=, features a multiple of W
{
    const int64_t tiles = (features + SMP_WARP * W - 1) / (SMP_WARP * W);
    const int lane = threadIdx.x % SMP_WARP;
    for (int64_t item = smp_thread() / SMP_WARP; item < n * tiles;
         item += smp_threads() / SMP_WARP) {
        const int64_t place = item / tiles;
        const int64_t column = (item - place * tiles) * SMP_WARP * W + lane * W;
        const bool inside = column < features;
        const int64_t at_row = index[order[place]], row = at_row - rows.first;
        if (row < 0 || row >= rows.count || at_row == padding ||
            (place > 0 && index[order[place - 1]] == at_row))
            continue;
        float sum[W] = {0};
        if (inside)
            smp_read<W>(sum, dweight + row * features + column);
        int run = SMP_WARP;
        for (int64_t at = place; run == SMP_WARP && at < n; at += SMP_WARP) {
            const int32_t position = at + lane < n ? order[at + lane] : -1;
            const bool same = position >= 0 && index[position] == at_row;
            const unsigned others = ~__ballot_sync(0xffffffffu, same);
            run = others ? __ffs((int)others) - 1 : SMP_WARP;
            embedding_add_run<W>(sum, dout + column, position, run, features, inside);
        }
        if (inside)
            smp_write<W>(dweight + row * features + column, sum);
    }
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t n = smp__count(smp__in(call->graph, call->op, 0), call->batch);
    const int64_t features = call->op->attr[SMP__EMBEDDING_FEATURES].i;
    const int width = smp_width<T>(features);
    const auto kernel = width > 1 ? embedding_forward<smp_pack<T>::N, T> : embedding_forward<1, T>;
    SMP_LAUNCH(kernel, smp_grid(cuda, n * (features / width)), SMP_BLOCK, 0, cuda->stream,
               static_cast<const int32_t *>(call->in[0]), call->param[0],
               static_cast<T *>(call->out[0]), n, smp__embedding_rows(call->graph, call->op),
               features);
    return smp__cuda_launched("embedding");
}

template <typename T> static smp_status backward_weight(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t n = smp__count(smp__in(call->graph, call->op, 0), call->batch);
    const smp__own_rows rows = smp__embedding_rows(call->graph, call->op);
    const int64_t features = call->op->attr[SMP__EMBEDDING_FEATURES].i;
    const int32_t *index = static_cast<const int32_t *>(call->in[0]), *order = NULL;
    const int width = smp_width<T>(features), tile = SMP_WARP * width;
    const int64_t warps = n * ((features + tile - 1) / tile);
    const auto kernel =
        width > 1 ? embedding_gradient<smp_pack<T>::N, T> : embedding_gradient<1, T>;
    SMP_TRY(smp_order(cuda, index, n, rows.all, call->workspace, &order));
    SMP_LAUNCH(kernel, smp_grid(cuda, warps * SMP_WARP), SMP_BLOCK, 0, cuda->stream, index, order,
               (const T *)call->dout[0], call->dparam[0], n, rows,
               call->op->attr[SMP__EMBEDDING_PADDING].i, features);
    return smp__cuda_launched("embedding");
}

/* The sort counts positions in 32 bits. */
static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    (void)device;
    *state = NULL;
    const int64_t n = smp__count(smp__in(graph, op, 0), batch);
    if (n > INT32_MAX)
        return smp_fail_at(
            smp_op_where(graph, op),
            "op '%s' (embedding): %lld indices in a micro-batch, expected at most %d "
            "on a GPU",
            op->name, (long long)n, INT32_MAX);
    return SMP_OK;
}

SMP_CUDA_KERNELS(embedding) = {
    .prepare = prepare,
    .forward = SMP_TYPED(forward),
    .backward_weight = SMP_TYPED(backward_weight),
};

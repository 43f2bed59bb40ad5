/* Routing of tokens to experts on a GPU, the choices of routing.c, of all samples at
 * once: a warp chooses the experts of a token, then a warp counts, for one expert of one sample,
 * who comes before whom. O(tokens * experts * top_k) work; nothing depends on the order in which
 * warps run. A NaN is taken for the largest logit, so that every choice is an expert. */
#ifndef SMP_GRAPH_OPS_ROUTING_CUH
#define SMP_GRAPH_OPS_ROUTING_CUH

#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/cuda/cuda_row.cuh"
extern "C" {
#include "graph/ops/experts/routing.h"
}

enum { SMP_ROUTE_MOST_TOKENS = 1 << 28 }; /* choices of a sample count in 32 bits */

/* A logit and whose it is, in the order in which experts are chosen. */
struct smp_candidate {
    float logit;
    int expert; /* -1: none */
    __device__ __forceinline__ bool before(const smp_candidate &other) const
    {
        const bool nan = logit != logit, other_nan = other.logit != other.logit;
        if (expert < 0 || other.expert < 0)
            return expert >= 0;
        if (nan != other_nan)
            return nan;
        if (!nan && logit != other.logit)
            return logit > other.logit;
        return expert < other.expert;
    }
};

/* The best of the lanes, on every lane. */
__device__ __forceinline__ smp_candidate smp_best_candidate(smp_candidate own)
{
    for (int step = SMP_WARP / 2; step > 0; step /= 2) {
        smp_candidate other;
        other.logit = __shfl_xor_sync(0xffffffffu, own.logit, step);
        other.expert = __shfl_xor_sync(0xffffffffu, own.expert, step);
        if (other.before(own))
            own = other;
    }
    return own;
}

/* max and sum of exp(logit - max) over all experts of a token, by a warp. */
template <typename T>
__device__ __forceinline__ smp_normalizer smp_route_normalizer(const T *logits, int64_t experts,
                                                               int lane)
{
    smp_normalizer z = {-INFINITY, 0.0f};
    for (int64_t e = lane; e < experts; e += SMP_WARP)
        z.max = fmaxf(z.max, smp_float(logits[e]));
    z.max = smp_warp_max(z.max);
    for (int64_t e = lane; e < experts; e += SMP_WARP)
        z.sum += expf(smp_float(logits[e]) - z.max);
    z.sum = smp_warp_sum(z.sum);
    return z;
}

/* A warp takes a token: its experts, and their gates if there is room for them. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_route_choose(const T *logits, smp__routing r, smp__device_route route, int64_t tokens)
// logits (tokens, experts), tokens: of all samples
{
    const int lane = threadIdx.x % SMP_WARP;
    for (int64_t t = smp_thread() / SMP_WARP; t < tokens; t += smp_threads() / SMP_WARP) {
        const T *x = logits + t * r.experts;
        const bool shares = route.gate && r.all;
        smp_normalizer z = {0.0f, 0.0f};
        smp_candidate last = {0.0f, -1};
        if (shares)
            z = smp_route_normalizer(x, r.experts, lane);
        for (int64_t k = 0; k < r.top_k; k++) {
            smp_candidate own = {0.0f, -1};
            for (int64_t e = lane; e < r.experts; e += SMP_WARP) {
                const smp_candidate it = {smp_float(x[e]), (int)e};
                if ((k == 0 || last.before(it)) && it.before(own))
                    own = it;
            }
            last = smp_best_candidate(own);
            if (route.gate && !r.all) { /* of the chosen: the first is the largest */
                z.max = k == 0 ? last.logit : z.max;
                z.sum += expf(last.logit - z.max);
            }
            if (lane == 0) {
                route.expert[t * r.top_k + k] = last.expert;
                if (route.gate)
                    route.gate[t * r.top_k + k] = expf(last.logit - z.max);
            }
        }
        __syncwarp();
        for (int64_t k = lane; route.gate && k < r.top_k; k += SMP_WARP)
            route.gate[t * r.top_k + k] *= 1.0f / z.sum;
        __syncwarp();
    }
}

/* A warp takes expert first + j of a sample, j < own, and gives its places to first choices by
 * rising token, then to second ones, and so on. */
static __global__ void __launch_bounds__(SMP_BLOCK)
    smp_route_place(smp__routing r, smp__device_route route, int64_t batch)
{
    const int lane = threadIdx.x % SMP_WARP;
    const int64_t choices = r.tokens * r.top_k;
    for (int64_t i = smp_thread() / SMP_WARP; i < batch * r.own; i += smp_threads() / SMP_WARP) {
        const int64_t sample = i / r.own, expert = r.first + i % r.own;
        const int32_t *chosen = route.expert + sample * choices;
        int32_t *slot = route.slot + sample * choices, *row = route.choice + i * r.capacity;
        int64_t used = 0;
        for (int64_t begin = 0; begin < choices; begin += SMP_WARP) {
            const int64_t place = begin + lane, k = place / r.tokens, t = place - k * r.tokens;
            const bool mine = place < choices && chosen[t * r.top_k + k] == expert;
            const unsigned all = __ballot_sync(0xffffffffu, mine);
            const int64_t at = used + __popc(all & ((1u << lane) - 1));
            if (mine) {
                slot[t * r.top_k + k] = at < r.capacity ? (int32_t)at : -1;
                if (at < r.capacity)
                    row[at] = (int32_t)(t * r.top_k + k);
            }
            used += __popc(all);
        }
        if (lane == 0)
            route.used[sample * r.experts + expert] =
                (int32_t)(used < r.capacity ? used : r.capacity);
        for (int64_t at = used + lane; at < r.capacity; at += SMP_WARP)
            row[at] = -1;
    }
}

/* The row of choice i of a sample among those of this device, or -1. */
__device__ __forceinline__ int64_t smp_route_row(const smp__routing &r,
                                                 const smp__device_route &route, int64_t sample,
                                                 int64_t i)
{
    const int64_t at = sample * r.tokens * r.top_k + i, expert = route.expert[at] - r.first;
    if (expert < 0 || expert >= r.own || route.slot[at] < 0)
        return -1;
    return (sample * r.own + expert) * r.capacity + route.slot[at];
}

struct smp_rows_of_experts {
    smp__routing r;
    smp__device_route route;
    __device__ __forceinline__ int64_t operator()(int64_t sample, int64_t i) const
    {
        return smp_route_row(r, route, sample, i);
    }
};

/* Every token adds up the rows of its choices, in their order. ROWS(sample, i): where the row of
 * choice i of the sample lies, -1: nowhere. */
template <int W, typename T, typename ROWS>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_choices_sum_kernel(const T *from, ROWS rows, smp__routing r, const float *gate, T *to,
                           int64_t tokens, int64_t features)
// to (tokens, features), tokens: of all samples; gate (tokens, top_k) or NULL: all 1
{
    const int64_t columns = features / W;
    for (int64_t i = smp_thread(); i < tokens * columns; i += smp_threads()) {
        const int64_t token = i / columns, column = (i - token * columns) * W;
        const int64_t sample = token / r.tokens, first = token % r.tokens * r.top_k;
        float sum[W] = {}, value[W];
        for (int64_t k = 0; k < r.top_k; k++) {
            const int64_t row = rows(sample, first + k);
            if (row < 0)
                continue;
            const float weight = gate ? gate[token * r.top_k + k] : 1.0f;
            smp_read<W>(value, from + row * features + column);
            for (int e = 0; e < W; e++)
                sum[e] = fmaf(weight, value[e], sum[e]);
        }
        smp_write<W>(to + token * features + column, sum);
    }
}

template <typename T, typename ROWS>
static smp_status smp_choices_sum(const smp_op_call *call, const T *from, const ROWS &rows,
                                  const smp__routing &r, const float *gate, int64_t features, T *to)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t tokens = call->batch * r.tokens;
    const int width = smp_width<T>(features);
    const auto kernel = width > 1 ? smp_choices_sum_kernel<smp_pack<T>::N, T, ROWS>
                                  : smp_choices_sum_kernel<1, T, ROWS>;
    SMP_LAUNCH(kernel, smp_grid(cuda, tokens * (features / width)), SMP_BLOCK, 0, cuda->stream,
               from, rows, r, gate, to, tokens, features);
    return smp__cuda_launched(call->op->kind->name);
}

/* A warp takes a token: the gradients of its gates, which are dot products with the rows of its
 * choices, and from them those of all its logits. */
template <typename T, typename ROWS>
__global__ void __launch_bounds__(SMP_BLOCK)
    smp_gates_gradient_kernel(const T *from, ROWS rows, const T *dout, const T *logits, T *dlogits,
                              smp__routing r, smp__device_route route, int64_t tokens,
                              int64_t features)
{
    const int lane = threadIdx.x % SMP_WARP;
    for (int64_t t = smp_thread() / SMP_WARP; t < tokens; t += smp_threads() / SMP_WARP) {
        const int64_t first = t * r.top_k;
        const T *x = logits + t * r.experts, *gradient = dout + t * features;
        float mean = 0;
        for (int64_t k = 0; k < r.top_k; k++) {
            const int64_t row = rows(t / r.tokens, t % r.tokens * r.top_k + k);
            float sum = 0;
            for (int64_t c = lane; row >= 0 && c < features; c += SMP_WARP)
                sum = fmaf(smp_float(gradient[c]), smp_float(from[row * features + c]), sum);
            sum = smp_warp_sum(sum);
            if (lane == 0)
                route.dgate[first + k] = sum;
            mean += route.gate[first + k] * sum;
        }
        __syncwarp();
        smp_normalizer z = {0.0f, 1.0f};
        if (r.all)
            z = smp_route_normalizer(x, r.experts, lane);
        for (int64_t e = lane; e < r.experts; e += SMP_WARP) {
            float value = r.all ? -(expf(smp_float(x[e]) - z.max) / z.sum) * mean : 0.0f;
            for (int64_t k = 0; k < r.top_k; k++)
                if (route.expert[first + k] == e)
                    value += route.gate[first + k] *
                             (r.all ? route.dgate[first + k] : route.dgate[first + k] - mean);
            dlogits[t * r.experts + e] = smp_from<T>(value);
        }
    }
}

/* din[1], of the logits in[1]. */
template <typename T, typename ROWS>
static smp_status smp_gates_gradient(const smp_op_call *call, const T *from, const ROWS &rows,
                                     const smp__routing &r, const smp__device_route &route,
                                     int64_t features)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t tokens = call->batch * r.tokens;
    const auto kernel = smp_gates_gradient_kernel<T, ROWS>;
    SMP_LAUNCH(kernel, smp_grid(cuda, tokens * SMP_WARP), SMP_BLOCK, 0, cuda->stream, from, rows,
               reinterpret_cast<const T *>(call->dout[0]), static_cast<const T *>(call->in[1]),
               reinterpret_cast<T *>(call->din[1]), r, route, tokens, features);
    return smp__cuda_launched(call->op->kind->name);
}

template <typename T>
static smp_status smp_route(const smp_op_call *call, const smp__routing &r, const void *logits,
                            const smp__device_route &route)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t tokens = call->batch * r.tokens;
    SMP_LAUNCH(smp_route_choose<T>, smp_grid(cuda, tokens * SMP_WARP), SMP_BLOCK, 0, cuda->stream,
               static_cast<const T *>(logits), r, route, tokens);
    SMP_LAUNCH(smp_route_place, smp_grid(cuda, call->batch * r.own * SMP_WARP), SMP_BLOCK, 0,
               cuda->stream, r, route, call->batch);
    return smp__cuda_launched("routing");
}

/* For `prepare`: a sample's choices count in 32 bits. */
static inline smp_status smp_route_check(const smp_graph *graph, const smp_op *op,
                                         const smp__routing &r)
{
    if (r.tokens * r.top_k <= SMP_ROUTE_MOST_TOKENS)
        return SMP_OK;
    return smp_fail_at(smp_op_where(graph, op),
                       "op '%s' (%s): %lld choices of a sample, expected at most %d on a GPU",
                       op->name, op->kind->name, (long long)(r.tokens * r.top_k),
                       (int)SMP_ROUTE_MOST_TOKENS);
}
/* `prepare` of expert_dispatch and expert_combine. */
static inline smp_status smp_experts_check(const smp_graph *graph, const smp_op *op, int64_t batch,
                                           void *device, void **state)
{
    (void)batch, (void)device;
    *state = NULL;
    return smp_route_check(graph, op, smp__experts_routing(graph, op));
}

#endif

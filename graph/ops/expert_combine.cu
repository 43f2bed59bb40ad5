/* expert_combine on a GPU: every token adds up what its experts made, in the order of its choices;
 * every row of an expert looks up its token's gradient; the gradients of gates are dot products, a
 * warp to a token. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/routing.cuh"

enum { Y, LOGITS };

template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    combine_forward(const T *y, T *out, smp__routing r, smp__device_route route, int64_t tokens,
                    int64_t features) // out (tokens, features), tokens: of all samples
{
    const int64_t columns = features / W;
    for (int64_t i = smp_thread(); i < tokens * columns; i += smp_threads()) {
        const int64_t token = i / columns, column = (i - token * columns) * W;
        const int64_t sample = token / r.tokens, first = token % r.tokens * r.top_k;
        float sum[W] = {}, value[W];
        for (int64_t k = 0; k < r.top_k; k++) {
            const int64_t row = smp_route_row(r, route, sample, first + k);
            if (row < 0)
                continue;
            const float gate = route.gate[token * r.top_k + k];
            smp_read<W>(value, y + row * features + column);
            for (int e = 0; e < W; e++)
                sum[e] = fmaf(gate, value[e], sum[e]);
        }
        smp_write<W>(out + token * features + column, sum);
    }
}

template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    combine_backward_rows(const T *dout, T *dy, smp__routing r, smp__device_route route,
                          int64_t rows, int64_t features) // dy (rows, features)
{
    const int64_t columns = features / W, each = r.own * r.capacity;
    for (int64_t i = smp_thread(); i < rows * columns; i += smp_threads()) {
        const int64_t row = i / columns, column = (i - row * columns) * W;
        const int64_t sample = row / each, choice = route.choice[row];
        float value[W] = {};
        if (choice >= 0) {
            const float gate = route.gate[sample * r.tokens * r.top_k + choice];
            smp_read<W>(value, dout + (sample * r.tokens + choice / r.top_k) * features + column);
            for (int e = 0; e < W; e++)
                value[e] *= gate;
        }
        smp_write<W>(dy + row * features + column, value);
    }
}

/* A warp takes a token: the gradients of its gates, and from them those of all its logits. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    combine_backward_logits(const T *y, const T *dout, const T *logits, T *dlogits, smp__routing r,
                            smp__device_route route, int64_t tokens, int64_t features)
{
    const int lane = threadIdx.x % SMP_WARP;
    for (int64_t t = smp_thread() / SMP_WARP; t < tokens; t += smp_threads() / SMP_WARP) {
        const int64_t first = t * r.top_k;
        const T *x = logits + t * r.experts, *from = dout + t * features;
        float mean = 0;
        for (int64_t k = 0; k < r.top_k; k++) {
            const int64_t row = smp_route_row(r, route, t / r.tokens, t % r.tokens * r.top_k + k);
            float sum = 0;
            for (int64_t c = lane; row >= 0 && c < features; c += SMP_WARP)
                sum = fmaf(smp_float(from[c]), smp_float(y[row * features + c]), sum);
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

static smp__routing routing_of(const smp_graph *graph, const smp_op *op)
{
    return smp__routing_of(graph, op, &smp__in(graph, op, LOGITS)->shape);
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    (void)batch, (void)device;
    *state = NULL;
    return smp_route_check(graph, op, routing_of(graph, op));
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp__routing r = routing_of(call->graph, call->op);
    const smp__device_route route = smp__device_route_at(&r, call->batch, true, call->workspace);
    const int64_t features = smp__columns(smp__in(call->graph, call->op, Y));
    const int64_t tokens = call->batch * r.tokens;
    const int width = smp_width<T>(features);
    const auto kernel = width > 1 ? combine_forward<smp_pack<T>::N, T> : combine_forward<1, T>;
    SMP_TRY(smp_route<T>(call, r, call->in[LOGITS], route));
    SMP_LAUNCH(kernel, smp_grid(cuda, tokens * (features / width)), SMP_BLOCK, 0, cuda->stream,
               static_cast<const T *>(call->in[Y]), static_cast<T *>(call->out), r, route, tokens,
               features);
    return smp__cuda_launched("expert_combine");
}

template <typename T>
static smp_status rows_gradient(const smp_op_call *call, const smp__routing &r,
                                const smp__device_route &route, int64_t features)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const int64_t rows = call->batch * r.own * r.capacity;
    const int width = smp_width<T>(features);
    const auto kernel =
        width > 1 ? combine_backward_rows<smp_pack<T>::N, T> : combine_backward_rows<1, T>;
    SMP_LAUNCH(kernel, smp_grid(cuda, rows * (features / width)), SMP_BLOCK, 0, cuda->stream,
               reinterpret_cast<const T *>(call->dout), reinterpret_cast<T *>(call->din[Y]), r,
               route, rows, features);
    return smp__cuda_launched("expert_combine");
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp__routing r = routing_of(call->graph, call->op);
    const smp__device_route route = smp__device_route_at(&r, call->batch, true, call->workspace);
    const int64_t features = smp__columns(smp__in(call->graph, call->op, Y));
    const int64_t tokens = call->batch * r.tokens;
    if (!call->din[Y] && !call->din[LOGITS])
        return SMP_OK;
    SMP_TRY(smp_route<T>(call, r, call->in[LOGITS], route));
    if (call->din[Y])
        SMP_TRY(rows_gradient<T>(call, r, route, features));
    if (!call->din[LOGITS])
        return SMP_OK;
    SMP_LAUNCH(combine_backward_logits<T>, smp_grid(cuda, tokens * SMP_WARP), SMP_BLOCK, 0,
               cuda->stream, static_cast<const T *>(call->in[Y]),
               reinterpret_cast<const T *>(call->dout), static_cast<const T *>(call->in[LOGITS]),
               reinterpret_cast<T *>(call->din[LOGITS]), r, route, tokens, features);
    return smp__cuda_launched("expert_combine");
}

SMP_CUDA_KERNELS(expert_combine) = {prepare, NULL, SMP_TYPED(forward), SMP_TYPED(backward_input),
                                    NULL,    NULL};

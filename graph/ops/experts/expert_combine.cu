/* expert_combine on a GPU: every token adds up what its experts made, in the order of its choices;
 * every row of an expert looks up its token's gradient; the gradients of gates are dot products, a
 * warp to a token. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/experts/routing.cuh"

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

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp__routing r = smp__experts_routing(call->graph, call->op);
    const smp__device_route route = smp__device_route_at(&r, call->batch, true, call->workspace);
    const int64_t features = smp__columns(smp__in(call->graph, call->op, SMP__ROUTED));
    SMP_TRY(smp_route<T>(call, r, call->in[SMP__ROUTER], route));
    return smp_choices_sum(call, static_cast<const T *>(call->in[SMP__ROUTED]),
                           smp_rows_of_experts{r, route}, r, route.gate, features,
                           static_cast<T *>(call->out[0]));
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
               reinterpret_cast<const T *>(call->dout[0]),
               reinterpret_cast<T *>(call->din[SMP__ROUTED]), r, route, rows, features);
    return smp__cuda_launched("expert_combine");
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp__routing r = smp__experts_routing(call->graph, call->op);
    const smp__device_route route = smp__device_route_at(&r, call->batch, true, call->workspace);
    const int64_t features = smp__columns(smp__in(call->graph, call->op, SMP__ROUTED));
    if (!call->din[SMP__ROUTED] && !call->din[SMP__ROUTER])
        return SMP_OK;
    SMP_TRY(smp_route<T>(call, r, call->in[SMP__ROUTER], route));
    if (call->din[SMP__ROUTED])
        SMP_TRY(rows_gradient<T>(call, r, route, features));
    if (!call->din[SMP__ROUTER])
        return SMP_OK;
    return smp_gates_gradient(call, static_cast<const T *>(call->in[SMP__ROUTED]),
                              smp_rows_of_experts{r, route}, r, route, features);
}

SMP_CUDA_KERNELS(expert_combine) = {
    .prepare = smp_experts_check,
    .forward = SMP_TYPED(forward),
    .backward_input = SMP_TYPED(backward_input),
};

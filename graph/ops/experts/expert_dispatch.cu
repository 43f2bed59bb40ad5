/* expert_dispatch on a GPU: every row of an expert looks up whose it is, and every token whose
 * gradients it adds up, in the order of its choices: one pass each, without atomics. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/experts/routing.cuh"

template <int W, typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    dispatch_forward(const T *x, T *out, const int32_t *choice, smp__routing r, int64_t rows,
                     int64_t features)
// x (B, tokens, features), out (rows, features), choice (rows), features a multiple of W
{
    const int64_t columns = features / W, each = r.own * r.capacity;
    for (int64_t i = smp_thread(); i < rows * columns; i += smp_threads()) {
        const int64_t row = i / columns, column = (i - row * columns) * W;
        const int32_t chosen = choice[row];
        float value[W] = {};
        if (chosen >= 0)
            smp_read<W>(value, x + (row / each * r.tokens + chosen / (int32_t)r.top_k) * features +
                                   column);
        smp_write<W>(out + row * features + column, value);
    }
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp__routing r = smp__experts_routing(call->graph, call->op);
    const smp__device_route route = smp__device_route_at(&r, call->batch, false, call->workspace);
    const int64_t features = smp__columns(smp__in(call->graph, call->op, SMP__ROUTED));
    const int64_t rows = call->batch * r.own * r.capacity;
    const int width = smp_width<T>(features);
    const auto kernel = width > 1 ? dispatch_forward<smp_pack<T>::N, T> : dispatch_forward<1, T>;
    SMP_TRY(smp_route<T>(call, r, call->in[SMP__ROUTER], route));
    SMP_LAUNCH(kernel, smp_grid(cuda, rows * (features / width)), SMP_BLOCK, 0, cuda->stream,
               static_cast<const T *>(call->in[SMP__ROUTED]), static_cast<T *>(call->out[0]),
               static_cast<const int32_t *>(route.choice), r, rows, features);
    return smp__cuda_launched("expert_dispatch");
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const smp__routing r = smp__experts_routing(call->graph, call->op);
    const smp__device_route route = smp__device_route_at(&r, call->batch, false, call->workspace);
    const int64_t features = smp__columns(smp__in(call->graph, call->op, SMP__ROUTED));
    const int64_t tokens = call->batch * r.tokens;
    if (call->din[SMP__ROUTER])
        SMP_TRY(SMP_CUDA(cudaMemsetAsync, call->din[SMP__ROUTER], 0,
                         (size_t)(tokens * r.experts) * sizeof(T), cuda->stream));
    if (!call->din[SMP__ROUTED])
        return SMP_OK;
    SMP_TRY(smp_route<T>(call, r, call->in[SMP__ROUTER], route));
    return smp_choices_sum(call, reinterpret_cast<const T *>(call->dout[0]),
                           smp_rows_of_experts{r, route}, r, NULL, features,
                           reinterpret_cast<T *>(call->din[SMP__ROUTED]));
}

SMP_CUDA_KERNELS(expert_dispatch) = {
    .prepare = smp_experts_check,
    .forward = SMP_TYPED(forward),
    .backward_input = SMP_TYPED(backward_input),
};

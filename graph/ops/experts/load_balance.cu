/* load_balance on a GPU: the choices are counted by routing.cuh, then a warp makes the
 * gradient of a token, by the formulas of load_balance.c. */
#include "graph/cuda/cuda_elementwise.cuh"
#include "graph/ops/experts/routing.cuh"

/* Choices by expert of the tokens of each device, (devices, samples, experts). */
struct chosen {
    const int32_t *count;
    int64_t devices, stride;
};

static __device__ float sum_chosen(chosen of, int64_t i)
{
    int32_t sum = 0;
    for (int64_t d = 0; d < of.devices; d++)
        sum += of.count[d * of.stride + i];
    return (float)sum;
}

template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    balance_backward(const T *logits, const T *dout, T *din, smp__routing r, chosen of,
                     int64_t tokens, int64_t counted, float scale)
// logits, dout, din (tokens, experts), tokens: of all samples, of which `counted` are no padding
{
    const int lane = threadIdx.x % SMP_WARP;
    const float each = 1.0f / (float)(of.devices * r.tokens * r.top_k);
    for (int64_t t = smp_thread() / SMP_WARP; t < tokens; t += smp_threads() / SMP_WARP) {
        const int64_t row = t * r.experts;
        const int64_t sample = t / r.tokens * r.experts;
        if (t >= counted) {
            for (int64_t e = lane; e < r.experts; e += SMP_WARP)
                din[row + e] = dout[row + e];
            continue;
        }
        const smp_normalizer z = smp_route_normalizer(logits + row, r.experts, lane);
        float mean = 0;
        for (int64_t e = lane; e < r.experts; e += SMP_WARP)
            mean += sum_chosen(of, sample + e) * each *
                    (expf(smp_float(logits[row + e]) - z.max) / z.sum);
        mean = smp_warp_sum(mean);
        for (int64_t e = lane; e < r.experts; e += SMP_WARP) {
            const float share = expf(smp_float(logits[row + e]) - z.max) / z.sum;
            din[row + e] = smp_from<T>(smp_float(dout[row + e]) +
                                       scale * share * (sum_chosen(of, sample + e) * each - mean));
        }
    }
}

/* With room for all, so that as many places are used as there are choices. */
static smp__routing routing_of(const smp_graph *graph, const smp_op *op)
{
    const int64_t *logits = smp__in(graph, op, 0)->shape.dim;
    smp__routing r = {};
    r.tokens = r.capacity = logits[0];
    r.experts = r.own = logits[1];
    r.top_k = op->attr[SMP__BALANCE_TOP_K].i;
    return r;
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    (void)batch, (void)device;
    *state = NULL;
    return smp_route_check(graph, op, routing_of(graph, op));
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const double coefficient = call->op->attr[SMP__BALANCE_COEFFICIENT].f;
    const smp__routing r = routing_of(call->graph, call->op);
    if (!call->din[0] || !(coefficient > 0))
        return smp_copy_backward(call);
    const int64_t devices = call->op->attr[SMP__BALANCE_DEVICES].i, n = call->batch * r.experts;
    float *all = static_cast<float *>(call->workspace);
    const smp__device_route route =
        smp__device_route_at(&r, call->batch, false, all + (1 + devices) * n);
    const smp_op_group *group;
    chosen of = {route.used, devices, n};
    const int64_t samples =
        call->step.samples > 0 ? call->step.samples : call->batch; /* measured */
    const double scale =
        coefficient * (double)r.experts / ((double)(devices * r.tokens) * (double)samples);
    const int64_t tokens = call->batch * r.tokens;
    SMP_TRY(smp_route<T>(call, r, call->in[0], route));
    SMP_TRY(smp__group_of(call, devices, &group));
    if (devices > 1) { /* integers, moved as they are */
        SMP_TRY(
            group->all_gather(group->context, reinterpret_cast<const float *>(route.used), all, n));
        of.count = reinterpret_cast<const int32_t *>(all);
    }
    SMP_LAUNCH(balance_backward<T>, smp_grid(cuda, tokens * SMP_WARP), SMP_BLOCK, 0, cuda->stream,
               static_cast<const T *>(call->in[0]), reinterpret_cast<const T *>(call->dout[0]),
               reinterpret_cast<T *>(call->din[0]), r, of, tokens,
               (call->batch - call->padding) * r.tokens, (float)scale);
    return smp__cuda_launched("load_balance");
}

SMP_CUDA_KERNELS(load_balance) = {
    .prepare = prepare,
    .forward = smp_copy_forward,
    .backward_input = SMP_TYPED(backward_input),
};

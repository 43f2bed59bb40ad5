/* expert_linear on a GPU: of every sample the products of all experts as one call of cuBLASLt,
 * which reads its factors where they lie. Weight gradients are added up in the order of the
 * samples. */
#include "graph/cuda/cuda_kernel.cuh"

#include <stdlib.h>

#include "graph/cuda/cuda_gemm.cuh"
#include "graph/ops/ops.h"

struct expert_state {
    smp__gemm *forward, *input, *weight;
    int64_t experts, places, in, features;
};

/* The most, up to 64, of which every matrix starts at a multiple. */
static int64_t alignment_of(const expert_state *s, int64_t value_bytes)
{
    const int64_t elements[] = {s->places * s->in, s->places * s->features, s->features * s->in};
    int64_t alignment = 64;
    for (int64_t n : elements)
        while (n * value_bytes % alignment != 0)
            alignment /= 2;
    return alignment;
}

static smp_status make_products(const smp_graph *graph, const smp_cuda *cuda, expert_state *s)
{
    const smp_dtype type = smp_precision_dtype(graph->target.precision);
    const int64_t of_x = s->places * s->in, of_y = s->places * s->features;
    const int64_t of_w = s->features * s->in;
    smp__gemm_shape shape = {};
    shape.in = shape.out = type;
    shape.count = s->experts;
    shape.alignment = alignment_of(s, smp_dtype_bytes(type));

    smp__gemm_shape forward = shape;
    forward.trans_b = true;
    forward.m = s->places, forward.n = s->features, forward.k = s->in;
    forward.lda = s->in, forward.ldb = s->in, forward.ldc = s->features;
    forward.step[0] = of_x, forward.step[1] = of_w, forward.step[2] = of_y;
    SMP_TRY(smp__gemm_create(cuda, &forward, &s->forward));
    if (!graph->training)
        return SMP_OK;

    smp__gemm_shape input = shape;
    input.m = s->places, input.n = s->in, input.k = s->features;
    input.lda = s->features, input.ldb = s->in, input.ldc = s->in;
    input.step[0] = of_y, input.step[1] = of_w, input.step[2] = of_x;
    SMP_TRY(smp__gemm_create(cuda, &input, &s->input));

    smp__gemm_shape weight = shape;
    weight.trans_a = true;
    weight.out = SMP_F32;
    weight.m = s->features, weight.n = s->in, weight.k = s->places;
    weight.lda = s->features, weight.ldb = s->in, weight.ldc = s->in;
    weight.step[0] = of_y, weight.step[1] = of_x, weight.step[2] = of_w;
    return smp__gemm_create(cuda, &weight, &s->weight);
}

static void release(void *state)
{
    expert_state *s = static_cast<expert_state *>(state);
    if (!s)
        return;
    smp__gemm_destroy(s->forward);
    smp__gemm_destroy(s->input);
    smp__gemm_destroy(s->weight);
    free(s);
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    (void)batch;
    const int64_t *x = smp__in(graph, op, 0)->shape.dim;
    expert_state *s = static_cast<expert_state *>(calloc(1, sizeof *s));
    *state = NULL;
    if (!s)
        return smp_fail_memory(sizeof *s);
    s->experts = x[0], s->places = x[1], s->in = x[2];
    s->features = smp__columns(smp__out(graph, op));
    smp_status status = make_products(graph, static_cast<const smp_cuda *>(device), s);
    if (status == SMP_OK)
        *state = s;
    else
        release(s);
    return smp_fail_context(status, "op '%s' (expert_linear)", op->name);
}

/* Sample by sample: a, b and c begin a_step, b_step and c_step values further with each. */
template <typename A, typename B, typename C>
static smp_status for_samples(const smp_op_call *call, smp__gemm *gemm, const A *a, int64_t a_step,
                              const B *b, int64_t b_step, float beta, C *c, int64_t c_step)
{
    for (int64_t i = 0; i < call->batch; i++)
        SMP_TRY(smp__gemm_run(smp_cuda_of(call), gemm, 1, a + i * a_step, b + i * b_step, beta,
                              c + i * c_step, NULL, NULL));
    return SMP_OK;
}

template <typename T> static const T *weight_of(const smp_op_call *call)
{
    return static_cast<const T *>(smp_factor(call, 0));
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    const expert_state *s = static_cast<const expert_state *>(call->state);
    const int64_t rows = s->experts * s->places;
    return for_samples(call, s->forward, static_cast<const T *>(call->in[0]), rows * s->in,
                       weight_of<T>(call), 0, 0, static_cast<T *>(call->out[0]),
                       rows * s->features);
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    const expert_state *s = static_cast<const expert_state *>(call->state);
    const int64_t rows = s->experts * s->places;
    if (!call->din[0])
        return SMP_OK;
    return for_samples(call, s->input, reinterpret_cast<const T *>(call->dout[0]),
                       rows * s->features, weight_of<T>(call), 0, 0,
                       reinterpret_cast<T *>(call->din[0]), rows * s->in);
}

template <typename T> static smp_status backward_weight(const smp_op_call *call)
{
    const expert_state *s = static_cast<const expert_state *>(call->state);
    const int64_t rows = s->experts * s->places;
    return for_samples(call, s->weight, reinterpret_cast<const T *>(call->dout[0]),
                       rows * s->features, static_cast<const T *>(call->in[0]), rows * s->in, 1,
                       call->dparam[0], 0);
}

SMP_CUDA_KERNELS(expert_linear) = {
    .prepare = prepare,
    .release = release,
    .forward = SMP_TYPED(forward),
    .backward_input = SMP_TYPED(backward_input),
    .backward_weight = SMP_TYPED(backward_weight),
};

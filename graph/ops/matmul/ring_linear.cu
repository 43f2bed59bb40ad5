/* ring_linear on a GPU: products of blocks of rows in cuBLASLt on the compute stream, while blocks,
 * or products, travel on the group's. Summands travel in the type of the activations, as those of a
 * reduce_scatter do (collective.cuh), and are added by rising device, in float, rounded once. */
#include "graph/ops/matmul/linear.cuh"

#include <stdlib.h>

#include "graph/ops/collective/collective.cuh"
extern "C" {
#include "graph/ops/matmul/ring_linear.h"
}

typedef struct ring_products {
    smp__gemm *forward, *input;
    smp_linear_weight weight; /* this and `input` in training */
} ring_products;

/* to (n, columns) = the sum of rows by rising device, and a bias [columns] unless NULL. Rows begin
 * `stride` values apart. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    ring_linear_sum(T *to, const T *rows, int64_t devices, int64_t stride, const float *bias,
                    int64_t n, int64_t columns)
{
    for (int64_t i = smp_thread(); i < n * columns; i += smp_threads()) {
        float sum = smp_float(rows[i]);
        for (int64_t d = 1; d < devices; d++)
            sum += smp_float(rows[d * stride + i]);
        to[i] = smp_from<T>(bias ? sum + bias[i % columns] : sum);
    }
}

/* A call under way: a product of blocks with `from` columns that makes `to`. */
template <typename T> struct ring_linear_pass {
    const smp_op_call *call;
    const smp_op_group *group;
    smp__linear_ring r;
    smp__linear_places at;
    bool forward, scatters, bias; /* bias: of the output, in this pass */
    int64_t from, to;

    T *place(int64_t offset) const
    {
        return reinterpret_cast<T *>(static_cast<char *>(call->workspace) + offset);
    }
    T *summand(int64_t device) const
    {
        return place(at.summand + device * at.step);
    }
    smp__parts parts(int64_t columns) const
    {
        return {r.run.outer, r.run.blocks, r.run.devices, r.run.run * columns};
    }
};

template <typename T>
static smp_status begin(const smp_op_call *call, bool forward, ring_linear_pass<T> *s)
{
    *s = {};
    s->call = call;
    s->r = smp__linear_ring_of(call->graph, call->op, call->batch);
    s->forward = forward;
    s->scatters = s->r.devices > 1 && s->r.scatters == forward;
    s->bias = forward && call->op->n_param > 1;
    s->from = s->r.columns[forward ? 0 : 1];
    s->to = s->r.columns[forward ? 1 : 0];
    s->at = smp__linear_places_of(&s->r, s->scatters, s->from, s->to);
    return smp__group_of(call, s->r.devices, &s->group);
}

template <typename T>
static smp_status add(const ring_linear_pass<T> &s, T *to, const T *rows, int64_t devices)
{
    const smp_cuda *cuda = smp_cuda_of(s.call);
    SMP_LAUNCH(ring_linear_sum<T>, smp_grid(cuda, s.r.rows * s.to), SMP_BLOCK, 0, cuda->stream, to,
               rows, devices, s.at.step / (int64_t)sizeof(T), s.bias ? s.call->param[1] : NULL,
               s.r.rows, s.to);
    return smp__cuda_launched("ring_linear, sum");
}

/* c = a W^T, with the bias where that is y, or a W. */
template <typename T> static smp_status multiply(const ring_linear_pass<T> &s, const T *a, T *c)
{
    const ring_products *products = static_cast<const ring_products *>(s.call->state);
    return smp__gemm_run(smp_cuda_of(s.call), s.forward ? products->forward : products->input, 1, a,
                         smp_factor(s.call, 0), 0, c,
                         s.bias && !s.scatters ? smp_factor(s.call, 1) : NULL, NULL);
}

/* Multiplies one of the blocks that come together; `all`: where it is in place then, or NULL. */
template <typename T>
static smp_status multiply_block(const ring_linear_pass<T> &s, int64_t device, const T *block,
                                 T *all, T *out)
{
    const bool dense = smp__linear_is_dense(&s.r, s.to);
    T *c = dense ? out + device * s.r.rows * s.to : s.place(s.at.side);
    if (all)
        SMP_TRY(smp_copy_part<true>(s.call, all, block, s.parts(s.from), device));
    SMP_TRY(multiply(s, block, c));
    return dense
               ? SMP_OK
               : smp_copy_part<true>(s.call, out, static_cast<const T *>(c), s.parts(s.to), device);
}

/* own: this device's block, which the others get; out: all rows. */
template <typename T>
static smp_status gather(const ring_linear_pass<T> &s, const T *own, T *all, T *out)
{
    const smp__linear_ring &r = s.r;
    const int64_t n = r.rows * s.from;
    if (r.devices > 1 && n != smp_row_stride_of<T>(n)) { /* the group reads whole floats */
        SMP_TRY(smp_copy_values(s.call, s.place(s.at.own), own, n));
        own = s.place(s.at.own);
    }
    const T *block = own;
    for (int64_t round = 0; round < r.devices; round++) {
        const bool more = round + 1 < r.devices;
        T *next = s.place(s.at.travels[round % 2]);
        if (more)
            SMP_TRY(s.group->shift(s.group->context, reinterpret_cast<const float *>(own),
                                   reinterpret_cast<float *>(next), smp_row_floats_of<T>(n),
                                   (int32_t)round + 1));
        SMP_TRY(multiply_block(s, (r.device + r.devices - round) % r.devices, block, all, out));
        if (more)
            SMP_TRY(s.group->shifted(s.group->context));
        block = next;
    }
    return SMP_OK;
}

/* all: rows of all devices; out: the sum of what the devices make of this one's. */
template <typename T> static smp_status scatter(const ring_linear_pass<T> &s, const T *all, T *out)
{
    const smp__linear_ring &r = s.r;
    const bool dense = smp__linear_is_dense(&r, s.from);
    for (int64_t round = 1; round <= r.devices; round++) {
        const int64_t device = (r.device + round) % r.devices;
        const bool own = round == r.devices;
        T *side = s.place(s.at.side), *made = s.place(s.at.travels[round % 2]);
        if (!dense)
            SMP_TRY(smp_take_part(s.call, side, all, s.parts(s.from), device));
        SMP_TRY(multiply(s, dense ? all + device * r.rows * s.from : static_cast<const T *>(side),
                         own ? s.summand(device) : made));
        if (round > 1)
            SMP_TRY(s.group->shifted(s.group->context));
        const int64_t from = (r.device + r.devices - round) % r.devices;
        if (!own)
            SMP_TRY(s.group->shift(s.group->context, reinterpret_cast<const float *>(made),
                                   reinterpret_cast<float *>(s.summand(from)),
                                   smp_row_floats_of<T>(r.rows * s.to), (int32_t)round));
    }
    return add(s, out, static_cast<const T *>(s.summand(0)), r.devices);
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    ring_linear_pass<T> s;
    const T *x = static_cast<const T *>(call->in[0]);
    SMP_TRY(begin(call, true, &s));
    T *all = s.r.devices > 1 && call->aux ? static_cast<T *>(call->aux) : NULL;
    return s.scatters ? scatter(s, x, static_cast<T *>(call->out[0]))
                      : gather(s, x, all, static_cast<T *>(call->out[0]));
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    ring_linear_pass<T> s;
    const T *dy = reinterpret_cast<const T *>(call->dout[0]);
    T *dx = reinterpret_cast<T *>(call->din[0]);
    if (!dx)
        return SMP_OK;
    SMP_TRY(begin(call, false, &s));
    return s.scatters ? scatter(s, dy, dx)
                      : gather(s, dy, s.r.scatters ? static_cast<T *>(call->aux) : NULL, dx);
}

template <typename T> static smp_status backward_weight(const smp_op_call *call)
{
    const smp__linear_ring r = smp__linear_ring_of(call->graph, call->op, call->batch);
    const ring_products *products = static_cast<const ring_products *>(call->state);
    const int64_t features = r.columns[1], row_bytes = features * (int64_t)sizeof(float);
    if (call->op->n_param > 1 && r.scatters)
        SMP_TRY(smp_add_column_sums<T>(call, call->dparam[1], r.rows, features,
                                       smp__column_sum_bytes(r.rows, features) / row_bytes));
    return smp_linear_weigh(call, &products->weight,
                            r.scatters ? call->aux : static_cast<const void *>(call->dout[0]),
                            r.devices > 1 && !r.scatters ? call->aux : call->in[0]);
}

static void release(void *state)
{
    ring_products *products = static_cast<ring_products *>(state);
    if (!products)
        return;
    smp__gemm_destroy(products->forward);
    smp__gemm_destroy(products->input);
    smp__gemm_destroy(products->weight.product);
    free(products);
}

static smp_status make_products(const smp_graph *graph, const smp_op *op, const smp__linear_ring &r,
                                const smp_cuda *cuda, ring_products *products)
{
    const int64_t in = r.columns[0], features = r.columns[1];
    smp__gemm_shape forward = {}, input = {};
    forward.trans_b = true;
    forward.m = r.rows, forward.n = features, forward.k = in;
    forward.lda = in, forward.ldb = in, forward.ldc = features;
    forward.in = forward.out = smp__in(graph, op, 0)->dtype;
    forward.epilogue = op->n_param > 1 && !r.scatters ? SMP__GEMM_BIAS : SMP__GEMM_PLAIN;
    SMP_TRY(smp__gemm_create(cuda, &forward, &products->forward));
    if (!graph->training)
        return SMP_OK;
    input.m = r.rows, input.n = in, input.k = features;
    input.lda = features, input.ldb = in, input.ldc = in;
    input.in = input.out = forward.in;
    SMP_TRY(smp__gemm_create(cuda, &input, &products->input));
    return smp_linear_weight_create(cuda, forward.in, false, r.rows * r.devices, in, features,
                                    op->n_param > 1 && !r.scatters, &products->weight);
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    const smp__linear_ring r = smp__linear_ring_of(graph, op, batch);
    ring_products *products = static_cast<ring_products *>(calloc(1, sizeof *products));
    *state = NULL;
    if (!products)
        return smp_fail_memory(sizeof *products);
    const smp_status status =
        make_products(graph, op, r, static_cast<const smp_cuda *>(device), products);
    if (status == SMP_OK)
        *state = products;
    else
        release(products);
    return smp_fail_context(status, "op '%s' (ring_linear)", op->name);
}

SMP_CUDA_KERNELS(ring_linear) = {
    .prepare = prepare,
    .release = release,
    .forward = SMP_TYPED(forward),
    .backward_input = SMP_TYPED(backward_input),
    .backward_weight = SMP_TYPED(backward_weight),
    .writes_fresh = true,
};

/* conv2d on a GPU in [height, width, channels]: the windows of a run of samples become the rows of
 * a matrix U[place][group, taps] in the workspace, and a product in cuBLASLt over all places of the
 * run does the work, for all groups at once:
 *
 *   y[places, out]   = U W^T + b          W[out, taps]
 *   dU[places, taps] = dy W               fp32; folded back onto dx, rounded once
 *   dW[out, taps]   += dy^T U             fp32, one run after the other
 *
 * How many samples a run has follows from sizes alone (conv2d.h), and so do the bits. Taps have
 * their channels last, so that unfolding moves 16 bytes at a time and a library's filters are ours;
 * the weights, stored channels first, are small beside windows, and are put in that order for each
 * call, as dW is put back. Of a pointwise convolution (1 x 1, no stride, no padding) U is x itself,
 * dU is dx and W as it is stored. An image that is not channels last is turned by tiles, or read as
 * it is where channels are too few to be moved by 16 bytes. Folding gathers: a thread adds up some
 * channels of a pixel, tap by tap in order. Narrow groups make narrow products: a depthwise
 * convolution is bound by their overhead.
 *
 * Each of the three calls is cuDNN's instead where the list of products says so
 * (conv2d_choice.cuh), in 16 bits. */
#include "graph/ops/convolution/conv2d_choice.cuh"

#include <stdlib.h>

static smp_status make_products(const smp_graph *graph, const smp_op *op, const smp_cuda *cuda,
                                conv2d_state *s)
{
    const smp_dtype type = smp_precision_dtype(graph->target.precision);
    for (int p = 0; p <= (graph->training ? SMP_OP_BACKWARD_WEIGHT : SMP_OP_FORWARD); p++) {
        const smp_op_part part = (smp_op_part)p;
        const int64_t batch = s->sizes.shape.batch;
        s->room[p] = smp__conv2d_room_of(graph, op, batch, part);
        const int64_t samples = s->room[p].samples, left = batch % samples;
        smp__gemm_shape shape = shape_of(s, part, op->n_param > 1, type, samples);
        SMP_TRY(smp__gemm_create(cuda, &shape, &s->whole[p]));
        shape = shape_of(s, part, op->n_param > 1, type, left);
        if (left > 0)
            SMP_TRY(smp__gemm_create(cuda, &shape, &s->last[p]));
    }
    return SMP_OK;
}

/* What is by cuDNN, or may be: where calls have its workspace. */
static smp_status make_choices(const smp_graph *graph, const smp_op *op, const smp_cuda *cuda,
                               conv2d_state *s)
{
    const int64_t batch = s->sizes.shape.batch;
    if (!smp__conv2d_suits_dnn(graph, op, batch))
        return SMP_OK;
    for (int p = 0; p <= (graph->training ? SMP_OP_BACKWARD_WEIGHT : SMP_OP_FORWARD); p++) {
        const smp_op_part part = (smp_op_part)p;
        s->dnn_room[p] = smp__conv2d_dnn_room_of(graph, op, batch, part);
        if (smp__conv2d_asks_dnn(graph, op, batch, part) ||
            s->dnn_room[p].end <= cuda->products->workspace_bytes)
            SMP_TRY(conv2d_choose(graph, op, cuda, part, s));
    }
    return SMP_OK;
}

static void release(void *state)
{
    conv2d_state *s = static_cast<conv2d_state *>(state);
    for (int part = 0; s && part < 3; part++) {
        smp__gemm_destroy(s->whole[part]);
        smp__gemm_destroy(s->last[part]);
    }
    free(s);
}

static void fill_state(const smp_graph *graph, const smp_op *op, int64_t batch, conv2d_state *s)
{
    const smp_convolution_shape shape = smp__conv2d_shape(graph, op, batch);
    s->windows = smp__conv2d_windows_of(graph, op);
    s->pixels = shape.in[SMP_HEIGHT] * shape.in[SMP_WIDTH];
    s->places = smp_convolution_places(&shape);
    s->in = shape.in[SMP_CHANNELS];
    s->out = shape.out[SMP_CHANNELS];
    s->sums = smp__column_sum_bytes(batch * s->places, s->out) / (s->out * (int64_t)sizeof(float));
    const bool by_planes = !smp__in(graph, op, 0)->channels_last && !s->windows.turns_x;
    s->sizes.shape = shape;
    s->sizes.pixel_step = by_planes ? 1 : s->in;
    s->sizes.channel_step = by_planes ? s->pixels : 1;
    s->sizes.row = shape.groups * s->windows.taps;
    s->sizes.taps = (int)s->windows.taps;
    s->sizes.of_group = (int)(s->in / shape.groups);
    s->dnn_sizes = s->sizes;
    s->dnn_sizes.taps = (int)smp_convolution_taps(&shape);
}

/* A run has at least one sample. */
static smp_status check_sizes(const smp_graph *graph, const smp_op *op, const conv2d_state *s)
{
    for (int p = 0; p <= (graph->training ? SMP_OP_BACKWARD_WEIGHT : SMP_OP_FORWARD); p++) {
        const int64_t samples =
            smp__conv2d_room_of(graph, op, s->sizes.shape.batch, (smp_op_part)p).samples;
        const int64_t windows = s->places * s->sizes.row, pixels = s->in * s->pixels;
        const int64_t most = UINT32_MAX / samples;
        if (s->sizes.row > INT32_MAX ||
            (!s->windows.are_pixels && (windows > most || pixels > most)))
            return smp_fail_at(smp_op_where(graph, op),
                               "op '%s' (conv2d): %lld x %lld values of windows, expected less "
                               "than 2^32 on a GPU",
                               op->name, (long long)samples, (long long)windows);
    }
    return SMP_OK;
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    conv2d_state *s = static_cast<conv2d_state *>(calloc(1, sizeof *s));
    *state = NULL;
    if (!s)
        return smp_fail_memory(sizeof *s);
    fill_state(graph, op, batch, s);
    smp_status status = check_sizes(graph, op, s);
    if (status == SMP_OK)
        status = make_products(graph, op, static_cast<const smp_cuda *>(device), s);
    if (status == SMP_OK)
        status = make_choices(graph, op, static_cast<const smp_cuda *>(device), s);
    if (status == SMP_OK)
        *state = s;
    else
        release(s);
    return smp_fail_context(status, "op '%s' (conv2d)", op->name);
}

template <typename T> static smp_status forward(const smp_op_call *call)
{
    conv2d_run run = run_of(call, SMP_OP_FORWARD, 0);
    const conv2d_state *s = run.s;
    const T *filters;
    bool done;
    SMP_TRY(conv2d_as_listed<T>(call, SMP_OP_FORWARD, &done));
    if (done)
        return SMP_OK;
    SMP_TRY(take_filters(run, call, &filters));
    for (; run.first < call->batch; run = run_of(call, SMP_OP_FORWARD, run.first + run.samples)) {
        T *out = static_cast<T *>(call->out[0]) + run.first * s->out * s->places;
        T *y = s->windows.turns_y ? region_of<T>(run, run.room->y) : out;
        SMP_TRY(make_y(run, call, filters, y));
        if (s->windows.turns_y)
            SMP_TRY(turn(run, static_cast<const T *>(y), out, s->places, s->out));
    }
    return SMP_OK;
}

template <typename T> static smp_status backward_input(const smp_op_call *call)
{
    conv2d_run run = run_of(call, SMP_OP_BACKWARD_INPUT, 0);
    const conv2d_state *s = run.s;
    const T *filters;
    bool done = !call->din[0];
    if (!done)
        SMP_TRY(conv2d_as_listed<T>(call, SMP_OP_BACKWARD_INPUT, &done));
    if (done)
        return SMP_OK;
    SMP_TRY(take_filters(run, call, &filters));
    for (; run.first < call->batch;
         run = run_of(call, SMP_OP_BACKWARD_INPUT, run.first + run.samples)) {
        T *out = reinterpret_cast<T *>(call->din[0]) + run.first * s->in * s->pixels;
        T *dx = s->windows.turns_x ? region_of<T>(run, run.room->x) : out;
        SMP_TRY(make_dx(run, call, filters, dx));
        if (s->windows.turns_x)
            SMP_TRY(turn(run, static_cast<const T *>(dx), out, s->pixels, s->in));
    }
    return SMP_OK;
}

template <typename T> static smp_status backward_weight(const smp_op_call *call)
{
    conv2d_run run = run_of(call, SMP_OP_BACKWARD_WEIGHT, 0);
    const bool own = run.s->windows.are_filters;
    bool done;
    float *filters = own ? call->dparam[0] : region_of<float>(run, run.room->filters);
    if (call->op->n_param > 1)
        SMP_TRY(add_bias_gradient<T>(call));
    SMP_TRY(conv2d_as_listed<T>(call, SMP_OP_BACKWARD_WEIGHT, &done));
    if (done)
        return SMP_OK;
    for (; run.first < call->batch;
         run = run_of(call, SMP_OP_BACKWARD_WEIGHT, run.first + run.samples))
        SMP_TRY(add_to_filters<T>(run, call, own || run.first > 0 ? 1 : 0, filters));
    return own ? SMP_OK : add_to_weights(call, run.s->sizes, filters);
}

SMP_CUDA_KERNELS(conv2d) = {
    .prepare = prepare,
    .release = release,
    .forward = SMP_TYPED(forward),
    .backward_input = SMP_TYPED(backward_input),
    .backward_weight = SMP_TYPED(backward_weight),
};

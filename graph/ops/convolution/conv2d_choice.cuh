/* A convolution by cuDNN or by products of ours (graph/ops/dnn_choice.cuh): each of its three
 * calls is an entry of the list of products where calls have the workspace, which is where the
 * graph's `products` ask for cuDNN, so that plans count it, and where ways are measured. cuDNN
 * takes all samples at once, in its own part of the workspace (smp__conv2d_dnn_room). What it makes
 * of filters' gradients the kernel that does so for ours adds to those of the weights. */
#ifndef SMP_GRAPH_OPS_CONV2D_CHOICE_CUH
#define SMP_GRAPH_OPS_CONV2D_CHOICE_CUH

#include "graph/ops/convolution/cuda_conv2d_dnn.h"
#include "graph/ops/convolution/conv2d.cuh"

static smp_status conv2d_choose(const smp_graph *graph, const smp_op *op, const smp_cuda *cuda,
                                smp_op_part part, conv2d_state *s)
{
    char about[SMP__CHOICE_ABOUT];
    smp_dnn_product *of = &s->dnn[part];
    bool is_new;
    smp__conv2d_about(about, graph, op, s->sizes.shape.batch, part);
    SMP_TRY(smp__choice_find(cuda->choices, about, &of->choice, &is_new));
    of->ours = SMP__CONV2D_UNFOLD;
    if (is_new)
        SMP_TRY(smp_dnn_add_ways(
            cuda, of->choice,
            smp__dnn_convolution_create(cuda, &s->sizes.shape, part, op->n_param > 1),
            smp__dnn_convolution_destroy));
    return smp_dnn_list<smp__dnn_convolution>(cuda, about, false, of);
}

/* All samples, in the workspace of a call. */
static conv2d_run conv2d_whole(const smp_op_call *call)
{
    conv2d_run run = {};
    run.cuda = smp_cuda_of(call);
    run.s = static_cast<const conv2d_state *>(call->state);
    run.workspace = static_cast<char *>(call->workspace);
    run.samples = call->batch;
    return run;
}

/* What cuDNN reads, and where it writes. */
template <typename T>
static smp_status conv2d_take(const smp_op_call *call, smp_op_part part,
                              smp__dnn_convolution_data *data)
{
    const conv2d_run run = conv2d_whole(call);
    const conv2d_state *s = run.s;
    const smp__conv2d_dnn_room &room = s->dnn_room[part];
    const bool turns_x = room.y > room.x, turns_y = room.trial > room.y;
    const T *x = reinterpret_cast<const T *>(part == SMP_OP_BACKWARD_INPUT ? call->din[0] : NULL);
    const T *y = static_cast<const T *>(part == SMP_OP_FORWARD ? call->out[0] : NULL);
    T *filters = region_of<T>(run, room.filters);
    if (x)
        x = turns_x ? region_of<T>(run, room.x) : x;
    else
        SMP_TRY(take_image(run, call->in[0], s->in, s->pixels, turns_x, room.x, &x));
    if (y)
        y = turns_y ? region_of<T>(run, room.y) : y;
    else
        SMP_TRY(take_image(run, call->dout[0], s->out, s->places, turns_y, room.y, &y));
    *data = {const_cast<T *>(x), const_cast<T *>(y), filters, NULL};
    if (part == SMP_OP_FORWARD && call->op->n_param > 1)
        data->bias = smp_factor(call, 1);
    if (part == SMP_OP_BACKWARD_WEIGHT)
        return SMP_OK;
    if (room.x > 0)
        return order_filters(run, call, s->dnn_sizes, filters);
    data->filters = const_cast<void *>(smp_factor(call, 0));
    return SMP_OK;
}

static smp_status conv2d_run_dnn(const smp_op_call *call, smp_op_part part,
                                 const smp__dnn_convolution_data *data)
{
    const conv2d_state *s = static_cast<const conv2d_state *>(call->state);
    return smp__dnn_convolution_run(
        smp_dnn_ways_of<smp__dnn_convolution>(s->dnn[part].choice)->plan, smp_cuda_of(call), data);
}

/* Where others read what cuDNN has made. */
template <typename T>
static smp_status conv2d_put(const smp_op_call *call, smp_op_part part,
                             const smp__dnn_convolution_data *data)
{
    const conv2d_run run = conv2d_whole(call);
    const conv2d_state *s = run.s;
    if (part == SMP_OP_BACKWARD_WEIGHT)
        return add_to_weights(call, s->dnn_sizes, static_cast<const float *>(data->filters));
    if (part == SMP_OP_FORWARD)
        return data->y == call->out[0] ? SMP_OK
                                       : turn(run, static_cast<const T *>(data->y),
                                              static_cast<T *>(call->out[0]), s->places, s->out);
    T *dx = reinterpret_cast<T *>(call->din[0]);
    return data->x == dx ? SMP_OK
                         : turn(run, static_cast<const T *>(data->x), dx, s->pixels, s->in);
}

template <typename T> static smp_status conv2d_by_dnn(const smp_op_call *call, smp_op_part part)
{
    smp__dnn_convolution_data data;
    SMP_TRY(conv2d_take<T>(call, part, &data));
    SMP_TRY(conv2d_run_dnn(call, part, &data));
    return conv2d_put<T>(call, part, &data);
}

/* Of all that the call reads. */
template <typename T> static smp_status conv2d_fill_trial(const smp_op_call *call, smp_op_part part)
{
    const smp_cuda *cuda = smp_cuda_of(call);
    const conv2d_state *s = static_cast<const conv2d_state *>(call->state);
    const auto fill = [&](const void *to, int64_t n, uint32_t seed) {
        return smp_fill_trial(cuda, static_cast<T *>(const_cast<void *>(to)), n, seed);
    };
    if (part != SMP_OP_BACKWARD_INPUT)
        SMP_TRY(fill(call->in[0], call->batch * s->in * s->pixels, 0));
    if (part != SMP_OP_FORWARD)
        SMP_TRY(fill(call->dout[0], call->batch * s->out * s->places, 1));
    for (int i = 0; part != SMP_OP_BACKWARD_WEIGHT && i < call->op->n_param; i++)
        SMP_TRY(fill(smp_factor(call, i), call->graph->param[call->op->param[i]].elements,
                     (uint32_t)(2 + i)));
    return SMP_OK;
}

template <typename T>
static smp_status conv2d_compare(const smp_cuda *cuda, const smp__choice *choice, const T *got,
                                 int64_t got_stride, const T *wanted, int64_t stride, int64_t rows,
                                 int64_t columns)
{
    SMP_LAUNCH(smp_trial_rows<T>, smp_blocks(rows, SMP_BLOCK, SMP_TRIAL_BLOCKS), SMP_BLOCK, 0,
               cuda->stream, got, got_stride, wanted, stride, rows, columns,
               smp_dnn_ways_of<smp__dnn_convolution>(choice)->differs);
    return smp__cuda_launched("conv2d, cuDNN beside ours");
}

/* A run of ours, and what cuDNN has made of its samples; of filters, after the last run. */
template <typename T>
static smp_status conv2d_try_run(const conv2d_run &run, const smp_op_call *call, smp_op_part part,
                                 const smp__dnn_convolution_data *data)
{
    const conv2d_state *s = run.s;
    const smp__choice *choice = s->dnn[part].choice;
    T *x = region_of<T>(run, run.room->x), *y = region_of<T>(run, run.room->y);
    float *sums = region_of<float>(run, run.room->filters);
    const T *filters;
    if (part == SMP_OP_BACKWARD_WEIGHT) {
        SMP_TRY(add_to_filters<T>(run, call, run.first > 0 ? 1 : 0, sums));
        return run.first + run.samples < call->batch
                   ? SMP_OK
                   : conv2d_compare(run.cuda, choice, static_cast<const float *>(data->filters),
                                    s->dnn_sizes.taps, static_cast<const float *>(sums),
                                    s->sizes.taps, s->out, s->dnn_sizes.taps);
    }
    SMP_TRY(take_filters(run, call, &filters));
    if (part == SMP_OP_FORWARD) {
        SMP_TRY(make_y(run, call, filters, y));
        return conv2d_compare(
            run.cuda, choice, static_cast<const T *>(data->y) + run.first * s->places * s->out,
            s->out, static_cast<const T *>(y), s->out, run.samples * s->places, s->out);
    }
    SMP_TRY(make_dx(run, call, filters, x));
    return conv2d_compare(run.cuda, choice,
                          static_cast<const T *>(data->x) + run.first * s->pixels * s->in, s->in,
                          static_cast<const T *>(x), s->in, run.samples * s->pixels, s->in);
}

/* Refuses what cannot be run; the choice's `differs` is told of the rest. */
template <typename T> static smp_status conv2d_try(const smp_op_call *call, smp_op_part part)
{
    const conv2d_state *s = static_cast<const conv2d_state *>(call->state);
    smp__choice *choice = s->dnn[part].choice;
    conv2d_state beside = *s; /* its dx is channels last always */
    smp__dnn_convolution_data data;
    if (part == SMP_OP_BACKWARD_INPUT) {
        beside.sizes.pixel_step = s->in;
        beside.sizes.channel_step = 1;
    }
    SMP_TRY(conv2d_fill_trial<T>(call, part));
    SMP_TRY(conv2d_take<T>(call, part, &data));
    if (!smp_dnn_has_run<smp__dnn_convolution>(choice, conv2d_run_dnn(call, part, &data)))
        return SMP_OK;
    for (int64_t first = 0; first < call->batch; first += s->room[part].samples) {
        conv2d_run run = run_of(call, part, first);
        run.s = &beside;
        run.room = &s->dnn_room[part].ours;
        run.workspace += s->dnn_room[part].trial;
        SMP_TRY(conv2d_try_run<T>(run, call, part, &data));
    }
    return smp_end_trial(smp_cuda_of(call), smp_dnn_ways_of<smp__dnn_convolution>(choice)->differs);
}

/* A call as the list of products says, if that is by cuDNN; *done: it was. */
template <typename T>
static smp_status conv2d_as_listed(const smp_op_call *call, smp_op_part part, bool *done)
{
    const smp_dnn_product &of = static_cast<const conv2d_state *>(call->state)->dnn[part];
    *done = false;
    if (!of.choice)
        return SMP_OK;
    if (smp_dnn_begins_trial(smp_cuda_of(call), of.choice))
        SMP_TRY(conv2d_try<T>(call, part));
    return smp_dnn_as_listed(
        smp_cuda_of(call), of, [&] { return conv2d_by_dnn<T>(call, part); }, done);
}

/* fp32 has no choice. */
template <>
smp_status conv2d_as_listed<float>(const smp_op_call *call, smp_op_part part, bool *done)
{
    (void)call, (void)part;
    *done = false;
    return SMP_OK;
}

#endif

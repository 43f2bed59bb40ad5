/* conv2d: convolution of an image [C, H, W] with weights [channels, C / groups, kernel height,
 * kernel width], in PyTorch's sense: floor((H + 2 padding - dilation (kernel - 1) - 1) / stride) +
 * 1 lines. `kernel`, `stride`, `padding` and `dilation` are a number for both directions, or
 * [height, width].
 *
 * The work is done in graph/math/convolution.h; the bias gradient, sums over the planes of dy,
 * here. */
#include "graph/ops/convolution/conv2d.h"

#include <math.h>
#include <string.h>

#include "graph/math/gemm_algorithms.h"
#include "graph/math/half.h"
#include "graph/math/vector.h"
#include "graph/ops/ops.h"

enum { CHANNELS, KERNEL, STRIDE, PADDING, DILATION, GROUPS, BIAS, WEIGHT, INIT_STD };

static const smp_attr_desc ATTRS[] = {
    [CHANNELS] = {"channels", SMP_ATTR_INT, true, 0, 1, INT32_MAX, NULL},
    [KERNEL] = {"kernel", SMP_ATTR_INTS, true, 0, 1, INT32_MAX, NULL},
    [STRIDE] = {"stride", SMP_ATTR_INTS, false, 0, 1, INT32_MAX, NULL},
    [PADDING] = {"padding", SMP_ATTR_INTS, false, 0, 0, INT32_MAX, NULL},
    [DILATION] = {"dilation", SMP_ATTR_INTS, false, 0, 1, INT32_MAX, NULL},
    [GROUPS] = {"groups", SMP_ATTR_INT, false, 1, 1, INT32_MAX, NULL},
    [BIAS] = {"bias", SMP_ATTR_BOOL, false, 1, 0, 1, NULL},
    [WEIGHT] = {"weight", SMP_ATTR_STRING, false, 0, 0, 0, NULL},
    [INIT_STD] = {"init_std", SMP_ATTR_FLOAT, false, 0, 0, 1e6, NULL},
    {0},
};

/* (height, width) of a list of one or two; `otherwise` if there is none. */
static void get_pair(const smp_attr_value *attr, int index, int64_t otherwise, int64_t pair[2])
{
    const int64_t n = attr[index].list.count, *items = attr[index].list.items;
    for (int i = 0; i < 2; i++)
        pair[i] = n == 0 ? otherwise : items[n == 2 ? i : 0];
}

/* All but the batch and out height and width, which follow from it. */
static smp_convolution_shape given(const smp_attr_value *attr, const smp_shape *in)
{
    smp_convolution_shape s = {
        .in = {in->dim[0], in->dim[1], in->dim[2]},
        .out = {attr[CHANNELS].i},
        .groups = attr[GROUPS].i,
    };
    get_pair(attr, KERNEL, 1, s.kernel);
    get_pair(attr, STRIDE, 1, s.stride);
    get_pair(attr, PADDING, 0, s.padding);
    get_pair(attr, DILATION, 1, s.dilation);
    return s;
}

smp_convolution_shape smp__conv2d_shape(const smp_graph *graph, const smp_op *op, int64_t batch)
{
    smp_convolution_shape s = given(op->attr, &smp__in(graph, op, 0)->shape);
    s.batch = batch;
    s.half = smp__in(graph, op, 0)->dtype == SMP_BF16;
    for (int i = SMP_HEIGHT; i <= SMP_WIDTH; i++)
        s.out[i] = smp__out(graph, op)->shape.dim[i];
    return s;
}

static smp_status infer_pairs(const smp_infer *infer)
{
    for (int a = KERNEL; a <= DILATION; a++) {
        const int64_t n = infer->attr[a].list.count;
        if (n > 2 || (n == 0 && a == KERNEL))
            return smp_infer_fail(infer, "%s: got %lld numbers, expected one or [height, width]",
                                  infer->op->kind->attrs[a].name, (long long)n);
    }
    return SMP_OK;
}

static smp_status infer_channels(const smp_infer *infer, const smp_convolution_shape *s)
{
    const int64_t in = s->in[SMP_CHANNELS], out = s->out[SMP_CHANNELS];
    if (in % s->groups == 0 && out % s->groups == 0)
        return SMP_OK;
    return smp_infer_fail(infer, "groups: %lld does not divide the %lld channels of %s '%s'",
                          (long long)s->groups, (long long)(in % s->groups ? in : out),
                          in % s->groups ? "input" : "output",
                          in % s->groups ? infer->in[0]->name : infer->op->name);
}

/* Lines and columns of the output. */
static smp_status infer_places(const smp_infer *infer, smp_convolution_shape *s)
{
    static const char *const what[] = {"height", "width"};
    for (int i = 0; i < 2; i++) {
        const int64_t size = s->in[SMP_HEIGHT + i] + 2 * s->padding[i];
        const int64_t window = s->dilation[i] * (s->kernel[i] - 1) + 1;
        if (window > size)
            return smp_infer_fail(infer,
                                  "input '%s' has %s %lld, %lld with padding, less than the %lld "
                                  "of the kernel with dilation",
                                  infer->in[0]->name, what[i], (long long)s->in[SMP_HEIGHT + i],
                                  (long long)size, (long long)window);
        s->out[SMP_HEIGHT + i] = (size - window) / s->stride[i] + 1;
    }
    return SMP_OK;
}

static void declare_weights(smp_infer *infer, const smp_convolution_shape *s)
{
    const float std = (float)infer->attr[INIT_STD].f;
    const int64_t channels = s->out[SMP_CHANNELS], in = s->in[SMP_CHANNELS] / s->groups;
    infer->param[infer->n_param++] = (smp_param_decl){
        .role = "weight",
        .shape = {4, {channels, in, s->kernel[0], s->kernel[1]}},
        .init = std > 0 ? SMP_INIT_NORMAL : SMP_INIT_UNIFORM,
        .init_scale = std > 0 ? std : (float)(1.0 / sqrt((double)smp_convolution_taps(s))),
        .tied_to = infer->attr[WEIGHT].s.text,
    };
    if (infer->attr[BIAS].i)
        infer->param[infer->n_param++] = (smp_param_decl){
            .role = "bias",
            .shape = {1, {channels}},
            .init = SMP_INIT_ZERO,
        };
}

static smp_status infer(smp_infer *infer)
{
    SMP_TRY(smp_infer_float(infer, 0));
    SMP_TRY(smp_infer_dims(infer, 0, 3, 3));
    SMP_TRY(infer_pairs(infer));
    smp_convolution_shape s = given(infer->attr, &infer->in[0]->shape);
    SMP_TRY(infer_channels(infer, &s));
    SMP_TRY(infer_places(infer, &s));
    const smp_shape windows = {
        5, {s.in[SMP_CHANNELS], s.kernel[0], s.kernel[1], s.out[SMP_HEIGHT], s.out[SMP_WIDTH]}};
    if (smp_shape_elements(&windows) < 0)
        return smp_infer_fail(infer, "%lld x %lld windows of %lld x %lld x %lld are too many",
                              (long long)s.out[SMP_HEIGHT], (long long)s.out[SMP_WIDTH],
                              (long long)s.in[SMP_CHANNELS], (long long)s.kernel[0],
                              (long long)s.kernel[1]);
    infer->out_dtype = SMP_F32;
    infer->out_shape = (smp_shape){3, {s.out[0], s.out[1], s.out[2]}};
    declare_weights(infer, &s);
    return SMP_OK;
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    const smp_convolution_shape s = smp__conv2d_shape(graph, op, batch);
    *needs = (smp_op_needs){.weight_grad_in = 1, .workspace_bytes = smp_convolution_workspace(&s)};
}

static smp_image_layout layout(const smp_graph *graph, const smp_op *op)
{
    (void)graph, (void)op;
    return SMP_LAYOUT_EACH;
}

/* [C, H, W] and [H, W, C] are one where C or H W is 1. */
static bool is_turned(const smp_tensor *image)
{
    const int64_t *dim = image->shape.dim;
    return !image->channels_last && dim[0] > 1 && dim[1] * dim[2] > 1;
}

static int64_t value_bytes(const smp_graph *graph)
{
    return smp_dtype_bytes(smp_precision_dtype(graph->target.precision));
}

smp__conv2d_windows smp__conv2d_windows_of(const smp_graph *graph, const smp_op *op)
{
    const smp_convolution_shape s = smp__conv2d_shape(graph, op, 1);
    const int64_t pack = 16 / value_bytes(graph), taps = smp_convolution_taps(&s);
    const bool x_is_plain = is_turned(smp__in(graph, op, 0));
    smp__conv2d_windows w = {.taps = taps};
    w.are_pixels = smp_convolution_is_pointwise(&s);
    w.are_packs = s.in[SMP_CHANNELS] / s.groups % pack == 0;
    if (s.groups == 1 && !w.are_pixels)
        w.taps = (taps + pack - 1) / pack * pack;
    w.are_filters = s.kernel[0] * s.kernel[1] == 1 && w.taps == taps;
    w.turns_x = x_is_plain && (w.are_pixels || w.are_packs);
    w.turns_y = is_turned(smp__out(graph, op));
    return w;
}

int64_t smp__conv2d_bound = 128 << 20;

enum { REGION_ALIGNMENT = 64, REGIONS = 4 };

/* As many as there is room for, at least one, in runs of equal lengths but for the last, and of
 * places that 31 bits count. */
static int64_t samples_of(int64_t batch, int64_t bytes, int64_t room, int64_t places)
{
    int64_t most = bytes > 0 ? room / bytes : batch;
    most = most < INT32_MAX / places ? most : INT32_MAX / places;
    most = most < 1 ? 1 : most < batch ? most : batch;
    const int64_t runs = (batch + most - 1) / most;
    return (batch + runs - 1) / runs;
}

static int64_t round_up(int64_t bytes)
{
    return (bytes + REGION_ALIGNMENT - 1) / REGION_ALIGNMENT * REGION_ALIGNMENT;
}

/* Of filters, and of a sample's x, windows and y; `results`: of what a call makes, too. */
static void region_bytes(const smp_graph *graph, const smp_op *op, smp_op_part part, bool results,
                         int64_t bytes[REGIONS])
{
    const smp_convolution_shape s = smp__conv2d_shape(graph, op, 1);
    const smp__conv2d_windows w = smp__conv2d_windows_of(graph, op);
    const int64_t value = value_bytes(graph), sum = (int64_t)sizeof(float);
    const bool input = part == SMP_OP_BACKWARD_INPUT, weight = part == SMP_OP_BACKWARD_WEIGHT;
    const int64_t row = s.groups * w.taps * (input ? sum : value);
    bytes[0] = s.out[SMP_CHANNELS] * w.taps * (weight ? sum : value);
    bytes[1] = smp__in(graph, op, 0)->elements * value;
    bytes[2] = smp_convolution_places(&s) * row;
    bytes[3] = smp__out(graph, op)->elements * value;
    if (w.are_filters && !(results && weight))
        bytes[0] = 0;
    if (!w.turns_x && !(results && input))
        bytes[1] = 0;
    if (w.are_pixels)
        bytes[2] = 0;
    if (!w.turns_y && !(results && part == SMP_OP_FORWARD))
        bytes[3] = 0;
}

static void place_regions(const int64_t bytes[REGIONS], smp__conv2d_room *room)
{
    int64_t *const begin[REGIONS] = {&room->filters, &room->x, &room->windows, &room->y};
    room->end = 0;
    for (int i = 0; i < REGIONS; i++) {
        *begin[i] = room->end;
        room->end += round_up(bytes[i] * (i == 0 ? 1 : room->samples));
    }
}

smp__conv2d_room smp__conv2d_room_of(const smp_graph *graph, const smp_op *op, int64_t batch,
                                     smp_op_part part)
{
    const smp_tensor *out = smp__out(graph, op);
    int64_t bytes[REGIONS];
    region_bytes(graph, op, part, false, bytes);
    smp__conv2d_room room = {.samples = samples_of(batch, bytes[1] + bytes[2] + bytes[3],
                                                   smp__conv2d_bound - REGIONS * REGION_ALIGNMENT,
                                                   out->shape.dim[1] * out->shape.dim[2])};
    place_regions(bytes, &room);
    return room;
}

void smp__conv2d_about(char about[SMP__CHOICE_ABOUT], const smp_graph *graph, const smp_op *op,
                       int64_t batch, smp_op_part part)
{
    static const char *const parts[] = {"", " input gradient", " weight gradient"};
    const smp_convolution_shape s = smp__conv2d_shape(graph, op, batch);
    snprintf(about, SMP__CHOICE_ABOUT,
             "conv2d%s, %s, %lld x %lld %lldx%lld, %lld of %lldx%lld/%lld%s, stride %lld %lld, "
             "padding %lld %lld, dilation %lld %lld",
             parts[part], smp_precision_name(graph->target.precision), (long long)batch,
             (long long)s.in[0], (long long)s.in[1], (long long)s.in[2], (long long)s.out[0],
             (long long)s.kernel[0], (long long)s.kernel[1], (long long)s.groups,
             op->attr[BIAS].i && part == SMP_OP_FORWARD ? " bias" : "", (long long)s.stride[0],
             (long long)s.stride[1], (long long)s.padding[0], (long long)s.padding[1],
             (long long)s.dilation[0], (long long)s.dilation[1]);
}

bool smp__conv2d_suits_dnn(const smp_graph *graph, const smp_op *op, int64_t batch)
{
    return smp_precision_is_half(graph->target.precision) &&
           smp__in(graph, op, 0)->elements <= INT32_MAX / batch &&
           smp__out(graph, op)->elements <= INT32_MAX / batch;
}

bool smp__conv2d_asks_dnn(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_part part)
{
    char about[SMP__CHOICE_ABOUT];
    if (!smp__conv2d_suits_dnn(graph, op, batch))
        return false;
    smp__conv2d_about(about, graph, op, batch, part);
    const smp_gemm_choice *chosen = smp_gemm_choices_find(graph->products, about);
    return chosen && strcmp(chosen->algorithm, SMP__CONV2D_UNFOLD) != 0;
}

smp__conv2d_dnn_room smp__conv2d_dnn_room_of(const smp_graph *graph, const smp_op *op,
                                             int64_t batch, smp_op_part part)
{
    const smp_convolution_shape s = smp__conv2d_shape(graph, op, batch);
    const bool weight = part == SMP_OP_BACKWARD_WEIGHT;
    const int64_t value = value_bytes(graph);
    const int64_t filters = s.out[SMP_CHANNELS] * smp_convolution_taps(&s);
    const smp_tensor *in = smp__in(graph, op, 0), *out = smp__out(graph, op);
    smp__conv2d_dnn_room room = {.ours = smp__conv2d_room_of(graph, op, batch, part)};
    int64_t bytes[REGIONS];
    room.x = weight                           ? round_up(filters * (int64_t)sizeof(float))
             : s.kernel[0] * s.kernel[1] == 1 ? 0
                                              : round_up(filters * value);
    room.y = room.x + (is_turned(in) ? round_up(batch * in->elements * value) : 0);
    room.trial = room.y + (is_turned(out) ? round_up(batch * out->elements * value) : 0);
    region_bytes(graph, op, part, true, bytes);
    place_regions(bytes, &room.ours);
    room.end = room.trial + room.ours.end;
    return room;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    const smp_tensor *out = smp__out(graph, op);
    const int64_t rows = batch * out->shape.dim[1] * out->shape.dim[2];
    const bool suits_dnn = smp__conv2d_suits_dnn(graph, op, batch);
    int64_t bytes = 0, measured = 0;
    for (int p = 0; p <= (graph->training ? SMP_OP_BACKWARD_WEIGHT : 0); p++) {
        const smp_op_part part = (smp_op_part)p;
        bytes = larger(bytes, smp__conv2d_room_of(graph, op, batch, part).end);
        const int64_t by_dnn = suits_dnn ? smp__conv2d_dnn_room_of(graph, op, batch, part).end : 0;
        measured = larger(measured, by_dnn);
        if (smp__conv2d_asks_dnn(graph, op, batch, part))
            bytes = larger(bytes, by_dnn);
    }
    if (graph->training && op->attr[BIAS].i && !is_turned(out))
        bytes = larger(bytes, smp__column_sum_bytes(rows, out->shape.dim[0]));
    *needs = (smp_op_needs){.weight_grad_in = 1, .workspace_bytes = bytes};
    needs->measured_workspace_bytes = suits_dnn ? larger(measured, bytes) : 0;
}

/* Images that are turned are written and read once more. */
static void work_turned(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    if (!smp_backend_of(graph->target)->channels_last)
        return;
    const smp__conv2d_windows w = smp__conv2d_windows_of(graph, op);
    const double x = w.turns_x ? 2.0 * (double)smp_tensor_bytes(graph, op->in[0], batch) : 0;
    const double y = w.turns_y ? 2.0 * (double)smp_tensor_bytes(graph, op->out, batch) : 0;
    work->forward_bytes += x + y;
    work->backward_input_bytes += work->backward_input_bytes > 0 ? x + y : 0;
    work->backward_weight_bytes += x + y;
}

/* Padding counts as pixels do: little of an image is at its edge. */
static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const smp_convolution_shape s = smp__conv2d_shape(graph, op, batch);
    const double outputs = (double)smp__count(smp__out(graph, op), batch);
    const double flops = 2.0 * outputs * (double)smp_convolution_taps(&s);
    const double bias = op->attr[BIAS].i ? outputs : 0;
    smp__work_bytes(graph, op, batch, work);
    work_turned(graph, op, batch, work);
    work->forward_flops = flops + bias;
    work->backward_input_flops = flops;
    work->backward_weight_flops = flops + bias;
    work->kind = SMP_OP_PRODUCT;
    work->product =
        (smp_op_product){1, smp__count(smp__out(graph, op), batch) / s.out[SMP_CHANNELS],
                         s.out[SMP_CHANNELS], smp_convolution_taps(&s)};
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    (void)device;
    const smp_convolution_shape s = smp__conv2d_shape(graph, op, batch);
    smp_convolution *made = NULL;
    SMP_TRY(smp_fail_context(smp_convolution_create(&s, op->attr[BIAS].i, graph->training, &made),
                             "op '%s' (conv2d)", op->name));
    *state = made;
    return SMP_OK;
}

static void release(void *state)
{
    smp_convolution_destroy(state);
}

static smp_convolution_weights weights(const smp_op_call *call)
{
    return (smp_convolution_weights){.fp32 = call->param[0],
                                     .bf16 = call->param16 ? call->param16[0] : NULL};
}

static smp_status forward(const smp_op_call *call)
{
    return smp_convolution_forward(call->state, call->in[0], weights(call),
                                   call->op->attr[BIAS].i ? call->param[1] : NULL, call->out[0],
                                   call->workspace);
}

static smp_status backward_input(const smp_op_call *call)
{
    if (!call->din[0])
        return SMP_OK;
    return smp_convolution_backward_input(call->state, call->dout[0], weights(call), call->din[0],
                                          call->workspace);
}

/* A plane of dy in bf16, a part at a time. */
static float sum16(const uint16_t *values, int64_t n)
{
    enum { PART = 512 };
    float part[PART], sum = 0;
    for (int64_t at = 0; at < n; at += PART) {
        const int64_t count = n - at < PART ? n - at : PART;
        smp__from_bf16(part, values + at, count);
        sum += smp__sum(part, count);
    }
    return sum;
}

static void add_bias_gradient(const smp_op_call *call, const smp_convolution_shape *s)
{
    const int64_t places = smp_convolution_places(s), channels = s->out[SMP_CHANNELS];
    for (int64_t i = 0; i < s->batch * channels; i++)
        call->dparam[1][i % channels] +=
            s->half ? sum16((const uint16_t *)call->dout[0] + i * places, places)
                    : smp__sum(call->dout[0] + i * places, places);
}

static smp_status backward_weight(const smp_op_call *call)
{
    const smp_convolution_shape s = smp__conv2d_shape(call->graph, call->op, call->batch);
    if (call->op->attr[BIAS].i)
        add_bias_gradient(call, &s);
    return smp_convolution_backward_weight(call->state, call->in[0], call->dout[0], call->dparam[0],
                                           call->workspace);
}

#define KERNELS                                                                                    \
    {                                                                                              \
        .prepare = prepare, .release = release, .forward = forward,                                \
        .backward_input = backward_input, .backward_weight = backward_weight                       \
    }

/* The kernels for arrays in bf16, as the shape says. */
static const smp_op_kernels HALF = KERNELS;

static bool allows_one_group(const smp_graph *graph, const smp_op *op, smp_split_choice choice,
                             int devices)
{
    (void)graph, (void)choice, (void)devices;
    return op->attr[GROUPS].i == 1;
}

static const smp_split_rule SPLITS[] = {
    {"columns", .in = {SMP_CELL_SHARED}, .out = SMP_CELL_DIM0,
     .param = {SMP_CELL_DIM0, SMP_CELL_DIM0}, .divided = 1u << CHANNELS,
     .allows = allows_one_group},
    {"rows", .in = {SMP_CELL_DIM0}, .out = SMP_CELL_PARTS,
     .param = {SMP_CELL_DIM1, SMP_CELL_BIAS_FIRST}, .allows = allows_one_group},
    {"groups", .in = {SMP_CELL_DIM0}, .out = SMP_CELL_DIM0, .param = {SMP_CELL_DIM0, SMP_CELL_DIM0},
     .divided = 1u << CHANNELS | 1u << GROUPS},
    {0},
};

const smp_op_kind smp__op_conv2d = {
    .name = "conv2d",
    .summary = "convolution of an image, with strides, padding, dilation and groups",
    .sample = "inputs:\n"
              "  image: {dtype: float32, shape: [3, 6, 5]}\n"
              "ops:\n"
              "  - {op: conv2d, name: op, in: image, out: y, channels: 4, kernel: 3, padding: 1}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .layout = layout,
    .split = SPLITS,
    .cpu = KERNELS,
    .cpu16 = &HALF,
    .rounded = 1 | SMP_ROUNDED_ON_GPU(2),
};

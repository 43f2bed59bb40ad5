/* linear: y = x W^T + b over the last dimension. x [.., in] -> [.., features], W [features, in] as
 * PyTorch stores it, so that a tied output layer can use an embedding's table as it is.
 *
 * dx = dy W, dW += dy^T x, db += column sums of dy. Three GEMMs of 2 * rows * in * features flops;
 * the bias is written to the output first and the GEMM accumulates onto it.
 *
 * In fp8 (Micikevicius et al., "FP8 Formats for Deep Learning", 2022) x and W are rounded to E4M3
 * and dy to E5M2, before every product and each at one scale, which is that of its largest value
 * in this micro-batch; padding has no say. Here the rounded values lie in the workspace as bf16,
 * which has all of them, and the products are those of bf16. */
#include "graph/ops/matmul/linear.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/math/half.h"
#include "graph/math/math.h"
#include "graph/math/vector.h"
#include "graph/ops/elementwise/elementwise.h"
#include "graph/ops/matmul/linear_fp8.h"

enum {
    FEATURES = SMP__LINEAR_FEATURES,
    BIAS = SMP__LINEAR_BIAS,
    WEIGHT = SMP__LINEAR_WEIGHT,
    INIT_STD = SMP__LINEAR_INIT_STD,
    ALIGNMENT = 64
};

static const smp_attr_desc ATTRS[] = {SMP__LINEAR_ATTRS, {0}};

smp_status smp__infer_linear(smp_infer *infer)
{
    SMP_TRY(smp_infer_dims(infer, 0, 1, SMP_MAX_DIMS));
    SMP_TRY(smp__infer_like_input(infer));
    int64_t in = smp__columns(infer->in[0]);
    int64_t features = infer->attr[FEATURES].i;
    float std = (float)infer->attr[INIT_STD].f;
    infer->out_shape.dim[infer->out_shape.n_dim - 1] = features;
    infer->param[infer->n_param++] = (smp_param_decl){
        .role = "weight",
        .shape = {2, {features, in}},
        .init = std > 0 ? SMP_INIT_NORMAL : SMP_INIT_UNIFORM,
        .init_scale = std > 0 ? std : (float)(1.0 / sqrt((double)in)),
        .tied_to = infer->attr[WEIGHT].s.text,
    };
    if (infer->attr[BIAS].i)
        infer->param[infer->n_param++] = (smp_param_decl){
            .role = "bias",
            .shape = {1, {features}},
            .init = SMP_INIT_ZERO,
        };
    return SMP_OK;
}

/* Rows of the three products: every position of every sample. */
static int64_t row_count(const smp_graph *graph, const smp_op *op, int64_t batch)
{
    const smp_tensor *in = smp__in(graph, op, 0);
    return smp__count(in, batch) / smp__columns(in);
}

static const smp_op *producer_of(const smp_graph *graph, int32_t tensor)
{
    const int32_t producer = graph->tensor[tensor].producer;
    return producer < 0 ? NULL : &graph->op[producer];
}

static bool is_head(const smp_graph *graph, const smp_op *op)
{
    const smp_op *last =
        graph->loss < 0 ? &graph->op[graph->n_op - 1] : producer_of(graph, graph->loss);
    bool passes = last && last->n_in > 0 && last->n_param == 0; /* a loss has targets, too */
    while (last && last != op && passes) {
        last = producer_of(graph, last->in[0]);
        passes = last && last->n_in == 1 && last->n_param == 0;
    }
    return last == op;
}

/* A router's logits may pass a load_balance. */
static bool is_chosen_by(const smp_graph *graph, int32_t tensor)
{
    for (int64_t i = graph->consumer_begin[tensor]; i < graph->consumer_begin[tensor + 1]; i++) {
        const smp_consumer *reader = &graph->consumer[i];
        const smp_op *op = &graph->op[reader->op];
        if (reader->slot < 32 && op->kind->chooses_by >> reader->slot & 1)
            return true;
        if (op->n_in == 1 && op->n_param == 0 && is_chosen_by(graph, op->out))
            return true;
    }
    return false;
}

bool smp__linear_is_fp8(const smp_graph *graph, const smp_op *op)
{
    return graph->target.precision == SMP_PRECISION_FP8 && op->kind == &smp__op_linear &&
           smp__columns(smp__in(graph, op, 0)) % 16 == 0 && op->attr[FEATURES].i % 16 == 0 &&
           !is_head(graph, op) && !is_chosen_by(graph, op->out);
}

static int64_t aligned(int64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Room for the rounded factors of forward, or of all three products. */
static void need_pairs(const smp_graph *graph, const int64_t bytes[3], smp_op_needs *needs)
{
    for (int i = 0; i < (graph->training ? 3 : 1); i++)
        if (needs->workspace_bytes < bytes[i])
            needs->workspace_bytes = bytes[i];
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    *needs = (smp_op_needs){.weight_grad_in = 1};
    if (!smp__linear_is_fp8(graph, op))
        return;
    const int64_t rows = row_count(graph, op, batch), features = op->attr[FEATURES].i;
    const int64_t in = smp__columns(smp__in(graph, op, 0));
    const int64_t x = aligned(2 * rows * in), y = aligned(2 * rows * features);
    const int64_t w = aligned(2 * features * in);
    const int64_t pairs[] = {x + w, y + w, x + y};
    need_pairs(graph, pairs, needs);
}

static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    const int64_t rows = row_count(graph, op, batch), features = op->attr[FEATURES].i;
    *needs = (smp_op_needs){.weight_grad_in = 1};
    if (op->attr[BIAS].i && graph->training)
        needs->workspace_bytes = smp__column_sum_bytes(rows, features);
    if (!smp__linear_is_fp8(graph, op))
        return;
    const int64_t in = smp__columns(smp__in(graph, op, 0));
    const int64_t pairs[] = {smp__fp8_bytes(rows, in, features, in),
                             smp__fp8_bytes(rows, features, features, in),
                             smp__fp8_bytes(rows, features, rows, in)};
    need_pairs(graph, pairs, needs);
}

/* Bytes that are moved to find a factor's largest value and to round it. */
static double rounding_bytes(const smp_graph *graph, double elements)
{
    const double rounded = smp_backend_of(graph->target)->own_memory ? 1 : 2;
    return elements * (2 + 2 + rounded);
}

static void add_fp8_work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const double x = (double)smp__count(smp__in(graph, op, 0), batch);
    const double y = (double)smp__count(smp__out(graph, op), batch);
    const double w = (double)graph->param[op->param[0]].elements;
    const double less = smp_backend_of(graph->target)->own_memory ? 1 : 0; /* bytes of a factor */
    work->fp8 = true;
    work->forward_bytes -= less * (x + w);
    work->backward_input_bytes -= less * (y + w);
    work->backward_weight_bytes -= less * (x + y);
    work->forward_moved = rounding_bytes(graph, x + w);
    work->backward_input_moved = rounding_bytes(graph, y + w);
    work->backward_weight_moved = rounding_bytes(graph, x + y);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    double outputs = (double)smp__count(smp__out(graph, op), batch);
    double flops = 2.0 * outputs * (double)smp__columns(smp__in(graph, op, 0));
    double bias = op->attr[BIAS].i ? outputs : 0;
    smp__work_bytes(graph, op, batch, work);
    work->forward_flops = flops + bias;
    work->backward_input_flops = flops;
    work->backward_weight_flops = flops + bias;
    work->kind = SMP_OP_PRODUCT;
    work->product = (smp_op_product){1, row_count(graph, op, batch), op->attr[FEATURES].i,
                                     smp__columns(smp__in(graph, op, 0))};
    if (smp__linear_is_fp8(graph, op))
        add_fp8_work(graph, op, batch, work);
}

/* With a GELU of the tanh form in the epilogue of the product, which writes both outputs: the
 * linear output in rows whose length is a multiple of 8, as cuBLASLt wants it. */
static bool fuses(const smp_graph *graph, const smp_op *op, const smp_op *next)
{
    return smp__is_gelu_tanh(next) && next->in[0] == op->out &&
           smp_tensor_is_read_once(graph, op->out) && op->attr[FEATURES].i % 8 == 0;
}

/* With the gradient of that GELU in the epilogue of the product before it. */
static bool fuses_backward(const smp_graph *graph, const smp_op *op, const smp_op *before)
{
    return smp__is_gelu_tanh(before) && smp__columns(smp__in(graph, op, 0)) % 8 == 0;
}

static smp_status forward(const smp_op_call *call)
{
    int64_t rows = row_count(call->graph, call->op, call->batch);
    int64_t in = smp__columns(smp__in(call->graph, call->op, 0));
    int64_t features = call->op->attr[FEATURES].i;
    bool bias = call->op->attr[BIAS].i;
    float *out = call->out[0];
    if (bias)
        for (int64_t r = 0; r < rows; r++)
            memcpy(out + r * features, call->param[1], (size_t)features * 4);
    return smp_math_gemm(false, true, rows, features, in, 1, call->in[0], in, call->param[0], in,
                         bias ? 1 : 0, out, features);
}

static smp_status backward_input(const smp_op_call *call)
{
    int64_t rows = row_count(call->graph, call->op, call->batch);
    int64_t in = smp__columns(smp__in(call->graph, call->op, 0));
    int64_t features = call->op->attr[FEATURES].i;
    if (!call->din[0])
        return SMP_OK;
    return smp_math_gemm(false, false, rows, in, features, 1, call->dout[0], features,
                         call->param[0], in, 0, call->din[0], in);
}

/* Rows of a weight's gradient that are made at once. A group has something under way meanwhile, and
 * MPI moves it when it is called: so it is, every few milliseconds. Pieces follow from sizes, never
 * from what is under way. */
static int64_t piece_of(const smp_op_call *call, int64_t rows, int64_t in, int64_t features)
{
    const double piece_flops = 5e8, all_flops = 2.0 * (double)rows * (double)in * (double)features;
    if (!call->group || !call->group->look || all_flops <= piece_flops)
        return features;
    const int64_t least = 64, n = (int64_t)((double)features * piece_flops / all_flops);
    return n < least ? least : n / least * least;
}

static void add_columns(const smp_op_call *call, int64_t rows, int64_t features)
{
    if (call->fresh)
        memset(call->dparam[1], 0, (size_t)features * sizeof(float));
    smp__column_sums(call->dparam[1], call->dout[0], rows, features, features);
}

static smp_status backward_weight(const smp_op_call *call)
{
    int64_t rows = row_count(call->graph, call->op, call->batch);
    int64_t in = smp__columns(smp__in(call->graph, call->op, 0));
    int64_t features = call->op->attr[FEATURES].i;
    if (call->op->attr[BIAS].i)
        add_columns(call, rows, features);
    const int64_t piece = piece_of(call, rows, in, features);
    for (int64_t f = 0; f < features; f += piece) {
        const int64_t n = features - f < piece ? features - f : piece;
        SMP_TRY(smp_math_gemm(true, false, n, in, rows, 1, call->dout[0] + f, features, call->in[0],
                              in, call->fresh ? 0 : 1, call->dparam[0] + f * in, in));
        if (n < features)
            SMP_TRY(call->group->look(call->group->context));
    }
    return SMP_OK;
}

void smp__release_gemms16(void *state)
{
    smp__gemms16 *p = state;
    smp_math_gemm16_destroy(p->forward);
    smp_math_gemm16_destroy(p->input);
    smp_math_gemm16_destroy(p->weight);
    free(p);
}

smp_status smp__prepare_gemms16(const smp__linear16 *s, void **state)
{
    smp__gemms16 *p = calloc(1, sizeof(*p));
    if (!p)
        return smp_fail_memory(sizeof(*p));
    *state = p;
    const smp_gemm16 forward = {.trans_b = true,
                                .m = s->rows,
                                .n = s->features,
                                .k = s->in,
                                .bias = s->bias,
                                .wide = s->wide_forward};
    SMP_TRY(smp_math_gemm16_create(&forward, &p->forward));
    if (!s->training)
        return SMP_OK;
    const smp_gemm16 input = {.m = s->rows, .n = s->in, .k = s->features, .wide = s->wide_input};
    SMP_TRY(smp_math_gemm16_create(&input, &p->input));
    const smp_gemm16 weight = {
        .trans_a = true, .m = s->features, .n = s->in, .k = s->all, .accumulate = true};
    return smp_math_gemm16_create(&weight, &p->weight);
}

static smp_status prepare16(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                            void **state)
{
    (void)device;
    const int64_t rows = row_count(graph, op, batch);
    const smp__linear16 shape = {.rows = rows,
                                 .all = rows,
                                 .in = smp__columns(smp__in(graph, op, 0)),
                                 .features = op->attr[FEATURES].i,
                                 .bias = op->attr[BIAS].i,
                                 .training = graph->training};
    return smp__prepare_gemms16(&shape, state);
}

/* A factor of a product: an activation or its gradient, of which the last samples may only fill up
 * the micro-batch, or a weight. */
typedef struct factor16 {
    const void *value;
    int64_t elements, counted;
    smp_fp8 format;
} factor16;

static factor16 activation16(const smp_op_call *call, const smp_tensor *tensor, const void *value,
                             smp_fp8 format)
{
    return (factor16){value, smp__count(tensor, call->batch),
                      smp__count(tensor, call->batch - call->padding), format};
}

static factor16 input16(const smp_op_call *call)
{
    return activation16(call, smp__in(call->graph, call->op, 0), call->in[0], SMP_E4M3);
}

static factor16 gradient16(const smp_op_call *call)
{
    return activation16(call, smp__out(call->graph, call->op), call->dout[0], SMP_E5M2);
}

static factor16 weight16(const smp_op_call *call)
{
    const int64_t elements = call->graph->param[call->op->param[0]].elements;
    return (factor16){call->param16[0], elements, elements, SMP_E4M3};
}

/* Both factors as they are, or as fp8 has them. */
static smp_status multiply16(const smp_op_call *call, smp_math_gemm16 *product, factor16 a,
                             factor16 b, const float *bias, void *c)
{
    if (smp__linear_is_fp8(call->graph, call->op)) {
        uint16_t *rounded = call->workspace;
        uint16_t *other = rounded + aligned(2 * a.elements) / 2;
        smp__round_fp8(a.format, rounded, a.value, a.elements, a.counted);
        smp__round_fp8(b.format, other, b.value, b.elements, b.counted);
        a.value = rounded;
        b.value = other;
    }
    return smp_math_gemm16_run(product, a.value, b.value, bias, c);
}

static smp_status forward16(const smp_op_call *call)
{
    const smp__gemms16 *p = call->state;
    return multiply16(call, p->forward, input16(call), weight16(call),
                      call->op->attr[BIAS].i ? call->param[1] : NULL, call->out[0]);
}

static smp_status backward_input16(const smp_op_call *call)
{
    const smp__gemms16 *p = call->state;
    if (!call->din[0])
        return SMP_OK;
    return multiply16(call, p->input, gradient16(call), weight16(call), NULL, call->din[0]);
}

/* A block of columns is widened row by row. */
void smp__add_rows16(float *restrict total, const uint16_t *rows, int64_t n, int64_t columns)
{
    enum { BLOCK = 512 };
    float row[BLOCK];
    for (int64_t begin = 0; begin < columns; begin += BLOCK) {
        const int64_t width = columns - begin < BLOCK ? columns - begin : BLOCK;
        for (int64_t r = 0; r < n; r++) {
            smp__from_bf16(row, rows + r * columns + begin, width);
            smp__accumulate(total + begin, row, width);
        }
    }
}

static smp_status backward_weight16(const smp_op_call *call)
{
    const smp__gemms16 *p = call->state;
    if (call->op->attr[BIAS].i)
        smp__add_rows16(call->dparam[1], (const uint16_t *)call->dout[0],
                        row_count(call->graph, call->op, call->batch), call->op->attr[FEATURES].i);
    return multiply16(call, p->weight, gradient16(call), input16(call), NULL, call->dparam[0]);
}

static const smp_op_kernels HALF = {.prepare = prepare16,
                                    .release = smp__release_gemms16,
                                    .forward = forward16,
                                    .backward_input = backward_input16,
                                    .backward_weight = backward_weight16};

/* A device has a block of positions: not of a sample that is one row. */
static bool allows_ring(const smp_graph *graph, const smp_op *op, smp_split_choice choice,
                        int devices)
{
    (void)choice, (void)devices;
    return smp__in(graph, op, 0)->shape.n_dim > 1;
}

/* Gradients of the output are brought together for those of the input; where none is wanted, the
 * weight's would lack them. An input in three blocks has no room for a second number of them. */
static bool allows_scatter(const smp_graph *graph, const smp_op *op, smp_split_choice choice,
                           int devices)
{
    return allows_ring(graph, op, choice, devices) && choice.blocks == 1 &&
           (!graph->training || smp__in(graph, op, 0)->needs_grad);
}

static const smp_split_rule SPLITS[] = {
    {"columns", .in = {SMP_CELL_SHARED}, .out = SMP_CELL_LAST,
     .param = {SMP_CELL_DIM0, SMP_CELL_DIM0}, .divided = 1u << FEATURES},
    {"rows", .in = {SMP_CELL_LAST}, .out = SMP_CELL_PARTS,
     .param = {SMP_CELL_DIM1, SMP_CELL_BIAS_LAST}},
    {"positions", .in = {SMP_CELL_ANY}, .out = SMP_CELL_ANY,
     .param = {SMP_CELL_SHARED, SMP_CELL_SHARED}, .allows = smp__split_allows_row},
    {"ring columns", .in = {SMP_CELL_DIM0}, .out = SMP_CELL_LAST,
     .param = {SMP_CELL_DIM0, SMP_CELL_DIM0}, .divided = 1u << FEATURES, .kind = "ring_linear",
     .allows = allows_ring},
    {"zigzag ring columns", .in = {SMP_CELL_ZIGZAG}, .out = SMP_CELL_LAST,
     .param = {SMP_CELL_DIM0, SMP_CELL_DIM0}, .divided = 1u << FEATURES, .kind = "ring_linear",
     .allows = allows_ring},
    {"ring rows", .in = {SMP_CELL_LAST}, .out = SMP_CELL_DIM0,
     .param = {SMP_CELL_DIM1, SMP_CELL_SHARED}, .kind = "ring_linear", .allows = allows_scatter},
    {"zigzag ring rows", .in = {SMP_CELL_LAST}, .out = SMP_CELL_ZIGZAG,
     .param = {SMP_CELL_DIM1, SMP_CELL_SHARED}, .kind = "ring_linear", .allows = allows_scatter},
    {0},
};

const smp_op_kind smp__op_linear = {
    .name = "linear",
    .summary = "matrix product over the last dimension, with or without bias, tied or not",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: linear, name: op, in: x, out: y, features: 5, bias: true}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = smp__infer_linear,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .fuses = fuses,
    .fuses_backward = fuses_backward,
    .split = SPLITS,
    .cpu = {.forward = forward,
            .backward_input = backward_input,
            .backward_weight = backward_weight,
            .writes_fresh = true},
    .cpu16 = &HALF,
    .rounded = 1 | SMP_ROUNDED_ON_GPU(2),
};

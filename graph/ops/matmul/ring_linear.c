/* ring_linear: a linear of several devices whose products are cut into blocks of rows, one for each
 * device, so that what they exchange travels while they compute (Wang et al., "Overlap
 * Communication with Dependent Computation via Decomposition in Large Deep Learning Models", 2023).
 * `axis` says of what a device has a part:
 *
 *   0, of the positions      all rows of x come together, W has a part of its rows: y has all rows
 *                            and a part of the features
 *   the last, of elements    W has a part of its columns: the devices' products are summands, and
 *                            of their sum each has the rows of its positions
 *
 * Either one's input gradient is made as the other's output is. To bring together: in round r a
 * device sends its own block to the device r further on, and multiplies the block that has come in
 * the round before. To scatter sums: in round r it multiplies the rows of the device r further on,
 * and sends it the product while it makes the next; all that has come is added in the end, by
 * rising device, as everywhere in a group. So blocks never travel on through others, every message
 * has one sender, and the bits are those of a product between an all_gather and a reduce_scatter,
 * as far as the library makes a row's product alike in a block and in the whole.
 *
 * backward_weight exchanges nothing: it reads all of x, or of dy, which is kept in aux. */
#include "graph/ops/matmul/ring_linear.h"

#include "graph/ops/matmul/linear.h"

#include <string.h>

#include "graph/math/half.h"
#include "graph/math/math.h"
#include "graph/math/vector.h"
#include "graph/ops/collective/collective.h"

enum { DEVICES = SMP__LINEAR_N, AXIS, BLOCKS };
enum { ALIGNMENT = 64, PIECE_ROWS = 64 };

static const smp_attr_desc ATTRS[] = {
    SMP__LINEAR_ATTRS,
    [DEVICES] = {"devices", SMP_ATTR_INT, false, 1, 1, SMP__MOST_DEVICES, NULL},
    [AXIS] = {"axis", SMP_ATTR_INT, false, 0, 0, SMP_MAX_DIMS - 1, NULL},
    [BLOCKS] = {"blocks", SMP_ATTR_INT, false, 1, 1, SMP_SPLIT_BLOCKS, NULL},
    {0},
};

/* Two blocks are a zigzag of positions; of features or elements there may be three, which do not
 * matter here. */
static int64_t runs_of(const smp_attr_value *attr)
{
    return attr[BLOCKS].i == 2 ? 2 : 1;
}

static smp_status infer(smp_infer *infer)
{
    const smp_attr_value *attr = infer->attr;
    const int64_t devices = attr[DEVICES].i, axis = attr[AXIS].i;
    SMP_TRY(smp__infer_linear(infer));
    const int last = infer->in[0]->shape.n_dim - 1;
    int64_t *rows = &infer->out_shape.dim[0];
    if (devices == 1)
        return SMP_OK;
    if (last < 1 || (axis != 0 && axis != last))
        return smp_infer_fail(infer, "axis: got %lld, expected 0 or the last dimension of '%s'",
                              (long long)axis, infer->in[0]->name);
    const int64_t parts = runs_of(attr) * (axis == 0 ? 1 : devices);
    if (*rows % parts != 0)
        return smp_infer_fail(infer, "'%s' has %lld rows, expected a multiple of %lld",
                              infer->in[0]->name, (long long)*rows, (long long)parts);
    *rows = axis == 0 ? *rows * devices : *rows / devices;
    return SMP_OK;
}

smp__linear_ring smp__linear_ring_of(const smp_graph *graph, const smp_op *op, int64_t batch)
{
    const smp_tensor *in = smp__in(graph, op, 0), *out = smp__out(graph, op);
    const bool gpu = smp_backend_of(graph->target)->sends_halves;
    smp__linear_ring r = {.devices = op->attr[DEVICES].i,
                          .columns = {smp__columns(in), smp__columns(out)},
                          .value = gpu || in->dtype == SMP_BF16 ? smp_dtype_bytes(in->dtype)
                                                                : (int64_t)sizeof(float)};
    r.summand = gpu ? r.value : (int64_t)sizeof(float);
    r.device = r.devices > 1 ? graph->device : 0;
    r.scatters = r.devices > 1 && op->attr[AXIS].i > 0;
    const int64_t outer = in->batched ? batch : 1, runs = runs_of(op->attr);
    r.rows =
        r.scatters ? smp__count(out, batch) / r.columns[1] : smp__count(in, batch) / r.columns[0];
    r.run = (smp__parts){outer, runs, r.devices, r.rows / (outer * runs)};
    return r;
}

static int64_t aligned(int64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

bool smp__linear_is_dense(const smp__linear_ring *r, int64_t columns)
{
    return r->devices == 1 ||
           (r->run.outer * r->run.blocks == 1 && r->rows * columns * r->value % ALIGNMENT == 0);
}

int64_t smp__linear_message(const smp__linear_ring *r, int64_t columns, int64_t value)
{
    const int64_t bytes = r->rows * columns * value, each = (int64_t)sizeof(float);
    return (bytes + each - 1) / each;
}

static int64_t take_bytes(int64_t *end, int64_t bytes)
{
    const int64_t at = *end;
    *end += aligned(bytes);
    return at;
}

smp__linear_places smp__linear_places_of(const smp__linear_ring *r, bool scatters, int64_t from,
                                         int64_t to)
{
    const int64_t apart = scatters ? from : to, travels = scatters ? to : from;
    const int64_t value = scatters ? r->summand : r->value, each = (int64_t)sizeof(float);
    const int64_t bytes = smp__linear_message(r, travels, value) * each;
    smp__linear_places p = {.step = aligned(bytes)};
    for (int i = 0; i < 2 && i < r->devices - 1; i++)
        p.travels[i] = take_bytes(&p.end, bytes);
    p.summand = take_bytes(&p.end, scatters ? r->devices * p.step : 0);
    p.side = take_bytes(&p.end, smp__linear_is_dense(r, apart) ? 0 : r->rows * apart * r->value);
    p.own = take_bytes(
        &p.end,
        scatters || r->summand != r->value || r->rows * from * r->value == bytes ? 0 : bytes);
    return p;
}

static void needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    const smp__linear_ring r = smp__linear_ring_of(graph, op, batch);
    const int64_t x = r.columns[0], y = r.columns[1];
    *needs = (smp_op_needs){.weight_grad_in = 1};
    if (r.devices == 1)
        return;
    const int64_t forward = smp__linear_places_of(&r, r.scatters, x, y).end;
    const int64_t backward = graph->training ? smp__linear_places_of(&r, !r.scatters, y, x).end : 0;
    needs->workspace_bytes = forward > backward ? forward : backward;
    needs->weight_grad_in = r.scatters;
    needs->weight_grad_aux = true;
    needs->aux_of_backward = r.scatters;
    if (graph->training)
        needs->aux_bytes = r.devices * (r.rows / r.run.outer) * (r.scatters ? y : x) * r.value;
}

/* Bytes that are copied as all_gather and reduce_scatter copy them, and blocks apart. */
static double moved_of(const smp__linear_ring *r, bool scatters, int64_t from, int64_t to)
{
    const int64_t apart = scatters ? from : to, travels = scatters ? to : from;
    const double side = smp__linear_is_dense(r, apart) ? 0 : 2 * (double)(apart * r->value);
    const double each = (double)(travels * (scatters ? r->summand : r->value));
    return (double)r->rows * ((double)r->devices * ((scatters ? 3 : 2) * each + side) + each);
}

/* Backward_weight adds up the columns of dy in chunks. */
static void cuda_needs(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *out)
{
    const smp__linear_ring r = smp__linear_ring_of(graph, op, batch);
    const int64_t rows = smp__count(smp__out(graph, op), batch) / r.columns[1];
    const int64_t chunks = op->attr[SMP__LINEAR_BIAS].i && graph->training
                               ? smp__column_sum_bytes(rows, r.columns[1])
                               : 0;
    needs(graph, op, batch, out);
    if (out->workspace_bytes < chunks)
        out->workspace_bytes = chunks;
}

static void set_exchanges(const smp__linear_ring *r, smp_op_work *work)
{
    const int64_t x = r->columns[0], y = r->columns[1], each = (int64_t)sizeof(float);
    const int64_t away = r->devices - 1, travels = r->scatters ? y : x;
    const smp_op_exchange rows = {away, each * smp__linear_message(r, travels, r->value), away};
    const smp_op_exchange sums = {away, each * smp__linear_message(r, travels, r->summand), away};
    work->forward_exchange = r->scatters ? sums : rows;
    work->backward_input_exchange = r->scatters ? rows : sums;
    work->forward_moved = moved_of(r, r->scatters, x, y);
    work->backward_input_moved = moved_of(r, !r->scatters, y, x);
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    const smp__linear_ring r = smp__linear_ring_of(graph, op, batch);
    const double all = (double)(r.rows * r.devices), features = (double)r.columns[1];
    const double flops = 2 * all * (double)r.columns[0] * features;
    const double bias = (r.scatters ? (double)r.rows : all) * features;
    smp__work_bytes(graph, op, batch, work);
    work->forward_flops = work->backward_weight_flops =
        flops + (op->attr[SMP__LINEAR_BIAS].i ? bias : 0);
    work->backward_input_flops = flops;
    work->kind = SMP_OP_PRODUCT;
    work->product = (smp_op_product){r.devices, r.rows, r.columns[1], r.columns[0]};
    if (r.devices > 1)
        set_exchanges(&r, work);
}

/* A call under way: a product of blocks with `from` columns that makes `to`. */
typedef struct pass {
    const smp_op_call *call;
    smp__linear_ring r;
    bool forward, scatters;
    int64_t from, to;
    const smp_op_group *group;
    char *travels[2], *summand, *side;
    int64_t step;
} pass;

static smp_status begin_pass(const smp_op_call *call, bool forward, pass *s)
{
    *s = (pass){.call = call,
                .r = smp__linear_ring_of(call->graph, call->op, call->batch),
                .forward = forward};
    s->scatters = s->r.devices > 1 && s->r.scatters == forward;
    s->from = s->r.columns[forward ? 0 : 1];
    s->to = s->r.columns[forward ? 1 : 0];
    const smp__linear_places at = smp__linear_places_of(&s->r, s->scatters, s->from, s->to);
    char *base = call->workspace;
    for (int i = 0; i < 2; i++)
        s->travels[i] = base + at.travels[i];
    s->summand = base + at.summand;
    s->step = at.step;
    s->side = base + at.side;
    return smp__group_of(call, s->r.devices, &s->group);
}

/* A device's rows between the whole and a block of their own. */
static void move_rows(const smp__linear_ring *r, int64_t device, int64_t columns, char *whole,
                      char *block, bool put)
{
    const int64_t bytes = r->run.run * columns * r->value;
    for (int64_t i = 0; i < r->run.outer * r->run.blocks; i++, block += bytes) {
        char *at = whole + smp__run_of(r->run, i, device) * bytes;
        memcpy(put ? at : block, put ? block : at, (size_t)bytes);
    }
}

static char *rows_of(const smp__linear_ring *r, int64_t device, int64_t columns, const void *whole)
{
    return (char *)whole + device * r->rows * columns * r->value;
}

/* Pieces of a block, between which MPI is called, since it moves messages only then: powers of two,
 * of about a millisecond. */
static int64_t pieces_of(const smp__linear_ring *r)
{
    const double piece_flops = 1e8;
    const double flops = 2.0 * (double)r->rows * (double)r->columns[0] * (double)r->columns[1];
    int64_t n = 1;
    while (flops > piece_flops * (double)n && r->rows % (2 * n * PIECE_ROWS) == 0)
        n *= 2;
    return n;
}

static smp_status look_at_group(const pass *s)
{
    return s->group->look ? s->group->look(s->group->context) : SMP_OK;
}

/* c = a W^T, with the bias where that is y, or a W, of `rows` rows. */
static smp_status multiply_rows(const pass *s, int64_t rows, const float *a, float *c)
{
    const smp_op_call *call = s->call;
    const int64_t in = s->r.columns[0];
    if (!s->forward)
        return smp_math_gemm(false, false, rows, s->to, s->from, 1, a, s->from, call->param[0], in,
                             0, c, s->to);
    const bool bias = call->op->attr[SMP__LINEAR_BIAS].i && !s->r.scatters;
    for (int64_t i = 0; bias && i < rows; i++)
        memcpy(c + i * s->to, call->param[1], (size_t)s->to * sizeof *c);
    return smp_math_gemm(false, true, rows, s->to, s->from, 1, a, s->from, call->param[0], in,
                         bias ? 1 : 0, c, s->to);
}

static smp_status multiply_rows16(const pass *s, const void *a, void *c)
{
    const smp_op_call *call = s->call;
    const smp__gemms16 *p = call->state;
    const bool bias = call->op->attr[SMP__LINEAR_BIAS].i && s->forward && !s->r.scatters;
    return smp_math_gemm16_run(s->forward ? p->forward : p->input, a, call->param16[0],
                               bias ? call->param[1] : NULL, c);
}

/* A block; a summand is fp32. */
static smp_status multiply(const pass *s, const char *a, char *c)
{
    const smp__linear_ring *r = &s->r;
    const bool half = r->value == 2;
    const int64_t n = pieces_of(r), rows = r->rows / n;
    const int64_t a_bytes = rows * s->from * r->value;
    const int64_t c_bytes = rows * s->to * (s->scatters ? (int64_t)sizeof(float) : r->value);
    for (int64_t i = 0; i < n; i++, a += a_bytes, c += c_bytes) {
        SMP_TRY(half ? multiply_rows16(s, a, c)
                     : multiply_rows(s, rows, (const float *)a, (float *)c));
        SMP_TRY(look_at_group(s));
    }
    return SMP_OK;
}

/* Multiplies one of the blocks that come together; `all`: where it is in place then, or NULL. */
static smp_status multiply_block(const pass *s, int64_t device, char *block, char *all, void *out)
{
    const smp__linear_ring *r = &s->r;
    const bool dense = smp__linear_is_dense(r, s->to);
    if (all)
        move_rows(r, device, s->from, all, block, true);
    char *c = dense ? rows_of(r, device, s->to, out) : s->side;
    SMP_TRY(multiply(s, block, c));
    if (!dense)
        move_rows(r, device, s->to, out, s->side, true);
    return SMP_OK;
}

/* own: this device's block, which the others get; out: all rows. */
static smp_status gather(const pass *s, const void *own, void *all, void *out)
{
    const smp__linear_ring *r = &s->r;
    const int64_t n = smp__linear_message(r, s->from, r->value);
    char *block = (char *)own;
    for (int64_t round = 0; round < r->devices; round++) {
        const bool more = round + 1 < r->devices;
        char *next = s->travels[round % 2];
        if (more)
            SMP_TRY(s->group->shift(s->group->context, own, (float *)next, n, (int32_t)round + 1));
        const int64_t device = (r->device + r->devices - round) % r->devices;
        SMP_TRY(multiply_block(s, device, block, all, out));
        if (more)
            SMP_TRY(s->group->shifted(s->group->context));
        block = next;
    }
    return SMP_OK;
}

/* Makes one of the products, that of the rows of a device. */
static smp_status multiply_for(const pass *s, int64_t device, const void *all, char *c)
{
    const smp__linear_ring *r = &s->r;
    const bool dense = smp__linear_is_dense(r, s->from);
    if (!dense)
        move_rows(r, device, s->from, (char *)all, s->side, false);
    return multiply(s, dense ? rows_of(r, device, s->from, all) : s->side, c);
}

static float *summand_of(const pass *s, int64_t device)
{
    return (float *)(s->summand + device * s->step);
}

/* By rising device. */
static void add_summands(const pass *s, void *out)
{
    const smp__linear_ring *r = &s->r;
    const int64_t n = r->rows * s->to;
    float *sum = summand_of(s, 0);
    for (int64_t d = 1; d < r->devices; d++)
        smp__accumulate(sum, summand_of(s, d), n);
    for (int64_t i = 0; s->forward && s->call->op->attr[SMP__LINEAR_BIAS].i && i < r->rows; i++)
        smp__accumulate(sum + i * s->to, s->call->param[1], s->to);
    if (r->value == 2)
        smp__to_bf16(out, sum, n);
    else
        memcpy(out, sum, (size_t)n * sizeof *sum);
}

/* all: rows of all devices; out: the sum of what the devices make of this one's. */
static smp_status scatter(const pass *s, const void *all, void *out)
{
    const smp__linear_ring *r = &s->r;
    const int64_t n = r->rows * s->to;
    for (int64_t round = 1; round <= r->devices; round++) {
        const int64_t device = (r->device + round) % r->devices;
        char *made = s->travels[round % 2];
        const bool own = round == r->devices;
        SMP_TRY(multiply_for(s, device, all, own ? (char *)summand_of(s, device) : made));
        if (round > 1)
            SMP_TRY(s->group->shifted(s->group->context));
        const int64_t from = (r->device + r->devices - round) % r->devices;
        if (!own)
            SMP_TRY(s->group->shift(s->group->context, (const float *)made, summand_of(s, from), n,
                                    (int32_t)round));
    }
    add_summands(s, out);
    return SMP_OK;
}

static smp_status forward(const smp_op_call *call)
{
    pass s;
    SMP_TRY(begin_pass(call, true, &s));
    return s.scatters ? scatter(&s, call->in[0], call->out[0])
                      : gather(&s, call->in[0], call->aux, call->out[0]);
}

static smp_status backward_input(const smp_op_call *call)
{
    pass s;
    if (!call->din[0])
        return SMP_OK;
    SMP_TRY(begin_pass(call, false, &s));
    return s.scatters ? scatter(&s, call->dout[0], call->din[0])
                      : gather(&s, call->dout[0], s.r.scatters ? call->aux : NULL, call->din[0]);
}

static smp_status backward_weight(const smp_op_call *call)
{
    const smp__linear_ring r = smp__linear_ring_of(call->graph, call->op, call->batch);
    const int64_t in = r.columns[0], features = r.columns[1], all = r.rows * r.devices;
    const int64_t own = r.scatters ? r.rows : all; /* rows of the output */
    const bool half = r.value == 2;
    const void *x = r.devices > 1 && !r.scatters ? call->aux : call->in[0];
    const void *dy = r.scatters ? call->aux : (const void *)call->dout[0];
    if (call->op->attr[SMP__LINEAR_BIAS].i && half)
        smp__add_rows16(call->dparam[1], (const uint16_t *)call->dout[0], own, features);
    else if (call->op->attr[SMP__LINEAR_BIAS].i)
        smp__column_sums(call->dparam[1], call->dout[0], own, features, features);
    if (half)
        return smp_math_gemm16_run(((const smp__gemms16 *)call->state)->weight, dy, x, NULL,
                                   call->dparam[0]);
    return smp_math_gemm(true, false, features, in, all, 1, dy, features, x, in, 1, call->dparam[0],
                         in);
}

static smp_status prepare16(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                            void **state)
{
    (void)device;
    const smp__linear_ring r = smp__linear_ring_of(graph, op, batch);
    const smp__linear16 shape = {.rows = r.rows / pieces_of(&r),
                                 .all = r.rows * r.devices,
                                 .in = r.columns[0],
                                 .features = r.columns[1],
                                 .bias = op->attr[SMP__LINEAR_BIAS].i && !r.scatters,
                                 .wide_forward = r.scatters,
                                 .wide_input = r.devices > 1 && !r.scatters,
                                 .training = graph->training};
    return smp__prepare_gemms16(&shape, state);
}

static const smp_op_kernels HALF = {.prepare = prepare16,
                                    .release = smp__release_gemms16,
                                    .forward = forward,
                                    .backward_input = backward_input,
                                    .backward_weight = backward_weight};

const smp_op_kind smp__op_ring_linear = {
    .name = "ring_linear",
    .summary = "a linear of several devices; rows, or sums, travel beside its products",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: ring_linear, name: op, in: x, out: y, features: 5, bias: true}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .needs = {[SMP_BACKEND_CPU] = needs, [SMP_BACKEND_CUDA] = cuda_needs},
    .work = work,
    .cpu = {.forward = forward,
            .backward_input = backward_input,
            .backward_weight = backward_weight},
    .cpu16 = &HALF,
    .rounded = 1,
};

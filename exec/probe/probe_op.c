/* Operators on buffers that are as warm as they will be in training.
 *
 * A training step touches every weight, gradient and stash of the rank between two uses of the same
 * one, so back-to-back runs on one set of buffers would be too fast. An opened op therefore has
 * several sets of what is kept (inputs, output, aux, weights, gradient accumulators), and runs take
 * them in turn: so many sets that the bytes touched before one comes back are what the model
 * touches in a micro-batch, at most ROTATION_BYTES. What the neighbouring op has just made is warm
 * in training: a forward's newest input is read once before the clock starts, and output and input
 * gradients have one buffer each. */
#include "exec/probe/probe_op.h"

#include <math.h>
#include <string.h>

#include "graph/base/divisor.h"
#include "profile/estimate.h"

enum { ALIGNMENT = 64, MAX_SETS = 512 };

#define ROTATION_BYTES ((int64_t)64 << 20) /* larger than the caches of one core */
#define POOL_BYTES ((int64_t)256 << 20)
#define MAX_BYTES ((int64_t)1 << 60)
#define WEIGHT_SCALE 0.05f /* keeps sums of products near 1 */

/* Reads one word of every cache line; the sum keeps the compiler from leaving the reads out. */
static volatile uint32_t warm_sink;

static void warm(const void *data, int64_t bytes)
{
    const char *at = data;
    uint32_t sum = 0;
    for (int64_t i = 0; i + 4 <= bytes; i += ALIGNMENT) {
        uint32_t word;
        memcpy(&word, at + i, sizeof word);
        sum += word;
    }
    warm_sink = sum;
}

bool smp__probe_place(int64_t *total, int64_t bytes, int64_t *offset)
{
    if (bytes < 0 || bytes > MAX_BYTES || *total > MAX_BYTES)
        return false;
    *offset = *total;
    *total += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return true;
}

static int64_t param_bytes(const smp__probe_state *p, const smp_op *op, int slot)
{
    return p->graph->param[op->param[slot]].elements * (int64_t)sizeof(float);
}

static int64_t in_bytes(const smp__probe_state *p, int slot)
{
    return smp_tensor_bytes(p->graph, p->op->in[slot], p->batch);
}

static int64_t out_bytes(const smp__probe_state *p, int k)
{
    return smp_tensor_bytes(p->graph, p->op->out + k, p->batch);
}

/* What forward of the second op of a pair has besides the output of the first. */
static bool place_next(smp__probe_state *p)
{
    smp__places *at = &p->place;
    int64_t *set = &at->set_bytes;
    smp_op_needs needs;
    smp_op_needs_get(p->graph, p->next, p->batch, &needs);
    if (needs.workspace_bytes > at->workspace_bytes)
        at->workspace_bytes = needs.workspace_bytes;
    bool ok =
        smp__probe_place(set, smp_tensor_bytes(p->graph, p->next->out, p->batch), &at->next_out) &&
        smp__probe_place(set, needs.aux_bytes * p->batch, &at->next_aux);
    for (int i = 1; i < p->next->n_in && ok; i++)
        ok = smp__probe_place(set, smp_tensor_bytes(p->graph, p->next->in[i], p->batch),
                              &at->next_in[i]);
    for (int i = 0; i < p->next->n_param && ok; i++)
        ok = smp__probe_place(set, param_bytes(p, p->next, i), &at->next_param[i]);
    return ok;
}

static bool place_with(smp__probe_state *p, const smp_op_needs *needs, int64_t workspace_bytes)
{
    smp__places *at = &p->place;
    int64_t *set = &at->set_bytes, *shared = &at->shared_bytes;
    bool ok = true;
    *at = (smp__places){.workspace_bytes = workspace_bytes};
    if (__builtin_mul_overflow(needs->aux_bytes, p->batch, &at->aux_bytes))
        return false;
    for (int i = 0; i < p->op->n_in && ok; i++) {
        ok = smp__probe_place(set, in_bytes(p, i), &at->in[i]);
        if (p->graph->tensor[p->op->in[i]].needs_grad)
            ok = ok && smp__probe_place(shared, in_bytes(p, i), &at->din[i]);
    }
    for (int i = 0; i < p->op->n_param && ok; i++) {
        ok = smp__probe_place(set, param_bytes(p, p->op, i), &at->param[i]);
        if (smp_precision_is_half(p->precision))
            ok = ok && smp__probe_place(set, param_bytes(p, p->op, i) / 2, &at->param16[i]);
        if (p->graph->training)
            ok = ok && smp__probe_place(set, param_bytes(p, p->op, i), &at->dparam[i]);
    }
    if (p->next && ok)
        ok = place_next(p);
    if (p->before && ok) {
        const int64_t bytes = smp_tensor_bytes(p->graph, p->before->in[0], p->batch);
        ok = smp__probe_place(set, bytes, &at->before_in) &&
             smp__probe_place(shared, bytes, &at->before_din);
    }
    for (int k = 0; k < p->op->n_out && ok; k++)
        ok = smp__probe_place(set, out_bytes(p, k), &at->out[k]) &&
             smp__probe_place(shared, out_bytes(p, k), &at->dout[k]);
    return ok && smp__probe_place(set, at->aux_bytes, &at->aux) &&
           smp__probe_place(shared, at->workspace_bytes, &at->workspace);
}

/* What the rank's part of the model touches between two uses of a buffer. */
static int64_t footprint(smp__probe_state *p)
{
    const smp_graph *graph = p->graph;
    const int ranks = p->parallel ? p->comm.world_size : 1;
    int64_t weights = 0, values = 0;
    if (p->footprint_graph == graph && p->footprint_batch == p->batch)
        return p->footprint_bytes;
    for (int32_t i = 0; i < graph->n_param && weights < ROTATION_BYTES * ranks; i++)
        weights += 8 * graph->param[i].elements; /* and its gradient */
    for (int32_t t = graph->n_input; t < graph->n_tensor && values < ROTATION_BYTES; t++)
        values += smp_tensor_bytes(graph, t, p->batch);
    p->footprint_graph = graph;
    p->footprint_batch = p->batch;
    p->footprint_bytes = weights / ranks + values;
    if (p->footprint_bytes > ROTATION_BYTES)
        p->footprint_bytes = ROTATION_BYTES;
    return p->footprint_bytes;
}

static smp_status fill_input(smp__probe_state *p, int slot, void *target)
{
    const smp_dtype dtype = p->graph->tensor[p->op->in[slot]].dtype;
    int64_t min = 0, max = 0;
    if (dtype != SMP_I32)
        return smp__probe_fill(p, target, dtype, in_bytes(p, slot), 1);
    if (!p->op->kind->index_range || !p->op->kind->index_range(p->graph, p->op, slot, &min, &max) ||
        max < min)
        min = max = 0;
    return smp__probe_fill_indices(p, target, in_bytes(p, slot), min, max);
}

static char *set_at(const smp__probe_state *p, int set)
{
    return p->pool + p->place.shared_bytes + (int64_t)set * p->place.set_bytes;
}

static smp_status fill_weights(smp__probe_state *p, char *set)
{
    const smp__places *at = &p->place;
    for (int i = 0; i < p->op->n_param; i++) {
        float *weight = (float *)(set + at->param[i]);
        SMP_TRY(smp__probe_fill(p, weight, SMP_F32, param_bytes(p, p->op, i), WEIGHT_SCALE));
        if (smp_precision_is_half(p->precision))
            SMP_TRY(p->device->round16(p->device_context, smp_precision_dtype(p->precision),
                                       set + at->param16[i], weight, param_bytes(p, p->op, i) / 4));
    }
    return SMP_OK;
}

static smp_status fill_sets(smp__probe_state *p)
{
    const smp__places *at = &p->place;
    char *set = set_at(p, 0);
    SMP_TRY(p->device->zero(p->device_context, set, at->set_bytes));
    for (int i = 0; i < p->op->n_in; i++)
        SMP_TRY(fill_input(p, i, set + at->in[i]));
    SMP_TRY(fill_weights(p, set));
    if (p->before)
        SMP_TRY(smp__probe_fill(p, set + at->before_in, p->graph->tensor[p->before->in[0]].dtype,
                                smp_tensor_bytes(p->graph, p->before->in[0], p->batch), 1));
    for (int i = 1; i < p->sets; i++)
        SMP_TRY(p->device->copy(p->device_context, set_at(p, i), set, at->set_bytes));
    for (int k = 0; k < p->op->n_out; k++)
        SMP_TRY(smp__probe_fill(p, p->pool + at->dout[k], p->graph->tensor[p->op->out + k].dtype,
                                out_bytes(p, k), WEIGHT_SCALE));
    return SMP_OK;
}

/* Forward of a pair as the executor runs it: one kernel, or one after the other. */
static smp_status call_pair(const smp__probe_state *p, const smp_op_call *call, char *base)
{
    const void *in[SMP_OP_MAX_IN] = {call->out[0]};
    const float *param[SMP_OP_MAX_PARAM];
    void *out = base + p->place.next_out;
    smp_op_call next = *call;
    for (int i = 1; i < p->next->n_in; i++)
        in[i] = base + p->place.next_in[i];
    for (int i = 0; i < p->next->n_param; i++)
        param[i] = (const float *)(base + p->place.next_param[i]);
    next.op = p->next;
    next.state = p->next_state;
    next.in = in;
    next.param = param;
    next.out = &out;
    next.aux = base + p->place.next_aux;
    if (p->kernels->forward_fused)
        return p->kernels->forward_fused(call, &next);
    SMP_TRY(p->kernels->forward(call));
    return p->next_kernels->forward(&next);
}

/* The same of backward_input, of the op and of the one before. */
static smp_status call_input_pair(const smp__probe_state *p, const smp_op_call *call, char *base)
{
    const void *in[SMP_OP_MAX_IN] = {base + p->place.before_in};
    float *din[SMP_OP_MAX_IN] = {(float *)(p->pool + p->place.before_din)};
    const float *dout[] = {call->din[0]};
    smp_op_call before = *call;
    before.op = p->before;
    before.state = p->before_state;
    before.in = in;
    before.din = din;
    before.dout = dout;
    if (p->kernels->backward_input_fused)
        return p->kernels->backward_input_fused(call, &before);
    SMP_TRY(p->kernels->backward_input(call));
    return p->before_kernels->backward_input(&before);
}

/* One call of `part` on a set. */
static smp_status call_part(smp__probe_state *p, smp_op_part part, int set)
{
    const smp__places *at = &p->place;
    char *base = set_at(p, set);
    const void *in[SMP_OP_MAX_IN];
    float *din[SMP_OP_MAX_IN], *dparam[SMP_OP_MAX_PARAM];
    void *out[SMP_OP_MAX_OUT];
    const float *dout[SMP_OP_MAX_OUT];
    const float *param[SMP_OP_MAX_PARAM];
    const void *param16[SMP_OP_MAX_PARAM];
    smp_op_call call = {.graph = p->graph, .op = p->op, .batch = p->batch, .state = p->state};
    smp_status (*const kernel[])(const smp_op_call *) = {
        p->kernels->forward, p->joined ? p->kernels->backward : p->kernels->backward_input,
        p->kernels->backward_weight};
    for (int i = 0; i < p->op->n_in; i++) {
        const bool wanted = p->graph->tensor[p->op->in[i]].needs_grad;
        in[i] = base + at->in[i];
        din[i] = wanted ? (float *)(p->pool + at->din[i]) : NULL;
    }
    for (int i = 0; i < p->op->n_param; i++) {
        param[i] = (const float *)(base + at->param[i]);
        param16[i] = base + at->param16[i];
        dparam[i] = (float *)(base + at->dparam[i]);
    }
    for (int k = 0; k < p->op->n_out; k++) {
        out[k] = base + at->out[k];
        dout[k] = (const float *)(p->pool + at->dout[k]);
    }
    call.device = p->device->kernel_context(p->device_context);
    call.in = in;
    call.out = out;
    call.param = param;
    call.param16 = smp_precision_is_half(p->precision) ? param16 : NULL;
    call.aux = at->aux_bytes > 0 ? base + at->aux : NULL;
    call.workspace = at->workspace_bytes > 0 ? p->pool + at->workspace : NULL;
    call.dout = dout;
    call.din = din;
    call.dparam = dparam;
    call.step = (smp_op_step){.training = p->graph->training, .seed = 1, .turn = smp_op_turn(1, 0)};
    if (part == SMP_OP_BACKWARD_INPUT && p->before)
        return call_input_pair(p, &call, base);
    return part == SMP_OP_FORWARD && p->next ? call_pair(p, &call, base) : kernel[part](&call);
}

static bool has_part(const smp__probe_state *p, smp_op_part part)
{
    if (part == SMP_OP_FORWARD)
        return true;
    return part == SMP_OP_BACKWARD_WEIGHT
               ? p->kernels->backward_weight && smp__runs_backward_weight(p->graph, p->op)
               : p->kernels->backward_input && smp__runs_backward_input(p->graph, p->op);
}

void smp__probe_close(void *context)
{
    smp__probe_state *p = context;
    if (p->state && p->kernels->release)
        p->kernels->release(p->state);
    if (p->next_state && p->next_kernels->release)
        p->next_kernels->release(p->next_state);
    if (p->before_state && p->before_kernels->release)
        p->before_kernels->release(p->before_state);
    p->state = p->next_state = p->before_state = NULL;
    p->op = p->next = p->before = NULL;
}

/* Bytes of a set that one run of a part reads or writes. */
static int64_t touched_bytes(const smp__probe_state *p, smp_op_part part)
{
    const bool forward = part == SMP_OP_FORWARD, weight = part == SMP_OP_BACKWARD_WEIGHT;
    smp_op_needs needs;
    int64_t bytes = 0;
    smp_op_needs_get(p->graph, p->op, p->batch, &needs);
    const uint32_t inputs = weight ? needs.weight_grad_in : needs.input_grad_in;
    for (int i = 0; i < p->op->n_in; i++)
        if (forward || (inputs >> i & 1))
            bytes += in_bytes(p, i);
    for (int i = 0; i < p->op->n_param; i++)
        bytes += param_bytes(p, p->op, i);
    for (int k = 0; k < p->op->n_out; k++)
        if (forward || (!weight && needs.input_grad_out >> k & 1))
            bytes += out_bytes(p, k);
    if (forward || (weight ? needs.weight_grad_aux : needs.input_grad_aux))
        bytes += p->place.aux_bytes;
    return bytes > ALIGNMENT ? bytes : ALIGNMENT;
}

/* So many that taking turns touches the footprint before a set comes back. */
static void count_sets(smp__probe_state *p)
{
    const int64_t room = POOL_BYTES / (p->place.set_bytes + 1) + 1;
    int64_t most = room < MAX_SETS ? room : MAX_SETS;
    p->sets = 1;
    for (int part = 0; part < SMP__PROBE_PARTS; part++) {
        int64_t sets = footprint(p) / touched_bytes(p, (smp_op_part)part) + 1;
        p->part_sets[part] = (int)(sets < most ? sets : most);
        if (p->part_sets[part] > p->sets)
            p->sets = p->part_sets[part];
    }
}

static int64_t pool_bytes(const smp__probe_state *p)
{
    return p->place.shared_bytes + p->sets * p->place.set_bytes;
}

/* With the workspace of every way to compute the op, if half of the memory has room for that, and
 * all of it for the op's buffers besides; else with that of our way. */
static bool place_buffers(smp__probe_state *p)
{
    smp_op_needs needs;
    smp_op_needs_get(p->graph, p->op, p->batch, &needs);
    const int64_t most = p->device->products ? needs.measured_workspace_bytes : 0;
    if (most > needs.workspace_bytes && most <= p->memory_limit / 2 &&
        place_with(p, &needs, most)) {
        count_sets(p);
        if (pool_bytes(p) <= p->memory_limit)
            return true;
    }
    const bool ok = place_with(p, &needs, needs.workspace_bytes);
    if (ok)
        count_sets(p);
    return ok;
}

/* Visits all sets, but not in the order of their addresses, which a prefetcher would follow. */
static int stride(int sets)
{
    int step = (int)(0.618 * sets);
    while (step > 1 && smp_common_divisor(sets, step) != 1)
        step--;
    return step > 0 ? step : 1;
}

/* The input made last: the only one that is sure to be warm. */
static int newest_input(const smp_graph *graph, const smp_op *op)
{
    int newest = 0;
    for (int i = 1; i < op->n_in; i++)
        if (graph->tensor[op->in[i]].producer > graph->tensor[op->in[newest]].producer)
            newest = i;
    return newest;
}

static smp_status check_op(const smp__probe_state *p)
{
    if (!p->kernels || !p->kernels->forward)
        return smp_fail_at(smp_op_where(p->graph, p->op), "op '%s' (%s): has no kernel for %s",
                           p->op->name, p->op->kind->name, p->device->name);
    if (p->op->n_in > SMP_OP_MAX_IN || p->op->n_param > SMP_OP_MAX_PARAM)
        return smp_fail_at(smp_op_where(p->graph, p->op),
                           "op '%s': got %d inputs, expected at most %d", p->op->name,
                           (int)p->op->n_in, SMP_OP_MAX_IN);
    return SMP_OK;
}

/* As the first run of a job does, but each rank for itself. */
static smp_status choose_ways(smp__probe_state *p)
{
    smp__choices *choices = p->device->choices ? p->device->choices(p->device_context) : NULL;
    if (!choices)
        return SMP_OK;
    choices->trying = true;
    smp_status status = SMP_OK;
    for (int part = 0; part < SMP__PROBE_PARTS && status == SMP_OK; part++)
        if (has_part(p, (smp_op_part)part))
            status = call_part(p, (smp_op_part)part, 0);
    choices->trying = false;
    SMP_TRY(status);
    SMP_TRY(smp__probe_idle(p));
    smp__choices_judge(choices);
    return SMP_OK;
}

/* Ops that run along, in one kernel with a part of this one's. */
static void find_pairs(smp__probe_state *p)
{
    const int32_t index = (int32_t)(p->op - p->graph->op);
    const bool before = index > 0 && smp_op_fused_backward(p->graph, index - 1);
    p->next = smp_op_fused(p->graph, index) ? p->op + 1 : NULL;
    p->before = before ? p->op - 1 : NULL;
    p->next_kernels = p->next ? p->device->kernels(p->next->kind, p->precision) : NULL;
    p->before_kernels = before ? p->device->kernels(p->before->kind, p->precision) : NULL;
}

static smp_status prepare(const smp__probe_state *p, const smp_op *op,
                          const smp_op_kernels *kernels, void **state)
{
    if (!op || !kernels->prepare)
        return SMP_OK;
    return kernels->prepare(p->graph, op, p->batch, p->device->kernel_context(p->device_context),
                            state);
}

/* Forward on every set makes outputs and aux valid. */
smp_status smp__probe_open(void *context, const smp_graph *graph, const smp_op *op, int64_t batch)
{
    smp__probe_state *p = context;
    smp_status status;
    p->graph = graph;
    p->op = op;
    p->batch = batch;
    p->kernels = p->device->kernels(op->kind, p->precision);
    p->state = p->next_state = p->before_state = NULL;
    find_pairs(p);
    p->next_set = 0;
    p->newest = newest_input(graph, op);
    SMP_TRY(check_op(p));
    if (!place_buffers(p))
        return smp_fail_at(smp_op_where(graph, op), "op '%s': its buffers have no 64-bit size",
                           op->name);
    if (p->device->products)
        p->device->products(p->device_context)->workspace_bytes = p->place.workspace_bytes;
    status = smp__probe_pool(p, pool_bytes(p));
    if (status != SMP_OK)
        return smp_fail_context(status, "op '%s'", op->name);
    status = fill_sets(p);
    if (status == SMP_OK)
        status = prepare(p, op, p->kernels, &p->state);
    if (status == SMP_OK)
        status = prepare(p, p->next, p->next_kernels, &p->next_state);
    if (status == SMP_OK)
        status = prepare(p, p->before, p->before_kernels, &p->before_state);
    if (status == SMP_OK)
        status = choose_ways(p);
    for (int i = 0; i < p->sets && status == SMP_OK; i++)
        status = call_part(p, SMP_OP_FORWARD, i);
    if (status == SMP_OK)
        status = smp__probe_choose(p);
    if (status == SMP_OK)
        status = smp__probe_idle(p);
    if (status != SMP_OK)
        smp__probe_close(p);
    return status;
}

/* Host: call by call, the newest input warmed up outside the clock. */
static smp_status time_calls(smp__probe_state *p, smp_op_part part, int repeat, double *us)
{
    const int sets = p->part_sets[part], step = stride(sets);
    for (int i = 0; i < repeat; i++) {
        double one;
        if (part == SMP_OP_FORWARD && p->op->n_in > 0)
            warm(set_at(p, p->next_set) + p->place.in[p->newest], in_bytes(p, p->newest));
        SMP_TRY(smp__probe_clock_start(p));
        SMP_TRY(call_part(p, part, p->next_set));
        SMP_TRY(smp__probe_clock_stop(p, &one));
        p->next_set = (p->next_set + step) % sets;
        *us += one;
    }
    return SMP_OK;
}

/* Other devices: all calls in one piece, as a step enqueues them. */
static smp_status time_queue(smp__probe_state *p, smp_op_part part, int repeat, double *us)
{
    const int sets = p->part_sets[part], step = stride(sets);
    SMP_TRY(smp__probe_idle(p));
    SMP_TRY(smp__probe_clock_start(p));
    for (int i = 0; i < repeat; i++) {
        SMP_TRY(call_part(p, part, p->next_set));
        p->next_set = (p->next_set + step) % sets;
    }
    return smp__probe_clock_stop(p, us);
}

static smp_status time_part(smp__probe_state *p, smp_op_part part, int repeat, double *us)
{
    *us = 0;
    p->next_set %= p->part_sets[part];
    if (!has_part(p, part))
        return SMP_OK;
    SMP_TRY(p->device->host_memory ? time_calls(p, part, repeat, us)
                                   : time_queue(p, part, repeat, us));
    *us /= repeat;
    return SMP_OK;
}

/* Of a backward that is one call, what it takes beyond the half of the weights. */
static smp_status time_joined(smp__probe_state *p, int repeat, double *us)
{
    double weight_us;
    SMP_TRY(time_part(p, SMP_OP_BACKWARD_WEIGHT, repeat, &weight_us));
    p->joined = true;
    const smp_status status = time_part(p, SMP_OP_BACKWARD_INPUT, repeat, us);
    p->joined = false;
    *us = fmax(*us - weight_us, 0);
    return status;
}

smp_status smp__probe_time(void *context, smp_op_part part, int repeat, double *us)
{
    smp__probe_state *p = context;
    const bool joined = part == SMP_OP_BACKWARD_INPUT && p->kernels && p->kernels->backward &&
                        !p->before && has_part(p, part) && has_part(p, SMP_OP_BACKWARD_WEIGHT);
    return joined ? time_joined(p, repeat, us) : time_part(p, part, repeat, us);
}

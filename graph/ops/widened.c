/* bf16 and fp16 on the CPU. An operator has kernels of its own for bf16 (cpu16), or its fp32
 * kernels run between two conversions: values and gradients are widened into the workspace after
 * the kernels' own, results rounded once. So always in fp16, of which oneDNN 2 has no products on a
 * CPU: weights that the kernels for bf16 multiply as rounded are rounded there too. */
#include <stdlib.h>

#include "graph/math/half.h"
#include "graph/ops/ops.h"

enum { ALIGNMENT = 64 };

/* What the fp32 kernels have prepared, and how it ends. */
typedef struct prepared {
    void *state;
    void (*release)(void *state);
} prepared;

static int64_t aligned(int64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int64_t wide_bytes(const smp_graph *graph, int32_t tensor, int64_t batch)
{
    const smp_tensor *t = &graph->tensor[tensor];
    if (!smp_dtype_is_half(t->dtype))
        return 0;
    return aligned(smp__count(t, batch) * (int64_t)sizeof(float));
}

/* Does the kind compute in the format itself? */
static bool has_own(const smp_op_kind *kind, smp_precision precision)
{
    return kind->cpu16 && smp_precision_dtype(precision) == SMP_BF16;
}

/* Bytes of the widened copy of weight k; 0: the kernels read the fp32 one. */
static int64_t weight_bytes(const smp_graph *graph, const smp_op *op, int32_t k)
{
    if (!(op->kind->rounded >> k & 1))
        return 0;
    return aligned(graph->param[op->param[k]].elements * (int64_t)sizeof(float));
}

int64_t smp_op_half_workspace(const smp_graph *graph, const smp_op *op, int64_t batch,
                              const smp_op_needs *needs)
{
    if (has_own(op->kind, graph->target.precision) || !op->kind->cpu.forward)
        return needs->workspace_bytes;
    int64_t forward = 0, backward = 0;
    const uint32_t in = needs->input_grad_in | needs->weight_grad_in;
    for (int32_t i = 0; i < op->n_in; i++) {
        const int64_t bytes = wide_bytes(graph, op->in[i], batch);
        forward += bytes;
        backward += bytes + (in >> i & 1 ? bytes : 0); /* a gradient is wanted, a value read */
    }
    for (int32_t k = 0; k < op->n_out; k++) {
        const int64_t bytes = wide_bytes(graph, op->out + k, batch);
        forward += bytes;
        backward += bytes + (needs->input_grad_out >> k & 1 ? bytes : 0);
    }
    for (int32_t k = 0; k < op->n_param; k++) {
        forward += weight_bytes(graph, op, k);
        backward += weight_bytes(graph, op, k);
    }
    if (!graph->training)
        backward = 0;
    return aligned(needs->workspace_bytes) + (forward > backward ? forward : backward);
}

/* A call with arrays of its own, and where the next one is placed. */
typedef struct widened {
    smp_op_call call;
    const void *in[SMP_OP_MAX_IN];
    const float *param[SMP_OP_MAX_PARAM];
    void *out[SMP_OP_MAX_OUT];
    const float *dout[SMP_OP_MAX_OUT];
    float *din[SMP_OP_MAX_IN];
    char *place;
} widened;

static float *take_tensor(widened *w, int32_t tensor)
{
    float *made = (float *)w->place;
    w->place += wide_bytes(w->call.graph, tensor, w->call.batch);
    return made;
}

static bool is_half(const smp_op_call *call, int32_t tensor)
{
    return smp_dtype_is_half(call->graph->tensor[tensor].dtype);
}

static int64_t count(const smp_op_call *call, int32_t tensor)
{
    return smp__count(&call->graph->tensor[tensor], call->batch);
}

static const void *widen(widened *w, int32_t tensor, const void *values)
{
    if (!values || !is_half(&w->call, tensor))
        return values;
    float *made = take_tensor(w, tensor);
    smp__from_half(w->call.graph->tensor[tensor].dtype, made, values, count(&w->call, tensor));
    return made;
}

static void narrow(const smp_op_call *call, int32_t tensor, void *to, const void *from)
{
    if (to && is_half(call, tensor))
        smp__to_half(call->graph->tensor[tensor].dtype, to, from, count(call, tensor));
}

static smp_op_needs needs_of(const smp_op_call *call)
{
    smp_op_needs needs = {0};
    if (call->op->kind->needs[SMP_BACKEND_CPU])
        call->op->kind->needs[SMP_BACKEND_CPU](call->graph, call->op, call->batch, &needs);
    return needs;
}

/* Inputs in the mask are widened: what else may be passed has no place. */
static void begin(widened *w, const smp_op_call *call, uint32_t in)
{
    const smp_op_needs needs = needs_of(call);
    w->call = *call;
    w->call.state = call->state ? ((const prepared *)call->state)->state : NULL;
    w->call.in = w->in;
    w->call.out = w->out;
    w->place = (char *)call->workspace + aligned(needs.workspace_bytes);
    for (int32_t i = 0; i < call->op->n_in; i++)
        w->in[i] = in >> i & 1 ? widen(w, call->op->in[i], call->in[i]) : NULL;
}

static void widen_weights(widened *w)
{
    const smp_op_call *call = &w->call;
    for (int32_t k = 0; k < call->op->n_param; k++) {
        const int64_t bytes = weight_bytes(call->graph, call->op, k);
        w->param[k] = bytes > 0 ? (const float *)w->place : call->param[k];
        if (bytes > 0)
            smp__from_half(smp_precision_dtype(call->graph->target.precision), (float *)w->place,
                           call->param16[k], call->graph->param[call->op->param[k]].elements);
        w->place += bytes;
    }
    w->call.param = w->param;
}

static smp_status forward(const smp_op_call *call)
{
    const smp_op *op = call->op;
    widened w;
    begin(&w, call, ~0u);
    widen_weights(&w);
    for (int32_t k = 0; k < op->n_out; k++)
        w.out[k] = is_half(call, op->out + k) ? take_tensor(&w, op->out + k) : call->out[k];
    SMP_TRY(op->kind->cpu.forward(&w.call));
    for (int32_t k = 0; k < op->n_out; k++)
        narrow(call, op->out + k, call->out[k], w.out[k]);
    return SMP_OK;
}

/* What backward reads beside the inputs: outputs that it needs, and their gradients. */
static void begin_backward(widened *w, const smp_op_call *call, uint32_t in, uint32_t out)
{
    const smp_op *op = call->op;
    begin(w, call, in);
    for (int32_t k = 0; k < op->n_out; k++) {
        w->out[k] = out >> k & 1 ? (void *)widen(w, op->out + k, call->out[k]) : NULL;
        w->dout[k] = widen(w, op->out + k, call->dout[k]);
    }
    w->call.dout = w->dout;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp_op *op = call->op;
    const smp_op_needs needs = needs_of(call);
    widened w;
    begin_backward(&w, call, needs.input_grad_in, needs.input_grad_out);
    widen_weights(&w);
    for (int32_t i = 0; i < op->n_in; i++)
        w.din[i] =
            call->din[i] && is_half(call, op->in[i]) ? take_tensor(&w, op->in[i]) : call->din[i];
    w.call.din = w.din;
    SMP_TRY(op->kind->cpu.backward_input(&w.call));
    for (int32_t i = 0; i < op->n_in; i++)
        narrow(call, op->in[i], call->din[i], w.din[i]);
    return SMP_OK;
}

static smp_status backward_weight(const smp_op_call *call)
{
    widened w;
    begin_backward(&w, call, needs_of(call).weight_grad_in, 0);
    return call->op->kind->cpu.backward_weight(&w.call);
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    const smp_op_kernels *kernels = &op->kind->cpu;
    prepared *p = calloc(1, sizeof(*p));
    if (!p)
        return smp_fail_memory(sizeof(*p));
    *state = p;
    p->release = kernels->release;
    return kernels->prepare ? kernels->prepare(graph, op, batch, device, &p->state) : SMP_OK;
}

static void release(void *state)
{
    prepared *p = state;
    if (p->state && p->release)
        p->release(p->state);
    free(p);
}

#define WIDEN(input, weight)                                                                       \
    {                                                                                              \
        .prepare = prepare, .release = release, .forward = forward, .backward_input = input,       \
        .backward_weight = weight                                                                  \
    }

/* [has backward_input][has backward_weight] */
static const smp_op_kernels WIDENED[2][2] = {
    {WIDEN(NULL, NULL), WIDEN(NULL, backward_weight)},
    {WIDEN(backward_input, NULL), WIDEN(backward_input, backward_weight)},
};

const smp_op_kernels *smp_op_cpu_kernels(const smp_op_kind *kind, smp_precision precision)
{
    if (!kind->cpu.forward)
        return NULL;
    if (!smp_precision_is_half(precision))
        return &kind->cpu;
    return has_own(kind, precision)
               ? kind->cpu16
               : &WIDENED[kind->cpu.backward_input != NULL][kind->cpu.backward_weight != NULL];
}

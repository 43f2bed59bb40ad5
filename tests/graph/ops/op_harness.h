/* One operator of a parsed model with all buffers of a call around it, for the operator tests.
 *
 * Outputs, input gradients, saved data and workspace are filled with NaN before each use, every
 * buffer ends in a canary, and backward gets only the values that the operator's `needs` names. */
#ifndef SMP_TESTS_GRAPH_OPS_OP_HARNESS_H
#define SMP_TESTS_GRAPH_OPS_OP_HARNESS_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/random.h"
#include "graph/math/math.h"
#include "graph/model/op.h"

enum { CANARY_BYTES = 64, CANARY = 0xA5, BUFFER_ALIGNMENT = 64 };

typedef struct buffer {
    char *raw;
    void *data; /* 64-byte aligned; NULL if empty */
    size_t bytes;
} buffer;

typedef struct op_run {
    smp_graph *graph;
    const smp_op *op;
    int64_t batch;
    int64_t padding; /* of the batch, its last samples */
    smp_op_needs needs;
    void *state;
    buffer in[SMP_OP_MAX_IN], din[SMP_OP_MAX_IN]; /* din: empty for int32 inputs */
    buffer param[SMP_OP_MAX_PARAM], dparam[SMP_OP_MAX_PARAM];
    buffer out, dout; /* of several outputs one behind the other, as the tests see them */
    buffer outs[SMP_OP_MAX_OUT], douts[SMP_OP_MAX_OUT]; /* then, as the calls see them */
    buffer aux, workspace;
    smp_op_step step;
    const smp_op_joint *joint;
} op_run;

/* `shift` moves the data by whole cache lines, so that two runs see different addresses. */
static inline buffer buffer_make(int64_t bytes, int shift)
{
    buffer b = {0};
    if (bytes == 0)
        return b;
    size_t offset = (size_t)shift * BUFFER_ALIGNMENT;
    size_t total = offset + (size_t)bytes + CANARY_BYTES + BUFFER_ALIGNMENT;
    b.raw = aligned_alloc(BUFFER_ALIGNMENT, total / BUFFER_ALIGNMENT * BUFFER_ALIGNMENT);
    assert_non_null(b.raw);
    b.data = b.raw + offset;
    b.bytes = (size_t)bytes;
    memset((char *)b.data + bytes, CANARY, CANARY_BYTES);
    return b;
}

static inline void buffer_free(buffer *b)
{
    for (int i = 0; b->data && i < CANARY_BYTES; i++)
        assert_int_equal((unsigned char)((char *)b->data)[(int64_t)b->bytes + i], CANARY);
    free(b->raw);
    *b = (buffer){0};
}

static inline void buffer_poison(buffer *b)
{
    for (size_t i = 0; i < b->bytes / sizeof(float); i++)
        ((float *)b->data)[i] = NAN;
}

static inline void assert_same_bits(const buffer *a, const buffer *b)
{
    assert_int_equal(a->bytes, b->bytes);
    if (a->bytes > 0)
        assert_memory_equal(a->data, b->data, a->bytes);
}

/* Uniform in [0, 1); advances *state. */
static inline double random_unit(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    return (double)(smp_random_mix(*state) >> 11) * 0x1p-53;
}

/* From min to max, inclusive. */
static inline int64_t random_int(uint64_t *state, int64_t min, int64_t max)
{
    return min + (int64_t)(random_unit(state) * (double)(max - min + 1));
}

static inline int64_t op_run_in_elements(const op_run *run, int slot)
{
    return (int64_t)(run->in[slot].bytes / 4);
}

static inline bool op_run_in_is_float(const op_run *run, int slot)
{
    return run->graph->tensor[run->op->in[slot]].dtype == SMP_F32;
}

static inline bool op_run_is_running(const op_run *run, int slot)
{
    return run->graph->param[run->op->param[slot]].running;
}

static inline void op_run_allocate(op_run *run, int shift)
{
    const smp_graph *graph = run->graph;
    const smp_op *op = run->op;
    int64_t out_bytes = 0;
    for (int k = 0; k < op->n_out; k++) {
        int64_t bytes = smp_tensor_bytes(graph, op->out + k, run->batch);
        run->outs[k] = buffer_make(op->n_out > 1 ? bytes : 0, shift + k);
        run->douts[k] = buffer_make(op->n_out > 1 ? bytes : 0, shift + 2 * k);
        out_bytes += bytes;
    }
    for (int i = 0; i < op->n_in; i++) {
        int64_t bytes = smp_tensor_bytes(graph, op->in[i], run->batch);
        run->in[i] = buffer_make(bytes, shift + i);
        run->din[i] = buffer_make(op_run_in_is_float(run, i) ? bytes : 0, shift + 2 * i);
    }
    for (int i = 0; i < op->n_param; i++) {
        int64_t bytes = graph->param[op->param[i]].elements * (int64_t)sizeof(float);
        run->param[i] = buffer_make(bytes, shift);
        run->dparam[i] = buffer_make(bytes, shift);
    }
    run->out = buffer_make(out_bytes, shift);
    run->dout = buffer_make(out_bytes, shift);
    run->aux = buffer_make(run->needs.aux_bytes * run->batch, shift);
    run->workspace = buffer_make(run->needs.workspace_bytes, shift);
}

/* Parses `yaml` and prepares its op `name`. Frees with op_run_close. */
static inline void op_run_open(op_run *run, const char *yaml, const char *name, int64_t batch,
                               int shift)
{
    *run =
        (op_run){.batch = batch, .step = {.training = true, .seed = 7, .turn = smp_op_turn(1, 0)}};
    if (smp_graph_parse("model.yaml", yaml, strlen(yaml), &run->graph) != SMP_OK)
        fail_msg("%s\n%s", smp_last_error(), yaml);
    int32_t index = smp_graph_find_op(run->graph, name);
    assert_true(index >= 0);
    run->op = &run->graph->op[index];
    smp_op_needs_get(run->graph, run->op, batch, &run->needs);
    op_run_allocate(run, shift);
    const smp_op_kernels *cpu = &run->op->kind->cpu;
    if (cpu->prepare)
        assert_int_equal(cpu->prepare(run->graph, run->op, batch, NULL, &run->state), SMP_OK);
}

static inline void op_run_free_buffers(op_run *run)
{
    for (int i = 0; i < run->op->n_in; i++) {
        buffer_free(&run->in[i]);
        buffer_free(&run->din[i]);
    }
    for (int i = 0; i < run->op->n_param; i++) {
        buffer_free(&run->param[i]);
        buffer_free(&run->dparam[i]);
    }
    for (int k = 0; k < run->op->n_out; k++) {
        buffer_free(&run->outs[k]);
        buffer_free(&run->douts[k]);
    }
    buffer_free(&run->out);
    buffer_free(&run->dout);
    buffer_free(&run->aux);
    buffer_free(&run->workspace);
}

static inline void op_run_close(op_run *run)
{
    if (run->op->kind->cpu.release)
        run->op->kind->cpu.release(run->state);
    op_run_free_buffers(run);
    smp_graph_destroy(run->graph);
}

/* Inputs, weights, gradient of the output and accumulators from another run of the same model. */
static inline void op_run_copy_values(op_run *to, const op_run *from)
{
    for (int i = 0; i < to->op->n_in; i++)
        memcpy(to->in[i].data, from->in[i].data, to->in[i].bytes);
    for (int i = 0; i < to->op->n_param; i++) {
        memcpy(to->param[i].data, from->param[i].data, to->param[i].bytes);
        memcpy(to->dparam[i].data, from->dparam[i].data, to->dparam[i].bytes);
    }
    memcpy(to->dout.data, from->dout.data, to->dout.bytes);
    to->step = from->step;
}

/* Of a buffer that is batched: where run->padding begins, and its elements. */
static inline float *op_run_padding(const op_run *run, const buffer *b, int64_t *elements)
{
    int64_t sample = (int64_t)(b->bytes / 4) / run->batch;
    *elements = run->padding * sample;
    return (float *)b->data + (run->batch - run->padding) * sample;
}

/* Padding that must not be read: NaN, and no index. */
static inline void op_run_poison_padding(op_run *run)
{
    for (int i = 0; i < run->op->n_in; i++) {
        int64_t n;
        float *padding = op_run_padding(run, &run->in[i], &n);
        for (int64_t e = 0; e < n; e++)
            padding[e] = NAN;
    }
}

/* The arrays that a call points to. */
typedef struct op_arrays {
    const void *in[SMP_OP_MAX_IN];
    const float *param[SMP_OP_MAX_PARAM];
    float *din[SMP_OP_MAX_IN], *dparam[SMP_OP_MAX_PARAM];
    void *out[SMP_OP_MAX_OUT];
    const float *dout[SMP_OP_MAX_OUT];
} op_arrays;

/* From `whole` to the buffers of several outputs, or back. */
static inline void op_run_move_outs(const op_run *run, const buffer *whole, const buffer *parts,
                                    bool join)
{
    size_t at = 0;
    for (int k = 0; k < run->op->n_out && run->op->n_out > 1; at += parts[k++].bytes) {
        char *place = (char *)whole->data + at;
        memcpy(join ? place : parts[k].data, join ? parts[k].data : place, parts[k].bytes);
    }
}

/* The outputs in the mask; the others are passed as NULL. */
static inline void op_run_outs(const op_run *run, uint32_t mask, op_arrays *arrays,
                               smp_op_call *call)
{
    for (int k = 0; k < run->op->n_out; k++)
        if (mask >> k & 1)
            arrays->out[k] = run->op->n_out > 1 ? run->outs[k].data : run->out.data;
    call->out = arrays->out;
}

static inline void op_run_backward_outs(const op_run *run, uint32_t mask, op_arrays *arrays,
                                        smp_op_call *call)
{
    op_run_move_outs(run, &run->out, run->outs, false);
    op_run_move_outs(run, &run->dout, run->douts, false);
    op_run_outs(run, mask, arrays, call);
    for (int k = 0; k < run->op->n_out; k++)
        arrays->dout[k] = run->op->n_out > 1 ? run->douts[k].data : run->dout.data;
    call->dout = arrays->dout;
}

static inline smp_op_call op_run_call(const op_run *run, op_arrays *arrays)
{
    for (int i = 0; i < run->op->n_param; i++)
        arrays->param[i] = run->param[i].data;
    smp_op_call call = {
        .graph = run->graph,
        .op = run->op,
        .batch = run->batch,
        .padding = run->padding,
        .state = run->state,
        .in = arrays->in,
        .param = arrays->param,
        .workspace = run->workspace.data,
        .din = arrays->din,
        .dparam = arrays->dparam,
        .step = run->step,
        .joint = run->joint,
    };
    call.step.samples = run->batch - run->padding;
    return call;
}

static inline smp_status op_run_forward(op_run *run)
{
    op_arrays arrays = {0};
    for (int i = 0; i < run->op->n_in; i++)
        arrays.in[i] = run->in[i].data;
    buffer_poison(&run->out);
    for (int k = 0; k < run->op->n_out; k++)
        buffer_poison(&run->outs[k]);
    buffer_poison(&run->aux);
    buffer_poison(&run->workspace);
    smp_op_call call = op_run_call(run, &arrays);
    op_run_outs(run, ~0u, &arrays, &call);
    call.aux = run->aux.data;
    smp_status status = run->op->kind->cpu.forward(&call);
    op_run_move_outs(run, &run->out, run->outs, true);
    return status;
}

/* Gradients of the inputs in the mask `wanted`; the others are passed as NULL. */
static inline void op_run_backward_input(op_run *run, uint32_t wanted)
{
    for (int i = 0; run->op->kind->passes_dout && i < run->op->n_in; i++)
        if (!(wanted >> i & 1))
            buffer_poison(&run->din[i]);
        else if (run->din[i].data)
            memcpy(run->din[i].data, run->dout.data, run->din[i].bytes);
    if (!run->op->kind->cpu.backward_input)
        return;
    op_arrays arrays = {0};
    for (int i = 0; i < run->op->n_in; i++) {
        arrays.in[i] = run->needs.input_grad_in >> i & 1 ? run->in[i].data : NULL;
        buffer_poison(&run->din[i]);
        arrays.din[i] = wanted >> i & 1 ? run->din[i].data : NULL;
    }
    buffer_poison(&run->workspace);
    smp_op_call call = op_run_call(run, &arrays);
    op_run_backward_outs(run, run->needs.input_grad_out, &arrays, &call);
    call.aux = run->needs.input_grad_aux ? run->aux.data : NULL;
    assert_int_equal(run->op->kind->cpu.backward_input(&call), SMP_OK);
}

static inline void op_run_weight_gradient(op_run *run, bool fresh)
{
    if (!run->op->kind->cpu.backward_weight || run->op->n_param == 0)
        return;
    op_arrays arrays = {0};
    for (int i = 0; i < run->op->n_in; i++)
        arrays.in[i] = run->needs.weight_grad_in >> i & 1 ? run->in[i].data : NULL;
    for (int i = 0; i < run->op->n_param; i++)
        arrays.dparam[i] = run->dparam[i].data;
    buffer_poison(&run->workspace);
    smp_op_call call = op_run_call(run, &arrays);
    op_run_backward_outs(run, 0, &arrays, &call);
    call.aux = run->needs.weight_grad_aux ? run->aux.data : NULL;
    call.fresh = fresh;
    assert_int_equal(run->op->kind->cpu.backward_weight(&call), SMP_OK);
}

/* Adds to run->dparam. */
static inline void op_run_backward_weight(op_run *run)
{
    op_run_weight_gradient(run, false);
}

#endif

/* The buffers of one operator on a GPU, beside those of an op_run on the host, and its calls.
 *
 * Device memory of an op starts 64 bytes after a multiple of 128, so nothing has more alignment
 * than is promised, and it is full of 0xFF: a NaN in fp32, bf16 and fp16, before, after and in
 * every output, saved value and workspace. What is read out of bounds makes NaN, what is written
 * there is seen. */
#ifndef SMP_TESTS_TEST_CUDA_OPS_HARNESS_H
#define SMP_TESTS_TEST_CUDA_OPS_HARNESS_H

#include "tests/cuda/device_array.h"
#include "tests/graph/ops/op_values.h"

enum { GUARD_BYTES = 64, GUARD = 0xFF };

typedef struct device_buffer {
    char *raw;
    void *data; /* NULL if empty */
    int64_t bytes;
    int64_t offset; /* of data in raw */
} device_buffer;

/* One op of a graph whose target is a GPU. */
typedef struct device_run {
    const smp_graph *graph;
    const smp_op *op;
    const smp_op_kernels *kernels;
    smp_op_needs needs;
    void *state;
    int64_t batch;
    device_buffer in[SMP_OP_MAX_IN], din[SMP_OP_MAX_IN];
    device_buffer param[SMP_OP_MAX_PARAM], param16[SMP_OP_MAX_PARAM], dparam[SMP_OP_MAX_PARAM];
    device_buffer out, dout, aux, workspace; /* outputs as in op_run */
    device_buffer outs[SMP_OP_MAX_OUT], douts[SMP_OP_MAX_OUT];
    const void *plus; /* of calls of backward_input; maybe din[0].data */
    bool fresh;       /* of calls of backward_weight */
} device_run;

/* What the calls of an op left behind, byte for byte. */
typedef struct device_results {
    void *out, *din[SMP_OP_MAX_IN], *dparam[SMP_OP_MAX_PARAM];
} device_results;

static inline void cuda_ok(cudaError_t code)
{
    if (code != cudaSuccess)
        fail_msg("%s", cudaGetErrorString(code));
}

static inline device_buffer device_buffer_make(int64_t bytes, int shift)
{
    device_buffer b = {.bytes = bytes, .offset = 64 + 128 * (int64_t)shift};
    if (bytes == 0)
        return b;
    size_t total = (size_t)(b.offset + bytes + GUARD_BYTES);
    cuda_ok(cudaMalloc((void **)&b.raw, total));
    cuda_ok(cudaMemset(b.raw, GUARD, total));
    b.data = b.raw + b.offset;
    return b;
}

static inline void device_buffer_free(device_buffer *b)
{
    if (!b->raw)
        return;
    unsigned char guard[2][GUARD_BYTES];
    cuda_ok(
        cudaMemcpy(guard[0], (char *)b->data - GUARD_BYTES, GUARD_BYTES, cudaMemcpyDeviceToHost));
    cuda_ok(cudaMemcpy(guard[1], (char *)b->data + b->bytes, GUARD_BYTES, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 2 * GUARD_BYTES; i++)
        assert_int_equal(guard[i / GUARD_BYTES][i % GUARD_BYTES], GUARD);
    cuda_ok(cudaFree(b->raw));
    *b = (device_buffer){0};
}

static inline void device_buffer_poison(device_buffer *b)
{
    if (b->data)
        cuda_ok(cudaMemset(b->data, GUARD, (size_t)b->bytes));
}

/* To what a tensor of the type can hold: of four bytes, all. */
static inline void round_all(smp_dtype half, const buffer *b)
{
    for (size_t i = 0; smp_dtype_is_half(half) && i < b->bytes / 4; i++)
        ((float *)b->data)[i] = half_value(half, half_bits(half, ((float *)b->data)[i]));
}

/* Host values of 4 bytes into a buffer of the type; floats become 16 bits there. */
static inline void device_put(device_buffer *to, smp_dtype dtype, const buffer *from)
{
    if (!to->data)
        return;
    assert_int_equal(to->bytes, (int64_t)from->bytes / 4 * smp_dtype_bytes(dtype));
    void *values = malloc(from->bytes);
    assert_non_null(values);
    memcpy(values, from->data, from->bytes);
    for (size_t i = 0; smp_dtype_is_half(dtype) && i < from->bytes / 4; i++)
        ((uint16_t *)values)[i] = half_bits(dtype, ((float *)from->data)[i]);
    cuda_ok(cudaMemcpy(to->data, values, (size_t)to->bytes, cudaMemcpyHostToDevice));
    free(values);
}

/* The bytes of a buffer; NULL if it has none. */
static inline void *device_get(const device_buffer *from)
{
    if (!from->data)
        return NULL;
    void *bytes = malloc((size_t)from->bytes);
    assert_non_null(bytes);
    cuda_ok(cudaMemcpy(bytes, from->data, (size_t)from->bytes, cudaMemcpyDeviceToHost));
    return bytes;
}

/* Tensors of the micro-batch one after another, [C, H, W] on the host: those that are channels_last
 * to [H, W, C] and back. */
static inline void lay_out(const smp_graph *graph, int32_t first, int32_t n, int64_t batch,
                           void *bytes, bool as_it_lies)
{
    char *at = bytes;
    for (const smp_tensor *t = graph->tensor + first; at && t < graph->tensor + first + n; t++) {
        const size_t size = (size_t)smp_dtype_bytes(t->dtype), values = (size_t)t->elements;
        const size_t channels = (size_t)t->shape.dim[0], samples = t->batched ? (size_t)batch : 1;
        char *plain = t->channels_last ? malloc(values * size) : NULL;
        for (size_t s = 0; s < samples; s++, at += values * size) {
            if (plain)
                memcpy(plain, at, values * size);
            for (size_t i = 0; plain && i < values; i++) {
                const size_t last = i % (values / channels) * channels + i / (values / channels);
                memcpy(at + (as_it_lies ? last : i) * size, plain + (as_it_lies ? i : last) * size,
                       size);
            }
        }
        free(plain);
    }
}

static inline float value_of(const void *bytes, smp_dtype dtype, int64_t i)
{
    return smp_dtype_is_half(dtype) ? half_value(dtype, ((const uint16_t *)bytes)[i])
                                    : ((const float *)bytes)[i];
}

/* Parses a model for a GPU. */
static inline smp_graph *device_graph(const char *yaml, smp_precision precision)
{
    smp_graph *graph = NULL;
    check(smp_graph_parse("model.yaml", yaml, strlen(yaml), &graph));
    check(smp_graph_set_target(graph, (smp_target){SMP_BACKEND_CUDA, precision}));
    return graph;
}

/* Has images of an op's inputs, of its outputs or of both lie channels last. False: the kind does
 * not allow that, or there are none. */
static inline bool device_graph_lay_out(smp_graph *graph, const smp_op *op, bool inputs,
                                        bool outputs)
{
    smp_tensor *tensor = (smp_tensor *)graph->tensor; /* the graph's own memory */
    const smp_image_layout layout =
        op->kind->layout ? op->kind->layout(graph, op) : SMP_LAYOUT_PLAIN;
    bool any = false;
    for (int32_t t = 0; t < graph->n_tensor; t++) {
        const bool is_output = t >= op->out && t < op->out + op->n_out;
        tensor[t].channels_last = layout != SMP_LAYOUT_PLAIN && tensor[t].shape.n_dim == 3 &&
                                  tensor[t].dtype != SMP_I32 && (is_output ? outputs : inputs);
        any |= tensor[t].channels_last;
    }
    return any && (layout == SMP_LAYOUT_EACH || (inputs && outputs));
}

static inline smp_dtype device_dtype(const device_run *run, int32_t tensor)
{
    return run->graph->tensor[tensor].dtype;
}

/* `shift` moves every buffer by as many times 128 bytes, and more. */
static inline void device_run_open(device_run *run, const smp_graph *graph, const char *name,
                                   int64_t batch, int shift)
{
    const smp_op *op = &graph->op[smp_graph_find_op(graph, name)];
    *run = (device_run){.graph = graph, .op = op, .batch = batch};
    run->kernels = smp_op_cuda_kernels(op->kind);
    assert_non_null(run->kernels);
    cuda.precision = graph->target.precision;
    smp_op_needs_get(graph, op, batch, &run->needs);
    for (int i = 0; i < op->n_in; i++) {
        int64_t bytes = smp_tensor_bytes(graph, op->in[i], batch);
        bool is_float = device_dtype(run, op->in[i]) != SMP_I32;
        run->in[i] = device_buffer_make(bytes, shift + i);
        run->din[i] = device_buffer_make(is_float ? bytes : 0, shift + 2 * i);
    }
    for (int i = 0; i < op->n_param; i++) {
        int64_t elements = graph->param[op->param[i]].elements;
        bool is_half = smp_precision_is_half(graph->target.precision);
        run->param[i] = device_buffer_make(4 * elements, shift);
        run->param16[i] = device_buffer_make(is_half ? 2 * elements : 0, shift);
        run->dparam[i] = device_buffer_make(4 * elements, shift);
    }
    int64_t out_bytes = 0;
    for (int k = 0; k < op->n_out; k++) {
        int64_t bytes = smp_tensor_bytes(graph, op->out + k, batch);
        run->outs[k] = device_buffer_make(op->n_out > 1 ? bytes : 0, shift + k);
        run->douts[k] = device_buffer_make(op->n_out > 1 ? bytes : 0, shift + 2 * k);
        out_bytes += bytes;
    }
    run->out = device_buffer_make(out_bytes, shift);
    run->dout = device_buffer_make(out_bytes, shift);
    run->aux = device_buffer_make(run->needs.aux_bytes * batch, shift);
    run->workspace = device_buffer_make(run->needs.workspace_bytes, shift);
    if (run->kernels->prepare)
        check(run->kernels->prepare(graph, op, batch, &cuda, &run->state));
}

static inline void device_run_close(device_run *run)
{
    if (run->kernels->release)
        run->kernels->release(run->state);
    for (int i = 0; i < run->op->n_in; i++) {
        device_buffer_free(&run->in[i]);
        device_buffer_free(&run->din[i]);
    }
    for (int i = 0; i < run->op->n_param; i++) {
        device_buffer_free(&run->param[i]);
        device_buffer_free(&run->param16[i]);
        device_buffer_free(&run->dparam[i]);
    }
    for (int k = 0; k < run->op->n_out; k++) {
        device_buffer_free(&run->outs[k]);
        device_buffer_free(&run->douts[k]);
    }
    device_buffer_free(&run->out);
    device_buffer_free(&run->dout);
    device_buffer_free(&run->aux);
    device_buffer_free(&run->workspace);
}

/* Tensors `first` and so many more, in whatever order they lie. */
static inline void device_put_tensors(const device_run *run, device_buffer *to, int32_t first,
                                      int32_t n, const buffer *from)
{
    device_put(to, device_dtype(run, first), from);
    void *bytes = device_get(to);
    lay_out(run->graph, first, n, run->batch, bytes, true);
    if (bytes)
        cuda_ok(cudaMemcpy(to->data, bytes, (size_t)to->bytes, cudaMemcpyHostToDevice));
    free(bytes);
}

static inline void *device_get_tensors(const device_run *run, const device_buffer *from,
                                       int32_t first, int32_t n)
{
    void *bytes = device_get(from);
    lay_out(run->graph, first, n, run->batch, bytes, false);
    return bytes;
}

/* Inputs, weights, gradient of the output and accumulators of the host's run of the same model. */
static inline void device_run_put(device_run *run, const op_run *host)
{
    for (int i = 0; i < run->op->n_in; i++)
        device_put_tensors(run, &run->in[i], run->op->in[i], 1, &host->in[i]);
    for (int i = 0; i < run->op->n_param; i++) {
        device_put(&run->param[i], SMP_F32, &host->param[i]);
        device_put(&run->param16[i], smp_precision_dtype(run->graph->target.precision),
                   &host->param[i]);
        device_put(&run->dparam[i], SMP_F32, &host->dparam[i]);
    }
    device_put_tensors(run, &run->dout, run->op->out, run->op->n_out, &host->dout);
}

typedef struct device_arrays {
    const void *in[SMP_OP_MAX_IN], *param16[SMP_OP_MAX_PARAM];
    const float *param[SMP_OP_MAX_PARAM];
    float *din[SMP_OP_MAX_IN], *dparam[SMP_OP_MAX_PARAM];
    void *out[SMP_OP_MAX_OUT];
    const float *dout[SMP_OP_MAX_OUT];
} device_arrays;

/* From `whole` to the buffers of several outputs, or back. */
static inline void device_move_outs(const device_run *run, const device_buffer *whole,
                                    const device_buffer *parts, bool join)
{
    int64_t at = 0;
    for (int k = 0; k < run->op->n_out && run->op->n_out > 1; at += parts[k++].bytes) {
        char *place = (char *)whole->data + at;
        cuda_ok(cudaMemcpy(join ? place : parts[k].data, join ? parts[k].data : place,
                           (size_t)parts[k].bytes, cudaMemcpyDeviceToDevice));
    }
}

/* The outputs in the mask; the others are passed as NULL. */
static inline void device_outs(const device_run *run, uint32_t mask, device_arrays *arrays,
                               smp_op_call *call)
{
    for (int k = 0; k < run->op->n_out; k++)
        if (mask >> k & 1)
            arrays->out[k] = run->op->n_out > 1 ? run->outs[k].data : run->out.data;
    call->out = arrays->out;
}

static inline void device_backward_outs(const device_run *run, uint32_t mask, device_arrays *arrays,
                                        smp_op_call *call)
{
    device_move_outs(run, &run->out, run->outs, false);
    device_move_outs(run, &run->dout, run->douts, false);
    device_outs(run, mask, arrays, call);
    for (int k = 0; k < run->op->n_out; k++)
        arrays->dout[k] = run->op->n_out > 1 ? run->douts[k].data : run->dout.data;
    call->dout = arrays->dout;
}

/* A call with nothing but what every call has, and poison in the workspaces. */
static inline smp_op_call device_call(device_run *run, const op_run *host, device_arrays *arrays)
{
    *arrays = (device_arrays){0};
    bool is_half = smp_precision_is_half(run->graph->target.precision);
    for (int i = 0; i < run->op->n_param; i++) {
        arrays->param[i] = run->param[i].data;
        arrays->param16[i] = run->param16[i].data;
    }
    device_buffer_poison(&run->workspace);
    cuda_ok(cudaMemset(cuda.workspace, GUARD, (size_t)cuda.workspace_bytes));
    smp_op_call call = {
        .graph = run->graph,
        .op = run->op,
        .batch = run->batch,
        .padding = host->padding,
        .state = run->state,
        .in = arrays->in,
        .device = &cuda,
        .param = arrays->param,
        .param16 = is_half ? arrays->param16 : NULL,
        .workspace = run->workspace.data,
        .din = arrays->din,
        .dparam = arrays->dparam,
        .step = host->step,
    };
    call.step.samples = run->batch - host->padding;
    return call;
}

/* The call's kernels were enqueued and have run. */
static inline void device_wait(smp_status status)
{
    check(status);
    cuda_ok(cudaStreamSynchronize(cuda.stream));
}

static inline smp_op_call device_forward_call(device_run *run, const op_run *host,
                                              device_arrays *arrays)
{
    smp_op_call call = device_call(run, host, arrays);
    for (int i = 0; i < run->op->n_in; i++)
        arrays->in[i] = run->in[i].data;
    device_buffer_poison(&run->out);
    for (int k = 0; k < run->op->n_out; k++)
        device_buffer_poison(&run->outs[k]);
    device_buffer_poison(&run->aux);
    device_outs(run, ~0u, arrays, &call);
    call.aux = run->aux.data;
    return call;
}

static inline void device_forward(device_run *run, const op_run *host)
{
    device_arrays arrays;
    smp_op_call call = device_forward_call(run, host, &arrays);
    device_wait(run->kernels->forward(&call));
    device_move_outs(run, &run->out, run->outs, true);
}

/* Gradients of the inputs in the mask `wanted`; the others are passed as NULL. */
static inline void device_backward_input(device_run *run, const op_run *host, uint32_t wanted)
{
    for (int i = 0; run->op->kind->passes_dout && i < run->op->n_in; i++)
        if (wanted >> i & 1 && run->din[i].data)
            cuda_ok(cudaMemcpy(run->din[i].data, run->dout.data, (size_t)run->din[i].bytes,
                               cudaMemcpyDeviceToDevice));
    if (!run->kernels->backward_input)
        return;
    device_arrays arrays;
    smp_op_call call = device_call(run, host, &arrays);
    for (int i = 0; i < run->op->n_in; i++) {
        arrays.in[i] = run->needs.input_grad_in >> i & 1 ? run->in[i].data : NULL;
        if (!run->plus || run->plus != run->din[i].data)
            device_buffer_poison(&run->din[i]);
        arrays.din[i] = wanted >> i & 1 ? run->din[i].data : NULL;
    }
    device_backward_outs(run, run->needs.input_grad_out, &arrays, &call);
    call.aux = run->needs.input_grad_aux ? run->aux.data : NULL;
    call.plus = run->plus;
    device_wait(run->kernels->backward_input(&call));
}

/* Adds to run->dparam, or writes it. */
static inline void device_backward_weight(device_run *run, const op_run *host)
{
    if (!run->kernels->backward_weight || run->op->n_param == 0)
        return;
    device_arrays arrays;
    smp_op_call call = device_call(run, host, &arrays);
    for (int i = 0; i < run->op->n_in; i++)
        arrays.in[i] = run->needs.weight_grad_in >> i & 1 ? run->in[i].data : NULL;
    for (int i = 0; i < run->op->n_param; i++)
        arrays.dparam[i] = run->dparam[i].data;
    device_backward_outs(run, 0, &arrays, &call);
    call.aux = run->needs.weight_grad_aux ? run->aux.data : NULL;
    call.fresh = run->fresh;
    device_wait(run->kernels->backward_weight(&call));
}

/* Both as one call. */
static inline void device_backward(device_run *run, const op_run *host)
{
    const smp_op_needs *needs = &run->needs;
    device_arrays arrays;
    smp_op_call call = device_call(run, host, &arrays);
    for (int i = 0; i < run->op->n_in; i++) {
        const uint32_t read = needs->input_grad_in | needs->weight_grad_in;
        arrays.in[i] = read >> i & 1 ? run->in[i].data : NULL;
        if (!run->plus || run->plus != run->din[i].data)
            device_buffer_poison(&run->din[i]);
        arrays.din[i] = run->din[i].data;
    }
    for (int i = 0; i < run->op->n_param; i++)
        arrays.dparam[i] = run->dparam[i].data;
    device_backward_outs(run, needs->input_grad_out, &arrays, &call);
    call.aux = needs->input_grad_aux || needs->weight_grad_aux ? run->aux.data : NULL;
    call.plus = run->plus;
    call.fresh = run->fresh;
    device_wait(run->kernels->backward(&call));
}

static inline device_results device_results_get(const device_run *run)
{
    const smp_op *op = run->op;
    device_results r = {.out = device_get_tensors(run, &run->out, op->out, op->n_out)};
    for (int i = 0; i < op->n_in; i++)
        r.din[i] = device_get_tensors(run, &run->din[i], op->in[i], 1);
    for (int i = 0; i < run->op->n_param; i++)
        r.dparam[i] = device_get(&run->dparam[i]);
    return r;
}

static inline void device_results_free(device_results *r)
{
    free(r->out);
    for (int i = 0; i < SMP_OP_MAX_IN; i++)
        free(r->din[i]);
    for (int i = 0; i < SMP_OP_MAX_PARAM; i++)
        free(r->dparam[i]);
}

#endif

/* What every operator kind needs: shapes, the common checks of `infer`, and look-ups in a kind. */
#include "graph/model/op.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MAX_ELEMENTS ((int64_t)1 << 40)

smp_status smp_infer_fail(const smp_infer *infer, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    if (vsnprintf(text, sizeof text, format, args) < 0)
        text[0] = '\0';
    va_end(args);
    return smp_fail_at(infer->where, "op '%s' (%s): %s", infer->op->name, infer->op->kind->name,
                       text);
}

char *smp_shape_format(char *buffer, size_t size, const smp_shape *shape)
{
    size_t used = 0;
    if (size == 0)
        return buffer;
    for (int d = 0; d < shape->n_dim && used < size; d++) {
        int n = snprintf(buffer + used, size - used, "%s%lld", d == 0 ? "[" : ", ",
                         (long long)shape->dim[d]);
        used += n > 0 ? (size_t)n : 0;
    }
    if (used < size)
        snprintf(buffer + used, size - used, "%s", shape->n_dim > 0 ? "]" : "[]");
    return buffer;
}

bool smp_shape_equal(const smp_shape *a, const smp_shape *b)
{
    if (a->n_dim != b->n_dim)
        return false;
    for (int d = 0; d < a->n_dim; d++) {
        if (a->dim[d] != b->dim[d])
            return false;
    }
    return true;
}

int64_t smp_shape_elements(const smp_shape *shape)
{
    int64_t elements = 1;
    for (int d = 0; d < shape->n_dim; d++) {
        if (shape->dim[d] < 0 || __builtin_mul_overflow(elements, shape->dim[d], &elements) ||
            elements > MAX_ELEMENTS)
            return -1;
    }
    return elements;
}

smp_status smp_infer_float(const smp_infer *infer, int input)
{
    if (infer->in[input]->dtype == SMP_F32)
        return SMP_OK;
    return smp_infer_fail(infer, "input %d '%s' holds int32, expected float32", input,
                          infer->in[input]->name);
}

smp_status smp_infer_dims(const smp_infer *infer, int input, int min_dims, int max_dims)
{
    const smp_tensor *t = infer->in[input];
    int n = t->shape.n_dim;
    if (n >= min_dims && n <= max_dims)
        return SMP_OK;
    char shape[160];
    smp_shape_format(shape, sizeof shape, &t->shape);
    if (min_dims == max_dims)
        return smp_infer_fail(infer,
                              "input %d '%s' has shape %s per sample, expected %d dimension%s",
                              input, t->name, shape, min_dims, min_dims == 1 ? "" : "s");
    if (max_dims >= SMP_MAX_DIMS)
        return smp_infer_fail(infer,
                              "input %d '%s' has shape %s per sample, expected at least %d "
                              "dimension%s",
                              input, t->name, shape, min_dims, min_dims == 1 ? "" : "s");
    return smp_infer_fail(infer,
                          "input %d '%s' has shape %s per sample, expected %d to %d dimensions",
                          input, t->name, shape, min_dims, max_dims);
}

int smp_op_attr_index(const smp_op_kind *kind, const char *name)
{
    for (int i = 0; kind->attrs && kind->attrs[i].name; i++) {
        if (strcmp(kind->attrs[i].name, name) == 0)
            return i;
    }
    return -1;
}

void smp_op_needs_get(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs)
{
    *needs = (smp_op_needs){0};
    smp_op_needs_of *const *of = op->kind->needs;
    smp_op_needs_of *own = of[graph->target.backend];
    own = own ? own : of[SMP_BACKEND_CPU];
    if (own)
        own(graph, op, batch, needs);
    if (!op->kind->passes_dout && smp_op_passes_dout(graph, op)) {
        needs->input_grad_in = needs->input_grad_out = 0;
        needs->input_grad_aux = false;
    }
    if (smp_backend_of(graph->target)->cpu_kernels &&
        smp_precision_is_half(graph->target.precision))
        needs->workspace_bytes = smp_op_half_workspace(graph, op, batch, needs);
}

bool smp_op_fused(const smp_graph *graph, int32_t index)
{
    const smp_op *op = &graph->op[index];
    return smp_backend_of(graph->target)->fuses && index + 1 < graph->n_op && op->kind->fuses &&
           op->kind->fuses(graph, op, op + 1);
}

bool smp_tensor_is_read_once(const smp_graph *graph, int32_t tensor)
{
    return graph->consumer_begin[tensor + 1] - graph->consumer_begin[tensor] == 1 &&
           graph->loss != tensor;
}

bool smp_op_tied_forward(const smp_graph *graph, int32_t index)
{
    return smp_op_fused(graph, index) && !graph->op[index].kind->pairs_alike;
}

static bool reads_alone(const smp_graph *graph, const smp_op *op)
{
    for (int32_t slot = 0; slot < op->n_in; slot++)
        if (!smp_tensor_is_read_once(graph, op->in[slot]))
            return false;
    return true;
}

bool smp_op_fused_backward(const smp_graph *graph, int32_t index)
{
    const smp_op *op = &graph->op[index], *next = op + 1;
    return graph->training && smp_backend_of(graph->target)->fuses && index + 1 < graph->n_op &&
           next->kind->fuses_backward && op->n_in == 1 && op->n_out == 1 && op->n_param == 0 &&
           next->in[0] == op->out && reads_alone(graph, op) && reads_alone(graph, next) &&
           graph->tensor[op->in[0]].elements == graph->tensor[op->out].elements &&
           graph->tensor[op->in[0]].needs_grad && next->kind->fuses_backward(graph, next, op);
}

bool smp_op_absorbs(const smp_graph *graph, const smp_op *op)
{
    const smp_op *next = op + 1;
    return op->kind->absorbs && graph->training && smp_backend_of(graph->target)->fuses &&
           next < graph->op + graph->n_op && next->n_in == 1 && next->in[0] == op->out &&
           smp_tensor_is_read_once(graph, op->out) && op->kind->absorbs(graph, op, next);
}

bool smp_op_passes_dout(const smp_graph *graph, const smp_op *op)
{
    return op->kind->passes_dout || (op > graph->op && smp_op_absorbs(graph, op - 1));
}

bool smp_op_tied(const smp_graph *graph, int32_t index)
{
    return smp_op_tied_forward(graph, index) ||
           (smp_op_fused_backward(graph, index) && !graph->op[index + 1].kind->pairs_alike);
}

uint32_t smp_op_fused_reads(const smp_graph *graph, int32_t index, uint32_t needed)
{
    const bool pair =
        index > 0 && graph->op[index].kind->pairs_alike && smp_op_fused_backward(graph, index - 1);
    return pair ? needed & ~1u : needed;
}

smp_op_exchange smp_op_exchange_each(int64_t devices, int64_t n)
{
    if (devices <= 1)
        return (smp_op_exchange){0};
    return (smp_op_exchange){devices - 1, n * (int64_t)sizeof(float), 0};
}

smp_op_exchange smp_op_exchange_sum(int64_t devices, int64_t n)
{
    smp_op_exchange each = smp_op_exchange_each(devices, (n + devices - 1) / devices);
    each.messages *= 2;
    return each;
}

void smp_op_work_get(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    *work = (smp_op_work){0};
    if (op->kind->work)
        op->kind->work(graph, op, batch, work);
}

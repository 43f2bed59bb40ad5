/* transpose: the dimensions of a sample in another order: dimension i of the output is dimension
 * axes[i] of the input. A permutation; any type. */
#include "graph/ops/shape/shape.h"

#include <string.h>

enum { AXES };

static const smp_attr_desc ATTRS[] = {
    [AXES] = {"axes", SMP_ATTR_INT_LIST, true, 0, 0, SMP_MAX_DIMS - 1, NULL},
    {0},
};

static smp_status infer(smp_infer *infer)
{
    const smp_tensor *in = infer->in[0];
    const int n_dim = in->shape.n_dim;
    const int64_t *axes = infer->attr[AXES].list.items;
    unsigned seen = 0;
    for (int64_t i = 0; i < infer->attr[AXES].list.count; i++)
        seen |= 1u << axes[i];
    if (infer->attr[AXES].list.count != n_dim || seen != (1u << n_dim) - 1)
        return smp_infer_fail(infer,
                              "axes: expected each of the %d dimensions of '%s' once, "
                              "counted from 0",
                              n_dim, in->name);
    infer->out_dtype = in->dtype;
    infer->out_shape.n_dim = n_dim;
    for (int i = 0; i < n_dim; i++)
        infer->out_shape.dim[i] = in->shape.dim[axes[i]];
    return SMP_OK;
}

static smp_image_layout layout(const smp_graph *graph, const smp_op *op)
{
    (void)graph, (void)op;
    return SMP_LAYOUT_EACH;
}

smp__permutation smp__permutation_of(const smp_graph *graph, const smp_op *op)
{
    const smp_tensor *in = smp__in(graph, op, 0), *out = smp__out(graph, op);
    smp__permutation p = {.n_dim = out->shape.n_dim};
    for (int i = 0; i < p.n_dim; i++) {
        const int axis = out->channels_last ? (i + 1) % 3 : i; /* that lies there */
        p.dim[i] = out->shape.dim[axis];
        p.stride[i] = smp__axis_of(in, op->attr[AXES].list.items[axis], 1).inner;
    }
    return p;
}

/* Values `from_step` apart to places `to_step` apart; 4 bytes each, of whatever type. */
static void move_row(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t n)
{
    if (to_step == 1 && from_step == 1)
        memcpy(to, from, (size_t)n * 4);
    else
        for (int64_t i = 0; i < n; i++)
            memcpy(to + i * to_step * 4, from + i * from_step * 4, 4);
}

/* Walks the rows (last dimension) of the output, which lie one after the other, with an odometer
 * over the dimensions before it: `rows` is the output or its gradient, `other` the input or its. */
static void move_rows(const smp_op_call *call, char *rows, char *other, bool to_rows)
{
    const smp__permutation p = smp__permutation_of(call->graph, call->op);
    const smp_tensor *out = smp__out(call->graph, call->op);
    const int last = p.n_dim - 1;
    const int64_t n = smp__columns(out), step = last < 0 ? 1 : p.stride[last];
    for (int64_t b = 0; b < call->batch; b++, other += out->elements * 4) {
        int64_t at[SMP_MAX_DIMS] = {0}, place = 0;
        for (int64_t r = 0; r < out->elements / n; r++, rows += n * 4) {
            if (to_rows)
                move_row(rows, 1, other + place * 4, step, n);
            else
                move_row(other + place * 4, step, rows, 1, n);
            for (int d = last - 1; d >= 0; d--) {
                place += p.stride[d];
                if (++at[d] < p.dim[d])
                    break;
                place -= p.stride[d] * at[d];
                at[d] = 0;
            }
        }
    }
}

static smp_status forward(const smp_op_call *call)
{
    move_rows(call, call->out[0], (char *)call->in[0], true);
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    if (call->din[0])
        move_rows(call, (char *)call->dout[0], (char *)call->din[0], false);
    return SMP_OK;
}

const smp_op_kind smp__op_transpose = {
    .name = "transpose",
    .summary = "the dimensions of a sample in another order",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [3, 4, 2]}\n"
              "ops:\n"
              "  - {op: transpose, name: op, in: x, out: y, axes: [2, 0, 1]}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .work = smp__work_copy,
    .layout = layout,
    .cpu = {.forward = forward, .backward_input = backward_input},
};

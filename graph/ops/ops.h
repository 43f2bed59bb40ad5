/* What the operators share: their registry entries, and small helpers for shapes and costs. Only
 * files of graph/ops/ include it. */
#ifndef SMP_GRAPH_OPS_OPS_H
#define SMP_GRAPH_OPS_OPS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "graph/base/random.h"
#include "graph/model/op.h"
#include "graph/ops/op_list.h"

#define SMP__DECLARE_OP(name) extern const smp_op_kind smp__op_##name;
SMP__OPS(SMP__DECLARE_OP, SMP__DECLARE_OP)
#undef SMP__DECLARE_OP

static inline const smp_tensor *smp__in(const smp_graph *graph, const smp_op *op, int slot)
{
    return &graph->tensor[op->in[slot]];
}

static inline const smp_tensor *smp__out(const smp_graph *graph, const smp_op *op)
{
    return &graph->tensor[op->out];
}

/* Elements of a micro-batch; a loss has one value whatever the batch (no operator reads one). */
static inline int64_t smp__count(const smp_tensor *tensor, int64_t batch)
{
    return tensor->batched ? tensor->elements * batch : tensor->elements;
}

/* The key of the random numbers that an operator draws in a job; a call's own depend on its turn,
 * too. */
static inline uint64_t smp__random_key(const smp_op_call *call)
{
    return smp_random_mix(call->step.seed + smp_random_mix((uint64_t)call->op->number));
}

/* The last dimension, 1 for a scalar. */
static inline int64_t smp__columns(const smp_tensor *tensor)
{
    return tensor->shape.n_dim > 0 ? tensor->shape.dim[tensor->shape.n_dim - 1] : 1;
}

/* Output like input 0, which must be float. */
smp_status smp__infer_like_input(smp_infer *infer);
/* All inputs are float and have one shape; the output has it too. */
smp_status smp__infer_alike(smp_infer *infer);

/* Fills the bytes of `work` from the tensors, the weights and what `needs` says. Flops are left. */
void smp__work_bytes(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work);
/* The same, with flops per output element (per input element if the output is a loss). */
void smp__work_elementwise(const smp_graph *graph, const smp_op *op, int64_t batch, double forward,
                           double backward, smp_op_work *work);

/* The workspace in which a GPU adds up columns: in chunks of rows, one fp32 row each, enough to
 * occupy a device (about 512 blocks of 256 columns), and a function of the sizes alone. */
int64_t smp__column_sum_bytes(int64_t rows, int64_t columns);

/* For `layout` of operators that treat images alike in whichever order they lie. */
smp_image_layout smp__layout_alike(const smp_graph *graph, const smp_op *op);
/* For those that copy: row-major, but images of one channel or one pixel, which lie the same either
 * way. */
smp_image_layout smp__layout_copied(const smp_graph *graph, const smp_op *op);

/* A dimension of a sample among the others, as the tensor lies: a micro-batch is
 * [outer][size][inner]. */
typedef struct smp__axis {
    int64_t outer, size, inner;
} smp__axis;

smp__axis smp__axis_of(const smp_tensor *tensor, int64_t axis, int64_t batch);
/* Attribute `axis` as a dimension of input 0, which has one: negative counts from the end. */
smp_status smp__infer_axis(const smp_infer *infer, int64_t axis, int *out);

/* The output is float input 0 without that dimension. */
smp_status smp__infer_without_axis(smp_infer *infer, int64_t axis);

/* Operators that add up a dimension: [outer][size][inner] -> [outer][inner], times a factor, and
 * its gradient. */
void smp__axis_sum(float *out, const float *x, smp__axis along, float factor);
void smp__axis_spread(float *dx, const float *dout, smp__axis along, float factor);

/* The work of operators that move elements: no flops. */
void smp__work_copy(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work);
/* Input gradients are made from the values of the only input. */
void smp__needs_input(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs);
/* Input gradients are made from the output. */
void smp__needs_output(const smp_graph *graph, const smp_op *op, int64_t batch,
                       smp_op_needs *needs);
/* Input gradients are made from the values of both inputs. */
void smp__needs_pair(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs);

/* On a GPU, forward of an `add` of two tensors and of the layernorm or rmsnorm `next` that reads
 * the sum, as one kernel with the bits of two. */
smp_status smp__cuda_forward_of_sum(const smp_op_call *sum, const smp_op_call *next);

/* Frees the state of operators that have one primitive of graph/math. */
void smp__release_primitive(void *state);

/* The rules of operators that treat every element by itself, and of those that have a row of the
 * last dimension to themselves, with weights that all positions share. */
extern const smp_split_rule smp__split_elementwise[], smp__split_rows[];
/* A dimension but the last. */
bool smp__split_allows_row(const smp_graph *graph, const smp_op *op, smp_split_choice choice,
                           int devices);

/* Kernel of operators that only rename a shape: out = in[0]. */
smp_status smp__copy_forward(const smp_op_call *call);

#ifdef __cplusplus
}
#endif

#endif

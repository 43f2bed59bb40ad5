/* The operators of binary.h on the CPU: a loop for the values, one for each gradient, and the
 * kind. */
#include "graph/ops/elementwise/binary.h"

#include "graph/math/vector.h"

#define NEEDS_nothing NULL
#define NEEDS_inputs smp__needs_pair
/* The inputs are not there unless backward reads them. */
#define READ_nothing (void)in_a, (void)in_b
#define READ_inputs                                                                                \
    const float a = in_a[i], b = in_b[i];                                                          \
    (void)a, (void)b

static const smp_attr_desc ATTRS[] = {{0}};

#define GRADIENTS(function, reads, gradient)                                                       \
    SMP_VECTOR static void function(float *restrict din, const float *in_a, const float *in_b,     \
                                    const float *dout, int64_t n)                                  \
    {                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const float dy = dout[i];                                                              \
            READ_##reads;                                                                          \
            din[i] = gradient;                                                                     \
        }                                                                                          \
    }

#define FUSES_alone NULL
#define FUSES_gate fuses_gate

/* With the activation of a gated unit. */
static bool fuses_gate(const smp_graph *graph, const smp_op *op, const smp_op *before)
{
    (void)graph, (void)op;
    return before->kind == &smp__op_silu;
}

#define OPERATOR(name_, reads, pairs, forward_flops, backward_flops, summary_, value, da, db)      \
    SMP_VECTOR static void name_##_values(float *restrict out, const float *in_a,                  \
                                          const float *in_b, int64_t n)                            \
    {                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const float a = in_a[i], b = in_b[i];                                                  \
            out[i] = value;                                                                        \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    GRADIENTS(name_##_a_gradients, reads, da)                                                      \
    GRADIENTS(name_##_b_gradients, reads, db)                                                      \
                                                                                                   \
    static smp_status name_##_forward(const smp_op_call *call)                                     \
    {                                                                                              \
        name_##_values(call->out[0], call->in[0], call->in[1],                                     \
                       smp__count(smp__out(call->graph, call->op), call->batch));                  \
        return SMP_OK;                                                                             \
    }                                                                                              \
                                                                                                   \
    static smp_status name_##_backward_input(const smp_op_call *call)                              \
    {                                                                                              \
        const int64_t n = smp__count(smp__out(call->graph, call->op), call->batch);                \
        if (call->din[0])                                                                          \
            name_##_a_gradients(call->din[0], call->in[0], call->in[1], call->dout[0], n);         \
        if (call->din[1])                                                                          \
            name_##_b_gradients(call->din[1], call->in[0], call->in[1], call->dout[0], n);         \
        return SMP_OK;                                                                             \
    }                                                                                              \
                                                                                                   \
    static void name_##_work(const smp_graph *graph, const smp_op *op, int64_t batch,              \
                             smp_op_work *work)                                                    \
    {                                                                                              \
        smp__work_elementwise(graph, op, batch, forward_flops, backward_flops, work);              \
    }                                                                                              \
                                                                                                   \
    const smp_op_kind smp__op_##name_ = {                                                          \
        .name = #name_,                                                                            \
        .summary = summary_,                                                                       \
        .sample = "inputs:\n"                                                                      \
                  "  a: {dtype: float32, shape: [4, 6]}\n"                                         \
                  "  b: {dtype: float32, shape: [4, 6]}\n"                                         \
                  "ops:\n"                                                                         \
                  "  - {op: " #name_ ", name: op, in: [a, b], out: y}\n",                          \
        .min_in = 2,                                                                               \
        .max_in = 2,                                                                               \
        .attrs = ATTRS,                                                                            \
        .infer = smp__infer_alike,                                                                 \
        .needs = {NEEDS_##reads},                                                                  \
        .work = name_##_work,                                                                      \
        .layout = smp__layout_alike,                                                               \
        .split = smp__split_elementwise,                                                           \
        .fuses_backward = FUSES_##pairs,                                                           \
        .pairs_alike = true,                                                                       \
        .cpu = {.forward = name_##_forward, .backward_input = name_##_backward_input},             \
    };

SMP__BINARY(OPERATOR)

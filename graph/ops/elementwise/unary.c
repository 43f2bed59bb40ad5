/* The operators of unary.h on the CPU: a loop for the values, one for the gradient, the kind. */
#include "graph/ops/elementwise/unary.h"

#include <math.h>

#include "graph/math/math.h"
#include "graph/math/vector.h"

enum { LOOP = -1 }; /* else an smp_eltwise */
#define BY_LOOP(values) ((int)(values) == LOOP)

#define NEEDS_x smp__needs_input
#define NEEDS_y smp__needs_output
#define READ_x call->in[0]
#define READ_y call->out[0]
#define FUSES_alone NULL
#define FUSES_product fuses_product

static const smp_attr_desc ATTRS[] = {{0}};

/* With the other factor of a gated unit: SwiGLU (Shazeer 2020). */
static bool fuses_product(const smp_graph *graph, const smp_op *op, const smp_op *next)
{
    return next->kind == &smp__op_mul && next->in[0] == op->out && next->in[1] != op->out &&
           op->out != graph->loss;
}

static int64_t element_count(const smp_op_call *call)
{
    return smp__count(smp__in(call->graph, call->op, 0), call->batch);
}

static smp_status create_primitive(int kind, const smp_graph *graph, const smp_op *op,
                                   int64_t batch, void **state)
{
    smp_math_primitive *primitive = NULL;
    SMP_TRY(smp_math_eltwise_create((smp_eltwise)kind, smp__count(smp__in(graph, op, 0), batch),
                                    false, false, &primitive));
    *state = primitive;
    return SMP_OK;
}

#define OPERATOR(name_, reads, values, pairs, forward_flops, backward_flops, summary_, value,      \
                 gradient)                                                                         \
    SMP_VECTOR static void name_##_values(float *restrict out, const float *restrict in,           \
                                          int64_t n)                                               \
    {                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const float x = in[i];                                                                 \
            out[i] = value;                                                                        \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    SMP_VECTOR static void name_##_gradients(float *restrict dx, const float *restrict read,       \
                                             const float *restrict dout, int64_t n)                \
    {                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const float reads = read[i], dy = dout[i];                                             \
            dx[i] = gradient;                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    static smp_status name_##_prepare(const smp_graph *graph, const smp_op *op, int64_t batch,     \
                                      void *device, void **state)                                  \
    {                                                                                              \
        (void)device;                                                                              \
        return BY_LOOP(values) ? SMP_OK : create_primitive(values, graph, op, batch, state);       \
    }                                                                                              \
                                                                                                   \
    static smp_status name_##_forward(const smp_op_call *call)                                     \
    {                                                                                              \
        if (!BY_LOOP(values))                                                                      \
            return smp_math_eltwise_forward(call->state, call->in[0], call->out[0]);               \
        name_##_values(call->out[0], call->in[0], element_count(call));                            \
        return SMP_OK;                                                                             \
    }                                                                                              \
                                                                                                   \
    static smp_status name_##_backward_input(const smp_op_call *call)                              \
    {                                                                                              \
        if (call->din[0])                                                                          \
            name_##_gradients(call->din[0], READ_##reads, call->dout[0], element_count(call));     \
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
                  "  x: {dtype: float32, shape: [4, 6]}\n"                                         \
                  "ops:\n"                                                                         \
                  "  - {op: " #name_ ", name: op, in: x, out: y}\n",                               \
        .min_in = 1,                                                                               \
        .max_in = 1,                                                                               \
        .attrs = ATTRS,                                                                            \
        .infer = smp__infer_like_input,                                                            \
        .needs = {NEEDS_##reads},                                                                  \
        .work = name_##_work,                                                                      \
        .layout = smp__layout_alike,                                                               \
        .split = smp__split_elementwise,                                                           \
        .fuses = FUSES_##pairs,                                                                    \
        .pairs_alike = true,                                                                       \
        .cpu = {.prepare = BY_LOOP(values) ? NULL : name_##_prepare,                               \
                .release = BY_LOOP(values) ? NULL : smp__release_primitive,                        \
                .forward = name_##_forward,                                                        \
                .backward_input = name_##_backward_input},                                         \
    };

SMP__UNARY(OPERATOR)

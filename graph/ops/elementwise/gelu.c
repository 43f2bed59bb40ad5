/* gelu (Hendrycks, Gimpel 2016): x * Phi(x), exact by erf, or the tanh approximation that GPT-2
 * uses (the default). Backward needs the input. */
#include "graph/ops/elementwise/elementwise.h"

#include "graph/math/math.h"

static const char *const APPROXIMATIONS[] = {
    [SMP__GELU_TANH] = "tanh", [SMP__GELU_ERF] = "erf", [SMP__GELU_NONE] = "none", NULL};

static const smp_attr_desc ATTRS[] = {
    [SMP__GELU_APPROXIMATE] = {"approximate", SMP_ATTR_CHOICE, false, SMP__GELU_TANH, 0, 0,
                               APPROXIMATIONS},
    {0},
};

bool smp__is_gelu_tanh(const smp_op *op)
{
    return op->kind == &smp__op_gelu && op->attr[SMP__GELU_APPROXIMATE].i == SMP__GELU_TANH;
}

static void work(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work)
{
    smp__work_elementwise(graph, op, batch, 25, 35, work);
}

static smp_status prepare(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state)
{
    (void)device;
    smp_eltwise kind = op->attr[SMP__GELU_APPROXIMATE].i == SMP__GELU_TANH ? SMP_ELTWISE_GELU_TANH
                                                                           : SMP_ELTWISE_GELU_ERF;
    smp_math_primitive *primitive = NULL;
    const smp_tensor *in = smp__in(graph, op, 0);
    SMP_TRY(smp_math_eltwise_create(kind, smp__count(in, batch), in->dtype == SMP_BF16,
                                    graph->training, &primitive));
    *state = primitive;
    return SMP_OK;
}

static smp_status forward(const smp_op_call *call)
{
    return smp_math_eltwise_forward(call->state, call->in[0], call->out[0]);
}

static smp_status backward_input(const smp_op_call *call)
{
    if (!call->din[0])
        return SMP_OK;
    return smp_math_eltwise_backward(call->state, call->in[0], call->dout[0], call->din[0]);
}

#define KERNELS                                                                                    \
    {                                                                                              \
        .prepare = prepare, .release = smp__release_primitive, .forward = forward,                 \
        .backward_input = backward_input                                                           \
    }

/* The kernels for arrays in bf16, as the input's type says. */
static const smp_op_kernels HALF = KERNELS;

const smp_op_kind smp__op_gelu = {
    .name = "gelu",
    .summary = "Gaussian error linear unit, tanh approximation or exact (erf)",
    .sample = "inputs:\n"
              "  x: {dtype: float32, shape: [4, 6]}\n"
              "ops:\n"
              "  - {op: gelu, name: op, in: x, out: y, approximate: erf}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = smp__infer_like_input,
    .needs = {smp__needs_input},
    .work = work,
    .layout = smp__layout_alike,
    .split = smp__split_elementwise,
    .cpu = KERNELS,
    .cpu16 = &HALF,
};

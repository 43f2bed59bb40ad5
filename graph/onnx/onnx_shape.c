/* Types and shapes of what nodes make, operator by operator (ONNX's list of operators). What is not
 * here keeps what the file says of its values. An inconsistent file makes shapes unknown. */
#include "graph/onnx/onnx_shape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TYPE(name) ONNX__TENSOR_PROTO__DATA_TYPE__##name

static void like_first(smp__infer *i)
{
    if (i->in[0])
        smp__shape_like(i->out, i->in[0]);
}

static void broadcast(smp__infer *i)
{
    int most = 0;
    if (i->m->opset < 7 && smp__onnx_int(i->node, "broadcast", 0) != 0) {
        like_first(i);
        return;
    }
    for (int k = 0; k < i->node->n_in; k++) {
        const smp_onnx_value *v = smp__onnx_in(i->m, i->node, k);
        if (!v || v->n_dim < 0)
            return;
        most = v->n_dim > most ? v->n_dim : most;
    }
    for (int d = 0; d < most; d++) {
        int64_t size = 1;
        for (int k = 0; k < i->node->n_in; k++) {
            const smp_onnx_value *v = smp__onnx_in(i->m, i->node, k);
            const int at = d - (most - v->n_dim);
            const int64_t own = at < 0 ? 1 : v->dim[at];
            if (own != 1 && size != 1 && own != size)
                return;
            size = own == 1 ? size : own;
        }
        i->out->dim[d] = size;
    }
    i->out->n_dim = most;
}

static void compared(smp__infer *i)
{
    broadcast(i);
    i->out->type = TYPE(BOOL);
}

static void like_bool(smp__infer *i)
{
    like_first(i);
    i->out->type = TYPE(BOOL);
}

static void cast(smp__infer *i)
{
    like_first(i);
    i->out->type = (int)smp__onnx_int(i->node, "to", 0);
}

static void matmul(smp__infer *i)
{
    const smp_onnx_value *a = i->in[0], *b = i->in[1];
    if (!a || !b || a->n_dim < 1 || b->n_dim < 1)
        return;
    const int na = a->n_dim < 2 ? 2 : a->n_dim, nb = b->n_dim < 2 ? 2 : b->n_dim;
    const int n = na > nb ? na : nb;
    int64_t dim[SMP_ONNX_DIMS];
    for (int d = 0; d < n - 2; d++) {
        const int64_t x = d - (n - na) < 0 ? 1 : a->dim[d - (n - na)];
        const int64_t y = d - (n - nb) < 0 ? 1 : b->dim[d - (n - nb)];
        if (x != y && x != 1 && y != 1)
            return;
        dim[d] = x == 1 ? y : x;
    }
    if (a->dim[a->n_dim - 1] != b->dim[b->n_dim < 2 ? 0 : b->n_dim - 2])
        return;
    int at = n - 2;
    if (a->n_dim >= 2)
        dim[at++] = a->dim[a->n_dim - 2];
    if (b->n_dim >= 2)
        dim[at++] = b->dim[b->n_dim - 1];
    memcpy(i->out->dim, dim, sizeof(*dim) * (size_t)at);
    i->out->n_dim = at;
}

static void gemm(smp__infer *i)
{
    if (!i->in[0] || !i->in[1] || i->in[0]->n_dim != 2 || i->in[1]->n_dim != 2)
        return;
    const int ta = smp__onnx_int(i->node, "transA", 0) != 0;
    const int tb = smp__onnx_int(i->node, "transB", 0) != 0;
    if (i->in[0]->dim[!ta] != i->in[1]->dim[tb])
        return;
    i->out->n_dim = 2;
    i->out->dim[0] = i->in[0]->dim[ta];
    i->out->dim[1] = i->in[1]->dim[!tb];
}

/* One spatial dimension after a window; -1: none. */
static int64_t windowed(const smp__infer *i, int d, int n, int64_t size, int64_t kernel)
{
    size_t n_stride, n_pad, n_dilation;
    const int64_t *strides = smp__onnx_ints(i->node, "strides", &n_stride);
    const int64_t *pads = smp__onnx_ints(i->node, "pads", &n_pad);
    const int64_t *dilations = smp__onnx_ints(i->node, "dilations", &n_dilation);
    const int64_t stride = n_stride == (size_t)n ? strides[d] : 1;
    const int64_t dilation = n_dilation == (size_t)n ? dilations[d] : 1;
    const bool padded = n_pad == 2 * (size_t)n;
    if (padded &&
        (pads[d] < 0 || pads[d] > INT32_MAX || pads[d + n] < 0 || pads[d + n] > INT32_MAX))
        return -1;
    const int64_t pad = padded ? pads[d] + pads[d + n] : 0;
    const char *automatic = smp__onnx_text(i->node, "auto_pad", "NOTSET");
    if (stride < 1 || dilation < 1 || kernel < 1 || stride > INT32_MAX || dilation > INT32_MAX ||
        kernel > INT32_MAX)
        return -1;
    if (strncmp(automatic, "SAME", 4) == 0)
        return (size + stride - 1) / stride;
    const int64_t room =
        size + (strcmp(automatic, "VALID") == 0 ? 0 : pad) - dilation * (kernel - 1) - 1;
    if (room < 0)
        return -1;
    const bool ceil_mode = smp__onnx_int(i->node, "ceil_mode", 0) != 0;
    return (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
}

static void windows(smp__infer *i, int64_t channels, const int64_t *kernel, int n_kernel)
{
    const int n = i->in[0]->n_dim - 2;
    if (n < 1 || n_kernel != n)
        return;
    for (int d = 0; d < n; d++)
        if ((i->out->dim[d + 2] = windowed(i, d, n, i->in[0]->dim[d + 2], kernel[d])) < 1)
            return;
    i->out->dim[0] = i->in[0]->dim[0];
    i->out->dim[1] = channels;
    i->out->n_dim = n + 2;
}

static void conv(smp__infer *i)
{
    if (i->in[0] && i->in[1] && i->in[1]->n_dim >= 3 && i->in[0]->n_dim == i->in[1]->n_dim)
        windows(i, i->in[1]->dim[0], i->in[1]->dim + 2, i->in[1]->n_dim - 2);
}

static void pool(smp__infer *i)
{
    size_t n;
    const int64_t *kernel = smp__onnx_ints(i->node, "kernel_shape", &n);
    if (i->in[0] && kernel && n < SMP_ONNX_DIMS)
        windows(i, i->in[0]->dim[1], kernel, (int)n);
}

static void global_pool(smp__infer *i)
{
    if (!i->in[0] || i->in[0]->n_dim < 2)
        return;
    smp__shape_like(i->out, i->in[0]);
    for (int d = 2; d < i->out->n_dim; d++)
        i->out->dim[d] = 1;
}

static void like_second(smp__infer *i)
{
    if (i->in[1])
        smp__shape_like(i->out, i->in[1]);
}

static void reduce(smp__infer *i)
{
    const int64_t *axes = NULL;
    size_t n = 0;
    if (!i->in[0])
        return;
    const bool given = smp__onnx_list(i->m, i->node, "axes", 1, &axes, &n) && n > 0;
    if (!given && smp__onnx_in(i->m, i->node, 1) && !smp__onnx_in(i->m, i->node, 1)->ints)
        return;
    const bool keep = smp__onnx_int(i->node, "keepdims", 1) != 0;
    unsigned gone = given ? 0 : (1u << i->in[0]->n_dim) - 1;
    if (!given && smp__onnx_int(i->node, "noop_with_empty_axes", 0) != 0)
        gone = 0;
    for (size_t k = 0; k < n; k++) {
        int axis;
        if (!smp__onnx_axis(axes[k], i->in[0]->n_dim, &axis))
            return;
        gone |= 1u << axis;
    }
    int at = 0;
    for (int d = 0; d < i->in[0]->n_dim; d++)
        if (!(gone >> d & 1) || keep)
            i->out->dim[at++] = gone >> d & 1 ? 1 : i->in[0]->dim[d];
    i->out->n_dim = at;
}

static void arg_max(smp__infer *i)
{
    int axis;
    if (!i->in[0] || !smp__onnx_axis(smp__onnx_int(i->node, "axis", 0), i->in[0]->n_dim, &axis))
        return;
    int at = 0;
    for (int d = 0; d < i->in[0]->n_dim; d++)
        if (d != axis || smp__onnx_int(i->node, "keepdims", 1) != 0)
            i->out->dim[at++] = d == axis ? 1 : i->in[0]->dim[d];
    i->out->n_dim = at;
    i->out->type = TYPE(INT64);
}

static void range(smp__infer *i)
{
    double value[3];
    for (int k = 0; k < 3; k++)
        if (!smp__onnx_scalar(smp__onnx_in(i->m, i->node, k), &value[k]))
            return;
    const double n = value[2] != 0 ? ceil((value[1] - value[0]) / value[2]) : -1;
    if (!(n < 1e9))
        return;
    i->out->n_dim = 1;
    i->out->dim[0] = n > 0 ? (int64_t)n : 0;
}

static void where(smp__infer *i)
{
    broadcast(i);
    i->out->type = i->in[1] ? i->in[1]->type : 0;
}

typedef struct rule {
    const char *op;
    void (*infer)(smp__infer *i);
} rule;

/* By name, so that they can be looked for. */
static const rule RULES[] = {
    {"Abs", like_first},
    {"Add", broadcast},
    {"And", compared},
    {"ArgMax", arg_max},
    {"ArgMin", arg_max},
    {"AveragePool", pool},
    {"BatchNormalization", like_first},
    {"Cast", cast},
    {"Ceil", like_first},
    {"Clip", like_first},
    {"Concat", smp__shape_concat},
    {"ConstantOfShape", smp__shape_expand},
    {"Conv", conv},
    {"Cos", like_first},
    {"CumSum", like_first},
    {"DepthToSpace", smp__shape_depth_and_space},
    {"Div", broadcast},
    {"Dropout", like_first},
    {"Elu", like_first},
    {"Equal", compared},
    {"Erf", like_first},
    {"Exp", like_first},
    {"Expand", smp__shape_expand},
    {"Flatten", smp__shape_flatten},
    {"Floor", like_first},
    {"Gather", smp__shape_gather},
    {"GatherElements", like_second},
    {"GatherND", smp__shape_gather_nd},
    {"Gelu", like_first},
    {"Gemm", gemm},
    {"GlobalAveragePool", global_pool},
    {"GlobalMaxPool", global_pool},
    {"Greater", compared},
    {"GreaterOrEqual", compared},
    {"GroupNormalization", like_first},
    {"HardSigmoid", like_first},
    {"HardSwish", like_first},
    {"Identity", like_first},
    {"InstanceNormalization", like_first},
    {"IsNaN", like_bool},
    {"LRN", like_first},
    {"LayerNormalization", like_first},
    {"LeakyRelu", like_first},
    {"Less", compared},
    {"LessOrEqual", compared},
    {"Log", like_first},
    {"LogSoftmax", like_first},
    {"LpPool", pool},
    {"MatMul", matmul},
    {"Max", broadcast},
    {"MaxPool", pool},
    {"Mean", broadcast},
    {"Min", broadcast},
    {"Mish", like_first},
    {"Mod", broadcast},
    {"Mul", broadcast},
    {"Neg", like_first},
    {"Not", like_bool},
    {"Or", compared},
    {"PRelu", like_first},
    {"Pad", smp__shape_pad},
    {"Pow", broadcast},
    {"RMSNormalization", like_first},
    {"Range", range},
    {"Reciprocal", like_first},
    {"ReduceL1", reduce},
    {"ReduceL2", reduce},
    {"ReduceMax", reduce},
    {"ReduceMean", reduce},
    {"ReduceMin", reduce},
    {"ReduceProd", reduce},
    {"ReduceSum", reduce},
    {"ReduceSumSquare", reduce},
    {"Relu", like_first},
    {"Reshape", smp__shape_reshape},
    {"Resize", smp__shape_resize},
    {"Round", like_first},
    {"ScatterND", like_first},
    {"Selu", like_first},
    {"Shape", smp__shape_shape_of},
    {"Sigmoid", like_first},
    {"Sign", like_first},
    {"Sin", like_first},
    {"Size", smp__shape_shape_of},
    {"Slice", smp__shape_slice},
    {"Softmax", like_first},
    {"Softplus", like_first},
    {"Softsign", like_first},
    {"SpaceToDepth", smp__shape_depth_and_space},
    {"Split", smp__shape_split},
    {"Sqrt", like_first},
    {"Squeeze", smp__shape_squeeze},
    {"Sub", broadcast},
    {"Sum", broadcast},
    {"Tanh", like_first},
    {"Tile", smp__shape_tile},
    {"Transpose", smp__shape_transpose},
    {"Trilu", like_first},
    {"Unsqueeze", smp__shape_unsqueeze},
    {"Upsample", smp__shape_resize},
    {"Where", where},
    {"Xor", compared},
};

static int by_name(const void *key, const void *item)
{
    return strcmp(key, ((const rule *)item)->op);
}

void smp__onnx_infer(smp_onnx_model *model, const smp_onnx_node *node)
{
    smp__infer i = {.m = model, .node = node, .out = smp__onnx_out(model, node, 0)};
    for (int k = 0; k < 4; k++) {
        const smp_onnx_value *v = smp__onnx_in(model, node, k);
        i.in[k] = v && v->n_dim >= 0 ? v : NULL;
    }
    const rule *found =
        bsearch(node->op, RULES, sizeof(RULES) / sizeof(RULES[0]), sizeof(RULES[0]), by_name);
    if (!found || !i.out)
        return;
    i.out->type = i.in[0] ? i.in[0]->type : 0;
    found->infer(&i);
    if (smp__onnx_elements(i.out) < 0)
        i.out->n_dim = -1;
}

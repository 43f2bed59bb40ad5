/* Operators on [C, H, W]. */
#include "graph/import/importing.h"

#include <string.h>

typedef struct window {
    int64_t kernel[2], stride[2], padding[2], dilation[2];
} window;

/* The attributes of a node with windows over a plane; the same padding on both sides. */
static bool window_of(smp_import *im, const smp_onnx_node *node, const int64_t *kernel, window *w)
{
    static const char *const KEYS[] = {"strides", "dilations"};
    const smp_onnx_value *in = smp__onnx_in(im->model, node, 0);
    int64_t *const to[] = {w->stride, w->dilation};
    size_t n;
    for (int k = 0; k < 2; k++) {
        const int64_t *list = smp__onnx_ints(node, KEYS[k], &n);
        for (int d = 0; d < 2; d++)
            to[k][d] = list && n == 2 ? list[d] : 1;
    }
    const int64_t *pads = smp__onnx_ints(node, "pads", &n);
    const char *automatic = smp__onnx_text(node, "auto_pad", "NOTSET");
    for (int d = 0; d < 2; d++) {
        w->kernel[d] = kernel[d];
        w->padding[d] = pads && n == 4 ? pads[d] : 0;
        int64_t behind = pads && n == 4 ? pads[d + 2] : 0;
        if (strncmp(automatic, "SAME", 4) == 0) {
            const int64_t size = in->dim[d + 2], windows = (size + w->stride[d] - 1) / w->stride[d];
            const int64_t all =
                (windows - 1) * w->stride[d] + w->dilation[d] * (kernel[d] - 1) + 1 - size;
            w->padding[d] = all > 0 ? all / 2 : 0;
            behind = all > 0 ? all - all / 2 : 0;
        } else if (strcmp(automatic, "VALID") == 0) {
            w->padding[d] = behind = 0;
        }
        if (w->padding[d] != behind)
            return smp__refuse(im, "more padding on one side than on the other");
    }
    return true;
}

static bool is_plane(smp_import *im, const smp_onnx_node *node, smp__bound *x)
{
    if (!smp__tensor_in(im, node, 0, x))
        return false;
    return (x->shape.n_dim == 3 && x->merged == 0 && !x->single) ||
           smp__refuse(im, "its input is not [C, H, W]");
}

static void bind_output(smp_import *im, const smp_onnx_node *node, const char *tensor)
{
    smp_shape shape;
    if (smp__sample_shape(im, smp__onnx_out(im->model, node, 0), &shape))
        smp__bind_tensor(im, node, 0, tensor, &shape, 0);
}

static bool conv(smp_import *im, const smp_onnx_node *node)
{
    static const char *const ROLE[] = {"weight", "bias"};
    const smp_onnx_value *w = smp__onnx_in(im->model, node, 1),
                         *b = smp__onnx_in(im->model, node, 2);
    smp__bound x;
    window at;
    if (im->options->loss && smp__onnx_batchnorm_folded(node) && im->status == SMP_OK)
        im->status = smp_onnx_fail(im->model, node,
                                   "the exporter folded a batch normalisation into it, and such a "
                                   "network trains otherwise: export it by torch.onnx.export(.., "
                                   "dynamo=False, training=TrainingMode.TRAINING)");
    if (!is_plane(im, node, &x))
        return false;
    if (!w || !w->floats || w->n_dim != 4 || (b && (!b->floats || b->n_dim != 1)))
        return smp__refuse(im, "its weights are no constants of a plane");
    if (!smp__trainable(im, w) || (b && !smp__trainable(im, b)) ||
        !window_of(im, node, w->dim + 2, &at))
        return false;
    const int64_t groups = smp__onnx_int(node, "group", 1);
    if (groups < 1 || groups > w->dim[0] || w->dim[0] % groups != 0 ||
        x.shape.dim[0] != w->dim[1] * groups || (b && b->dim[0] != w->dim[0]))
        return smp__refuse(im, "its groups do not divide the channels");
    const char *name = smp__op_name(im, node, w);
    const smp_shape shape = {4, {w->dim[0], w->dim[1], w->dim[2], w->dim[3]}};
    const char *tied[2] = {smp__add_weight(im, name, "weight", shape, w, w->floats, false), NULL};
    if (b)
        tied[1] =
            smp__add_weight(im, name, "bias", (smp_shape){1, {b->dim[0]}}, b, b->floats, false);
    const bool has_bias = b || smp__lost_bias(im, name, w->dim[0]);
    const char *made = smp__emit_one(
        im, "conv2d", name, x.tensor,
        ", channels: %lld, kernel: [%lld, %lld], stride: [%lld, %lld], padding: [%lld, %lld], "
        "dilation: [%lld, %lld], groups: %lld%s%s}",
        (long long)w->dim[0], (long long)at.kernel[0], (long long)at.kernel[1],
        (long long)at.stride[0], (long long)at.stride[1], (long long)at.padding[0],
        (long long)at.padding[1], (long long)at.dilation[0], (long long)at.dilation[1],
        (long long)groups, has_bias ? "" : ", bias: false", smp__ties(im, ROLE, tied, 2));
    bind_output(im, node, made);
    return true;
}

static bool pool(smp_import *im, const smp_onnx_node *node)
{
    const bool average = strcmp(node->op, "AveragePool") == 0;
    const smp_onnx_value *in = smp__onnx_in(im->model, node, 0);
    const smp_onnx_value *out = smp__onnx_out(im->model, node, 0);
    const smp_onnx_value *indices = smp__onnx_out(im->model, node, 1);
    smp__bound x;
    window at;
    size_t n;
    const int64_t *kernel = smp__onnx_ints(node, "kernel_shape", &n);
    if (!kernel || n != 2 || (indices && indices->n_use > 0))
        return smp__refuse(im, indices ? "its indices are read" : "no windows of two dimensions");
    if (!is_plane(im, node, &x) || !window_of(im, node, kernel, &at))
        return false;
    if (at.kernel[0] != at.kernel[1] || at.stride[0] != at.stride[1] ||
        at.padding[0] != at.padding[1] || at.dilation[0] != 1 || at.dilation[1] != 1 ||
        2 * at.padding[0] > at.kernel[0])
        return smp__refuse(im, "its windows are not square");
    for (int d = 0; d < 2; d++)
        if (out->dim[d + 2] !=
            (in->dim[d + 2] + 2 * at.padding[0] - at.kernel[0]) / at.stride[0] + 1)
            return smp__refuse(im, "windows that are cut off at the end");
    if (average && at.padding[0] > 0 && smp__onnx_int(node, "count_include_pad", 0) == 0)
        return smp__refuse(im, "means that leave padding out");
    bind_output(im, node,
                smp__emit_one(im, average ? "avg_pool" : "max_pool", smp__op_name(im, node, NULL),
                              x.tensor, ", kernel: %lld, stride: %lld, padding: %lld}",
                              (long long)at.kernel[0], (long long)at.stride[0],
                              (long long)at.padding[0]));
    return true;
}

static bool global_pool(smp_import *im, const smp_onnx_node *node)
{
    smp__bound x;
    if (!is_plane(im, node, &x))
        return false;
    const smp_shape channels = {1, {x.shape.dim[0]}};
    smp__bind_tensor(
        im, node, 0,
        smp__emit_one(im, "global_avg_pool", smp__op_name(im, node, NULL), x.tensor, "}"),
        &channels, 0);
    return true;
}

/* Pixels that become squares of pixels. */
static bool resize(smp_import *im, const smp_onnx_node *node)
{
    const smp_onnx_value *out = smp__onnx_out(im->model, node, 0);
    smp__bound x;
    if (!is_plane(im, node, &x))
        return false;
    const char *places = smp__onnx_text(node, "coordinate_transformation_mode", "half_pixel");
    const char *rounds = smp__onnx_text(node, "nearest_mode", "round_prefer_floor");
    const bool upsample = strcmp(node->op, "Upsample") == 0 || im->model->opset < 11;
    const bool squares =
        upsample ||
        (strcmp(places, "half_pixel") == 0 && strncmp(rounds, "round_prefer_", 13) == 0) ||
        (strcmp(places, "asymmetric") == 0 && strcmp(rounds, "floor") == 0);
    if (strcmp(smp__onnx_text(node, "mode", "nearest"), "nearest") != 0 || !squares)
        return smp__refuse(im, "interpolates, or takes other pixels");
    const int64_t factor = out->dim[2] / x.shape.dim[1];
    if (out->n_dim != 4 || factor < 1 || out->dim[1] != x.shape.dim[0] ||
        out->dim[2] != x.shape.dim[1] * factor || out->dim[3] != x.shape.dim[2] * factor)
        return smp__refuse(im, "its factor is not whole, or not the same in height and width");
    /* Sizes are rounded down, so they do not say it of 2.5 times a single row. */
    const smp_onnx_value *scales = smp__onnx_in(im->model, node, upsample ? 1 : 2);
    for (int d = 0; scales && scales->floats && smp__onnx_elements(scales) == 4 && d < 4; d++)
        if (scales->floats[d] != (d < 2 ? 1 : (float)factor))
            return smp__refuse(im, "its factor is not whole, or not the same in height and width");
    bind_output(im, node,
                smp__emit_one(im, "upsample", smp__op_name(im, node, NULL), x.tensor,
                              ", factor: %lld}", (long long)factor));
    return true;
}

const smp__converter smp__convert_pictures[] = {
    {"AveragePool", pool}, {"Conv", conv},     {"GlobalAveragePool", global_pool},
    {"MaxPool", pool},     {"Resize", resize}, {"Upsample", resize},
    {NULL, NULL},
};

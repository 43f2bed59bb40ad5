/* patchify: an image [H, W] or [C, H, W] as rows of square patches, [(H/p) * (W/p), C * p * p].
 * Patches in reading order; in a row channel, then line, then column, which is the order of a
 * convolution's weights: a linear after it is the convolution of stride p. A permutation. */
#include "graph/ops/shape/shape.h"

#include <string.h>

static const smp_attr_desc ATTRS[] = {
    [SMP__PATCHIFY_PATCH] = {"patch", SMP_ATTR_INT, true, 0, 1, INT32_MAX, NULL},
    {0},
};

typedef struct image {
    int64_t channels, height, width, patch;
} image;

static image image_of(const smp_shape *shape, int64_t patch)
{
    return (image){
        .channels = shape->n_dim == 3 ? shape->dim[0] : 1,
        .height = shape->dim[shape->n_dim - 2],
        .width = shape->dim[shape->n_dim - 1],
        .patch = patch,
    };
}

static smp_status infer(smp_infer *infer)
{
    SMP_TRY(smp_infer_float(infer, 0));
    SMP_TRY(smp_infer_dims(infer, 0, 2, 3));
    image of = image_of(&infer->in[0]->shape, infer->attr[SMP__PATCHIFY_PATCH].i);
    if (of.height % of.patch != 0 || of.width % of.patch != 0)
        return smp_infer_fail(infer, "patch: %lld does not divide the %lld x %lld image",
                              (long long)of.patch, (long long)of.height, (long long)of.width);
    int64_t rows = (of.height / of.patch) * (of.width / of.patch);
    infer->out_dtype = SMP_F32;
    infer->out_shape = (smp_shape){2, {rows, infer->in[0]->elements / rows}};
    return SMP_OK;
}

/* Copies every line of every patch: from image to rows, or back. */
static void permute(const image *of, float *rows, float *pixels, bool to_rows)
{
    int64_t p = of->patch;
    for (int64_t py = 0; py < of->height; py += p)
        for (int64_t px = 0; px < of->width; px += p)
            for (int64_t c = 0; c < of->channels; c++)
                for (int64_t y = 0; y < p; y++, rows += p) {
                    float *line = pixels + (c * of->height + py + y) * of->width + px;
                    if (to_rows)
                        memcpy(rows, line, (size_t)p * sizeof *rows);
                    else
                        memcpy(line, rows, (size_t)p * sizeof *rows);
                }
}

static smp_status forward(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    image of = image_of(&in->shape, call->op->attr[SMP__PATCHIFY_PATCH].i);
    for (int64_t b = 0; b < call->batch; b++)
        permute(&of, (float *)call->out[0] + b * in->elements,
                (float *)call->in[0] + b * in->elements, true);
    return SMP_OK;
}

static smp_status backward_input(const smp_op_call *call)
{
    const smp_tensor *in = smp__in(call->graph, call->op, 0);
    image of = image_of(&in->shape, call->op->attr[SMP__PATCHIFY_PATCH].i);
    for (int64_t b = 0; call->din[0] && b < call->batch; b++)
        permute(&of, (float *)call->dout[0] + b * in->elements, call->din[0] + b * in->elements,
                false);
    return SMP_OK;
}

const smp_op_kind smp__op_patchify = {
    .name = "patchify",
    .summary = "an image as rows of square patches",
    .sample = "inputs:\n"
              "  image: {dtype: float32, shape: [3, 4, 6]}\n"
              "ops:\n"
              "  - {op: patchify, name: op, in: image, out: y, patch: 2}\n",
    .min_in = 1,
    .max_in = 1,
    .attrs = ATTRS,
    .infer = infer,
    .work = smp__work_copy,
    .cpu = {.forward = forward, .backward_input = backward_input},
};

/* What inferring shapes shares. */
#ifndef SMP_GRAPH_ONNX_ONNX_SHAPE_H
#define SMP_GRAPH_ONNX_ONNX_SHAPE_H

#include <string.h>

#include "graph/onnx/onnx_model.h"

typedef struct smp__infer {
    smp_onnx_model *m;
    const smp_onnx_node *node;
    const smp_onnx_value *in[4]; /* the first ones; NULL: left out, or its shape is not known */
    smp_onnx_value *out;         /* of output 0, whose n_dim is -1 on entry */
} smp__infer;

static inline void smp__shape_like(smp_onnx_value *out, const smp_onnx_value *in)
{
    out->n_dim = in->n_dim;
    memcpy(out->dim, in->dim, sizeof(out->dim));
}

/* onnx_shape_moves.c: operators that move values, and those that say how many there are. */
void smp__shape_flatten(smp__infer *i);
void smp__shape_reshape(smp__infer *i);
void smp__shape_transpose(smp__infer *i);
void smp__shape_concat(smp__infer *i);
void smp__shape_split(smp__infer *i);
void smp__shape_slice(smp__infer *i);
void smp__shape_squeeze(smp__infer *i);
void smp__shape_unsqueeze(smp__infer *i);
void smp__shape_gather(smp__infer *i);
void smp__shape_gather_nd(smp__infer *i);
void smp__shape_expand(smp__infer *i);
void smp__shape_tile(smp__infer *i);
void smp__shape_pad(smp__infer *i);
void smp__shape_resize(smp__infer *i);
void smp__shape_depth_and_space(smp__infer *i);
void smp__shape_shape_of(smp__infer *i);

#endif

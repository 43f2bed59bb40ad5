/* What the converters of the room share: what each value of the ONNX graph has become so far, and
 * the model file that is being written. */
#ifndef SMP_GRAPH_IMPORT_IMPORTING_H
#define SMP_GRAPH_IMPORT_IMPORTING_H

#include "graph/import/import.h"
#include "graph/model/graph.h"
#include "graph/safetensors/weights_file.h"

typedef enum smp__form {
    SMP__NOTHING,  /* a constant, or not there yet */
    SMP__TENSOR,   /* a tensor of the model file */
    SMP__HEADS,    /* the same, seen as heads: `axes` says in which order */
    SMP__SCORES,   /* q k^T of attention, scaled and masked so far */
    SMP__PROBS,    /* their softmax */
    SMP__NO_PROBS, /* where those are not a number */
    SMP__MASK,     /* base + slope * (1 for a key that counts, else 0) */
    SMP__HALF,     /* one half of each head's width */
    SMP__TURNED,   /* minus the second half of each head, then the first */
    SMP__COSINE,   /* heads times a table of cosines by position */
    SMP__SINE      /* turned heads times one of sines */
} smp__form;

enum { SMP__MOST_DEFERRED = 32 };

typedef struct smp__heads {
    const char *tensor; /* [T, heads * width] */
    int64_t length, heads, width;
    int64_t repeat; /* each head stands for so many neighbours */
    double factor;  /* times this */
} smp__heads;

typedef struct smp__bound {
    smp__form form;
    int deferred; /* nodes after one another that nothing is written for yet */
    /* TENSOR, and the input of MASK: */
    const char *tensor; /* its name */
    smp_shape shape;    /* of one sample */
    int merged;         /* the first dimension in ONNX is the batch times so many of these */
    bool single;        /* no batch: the dimensions in ONNX are those of `shape` */
    bool is_int;
    bool opaque; /* its values are not known to be float32 or int32 */
    /* HEADS and what follows from them. Letters are dimensions: N batch, T position, H head, W
     * width, B batch times head, R neighbours that share a head, 1 none of these. */
    char axes[8];
    smp__heads q, k; /* HEADS, HALF ..: q */
    double scale;    /* of SCORES */
    bool causal;
    const char *mask;              /* int32 [keys] */
    bool scores_closed;            /* something was added: they can no longer be scaled */
    int64_t buckets, max_distance; /* of a learned bias by distance */
    const float *bias_table;       /* [buckets][heads]; NULL: none */
    int32_t bias_stored;           /* initializer that it comes from */
    bool bias_causal;              /* has buckets for the past alone */
    double base, slope;            /* of MASK */
    int half;                      /* of HALF: 0, 1; negated: 2 + ... */
    const float *table;            /* of COSINE and SINE: [length][width] */
} smp__bound;

typedef struct smp__weight {
    const char *name;
    smp_stored_shape shape;
    const float *values; /* NULL: all `fill` */
    float fill;
    int64_t columns; /* of the transposed matrix in `values`; 0: as it is */
    int32_t stored;  /* initializer that it is; -1: none */
} smp__weight;

struct smp_import {
    smp_onnx_model *model;
    const smp_import_options *options;
    smp_arena *arena;
    smp_text inputs, ops, text;
    smp_status status; /* the first failure */
    smp__bound *bound; /* [model->n_value] */
    int32_t *reader;   /* [n_value] the last node that reads it, or -1 */
    bool *done;        /* [n_node] written, or part of what was */
    smp_map *names;    /* of operators, tensors and inputs */
    smp__weight *weight;
    int32_t n_weight;
    int32_t *first_weight; /* [n_value] one more than that of an initializer; 0: none */
    size_t weight_capacity;
    smp_map *opaque_weights;
    smp_map *matrices; /* weights by a hash of their values */
    smp_imported_output *output;
    int n_output, n_op, n_opaque;
    const smp_onnx_node *node; /* that is being converted */
    const char *why;           /* a converter's reason */
    smp_text notes;            /* lines for the head of the model file: weights tied, and not */
};

typedef struct smp__converter {
    const char *op;
    /* False, with im->why: the node becomes opaque. */
    bool (*convert)(smp_import *im, const smp_onnx_node *node);
} smp__converter;

/* Ended by a NULL name. */
extern const smp__converter smp__convert_arithmetic[], smp__convert_layers[], smp__convert_layout[],
    smp__convert_pictures[];

/* Returns false with the reason. */
bool smp__refuse(smp_import *im, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline smp__bound *smp__bound_of(smp_import *im, const smp_onnx_value *value)
{
    return &im->bound[value - im->model->value];
}

/* Input k as a tensor of the model file whose shape is what ONNX says (but for the batch), float32.
 * What was put off is written now. False: it is a constant, or has another type. */
bool smp__tensor_in(smp_import *im, const smp_onnx_node *node, int k, smp__bound *out);
/* The same, of a value; of any type. */
bool smp__tensor_of(smp_import *im, const smp_onnx_value *value, smp__bound *out);
/* Bound of input k as it is; NULL: left out. */
const smp__bound *smp__peek(smp_import *im, const smp_onnx_node *node, int k);

/* Shape of one sample of a value as ONNX has it; false: its first dimension is not the batch. */
bool smp__sample_shape(const smp_import *im, const smp_onnx_value *value, smp_shape *out);
/* Dimension of a sample that dimension `axis` in ONNX is; -1: the batch, or a part of a merged
 * one. */
int smp__sample_axis(const smp__bound *bound, int64_t axis, int n_dim);
int64_t smp__product(const smp_shape *shape, int begin, int end);

/* A float with the fewest digits that it has. */
const char *smp__number(smp_import *im, double value);
/* A name that is taken by nobody else, from one of ONNX: "/h.0/qkv/MatMul" gives "h.0.qkv". */
const char *smp__op_name(smp_import *im, const smp_onnx_node *node, const smp_onnx_value *weight);
const char *smp__unique(smp_import *im, const char *name);

/* Writes an operator "  - {op: kind, name: .., in: .., out: .." and then what `format` says, with
 * the brace that closes it. Its output has its name, which is returned. */
const char *smp__emit(smp_import *im, const char *kind, const char *name, const char *const *inputs,
                      int n, const char *format, ...) __attribute__((format(printf, 6, 7)));
const char *smp__emit_one(smp_import *im, const char *kind, const char *name, const char *input,
                          const char *format, ...) __attribute__((format(printf, 5, 6)));

/* A weight of operator `name`. values: [shape], or transposed: [shape.dim[1]][shape.dim[0]].
 * Returns the name of an earlier weight of the same initializer and values, to which it is to be
 * tied, or NULL. */
const char *smp__add_weight(smp_import *im, const char *name, const char *role, smp_shape shape,
                            const smp_onnx_value *value, const float *values, bool transposed);
void smp__fill_weight(smp_import *im, const char *name, const char *role, int64_t n, float fill);
/* Did the exporter leave out a bias of zeroes? Then it becomes the weight "bias" of n values. */
bool smp__lost_bias(smp_import *im, const char *name, int64_t n);
/* ", tie: {role: other}" for those of the roles that have one; "" for none. */
const char *smp__ties(smp_import *im, const char *const *role, const char *const *tied, int n);

/* May a constant become a weight that is trained? */
bool smp__trainable(smp_import *im, const smp_onnx_value *value);

/* Binds output k. */
void smp__bind(smp_import *im, const smp_onnx_node *node, int k, const smp__bound *bound);
/* ... to a tensor of the shape that ONNX says. */
void smp__bind_tensor(smp_import *im, const smp_onnx_node *node, int k, const char *tensor,
                      const smp_shape *shape, int merged);
/* The tensor of `shape` as one of another shape, of as many elements. */
const char *smp__reshaped(smp_import *im, const char *near, const char *tensor,
                          const smp_shape *from, const smp_shape *to);

/* import_opaque.c */
void smp__opaque(smp_import *im, const smp_onnx_node *node, const char *why);
/* import_heads.c: each returns false, and leaves no reason, where what it is for is not there. */
bool smp__heads_reshape(smp_import *im, const smp_onnx_node *node);
bool smp__heads_transpose(smp_import *im, const smp_onnx_node *node);
bool smp__heads_expand(smp_import *im, const smp_onnx_node *node);
bool smp__heads_matmul(smp_import *im, const smp_onnx_node *node);
bool smp__heads_scaled(smp_import *im, const smp_onnx_node *node, int input, double factor);
const char *smp__heads_tensor(smp_import *im, const char *near, const smp__bound *bound,
                              smp_shape *shape);
/* import_scores.c */
bool smp__scores_add(smp_import *im, const smp_onnx_node *node);
bool smp__scores_softmax(smp_import *im, const smp_onnx_node *node);
bool smp__scores_where(smp_import *im, const smp_onnx_node *node);
bool smp__mask_step(smp_import *im, const smp_onnx_node *node);
/* import_rotary.c */
bool smp__rotary_slice(smp_import *im, const smp_onnx_node *node);
bool smp__rotary_split(smp_import *im, const smp_onnx_node *node);
bool smp__rotary_negate(smp_import *im, const smp_onnx_node *node);
bool smp__rotary_concat(smp_import *im, const smp_onnx_node *node);
bool smp__rotary_mul(smp_import *im, const smp_onnx_node *node);
bool smp__rotary_add(smp_import *im, const smp_onnx_node *node);
/* import_pattern.c: nodes that stand for one operator become that one. */
smp_status smp__find_patterns(smp_onnx_model *model);

#endif

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
    SMP__MASK,     /* of an input of ones and zeroes by key, and places: `value` */
    SMP__HALF,     /* one half of each head's width */
    SMP__TURNED,   /* minus the second half of each head, then the first */
    SMP__COSINE,   /* heads times a table of cosines by position */
    SMP__SINE      /* turned heads times one of sines */
} smp__form;

enum { SMP__MOST_DEFERRED = 32 };

typedef struct smp__heads {
    const char *tensor; /* [T, parts * heads * width] */
    int64_t length, parts, heads, width;
    int64_t repeat; /* each head stands for so many neighbours */
    double factor;  /* times this */
} smp__heads;

/* Dimensions of a mask in ONNX: it repeats itself along all others. One for both: samples' keys one
 * after another. -1: there is one sample alone. */
typedef struct smp__mask_axes {
    int sample, key;
} smp__mask_axes;

/* Which keys a query sees by its position alone. */
typedef struct smp__places {
    bool causal;    /* none behind it */
    int64_t window; /* so many, with itself the last; 0: all before */
} smp__places;

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
    /* HEADS and what follows from them: */
    char axes[32];                 /* import_axes.c */
    smp__heads q, k;               /* HEADS, HALF ..: q */
    double scale;                  /* of SCORES */
    double cap;                    /* scores are cap * tanh(scale * q k^T / cap); 0: as they are */
    bool tanh;                     /* their tanh was taken, and is not multiplied yet */
    smp__places open;              /* of SCORES and MASK */
    const char *mask;              /* int32 [keys] */
    const smp_onnx_value *plus;    /* of MASK: what is added where it hides nothing; NULL: 0 */
    bool scores_closed;            /* something was added: they can no longer be scaled */
    int64_t buckets, max_distance; /* of a learned bias by distance */
    const float *bias_table;       /* [buckets][heads]; NULL: none */
    int32_t bias_stored;           /* initializer that it comes from */
    bool bias_causal;              /* has buckets for the past alone */
    double value[2][2];            /* of MASK: [is the place open?][does the key count?] */
    smp__mask_axes along;          /* of MASK */
    int half;                      /* of HALF: 0, 1; negated: 2 + ... */
    const float *table;            /* of COSINE and SINE: [length][width] */
} smp__bound;

typedef struct smp__weight {
    const char *name;
    smp_stored_shape shape;
    const float *values; /* NULL: all `fill` */
    float fill;
    int64_t columns;             /* of the transposed matrix in `values`; 0: as it is */
    int32_t stored;              /* initializer that it is; -1: none */
    const smp_onnx_node *reader; /* that has it as an input; NULL: one before it, or none */
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
    size_t weight_capacity;
    smp_map *opaque_weights;
    smp_map *parts;    /* of packed tensors */
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

/* Writes a split of `tensor` into n, whose names are returned in `part`. */
void smp__split(smp_import *im, const char *name, const char *tensor, int axis, int n,
                const int64_t *size, const char **part);

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

/* import_arithmetic.c: the input as it is, for what changes nothing. */
bool smp__passes(smp_import *im, const smp_onnx_node *node, int k);
bool smp__same_size(smp_import *im, const smp_onnx_node *node, int k);
/* import_constants.c: input `tensor` and a constant, of "add", "sub" or "mul", as a bias along one
 * dimension or a table of positions; else with a weight of the tensor's shape. */
bool smp__with_constant(smp_import *im, const smp_onnx_node *node, const char *kind, int tensor,
                        int constant);
/* A constant as an operator `parameter` with the shape of one sample. Returns its tensor. */
const char *smp__parameter(smp_import *im, const smp_onnx_node *node, const smp_onnx_value *c,
                           const smp_shape *shape, const float *values);
/* import_opaque.c */
/* Names of a file, which may have any bytes, in a comment. */
void smp__comment(smp_text *out, const char *text);
void smp__opaque(smp_import *im, const smp_onnx_node *node, const char *why);
/* import_heads.c: each returns false, and leaves no reason, where what it is for is not there. */
bool smp__heads_reshape(smp_import *im, const smp_onnx_node *node);
bool smp__heads_transpose(smp_import *im, const smp_onnx_node *node);
bool smp__heads_expand(smp_import *im, const smp_onnx_node *node);
bool smp__heads_matmul(smp_import *im, const smp_onnx_node *node);
bool smp__heads_scaled(smp_import *im, const smp_onnx_node *node, int input, double factor);
/* Takes element k of dimension d, which stays as 1 or goes. */
bool smp__heads_select(smp_import *im, const smp_onnx_node *node, int output, int d, int64_t k,
                       bool keeps);
/* Binds what is seen as heads, or as a tensor where that is all it is. */
void smp__heads_bind(smp_import *im, const smp_onnx_node *node, int k, const smp__bound *heads);
/* import_axes.c */
bool smp__axis_is(const smp__bound *heads, int d, char letter);
bool smp__axes_are(const smp__bound *heads, const char *axes);
/* Is the last dimension the width of a head, or of a position? */
bool smp__axes_end_in_width(const smp__bound *heads);
/* Do the dimensions have the sizes that the value has? */
bool smp__axes_fit(const smp_import *im, const smp__bound *heads, const smp_onnx_value *value);
/* By other dimensions, or in another order; false: they are no groups of letters. */
bool smp__axes_reshape(const smp_import *im, smp__bound *heads, const smp_onnx_value *to);
bool smp__axes_permute(smp__bound *heads, const int64_t *perm, int n);
void smp__axes_without(smp__bound *heads, int d, bool keeps);
bool smp__axes_plain(const smp__bound *heads, smp__bound *tensor);
/* Writes it out as it lies; false, with the reason: no tensor of SMP can. */
bool smp__axes_write(smp_import *im, const smp__bound *heads, smp__bound *tensor);
/* import_scores.c */
bool smp__scores_add(smp_import *im, const smp_onnx_node *node);
bool smp__scores_tanh(smp_import *im, const smp_onnx_node *node);
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
/* Does the operator, of a value that is no heads, only give it other dimensions or another type? */
bool smp__only_moves(const char *op);
/* import_indices.c: indices that are computed from inputs become inputs. */
smp_status smp__take_indices(smp_import *im);
/* import_pattern.c: nodes that stand for one operator become that one. */
smp_status smp__find_patterns(smp_onnx_model *model);

#endif

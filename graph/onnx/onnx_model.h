/* The graph of an ONNX file: values and nodes as indices, shapes with a number for the batch, and
 * the values that do not depend on an input. What an importer reads; it knows nothing of SMP's
 * operators. */
#ifndef SMP_GRAPH_ONNX_ONNX_MODEL_H
#define SMP_GRAPH_ONNX_ONNX_MODEL_H

#include <stdbool.h>

#include "graph/base/text.h"
#include "graph/onnx/onnx_file.h"

enum {
    SMP_ONNX_DIMS = 8,
    SMP_ONNX_OPSET_FIRST = 1,
    SMP_ONNX_OPSET_LAST = 21,
    SMP_ONNX_SYMBOL = 7 /* what a batch without a number counts as while shapes are inferred */
};

typedef struct smp_onnx_value {
    const char *name;
    int type;  /* of Onnx__TensorProto__DataType; 0: not known */
    int n_dim; /* -1: not known */
    int64_t dim[SMP_ONNX_DIMS];
    /* A constant has one of them, [elements]: floats of every float type, ints of all others. */
    const float *floats;
    const int64_t *ints;
    int32_t stored;   /* a constant: the initializer of which it is a rearrangement; -1: none */
    bool repeats;     /* ... that has some of its values several times */
    bool by_sample;   /* ... but only as its first dimension, the batch, repeats all others */
    int32_t producer; /* node, or -1 */
    int32_t n_use;    /* nodes that read it, by slot */
    bool input;       /* of the model, without a value in the file */
    bool output;
    bool batched;  /* an input whose first dimension is the batch */
    bool inferred; /* its shape follows from the node that makes it */
} smp_onnx_value;

typedef struct smp_onnx_node {
    const Onnx__NodeProto *proto;
    const char *op;    /* op_type, "domain.op_type", or what a pattern made of it */
    const char *name;  /* its own, or that of its first output */
    int32_t *in, *out; /* values; in: -1 where left out */
    int n_in, n_out;
    bool live;     /* a later live node, or an output of the model, reads it */
    double number; /* of a pattern: its epsilon */
} smp_onnx_node;

/* "NAME=NUMBER": what a symbolic dimension is. */
typedef struct smp_onnx_dim {
    const char *name;
    int64_t value;
} smp_onnx_dim;

typedef struct smp_onnx_model {
    const smp_onnx_file *file;
    smp_arena *arena;
    int opset;
    int64_t batch;            /* what the first dimension of a batched input counts as */
    const char *batch_symbol; /* NULL: a number */
    const smp_onnx_dim *given;
    int n_given;
    int32_t n_value, n_node;
    size_t value_capacity;
    smp_onnx_value *value;
    smp_onnx_node *node;
    smp_map *by_name;
    int64_t folded_bytes, folded_work; /* that constants computed here take; elements read */
    int64_t stored_bytes;              /* of the file and those beside it */
    smp_map *read_beside;              /* bytes that were read of each of these */
} smp_onnx_model;

/* Values, nodes, shapes and constants of a file that outlives it. given: symbolic dimensions; one
 * that is not the batch and not given is an error. SMP_ERR_INPUT names node, type and reason.
 * *out: smp_onnx_model_destroy, which takes NULL. */
smp_status smp_onnx_model_read(const smp_onnx_file *file, const smp_onnx_dim *given, int n_given,
                               smp_onnx_model **out);
void smp_onnx_model_destroy(smp_onnx_model *model);

static inline bool smp_onnx_constant(const smp_onnx_value *value)
{
    return value->floats || value->ints;
}

/* Records "FILE: node 3 'name' (Op) at byte 120: what" and returns SMP_ERR_INPUT. */
smp_status smp_onnx_fail(const smp_onnx_model *model, const smp_onnx_node *node, const char *format,
                         ...) __attribute__((format(printf, 3, 4)));

/* Attributes; what is not there, or of another type, is the default. */
const Onnx__AttributeProto *smp__onnx_attr(const smp_onnx_node *node, const char *name);
int64_t smp__onnx_int(const smp_onnx_node *node, const char *name, int64_t absent);
double smp__onnx_float(const smp_onnx_node *node, const char *name, double absent);
const char *smp__onnx_text(const smp_onnx_node *node, const char *name, const char *absent);
/* [*n]; NULL: not there. */
const int64_t *smp__onnx_ints(const smp_onnx_node *node, const char *name, size_t *n);

/* Input k of a node; NULL where left out. */
smp_onnx_value *smp__onnx_in(const smp_onnx_model *model, const smp_onnx_node *node, int k);
smp_onnx_value *smp__onnx_out(const smp_onnx_model *model, const smp_onnx_node *node, int k);
/* A list of integers by an attribute (of older operator sets) or a constant input; false: neither.
 */
bool smp__onnx_list(const smp_onnx_model *model, const smp_onnx_node *node, const char *attr,
                    int input, const int64_t **list, size_t *n);
/* Attribute axis of a Concat; older operator sets have a default for it. */
static inline int64_t smp__onnx_concat_axis(const smp_onnx_model *model, const smp_onnx_node *node)
{
    return smp__onnx_int(node, "axis", model->opset < 4 ? 1 : 0);
}
/* An axis of n dimensions, of which negative ones count from the end; false: it is none. */
bool smp__onnx_axis(int64_t axis, int n_dim, int *out);

/* -1: not known, or more than 2^40. */
int64_t smp__onnx_elements(const smp_onnx_value *value);
bool smp__onnx_is_float(int type);
int smp__onnx_type_bytes(int type);
/* A constant of one element. */
bool smp__onnx_scalar(const smp_onnx_value *value, double *out);
/* What an operator of two inputs, or a comparison, makes of two numbers. */
double smp__onnx_of_two(const char *op, double a, double b);
/* May so many elements of constants be looked at once more? So that a small file cannot keep a
 * reader busy for hours. */
bool smp__onnx_work(smp_onnx_model *model, int64_t elements);
/* Memory of a constant, within what all may take; NULL: no more. */
void *smp__onnx_take(smp_onnx_model *model, int64_t elements, size_t size);

/* onnx_origin.c: what PyTorch's exporter notes beside a node; empty where it notes nothing.
 * Not ended by a zero. */
typedef struct smp__onnx_note {
    const char *text;
    size_t length;
} smp__onnx_note;
smp__onnx_note smp__onnx_noted(const smp_onnx_node *node, const char *key);
/* How many parameters the operator read that the node was made of; -1: not said. */
int smp__onnx_parameters(const smp_onnx_node *node);
/* Did that read others, and not the parameter that is stored under this name? */
bool smp__onnx_reads_another(const smp_onnx_node *node, const char *initializer);
/* Does it read buffers, which are not trained, and no parameter? */
bool smp__onnx_reads_buffer(const smp_onnx_node *node);
/* Do both say that they read one and the same? */
bool smp__onnx_share_parameter(const smp_onnx_node *a, const smp_onnx_node *b);
/* Did the exporter rewrite a convolution and the batch normalisation behind it as this node? */
bool smp__onnx_batchnorm_folded(const smp_onnx_node *node);
/* Row of its table that an embedding does not train (padding_idx); -1: none, or not said. */
int64_t smp__onnx_padding_row(const smp_onnx_node *node);
/* The module that called it: "h.0.ln_1". */
smp__onnx_note smp__onnx_module(const smp_onnx_node *node);

/* onnx_constant.c: the value of a tensor in the file, or of a file beside it. */
smp_status smp__onnx_constant(smp_onnx_model *model, const Onnx__TensorProto *tensor,
                              const char *what, smp_onnx_value *out);
/* onnx_shape.c: types and shapes of the outputs, where they can be known. */
void smp__onnx_infer(smp_onnx_model *model, const smp_onnx_node *node);
/* The ranges of a Slice, where they are known: [n_dim] each of its input, cut to what is there. */
bool smp__onnx_slices(const smp_onnx_model *model, const smp_onnx_node *node, int64_t begin[],
                      int64_t step[], int64_t count[]);
/* onnx_fold.c: values of the outputs of a node whose inputs are constants, if it is one that shapes
 * and masks need. */
smp_status smp__onnx_fold(smp_onnx_model *model, const smp_onnx_node *node);

#endif

/* What exports of operators are written with: nodes, attributes and constants of an ONNX graph in
 * the making.
 *
 * A failure stays in `status`; calls after it do nothing and give "", so that an export reads like
 * the formula that it is. Names of values made here have a `#`, which no name of a model has.
 *
 * Samples have a batch in front: dimension d of a sample is dimension d + 1 of a value, and shapes
 * begin with 0, Reshape's word for as it is. */
#ifndef SMP_GRAPH_EXPORT_EXPORT_NODES_H
#define SMP_GRAPH_EXPORT_EXPORT_NODES_H

#include <stdbool.h>

#include "graph/base/arena.h"
#include "graph/base/text.h"
#include "graph/model/op.h"
#include "graph/onnx/onnx_file.h"

/* The opset: the first with LayerNormalization. What later ones add (Gelu, GroupNormalization,
 * RMSNormalization, Attention) is made of what this one has, so that older runtimes read it. */
enum { SMP__OPSET = 17, SMP__IR_VERSION = 8 };

typedef struct smp__node_out {
    const smp_graph *model;
    const smp_op *op; /* whose export is under way */
    smp_arena *arena;
    smp_map *known; /* of constants and values that are made once */
    smp_status status;
    Onnx__NodeProto **node;
    Onnx__TensorProto **constant;
    size_t n_node, node_capacity, n_constant, constant_capacity;
    const char **value; /* [tensors of the model] what it is called here; NULL: not made */
    bool *weight_used;  /* [weights of the model] */
    int64_t n_name;
} smp__node_out;

/* A node of one output, whose name is returned; `in` ends with NULL. */
const char *smp__node_add(smp__node_out *x, const char *type, const char *const *in);
#define SMP__NODE(x, type, ...) smp__node_add(x, type, (const char *const[]){__VA_ARGS__, NULL})
/* One of n outputs, to out[n]. */
void smp__node_node_many(smp__node_out *x, const char *type, const char *const *in, int n,
                         const char **out);

/* Attributes of the node made last. */
void smp__node_int(smp__node_out *x, const char *name, int64_t value);
void smp__node_float(smp__node_out *x, const char *name, double value);
void smp__node_text(smp__node_out *x, const char *name, const char *value);
void smp__node_ints(smp__node_out *x, const char *name, const int64_t *value, int n);
#define SMP__INTS(x, name, ...)                                                                    \
    smp__node_ints(x, name, (const int64_t[]){__VA_ARGS__},                                        \
                   (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))

/* Constants: a number; int64 in one dimension. */
const char *smp__node_number(smp__node_out *x, double value);
const char *smp__node_list(smp__node_out *x, const int64_t *value, int64_t n);
#define SMP__LIST(x, ...)                                                                          \
    smp__node_list(x, (const int64_t[]){__VA_ARGS__},                                              \
                   (int64_t)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))
/* A table that is made once: the name under `key`, which says all that its values depend on. NULL
 * in *fill: it is there, or there is no memory; else its values, to be filled in: floats, or int64
 * if `whole`. */
const char *smp__node_table(smp__node_out *x, const char *key, smp_shape shape, bool whole,
                            void **fill);

/* Values that several operators share: NULL if there is none of that name yet. */
const char *smp__node_known(smp__node_out *x, const char *key);
const char *smp__node_keep(smp__node_out *x, const char *key, const char *value);
/* Text that lives as long as the export. */
const char *smp__node_text_of(smp__node_out *x, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Names in the operator under way: an input, a weight, an attribute, what its output is called. */
const char *smp__node_in(smp__node_out *x, int slot);
const char *smp__node_weight(smp__node_out *x, int slot);
const smp_attr_value *smp__node_attr(const smp__node_out *x, const char *name);
const smp_shape *smp__node_in_shape(const smp__node_out *x, int slot);
const smp_shape *smp__node_out_shape(const smp__node_out *x);
void smp__node_is(smp__node_out *x, const char *value); /* output 0 */

/* Reshape to [batch, shape]. */
const char *smp__node_reshape(smp__node_out *x, const char *value, const smp_shape *shape);
#define SMP__RESHAPE(x, value, ...)                                                                \
    smp__node_reshape(                                                                             \
        x, value,                                                                                  \
        &(smp_shape){(int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),              \
                     {__VA_ARGS__}})
/* Its dimensions in another order, which `perm` gives with the batch: n numbers from 0. */
const char *smp__node_permute(smp__node_out *x, const char *value, const int64_t *perm, int n);
#define SMP__PERMUTE(x, value, ...)                                                                \
    smp__node_permute(x, value, (const int64_t[]){__VA_ARGS__},                                    \
                      (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))
/* What is the same for every sample, [shape], for all of them: [batch, shape]. `from`: of that
 * many samples. */
const char *smp__node_spread(smp__node_out *x, const char *value, const smp_shape *shape);

/* A dimension of input 0 that an attribute says, as one of the value: negative ones count from the
 * end. */
int64_t smp__node_axis(const smp__node_out *x);

/* Records that this operator has no export for this reason. */
void smp__node_refuse(smp__node_out *x, const char *reason);

#endif

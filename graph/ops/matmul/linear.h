/* What linear, ring_linear and linear_cross_entropy share: attributes, weights, and the products in
 * bf16. Readable as C++. */
#ifndef SMP_GRAPH_OPS_LINEAR_H
#define SMP_GRAPH_OPS_LINEAR_H

#include "graph/ops/ops.h"

enum {
    SMP__LINEAR_FEATURES,
    SMP__LINEAR_BIAS,
    SMP__LINEAR_WEIGHT,
    SMP__LINEAR_INIT_STD,
    SMP__LINEAR_N
};

#define SMP__LINEAR_ATTRS                                                                          \
    [SMP__LINEAR_FEATURES] = {"features", SMP_ATTR_INT, true, 0, 1, INT32_MAX, NULL},              \
    [SMP__LINEAR_BIAS] = {"bias", SMP_ATTR_BOOL, false, 1, 0, 1, NULL},                            \
    [SMP__LINEAR_WEIGHT] = {"weight", SMP_ATTR_STRING, false, 0, 0, 0, NULL},                      \
    [SMP__LINEAR_INIT_STD] = {"init_std", SMP_ATTR_FLOAT, false, 0, 0, 1e6, NULL}

/* Output as wide as `features`, weight and bias. */
smp_status smp__infer_linear(smp_infer *infer);

/* Are the factors of the op's products rounded to fp8? The one rule: the target is fp8, the op is a
 * `linear`, both its widths are multiples of 16, as tensor cores want them, and it is no head: what
 * the loss, or the model's user, gets of it passes ops without weights and with one input alone;
 * nor a router, by whose values experts are chosen.
 * The head, embeddings, attention's products and experts are as in bf16. */
bool smp__linear_is_fp8(const smp_graph *graph, const smp_op *op);

/* In bf16: y = x W^T + b and dx = dy W of `rows` rows, dW += dy^T x of `all`. Wide ones are
 * fp32. */
typedef struct smp__linear16 {
    int64_t rows, all, in, features;
    bool bias, wide_forward, wide_input, training;
} smp__linear16;

typedef struct smp__gemms16 {
    struct smp_math_gemm16 *forward, *input, *weight; /* the last two in training */
} smp__gemms16;

/* A kernel's state; released too where this fails. */
smp_status smp__prepare_gemms16(const smp__linear16 *shape, void **state);
void smp__release_gemms16(void *state);

/* total[c] += sum over n rows of bf16, in order, as in fp32. */
void smp__add_rows16(float *total, const uint16_t *rows, int64_t n, int64_t columns);

#endif

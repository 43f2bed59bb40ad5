/* Are the gradients of an operator those of what it computes? By finite differences of its own
 * forward, on the CPU in fp32, for operators of a user's own first of all. */
#ifndef SMP_GRAPH_OPS_CHECK_GRADIENTS_H
#define SMP_GRAPH_OPS_CHECK_GRADIENTS_H

#include "graph/model/op.h"

typedef enum smp_gradient_verdict {
    SMP_GRADIENT_RIGHT,
    SMP_GRADIENT_UNKNOWN, /* differences drown in the roundings of forward, wherever it was tried */
    SMP_GRADIENT_WRONG,
    SMP_GRADIENT_NOT_ADDED /* of a weight: is not added to what its accumulator holds */
} smp_gradient_verdict;

/* The gradient of one input or weight. */
typedef struct smp_gradient_check {
    bool of_param;
    int slot;
    smp_gradient_verdict verdict;
    double error;    /* the largest that was found, over the largest value of the gradient */
    int64_t element; /* where that is, of all samples of an input; -1: no element could be told
                        from roundings, and the numbers are those along the gradient itself */
    double got, expected;
} smp_gradient_check;

enum { SMP_MAX_GRADIENT_CHECKS = SMP_OP_MAX_IN + SMP_OP_MAX_PARAM };

/* Checks what training asks of an op with kernels: gradients of inputs that need one, and of
 * weights that are trained; *n of them, into out [SMP_MAX_GRADIENT_CHECKS]. Values are random
 * numbers of the seed. SMP_ERR_FAILED: a call failed, or forward is not finite. */
smp_status smp_op_check_gradients(const smp_graph *graph, const smp_op *op, int64_t batch,
                                  uint64_t seed, smp_gradient_check *out, int *n);

#endif

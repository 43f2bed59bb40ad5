/* The operators of two inputs of one shape, a row each: binary.c makes loops for the CPU of them,
 * binary.cu kernels for a GPU. add takes more inputs and has a file of its own.
 *
 *   ROW(name, reads, pairs, flops of an element forward, backward, summary, value, da, db)
 *
 * value is an expression of a and b, elements of the inputs; the gradients da and db are
 * expressions of dy, and of a and b if backward reads the `inputs`, not `nothing`. pairs: on a GPU
 * its backward shares a kernel with that of a `gate`, a silu that makes a, or it is `alone`. */
#ifndef SMP_GRAPH_OPS_ELEMENTWISE_BINARY_H
#define SMP_GRAPH_OPS_ELEMENTWISE_BINARY_H

#include "graph/ops/ops.h"

// clang-format off
#define SMP__BINARY(ROW)                                                                           \
    ROW(sub, nothing, alone, 1, 1, "difference of two tensors of one shape",                       \
        a - b, dy, -dy)                                                                            \
    ROW(mul, inputs, gate, 1, 2, "product of two tensors of one shape, element by element",        \
        a * b, dy * b, dy * a)
// clang-format on

#endif

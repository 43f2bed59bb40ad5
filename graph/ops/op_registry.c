/* The list of operators: the one place that knows them all. */
#include "graph/ops/ops.h"

#include <string.h>

static const smp_op_kind *const KINDS[] = {
    &smp__op_embedding,
    &smp__op_position_embedding,
    &smp__op_linear,
    &smp__op_layernorm,
    &smp__op_gelu,
    &smp__op_relu,
    &smp__op_tanh,
    &smp__op_softmax,
    &smp__op_attention,
    &smp__op_add,
    &smp__op_mul,
    &smp__op_dropout,
    &smp__op_flatten,
    &smp__op_reshape,
    &smp__op_concat,
    &smp__op_patchify,
    &smp__op_mean_pool,
    &smp__op_cross_entropy,
    &smp__op_mse,
    &smp__op_opaque,
    NULL,
};

const smp_op_kind *smp_op_kind_find(const char *name)
{
    for (const smp_op_kind *const *kind = KINDS; *kind; kind++)
        if (strcmp((*kind)->name, name) == 0)
            return *kind;
    return NULL;
}

const smp_op_kind *const *smp_op_kinds(void)
{
    return KINDS;
}

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

bool smp_op_kind_runs(const smp_op_kind *kind, smp_backend backend)
{
    static const char *const on_cuda[] = {
#define NAME(name) #name,
        SMP__CUDA_OPS(NAME)
#undef NAME
    };
    if (backend == SMP_BACKEND_CPU)
        return kind->cpu.forward != NULL;
    for (size_t i = 0; i < sizeof on_cuda / sizeof on_cuda[0]; i++)
        if (strcmp(on_cuda[i], kind->name) == 0)
            return true;
    return false;
}

/* The operators as one table: those of op_list.h, then those that custom_op.c adds. */
#include "graph/ops/ops.h"

#include <string.h>

#include "graph/ops/custom_op.h"

#define ONE(name) +1
enum { N_BUILT_IN = SMP__OPS(ONE, ONE) };
#undef ONE

static int n_kind = N_BUILT_IN;
static const smp_op_kind *kinds[N_BUILT_IN + SMP_CUSTOM_MAX_OPS + 1] = {
#define KIND(name) &smp__op_##name,
    SMP__OPS(KIND, KIND)
#undef KIND
};

const smp_op_kind *smp_op_kind_find(const char *name)
{
    for (const smp_op_kind *const *kind = kinds; *kind; kind++)
        if (strcmp((*kind)->name, name) == 0)
            return *kind;
    return NULL;
}

const smp_op_kind *const *smp_op_kinds(void)
{
    return kinds;
}

int smp__custom_ops(void)
{
    return n_kind - N_BUILT_IN;
}

bool smp__custom_ops_push(const smp_op_kind *kind)
{
    if (smp__custom_ops() == SMP_CUSTOM_MAX_OPS)
        return false;
    kinds[n_kind++] = kind;
    return true;
}

const smp_op_kind *smp__custom_ops_pop(void)
{
    const smp_op_kind *last = kinds[--n_kind];
    kinds[n_kind] = NULL;
    return last;
}

bool smp_op_kind_runs(const smp_op_kind *kind, smp_backend backend)
{
#define YES(name) true,
#define NO(name) false,
    static const bool on_cuda[N_BUILT_IN] = {SMP__OPS(YES, NO)};
#undef YES
#undef NO
    if (smp_backend_of((smp_target){.backend = backend})->cpu_kernels)
        return kind->cpu.forward != NULL;
    for (int i = 0; i < N_BUILT_IN; i++)
        if (kinds[i] == kind)
            return backend == SMP_BACKEND_CUDA && on_cuda[i];
    return false;
}

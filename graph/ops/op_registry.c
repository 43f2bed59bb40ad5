/* The operators of op_list.h as tables: kinds, and which of them have CUDA kernels. */
#include "graph/ops/ops.h"

#include <string.h>

static const smp_op_kind *const KINDS[] = {
#define KIND(name) &smp__op_##name,
    SMP__OPS(KIND, KIND)
#undef KIND
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
#define YES(name) true,
#define NO(name) false,
    static const bool on_cuda[] = {SMP__OPS(YES, NO)};
#undef YES
#undef NO
    if (backend == SMP_BACKEND_CPU)
        return kind->cpu.forward != NULL;
    for (size_t i = 0; KINDS[i]; i++)
        if (KINDS[i] == kind)
            return on_cuda[i];
    return false;
}

/* The CUDA kernels of every kind, in a file of its own: a program that only plans does not link it. */
#include "graph/ops/ops.h"

#include <string.h>

#ifdef SMP_HAVE_CUDA

#define DECLARE(name) extern const smp_op_kernels smp__cuda_##name;
SMP__CUDA_OPS(DECLARE)
#undef DECLARE

const smp_op_kernels *smp_op_cuda_kernels(const smp_op_kind *kind)
{
    static const struct {
        const char *name;
        const smp_op_kernels *kernels;
    } list[] = {
#define ENTRY(name) {#name, &smp__cuda_##name},
        SMP__CUDA_OPS(ENTRY)
#undef ENTRY
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (strcmp(list[i].name, kind->name) == 0)
            return list[i].kernels;
    return NULL;
}

#else

const smp_op_kernels *smp_op_cuda_kernels(const smp_op_kind *kind)
{
    (void)kind;
    return NULL;
}

#endif

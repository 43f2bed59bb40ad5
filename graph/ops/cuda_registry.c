/* The CUDA kernels of every kind, in a file of its own: a program that only plans does not link
 * it. */
#include "graph/ops/ops.h"

#define DECLARE(name) extern const smp_op_kernels smp__cuda_##name;
#define NOTHING(name)
SMP__OPS(DECLARE, NOTHING)
#undef DECLARE

const smp_op_kernels *smp_op_cuda_kernels(const smp_op_kind *kind)
{
    static const struct {
        const smp_op_kind *kind;
        const smp_op_kernels *kernels;
    } list[] = {
#define ENTRY(name) {&smp__op_##name, &smp__cuda_##name},
        SMP__OPS(ENTRY, NOTHING)
#undef ENTRY
    };
#undef NOTHING
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].kind == kind)
            return list[i].kernels;
    return NULL;
}

/* Which optimizers a GPU has. */
#include "exec/optimizer/cuda_optimizer.h"

const smp__cuda_optimizer *smp__cuda_optimizer_of(const smp_optimizer *optimizer)
{
#define ENTRY(name) {&smp__optimizer_##name, &smp__cuda_##name},
    static const struct {
        const smp_optimizer *optimizer;
        const smp__cuda_optimizer *cuda;
    } list[] = {SMP__CUDA_OPTIMIZERS(ENTRY)};
#undef ENTRY
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].optimizer == optimizer)
            return list[i].cuda;
    return NULL;
}

/* The optimizers on a GPU: <name>.cu defines smp__cuda_<name>. An optimizer need not have one. */
#ifndef SMP_EXEC_OPTIMIZER_CUDA_OPTIMIZER_H
#define SMP_EXEC_OPTIMIZER_CUDA_OPTIMIZER_H

#include "exec/optimizer/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each of an update and those after it, enqueued on a cudaStream_t. */
typedef struct smp__cuda_optimizer {
    smp_status (*update)(const smp_update *update, void *stream);
    smp_status (*measure)(const smp_update *update, void *stream); /* as smp_optimizer.measure */
} smp__cuda_optimizer;

#define SMP__CUDA_OPTIMIZERS(X)                                                                    \
    X(adamw)                                                                                       \
    X(sgd)                                                                                         \
    X(lion)                                                                                        \
    X(lamb)                                                                                        \
    X(lars)                                                                                        \
    X(novograd)

#define SMP__CUDA_OPTIMIZER_DECLARE(name) extern const smp__cuda_optimizer smp__cuda_##name;
SMP__CUDA_OPTIMIZERS(SMP__CUDA_OPTIMIZER_DECLARE)
#undef SMP__CUDA_OPTIMIZER_DECLARE

/* NULL: it has none. */
const smp__cuda_optimizer *smp__cuda_optimizer_of(const smp_optimizer *optimizer);

#ifdef __cplusplus
}
#endif

#endif

/* NCCL, opened when a GPU is: smp__nccl.ncclSend(...) is the library's function. */
#ifndef SMP_EXEC_TRANSPORT_NCCL_CALLS_H
#define SMP_EXEC_TRANSPORT_NCCL_CALLS_H

#include <nccl.h>

#include "graph/base/status.h"

#define SMP__NCCL_CALLS(X)                                                                         \
    X(ncclGetUniqueId)                                                                             \
    X(ncclCommInitRankConfig)                                                                      \
    X(ncclCommDestroy)                                                                             \
    X(ncclCommAbort)                                                                               \
    X(ncclCommGetAsyncError)                                                                       \
    X(ncclGetErrorString)                                                                          \
    X(ncclGetLastError)                                                                            \
    X(ncclSend)                                                                                    \
    X(ncclRecv)                                                                                    \
    X(ncclAllReduce)                                                                               \
    X(ncclReduce)                                                                                  \
    X(ncclBroadcast)                                                                               \
    X(ncclGroupStart)                                                                              \
    X(ncclGroupEnd)

typedef struct smp__nccl_calls {
#define SMP__NCCL_FIELD(name) __typeof__(&name) name;
    SMP__NCCL_CALLS(SMP__NCCL_FIELD)
#undef SMP__NCCL_FIELD
} smp__nccl_calls;

extern smp__nccl_calls smp__nccl; /* filled by smp__nccl_open */
smp_status smp__nccl_open(void);
/* SMP_ERR_PEER if another rank is to blame, else SMP_ERR_FAILED, with the call's name and NCCL's
 * message, unless the code is ncclSuccess. comm: NULL if there is none. */
smp_status smp__nccl_check(ncclComm_t comm, ncclResult_t code, const char *call);

#endif

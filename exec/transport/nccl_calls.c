/* Opens NCCL. */
#include "graph/base/status.h"

#ifdef SMP_HAVE_NCCL
#include "exec/transport/nccl_calls.h"
#include "graph/base/library.h"

smp__nccl_calls smp__nccl;

smp_status smp__nccl_open(void)
{
#ifdef SMP_EMULATED
#define TAKE(name) smp__nccl.name = name;
    SMP__NCCL_CALLS(TAKE)
#undef TAKE
    return SMP_OK;
#else
    static const char *const symbol[] = {
#define NAME(name) #name,
        SMP__NCCL_CALLS(NAME)
#undef NAME
    };
    return smp_library_open("libnccl.so.2", SMP_CUDA_LIBRARY_DIR,
                            (int)(sizeof symbol / sizeof symbol[0]), symbol, (void **)&smp__nccl);
#endif
}

smp_status smp__nccl_check(ncclComm_t comm, ncclResult_t code, const char *call)
{
    if (code == ncclSuccess)
        return SMP_OK;
    const char *detail = smp__nccl.ncclGetLastError(comm);
    int more = detail && *detail;
    return smp_fail(code == ncclRemoteError ? SMP_ERR_PEER : SMP_ERR_FAILED, "%s: %s%s%s", call,
                    smp__nccl.ncclGetErrorString(code), more ? ": " : "", more ? detail : "");
}
#endif

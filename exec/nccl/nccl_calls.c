/* NCCL, opened when a job needs it, and how its calls are waited for. */
#include <stdio.h>

#include "exec/cuda/cuda_event.h"
#include "exec/nccl/nccl_open.h"
#include "graph/base/library.h"

enum { LEAST_VERSION = 22400 };

smp__nccl_calls smp__nccl;
bool smp__nccl_left;

static smp_status take_library(void)
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

/* 2.22 aborts communicators together, but up to 2.23 a thread of its own opens GPU 0, whichever is
 * the rank's, and takes memory there. */
smp_status smp__nccl_open(void)
{
    int version = 0;
    if (smp__nccl_left)
        return smp_fail(SMP_ERR_FAILED, "a call of NCCL has not returned to an earlier job");
    SMP_TRY(take_library());
    SMP_TRY(smp__nccl_check(NULL, smp__nccl.ncclGetVersion(&version), "ncclGetVersion"));
    if (version >= LEAST_VERSION)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "NCCL %d.%d.%d, expected %d.%d or later", version / 10000,
                    version / 100 % 100, version % 100, LEAST_VERSION / 10000,
                    LEAST_VERSION / 100 % 100);
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

smp_status smp__nccl_blame(const smp__nccl_lane *l, smp_status status)
{
    return smp_fail_context(status, "messages %s pipeline rank %d", l->outgoing ? "to" : "from",
                            l->peer);
}

static smp_status look_at_communicator(ncclComm_t nccl)
{
    ncclResult_t state = ncclSuccess;
    if (!nccl)
        return SMP_OK;
    SMP_TRY(smp__nccl_check(nccl, smp__nccl.ncclCommGetAsyncError(nccl, &state),
                            "ncclCommGetAsyncError"));
    return smp__nccl_check(nccl, state, "NCCL");
}

smp_status smp__nccl_look(const smp__nccl_context *c)
{
    for (int i = 0; i < c->n_lane; i++)
        SMP_TRY(smp__nccl_blame(&c->lane[i], look_at_communicator(c->lane[i].nccl)));
    for (int i = 0; i < SMP__NCCL_SUMS; i++)
        SMP_TRY(
            smp_fail_context(look_at_communicator(c->sums[i].nccl),
                             i == SMP__NCCL_TENSOR ? SMP__NCCL_DEVICES : "sums over the replicas"));
    return SMP_OK;
}

smp_status smp__nccl_end(ncclComm_t comm, ncclResult_t code, const char *call)
{
    const ncclResult_t end = smp__nccl.ncclGroupEnd();
    return smp__nccl_check(comm, code == ncclSuccess ? end : code, call);
}

typedef struct pacing {
    smp__nccl_context *of;
    cudaEvent_t event;
} pacing;

static void describe_pace(const void *context, char *buffer, size_t size)
{
    (void)context;
    snprintf(buffer, size, "the other ranks of a sum, which the device adds up");
}

static smp_status test_pace(void *context, bool *done)
{
    const pacing *p = context;
    int passed;
    SMP_TRY(smp__event_passed(p->event, &passed));
    *done = passed;
    return passed ? SMP_OK : smp__nccl_progress(p->of);
}

smp_status smp__nccl_keep_pace(smp__nccl_context *c, smp__nccl_pace *pace, cudaStream_t stream,
                               int launches)
{
    pace->launched += launches;
    if (pace->launched < SMP__NCCL_LAUNCHES / 2)
        return SMP_OK;
    pace->launched = 0;
    SMP_TRY(SMP_CUDA(cudaEventRecord, pace->passed[pace->recorded++ % 2], stream));
    pacing before = {c, pace->passed[pace->recorded % 2]};
    if (pace->recorded == 1)
        return SMP_OK;
    return smp__comm_wait_until(c->comm, &(smp_wait){0}, test_pace, describe_pace, &before);
}

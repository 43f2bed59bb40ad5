/* What the devices of a group exchange in the middle of an operator, over NCCL: on the compute
 * stream, between the kernels before and behind it, so that the host waits for nothing. Sums are
 * made of what is sent, by rising device, as those of host memory (exec/group/op_group.c): NCCL's
 * own would follow the number of devices and the wires.
 *
 * Of a communicator that has all of the compute stream to itself no operation waits for one that
 * stands behind it: the devices of a group run one program. */
#include "graph/base/status.h"

#ifdef SMP_HAVE_NCCL
#include "exec/device/cuda_kernels.h"
#include "exec/transport/nccl_open.h"
#include "graph/cuda/cuda.h"

static const smp__nccl_sums *devices_of(const smp__nccl_context *c)
{
    return &c->sums[SMP__NCCL_TENSOR];
}

/* To every other device, and from it; a length of 0 is no message. */
static ncclResult_t swap(smp__nccl_context *c, int other, const float *send, int64_t n_send,
                         float *receive, int64_t n_receive)
{
    const smp__nccl_sums *of = devices_of(c);
    ncclResult_t code = ncclSuccess;
    if (n_send > 0)
        code = smp__nccl.ncclSend(send, (size_t)n_send, ncclFloat32, other, of->nccl, c->compute);
    if (code == ncclSuccess && n_receive > 0)
        code = smp__nccl.ncclRecv(receive, (size_t)n_receive, ncclFloat32, other, of->nccl,
                                  c->compute);
    return code;
}

static smp_status copy(smp__nccl_context *c, float *to, const float *from, int64_t n)
{
    if (n == 0 || to == from)
        return SMP_OK;
    return SMP_CUDA(cudaMemcpyAsync, to, from, (size_t)n * sizeof(float), cudaMemcpyDeviceToDevice,
                    c->compute);
}

/* from: a row of n for each device, `step` apart; to: one from each. */
static smp_status swap_rows(smp__nccl_context *c, const float *from, int64_t step, float *to,
                            int64_t n)
{
    const smp__nccl_sums *of = devices_of(c);
    ncclResult_t code = smp__nccl.ncclGroupStart();
    for (int i = 1; code == ncclSuccess && i < of->members; i++) {
        const int other = (of->own + i) % of->members;
        code = swap(c, other, from + other * step, n, to + other * n, n);
    }
    const ncclResult_t end = smp__nccl.ncclGroupEnd();
    SMP_TRY(smp__nccl_check(of->nccl, code == ncclSuccess ? end : code, "exchange in an operator"));
    return copy(c, to + of->own * n, from + of->own * step, n);
}

/* n: of all devices together. */
static smp_status check(const smp__nccl_context *c, int64_t n)
{
    if (n <= c->group_floats)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "a sum of %lld values of each device, expected at most %lld",
                    (long long)n, (long long)c->group_floats);
}

/* Every device adds up one of the shares that the array is cut into; the last may be short. */
typedef struct shares {
    int64_t n, each;
} shares;

static int64_t begin_of(shares of, int i)
{
    const int64_t begin = i * of.each;
    return begin < of.n ? begin : of.n;
}

static int64_t size_of(shares of, int i)
{
    return begin_of(of, i + 1) - begin_of(of, i);
}

/* Shares to who adds them up (into c->came), or the sums to all. */
static smp_status swap_shares(smp__nccl_context *c, float *values, shares all, bool sums)
{
    const smp__nccl_sums *of = devices_of(c);
    const int64_t own = size_of(all, of->own);
    ncclResult_t code = smp__nccl.ncclGroupStart();
    for (int i = 1; code == ncclSuccess && i < of->members; i++) {
        const int other = (of->own + i) % of->members;
        float *others = values + begin_of(all, other);
        code =
            sums ? swap(c, other, values + begin_of(all, of->own), own, others, size_of(all, other))
                 : swap(c, other, others, size_of(all, other), c->came + other * all.each, own);
    }
    const ncclResult_t end = smp__nccl.ncclGroupEnd();
    return smp__nccl_check(of->nccl, code == ncclSuccess ? end : code, "sum in an operator");
}

static smp_status all_reduce(void *context, float *values, int64_t n)
{
    smp__nccl_context *c = context;
    const smp__nccl_sums *of = devices_of(c);
    const shares all = {n, (n + of->members - 1) / of->members};
    float *own = values + begin_of(all, of->own);
    SMP_TRY(check(c, n));
    SMP_TRY(swap_shares(c, values, all, false));
    SMP_TRY(copy(c, c->came + of->own * all.each, own, size_of(all, of->own)));
    SMP_TRY(
        smp__cuda_add_rows(c->compute, own, c->came, size_of(all, of->own), of->members, all.each));
    return swap_shares(c, values, all, true);
}

static smp_status all_gather(void *context, const float *own, float *all, int64_t n)
{
    return swap_rows(context, own, 0, all, n);
}

static smp_status reduce_scatter(void *context, const float *all, float *own, int64_t n)
{
    smp__nccl_context *c = context;
    const int members = devices_of(c)->members;
    SMP_TRY(check(c, n * members - members + 1));
    SMP_TRY(swap_rows(c, all, n, c->came, n));
    return smp__cuda_add_rows(c->compute, own, c->came, n, members, n);
}

static smp_status all_to_all(void *context, const float *all, float *got, int64_t n)
{
    return swap_rows(context, all, n, got, n);
}

/* The compute stream does it before what is enqueued behind it. */
static smp_status shift(void *context, const float *own, float *got, int64_t n, int32_t by)
{
    smp__nccl_context *c = context;
    const smp__nccl_sums *of = devices_of(c);
    const int to = (of->own + by) % of->members;
    const int from = (of->own + of->members - by % of->members) % of->members;
    if (to == of->own)
        return copy(c, got, own, n);
    ncclResult_t code = smp__nccl.ncclGroupStart();
    if (code == ncclSuccess)
        code = swap(c, to, own, n, NULL, 0);
    if (code == ncclSuccess)
        code = swap(c, from, NULL, 0, got, n);
    const ncclResult_t end = smp__nccl.ncclGroupEnd();
    return smp__nccl_check(of->nccl, code == ncclSuccess ? end : code, "shift in an operator");
}

static smp_status shifted(void *context)
{
    (void)context;
    return SMP_OK;
}

void smp__nccl_group_fill(smp__nccl_context *c)
{
    c->group = (smp_op_group){.size = devices_of(c)->members,
                              .index = devices_of(c)->own,
                              .context = c,
                              .all_reduce = all_reduce,
                              .all_gather = all_gather,
                              .reduce_scatter = reduce_scatter,
                              .all_to_all = all_to_all,
                              .shift = shift,
                              .shifted = shifted};
}
#endif

/* What the devices of a group exchange in the middle of an operator, over NCCL: on the compute
 * stream, between the kernels before and after it, so that the host waits for nothing. Sums are
 * made of what is sent, by rising device, as those of host memory (exec/group/op_group.c): NCCL's
 * own would follow the number of devices and the wires.
 *
 * What goes beside the compute has a stream of its own, urgent as messages are: it waits for the
 * compute stream where it is begun, and that for it where it is finished, by events. What is asked
 * for on the compute stream meanwhile is finished first: so the one communicator is told everything
 * in an order that streams keep, none of its operations waits for one that stands after it, since
 * the devices of a group run one program, and the memory for sums serves one at a time. */
#include "exec/cuda/cuda_event.h"
#include "exec/cuda/cuda_kernels.h"
#include "exec/nccl/nccl_open.h"
#include "graph/cuda/cuda.h"

#include <stdio.h>
#include <string.h>

static const smp__nccl_sums *devices_of(const smp__nccl_way *w)
{
    return &w->of->sums[SMP__NCCL_TENSOR];
}

/* An error is told alike, whether the call has it or smp__nccl_look. */
static smp_status end_group(const smp__nccl_sums *of, ncclResult_t code, const char *call)
{
    return smp_fail_context(smp__nccl_end(of->nccl, code, call), SMP__NCCL_DEVICES);
}

static smp_status begin_beside(smp__nccl_context *c)
{
    c->under_way = true;
    return smp__nccl_order(c, c->compute, c->beside.stream);
}

static smp_status finish_beside(smp__nccl_context *c)
{
    if (!c->under_way)
        return SMP_OK;
    c->under_way = false;
    return smp__nccl_order(c, c->beside.stream, c->compute);
}

/* Before the first operation of a call. */
static smp_status enter_call(smp__nccl_way *w)
{
    return w == &w->of->within ? finish_beside(w->of) : SMP_OK;
}

/* To every other device, and from it; a length of 0 is no message. */
static ncclResult_t swap(smp__nccl_way *w, int other, const float *send, int64_t n_send,
                         float *receive, int64_t n_receive)
{
    const smp__nccl_sums *of = devices_of(w);
    ncclResult_t code = ncclSuccess;
    if (n_send > 0)
        code = smp__nccl.ncclSend(send, (size_t)n_send, ncclFloat32, other, of->nccl, w->stream);
    if (code == ncclSuccess && n_receive > 0)
        code =
            smp__nccl.ncclRecv(receive, (size_t)n_receive, ncclFloat32, other, of->nccl, w->stream);
    return code;
}

static smp_status copy(smp__nccl_way *w, float *to, const float *from, int64_t n)
{
    if (n == 0 || to == from)
        return SMP_OK;
    return SMP_CUDA(cudaMemcpyAsync, to, from, (size_t)n * sizeof(float), cudaMemcpyDeviceToDevice,
                    w->stream);
}

/* from: a row of n for each other device, `step` apart; to: one from each, `apart`. */
static smp_status swap_others(smp__nccl_way *w, const float *from, int64_t step, float *to,
                              int64_t apart, int64_t n)
{
    const smp__nccl_sums *of = devices_of(w);
    ncclResult_t code = smp__nccl.ncclGroupStart();
    for (int i = 1; code == ncclSuccess && i < of->members; i++) {
        const int other = (of->own + i) % of->members;
        code = swap(w, other, from + other * step, n, to + other * apart, n);
    }
    return end_group(of, code, "exchange in an operator");
}

/* The own row too. */
static smp_status swap_rows(smp__nccl_way *w, const float *from, int64_t step, float *to, int64_t n)
{
    const int own = devices_of(w)->own;
    SMP_TRY(swap_others(w, from, step, to, n, n));
    return copy(w, to + own * n, from + own * step, n);
}

/* sum: of the own row and those that came, by rising device. */
static smp_status add_rows(smp__nccl_way *w, float *sum, const float *own, int64_t apart, int64_t n)
{
    const smp__nccl_sums *of = devices_of(w);
    const smp__fold rows = {.n = of->members,
                            .came = w->of->came,
                            .stride = apart,
                            .first_own = of->own,
                            .n_own = 1,
                            .own = own,
                            .sum = sum,
                            .carry = w->of->came,
                            .carry_stride = apart};
    return smp__cuda_fold(w->stream, &rows, n);
}

/* What `came` has room for of each device: a multiple of what keeps rows aligned. */
static int64_t most_of_each(const smp__nccl_way *w)
{
    return w->of->came_floats / devices_of(w)->members / SMP__NCCL_ALIGNED * SMP__NCCL_ALIGNED;
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

/* Shares to who adds them up (into `came`), or the sums to all. */
static smp_status swap_shares(smp__nccl_way *w, float *values, shares all, bool sums)
{
    const smp__nccl_sums *of = devices_of(w);
    const int64_t own = size_of(all, of->own);
    ncclResult_t code = smp__nccl.ncclGroupStart();
    for (int i = 1; code == ncclSuccess && i < of->members; i++) {
        const int other = (of->own + i) % of->members;
        float *others = values + begin_of(all, other);
        code =
            sums ? swap(w, other, values + begin_of(all, of->own), own, others, size_of(all, other))
                 : swap(w, other, others, size_of(all, other), w->of->came + other * all.each, own);
    }
    return end_group(of, code, "sum in an operator");
}

/* A piece of a sum has been enqueued. */
static smp_status keep_pace(smp__nccl_way *w)
{
    enum { LAUNCHES = 3 };
    return smp__nccl_keep_pace(w->of, &w->pace, w->stream, LAUNCHES);
}

/* n: no more than `came` has room for. */
static smp_status reduce_piece(smp__nccl_way *w, float *values, int64_t n)
{
    const smp__nccl_sums *of = devices_of(w);
    const shares all = {n, smp__nccl_aligned((n + of->members - 1) / of->members)};
    float *own = values + begin_of(all, of->own);
    SMP_TRY(swap_shares(w, values, all, false));
    SMP_TRY(add_rows(w, own, own, all.each, size_of(all, of->own)));
    SMP_TRY(swap_shares(w, values, all, true));
    return keep_pace(w);
}

static smp_status all_reduce(void *context, float *values, int64_t n)
{
    smp__nccl_way *w = context;
    const int64_t most = most_of_each(w) * devices_of(w)->members;
    SMP_TRY(enter_call(w));
    for (int64_t at = 0; at < n; at += most)
        SMP_TRY(reduce_piece(w, values + at, n - at < most ? n - at : most));
    return SMP_OK;
}

static smp_status all_gather(void *context, const float *own, float *all, int64_t n)
{
    SMP_TRY(enter_call(context));
    return swap_rows(context, own, 0, all, n);
}

static smp_status reduce_scatter(void *context, const float *all, float *own, int64_t n)
{
    smp__nccl_way *w = context;
    const int64_t most = most_of_each(w);
    SMP_TRY(enter_call(w));
    for (int64_t at = 0; at < n; at += most) {
        const int64_t piece = n - at < most ? n - at : most;
        const int64_t apart = smp__nccl_aligned(piece);
        SMP_TRY(swap_others(w, all + at, n, w->of->came, apart, piece));
        SMP_TRY(add_rows(w, own + at, all + devices_of(w)->own * n + at, apart, piece));
        SMP_TRY(keep_pace(w));
    }
    return SMP_OK;
}

static smp_status all_to_all(void *context, const float *all, float *got, int64_t n)
{
    SMP_TRY(enter_call(context));
    return swap_rows(context, all, n, got, n);
}

/* Beside the compute, whoever asks. */
static smp_status shift(void *context, const float *own, float *got, int64_t n, int32_t by)
{
    smp__nccl_way *asked = context, *w = &asked->of->beside;
    const smp__nccl_sums *of = devices_of(w);
    const int to = (of->own + by) % of->members;
    const int from = (of->own + of->members - by % of->members) % of->members;
    if (asked != w)
        SMP_TRY(begin_beside(w->of));
    if (to == of->own)
        return copy(w, got, own, n);
    ncclResult_t code = smp__nccl.ncclGroupStart();
    if (code == ncclSuccess)
        code = swap(w, to, own, n, NULL, 0);
    if (code == ncclSuccess)
        code = swap(w, from, NULL, 0, got, n);
    return end_group(of, code, "shift in an operator");
}

/* Ends a shift, or a call beside. */
static smp_status finish(void *context)
{
    return enter_call(context);
}

static smp_status beside(void *context, const smp_op_group **group, void **device)
{
    smp__nccl_context *c = ((smp__nccl_way *)context)->of;
    *group = &c->beside.group;
    *device = &c->beside_device;
    return begin_beside(c);
}

static void describe_read(const void *context, char *buffer, size_t size)
{
    (void)context;
    snprintf(buffer, size, "the device, for a number that an operator needs");
}

static smp_status test_read(void *context, bool *done)
{
    smp__nccl_context *c = context;
    int passed;
    SMP_TRY(smp__event_passed(c->has_read, &passed));
    *done = passed;
    return passed ? SMP_OK : smp__nccl_progress(c);
}

static smp_status read(void *context, const void *from, int64_t bytes)
{
    smp__nccl_context *c = ((smp__nccl_way *)context)->of;
    SMP_TRY(c->device->download(c->device_context, c->read, from, bytes));
    return SMP_CUDA(cudaEventRecord, c->has_read, c->compute);
}

/* The compute stream goes on with what was enqueued behind. */
static smp_status have_read(void *context, void *host, int64_t bytes)
{
    smp__nccl_context *c = ((smp__nccl_way *)context)->of;
    SMP_TRY(smp__comm_wait_until(c->comm, &(smp_wait){0}, test_read, describe_read, c));
    memcpy(host, c->read, (size_t)bytes);
    return SMP_OK;
}

static void fill(smp__nccl_context *c, smp__nccl_way *w)
{
    w->of = c;
    w->group = (smp_op_group){.size = devices_of(w)->members,
                              .index = devices_of(w)->own,
                              .context = w,
                              .all_reduce = all_reduce,
                              .all_gather = all_gather,
                              .reduce_scatter = reduce_scatter,
                              .all_to_all = all_to_all,
                              .shift = shift,
                              .shifted = finish,
                              .finish = finish};
}

void smp__nccl_group_fill(smp__nccl_context *c)
{
    fill(c, &c->within);
    fill(c, &c->beside);
    c->within.group.beside = beside;
    c->within.group.read = read;
    c->within.group.have_read = have_read;
    c->beside_device.stream = c->beside.stream;
}

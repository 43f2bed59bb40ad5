/* Sums over NCCL, in the tree of reduce_blocks.h instead of NCCL's own collectives: those add in an
 * order that follows the number of ranks, the size and the wires, and a plan's bits must follow
 * none. Every member gets what the others have of its part, in pieces that fit the memory for
 * them, and adds it up; then all send their parts to all. As many bytes as in a ring, in two
 * exchanges instead of a chain. */
#include "graph/base/status.h"

#ifdef SMP_HAVE_NCCL
#include "exec/device/cuda_kernels.h"
#include "exec/transport/nccl_open.h"
#include "graph/cuda/cuda.h"

/* Elements of part i, of which every piece takes `most`, in the piece that begins at `at`. */
static size_t block_of(const smp_sum *sum, int i, int64_t at, int64_t most)
{
    const int64_t left = sum->cut[i + 1] - sum->cut[i] - at;
    return (size_t)(left <= 0 ? 0 : left < most ? left : most);
}

static ncclResult_t exchange(smp__nccl_context *c, const smp__nccl_sums *of, int other,
                             const float *send, size_t n_send, float *receive, size_t n_receive)
{
    ncclResult_t code = ncclSuccess;
    if (n_send > 0)
        code = smp__nccl.ncclSend(send, n_send, ncclFloat32, other, of->nccl, c->reduce);
    if (code == ncclSuccess && n_receive > 0)
        code = smp__nccl.ncclRecv(receive, n_receive, ncclFloat32, other, of->nccl, c->reduce);
    return code;
}

static smp_status scatter(smp__nccl_context *c, const smp__nccl_sums *of, const smp_sum *sum,
                          int64_t at, int64_t most)
{
    ncclResult_t code = smp__nccl.ncclGroupStart();
    for (int i = 1; code == ncclSuccess && i < of->members; i++) {
        const int other = (of->own + i) % of->members;
        code =
            exchange(c, of, other, sum->data + sum->cut[other] + at, block_of(sum, other, at, most),
                     c->parts + other * most, block_of(sum, of->own, at, most));
    }
    const ncclResult_t end = smp__nccl.ncclGroupEnd();
    return smp__nccl_check(of->nccl, code == ncclSuccess ? end : code, "exchange of a sum");
}

/* Where the terms of the own block are: that of this member stays where it was. */
static float *term(smp__nccl_context *c, const smp__nccl_sums *of, float *own, int i, int64_t most)
{
    return i == of->own ? own : c->parts + i * most;
}

static smp_status fold(smp__nccl_context *c, const smp__nccl_sums *of, float *own, int64_t count,
                       int64_t most)
{
    if (count == 0)
        return SMP_OK;
    for (int64_t width = 1; width < of->members; width *= 2)
        for (int64_t i = 0; i + width < of->members; i += 2 * width)
            SMP_TRY(smp__cuda_accumulate(c->reduce, SMP_F32, term(c, of, own, (int)i, most),
                                         term(c, of, own, (int)(i + width), most), count));
    if (of->own == 0)
        return SMP_OK;
    return SMP_CUDA(cudaMemcpyAsync, own, c->parts, (size_t)count * sizeof(float),
                    cudaMemcpyDeviceToDevice, c->reduce);
}

static smp_status add(smp__nccl_context *c, const smp__nccl_sums *of, const smp_sum *sum)
{
    const int64_t most = SMP__NCCL_PARTS_FLOATS / of->members;
    int64_t longest = 0;
    for (int i = 0; i < of->members; i++)
        if (sum->cut[i + 1] - sum->cut[i] > longest)
            longest = sum->cut[i + 1] - sum->cut[i];
    for (int64_t at = 0; at < longest; at += most) {
        SMP_TRY(scatter(c, of, sum, at, most));
        SMP_TRY(fold(c, of, sum->data + sum->cut[of->own] + at,
                     (int64_t)block_of(sum, of->own, at, most), most));
    }
    return SMP_OK;
}

static smp_status gather(smp__nccl_context *c, const smp__nccl_sums *of, const smp_sum *sum)
{
    const int64_t *cut = sum->cut;
    ncclResult_t code = smp__nccl.ncclGroupStart();
    for (int i = 1; code == ncclSuccess && i < of->members; i++) {
        const int other = (of->own + i) % of->members;
        code = exchange(c, of, other, sum->data + cut[of->own],
                        (size_t)(cut[of->own + 1] - cut[of->own]), sum->data + cut[other],
                        (size_t)(cut[other + 1] - cut[other]));
    }
    const ncclResult_t end = smp__nccl.ncclGroupEnd();
    return smp__nccl_check(of->nccl, code == ncclSuccess ? end : code, "gathering of a sum");
}

static smp_status add_or_gather(smp__nccl_context *c, const smp__nccl_sums *of, const smp_sum *sum)
{
    if (sum->add)
        SMP_TRY(add(c, of, sum));
    return sum->gather ? gather(c, of, sum) : SMP_OK;
}

static void cut_evenly(const smp__nccl_sums *of, int64_t begin, int64_t count)
{
    for (int i = 0; i <= of->members; i++)
        of->cut[i] = begin + count / of->members * i + count % of->members * i / of->members;
}

/* Scattered on the machine, each part added up between machines, gathered on the machine. */
static smp_status add_in_two_hops(smp__nccl_context *c, float *data, int64_t begin, int64_t count)
{
    const smp__nccl_sums *near = &c->sums[SMP__NCCL_NEAR], *far = &c->sums[SMP__NCCL_FAR];
    cut_evenly(near, begin, count);
    cut_evenly(far, near->cut[near->own], near->cut[near->own + 1] - near->cut[near->own]);
    const smp_sum on_machine = {.data = data, .cut = near->cut},
                  between = {.data = data, .cut = far->cut, .add = true, .gather = true};
    SMP_TRY(add(c, near, &on_machine));
    if (far->nccl)
        SMP_TRY(add_or_gather(c, far, &between));
    return gather(c, near, &on_machine);
}

smp_status smp__nccl_sum(smp__nccl_context *c, const smp_sum *sum)
{
    const smp__nccl_sums *of = &c->sums[sum->reach];
    if (!of->nccl)
        return SMP_OK; /* nobody to exchange anything with */
    if (c->sums[SMP__NCCL_NEAR].nccl && sum->reach == SMP_REACH_ALL && sum->add && sum->gather)
        return add_in_two_hops(c, sum->data, sum->cut[0], sum->cut[of->members] - sum->cut[0]);
    return add_or_gather(c, of, sum);
}

ncclResult_t smp__nccl_sum_first(smp__nccl_context *c, const smp__nccl_sums *of)
{
    ncclResult_t code = ncclSuccess;
    for (int i = 0; code == ncclSuccess && of->nccl && i < of->members; i++)
        if (i != of->own)
            code = exchange(c, of, i, c->parts + of->own, 1, c->parts + i, 1);
    return code;
}
#endif

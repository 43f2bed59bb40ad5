/* Sums over NCCL, in the tree of sum_terms.h instead of NCCL's own collectives: those add in an
 * order that follows the number of ranks, the size and the wires, and a plan's bits must follow
 * none. Every member gets what the others have of its part, in pieces that fit the memory for
 * them, and adds it up; then all send their parts to all. As many bytes as in a ring, in two
 * exchanges instead of a chain. */
#include "exec/cuda/cuda_kernels.h"
#include "exec/nccl/nccl_open.h"
#include "graph/cuda/cuda.h"

/* Member i of a sum holds data[cut[i * stride] .. cut[i * stride + 1] - 1]. */
typedef struct parts {
    float *data;
    const int64_t *cut;
    int stride;
    bool bf16;   /* what is sent, as smp_sum.bf16 says */
    float *more; /* as smp_sum.more; */
    int64_t apart;
} parts;

static float *array_at(const parts *of, int i, int n)
{
    return smp__sum_array(of->data, of->more, of->apart, i, n);
}

static int64_t begin_of(const parts *of, int i)
{
    return of->cut[(int64_t)i * of->stride];
}

static int64_t size_of(const parts *of, int i)
{
    return of->cut[(int64_t)i * of->stride + 1] - begin_of(of, i);
}

static int64_t longest(const parts *of, int members)
{
    int64_t most = 0;
    for (int i = 0; i < members; i++)
        most = size_of(of, i) > most ? size_of(of, i) : most;
    return most;
}

/* Elements of part i, of which every piece takes `most`, in the piece that begins at `at`. */
static size_t block_of(const parts *of, int i, int64_t at, int64_t most)
{
    const int64_t left = size_of(of, i) - at;
    return (size_t)(left <= 0 ? 0 : left < most ? left : most);
}

/* Every member's piece has so many elements. In bf16 half as many floats, and after these what is
 * to be sent to each and what came from each. */
static int64_t piece_of(const smp__nccl_sums *of, bool bf16)
{
    return smp__sum_terms_piece(of->terms, SMP__NCCL_PARTS_FLOATS / (bf16 ? 2 : 1));
}

/* Array k that goes to member i. */
static uint16_t *to_send(smp__nccl_context *c, const smp__nccl_sums *of, int i, int k)
{
    const int64_t most = piece_of(of, true), arrays = (int64_t)of->members * of->terms->width;
    return (uint16_t *)(c->parts + most * arrays) + most * ((int64_t)i * of->terms->width + k);
}

/* Term `term` that came. */
static uint16_t *that_came(smp__nccl_context *c, const smp__nccl_sums *of, int term)
{
    return to_send(c, of, of->members + term / of->terms->width, term % of->terms->width);
}

static ncclResult_t exchange(smp__nccl_context *c, const smp__nccl_sums *of, int other,
                             ncclDataType_t type, const void *send, size_t n_send, void *receive,
                             size_t n_receive)
{
    ncclResult_t code = ncclSuccess;
    if (n_send > 0)
        code = smp__nccl_send(send, n_send, type, other, smp__nccl_of(of), c->reduce);
    if (code == ncclSuccess && n_receive > 0)
        code = smp__nccl_receive(receive, n_receive, type, other, smp__nccl_of(of), c->reduce);
    return code;
}

/* What the stream of sums is told, piece by piece. */
static smp_status keep_pace(smp__nccl_context *c)
{
    return smp__nccl_keep_pace(c, &c->pace, c->reduce, 1);
}

static smp_status round16(smp__nccl_context *c, uint16_t *to, const float *from, int64_t n)
{
    SMP_TRY(smp__cuda_round16(c->reduce, SMP_BF16, to, from, n));
    return keep_pace(c);
}

static smp_status widen16(smp__nccl_context *c, float *to, const uint16_t *from, int64_t n)
{
    SMP_TRY(smp__cuda_widen16(c->reduce, to, from, n));
    return keep_pace(c);
}

static smp_status copy(smp__nccl_context *c, float *to, const float *from, int64_t n)
{
    SMP_TRY(SMP_CUDA(cudaMemcpyAsync, to, from, (size_t)n * sizeof(float), cudaMemcpyDeviceToDevice,
                     c->reduce));
    return keep_pace(c);
}

static smp_status add_to(smp__nccl_context *c, float *to, const float *from, int64_t n)
{
    SMP_TRY(smp__cuda_accumulate(c->reduce, SMP_F32, to, from, n));
    return keep_pace(c);
}

static smp_status end_group(smp__nccl_context *c, const smp__nccl_sums *of, ncclResult_t code,
                            const char *call)
{
    SMP_TRY(smp__nccl_end(c, smp__nccl_of(of), code, call));
    return keep_pace(c);
}

/* Rounds values in their place, by way of what has been sent to this member: nothing. */
static smp_status round_own(smp__nccl_context *c, const smp__nccl_sums *of, float *own, int64_t n)
{
    uint16_t *rounded = to_send(c, of, of->own, 0);
    SMP_TRY(round16(c, rounded, own, n));
    return widen16(c, own, rounded, n);
}

static bool is_own(const smp__nccl_sums *of, int term)
{
    return term >= of->terms->first[of->own] && term < of->terms->first[of->own + 1];
}

/* The own terms, rounded: of the others' blocks to be sent, of the own one in their place. */
static smp_status round_terms(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum,
                              int64_t at, int64_t most)
{
    const int n = smp__sum_terms_of(of->terms, of->own);
    for (int i = 0; i < of->members; i++)
        for (int k = 0; k < n; k++) {
            float *term = array_at(sum, k, n) + begin_of(sum, i) + at;
            const int64_t count = (int64_t)block_of(sum, i, at, most);
            SMP_TRY(i == of->own ? round_own(c, of, term, count)
                                 : round16(c, to_send(c, of, i, k), term, count));
        }
    return SMP_OK;
}

/* Number k of the own terms to another member, of its terms from it: where they have so many. */
static ncclResult_t exchange_term(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum,
                                  int other, int k, int64_t at, int64_t most)
{
    const int n = smp__sum_terms_of(of->terms, of->own), came = of->terms->first[other] + k;
    const bool sends = k < n, receives = k < smp__sum_terms_of(of->terms, other);
    const size_t n_send = sends ? block_of(sum, other, at, most) : 0,
                 n_receive = receives ? block_of(sum, of->own, at, most) : 0;
    if (sum->bf16)
        return exchange(c, of, other, ncclBfloat16, to_send(c, of, other, k), n_send,
                        that_came(c, of, came), n_receive);
    const float *send = sends ? array_at(sum, k, n) + begin_of(sum, other) + at : NULL;
    return exchange(c, of, other, ncclFloat32, send, n_send, c->parts + came * most, n_receive);
}

/* One message each way between two members at a time: which of several is which is then no question
 * of order. */
static smp_status scatter(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum,
                          int64_t at, int64_t most)
{
    const int64_t count = (int64_t)block_of(sum, of->own, at, most);
    if (sum->bf16)
        SMP_TRY(round_terms(c, of, sum, at, most));
    for (int k = 0; k < of->terms->width; k++) {
        ncclResult_t code = smp__nccl.ncclGroupStart();
        for (int i = 1; code == ncclSuccess && i < of->members; i++)
            code = exchange_term(c, of, sum, (of->own + i) % of->members, k, at, most);
        SMP_TRY(end_group(c, of, code, "exchange of a sum"));
    }
    for (int i = 0; sum->bf16 && i < of->terms->n; i++)
        if (!is_own(of, i))
            SMP_TRY(widen16(c, c->parts + i * most, that_came(c, of, i), count));
    return SMP_OK;
}

/* Where a term of the own block is: that of this member stays where it was. */
static float *term_at(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum, int term,
                      int64_t at, int64_t most)
{
    const int first = of->terms->first[of->own], n = smp__sum_terms_of(of->terms, of->own);
    return is_own(of, term) ? array_at(sum, term - first, n) + begin_of(sum, of->own) + at
                            : c->parts + term * most;
}

/* What is left may lie where another one belongs, so all go by way of `parts`, but for a single one
 * that is in its place. */
static smp_status place_left(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum,
                             int64_t at, int64_t count, int64_t most)
{
    const smp_sum_terms *t = of->terms;
    for (int i = 0; i < t->n_left && t->n_left > 1; i++)
        if (is_own(of, t->left[i]))
            SMP_TRY(copy(c, c->parts + t->left[i] * most, term_at(c, of, sum, t->left[i], at, most),
                         count));
    for (int i = 0; i < t->n_left; i++) {
        float *to = array_at(sum, i, t->n_left) + begin_of(sum, of->own) + at;
        const float *from = t->n_left > 1 ? c->parts + t->left[i] * most
                                          : term_at(c, of, sum, t->left[i], at, most);
        if (to != from)
            SMP_TRY(copy(c, to, from, count));
        if (sum->bf16)
            SMP_TRY(round_own(c, of, to, count));
    }
    return SMP_OK;
}

static smp_status fold(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum, int64_t at,
                       int64_t most)
{
    const int64_t count = (int64_t)block_of(sum, of->own, at, most);
    if (count == 0)
        return SMP_OK;
    for (int i = 0; i < of->terms->n_add; i++)
        SMP_TRY(add_to(c, term_at(c, of, sum, of->terms->to[i], at, most),
                       term_at(c, of, sum, of->terms->from[i], at, most), count));
    return place_left(c, of, sum, at, count, most);
}

static smp_status add(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum)
{
    const int64_t most = piece_of(of, sum->bf16), end = longest(sum, of->members);
    for (int64_t at = 0; at < end; at += most) {
        SMP_TRY(scatter(c, of, sum, at, most));
        SMP_TRY(fold(c, of, sum, at, most));
    }
    return SMP_OK;
}

/* One piece of a gather in bf16. */
static smp_status gather16(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum,
                           int64_t at, int64_t most)
{
    const size_t count = block_of(sum, of->own, at, most);
    uint16_t *send = to_send(c, of, of->own, 0);
    SMP_TRY(round16(c, send, sum->data + begin_of(sum, of->own) + at, (int64_t)count));
    ncclResult_t code = smp__nccl.ncclGroupStart();
    for (int i = 1; code == ncclSuccess && i < of->members; i++) {
        const int other = (of->own + i) % of->members;
        code = exchange(c, of, other, ncclBfloat16, send, count, that_came(c, of, other),
                        block_of(sum, other, at, most));
    }
    SMP_TRY(end_group(c, of, code, "gathering of a sum"));
    for (int i = 0; i < of->members; i++)
        if (i != of->own)
            SMP_TRY(widen16(c, sum->data + begin_of(sum, i) + at, that_came(c, of, i),
                            (int64_t)block_of(sum, i, at, most)));
    return SMP_OK;
}

static smp_status gather(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum)
{
    const int64_t most = piece_of(of, true), end16 = sum->bf16 ? longest(sum, of->members) : 0;
    for (int64_t at = 0; at < end16; at += most)
        SMP_TRY(gather16(c, of, sum, at, most));
    if (sum->bf16)
        return SMP_OK;
    ncclResult_t code = smp__nccl.ncclGroupStart();
    for (int i = 1; code == ncclSuccess && i < of->members; i++) {
        const int other = (of->own + i) % of->members;
        code = exchange(c, of, other, ncclFloat32, sum->data + begin_of(sum, of->own),
                        (size_t)size_of(sum, of->own), sum->data + begin_of(sum, other),
                        (size_t)size_of(sum, other));
    }
    return end_group(c, of, code, "gathering of a sum");
}

/* Every part begins as aligned as the first. */
static void cut_evenly(const smp__nccl_sums *of, int64_t begin, int64_t count)
{
    const int64_t units = count / SMP__NCCL_ALIGNED;
    for (int i = 0; i < of->members; i++)
        of->cut[i] = begin + SMP__NCCL_ALIGNED *
                                 (units / of->members * i + units % of->members * i / of->members);
    of->cut[of->members] = begin + count;
}

/* Scattered on the machine, each part added up between machines, gathered on the machine. */
static smp_status add_in_two_hops(smp__nccl_context *c, const smp_sum *sum, int64_t begin,
                                  int64_t count)
{
    const smp__nccl_sums *near = &c->sums[SMP__NCCL_NEAR], *far = &c->sums[SMP__NCCL_FAR];
    cut_evenly(near, begin, count);
    cut_evenly(far, near->cut[near->own], near->cut[near->own + 1] - near->cut[near->own]);
    const parts on_machine = {sum->data, near->cut, 1, sum->bf16, NULL, 0},
                between = {sum->data, far->cut, 1, sum->bf16, NULL, 0};
    SMP_TRY(add(c, near, &on_machine));
    if (smp__nccl_of(far)) {
        SMP_TRY(add(c, far, &between));
        SMP_TRY(gather(c, far, &between));
    }
    return gather(c, near, &on_machine);
}

/* Rows and columns as in two_hops.h. */
static smp_status parts_in_two_hops(smp__nccl_context *c, const smp_sum *sum)
{
    const smp__nccl_sums *near = &c->sums[SMP__NCCL_NEAR], *far = &c->sums[SMP__NCCL_FAR];
    const parts column = {sum->data, sum->cut + near->own, near->members, sum->bf16, NULL, 0};
    if (!sum->add)
        SMP_TRY(gather(c, far, &column));
    for (int row = 0; row < far->members; row++) {
        const parts of_row = {
            sum->data, sum->cut + (int64_t)row * near->members, 1, sum->bf16, NULL, 0};
        SMP_TRY(sum->add ? add(c, near, &of_row) : gather(c, near, &of_row));
    }
    return sum->add ? add(c, far, &column) : SMP_OK;
}

smp_status smp__nccl_sum(smp__nccl_context *c, const smp_sum *sum)
{
    const smp__nccl_sums *of = &c->sums[sum->reach], *near = &c->sums[SMP__NCCL_NEAR];
    const parts all = {sum->data, sum->cut, 1, sum->bf16, sum->more, sum->stride};
    const bool whole = sum->add && sum->gather;
    if (!smp__nccl_of(of))
        return SMP_OK; /* nobody to exchange anything with */
    if (smp__nccl_of(near) && sum->reach == (whole ? SMP_REACH_ALL : SMP_REACH_GROUP) &&
        near->members * c->sums[SMP__NCCL_FAR].members == of->members)
        return whole ? add_in_two_hops(c, sum, sum->cut[0], sum->cut[of->members] - sum->cut[0])
                     : parts_in_two_hops(c, sum);
    if (sum->add)
        SMP_TRY(add(c, of, &all));
    return sum->gather ? gather(c, of, &all) : SMP_OK;
}

ncclResult_t smp__nccl_sum_first(smp__nccl_context *c, const smp__nccl_sums *of, float *scratch)
{
    ncclResult_t code = ncclSuccess;
    for (int i = 0; code == ncclSuccess && of->nccl && i < of->members; i++)
        if (i != of->own)
            code = exchange(c, of, i, ncclFloat32, scratch + of->own, 1, scratch + i, 1);
    return code;
}

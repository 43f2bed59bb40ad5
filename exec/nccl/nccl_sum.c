/* Sums over NCCL, in the tree of sum_terms.h instead of NCCL's own collectives: those add in an
 * order that follows the number of ranks, the size and the wires, and a plan's bits must follow
 * none. Every member gets what the others have of its part, in pieces that fit the memory for
 * them, and adds it up; then all send their parts to all. As many bytes as in a ring, in two
 * exchanges instead of a chain.
 *
 * Exchanges are on one stream, in one order on all ranks, kernels on another: while a piece is
 * added up the next one is exchanged, through the other half of the memory. */
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

/* A piece of a sum on its way: `most` elements of every part, fewer at its end. */
typedef struct piece {
    int64_t at, most;
    float *room;         /* [SMP__NCCL_PARTS_FLOATS / 2] */
    cudaEvent_t arrived; /* all that its exchange brings and sends */
} piece;

static piece piece_at(const smp__nccl_context *c, const smp__nccl_sums *of, int64_t at)
{
    const int64_t floats = SMP__NCCL_PARTS_FLOATS / 2;
    const int64_t most = smp__sum_terms_piece(of->terms, floats), half = at / most % 2;
    return (piece){at, most, c->parts + half * floats, c->arrived[half]};
}

/* Elements of part i in a piece. */
static int64_t block_of(const parts *of, int i, const piece *p)
{
    const int64_t left = size_of(of, i) - p->at;
    return left <= 0 ? 0 : left < p->most ? left : p->most;
}

/* The block of part i in array k of n. */
static float *block_at(const parts *of, int i, int k, int n, const piece *p)
{
    return array_at(of, k, n) + begin_of(of, i) + p->at;
}

/* In bf16: array k that goes to member i. */
static uint16_t *to_send(const smp__nccl_sums *of, const piece *p, int i, int k)
{
    return (uint16_t *)p->room + p->most * ((int64_t)i * of->terms->width + k);
}

/* In bf16: term `term` that came, or what a gather brings of a member. */
static uint16_t *that_came(const smp__nccl_sums *of, const piece *p, int term)
{
    return to_send(of, p, of->members, 0) + p->most * term;
}

static ncclResult_t exchange(smp__nccl_context *c, const smp__nccl_sums *of, int other,
                             ncclDataType_t type, const void *send, int64_t n_send, void *receive,
                             int64_t n_receive)
{
    ncclResult_t code = ncclSuccess;
    if (n_send > 0)
        code = smp__nccl.ncclSend(send, (size_t)n_send, type, other, smp__nccl_of(of), c->reduce);
    if (code == ncclSuccess && n_receive > 0)
        code = smp__nccl.ncclRecv(receive, (size_t)n_receive, type, other, smp__nccl_of(of),
                                  c->reduce);
    return code;
}

/* Before a group of operations: what has been told to the stream of kernels comes first, so the
 * piece's room is free. */
static smp_status begin_exchange(smp__nccl_context *c)
{
    return smp__nccl_order(c, c->fold, c->reduce);
}

static smp_status end_exchange(smp__nccl_context *c, const piece *p)
{
    return SMP_CUDA(cudaEventRecord, p->arrived, c->reduce);
}

/* Before the kernels of a piece. */
static smp_status await_exchange(smp__nccl_context *c, const piece *p)
{
    return SMP_CUDA(cudaStreamWaitEvent, c->fold, p->arrived, 0);
}

/* The others' blocks of the own terms. */
static smp_status round_terms(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum,
                              const piece *p)
{
    const int n = smp__sum_terms_of(of->terms, of->own);
    int blocks = 0;
    for (int i = 0; i < of->members; i++)
        for (int k = 0; k < n && i != of->own; k++)
            of->converted[blocks++] = (smp__conversion){
                to_send(of, p, i, k), block_at(sum, i, k, n, p), block_of(sum, i, p)};
    return smp__cuda_round16(c->fold, SMP_BF16, of->converted, blocks);
}

/* Number k of the own terms to another member, of its terms from it: where they have so many. */
static ncclResult_t exchange_term(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum,
                                  int other, int k, const piece *p)
{
    const int n = smp__sum_terms_of(of->terms, of->own), came = of->terms->first[other] + k;
    const bool sends = k < n, receives = k < smp__sum_terms_of(of->terms, other);
    const int64_t n_send = sends ? block_of(sum, other, p) : 0,
                  n_receive = receives ? block_of(sum, of->own, p) : 0;
    if (sum->bf16)
        return exchange(c, of, other, ncclBfloat16, to_send(of, p, other, k), n_send,
                        that_came(of, p, came), n_receive);
    const float *send = sends ? block_at(sum, other, k, n, p) : NULL;
    return exchange(c, of, other, ncclFloat32, send, n_send, p->room + came * p->most, n_receive);
}

/* One message each way between two members at a time: which of several is which is then no question
 * of order. */
static smp_status scatter(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum,
                          const piece *p)
{
    if (sum->bf16)
        SMP_TRY(round_terms(c, of, sum, p));
    SMP_TRY(begin_exchange(c));
    for (int k = 0; k < of->terms->width; k++) {
        ncclResult_t code = smp__nccl.ncclGroupStart();
        for (int i = 1; code == ncclSuccess && i < of->members; i++)
            code = exchange_term(c, of, sum, (of->own + i) % of->members, k, p);
        SMP_TRY(smp__nccl_end(smp__nccl_of(of), code, "exchange of a sum"));
    }
    return end_exchange(c, p);
}

static smp_status fold(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum,
                       const piece *p)
{
    const smp_sum_terms *t = of->terms;
    float *own = block_at(sum, of->own, 0, 1, p);
    const smp__fold terms = {.n = t->n,
                             .tree = t,
                             .came = sum->bf16 ? (void *)that_came(of, p, 0) : p->room,
                             .stride = p->most,
                             .first_own = t->first[of->own],
                             .n_own = smp__sum_terms_of(t, of->own),
                             .own = own,
                             .sum = own,
                             .more = t->width > 1 ? block_at(sum, of->own, 0, 2, p) : NULL,
                             .apart = sum->apart,
                             .bf16 = sum->bf16,
                             .carry = p->room, /* what was to be sent is sent */
                             .carry_stride = p->most};
    SMP_TRY(await_exchange(c, p));
    return smp__cuda_fold(c->fold, &terms, block_of(sum, of->own, p));
}

/* A gather in bf16, which goes through the room for what came. */
static smp_status send16(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum,
                         const piece *p)
{
    const int64_t count = block_of(sum, of->own, p);
    uint16_t *send = to_send(of, p, of->own, 0);
    const smp__conversion own = {send, block_at(sum, of->own, 0, 1, p), count};
    SMP_TRY(smp__cuda_round16(c->fold, SMP_BF16, &own, 1));
    SMP_TRY(begin_exchange(c));
    ncclResult_t code = smp__nccl.ncclGroupStart();
    for (int i = 1; code == ncclSuccess && i < of->members; i++) {
        const int other = (of->own + i) % of->members;
        code = exchange(c, of, other, ncclBfloat16, send, count, that_came(of, p, other),
                        block_of(sum, other, p));
    }
    SMP_TRY(smp__nccl_end(smp__nccl_of(of), code, "gathering of a sum"));
    return end_exchange(c, p);
}

static smp_status widen_all(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum,
                            const piece *p)
{
    int blocks = 0;
    for (int i = 0; i < of->members; i++)
        if (i != of->own)
            of->converted[blocks++] = (smp__conversion){block_at(sum, i, 0, 1, p),
                                                        that_came(of, p, i), block_of(sum, i, p)};
    SMP_TRY(await_exchange(c, p));
    return smp__cuda_widen16(c->fold, of->converted, blocks);
}

/* What a piece enqueues in either stream, at most. */
static int launches_of(const smp__nccl_sums *of)
{
    enum { EVENTS = 4, KERNELS = 2 };
    const int terms = of->members * of->terms->width;
    return EVENTS + KERNELS + terms / SMP__CONVERSIONS + of->terms->width;
}

typedef smp_status step(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum,
                        const piece *p);

/* A piece is exchanged, then its kernels run: those of one are enqueued after the exchange of the
 * next. Once they have run all before them has, in both streams. */
static smp_status in_pieces(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum,
                            step *begin, step *end)
{
    const int64_t longest_part = longest(sum, of->members), most = piece_at(c, of, 0).most;
    for (int64_t at = 0; at < longest_part + most; at += most) {
        const piece next = piece_at(c, of, at);
        if (at < longest_part)
            SMP_TRY(begin(c, of, sum, &next));
        if (at == 0)
            continue;
        const piece last = piece_at(c, of, at - most);
        SMP_TRY(end(c, of, sum, &last));
        SMP_TRY(smp__nccl_keep_pace(c, &c->pace, c->fold, launches_of(of)));
    }
    return SMP_OK;
}

static smp_status add(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum)
{
    return in_pieces(c, of, sum, scatter, fold);
}

static smp_status gather(smp__nccl_context *c, const smp__nccl_sums *of, const parts *sum)
{
    if (sum->bf16)
        return in_pieces(c, of, sum, send16, widen_all);
    SMP_TRY(begin_exchange(c));
    ncclResult_t code = smp__nccl.ncclGroupStart();
    for (int i = 1; code == ncclSuccess && i < of->members; i++) {
        const int other = (of->own + i) % of->members;
        code =
            exchange(c, of, other, ncclFloat32, sum->data + begin_of(sum, of->own),
                     size_of(sum, of->own), sum->data + begin_of(sum, other), size_of(sum, other));
    }
    SMP_TRY(smp__nccl_end(smp__nccl_of(of), code, "gathering of a sum"));
    return smp__nccl_keep_pace(c, &c->pace, c->reduce, 3);
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

static smp_status add_and_gather(smp__nccl_context *c, const smp_sum *sum)
{
    const smp__nccl_sums *of = &c->sums[sum->reach];
    const parts all = {sum->data, sum->cut, 1, sum->bf16, sum->more, sum->stride};
    if (of->hops)
        return sum->reach == SMP_REACH_ALL
                   ? add_in_two_hops(c, sum, sum->cut[0], sum->cut[of->members] - sum->cut[0])
                   : parts_in_two_hops(c, sum);
    if (sum->add)
        SMP_TRY(add(c, of, &all));
    return sum->gather ? gather(c, of, &all) : SMP_OK;
}

smp_status smp__nccl_sum(smp__nccl_context *c, const smp_sum *sum)
{
    if (c->sums[sum->reach].members == 1)
        return SMP_OK; /* nobody to exchange anything with */
    SMP_TRY(smp__nccl_order(c, c->reduce, c->fold));
    SMP_TRY(add_and_gather(c, sum));
    return smp__nccl_order(c, c->fold, c->reduce);
}

ncclResult_t smp__nccl_sum_first(smp__nccl_context *c, const smp__nccl_sums *of, float *scratch)
{
    ncclResult_t code = ncclSuccess;
    for (int i = 0; code == ncclSuccess && of->nccl && i < of->members; i++)
        if (i != of->own)
            code = exchange(c, of, i, ncclFloat32, scratch + of->own, 1, scratch + i, 1);
    return code;
}

/* A sum is cut into pieces, each a block of every part. A piece is copied to the host, scattered
 * and added up, gathered and copied back, or goes that way in part, so every element is added on
 * exactly one replica and then copied: the replicas hold the same bits whatever MPI chooses inside.
 *
 * Two pieces of one reach are under way at the same time, one in each of two places, so that the
 * copies of one run beside the messages of the other. MPI wants what is sent between two ranks on
 * one communicator to be received in its order, but which piece gets on first is a matter of time:
 * each place has a communicator of its own. Sums take their pieces in the order in which they were
 * asked for: that of the plan. Members of one reach need not have as many pieces of another one:
 * each reach counts its own. */
#include <stdlib.h>

#include "exec/cuda/cuda_event.h"
#include "exec/transport/reduce_blocks.h"
#include "exec/cuda/staged_reduce.h"

enum { PLACES = 2, PIECE_ELEMENTS = SMP__PIECE_FLOATS };

struct smp_reduction {
    smp_sum sum;
    int64_t longest; /* elements of the longest part */
    int64_t begun;   /* elements of every part that have been given a place */
    int64_t left;    /* pieces whose copy back is not enqueued yet */
    cudaEvent_t ready, done;
    smp_reduction *next;
};

typedef enum piece_state { FREE, COPYING, SCATTERING, GATHERING, RETURNING } piece_state;

typedef struct piece {
    piece_state state;
    float *host; /* [PIECE_ELEMENTS]: an array with a block of each member, then more of them */
    smp__blocks blocks;
    MPI_Comm comm;
    cudaEvent_t copied;
    smp_reduction *reduction;
    int64_t at; /* of every part: where its block begins */
} piece;

/* The sums of one reach. */
typedef struct track {
    MPI_Comm comm;              /* the job's; MPI_COMM_NULL: nobody to exchange anything with */
    const smp_sum_terms *terms; /* as in smp_transport_options */
    piece place[PLACES];
    int64_t pieces; /* begun: the next takes place[pieces % PLACES] */
} track;

struct smp__staged_reduce {
    smp_comm *comm;
    const smp_device *device;
    void *device_context;
    cudaStream_t compute, down, up; /* down: to the host */
    track track[SMP_N_REACH];
    smp_reduction *head, *tail; /* with pieces to begin, in order */
    smp_reduction *free;        /* unused ones of the pool */
    int n_pool;
    smp_reduction pool[];
};

static smp_status make_place(smp__staged_reduce *r, const track *of, piece *place)
{
    char *host = NULL;
    SMP_TRY(smp__make_event(&place->copied));
    SMP_TRY(r->device->reserve_host(r->device_context, PIECE_ELEMENTS * sizeof(float), &host));
    place->host = (float *)host;
    SMP_TRY(smp__blocks_open(&place->blocks, place->comm, of->terms));
    place->blocks.stride = place->blocks.most * place->blocks.members;
    place->blocks.more = place->host + place->blocks.stride;
    return SMP_OK;
}

static void choose_tracks(smp__staged_reduce *r, const smp_transport_options *options)
{
    for (int k = 0; k < SMP_N_REACH; k++) {
        r->track[k].terms = options->terms[k];
        r->track[k].comm = smp__transport_reach(r->comm, (smp_reach)k);
        for (int i = 0; i < PLACES; i++)
            r->track[k].place[i].comm = MPI_COMM_NULL;
    }
}

/* Collective: before anything that may fail on one rank alone. */
static smp_status make_communicators(smp__staged_reduce *r)
{
    for (int k = 0; k < SMP_N_REACH; k++)
        for (int i = 0; r->track[k].comm != MPI_COMM_NULL && i < PLACES; i++)
            SMP_TRY(smp__comm_duplicate(r->comm, r->track[k].comm, &r->track[k].place[i].comm));
    return SMP_OK;
}

static smp_status fill(smp__staged_reduce *r, int reductions)
{
    SMP_TRY(make_communicators(r));
    for (int i = 0; i < reductions; i++) {
        smp_reduction *reduction = &r->pool[i];
        SMP_TRY(smp__make_event(&reduction->ready));
        SMP_TRY(smp__make_event(&reduction->done));
        reduction->next = r->free;
        r->free = reduction;
    }
    if (r->comm->ddp_size == 1)
        return SMP_OK;
    SMP_TRY(SMP_CUDA(cudaStreamCreateWithFlags, &r->down, cudaStreamNonBlocking));
    SMP_TRY(SMP_CUDA(cudaStreamCreateWithFlags, &r->up, cudaStreamNonBlocking));
    for (int k = 0; k < SMP_N_REACH; k++)
        for (int i = 0; r->track[k].comm != MPI_COMM_NULL && i < PLACES; i++)
            SMP_TRY(make_place(r, &r->track[k], &r->track[k].place[i]));
    return SMP_OK;
}

smp_status smp__staged_reduce_open(const smp_transport_options *options, cudaStream_t compute,
                                   smp__staged_reduce **out)
{
    size_t bytes = sizeof(smp__staged_reduce) + (size_t)options->reductions * sizeof(smp_reduction);
    smp__staged_reduce *r = calloc(1, bytes);
    if (!r)
        return smp_fail_memory(bytes);
    r->comm = options->comm;
    r->device = options->device;
    r->device_context = options->device_context;
    r->compute = compute;
    r->n_pool = options->reductions;
    choose_tracks(r, options);
    smp_status status = fill(r, options->reductions);
    if (status == SMP_OK)
        *out = r;
    else
        smp__staged_reduce_close(r);
    return status;
}

static void close_place(smp__staged_reduce *r, piece *place)
{
    if (place->copied)
        cudaEventDestroy(place->copied);
    if (place->host)
        r->device->release_host(r->device_context, (char *)place->host);
    smp__blocks_close(&place->blocks);
    if (place->comm != MPI_COMM_NULL)
        MPI_Comm_free(&place->comm);
}

void smp__staged_reduce_close(smp__staged_reduce *r)
{
    if (!r)
        return;
    if (r->up)
        cudaStreamSynchronize(r->up); /* unwatched: copies that nobody has waited for on the host */
    for (int i = 0; i < r->n_pool; i++) {
        if (r->pool[i].ready)
            cudaEventDestroy(r->pool[i].ready);
        if (r->pool[i].done)
            cudaEventDestroy(r->pool[i].done);
    }
    for (int k = 0; k < SMP_N_REACH; k++)
        for (int i = 0; i < PLACES; i++)
            close_place(r, &r->track[k].place[i]);
    if (r->down)
        cudaStreamDestroy(r->down);
    if (r->up)
        cudaStreamDestroy(r->up);
    free(r);
}

/* A member's block of the piece, in array i of n, in the place and on the device. */
static float *on_host(const piece *place, int member, int i, int n)
{
    const smp__blocks *b = &place->blocks;
    return smp__sum_array(place->host, b->more, b->stride, i, n) + b->block[member].offset;
}

static float *on_device(const piece *place, int member, int i, int n)
{
    const smp_sum *sum = &place->reduction->sum;
    return smp__sum_array(sum->data, sum->more, sum->stride, i, n) + sum->cut[member] + place->at;
}

static size_t bytes_of(const piece *place, int member)
{
    return (size_t)place->blocks.block[member].count * sizeof(float);
}

/* All blocks where they are to be added up, else the own one. */
static smp_status copy_down(smp__staged_reduce *r, piece *place)
{
    const smp__blocks *b = &place->blocks;
    const bool all = place->reduction->sum.add;
    const int n = all ? smp__sum_terms_of(b->terms, b->own) : 1;
    for (int i = 0; i < b->members; i++)
        for (int k = 0; k < n && bytes_of(place, i) > 0 && (all || i == b->own); k++)
            SMP_TRY(SMP_CUDA(cudaMemcpyAsync, on_host(place, i, k, n), on_device(place, i, k, n),
                             bytes_of(place, i), cudaMemcpyDeviceToHost, r->down));
    return SMP_CUDA(cudaEventRecord, place->copied, r->down);
}

/* What has been added up here, and what was gathered. */
static smp_status copy_up(smp__staged_reduce *r, piece *place)
{
    const smp_sum *sum = &place->reduction->sum;
    const smp__blocks *b = &place->blocks;
    for (int i = 0; i < b->members; i++) {
        const int n = i == b->own ? (sum->add ? b->terms->n_left : 0) : sum->gather;
        for (int k = 0; k < n && bytes_of(place, i) > 0; k++)
            SMP_TRY(SMP_CUDA(cudaMemcpyAsync, on_device(place, i, k, n), on_host(place, i, k, n),
                             bytes_of(place, i), cudaMemcpyHostToDevice, r->up));
    }
    return SMP_CUDA(cudaEventRecord, place->copied, r->up);
}

/* Gives the next piece its place, if there is one and it is free. */
static smp_status begin_piece(smp__staged_reduce *r, bool *begun)
{
    smp_reduction *reduction = r->head;
    *begun = false;
    if (!reduction)
        return SMP_OK;
    track *of = &r->track[reduction->sum.reach];
    piece *place = &of->place[of->pieces % PLACES];
    const int64_t *cut = reduction->sum.cut, most = place->blocks.most;
    if (place->state != FREE)
        return SMP_OK;
    for (int i = 0; i < place->blocks.members; i++) {
        const int64_t left = cut[i + 1] - cut[i] - reduction->begun;
        place->blocks.block[i] =
            (smp__block){i * most, left <= 0 ? 0 : (int)(left < most ? left : most)};
    }
    place->reduction = reduction;
    place->blocks.bf16 = reduction->sum.bf16;
    place->at = reduction->begun;
    place->state = COPYING;
    if (reduction->begun == 0)
        SMP_TRY(SMP_CUDA(cudaStreamWaitEvent, r->down, reduction->ready, 0));
    SMP_TRY(copy_down(r, place));
    reduction->begun += most;
    of->pieces++;
    if (reduction->begun >= reduction->longest) {
        r->head = reduction->next;
        if (!r->head)
            r->tail = NULL;
    }
    *begun = true;
    return SMP_OK;
}

static smp_status start_return(smp__staged_reduce *r, piece *place)
{
    SMP_TRY(copy_up(r, place));
    place->state = RETURNING;
    if (--place->reduction->left > 0)
        return SMP_OK;
    return SMP_CUDA(cudaEventRecord, place->reduction->done, r->up);
}

/* What comes after a state that is over. */
static smp_status go_on(smp__staged_reduce *r, piece *place)
{
    const smp_sum *sum = &place->reduction->sum;
    if (place->state == RETURNING) {
        place->state = FREE;
        return SMP_OK;
    }
    if (place->state == COPYING && sum->add) {
        place->state = SCATTERING;
        return smp__blocks_scatter(&place->blocks, place->host);
    }
    if (place->state == SCATTERING)
        smp__blocks_fold(&place->blocks, place->host);
    if (place->state == GATHERING || !sum->gather)
        return start_return(r, place);
    place->state = GATHERING;
    return smp__blocks_gather(&place->blocks, place->host);
}

/* Takes a piece as far as it gets. */
static smp_status advance(smp__staged_reduce *r, piece *place)
{
    while (place->state != FREE) {
        int flag = 0;
        bool done = false;
        if (place->state == COPYING || place->state == RETURNING)
            SMP_TRY(smp__event_passed(place->copied, &flag));
        else
            SMP_TRY(smp__blocks_test(&place->blocks, &done));
        if (!flag && !done)
            return SMP_OK;
        SMP_TRY(go_on(r, place));
    }
    return SMP_OK;
}

smp_status smp__staged_reduce_progress(smp__staged_reduce *r)
{
    for (bool begun = true; begun;) {
        for (int k = 0; k < SMP_N_REACH; k++)
            for (int i = 0; i < PLACES; i++)
                SMP_TRY(advance(r, &r->track[k].place[i]));
        SMP_TRY(begin_piece(r, &begun));
    }
    return SMP_OK;
}

static int64_t longest_part(const smp_sum *sum, int members)
{
    int64_t most = 0;
    for (int i = 0; i < members; i++)
        if (sum->cut[i + 1] - sum->cut[i] > most)
            most = sum->cut[i + 1] - sum->cut[i];
    return most;
}

smp_status smp__staged_reduce_start(smp__staged_reduce *r, const smp_sum *sum, smp_reduction **out)
{
    const track *of = &r->track[sum->reach];
    const smp__blocks *b = &of->place[0].blocks;
    const bool alone = of->comm == MPI_COMM_NULL || b->members == 1;
    smp_reduction *reduction = r->free;
    if (!reduction)
        return smp_fail(SMP_ERR_FAILED,
                        "more reductions at once than the transport was opened for");
    r->free = reduction->next;
    reduction->next = NULL;
    reduction->sum = *sum;
    reduction->longest = alone ? 0 : longest_part(sum, b->members);
    reduction->begun = 0;
    reduction->left = alone ? 0 : (reduction->longest + b->most - 1) / b->most;
    SMP_TRY(SMP_CUDA(cudaEventRecord, reduction->ready, r->compute));
    *out = reduction;
    if (reduction->left == 0) /* nothing to do */
        return SMP_CUDA(cudaEventRecord, reduction->done, r->compute);
    if (r->tail)
        r->tail->next = reduction;
    else
        r->head = reduction;
    r->tail = reduction;
    return smp__staged_reduce_progress(r);
}

smp_status smp__staged_reduce_test(smp__staged_reduce *r, smp_reduction **reduction, bool *done)
{
    SMP_TRY(smp__staged_reduce_progress(r));
    *done = (*reduction)->left == 0;
    if (!*done)
        return SMP_OK;
    SMP_TRY(SMP_CUDA(cudaStreamWaitEvent, r->compute, (*reduction)->done, 0));
    (*reduction)->next = r->free;
    r->free = *reduction;
    *reduction = NULL;
    return SMP_OK;
}

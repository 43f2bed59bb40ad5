/* A reduction is cut into pieces. A piece is copied to the host, reduced and scattered, gathered
 * and copied back, so every element is summed on exactly one replica and then copied: the replicas
 * hold the same bits whatever algorithm MPI chooses inside.
 *
 * Two pieces are under way at the same time, one in each of two places, so that the copies of one
 * run beside the messages of the other. MPI wants collectives in one order on all ranks of a
 * communicator, but which piece gets on first is a matter of time: each place has a communicator of
 * its own, on which a scatter, a gather, the next scatter and so on follow one another. Reductions
 * take their pieces in the order in which they were asked for: that of the plan. */
#include "graph/base/status.h"

#ifdef SMP_HAVE_CUDA
#include <stdlib.h>

#include "exec/transport/cuda_event.h"
#include "exec/transport/reduce_blocks.h"
#include "exec/transport/staged_reduce.h"

enum { PLACES = 2, PIECE_ELEMENTS = SMP__PIECE_FLOATS };

struct smp_reduction {
    float *data;
    int64_t count;
    int64_t begun;    /* elements that have been given a place */
    int64_t finished; /* elements whose copy back is enqueued */
    cudaEvent_t ready, done;
    smp_reduction *next;
};

typedef enum piece_state { FREE, COPYING, SCATTERING, GATHERING, RETURNING } piece_state;

typedef struct piece {
    piece_state state;
    float *host; /* [PIECE_ELEMENTS] */
    smp__blocks blocks;
    MPI_Comm comm;
    cudaEvent_t copied;
    smp_reduction *reduction;
    int64_t first; /* element */
    int block;     /* elements per replica */
} piece;

struct smp__staged_reduce {
    smp_comm *comm;
    const smp_device *device;
    void *device_context;
    cudaStream_t compute, down, up; /* down: to the host */
    piece place[PLACES];
    int64_t pieces;             /* begun: the next takes place[pieces % PLACES] */
    smp_reduction *head, *tail; /* with pieces to begin, in order */
    smp_reduction *free;        /* unused ones of the pool */
    int n_pool;
    smp_reduction pool[];
};

static smp_status make_place(smp__staged_reduce *r, piece *place)
{
    char *host = NULL;
    SMP_TRY(smp__make_event(&place->copied));
    SMP_TRY(r->device->reserve_host(r->device_context, PIECE_ELEMENTS * sizeof(float), &host));
    place->host = (float *)host;
    return smp__blocks_open(&place->blocks, place->comm);
}

/* Collective: before anything that may fail on one rank alone. */
static smp_status make_communicators(smp__staged_reduce *r)
{
    for (int i = 0; r->comm->ddp_size > 1 && i < PLACES; i++)
        SMP_TRY(smp__comm_duplicate(r->comm, r->comm->ddp, &r->place[i].comm));
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
    for (int i = 0; i < PLACES; i++)
        SMP_TRY(make_place(r, &r->place[i]));
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
    for (int i = 0; i < PLACES; i++)
        r->place[i].comm = MPI_COMM_NULL;
    smp_status status = fill(r, options->reductions);
    if (status == SMP_OK)
        *out = r;
    else
        smp__staged_reduce_close(r);
    return status;
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
    for (int i = 0; i < PLACES; i++) {
        if (r->place[i].copied)
            cudaEventDestroy(r->place[i].copied);
        if (r->place[i].host)
            r->device->release_host(r->device_context, (char *)r->place[i].host);
        smp__blocks_close(&r->place[i].blocks);
        if (r->place[i].comm != MPI_COMM_NULL)
            MPI_Comm_free(&r->place[i].comm);
    }
    if (r->down)
        cudaStreamDestroy(r->down);
    if (r->up)
        cudaStreamDestroy(r->up);
    free(r);
}

/* Gives the next piece its place, if there is one and it is free. */
static smp_status begin_piece(smp__staged_reduce *r, bool *begun)
{
    piece *place = &r->place[r->pieces % PLACES];
    smp_reduction *reduction = r->head;
    *begun = reduction && place->state == FREE;
    if (!*begun)
        return SMP_OK;
    int replicas = r->comm->ddp_size;
    int64_t left = (reduction->count - reduction->begun) / replicas;
    int block = PIECE_ELEMENTS / replicas;
    place->block = left < block ? (int)left : block;
    for (int i = 0; i < replicas; i++)
        place->blocks.block[i] = (smp__block){(int64_t)i * place->block, place->block};
    place->reduction = reduction;
    place->first = reduction->begun;
    int64_t elements = (int64_t)place->block * replicas;
    if (reduction->begun == 0)
        SMP_TRY(SMP_CUDA(cudaStreamWaitEvent, r->down, reduction->ready, 0));
    SMP_TRY(SMP_CUDA(cudaMemcpyAsync, place->host, reduction->data + place->first,
                     (size_t)elements * sizeof(float), cudaMemcpyDeviceToHost, r->down));
    SMP_TRY(SMP_CUDA(cudaEventRecord, place->copied, r->down));
    place->state = COPYING;
    reduction->begun += elements;
    r->pieces++;
    if (reduction->begun == reduction->count) {
        r->head = reduction->next;
        if (!r->head)
            r->tail = NULL;
    }
    return SMP_OK;
}

static smp_status start_return(smp__staged_reduce *r, piece *place)
{
    smp_reduction *reduction = place->reduction;
    int64_t elements = (int64_t)place->block * r->comm->ddp_size;
    SMP_TRY(SMP_CUDA(cudaMemcpyAsync, reduction->data + place->first, place->host,
                     (size_t)elements * sizeof(float), cudaMemcpyHostToDevice, r->up));
    SMP_TRY(SMP_CUDA(cudaEventRecord, place->copied, r->up));
    place->state = RETURNING;
    reduction->finished += elements;
    if (reduction->finished < reduction->count)
        return SMP_OK;
    return SMP_CUDA(cudaEventRecord, reduction->done, r->up);
}

/* Takes a piece as far as it gets. */
static smp_status advance(smp__staged_reduce *r, piece *place)
{
    for (;;) {
        int flag = 0;
        bool done = false;
        if (place->state == FREE)
            return SMP_OK;
        if (place->state == COPYING || place->state == RETURNING)
            SMP_TRY(smp__event_passed(place->copied, &flag));
        else
            SMP_TRY(smp__blocks_test(&place->blocks, &done));
        if (!flag && !done)
            return SMP_OK;
        if (place->state == GATHERING)
            return start_return(r, place);
        if (place->state == COPYING)
            SMP_TRY(smp__blocks_scatter(&place->blocks, place->host));
        else if (place->state == SCATTERING) {
            smp__blocks_fold(&place->blocks, place->host);
            SMP_TRY(smp__blocks_gather(&place->blocks, place->host));
        }
        place->state = place->state == COPYING      ? SCATTERING
                       : place->state == SCATTERING ? GATHERING
                                                    : FREE;
    }
}

smp_status smp__staged_reduce_progress(smp__staged_reduce *r)
{
    for (bool begun = true; begun;) {
        for (int i = 0; i < PLACES; i++)
            SMP_TRY(advance(r, &r->place[i]));
        SMP_TRY(begin_piece(r, &begun));
    }
    return SMP_OK;
}

smp_status smp__staged_reduce_start(smp__staged_reduce *r, const smp_sum *sum, smp_reduction **out)
{
    const int64_t count = sum->cut[r->comm->ddp_size];
    smp_reduction *reduction = r->free;
    if (!reduction)
        return smp_fail(SMP_ERR_FAILED,
                        "more reductions at once than the transport was opened for");
    r->free = reduction->next;
    reduction->next = NULL;
    reduction->data = sum->data;
    reduction->count = count;
    reduction->begun = reduction->finished = 0;
    SMP_TRY(SMP_CUDA(cudaEventRecord, reduction->ready, r->compute));
    *out = reduction;
    if (r->comm->ddp_size == 1 || count == 0) { /* nothing to add */
        reduction->begun = reduction->finished = count;
        return SMP_CUDA(cudaEventRecord, reduction->done, r->compute);
    }
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
    *done = (*reduction)->finished == (*reduction)->count;
    if (!*done)
        return SMP_OK;
    SMP_TRY(SMP_CUDA(cudaStreamWaitEvent, r->compute, (*reduction)->done, 0));
    (*reduction)->next = r->free;
    r->free = *reduction;
    *reduction = NULL;
    return SMP_OK;
}
#endif

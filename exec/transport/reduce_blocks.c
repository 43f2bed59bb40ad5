/* Exchange, fold and gather; see the header. */
#include "exec/transport/reduce_blocks.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "exec/transport/comm.h"

smp_status smp__blocks_open(smp__blocks *b, MPI_Comm comm)
{
    b->comm = comm;
    MPI_Comm_size(comm, &b->members);
    MPI_Comm_rank(comm, &b->own);
    if (b->members == 1)
        return SMP_OK;
    b->block = calloc((size_t)b->members, sizeof *b->block);
    b->request = calloc(2 * (size_t)b->members, sizeof *b->request);
    b->parts = aligned_alloc(64, SMP__PIECE_FLOATS * sizeof(float));
    if (!b->block || !b->request || !b->parts)
        return smp_fail_memory(SMP__PIECE_FLOATS * sizeof(float));
    return SMP_OK;
}

void smp__blocks_close(smp__blocks *b)
{
    free(b->block);
    free(b->request);
    free(b->parts);
    *b = (smp__blocks){0};
}

/* To every other member `send`, its own block or this one's; from every other likewise. */
static smp_status post(smp__blocks *b, int to, const float *send, int n_send, float *receive,
                       int n_receive)
{
    if (n_send > 0)
        SMP_TRY(smp__comm_check(
            MPI_Isend(send, n_send, MPI_FLOAT, to, 0, b->comm, &b->request[b->n_request++]),
            "MPI_Isend"));
    if (n_receive > 0)
        SMP_TRY(smp__comm_check(
            MPI_Irecv(receive, n_receive, MPI_FLOAT, to, 0, b->comm, &b->request[b->n_request++]),
            "MPI_Irecv"));
    return SMP_OK;
}

smp_status smp__blocks_scatter(smp__blocks *b, const float *data)
{
    const smp__block *own = &b->block[b->own];
    b->n_request = 0;
    for (int i = 1; i < b->members; i++) {
        const int other = (b->own + i) % b->members;
        const smp__block *theirs = &b->block[other];
        SMP_TRY(post(b, other, data + theirs->offset, theirs->count,
                     b->parts + (int64_t)other * own->count, own->count));
    }
    memcpy(b->parts + (int64_t)b->own * own->count, data + own->offset,
           (size_t)own->count * sizeof(float));
    return SMP_OK;
}

void smp__blocks_fold(smp__blocks *b, float *data)
{
    const smp__block *own = &b->block[b->own];
    for (int64_t width = 1; width < b->members; width *= 2)
        for (int64_t i = 0; i + width < b->members; i += 2 * width) {
            float *restrict left = b->parts + i * own->count;
            const float *restrict right = b->parts + (i + width) * own->count;
            for (int64_t k = 0; k < own->count; k++)
                left[k] += right[k];
        }
    memcpy(data + own->offset, b->parts, (size_t)own->count * sizeof(float));
}

smp_status smp__blocks_gather(smp__blocks *b, float *data)
{
    const smp__block *own = &b->block[b->own];
    b->n_request = 0;
    for (int i = 1; i < b->members; i++) {
        const int other = (b->own + i) % b->members;
        const smp__block *theirs = &b->block[other];
        SMP_TRY(
            post(b, other, data + own->offset, own->count, data + theirs->offset, theirs->count));
    }
    return SMP_OK;
}

smp_status smp__blocks_test(smp__blocks *b, bool *done)
{
    int flag = 0;
    SMP_TRY(smp__comm_check(MPI_Testall(b->n_request, b->request, &flag, MPI_STATUSES_IGNORE),
                            "MPI_Testall"));
    *done = flag;
    return SMP_OK;
}

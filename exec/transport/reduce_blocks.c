/* Exchange, fold and gather; see the header. */
#include "exec/transport/reduce_blocks.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "exec/transport/comm.h"
#include "graph/math/half.h"

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

/* Numbers that are converted at a time. */
enum { TILE = 1 << 10 };

/* n floats to bf16, in their own place. */
static void pack(float *block, int n)
{
    uint16_t tile[TILE];
    for (int i = 0, m; i < n; i += m) {
        m = n - i < TILE ? n - i : TILE;
        smp__to_bf16(tile, block + i, m);
        memcpy((char *)block + 2 * (size_t)i, tile, (size_t)m * sizeof *tile);
    }
}

/* Where n numbers in bf16 are received, and from there to floats. */
static void *room(float *block, int n)
{
    return (char *)block + 2 * (size_t)n;
}

static void widen(float *block, int n)
{
    uint16_t tile[TILE];
    for (int i = 0, m; i < n; i += m) {
        m = n - i < TILE ? n - i : TILE;
        memcpy(tile, (char *)room(block, n) + 2 * (size_t)i, (size_t)m * sizeof *tile);
        smp__from_bf16(block + i, tile, m);
    }
}

static void round_all(float *value, int n)
{
    uint16_t tile[TILE];
    for (int i = 0, m; i < n; i += m) {
        m = n - i < TILE ? n - i : TILE;
        smp__to_bf16(tile, value + i, m);
        smp__from_bf16(value + i, tile, m);
    }
}

/* To every other member `send`, its own block or this one's; from every other likewise. */
static smp_status post(smp__blocks *b, int to, const void *send, int n_send, float *receive,
                       int n_receive)
{
    MPI_Datatype type = b->bf16 ? MPI_UINT16_T : MPI_FLOAT;
    void *at = b->bf16 ? room(receive, n_receive) : receive;
    if (n_send > 0)
        SMP_TRY(smp__comm_check(
            MPI_Isend(send, n_send, type, to, 0, b->comm, &b->request[b->n_request++]),
            "MPI_Isend"));
    if (n_receive > 0)
        SMP_TRY(smp__comm_check(
            MPI_Irecv(at, n_receive, type, to, 0, b->comm, &b->request[b->n_request++]),
            "MPI_Irecv"));
    return SMP_OK;
}

smp_status smp__blocks_scatter(smp__blocks *b, float *data)
{
    const smp__block *own = &b->block[b->own];
    float *part = b->parts + (int64_t)b->own * own->count;
    b->n_request = 0;
    for (int i = 1; i < b->members; i++) {
        const int other = (b->own + i) % b->members;
        const smp__block *theirs = &b->block[other];
        if (b->bf16)
            pack(data + theirs->offset, theirs->count);
        SMP_TRY(post(b, other, data + theirs->offset, theirs->count,
                     b->parts + (int64_t)other * own->count, own->count));
    }
    memcpy(part, data + own->offset, (size_t)own->count * sizeof(float));
    if (b->bf16)
        round_all(part, own->count);
    return SMP_OK;
}

void smp__blocks_fold(smp__blocks *b, float *data)
{
    const smp__block *own = &b->block[b->own];
    for (int i = 0; b->bf16 && i < b->members; i++)
        if (i != b->own)
            widen(b->parts + (int64_t)i * own->count, own->count);
    for (int64_t width = 1; width < b->members; width *= 2)
        for (int64_t i = 0; i + width < b->members; i += 2 * width) {
            float *restrict left = b->parts + i * own->count;
            const float *restrict right = b->parts + (i + width) * own->count;
            for (int64_t k = 0; k < own->count; k++)
                left[k] += right[k];
        }
    if (b->bf16)
        round_all(b->parts, own->count);
    memcpy(data + own->offset, b->parts, (size_t)own->count * sizeof(float));
}

smp_status smp__blocks_gather(smp__blocks *b, float *data)
{
    const smp__block *own = &b->block[b->own];
    const float *send = data + own->offset;
    b->n_request = 0;
    if (b->bf16) {
        memcpy(b->parts, send, (size_t)own->count * sizeof(float));
        pack(b->parts, own->count);
        send = b->parts;
        b->came = data;
    }
    for (int i = 1; i < b->members; i++) {
        const int other = (b->own + i) % b->members;
        const smp__block *theirs = &b->block[other];
        SMP_TRY(post(b, other, send, own->count, data + theirs->offset, theirs->count));
    }
    return SMP_OK;
}

smp_status smp__blocks_test(smp__blocks *b, bool *done)
{
    int flag = 0;
    SMP_TRY(smp__comm_check(MPI_Testall(b->n_request, b->request, &flag, MPI_STATUSES_IGNORE),
                            "MPI_Testall"));
    *done = flag;
    for (int i = 0; flag && b->came && i < b->members; i++)
        if (i != b->own)
            widen(b->came + b->block[i].offset, b->block[i].count);
    if (flag)
        b->came = NULL;
    return SMP_OK;
}

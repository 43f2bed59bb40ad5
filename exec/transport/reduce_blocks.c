/* Exchange, fold and gather; see the header. */
#include "exec/transport/reduce_blocks.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "exec/transport/comm.h"
#include "graph/math/half.h"

smp_status smp__blocks_open(smp__blocks *b, MPI_Comm comm, const smp_sum_terms *terms)
{
    b->comm = comm;
    MPI_Comm_size(comm, &b->members);
    MPI_Comm_rank(comm, &b->own);
    b->terms = terms ? terms : &b->single;
    if (!terms)
        SMP_TRY(smp__sum_terms_make(&b->single, b->members, b->members,
                                    (smp_sum_members){.n = b->members, .each = 1}));
    b->most = smp__sum_terms_piece(b->terms, SMP__PIECE_FLOATS);
    if (b->members == 1)
        return SMP_OK;
    b->block = calloc((size_t)b->members, sizeof *b->block);
    b->request = calloc(2 * (size_t)b->members * (size_t)b->terms->width, sizeof *b->request);
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
    smp__sum_terms_free(&b->single);
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

static smp_status post_send(smp__blocks *b, int to, const void *send, int n)
{
    if (n == 0)
        return SMP_OK;
    return smp__comm_check(MPI_Isend(send, n, b->bf16 ? MPI_UINT16_T : MPI_FLOAT, to, 0, b->comm,
                                     &b->request[b->n_request++]),
                           "MPI_Isend");
}

static smp_status post_receive(smp__blocks *b, int from, float *receive, int n)
{
    if (n == 0)
        return SMP_OK;
    return smp__comm_check(MPI_Irecv(b->bf16 ? room(receive, n) : receive, n,
                                     b->bf16 ? MPI_UINT16_T : MPI_FLOAT, from, 0, b->comm,
                                     &b->request[b->n_request++]),
                           "MPI_Irecv");
}

static float *array_at(const smp__blocks *b, float *data, int i, int n)
{
    return smp__sum_array(data, b->more, b->stride, i, n);
}

/* The place of a term of the own block. */
static float *part_at(const smp__blocks *b, int term)
{
    return b->parts + (int64_t)term * b->block[b->own].count;
}

/* Own terms of another member's block to it, its terms of the own block from it. */
static smp_status swap_terms(smp__blocks *b, float *data, int other)
{
    const smp__block *theirs = &b->block[other];
    const int n = smp__sum_terms_of(b->terms, b->own);
    for (int i = 0; i < n; i++) {
        float *send = array_at(b, data, i, n) + theirs->offset;
        if (b->bf16)
            pack(send, theirs->count);
        SMP_TRY(post_send(b, other, send, theirs->count));
    }
    for (int i = b->terms->first[other]; i < b->terms->first[other + 1]; i++)
        SMP_TRY(post_receive(b, other, part_at(b, i), b->block[b->own].count));
    return SMP_OK;
}

smp_status smp__blocks_scatter(smp__blocks *b, float *data)
{
    const smp__block *own = &b->block[b->own];
    const int n = smp__sum_terms_of(b->terms, b->own);
    b->n_request = 0;
    for (int i = 1; i < b->members; i++)
        SMP_TRY(swap_terms(b, data, (b->own + i) % b->members));
    for (int i = 0; i < n; i++) {
        float *part = part_at(b, b->terms->first[b->own] + i);
        memcpy(part, array_at(b, data, i, n) + own->offset, (size_t)own->count * sizeof(float));
        if (b->bf16)
            round_all(part, own->count);
    }
    return SMP_OK;
}

static void add_term(float *restrict to, const float *restrict from, int n)
{
    for (int i = 0; i < n; i++)
        to[i] += from[i];
}

void smp__blocks_fold(smp__blocks *b, float *data)
{
    const smp_sum_terms *t = b->terms;
    const smp__block *own = &b->block[b->own];
    for (int i = 0; b->bf16 && i < t->n; i++)
        if (i < t->first[b->own] || i >= t->first[b->own + 1])
            widen(part_at(b, i), own->count);
    for (int i = 0; i < t->n_add; i++)
        add_term(part_at(b, t->to[i]), part_at(b, t->from[i]), own->count);
    for (int i = 0; i < t->n_left; i++) {
        float *sum = part_at(b, t->left[i]);
        if (b->bf16)
            round_all(sum, own->count);
        memcpy(array_at(b, data, i, t->n_left) + own->offset, sum,
               (size_t)own->count * sizeof(float));
    }
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
        SMP_TRY(post_send(b, other, send, own->count));
        SMP_TRY(post_receive(b, other, data + theirs->offset, theirs->count));
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

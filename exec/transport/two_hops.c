/* Hierarchical sums; see the header. */
#include "exec/transport/two_hops.h"

smp_status smp__two_hops_open(smp__two_hops *h, MPI_Comm near, MPI_Comm far)
{
    if (near == MPI_COMM_NULL || far == MPI_COMM_NULL)
        return SMP_OK;
    SMP_TRY(smp__blocks_open(&h->near, near, NULL));
    return smp__blocks_open(&h->far, far, NULL);
}

void smp__two_hops_close(smp__two_hops *h)
{
    smp__blocks_close(&h->near);
    smp__blocks_close(&h->far);
}

void smp__two_hops_bf16(smp__two_hops *h, bool bf16)
{
    h->near.bf16 = h->far.bf16 = bf16;
}

/* [begin, begin + count) in as many even blocks as there are members. */
static void cut_evenly(smp__blocks *b, int64_t begin, int64_t count)
{
    for (int i = 0; i < b->members; i++) {
        const int64_t from = count * i / b->members, to = count * (i + 1) / b->members;
        b->block[i] = (smp__block){begin + from, (int)(to - from)};
    }
}

smp_status smp__two_hops_start(smp__two_hops *h, float *data, int64_t begin, int64_t count)
{
    cut_evenly(&h->near, begin, count);
    h->hop = SMP__HOP_SCATTER;
    return smp__blocks_scatter(&h->near, data);
}

static smp_status scatter_row(smp__two_hops *h, float *data)
{
    for (int i = 0; i < h->near.members; i++)
        h->near.block[i] = h->part[h->row * h->near.members + i];
    h->hop = SMP__HOP_SCATTER_ROW;
    return smp__blocks_scatter(&h->near, data);
}

static smp_status gather_row(smp__two_hops *h, float *data)
{
    for (int i = 0; i < h->near.members; i++)
        h->near.block[i] = h->part[h->row * h->near.members + i];
    h->hop = SMP__HOP_GATHER_ROW;
    return smp__blocks_gather(&h->near, data);
}

static void take_column(smp__two_hops *h)
{
    for (int i = 0; i < h->far.members; i++)
        h->far.block[i] = h->part[i * h->near.members + h->near.own];
}

smp_status smp__two_hops_scatter(smp__two_hops *h, float *data, const smp__block *part)
{
    h->part = part;
    h->row = 0;
    return scatter_row(h, data);
}

smp_status smp__two_hops_gather(smp__two_hops *h, float *data, const smp__block *part)
{
    h->part = part;
    h->row = 0;
    take_column(h);
    h->hop = SMP__HOP_GATHER_COLUMN;
    return smp__blocks_gather(&h->far, data);
}

/* Begins the next one of the parts. */
static smp_status next_part(smp__two_hops *h, float *data)
{
    switch (h->hop) {
    case SMP__HOP_SCATTER_ROW:
        smp__blocks_fold(&h->near, data);
        if (++h->row < h->far.members)
            return scatter_row(h, data);
        take_column(h);
        h->hop = SMP__HOP_SCATTER_COLUMN;
        return smp__blocks_scatter(&h->far, data);
    case SMP__HOP_SCATTER_COLUMN:
        smp__blocks_fold(&h->far, data);
        break;
    case SMP__HOP_GATHER_COLUMN:
        return gather_row(h, data);
    default:
        if (++h->row < h->far.members)
            return gather_row(h, data);
    }
    h->hop = SMP__HOP_DONE;
    return SMP_OK;
}

static smp_status next_hop(smp__two_hops *h, float *data)
{
    const smp__block *own = &h->near.block[h->near.own];
    switch (h->hop) {
    case SMP__HOP_SCATTER:
        smp__blocks_fold(&h->near, data);
        cut_evenly(&h->far, own->offset, own->count);
        h->hop = SMP__HOP_SCATTER_ACROSS;
        return smp__blocks_scatter(&h->far, data);
    case SMP__HOP_SCATTER_ACROSS:
        smp__blocks_fold(&h->far, data);
        h->hop = SMP__HOP_GATHER_ACROSS;
        return smp__blocks_gather(&h->far, data);
    case SMP__HOP_GATHER_ACROSS:
        h->hop = SMP__HOP_GATHER;
        return smp__blocks_gather(&h->near, data);
    case SMP__HOP_GATHER:
        break;
    default:
        return next_part(h, data);
    }
    h->hop = SMP__HOP_DONE;
    return SMP_OK;
}

smp_status smp__two_hops_test(smp__two_hops *h, float *data, bool *done)
{
    const bool across = h->hop == SMP__HOP_SCATTER_ACROSS || h->hop == SMP__HOP_GATHER_ACROSS ||
                        h->hop == SMP__HOP_SCATTER_COLUMN || h->hop == SMP__HOP_GATHER_COLUMN;
    bool moved = false;
    SMP_TRY(smp__blocks_test(across ? &h->far : &h->near, &moved));
    if (moved)
        SMP_TRY(next_hop(h, data));
    *done = h->hop == SMP__HOP_DONE;
    return SMP_OK;
}

/* See crossing.h. */
#include "schedule/lower/crossing.h"

#include <math.h>
#include <stdlib.h>

static smp_status place_stages(smp_arena *arena, const int *stage_rank, smp__crossing *out)
{
    int n_stage = out->flow->n_stage;
    int *rank_of = SMP_ARENA_NEW(arena, int, (size_t)n_stage);
    int *count = SMP_ARENA_NEW(arena, int, (size_t)out->n_rank);
    out->chunk_of = SMP_ARENA_NEW(arena, int, (size_t)n_stage);
    out->stage_of = SMP_ARENA_NEW(arena, int, (size_t)n_stage);
    if (!rank_of || !count || !out->chunk_of || !out->stage_of)
        return SMP_ERR_NO_MEMORY;
    for (int stage = 0; stage < n_stage; stage++) {
        int rank = stage_rank[stage];
        if (rank < 0 || rank >= out->n_rank)
            return smp_fail(SMP_ERR_INPUT, "stage %d lies on rank %d, expected 0 to %d", stage,
                            rank, out->n_rank - 1);
        if (count[rank] == out->chunks)
            return smp_fail(SMP_ERR_INPUT,
                            "rank %d holds more than %d stages: stage %d is too much", rank,
                            out->chunks, stage);
        rank_of[stage] = rank;
        out->chunk_of[stage] = count[rank];
        out->stage_of[(int64_t)rank * out->chunks + count[rank]++] = stage;
    }
    out->rank_of = rank_of;
    return SMP_OK;
}

smp_status smp__crossing_build(smp_arena *arena, const smp_flow *flow, const int *stage_rank,
                               int n_rank, int chunks, smp__crossing *out)
{
    *out = (smp__crossing){.flow = flow, .n_rank = n_rank, .chunks = chunks};
    if (n_rank < 1 || chunks < 1 || (int64_t)n_rank * chunks != flow->n_stage)
        return smp_fail(SMP_ERR_INPUT, "%d stages on %d ranks of %d chunks, expected %lld",
                        flow->n_stage, n_rank, chunks, (long long)n_rank * chunks);
    SMP_TRY(place_stages(arena, stage_rank, out));
    for (int kind = 0; kind < 2; kind++) {
        bool *flags = SMP_ARENA_NEW(arena, bool, 4 * (size_t)flow->n_stage);
        if (!flags)
            return SMP_ERR_NO_MEMORY;
        out->sends[kind] = flags;
        out->receives[kind] = flags + flow->n_stage;
        out->direct[kind] = flags + 2 * (size_t)flow->n_stage;
        out->jumps[kind] = flags + 3 * (size_t)flow->n_stage;
    }
    for (int32_t i = 0; i < flow->n_transfer; i++) {
        const smp_transfer *t = &flow->transfer[i];
        if (!smp__crossing_is_message(out, t))
            continue;
        out->sends[t->kind][t->from_stage] = true;
        out->receives[t->kind][t->to_stage] = true;
        (smp__crossing_is_direct(t) ? out->direct : out->jumps)[t->kind][t->from_stage] = true;
    }
    return SMP_OK;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static int64_t pair_of(const smp__crossing *crossing, const smp_transfer *t)
{
    return (int64_t)crossing->rank_of[t->from_stage] * crossing->n_rank +
           crossing->rank_of[t->to_stage];
}

smp_status smp__crossing_links(const smp__crossing *crossing, smp_arena *arena, int32_t **link_of,
                               int *n_link)
{
    const smp_flow *flow = crossing->flow;
    int64_t *pairs = SMP_ARENA_NEW(arena, int64_t, (size_t)flow->n_transfer);
    *link_of = SMP_ARENA_NEW(arena, int32_t, (size_t)flow->n_transfer);
    if (!pairs || !*link_of)
        return SMP_ERR_NO_MEMORY;
    int n = 0, n_pair = 0;
    for (int32_t i = 0; i < flow->n_transfer; i++)
        if (smp__crossing_is_message(crossing, &flow->transfer[i]))
            pairs[n++] = pair_of(crossing, &flow->transfer[i]);
    qsort(pairs, (size_t)n, sizeof *pairs, by_value);
    for (int i = 0; i < n; i++)
        if (i == 0 || pairs[i] != pairs[n_pair - 1])
            pairs[n_pair++] = pairs[i];
    for (int32_t i = 0; i < flow->n_transfer; i++) {
        int64_t pair = pair_of(crossing, &flow->transfer[i]);
        const int64_t *found = smp__crossing_is_message(crossing, &flow->transfer[i])
                                   ? bsearch(&pair, pairs, (size_t)n_pair, sizeof *pairs, by_value)
                                   : NULL;
        (*link_of)[i] = found ? (int32_t)(found - pairs) : -1;
    }
    *n_link = n_pair;
    return SMP_OK;
}

static bool leaves_node(const smp_cluster *cluster, const int *device, int from, int to)
{
    return device[from] / cluster->devices_per_node != device[to] / cluster->devices_per_node;
}

/* Messages from a rank to another that go through an adapter of a node at a time, where they are
 * most; 1 at least. on: [nodes] zeroes. */
static double adapter_share(const smp_cluster *cluster, const int *device, int n_rank, int ddp,
                            int from, int to, int *on)
{
    const int ends[] = {from, to};
    int most = 0;
    for (int end = 0; end < 2; end++) {
        for (int d = 0; d < ddp; d++) {
            const int *of = &device[(int64_t)d * n_rank];
            int *here = &on[of[ends[end]] / cluster->devices_per_node];
            *here += leaves_node(cluster, of, from, to);
            most = *here > most ? *here : most;
        }
        for (int d = 0; d < ddp; d++)
            on[device[(int64_t)d * n_rank + ends[end]] / cluster->devices_per_node] = 0;
    }
    return fmax(1.0, (double)most / cluster->adapters_per_node);
}

/* share: [n_transfer] by which a message between nodes takes longer. */
static smp_status find_shares(const smp__crossing *crossing, const smp_cluster *cluster,
                              const int *device, int ddp, smp_arena *scratch, double **share)
{
    const smp_flow *flow = crossing->flow;
    int32_t *link_of;
    int n_link;
    SMP_TRY(smp__crossing_links(crossing, scratch, &link_of, &n_link));
    double *of_link = SMP_ARENA_NEW(scratch, double, (size_t)n_link);
    int *on = SMP_ARENA_NEW(scratch, int, (size_t)cluster->nodes);
    *share = SMP_ARENA_NEW(scratch, double, (size_t)flow->n_transfer);
    if (!of_link || !on || !*share)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < flow->n_transfer; i++) {
        const smp_transfer *t = &flow->transfer[i];
        if (link_of[i] < 0)
            continue;
        double *of = &of_link[link_of[i]];
        if (*of == 0.0)
            *of =
                adapter_share(cluster, device, crossing->n_rank, ddp,
                              crossing->rank_of[t->from_stage], crossing->rank_of[t->to_stage], on);
        (*share)[i] = *of;
    }
    return SMP_OK;
}

smp_status smp__crossing_times(const smp__crossing *crossing, const smp_cluster *cluster,
                               const int *device, int ddp, const int *replica, int n,
                               smp_arena *scratch, double *us)
{
    const int32_t n_transfer = crossing->flow->n_transfer;
    double *share = NULL;
    if (cluster->adapters_per_node > 0)
        SMP_TRY(find_shares(crossing, cluster, device, ddp, scratch, &share));
    for (int k = 0; k < n; k++) {
        const int *of = &device[(int64_t)replica[k] * crossing->n_rank];
        for (int32_t i = 0; i < n_transfer; i++, us++) {
            const smp_transfer *t = &crossing->flow->transfer[i];
            const int from = crossing->rank_of[t->from_stage], to = crossing->rank_of[t->to_stage];
            *us = from == to ? 0.0 : smp__message_us(cluster, of[from], of[to], t->bytes);
            if (share && leaves_node(cluster, of, from, to))
                *us *= share[i];
        }
    }
    return SMP_OK;
}

bool smp__crossing_source(const smp__crossing *crossing, smp_transfer_kind kind, int stage,
                          int *source)
{
    int from = kind == SMP_TRANSFER_F ? stage - 1 : stage + 1;
    if (from < 0 || from >= crossing->flow->n_stage || !crossing->direct[kind][from])
        return false;
    *source = from;
    return true;
}

/* Places of what is sharded; see the header. */
#include "exec/state/shards.h"

#include <stdlib.h>

static const smp_memory_region *region_of(const smp *s, int32_t index)
{
    return &s->memory->region[s->memory->param[index].region];
}

smp__range smp__range_of(const smp *s, int32_t index, int member)
{
    const smp_memory_param *param = &s->memory->param[index];
    const int64_t *cut = region_of(s, index)->cut, n = s->graph->param[param->param].elements;
    const int64_t begin = cut[member] - param->at, end = cut[member + 1] - param->at;
    const smp__range range = {begin < 0 ? 0 : begin, end < n ? end : n};
    return range.begin < range.end ? range : (smp__range){0, 0};
}

smp__range smp__own_range(const smp *s, int32_t index)
{
    return smp__range_of(s, index, s->comm.shard_rank);
}

bool smp__weights_in_parts(const smp *s)
{
    return s->memory->part_weight;
}

static float *place(const smp *s, int32_t index, int64_t offset, bool part, int64_t at)
{
    const smp_memory_region *region = region_of(s, index);
    const int own = s->comm.shard_rank;
    const int64_t first = part ? region->cut[own] - region->at[own] : 0;
    return (float *)(s->arena + offset) + (s->memory->param[index].at + at - first);
}

float *smp__weight_at(const smp *s, int32_t index, int64_t at)
{
    const smp_memory_region *region = region_of(s, index);
    return place(s, index, region->weight, s->memory->part_weight, at);
}

float *smp__grad_at(const smp *s, int32_t index, int64_t at)
{
    const smp_memory_region *region = region_of(s, index);
    return place(s, index, region->grad, region->part_grad, at);
}

float *smp__state_at(const smp *s, int32_t index, int k, int64_t at)
{
    return place(s, index, region_of(s, index)->state[k], true, at);
}

float *smp__saved_at(const smp *s, int32_t index, int k, int64_t at)
{
    return k == 0 ? smp__weight_at(s, index, at) : smp__state_at(s, index, k - 1, at);
}

smp_status smp__pieces_build(smp *s)
{
    const int32_t n = s->memory->n_param;
    s->piece_begin = calloc((size_t)n + 1, sizeof(*s->piece_begin));
    if (!s->piece_begin)
        return smp_fail_memory((size_t)n * sizeof(*s->piece_begin));
    for (int32_t i = 0; i < n; i++) {
        const int64_t elements = s->graph->param[s->memory->param[i].param].elements;
        s->piece_begin[i + 1] =
            s->piece_begin[i] + (elements + SMP_PIECE_ELEMENTS - 1) / SMP_PIECE_ELEMENTS;
    }
    s->pieces = calloc((size_t)s->piece_begin[n] + 1, sizeof(*s->pieces));
    return s->pieces ? SMP_OK : smp_fail_memory((size_t)s->piece_begin[n] * sizeof(*s->pieces));
}

smp_status smp__pieces_share(smp *s, double *pieces)
{
    if (s->comm.shard_size == 1)
        return SMP_OK;
    return smp__comm_sum_group(&s->comm, s->comm.shard, pieces,
                               (int)s->piece_begin[s->memory->n_param],
                               "the other ranks of the shard group");
}

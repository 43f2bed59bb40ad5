/* Places of what is sharded; see the header. */
#include "exec/state/shards.h"

#include <stdlib.h>
#include <string.h>

#include "exec/state/device_wait.h"
#include "exec/state/weights_state.h"
#include "graph/math/half.h"

static const smp_memory_region *region_of(const smp *s, int32_t index)
{
    return &s->memory->region[s->memory->param[index].region];
}

smp__range smp__part_of(const smp_memory_rank *memory, int32_t index, int64_t n, int member)
{
    const smp_memory_param *param = &memory->param[index];
    const int64_t *cut = memory->region[param->region].cut;
    const int64_t begin = cut[member] - param->at, end = cut[member + 1] - param->at;
    const smp__range range = {begin < 0 ? 0 : begin, end < n ? end : n};
    return range.begin < range.end ? range : (smp__range){0, 0};
}

smp__range smp__range_of(const smp *s, int32_t index, int member)
{
    const int64_t n = s->graph->param[s->memory->param[index].param].elements;
    return smp__part_of(s->memory, index, n, member);
}

smp__range smp__own_range(const smp *s, int32_t index)
{
    return smp__range_of(s, index, s->comm->shard_rank);
}

int smp__most_holdings(const smp *s)
{
    return s->comm->tensor_most * s->comm->shard_size;
}

/* The one that begins at h->begin, of the device of h->runs: how far it goes, and which rank of the
 * first shard group has it. Nothing else knows how weights are spread over all ranks. */
static smp_status find_holding(smp *s, int32_t param, smp__holding *h)
{
    const int32_t held = smp__job_find_param(s, param);
    smp__range own = {0, 0};
    if (held >= 0 && s->memory->param[held].owner && s->comm->replica < s->comm->shard_size &&
        s->comm->tensor_rank == h->runs.index)
        own = smp__own_range(s, held);
    h->end = own.end;
    h->rank = own.begin <= h->begin && h->begin < own.end ? s->comm->world_rank : -1;
    SMP_TRY(smp__comm_max(s->comm, &h->rank));
    return smp__comm_share(s->comm, &h->end, sizeof(h->end), h->rank);
}

smp_status smp__find_holdings(smp *s, int32_t param, smp__holding *holding, int *n)
{
    const smp_param *p = &s->graph->param[param];
    smp__holding h = {.runs = smp__runs_of(p)};
    *n = 0;
    for (h.runs.index = 0; h.runs.index < h.runs.count; h.runs.index++)
        for (h.begin = 0; h.begin < p->elements; h.begin = h.end) {
            SMP_TRY(find_holding(s, param, &h));
            holding[(*n)++] = h;
        }
    return SMP_OK;
}

smp__range smp__holding_slice(const smp__holding *h, int64_t begin, int64_t end)
{
    const int64_t first = smp__runs_before(h->runs, begin), last = smp__runs_before(h->runs, end);
    const smp__range both = {first > h->begin ? first : h->begin, last < h->end ? last : h->end};
    return both.begin < both.end ? both : (smp__range){0, 0};
}

bool smp__is_idle(const smp *s, int32_t index)
{
    return region_of(s, index)->idle;
}

bool smp__weights_in_parts(const smp *s)
{
    return s->memory->part_weight;
}

bool smp__weight_is_in_host(const smp *s, int32_t index)
{
    return region_of(s, index)->in_host;
}

smp__range smp__held_range_of(const smp *s, int32_t index, int member)
{
    if (smp__weights_in_parts(s) || smp__weight_is_in_host(s, index))
        return smp__range_of(s, index, member);
    return (smp__range){0, s->graph->param[s->memory->param[index].param].elements};
}

smp__range smp__held_range(const smp *s, int32_t index)
{
    return smp__held_range_of(s, index, s->comm->shard_rank);
}

static char *place(const smp *s, char *base, int32_t index, int64_t offset, smp_dtype dtype,
                   bool part, int64_t at)
{
    const smp_memory_region *region = region_of(s, index);
    const int own = s->comm->shard_rank;
    const int64_t first = part ? region->cut[own] - region->at[own] : 0;
    return base + offset + smp_dtype_bytes(dtype) * (s->memory->param[index].at + at - first);
}

float *smp__weight_at(const smp *s, int32_t index, int64_t at)
{
    const smp_memory_region *region = region_of(s, index);
    return (float *)place(s, region->in_host ? s->buffers->host_area : s->buffers->arena, index,
                          region->weight, SMP_F32, region->in_host || s->memory->part_weight, at);
}

float *smp__grad_at(const smp *s, int32_t index, int64_t at)
{
    const smp_memory_region *region = region_of(s, index);
    return (float *)place(s, s->buffers->arena, index, region->grad, SMP_F32, region->part_grad,
                          at);
}

void *smp__state_at(const smp *s, int32_t index, int k, int64_t at)
{
    return place(s, s->buffers->host_area ? s->buffers->host_area : s->buffers->arena, index,
                 region_of(s, index)->state[k], smp__saved_dtype(s, k + 1), true, at);
}

void *smp__saved_at(const smp *s, int32_t index, int k, int64_t at)
{
    return k == 0 ? smp__weight_at(s, index, at) : smp__state_at(s, index, k - 1, at);
}

smp_dtype smp__saved_dtype(const smp *s, int k)
{
    return k > 0 && s->graph->target.bf16_states ? SMP_BF16 : SMP_F32;
}

/* Some bf16 numbers at a time beside the floats. */
enum { AT_ONCE = 1 << 12 };

smp_status smp__saved_out(smp *s, int32_t index, int k, int64_t at, int64_t n, float *values)
{
    uint16_t narrow[AT_ONCE];
    const smp_dtype dtype = smp__saved_dtype(s, k);
    char *all = (char *)values + (dtype == SMP_BF16 ? 2 * n : 0); /* widened from the front on */
    SMP_TRY(smp__copy_out(s, all, smp__saved_at(s, index, k, at), n * smp_dtype_bytes(dtype)));
    for (int64_t i = 0, m; dtype == SMP_BF16 && i < n; i += m) {
        m = n - i < AT_ONCE ? n - i : AT_ONCE;
        memcpy(narrow, all + 2 * i, (size_t)m * sizeof *narrow);
        smp__from_bf16(values + i, narrow, m);
    }
    return SMP_OK;
}

smp_status smp__saved_in(smp *s, int32_t index, int k, int64_t at, int64_t n, float *values)
{
    uint16_t narrow[AT_ONCE];
    const smp_dtype dtype = smp__saved_dtype(s, k);
    for (int64_t i = 0, m; dtype == SMP_BF16 && i < n; i += m) {
        m = n - i < AT_ONCE ? n - i : AT_ONCE;
        smp_states_to_nearest(narrow, values + i, m);
        memcpy((char *)values + 2 * i, narrow, (size_t)m * sizeof *narrow);
    }
    return smp__copy_in(s, smp__saved_at(s, index, k, at), values, n * smp_dtype_bytes(dtype));
}

smp_status smp__pieces_build(smp *s)
{
    const int32_t n = s->memory->n_param;
    struct smp__weights *w = s->weights;
    w->piece_begin = calloc((size_t)n + 1, sizeof *w->piece_begin);
    if (!w->piece_begin)
        return smp_fail_memory((size_t)n * sizeof *w->piece_begin);
    for (int32_t i = 0; i < n; i++) {
        const int64_t elements = s->graph->param[s->memory->param[i].param].elements;
        w->piece_begin[i + 1] =
            w->piece_begin[i] + (elements + SMP_PIECE_ELEMENTS - 1) / SMP_PIECE_ELEMENTS;
    }
    w->pieces = calloc((size_t)w->piece_begin[n] + 1, sizeof *w->pieces);
    return w->pieces ? SMP_OK : smp_fail_memory((size_t)w->piece_begin[n] * sizeof *w->pieces);
}

smp_status smp__pieces_share(smp *s, double *pieces)
{
    if (s->comm->shard_size == 1)
        return SMP_OK;
    return smp__comm_sum_group(s->comm, s->comm->shard, pieces,
                               (int)s->weights->piece_begin[s->memory->n_param],
                               "the other ranks of the shard group");
}

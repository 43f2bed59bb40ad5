/* Gathers of sharded weights. Weights that are whole outside of steps, where each rank has updated
 * its part, are gathered where they stand: in fp32, or as the copies in 16 bits that alone are on
 * the device; those that are in parts, in the buffer that the memory
 * plan has for this run of the chunk's actions, and its operators are told where that is. */
#include "exec/step/gather.h"

#include <stdlib.h>

#include "exec/state/shards.h"
#include "exec/state/updates.h"
#include "exec/state/weights.h"
#include "exec/step/stepping.h"
#include "exec/step/sum_list.h"
#include "exec/step/reduce_state.h"

static const char members[] = "the weights of the other ranks of the shard group";

static int64_t first_gather(const smp *s, int chunk)
{
    for (int64_t i = 0; i < s->work->program->n; i++)
        if (s->work->program->action[i].kind == SMP_ACTION_GATHER &&
            s->work->program->action[i].chunk == chunk)
            return i;
    return -1;
}

/* Weights of the chunk's operators, where what it has gathered stands at `base`. */
static void place_weights(smp *s, int chunk, int64_t base)
{
    const smp_memory_rank *memory = s->memory;
    const int64_t *at = &memory->gathered[(int64_t)chunk * memory->n_region];
    char *values = s->buffers->arena + base,
         *values16 = values + 4 * memory->gathered_elements[chunk];
    for (int32_t i = 0; i < s->work->chunk[chunk].layout->n_call; i++) {
        smp__call *call = &s->work->chunk[chunk].call[i];
        for (int32_t k = 0; k < call->op->n_param; k++) {
            const int32_t index = smp__job_find_param(s, call->op->param[k]);
            const smp_memory_param *param = &memory->param[index];
            const int64_t element = at[param->region] + param->at;
            call->param[k] = (const float *)values + element;
            if (call->param16)
                call->param16[k] = values16 + 2 * element;
        }
    }
}

/* A region's copy in 16 bits, two values as a float that nobody looks at: places in a region are
 * multiples of 32. */
static smp_status list_copy(smp *s, smp__sum_list *list, int32_t index)
{
    const smp_memory_region *region = &s->memory->region[index];
    const smp_sum gather = {.reach = SMP_REACH_GROUP, .gather = true};
    SMP_TRY(smp__sum_list_add(s, list, &gather, region->weight16 / 4, index, region->elements / 2));
    for (int p = 0; p <= s->comm->shard_size; p++)
        list->item[list->n - 1].cut[p] = region->cut[p] / 2;
    return SMP_OK;
}

static smp_status list_regions(smp *s, int chunk)
{
    const smp_memory_rank *memory = s->memory;
    const smp_sum gather = {.reach = SMP_REACH_GROUP, .gather = true};
    for (int32_t i = 0; i < memory->n_region; i++) {
        const smp_memory_region *region = &memory->region[i];
        const int64_t at = memory->gathered[(int64_t)chunk * memory->n_region + i];
        if (memory->part_weight ? at < 0 : region->chunk != chunk)
            continue;
        if (region->in_host) {
            SMP_TRY(list_copy(s, &s->stepping->reducer->gather[chunk], i));
            continue;
        }
        smp_sum sum = gather;
        sum.cut = region->cut;
        SMP_TRY(smp__sum_list_add(s, &s->stepping->reducer->gather[chunk], &sum,
                                  memory->part_weight ? at : region->weight / 4, i, 0));
    }
    return SMP_OK;
}

smp_status smp__gather_build(smp *s)
{
    s->stepping->reducer->gather =
        calloc((size_t)s->work->chunks, sizeof *s->stepping->reducer->gather);
    if (!s->stepping->reducer->gather)
        return smp_fail_memory((size_t)s->work->chunks * sizeof *s->stepping->reducer->gather);
    for (int chunk = 0; chunk < s->work->chunks && s->comm->shard_size > 1; chunk++) {
        SMP_TRY(list_regions(s, chunk));
        if (smp__weights_in_parts(s)) /* kernels run once before the first step */
            place_weights(s, chunk, s->memory->gather[first_gather(s, chunk)]);
    }
    return SMP_OK;
}

bool smp__gathers(const smp *s, int chunk)
{
    return s->stepping->reducer->gather && s->stepping->reducer->gather[chunk].n > 0;
}

/* This rank's parts, to their place among the others. */
static smp_status copy_own(smp *s, const smp__sum_list *list, int64_t base)
{
    for (int i = 0; i < list->n; i++) {
        const smp_memory_region *region = &s->memory->region[list->item[i].region];
        const int own = s->comm->shard_rank;
        const int64_t begin = region->cut[own], end = region->cut[own + 1];
        if (end > begin)
            SMP_TRY(s->device->copy(
                s->device_context, s->buffers->arena + base + 4 * (list->item[i].offset + begin),
                s->buffers->arena + region->weight + 4 * region->at[own], 4 * (end - begin)));
    }
    return SMP_OK;
}

smp_status smp__gather_start(smp *s, int chunk, int64_t position)
{
    smp__sum_list *list = &s->stepping->reducer->gather[chunk];
    smp__weights_gathered(s); /* a step gathers all */
    SMP_TRY(smp__updates_wait(s, s->work->chunk[chunk].updates));
    if (!smp__weights_in_parts(s)) {
        SMP_TRY(smp__sum_list_start(s, list, 0, list->n));
    } else {
        const int64_t base = s->memory->gather[position];
        place_weights(s, chunk, base);
        SMP_TRY(copy_own(s, list, base));
        SMP_TRY(smp__sum_list_start(s, list, base, list->n));
        s->work->chunk[chunk].gathered = base;
    }
    s->work->chunk[chunk].gathers = true;
    smp__sum_list_record(s, list);
    return SMP_OK;
}

smp_status smp__gather_wait(smp *s, int chunk)
{
    smp__sum_list *list = &s->stepping->reducer->gather[chunk];
    if (!s->work->chunk[chunk].gathers)
        return SMP_OK;
    SMP_TRY(smp__sum_list_wait(s, list, members));
    s->work->chunk[chunk].gathers = false;
    if (!smp_precision_is_half(s->target->precision))
        return SMP_OK;
    if (smp__weights_in_parts(s)) {
        const int64_t elements = s->memory->gathered_elements[chunk];
        char *values = s->buffers->arena + s->work->chunk[chunk].gathered;
        return s->device->round16(s->device_context, smp_precision_dtype(s->target->precision),
                                  values + 4 * elements, (const float *)values, elements);
    }
    for (int i = 0; i < list->n; i++)
        if (!s->memory->region[list->item[i].region].in_host)
            SMP_TRY(smp__region_round(s, list->item[i].region));
    return SMP_OK;
}

smp_status smp__gather_all(smp *s)
{
    if (!smp__weights_are_stale(s) || smp__weights_in_parts(s))
        return SMP_OK;
    for (int chunk = 0; chunk < s->work->chunks; chunk++) {
        SMP_TRY(smp__gather_start(s, chunk, -1));
        SMP_TRY(smp__gather_wait(s, chunk));
    }
    return SMP_OK;
}

smp_status smp__gather_parts(smp *s, int chunk)
{
    if (!smp__weights_in_parts(s))
        return SMP_OK;
    SMP_TRY(smp__gather_start(s, chunk, first_gather(s, chunk)));
    return smp__gather_wait(s, chunk);
}

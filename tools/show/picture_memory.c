/* Bytes alive on a rank at each of its actions, as the memory planner knows them: the fixed part,
 * and every stash block and border buffer from the action that first writes it to the one that last
 * reads it. The memory plan, and O(actions), per rank. */
#include <string.h>

#include "schedule/memory/memory.h"
#include "tools/show/picture_model.h"

static int64_t limit_bytes(const smp_plan *plan, int rank)
{
    const int64_t beside = plan->predicted.communicator_bytes;
    int64_t least = 0;
    for (int replica = 0; plan->cluster && plan->cluster->device && replica < plan->ddp;
         replica++) {
        int device = smp_plan_device(plan, replica, rank);
        if (device >= smp_cluster_devices(plan->cluster))
            continue;
        int64_t bytes = plan->cluster->device[device].memory_bytes;
        least = least == 0 || bytes < least ? bytes : least;
    }
    return least > beside ? least - beside : least;
}

static smp_status memory_of_rank(smp_picture *picture, int rank)
{
    const smp_plan *plan = picture->plan;
    size_t n = (size_t)plan->program[rank].n;
    smp_memory_rank *memory;
    int64_t *alive = picture->alive[rank] = SMP_ARENA_NEW(picture->arena, int64_t, n);
    if (!alive)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp_memory_plan_rank(plan, picture->graph, picture->flow, rank,
                                 smp_planned_states(plan->training), NULL, &memory));
    if (n > 0)
        memcpy(alive, memory->alive_bytes, n * sizeof *alive);
    picture->memory[rank] = (smp__rank_memory){.fixed_bytes = memory->fixed_bytes,
                                               .alive_bytes = memory->bound_bytes,
                                               .reserved_bytes = memory->arena_bytes,
                                               .limit_bytes = limit_bytes(plan, rank)};
    smp_memory_destroy(memory);
    return SMP_OK;
}

smp_status smp__picture_memory(smp_picture *picture)
{
    size_t n_rank = (size_t)picture->plan->pipeline;
    picture->memory = SMP_ARENA_NEW(picture->arena, smp__rank_memory, n_rank);
    picture->alive = SMP_ARENA_NEW(picture->arena, int64_t *, n_rank);
    if (!picture->memory || !picture->alive)
        return SMP_ERR_NO_MEMORY;
    for (int rank = 0; rank < picture->plan->pipeline; rank++)
        SMP_TRY(memory_of_rank(picture, rank));
    return SMP_OK;
}

/* Bytes alive on a rank at each of its actions, as the memory planner knows them: the fixed part, and
 * every stash block and border buffer from the action that first writes it to the one that last
 * reads it. The memory plan, and O(actions), per rank. */
#include <string.h>

#include "schedule/memory/memory.h"
#include "schedule/show/picture_model.h"

static int64_t limit_bytes(const smp_plan *plan, int rank)
{
    int64_t least = 0;
    for (int replica = 0; plan->cluster && plan->cluster->device && replica < plan->ddp;
         replica++) {
        int device = smp_plan_device(plan->placement, plan->pipeline, plan->ddp, replica, rank);
        if (device >= smp_cluster_devices(plan->cluster))
            continue;
        int64_t bytes = plan->cluster->device[device].memory_bytes;
        least = least == 0 || bytes < least ? bytes : least;
    }
    return least;
}

static void fill_rank(smp_picture *picture, int rank, const smp_memory_rank *memory)
{
    size_t n = (size_t)picture->plan->program[rank].n;
    if (n > 0)
        memcpy(picture->alive[rank], memory->alive_bytes, n * sizeof *memory->alive_bytes);
    picture->memory[rank] = (smp__rank_memory){.fixed_bytes = memory->fixed_bytes,
                                               .alive_bytes = memory->bound_bytes,
                                               .reserved_bytes = memory->arena_bytes,
                                               .limit_bytes = limit_bytes(picture->plan, rank)};
}

static smp_status plan_rank(smp_picture *picture, int rank, smp_layout **layout)
{
    const smp_plan *plan = picture->plan;
    smp_memory_rank *memory = NULL;
    for (int c = 0; c < plan->chunks; c++) {
        int stage = picture->crossing.stage_of[(int64_t)rank * plan->chunks + c];
        unsigned mode = smp_layout_mode(plan->stage[stage].recompute, &plan->program[rank], c);
        SMP_TRY(smp_layout_build(picture->graph, picture->flow, stage, mode, NULL, &layout[c]));
    }
    SMP_TRY(smp_memory_plan_rank(plan, picture->graph, picture->flow, rank, NULL,
                                 (const smp_layout *const *)layout,
                                 smp_planned_states(plan->training), &memory));
    fill_rank(picture, rank, memory);
    smp_memory_destroy(memory);
    return SMP_OK;
}

static smp_status memory_of_rank(smp_picture *picture, int rank)
{
    const smp_plan *plan = picture->plan;
    smp_arena *arena = smp_arena_create();
    smp_layout **layout = arena ? SMP_ARENA_NEW(arena, smp_layout *, (size_t)plan->chunks) : NULL;
    picture->alive[rank] = SMP_ARENA_NEW(picture->arena, int64_t, (size_t)plan->program[rank].n);
    smp_status status = SMP_ERR_NO_MEMORY;
    if (layout && picture->alive[rank])
        status = plan_rank(picture, rank, layout);
    for (int c = 0; c < plan->chunks && layout; c++)
        smp_layout_destroy(layout[c]);
    smp_arena_destroy(arena);
    return status;
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

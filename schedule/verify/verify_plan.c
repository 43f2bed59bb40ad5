/* The whole check of a plan against its model: stages, programs, and the peak of every rank as the
 * memory planner computes it again. */
#include <stdlib.h>

#include "schedule/memory/memory.h"
#include "schedule/verify/verify.h"

/* What the memory planner takes of a rank; arrays over all stages are shared. */
typedef struct peak_check {
    const smp_plan *plan;
    const smp_graph *graph;
    const smp_flow *flow;
    smp_arena *arena;
    int *stage_rank;           /* [n_stage] */
    int *stage_of_chunk;       /* [chunks] */
    const smp_layout **layout; /* [chunks], borrowed from built */
} peak_check;

static smp_status check_rank(peak_check *c, smp_layout **built, int rank)
{
    const smp_plan *plan = c->plan;
    for (int chunk = 0; chunk < plan->chunks; chunk++) {
        c->stage_of_chunk[chunk] = smp_plan_stage_of(plan, rank, chunk);
        int stage = c->stage_of_chunk[chunk];
        unsigned mode = smp_layout_mode(plan->stage[stage].recompute, &plan->program[rank], chunk);
        SMP_TRY(smp_layout_measure(c->graph, c->flow, stage, mode, NULL, &built[chunk]));
        c->layout[chunk] = built[chunk];
    }
    smp_memory_input input = {.graph = c->graph,
                              .flow = c->flow,
                              .program = &plan->program[rank],
                              .stage_of_chunk = c->stage_of_chunk,
                              .stage_rank = c->stage_rank,
                              .layout = c->layout,
                              .rank = rank,
                              .chunks = plan->chunks,
                              .microbatches = plan->microbatches,
                              .ddp = plan->ddp,
                              .optimizer_states = plan->training ? 2 : 0};
    smp_memory_rank *memory;
    SMP_TRY(smp_memory_plan(&input, &memory));
    int64_t peak = memory->arena_bytes;
    smp_memory_destroy(memory);
    if (peak != plan->predicted.peak_bytes[rank])
        return smp_fail_at(plan->place.predicted,
                           "predicted: peak_bytes of rank %d: got %lld, expected %lld", rank,
                           (long long)plan->predicted.peak_bytes[rank], (long long)peak);
    return SMP_OK;
}

static smp_status check_peaks(peak_check *c)
{
    const smp_plan *plan = c->plan;
    smp_layout **built = SMP_ARENA_NEW(c->arena, smp_layout *, (size_t)plan->chunks);
    c->layout = SMP_ARENA_NEW(c->arena, const smp_layout *, (size_t)plan->chunks);
    c->stage_of_chunk = SMP_ARENA_NEW(c->arena, int, (size_t)plan->chunks);
    c->stage_rank = SMP_ARENA_NEW(c->arena, int, (size_t)plan->n_stage);
    if (!built || !c->layout || !c->stage_of_chunk || !c->stage_rank)
        return SMP_ERR_NO_MEMORY;
    for (int stage = 0; stage < plan->n_stage; stage++)
        c->stage_rank[stage] = plan->stage[stage].rank;
    smp_status status = SMP_OK;
    for (int rank = 0; status == SMP_OK && rank < plan->pipeline; rank++) {
        status = check_rank(c, built, rank);
        for (int chunk = 0; chunk < plan->chunks; chunk++) {
            smp_layout_destroy(built[chunk]);
            built[chunk] = NULL;
        }
    }
    return status;
}

smp_status smp_verify(const smp_plan *plan, const smp_graph *graph)
{
    int32_t *stage_of_op = NULL;
    smp_flow *flow = NULL;
    smp_arena *arena = NULL;
    SMP_TRY(smp_plan_bind(plan, graph, &stage_of_op));
    smp_status status =
        smp_flow_build(graph, stage_of_op, plan->n_stage, plan->microbatch_size, &flow);
    if (status == SMP_OK)
        status = smp_verify_programs(plan, flow);
    if (status != SMP_OK)
        goto done;
    if (!plan->predicted.peak_bytes) {
        status = smp_fail(SMP_ERR_INPUT, "predicted: peak_bytes is missing");
        goto done;
    }
    arena = smp_arena_create();
    if (!arena) {
        status = SMP_ERR_NO_MEMORY;
        goto done;
    }
    peak_check check = {.plan = plan, .graph = graph, .flow = flow, .arena = arena};
    status = check_peaks(&check);
done:
    smp_arena_destroy(arena);
    smp_flow_destroy(flow);
    free(stage_of_op);
    return status;
}

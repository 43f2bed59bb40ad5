/* The model of schedules that the search works with: names and rules come from the registry, costs
 * from lowering, simulation and the memory planner, the same that make the plan. */
#include "schedule/planner_model.h"

#include <stdlib.h>
#include <string.h>

#include "schedule/lower.h"
#include "schedule/memory.h"

/* A plan spells out every action; beyond this it is no use to anyone and takes long to make. */
enum { MAX_FORWARDS = 1 << 18 };

static void drop_partition(smp__planner *planner)
{
    for (int s = 0; planner->layout && s < planner->n_stage; s++)
        smp_layout_destroy(planner->layout[s]);
    free(planner->layout);
    free(planner->stage);
    smp_flow_destroy(planner->flow);
    planner->layout = NULL;
    planner->stage = NULL;
    planner->flow = NULL;
    planner->n_stage = 0;
}

smp_status smp__planner_open(smp__planner *planner, int active, int group)
{
    const smp_schedule_kind *const *kinds = smp_schedules();
    size_t n = 0;
    while (kinds[n])
        n++;
    *planner = (smp__planner){
        .names = calloc(n + 1, sizeof *planner->names), .active = active, .group = group};
    if (!planner->names)
        return smp_fail_memory((n + 1) * sizeof *planner->names);
    for (size_t i = 0; i < n; i++)
        planner->names[i] = kinds[i]->name;
    return SMP_OK;
}

void smp__planner_close(smp__planner *planner)
{
    drop_partition(planner);
    free(planner->names);
}

static smp_schedule_shape shape_of(const smp__planner *planner, int pipeline, int chunks,
                                   int microbatches, bool training)
{
    return (smp_schedule_shape){.pipeline = pipeline,
                                .chunks = chunks,
                                .microbatches = microbatches,
                                .training = training,
                                .active = planner->active,
                                .group = planner->group};
}

static bool known(void *context, const char *name)
{
    (void)context;
    return smp_schedule_find(name) != NULL;
}

static smp_status check(void *context, const char *name, int pipeline, int chunks, int microbatches,
                        bool training)
{
    const smp_schedule_kind *kind = smp_schedule_find(name);
    smp_schedule_shape shape = shape_of(context, pipeline, chunks, microbatches, training);
    if (!kind)
        return smp_fail(SMP_ERR_INPUT, "schedule '%s' is unknown", name);
    if (pipeline < 1 || chunks < 1 || microbatches < 1)
        return smp_fail(SMP_ERR_INPUT,
                        "schedule '%s': %d ranks, %d chunks, %d micro-batches, expected at least 1 "
                        "of each",
                        name, pipeline, chunks, microbatches);
    if ((int64_t)pipeline * chunks > MAX_FORWARDS / microbatches)
        return smp_fail(SMP_ERR_INPUT,
                        "schedule '%s': %d ranks * %d chunks * %d micro-batches, expected at most "
                        "%d forward actions",
                        name, pipeline, chunks, microbatches, MAX_FORWARDS);
    return kind->check ? kind->check(&shape) : SMP_OK;
}

static int stage_rank(void *context, const char *name, int pipeline, int chunks, int stage)
{
    smp_schedule_shape shape = shape_of(context, pipeline, chunks, 1, true);
    return smp_schedule_stage_rank(smp_schedule_find(name), &shape, stage);
}

static int live(void *context, const char *name, int pipeline, int chunks, int microbatches,
                int rank, bool training)
{
    smp_schedule_shape shape = shape_of(context, pipeline, chunks, microbatches, training);
    return smp_schedule_find(name)->live(&shape, rank);
}

/* Flow and layouts of the candidate's partition, made anew only if it differs from the last. */
static smp_status use_partition(smp__planner *planner, const smp_search_request *request,
                                const smp_partition *partition)
{
    const smp_graph *graph = request->graph;
    size_t bytes = (size_t)graph->n_op * sizeof *planner->stage;
    if (planner->n_stage == partition->n_stage &&
        memcmp(planner->stage, partition->stage, bytes) == 0)
        return SMP_OK;
    drop_partition(planner);
    planner->stage = malloc(bytes > 0 ? bytes : 1);
    planner->layout = calloc((size_t)partition->n_stage, sizeof(smp_layout *));
    if (!planner->stage || !planner->layout)
        return smp_fail_memory(bytes);
    if (bytes > 0)
        memcpy(planner->stage, partition->stage, bytes);
    planner->n_stage = partition->n_stage;
    smp_status status = smp_flow_build(graph, partition->stage, partition->n_stage,
                                       request->microbatch_size, &planner->flow);
    for (int s = 0; s < partition->n_stage && status == SMP_OK; s++)
        status = smp_layout_build(graph, planner->flow, s, partition->load[s].recompute, NULL,
                                  &planner->layout[s]);
    if (status != SMP_OK)
        drop_partition(planner);
    return status;
}

static smp_status simulate(const smp__planner *planner, const smp_search_request *request,
                           const smp_costs *costs, const smp_candidate *candidate,
                           smp__evaluation *evaluation)
{
    const smp_partition *partition = candidate->partition;
    size_t n = (size_t)partition->n_stage;
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_arena *arena = smp_arena_create();
    double *forward_us = arena ? SMP_ARENA_NEW(arena, double, n) : NULL;
    double *backward_us = arena ? SMP_ARENA_NEW(arena, double, n) : NULL;
    int64_t *weight_bytes = arena ? SMP_ARENA_NEW(arena, int64_t, n) : NULL;
    if (!forward_us || !backward_us || !weight_bytes)
        goto done;
    for (size_t s = 0; s < n; s++) {
        forward_us[s] = partition->load[s].forward_us;
        backward_us[s] = partition->load[s].backward_us;
        weight_bytes[s] = partition->load[s].weight_bytes;
    }
    status =
        smp_simulate(&(smp_simulation_input){.pipeline = candidate->pipeline,
                                             .chunks = candidate->chunks,
                                             .ddp = candidate->ddp,
                                             .microbatches = candidate->microbatches,
                                             .program = evaluation->program,
                                             .stage_rank = candidate->stage_rank,
                                             .forward_us = forward_us,
                                             .backward_us = backward_us,
                                             .weight_bytes = weight_bytes,
                                             .flow = planner->flow,
                                             .graph = request->graph,
                                             .cluster = request->cluster,
                                             .device = candidate->device,
                                             .optimizer_bytes_per_s = costs->optimizer_bytes_per_s},
                     &evaluation->simulation);
done:
    smp_arena_destroy(arena);
    return status;
}

static smp_status plan_rank(const smp__planner *planner, const smp_search_request *request,
                            const smp_candidate *candidate, const smp_program *program, int rank,
                            smp_arena *arena, int64_t *peak_bytes)
{
    int *stage_of_chunk = SMP_ARENA_NEW(arena, int, (size_t)candidate->chunks);
    const smp_layout **layout = SMP_ARENA_NEW(arena, const smp_layout *, (size_t)candidate->chunks);
    smp_memory_rank *memory;
    if (!stage_of_chunk || !layout)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0, c = 0; s < planner->n_stage && c < candidate->chunks; s++)
        if (candidate->stage_rank[s] == rank) {
            stage_of_chunk[c] = s;
            layout[c++] = planner->layout[s];
        }
    smp_memory_input input = {.graph = request->graph,
                              .flow = planner->flow,
                              .program = program,
                              .stage_of_chunk = stage_of_chunk,
                              .stage_rank = candidate->stage_rank,
                              .layout = layout,
                              .rank = rank,
                              .chunks = candidate->chunks,
                              .microbatches = candidate->microbatches,
                              .ddp = candidate->ddp,
                              .optimizer_states = request->graph->training ? 2 : 0};
    SMP_TRY(smp_memory_plan(&input, &memory));
    *peak_bytes = memory->arena_bytes;
    smp_memory_destroy(memory);
    return SMP_OK;
}

static smp_status plan_memory(const smp__planner *planner, const smp_search_request *request,
                              const smp_candidate *candidate, smp__evaluation *evaluation)
{
    smp_status status = SMP_OK;
    smp_arena *arena = smp_arena_create();
    if (!arena)
        return SMP_ERR_NO_MEMORY;
    for (int r = 0; r < candidate->pipeline && status == SMP_OK; r++)
        status = plan_rank(planner, request, candidate, &evaluation->program[r], r, arena,
                           &evaluation->peak_bytes[r]);
    smp_arena_destroy(arena);
    return status;
}

smp_status smp__planner_evaluate(smp__planner *planner, const smp_search_request *request,
                                 const smp_costs *costs, const smp_candidate *candidate,
                                 smp__evaluation *out)
{
    size_t n = (size_t)candidate->pipeline;
    smp_schedule_shape shape = shape_of(planner, candidate->pipeline, candidate->chunks,
                                        candidate->microbatches, request->graph->training);
    smp__evaluation evaluation = {.program = calloc(n, sizeof *evaluation.program),
                                  .peak_bytes = calloc(n, sizeof *evaluation.peak_bytes),
                                  .pipeline = candidate->pipeline};
    smp_status status;
    if (!evaluation.program || !evaluation.peak_bytes) {
        status = smp_fail_memory(n * sizeof *evaluation.program);
        goto done;
    }
    status = use_partition(planner, request, candidate->partition);
    if (status == SMP_OK)
        status = smp_lower(smp_schedule_find(candidate->schedule), &shape, planner->flow,
                           evaluation.program);
    if (status == SMP_OK)
        status = simulate(planner, request, costs, candidate, &evaluation);
    if (status == SMP_OK)
        status = plan_memory(planner, request, candidate, &evaluation);
done:
    if (status == SMP_OK)
        *out = evaluation;
    else
        smp__evaluation_free(&evaluation);
    return status;
}

void smp__evaluation_free(smp__evaluation *evaluation)
{
    for (int r = 0; evaluation->program && r < evaluation->pipeline; r++)
        smp_program_free(&evaluation->program[r]);
    free(evaluation->program);
    free(evaluation->peak_bytes);
    smp_simulation_destroy(evaluation->simulation);
    *evaluation = (smp__evaluation){0};
}

/* Least memory of the devices that stand for a pipeline rank, one in each replica. */
static int64_t limit_of(const smp_search_request *request, const smp_candidate *candidate, int rank)
{
    int64_t limit = INT64_MAX;
    if (request->memory_bytes > 0)
        return request->memory_bytes;
    for (int d = 0; d < candidate->ddp; d++) {
        int device = candidate->device[d * candidate->pipeline + rank];
        if (limit > request->cluster->device[device].memory_bytes)
            limit = request->cluster->device[device].memory_bytes;
    }
    return limit;
}

static smp_status evaluate(void *context, const smp_search_request *request, const smp_costs *costs,
                           smp_candidate *candidate)
{
    smp__evaluation evaluation;
    SMP_TRY(smp__planner_evaluate(context, request, costs, candidate, &evaluation));
    candidate->step_us = evaluation.simulation->step_us;
    candidate->peak_bytes = 0;
    candidate->room_bytes = INT64_MAX;
    for (int r = 0; r < candidate->pipeline; r++) {
        int64_t room = limit_of(request, candidate, r) - evaluation.peak_bytes[r];
        if (candidate->peak_bytes < evaluation.peak_bytes[r])
            candidate->peak_bytes = evaluation.peak_bytes[r];
        if (r == 0 || room < candidate->room_bytes) {
            candidate->room_bytes = room;
            candidate->worst_rank = r;
        }
    }
    candidate->fits = candidate->room_bytes >= 0;
    smp__evaluation_free(&evaluation);
    return SMP_OK;
}

smp_schedule_model smp__planner_model(smp__planner *planner)
{
    return (smp_schedule_model){.context = planner,
                                .names = planner->names,
                                .known = known,
                                .check = check,
                                .stage_rank = stage_rank,
                                .live = live,
                                .evaluate = evaluate};
}

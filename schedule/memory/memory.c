/* Memory of a rank: what lives for ever. Weights, optimizer states and gradients are placed by
 * memory_states.c, loss slots and the work area here; what lives for a part of the step is placed
 * above them by memory_lives.c. O(params + uses * chunks + ops of the rank). */
#include "schedule/memory/memory_build.h"

#include <stdlib.h>

#include "graph/model/op.h"
#include "schedule/memory/bytes.h"
#include "schedule/plan/gradient_blocks.h"

smp_status smp__memory_place(smp__memory_build *build, int64_t bytes, int64_t *offset)
{
    *offset = build->top;
    return smp__bytes_add(&build->top, bytes);
}

static smp_status check_input(const smp_memory_input *input)
{
    if (input->rank < 0 || input->sharding.shard < 1 || input->chunks < 1 ||
        input->microbatches < 1 || input->ddp < 1 || input->blocks < input->ddp ||
        input->optimizer_states < 0 || input->optimizer_states > 2 || input->horizon < 0)
        return smp_fail(SMP_ERR_INPUT,
                        "memory of rank %d: %d chunks, %d micro-batches, ddp %d, %d blocks of "
                        "gradients, %d states",
                        input->rank, input->chunks, input->microbatches, input->ddp, input->blocks,
                        input->optimizer_states);
    for (int c = 0; c < input->chunks; c++) {
        int stage = input->stage_of_chunk[c];
        if (stage < 0 || stage >= input->flow->n_stage || input->layout[c]->stage != stage)
            return smp_fail(SMP_ERR_INPUT, "memory of rank %d: chunk %d has no stage", input->rank,
                            c);
    }
    return SMP_OK;
}

static smp_status map_chunks(smp__memory_build *build)
{
    const smp_memory_input *input = build->input;
    build->chunk_of_stage = SMP_ARENA_NEW(build->scratch, int, (size_t)input->flow->n_stage);
    if (!build->chunk_of_stage)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < input->flow->n_stage; s++)
        build->chunk_of_stage[s] = -1;
    for (int c = 0; c < input->chunks; c++)
        build->chunk_of_stage[input->stage_of_chunk[c]] = c;
    return SMP_OK;
}

/* Weights of ops without kernels: nothing will use the place, but the room is counted, as if
 * nothing were sharded. */
static smp_status count_opaque(smp__memory_build *build)
{
    const smp_memory_input *input = build->input;
    const smp_flow *flow = input->flow;
    int64_t element = smp_weight_element_bytes(input->graph, input->optimizer_states);
    for (int c = 0; c < input->chunks; c++) {
        int s = input->stage_of_chunk[c];
        for (int32_t i = flow->op_begin[s]; i < flow->op_begin[s + 1]; i++) {
            const smp_op *op = &input->graph->op[flow->op_list[i]];
            if (op->kind->cpu.forward)
                continue;
            int64_t bytes = op->cost ? op->cost->weight_bytes : 0;
            for (int64_t left = element; left > 0 && bytes > 0; left -= 4)
                SMP_TRY(smp__bytes_add(&build->top, left < 4 ? bytes / 4 * left : bytes));
        }
    }
    return SMP_OK;
}

static smp_status place_scratch(smp__memory_build *build)
{
    const smp_memory_input *input = build->input;
    int32_t loss = input->graph->loss;
    int32_t producer = loss >= 0 ? input->graph->tensor[loss].producer : -1;
    build->rank->loss = -1;
    if (producer >= 0 && build->chunk_of_stage[input->flow->stage_of_op[producer]] >= 0)
        SMP_TRY(smp__memory_place(build, (int64_t)SMP_LOSS_SLOT_BYTES * input->microbatches,
                                  &build->rank->loss));
    int64_t work = 0;
    for (int c = 0; c < input->chunks; c++) {
        int64_t bytes = smp_layout_work_bytes(input->layout[c]);
        work = bytes > work ? bytes : work;
    }
    return smp__memory_place(build, work, &build->rank->work);
}

static smp_status plan_memory(smp__memory_build *build)
{
    const smp_memory_input *input = build->input;
    SMP_TRY(check_input(input));
    build->levels = smp_gradient_levels(input->blocks, input->ddp, input->sharding.shard);
    SMP_TRY(map_chunks(build));
    SMP_TRY(smp__memory_place_states(build));
    SMP_TRY(count_opaque(build));
    SMP_TRY(place_scratch(build));
    return smp__memory_place_lives(build);
}

static smp_status plan_weights(smp__memory_build *build)
{
    SMP_TRY(map_chunks(build));
    return smp__memory_place_states(build);
}

static smp_status make(const smp_memory_input *input, smp_status (*plan)(smp__memory_build *),
                       smp_memory_rank **out)
{
    smp__memory_build build = {.input = input};
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_arena *arena = smp_arena_create();
    build.scratch = smp_arena_create();
    if (!arena || !build.scratch || !(build.rank = SMP_ARENA_NEW(arena, smp_memory_rank, 1))) {
        smp_fail_memory(sizeof *build.rank);
        goto done;
    }
    build.rank->arena = arena;
    build.rank->rank = input->rank;
    status = plan(&build);
done:
    smp_arena_destroy(build.scratch);
    if (status == SMP_OK)
        *out = build.rank;
    else
        smp_arena_destroy(arena);
    return status;
}

smp_status smp_memory_plan(const smp_memory_input *input, smp_memory_rank **out)
{
    return make(input, plan_memory, out);
}

smp_status smp_memory_plan_weights(const smp_plan *plan, const smp_graph *graph,
                                   const smp_flow *flow, int rank, int optimizer_states,
                                   smp_memory_rank **out)
{
    smp_memory_input input = {.graph = graph,
                              .flow = flow,
                              .rank = rank,
                              .chunks = plan->chunks,
                              .ddp = plan->ddp,
                              .sharding = plan->sharding,
                              .optimizer_states = optimizer_states};
    int *stage_of_chunk = calloc((size_t)plan->chunks, sizeof *stage_of_chunk);
    if (!stage_of_chunk)
        return smp_fail_memory((size_t)plan->chunks * sizeof *stage_of_chunk);
    for (int c = 0; c < plan->chunks; c++)
        stage_of_chunk[c] = smp_plan_stage_of(plan, rank, c);
    input.stage_of_chunk = stage_of_chunk;
    const smp_status status = make(&input, plan_weights, out);
    free(stage_of_chunk);
    return status;
}

void smp_memory_destroy(smp_memory_rank *memory)
{
    if (memory)
        smp_arena_destroy(memory->arena);
}

/* The ops of the rank's stages that the plan lets recompute, or offload: [n_op] of the graph; NULL:
 * no memory. */
static bool *mask_of(const smp_plan *plan, const smp_graph *graph, const smp_flow *flow, int rank,
                     bool offload, smp_arena *arena)
{
    bool *mask = SMP_ARENA_NEW(arena, bool, (size_t)graph->n_op);
    for (int s = 0; mask && s < plan->n_stage; s++) {
        const smp_plan_stage *stage = &plan->stage[s];
        const bool *said = offload ? stage->offload : stage->recompute;
        for (int32_t i = 0; stage->rank == rank && said && i < stage->n_op; i++)
            mask[flow->op_list[flow->op_begin[s] + i]] = said[i];
    }
    return mask;
}

smp_status smp_memory_plan_rank(const smp_plan *plan, const smp_graph *graph, const smp_flow *flow,
                                int rank, int optimizer_states, smp_layout **layout,
                                smp_memory_rank **out)
{
    size_t chunks = (size_t)plan->chunks, n_stage = (size_t)plan->n_stage;
    const smp_program *program = &plan->program[rank];
    smp_arena *arena = smp_arena_create();
    smp_layout **made = arena && !layout ? SMP_ARENA_NEW(arena, smp_layout *, chunks) : layout;
    int *stage_of_chunk = arena ? SMP_ARENA_NEW(arena, int, chunks) : NULL;
    int *stage_rank = arena ? SMP_ARENA_NEW(arena, int, n_stage) : NULL;
    const bool *recompute = arena ? mask_of(plan, graph, flow, rank, false, arena) : NULL;
    const bool *offload = arena ? mask_of(plan, graph, flow, rank, true, arena) : NULL;
    smp_status status = made && stage_of_chunk && stage_rank && recompute && offload
                            ? SMP_OK
                            : smp_fail_memory(sizeof(int) * (chunks + n_stage));
    for (int c = 0; c < plan->chunks && status == SMP_OK; c++) {
        int stage = stage_of_chunk[c] = smp_plan_stage_of(plan, rank, c);
        bool split = smp_layout_is_split(program, c);
        status = layout ? smp_layout_build(graph, flow, stage, split, recompute, offload, &made[c])
                        : smp_layout_measure(graph, flow, stage, split, recompute, offload, NULL,
                                             &made[c]);
        if (status == SMP_OK && !layout &&
            made[c]->block_bytes[SMP_BLOCK_AWAY] != plan->stage[stage].offload_bytes)
            status = smp_fail_at(smp_plan_stage_where(plan, stage),
                                 "stage %d: offload_bytes: got %lld, expected %lld", stage,
                                 (long long)plan->stage[stage].offload_bytes,
                                 (long long)made[c]->block_bytes[SMP_BLOCK_AWAY]);
    }
    for (int s = 0; s < plan->n_stage && status == SMP_OK; s++)
        stage_rank[s] = plan->stage[s].rank;
    if (status == SMP_OK)
        status = smp_memory_plan(&(smp_memory_input){.graph = graph,
                                                     .flow = flow,
                                                     .program = program,
                                                     .stage_of_chunk = stage_of_chunk,
                                                     .stage_rank = stage_rank,
                                                     .layout = (const smp_layout *const *)made,
                                                     .rank = rank,
                                                     .chunks = plan->chunks,
                                                     .microbatches = plan->microbatches,
                                                     .ddp = plan->ddp,
                                                     .sharding = plan->sharding,
                                                     .blocks = plan->gradient_blocks,
                                                     .optimizer_states = optimizer_states,
                                                     .horizon = plan->loading_horizon},
                                 out);
    for (int c = 0; c < plan->chunks && made && !layout; c++)
        smp_layout_destroy(made[c]);
    smp_arena_destroy(arena);
    return status;
}

smp_status smp_memory_peak(const smp_plan *plan, const smp_graph *graph, const smp_flow *flow,
                           int rank, int64_t *peak_bytes, int64_t *host_bytes)
{
    smp_memory_rank *memory;
    SMP_TRY(smp_memory_plan_rank(plan, graph, flow, rank, smp_planned_states(plan->training), NULL,
                                 &memory));
    *peak_bytes = memory->arena_bytes;
    *host_bytes = memory->host_bytes;
    smp_memory_destroy(memory);
    return SMP_OK;
}

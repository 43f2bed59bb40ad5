/* Memory of a rank: what lives for ever (weights, optimizer state, gradients, loss slots, the work
 * area), here; what lives for a part of the step is placed above it by memory_lives.c.
 *
 * A weight with one use has its accumulator for its gradient. One with several keeps an accumulator
 * per use and a separate sum, ((g0 + g1) + g2) in op order: exchanges may still read accumulators
 * while the sum is made. The accumulators of a chunk lie side by side, so that one all-reduce takes
 * them all, and one call adds those of a block of gradients to the sum of earlier blocks. O(params
 * + uses * chunks + ops of the rank). */
#include "schedule/memory/memory_build.h"

#include <stdlib.h>

#include "graph/model/op.h"
#include "schedule/memory/bytes.h"
#include "schedule/plan/gradient_blocks.h"

static smp_status place(smp__memory_build *build, int64_t bytes, int64_t *offset)
{
    *offset = build->top;
    return smp__bytes_add(&build->top, bytes);
}

static smp_status check_input(const smp_memory_input *input)
{
    if (input->rank < 0 || input->chunks < 1 || input->microbatches < 1 || input->ddp < 1 ||
        input->blocks < 1 || input->optimizer_states < 0 || input->optimizer_states > 2)
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

static int stage_of_use(const smp_memory_input *input, int32_t use)
{
    return input->flow->stage_of_op[input->graph->use[use].op];
}

static int64_t use_bytes(const smp_memory_input *input, const smp_memory_use *use)
{
    return input->graph->param[input->graph->use[use->use].param].elements * (int64_t)sizeof(float);
}

/* Weights that an op of this rank reads, by rising param. */
static smp_status list_params(smp__memory_build *build)
{
    const smp_memory_input *input = build->input;
    const smp_graph *graph = input->graph;
    int32_t n_param = 0, n_use = 0;
    smp_memory_param *list =
        SMP_ARENA_NEW(build->scratch, smp_memory_param, (size_t)graph->n_param);
    if (!list)
        return SMP_ERR_NO_MEMORY;
    for (int32_t p = 0; p < graph->n_param; p++) {
        const smp_param *param = &graph->param[p];
        smp_memory_param own = {
            .param = p, .weight = -1, .weight16 = -1, .state = {-1, -1}, .grad = -1, .chunk = -1};
        for (int32_t use = param->use_begin; use < param->use_end; use++) {
            int stage = stage_of_use(input, use), chunk = build->chunk_of_stage[stage];
            own.owner |= use == param->use_begin && chunk >= 0;
            if (chunk >= 0 && (own.chunk < 0 || chunk < own.chunk))
                own.chunk = chunk;
        }
        if (own.chunk < 0)
            continue;
        list[n_param++] = own;
        n_use += param->use_end - param->use_begin;
    }
    smp_memory_param *param = SMP_ARENA_NEW(build->rank->arena, smp_memory_param, (size_t)n_param);
    if (!param)
        return SMP_ERR_NO_MEMORY;
    for (int32_t k = 0; k < n_param; k++)
        param[k] = list[k];
    build->rank->param = param;
    build->rank->n_param = n_param;
    build->rank->n_use = graph->training ? n_use : 0;
    return SMP_OK;
}

/* The weights, their copies, then one state after the other. */
static smp_status place_weights(smp__memory_build *build, smp_memory_param *param)
{
    const smp_graph *graph = build->input->graph;
    bool bf16 = graph->target.precision == SMP_PRECISION_BF16;
    for (int state = -1; state < build->input->optimizer_states; state++) {
        for (int32_t k = 0; k < build->rank->n_param; k++) {
            int64_t bytes = graph->param[param[k].param].elements * (int64_t)sizeof(float);
            SMP_TRY(place(build, bytes, state < 0 ? &param[k].weight : &param[k].state[state]));
        }
        for (int32_t k = 0; k < build->rank->n_param && state < 0 && bf16; k++)
            SMP_TRY(place(build, graph->param[param[k].param].elements * 2, &param[k].weight16));
    }
    return SMP_OK;
}

/* Accumulators of the uses in a chunk, and the sums of earlier blocks. */
static smp_status place_bucket(smp__memory_build *build, int chunk, smp_memory_use *use,
                               smp_memory_bucket *bucket)
{
    const smp_memory_input *input = build->input;
    const int64_t unit = (int64_t)SMP_BUFFER_ALIGN * input->ddp; /* replicas have whole units */
    int64_t padding;
    bucket->offset = build->top;
    for (int32_t i = 0; i < build->rank->n_use; i++)
        if (build->chunk_of_stage[use[i].stage] == chunk)
            SMP_TRY(place(build, use_bytes(input, &use[i]), &use[i].offset));
    const int64_t over = (build->top - bucket->offset) % unit;
    SMP_TRY(place(build, over > 0 ? unit - over : 0, &padding));
    const int64_t bytes = build->top - bucket->offset;
    bucket->elements = bytes / (int64_t)sizeof(float);
    bucket->level = build->top;
    for (int level = 0; level < smp_gradient_levels(input->blocks); level++)
        SMP_TRY(place(build, bytes, &padding));
    return SMP_OK;
}

/* The uses of the rank's weights: where they lie and which are its own. */
static smp_status list_uses(smp__memory_build *build, smp_memory_use **out)
{
    const smp_memory_input *input = build->input;
    smp_memory_use *use =
        SMP_ARENA_NEW(build->rank->arena, smp_memory_use, (size_t)build->rank->n_use);
    if (!use)
        return SMP_ERR_NO_MEMORY;
    int32_t n = 0;
    for (int32_t k = 0; input->graph->training && k < build->rank->n_param; k++) {
        const smp_param *param = &input->graph->param[build->rank->param[k].param];
        for (int32_t u = param->use_begin; u < param->use_end; u++, n++) {
            int stage = stage_of_use(input, u);
            use[n] = (smp_memory_use){.use = u,
                                      .param = k,
                                      .stage = stage,
                                      .local = build->chunk_of_stage[stage] >= 0,
                                      .offset = -1};
        }
    }
    build->rank->use = *out = use;
    return SMP_OK;
}

/* Accumulators chunk by chunk; buffers for those of other ranks; sums of weights with several. */
static smp_status place_gradients(smp__memory_build *build, smp_memory_param *param)
{
    const smp_memory_input *input = build->input;
    smp_memory_use *use;
    smp_memory_bucket *bucket =
        SMP_ARENA_NEW(build->rank->arena, smp_memory_bucket, (size_t)input->chunks);
    if (!bucket)
        return SMP_ERR_NO_MEMORY;
    build->rank->bucket = bucket;
    SMP_TRY(list_uses(build, &use));
    for (int c = 0; c < input->chunks; c++) {
        bucket[c] = (smp_memory_bucket){.offset = -1, .level = -1};
        if (input->graph->training)
            SMP_TRY(place_bucket(build, c, use, &bucket[c]));
    }
    for (int32_t i = 0; i < build->rank->n_use; i++) {
        smp_memory_param *own = &param[use[i].param];
        const smp_param *of = &input->graph->param[own->param];
        if (!use[i].local)
            SMP_TRY(place(build, use_bytes(input, &use[i]), &use[i].offset));
        if (of->use_end - of->use_begin == 1)
            own->grad = use[i].offset;
        else if (own->grad < 0)
            SMP_TRY(place(build, use_bytes(input, &use[i]), &own->grad));
    }
    return SMP_OK;
}

/* Weights of ops without kernels: nothing will use the place, but the room is counted. */
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
        SMP_TRY(
            place(build, (int64_t)SMP_LOSS_SLOT_BYTES * input->microbatches, &build->rank->loss));
    int64_t work = 0;
    for (int c = 0; c < input->chunks; c++) {
        int64_t bytes = smp_layout_work_bytes(input->layout[c]);
        work = bytes > work ? bytes : work;
    }
    return place(build, work, &build->rank->work);
}

static smp_status plan_memory(smp__memory_build *build)
{
    SMP_TRY(check_input(build->input));
    SMP_TRY(map_chunks(build));
    SMP_TRY(list_params(build));
    smp_memory_param *param = (smp_memory_param *)build->rank->param; /* still ours to fill */
    SMP_TRY(place_weights(build, param));
    SMP_TRY(place_gradients(build, param));
    SMP_TRY(count_opaque(build));
    SMP_TRY(place_scratch(build));
    return smp__memory_place_lives(build);
}

smp_status smp_memory_plan(const smp_memory_input *input, smp_memory_rank **out)
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
    status = plan_memory(&build);
done:
    smp_arena_destroy(build.scratch);
    if (status == SMP_OK)
        *out = build.rank;
    else
        smp_arena_destroy(arena);
    return status;
}

void smp_memory_destroy(smp_memory_rank *memory)
{
    if (memory)
        smp_arena_destroy(memory->arena);
}

/* The ops of the rank's stages that the plan lets recompute: [n_op] of the graph; NULL: no
 * memory. */
static bool *mask_of(const smp_plan *plan, const smp_graph *graph, const smp_flow *flow, int rank,
                     smp_arena *arena)
{
    bool *mask = SMP_ARENA_NEW(arena, bool, (size_t)graph->n_op);
    for (int s = 0; mask && s < plan->n_stage; s++) {
        const smp_plan_stage *stage = &plan->stage[s];
        for (int32_t i = 0; stage->rank == rank && stage->recompute && i < stage->n_op; i++)
            mask[flow->op_list[flow->op_begin[s] + i]] = stage->recompute[i];
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
    const bool *recompute = arena ? mask_of(plan, graph, flow, rank, arena) : NULL;
    smp_status status = made && stage_of_chunk && stage_rank && recompute
                            ? SMP_OK
                            : smp_fail_memory(sizeof(int) * (chunks + n_stage));
    for (int c = 0; c < plan->chunks && status == SMP_OK; c++) {
        int stage = stage_of_chunk[c] = smp_plan_stage_of(plan, rank, c);
        bool split = smp_layout_is_split(program, c);
        status = layout ? smp_layout_build(graph, flow, stage, split, recompute, NULL, &made[c])
                        : smp_layout_measure(graph, flow, stage, split, recompute, NULL, &made[c]);
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
                                                     .blocks = plan->gradient_blocks / plan->ddp,
                                                     .optimizer_states = optimizer_states},
                                 out);
    for (int c = 0; c < plan->chunks && made && !layout; c++)
        smp_layout_destroy(made[c]);
    smp_arena_destroy(arena);
    return status;
}

smp_status smp_memory_peak(const smp_plan *plan, const smp_graph *graph, const smp_flow *flow,
                           int rank, int64_t *peak_bytes)
{
    smp_memory_rank *memory;
    SMP_TRY(smp_memory_plan_rank(plan, graph, flow, rank, smp_planned_states(plan->training), NULL,
                                 &memory));
    *peak_bytes = memory->arena_bytes;
    smp_memory_destroy(memory);
    return SMP_OK;
}

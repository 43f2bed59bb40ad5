/* Peaks of ranks for the search. Ranks of a deep pipeline are often alike: the same layers, the
 * same order of actions. What the memory planner reads of a rank is put into a key, and ranks with
 * equal keys, of this configuration or an earlier one, are planned once. Keys are compared by a
 * 128-bit hash. The plan that is written has its peaks from the memory planner itself.
 *
 * O(actions + borders) a rank, and one packing for each kind of rank. */
#include <stdlib.h>
#include <string.h>

#include "graph/model/op.h"
#include "schedule/memory/memory_build.h"
#include "graph/base/clock.h"
#include "schedule/planner/fit/fit.h"

/* Growing list of numbers that a key is made of. */
typedef struct numbers {
    int64_t *item;
    size_t n, capacity;
    bool failed;
} numbers;

static void put_number(numbers *list, int64_t value)
{
    if (list->failed ||
        smp_array_reserve(&list->item, &list->capacity, sizeof *list->item, list->n + 1) != SMP_OK)
        list->failed = true;
    else
        list->item[list->n++] = value;
}

/* The chunk of this rank that makes what the border receives, and its border there; or -1. */
static void put_source(const smp_memory_input *input, const int *chunk_of, const smp_border *border,
                       numbers *key)
{
    bool grad = border->kind == SMP_BORDER_GRAD_IN;
    int from = chunk_of[input->flow->transfer[border->transfer].from_stage];
    put_number(key, from);
    if (from >= 0)
        put_number(key, smp_layout_border(input->layout[from],
                                          grad ? SMP_BORDER_GRAD_OUT : SMP_BORDER_OUT,
                                          grad ? border->transfer : border->tensor));
}

static void put_layout(const smp_memory_input *input, const int *chunk_of, int chunk, numbers *key)
{
    const smp_layout *layout = input->layout[chunk];
    put_number(key, layout->split + 2 * layout->back_in_weight);
    for (int k = 0; k < SMP_N_BLOCK; k++)
        put_number(key, layout->block_bytes[k]);
    put_number(key, layout->forward_work_bytes);
    put_number(key, layout->backward_work_bytes);
    put_number(key, layout->weight_work_bytes);
    put_number(key, layout->n_border);
    for (int32_t b = 0; b < layout->n_border; b++) {
        const smp_border *border = &layout->border[b];
        put_number(key, border->kind);
        put_number(key, border->bytes);
        put_number(key, border->in_backward + 2 * border->in_weight +
                            4 * (border->tensor == input->graph->loss));
        if (border->kind == SMP_BORDER_OUT || border->kind == SMP_BORDER_GRAD_OUT)
            put_number(key, smp__border_leaves(input->flow, chunk_of, layout->stage, border));
        else
            put_source(input, chunk_of, border, key);
    }
}

/* Weights of a stage's ops: sizes, uses and where those lie. */
static void put_weights(const smp_memory_input *input, const int *chunk_of, int stage, numbers *key)
{
    const smp_graph *graph = input->graph;
    const smp_flow *flow = input->flow;
    const bool any_far = smp_memory_host_weights(graph, input->sharding);
    for (int32_t i = flow->op_begin[stage]; i < flow->op_begin[stage + 1]; i++) {
        const smp_op *op = &graph->op[flow->op_list[i]];
        if (!op->kind->cpu.forward)
            put_number(key, op->cost ? op->cost->weight_bytes : -1);
        for (int32_t k = 0; k < op->n_param; k++) {
            const smp_param *param = &graph->param[op->param[k]];
            int32_t n_use = param->use_end - param->use_begin;
            put_number(key, param->elements);
            put_number(key, n_use);
            put_number(key,
                       param->idle + 2 * (any_far && smp_memory_use_is_in_host(graph, op->use[k])));
            for (int32_t u = param->use_begin; n_use > 1 && u < param->use_end; u++) {
                int home = flow->stage_of_op[graph->use[u].op];
                put_number(key, chunk_of[home]);
                put_number(key, graph->use[u].op == flow->op_list[i]);
                put_number(key, home == flow->stage_of_op[graph->use[param->use_begin].op]);
            }
        }
    }
    put_number(key, -2);
}

static void put_rank(const smp_memory_input *input, const int *chunk_of, numbers *key)
{
    int32_t loss = input->graph->loss;
    int32_t producer = loss >= 0 ? input->graph->tensor[loss].producer : -1;
    put_number(key, input->graph->training);
    put_number(key, input->graph->target.precision);
    put_number(key, input->chunks);
    put_number(key, input->microbatches);
    put_number(key, input->ddp);
    put_number(key, input->blocks);
    put_number(key, input->sharding.shard);
    put_number(key, input->sharding.what);
    put_number(key, input->sharding.bucket_bytes);
    put_number(key, input->sharding.offload_states);
    put_number(key, input->horizon);
    put_number(key, producer >= 0 ? chunk_of[input->flow->stage_of_op[producer]] : -1);
    for (int c = 0; c < input->chunks; c++) {
        put_layout(input, chunk_of, c, key);
        put_weights(input, chunk_of, input->stage_of_chunk[c], key);
    }
}

static smp_status plan_exactly(const smp_memory_input *input, int64_t *peak_bytes,
                               int64_t *host_bytes)
{
    smp_memory_rank *memory;
    SMP_TRY(smp_memory_plan(input, &memory));
    *peak_bytes = memory->arena_bytes;
    *host_bytes = memory->host_bytes;
    smp_memory_destroy(memory);
    return SMP_OK;
}

static smp_status plan_once(smp_memo *peaks, const smp_memory_input *input, const int *chunk_of,
                            int64_t *peak_bytes, int64_t *host_bytes)
{
    numbers list = {0};
    smp_memo_key key = {{0}};
    int64_t found[2];
    put_rank(input, chunk_of, &list);
    const smp_program *program = input->program;
    if (!list.failed)
        smp_memo_add(&key, list.item, (int64_t)list.n);
    smp_memo_add_data(&key, program->action, (size_t)program->n * sizeof *program->action);
    free(list.item);
    if (list.failed)
        return SMP_ERR_NO_MEMORY;
    if (!smp_memo_find(peaks, key, found)) {
        SMP_TRY(plan_exactly(input, &found[0], &found[1]));
        SMP_TRY(smp_memo_keep(peaks, key, found));
    }
    *peak_bytes = found[0];
    *host_bytes = found[1];
    return SMP_OK;
}

/* The stages of each rank, chunk by chunk: [pipeline * chunks]; NULL: no memory. */
static int *stages_of_ranks(const smp_candidate *candidate, smp_arena *arena)
{
    int n_stage = candidate->partition->n_stage;
    int *count = SMP_ARENA_NEW(arena, int, (size_t)candidate->pipeline);
    int *stage_of = SMP_ARENA_NEW(arena, int, (size_t)n_stage);
    for (int s = 0; count && stage_of && s < n_stage; s++) {
        int r = candidate->stage_rank[s];
        stage_of[r * candidate->chunks + count[r]++] = s;
    }
    return count ? stage_of : NULL;
}

/* `scratch` arrays: chunk_of [n_stage] of -1, which it is again afterwards; layout [chunks]. */
static smp_status peak_of(smp__planner *planner, const smp_candidate *candidate,
                          const smp_program *program, int rank, bool exactly, const int *stage_of,
                          int *chunk_of, const smp_layout **layout, int64_t *peak_bytes,
                          int64_t *host_bytes)
{
    const smp_graph *graph = planner->request.graph;
    int v = candidate->chunks;
    smp_memory_input input = {.graph = graph,
                              .flow = planner->held.flow,
                              .program = program,
                              .stage_of_chunk = stage_of,
                              .stage_rank = candidate->stage_rank,
                              .layout = layout,
                              .rank = rank,
                              .chunks = v,
                              .microbatches = candidate->microbatches,
                              .ddp = candidate->ddp,
                              .sharding = smp__candidate_sharding(planner, candidate),
                              .blocks = smp__planner_blocks(planner, candidate->ddp),
                              .optimizer_states = smp_planned_states(graph->training),
                              .horizon = planner->held.any_travels ? candidate->horizon : 0};
    for (int c = 0; c < v; c++) {
        chunk_of[stage_of[c]] = c;
        SMP_TRY(smp__planner_layout(planner, stage_of[c], program, c, &layout[c]));
    }
    SMP_TRY(exactly ? plan_exactly(&input, peak_bytes, host_bytes)
                    : plan_once(&planner->peaks, &input, chunk_of, peak_bytes, host_bytes));
    for (int c = 0; c < v; c++)
        chunk_of[stage_of[c]] = -1;
    return SMP_OK;
}

/* Peaks of ranks first..last; program, peak_bytes: from `first` on. */
static smp_status peaks_of(smp__planner *planner, const smp_candidate *candidate,
                           const smp_program *program, int first, int last, bool exactly,
                           int64_t *peak_bytes, int64_t *host_bytes)
{
    int64_t ignored;
    int v = candidate->chunks, n_stage = planner->held.n_stage;
    smp_arena *arena = smp_arena_create();
    int *chunk_of = arena ? SMP_ARENA_NEW(arena, int, (size_t)n_stage) : NULL;
    int *stage_of = arena ? stages_of_ranks(candidate, arena) : NULL;
    const smp_layout **layout = arena ? SMP_ARENA_NEW(arena, const smp_layout *, (size_t)v) : NULL;
    smp_status status = chunk_of && stage_of && layout ? SMP_OK : SMP_ERR_NO_MEMORY;
    for (int s = 0; s < n_stage && status == SMP_OK; s++)
        chunk_of[s] = -1;
    for (int r = first; r <= last && status == SMP_OK; r++)
        status =
            peak_of(planner, candidate, &program[r - first], r, exactly, &stage_of[r * v], chunk_of,
                    layout, &peak_bytes[r - first], host_bytes ? &host_bytes[r - first] : &ignored);
    smp_arena_destroy(arena);
    return status;
}

smp_status smp__planner_peaks(smp__planner *planner, const smp_candidate *candidate,
                              const smp_program *program, bool exactly, int64_t *peak_bytes,
                              int64_t *host_bytes)
{
    return peaks_of(planner, candidate, program, 0, candidate->pipeline - 1, exactly, peak_bytes,
                    host_bytes);
}

smp_status smp__planner_peak(smp__planner *planner, const smp_candidate *candidate,
                             const smp_program *program, int rank, bool exactly,
                             int64_t *peak_bytes)
{
    return peaks_of(planner, candidate, program, rank, rank, exactly, peak_bytes, NULL);
}

/* Bytes of weights, gradients and optimizer state that each rank keeps, a weight once. */
static void add_states(const smp__planner *planner, const smp_candidate *candidate, int *seen,
                       int64_t *bytes)
{
    const smp_graph *graph = planner->request.graph;
    const smp_flow *flow = planner->held.flow;
    const int64_t element = smp_weight_element_bytes(graph, smp_planned_states(graph->training));
    const double sharded = smp_memory_state_bytes(graph, candidate->sharding);
    const double idle = smp_memory_idle_bytes(graph, candidate->sharding);
    const double far = smp_memory_host_bytes(graph, candidate->sharding);
    const bool any_far = smp_memory_host_weights(graph, candidate->sharding);
    for (int32_t p = 0; p < graph->n_param; p++) {
        const double elements = (double)graph->param[p].elements;
        for (int32_t u = graph->param[p].use_begin; u < graph->param[p].use_end; u++) {
            int r = candidate->stage_rank[flow->stage_of_op[graph->use[u].op]];
            const int near = 2 * (p + 1);
            const int mark = near + (any_far && smp_memory_use_is_in_host(graph, u));
            const double each = graph->param[p].idle ? idle : mark == near ? sharded : far;
            if (seen[r] / 2 != p + 1) /* the first use there; or the first that keeps it there */
                bytes[r] += (int64_t)(each * elements);
            else if (mark == near && seen[r] != near)
                bytes[r] += (int64_t)((sharded - far) * elements);
            else
                continue;
            seen[r] = mark;
        }
    }
    for (int32_t op = 0; op < graph->n_op; op++) {
        const smp_op_cost_override *cost = graph->op[op].cost;
        if (cost && cost->weight_bytes > 0 && !graph->op[op].kind->cpu.forward)
            bytes[candidate->stage_rank[flow->stage_of_op[op]]] +=
                cost->weight_bytes / 4 * element + cost->weight_bytes % 4 * element / 4;
    }
}

/* What one micro-batch of a stage keeps, by when it is let go: at B or I, or at W. */
typedef struct kept_bytes {
    int64_t at_backward, at_weight;
    int64_t from_backward; /* made by B or I, let go at W */
} kept_bytes;

/* The stash blocks, and the border buffers of the stage itself that its backward reads. */
static kept_bytes kept_of(const smp_layout *layout, const smp_flow *flow, const smp_graph *graph,
                          const smp_candidate *candidate)
{
    kept_bytes kept = {.at_backward = layout->block_bytes[SMP_BLOCK_INPUT],
                       .at_weight = layout->block_bytes[SMP_BLOCK_WEIGHT],
                       .from_backward = layout->block_bytes[SMP_BLOCK_GRAD]};
    for (int32_t b = 0; b < layout->n_border; b++) {
        const smp_border *border = &layout->border[b];
        bool own = border->kind == SMP_BORDER_OUT && border->tensor != graph->loss;
        if (border->kind == SMP_BORDER_IN)
            own = candidate->stage_rank[flow->transfer[border->transfer].from_stage] !=
                  candidate->stage_rank[layout->stage];
        if (!own)
            continue;
        if (border->in_weight)
            kept.at_weight += border->bytes;
        else if (border->in_backward)
            kept.at_backward += border->bytes;
    }
    return kept;
}

/* Most bytes kept at one time by a rank that runs its compute actions in this order. */
static int64_t most_kept(const smp_program *order, const kept_bytes *of_chunk)
{
    int64_t now = 0, most = 0;
    for (int64_t i = 0; i < order->n; i++) {
        const smp_action *action = &order->action[i];
        const kept_bytes *kept = &of_chunk[action->chunk];
        if (action->kind == SMP_ACTION_F)
            now += kept->at_backward + kept->at_weight;
        most = now > most ? now : most;
        if (action->kind == SMP_ACTION_B)
            now -= kept->at_backward + kept->at_weight;
        else if (action->kind == SMP_ACTION_I)
            now += kept->from_backward - kept->at_backward;
        else if (action->kind == SMP_ACTION_W)
            now -= kept->at_weight + kept->from_backward;
    }
    return most;
}

smp_status smp__planner_least_beside(smp__planner *planner, const smp_candidate *candidate,
                                     const smp_program *order, int rank, int64_t *bytes)
{
    int v = candidate->chunks;
    int64_t work = 0;
    smp_arena *arena = smp_arena_create();
    const int *stage_of = arena ? stages_of_ranks(candidate, arena) : NULL;
    kept_bytes *kept = arena ? SMP_ARENA_NEW(arena, kept_bytes, (size_t)v) : NULL;
    smp_status status = stage_of && kept ? SMP_OK : SMP_ERR_NO_MEMORY;
    for (int c = 0; c < v && status == SMP_OK; c++) {
        const smp_layout *layout;
        status = smp__planner_layout(planner, stage_of[rank * v + c], order, c, &layout);
        if (status != SMP_OK)
            break;
        kept[c] = kept_of(layout, planner->held.flow, planner->request.graph, candidate);
        int64_t area = smp_layout_work_bytes(layout);
        work = area > work ? area : work;
    }
    if (status == SMP_OK) /* of inference nothing is kept after its forward */
        *bytes = work + (planner->request.graph->training ? most_kept(order, kept) : 0);
    smp_arena_destroy(arena);
    return status;
}

smp_status smp__planner_state_bytes(smp__planner *planner, const smp_candidate *candidate,
                                    int64_t *bytes)
{
    SMP_TRY(smp__planner_hold(planner, candidate->partition, candidate->offload));
    int *seen = calloc((size_t)candidate->pipeline, sizeof *seen);
    if (!seen)
        return smp_fail_memory((size_t)candidate->pipeline * sizeof *seen);
    memset(bytes, 0, (size_t)candidate->pipeline * sizeof *bytes);
    add_states(planner, candidate, seen, bytes);
    free(seen);
    return SMP_OK;
}

/* Weights, the work area, and what is kept between actions, in the order of the compute actions
 * alone: O(actions). Border buffers that only wait for a transfer are left out. */
smp_status smp__planner_least_bytes(smp__planner *planner, const smp_candidate *candidate,
                                    int64_t *bytes)
{
    const smp_schedule_kind *kind = smp_schedule_find(candidate->schedule);
    smp_schedule_shape shape = smp__candidate_shape(planner, candidate);
    SMP_TRY(smp__planner_state_bytes(planner, candidate, bytes));
    for (int r = 0; r < candidate->pipeline; r++) {
        smp_program order = {0};
        int64_t beside = 0;
        smp_status status = kind->order(&shape, r, &order);
        if (status == SMP_OK)
            status = smp__planner_least_beside(planner, candidate, &order, r, &beside);
        smp_work_count(SMP_WORK_OP, (double)order.n); /* each action is made and looked at once */
        smp_program_free(&order);
        SMP_TRY(status);
        bytes[r] += beside;
    }
    return SMP_OK;
}

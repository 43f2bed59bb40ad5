/* Flow between stages: activations from the graph's edges, here; gradients in flow_grad.c.
 *
 * One pass over tensors and their consumers, then sorts of what crosses a border:
 * O(ops + edges + transfers log transfers). */
#include "partition/problem/flow_build.h"

#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"
#include "graph/model/op.h"

smp_status smp__flow_add_transfer(smp__flow_build *build, smp_transfer_kind kind, int32_t tensor,
                                  int32_t from, int32_t to, int32_t *index)
{
    SMP_TRY(smp_array_reserve(&build->transfer, &build->transfer_capacity, sizeof *build->transfer,
                              (size_t)build->n_transfer + 1));
    *index = build->n_transfer;
    build->transfer[build->n_transfer++] =
        (smp_transfer){.kind = kind,
                       .tensor = tensor,
                       .from_stage = from,
                       .to_stage = to,
                       .bytes = smp_tensor_bytes(build->graph, tensor, build->batch)};
    return SMP_OK;
}

static smp_status check_stages(const smp__flow_build *build)
{
    const smp_graph *graph = build->graph;
    for (int32_t u = 0; u < graph->n_op; u++) {
        const smp_op *op = &graph->op[u];
        int32_t stage = build->stage_of_op[u];
        if (stage < 0 || stage >= build->n_stage)
            return smp_fail(SMP_ERR_INPUT, "op '%s': stage %d, expected 0 to %d", op->name,
                            (int)stage, build->n_stage - 1);
        for (int32_t slot = 0; slot < op->n_in; slot++) {
            int32_t producer = graph->tensor[op->in[slot]].producer;
            if (producer >= 0 && build->stage_of_op[producer] > stage)
                return smp_fail(SMP_ERR_INPUT,
                                "op '%s' in stage %d reads the output of op '%s' in stage %d, "
                                "expected the same or an earlier stage",
                                op->name, (int)stage, graph->op[producer].name,
                                (int)build->stage_of_op[producer]);
        }
    }
    return SMP_OK;
}

/* One transfer for each tensor and stage that reads it elsewhere than where it is made. */
static smp_status add_activations(smp__flow_build *build)
{
    const smp_graph *graph = build->graph;
    int32_t *seen = SMP_ARENA_NEW(build->scratch, int32_t, (size_t)build->n_stage);
    if (!seen)
        return SMP_ERR_NO_MEMORY;
    for (int32_t t = 0; t < graph->n_tensor; t++) {
        if (graph->tensor[t].producer < 0)
            continue;
        int32_t from = build->stage_of_op[graph->tensor[t].producer];
        for (int64_t c = graph->consumer_begin[t]; c < graph->consumer_begin[t + 1]; c++) {
            int32_t to = build->stage_of_op[graph->consumer[c].op], index;
            if (to == from || seen[to] == t + 1)
                continue;
            seen[to] = t + 1;
            SMP_TRY(smp__flow_add_transfer(build, SMP_TRANSFER_F, t, from, to, &index));
        }
    }
    return SMP_OK;
}

/* A transfer and the index it was made with: the canonical order among equals. */
typedef struct keyed_transfer {
    smp_transfer transfer;
    int32_t made;
} keyed_transfer;

#define COMPARE(a, b)                                                                              \
    do {                                                                                           \
        if ((a) != (b))                                                                            \
            return (a) < (b) ? -1 : 1;                                                             \
    } while (0)

static int compare_transfers(const void *left, const void *right)
{
    const keyed_transfer *a = left, *b = right;
    COMPARE(a->transfer.kind, b->transfer.kind);
    COMPARE(a->transfer.from_stage, b->transfer.from_stage);
    COMPARE(a->transfer.to_stage, b->transfer.to_stage);
    COMPARE(a->transfer.tensor, b->transfer.tensor);
    COMPARE(a->made, b->made);
    return 0;
}

/* Puts the transfers into their final order and renames them in folds and sources. */
static smp_status sort_transfers(smp__flow_build *build, smp_flow *flow)
{
    size_t n = (size_t)build->n_transfer;
    keyed_transfer *keyed = SMP_ARENA_NEW(build->scratch, keyed_transfer, n);
    int32_t *renamed = SMP_ARENA_NEW(build->scratch, int32_t, n);
    smp_transfer *transfer = SMP_ARENA_NEW(flow->arena, smp_transfer, n);
    if (!keyed || !renamed || !transfer)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < n; i++)
        keyed[i] = (keyed_transfer){build->transfer[i], (int32_t)i};
    qsort(keyed, n, sizeof *keyed, compare_transfers);
    for (size_t i = 0; i < n; i++) {
        transfer[i] = keyed[i].transfer;
        renamed[keyed[i].made] = (int32_t)i;
    }
    for (int32_t i = 0; i < build->n_fold; i++)
        if (build->fold[i].transfer_out >= 0)
            build->fold[i].transfer_out = renamed[build->fold[i].transfer_out];
    for (int32_t i = 0; i < build->n_source; i++)
        if (build->source[i].transfer >= 0)
            build->source[i].transfer = renamed[build->source[i].transfer];
    flow->n_transfer = build->n_transfer;
    flow->transfer = transfer;
    return SMP_OK;
}

/* CSR of n items by stage, keeping their order within a stage. */
static smp_status list_by_stage(smp_arena *arena, int n_stage, int32_t n, const int32_t *stage,
                                const int32_t **begin_out, const int32_t **list_out)
{
    int32_t *begin = SMP_ARENA_NEW(arena, int32_t, (size_t)n_stage + 2);
    int32_t *list = SMP_ARENA_NEW(arena, int32_t, (size_t)n);
    if (!begin || !list)
        return SMP_ERR_NO_MEMORY;
    /* Counted two ahead, so that filling leaves every begin in its place. */
    for (int32_t i = 0; i < n; i++)
        begin[stage[i] + 2]++;
    for (int s = 2; s <= n_stage + 1; s++)
        begin[s] += begin[s - 1];
    for (int32_t i = 0; i < n; i++)
        list[begin[stage[i] + 1]++] = i;
    *begin_out = begin;
    *list_out = list;
    return SMP_OK;
}

static smp_status list_transfers(smp__flow_build *build, smp_flow *flow)
{
    int32_t *from = SMP_ARENA_NEW(build->scratch, int32_t, (size_t)flow->n_transfer);
    int32_t *to = SMP_ARENA_NEW(build->scratch, int32_t, (size_t)flow->n_transfer);
    if (!from || !to)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < flow->n_transfer; i++) {
        from[i] = flow->transfer[i].from_stage;
        to[i] = flow->transfer[i].to_stage;
    }
    SMP_TRY(list_by_stage(flow->arena, build->n_stage, flow->n_transfer, from, &flow->out_begin,
                          &flow->out_list));
    return list_by_stage(flow->arena, build->n_stage, flow->n_transfer, to, &flow->in_begin,
                         &flow->in_list);
}

/* Folds by stage; within a stage by tensor, then canonical order, as they were made. Sources stay
 * where they are: the flow takes them over. */
static smp_status list_folds(smp__flow_build *build, smp_flow *flow)
{
    int32_t *begin = SMP_ARENA_NEW(flow->arena, int32_t, (size_t)build->n_stage + 2);
    smp_fold *fold = SMP_ARENA_NEW(flow->arena, smp_fold, (size_t)build->n_fold);
    if (!begin || !fold)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < build->n_fold; i++)
        begin[build->fold[i].stage + 2]++;
    for (int s = 2; s <= build->n_stage + 1; s++)
        begin[s] += begin[s - 1];
    for (int32_t i = 0; i < build->n_fold; i++)
        fold[begin[build->fold[i].stage + 1]++] = build->fold[i];
    flow->n_fold = build->n_fold;
    flow->fold = fold;
    flow->fold_begin = begin;
    flow->n_source = build->n_source;
    flow->source = flow->owned = build->source;
    build->source = NULL;
    return SMP_OK;
}

static int compare_stages(const void *left, const void *right)
{
    const int32_t *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

/* Weights with gradients whose uses lie in more than one stage. */
static smp_status list_ties(smp__flow_build *build, smp_flow *flow)
{
    const smp_graph *graph = build->graph;
    smp_tie *tie = SMP_ARENA_NEW(flow->arena, smp_tie, (size_t)graph->n_param);
    int32_t *holder = SMP_ARENA_NEW(flow->arena, int32_t, (size_t)graph->n_use);
    int32_t *seen = SMP_ARENA_NEW(build->scratch, int32_t, (size_t)build->n_stage);
    if (!tie || !holder || !seen)
        return SMP_ERR_NO_MEMORY;
    int32_t n_tie = 0, n_holder = 0;
    for (int32_t p = 0; p < graph->n_param; p++) {
        int32_t begin = n_holder;
        const int32_t end = graph->param[p].idle ? 0 : graph->param[p].use_end;
        for (int32_t use = graph->param[p].use_begin; use < end; use++) {
            int32_t stage = build->stage_of_op[graph->use[use].op];
            if (seen[stage] == p + 1)
                continue;
            seen[stage] = p + 1;
            holder[n_holder++] = stage;
        }
        if (n_holder - begin < 2) {
            n_holder = begin;
            continue;
        }
        qsort(&holder[begin], (size_t)(n_holder - begin), sizeof *holder, compare_stages);
        tie[n_tie++] = (smp_tie){p, begin, n_holder};
    }
    flow->tie = tie;
    flow->n_tie = n_tie;
    flow->holder = holder;
    return SMP_OK;
}

static smp_status build_flow(smp__flow_build *build, smp_flow *flow)
{
    size_t n_op = (size_t)build->graph->n_op;
    int32_t *stage_of_op = SMP_ARENA_NEW(flow->arena, int32_t, n_op);
    build->backward = SMP_ARENA_NEW(flow->arena, bool, n_op);
    if (!stage_of_op || !build->backward)
        return SMP_ERR_NO_MEMORY;
    if (n_op > 0)
        memcpy(stage_of_op, build->stage_of_op, n_op * sizeof *stage_of_op);
    flow->stage_of_op = stage_of_op;
    flow->backward = build->backward;
    flow->n_stage = build->n_stage;
    flow->batch = build->batch;
    SMP_TRY(check_stages(build));
    SMP_TRY(list_by_stage(flow->arena, build->n_stage, build->graph->n_op, stage_of_op,
                          &flow->op_begin, &flow->op_list));
    SMP_TRY(add_activations(build));
    if (build->graph->training)
        SMP_TRY(smp__flow_add_gradients(build));
    SMP_TRY(sort_transfers(build, flow));
    SMP_TRY(list_transfers(build, flow));
    SMP_TRY(list_folds(build, flow));
    return list_ties(build, flow);
}

smp_status smp_flow_build(const smp_graph *graph, const int32_t *stage_of_op, int n_stage,
                          int64_t batch, smp_flow **out)
{
    if (n_stage < 1)
        return smp_fail(SMP_ERR_INPUT, "%d stages, expected at least 1", n_stage);
    if (batch < 1)
        return smp_fail(SMP_ERR_INPUT, "micro-batch size %lld, expected at least 1",
                        (long long)batch);
    smp__flow_build build = {
        .graph = graph, .stage_of_op = stage_of_op, .n_stage = n_stage, .batch = batch};
    smp_work_count(SMP_WORK_OP, (double)graph->n_op + graph->n_tensor);
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_flow *flow = NULL;
    smp_arena *arena = smp_arena_create();
    build.scratch = smp_arena_create();
    if (!arena || !build.scratch || !(flow = SMP_ARENA_NEW(arena, smp_flow, 1))) {
        smp_fail_memory(sizeof *flow);
        goto done;
    }
    flow->arena = arena;
    status = build_flow(&build, flow);
done:
    free(build.transfer);
    free(build.fold);
    free(build.source);
    smp_arena_destroy(build.scratch);
    if (status == SMP_OK)
        *out = flow;
    else if (flow)
        smp_flow_destroy(flow);
    else
        smp_arena_destroy(arena);
    return status;
}

void smp_flow_destroy(smp_flow *flow)
{
    if (!flow)
        return;
    free(flow->owned);
    smp_arena_destroy(flow->arena);
}

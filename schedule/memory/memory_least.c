/* See memory_least.h. A rank reserves at least what lives for ever and, at any one action, what is
 * alive there: for every micro-batch between its F and its B (or I, or W if that reads it) each
 * value that the backward pass of some op reads. It lies in a stash block, or in the border buffer
 * of the stage that made or received it, unless it is made again (layout.h), which only the stage
 * that makes it can do, and which keeps it from I to W all the same; so is kept the gradient of the
 * output of an op with weights. Each value counts once: where the op that makes it reads it back,
 * on its stage, else where its first reader lies. A value that two chunks of a rank share is one
 * buffer, alive as long as either needs it.
 *
 * Left out, as other values may lie in the same place at other times or nothing is certain before
 * there is a partition: work areas, borders that no backward reads, padding. */
#include "schedule/memory/memory_least.h"

#include <stdlib.h>
#include <string.h>

#include "graph/model/op.h"
#include "partition/problem/unit_graph.h"
#include "schedule/memory/layout_build.h"
#include "schedule/memory/memory.h"

/* A weight lies with its first use, and there, if it is shared, an accumulator for each use. */
static void add_states(const smp_graph *graph, smp_sharding sharding, int64_t *state_bytes)
{
    const int64_t element = (int64_t)smp_memory_state_bytes(graph, sharding);
    const int64_t idle = (int64_t)smp_memory_idle_bytes(graph, sharding);
    const int64_t far = (int64_t)smp_memory_host_bytes(graph, sharding);
    const int64_t opaque = smp_weight_element_bytes(graph, smp_planned_states(graph->training));
    for (int32_t p = 0; p < graph->n_param; p++) {
        const smp_param *param = &graph->param[p];
        int64_t n_use = param->use_end - param->use_begin;
        int64_t each = smp_memory_use_is_in_host(graph, param->use_begin) ? far : element;
        each += graph->training && n_use > 1 ? 4 * n_use : 0;
        each = param->idle ? idle : each;
        int64_t *bytes = &state_bytes[graph->use[param->use_begin].op];
        *bytes = smp__add_bytes(*bytes, each * param->elements);
    }
    for (int32_t o = 0; o < graph->n_op; o++) {
        const smp_op_cost_override *cost = graph->op[o].cost;
        if (!graph->op[o].kind->cpu.forward && cost && cost->weight_bytes > 0)
            state_bytes[o] = smp__add_bytes(state_bytes[o], cost->weight_bytes / 4 * opaque);
    }
}

/* The op on whose stage output k of an op is needed, if there is one for its weight gradients; -1:
 * no backward reads it. */
static int32_t reader_of(const smp__layout_build *all, int32_t op, int k, bool *for_weight)
{
    const smp_graph *graph = all->graph;
    int32_t out = graph->op[op].out + k, reader = all->reads[op].out >> k & 1 ? op : -1;
    *for_weight = false;
    if (out == graph->loss)
        return -1;
    for (int64_t c = graph->consumer_begin[out]; c < graph->consumer_begin[out + 1]; c++) {
        const smp__reads *reads = &all->reads[graph->consumer[c].op];
        if (smp__reads_slot(reads->weight_in, graph->consumer[c].slot)) {
            *for_weight = true;
            return graph->consumer[c].op;
        }
        if (reader < 0 && smp__reads_slot(reads->in, graph->consumer[c].slot))
            reader = graph->consumer[c].op;
    }
    return reader;
}

/* The values of one op: outputs, and last what its forward saves; bytes 0 where nothing is kept.
 * How many there are. */
static int values_of(const smp__layout_build *all, int32_t op, int32_t *reader, smp__kept *kept)
{
    bool reads_aux;
    double sum = 1.0;
    const smp_op *it = &all->graph->op[op];
    int64_t aux = smp__layout_aux_bytes(all, op, &reads_aux);
    for (int k = 0; k < it->n_out; k++) {
        kept[k] = (smp__kept){.maker = op};
        reader[k] = reader_of(all, op, k, &kept[k].for_weight);
        if (reader[k] >= 0)
            kept[k].bytes = smp_tensor_bytes(all->graph, it->out + k, all->flow->batch);
    }
    reader[it->n_out] = op;
    kept[it->n_out] = (smp__kept){.maker = op,
                                  .for_weight = smp__layout_aux_weight(all, op),
                                  .bytes = reads_aux && aux > 0 ? aux : 0};
    for (int k = 0; k <= it->n_out; k++)
        sum += (double)kept[k].bytes;
    for (int k = 0; k <= it->n_out; k++)
        kept[k].share = (double)kept[k].bytes / sum;
    return it->n_out + 1;
}

/* The op whose output's gradient may be the very array of that of this op's output: the only one
 * that reads it, if that passes on what it gets. -1: none. */
static int32_t passes_to(const smp__layout_build *all, int32_t op)
{
    const smp_graph *graph = all->graph;
    const int32_t out = graph->op[op].out;
    int32_t reader = -1;
    for (int64_t c = graph->consumer_begin[out]; c < graph->consumer_begin[out + 1]; c++) {
        const smp_consumer *to = &graph->consumer[c];
        if (!smp_flow_contributes(graph, all->flow->backward, to->op, to->slot))
            continue;
        if (reader >= 0)
            return -1;
        reader = to->op;
    }
    return reader >= 0 && graph->op[reader].kind->passes_dout ? reader : -1;
}

/* bytes [n_op]: the gradient of the output of an op with weights; of several outputs some may be
 * zeroes. An array that several ops have as theirs counts once. */
static smp_status list_late(const smp__layout_build *all, smp_arena *arena, const int64_t **bytes)
{
    const smp_graph *graph = all->graph;
    const int32_t n = graph->n_op;
    int64_t *late = SMP_ARENA_NEW(arena, int64_t, (size_t)n);
    int32_t *root = SMP_ARENA_NEW(all->scratch, int32_t, (size_t)n);
    bool *counted = SMP_ARENA_NEW(all->scratch, bool, (size_t)n);
    if (!late || !root || !counted)
        return SMP_ERR_NO_MEMORY;
    for (int32_t op = n - 1; op >= 0; op--) {
        const int32_t reader = passes_to(all, op);
        root[op] = reader >= 0 ? root[reader] : op;
        if (!smp__layout_weighs(all, op) || graph->op[op].out == graph->loss ||
            graph->op[op].n_out > 1 || counted[root[op]])
            continue;
        counted[root[op]] = true;
        late[op] = smp_tensor_bytes(graph, graph->op[op].out, all->flow->batch);
    }
    *bytes = late;
    return SMP_OK;
}

/* The whole model laid out as one stage says what backwards read: calls are ops. */
static smp_status list_kept(const smp__layout_build *all, smp_arena *arena, smp__least_memory *out)
{
    int32_t n = all->graph->n_op, reader[SMP_OP_MAX_OUT + 1];
    smp__kept kept[SMP_OP_MAX_OUT + 1];
    size_t most = (size_t)n + (size_t)all->graph->n_tensor; /* aux and output of every op */
    smp__kept *list = SMP_ARENA_NEW(arena, smp__kept, most);
    int64_t *begin = SMP_ARENA_NEW(arena, int64_t, (size_t)n + 2);
    if (!list || !begin)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(list_late(all, arena, &out->late_bytes));
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t op = 0; op < n; op++) {
            int n_value = values_of(all, op, reader, kept);
            for (int i = 0; i < n_value; i++)
                if (kept[i].bytes > 0 && pass == 0)
                    begin[reader[i] + 2]++;
                else if (kept[i].bytes > 0)
                    list[begin[reader[i] + 1]++] = kept[i];
        }
        for (int32_t op = 0; pass == 0 && op < n; op++)
            begin[op + 2] += begin[op + 1];
    }
    out->kept_begin = begin;
    out->kept = list;
    return SMP_OK;
}

static smp_status list_values(const smp_graph *graph, int64_t batch, smp_arena *arena,
                              smp__least_memory *out)
{
    smp_flow *flow = NULL;
    int32_t *stage = SMP_ARENA_NEW(arena, int32_t, (size_t)graph->n_op);
    if (!stage)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp_flow_build(graph, stage, 1, batch, &flow));
    smp__layout_build all = {.graph = graph, .flow = flow, .measure = true};
    smp_status status = smp__layout_open(&all);
    if (status == SMP_OK) {
        status = list_kept(&all, arena, out);
        smp_arena_destroy(all.scratch);
        smp_layout_destroy(all.layout);
    }
    smp_flow_destroy(flow);
    return status;
}

smp_status smp_memory_least(const smp_graph *graph, int64_t batch, smp_sharding sharding,
                            smp_arena *arena, smp__least_memory *out)
{
    int64_t *state_bytes = SMP_ARENA_NEW(arena, int64_t, (size_t)graph->n_op);
    *out = (smp__least_memory){.state_bytes = state_bytes};
    if (!state_bytes)
        return SMP_ERR_NO_MEMORY;
    add_states(graph, sharding, state_bytes);
    return graph->training ? list_values(graph, batch, arena, out) : SMP_OK;
}

smp_status smp_memory_live(const smp_schedule_kind *kind, const smp_schedule_shape *shape, int rank,
                           int *live, int *late)
{
    smp_program order = {0};
    size_t v = (size_t)shape->chunks, bytes = v * sizeof(int);
    int sum = 0, most = 0, *now = calloc(2 * v, sizeof *now);
    smp_status status = now ? kind->order(shape, rank, &order) : smp_fail_memory(2 * bytes);
    memset(live, 0, bytes);
    memset(late, 0, bytes);
    for (int64_t i = 0; status == SMP_OK && shape->training && i < order.n; i++) {
        const smp_action *action = &order.action[i];
        int *of_chunk = &now[action->chunk];
        sum += action->kind == SMP_ACTION_F ? 1 : action->kind == SMP_ACTION_I ? 0 : -1;
        if (action->kind == SMP_ACTION_W || action->kind == SMP_ACTION_I)
            of_chunk[v] += action->kind == SMP_ACTION_I ? 1 : -1;
        if (action->kind != SMP_ACTION_W)
            *of_chunk += action->kind == SMP_ACTION_F ? 1 : -1;
        if (sum > most) {
            most = sum;
            memcpy(live, now, bytes);
            memcpy(late, now + v, bytes);
        }
    }
    smp_program_free(&order);
    free(now);
    return status;
}

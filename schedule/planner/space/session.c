/* A planning session: costs, and flow and layouts of the partition at hand; beside what the request
 * keeps together, ops that a plan must not tear apart because the target runs them as one kernel
 * (smp_op_tied). Where pins of the user put them into different stages, pins win: such a plan is
 * legal, its results only differ in rounding. Union of sets, O(ops). */
#include <stdlib.h>
#include <string.h>

#include "graph/base/sets.h"
#include "graph/model/op.h"
#include "schedule/auto/list_schedule.h"
#include "schedule/planner/space/session.h"

/* Stage that an op, or a member of its group, is pinned to; -1: none. */
static int32_t pin_of(const smp_search_request *request, const int32_t *group_pin, int32_t op)
{
    int32_t pin = request->pin ? request->pin[op] : request->graph->op[op].pin;
    int32_t group = request->graph->op[op].group;
    return pin >= 0 || group < 0 ? pin : group_pin[group];
}

static void join_request(const smp_search_request *request, int32_t *first, int32_t *parent)
{
    int32_t n_op = request->graph->n_op;
    for (int32_t op = 0; op < n_op; op++)
        first[op] = -1;
    for (int32_t op = 0; request->together && op < n_op; op++) {
        int32_t label = request->together[op];
        if (label < 0)
            continue;
        if (first[label] < 0)
            first[label] = op;
        smp_set_join(parent, first[label], op);
    }
}

static void join_pairs(const smp_search_request *request, int32_t *group_pin, int32_t *parent)
{
    const smp_graph *graph = request->graph;
    for (int32_t g = 0; g < graph->n_group; g++)
        group_pin[g] = -1;
    for (int32_t op = 0; op < graph->n_op; op++) {
        int32_t pin = request->pin ? request->pin[op] : graph->op[op].pin;
        if (graph->op[op].group >= 0 && pin >= 0)
            group_pin[graph->op[op].group] = pin;
    }
    int32_t chain = -1; /* the pin of what op is joined with */
    for (int32_t op = 0; op < graph->n_op; op++) {
        int32_t a = pin_of(request, group_pin, op);
        a = a < 0 ? chain : a;
        chain = -1;
        if (!smp_op_tied(graph, op))
            continue;
        int32_t b = pin_of(request, group_pin, op + 1);
        if (a >= 0 && b >= 0 && a != b)
            continue;
        smp_set_join(parent, op, op + 1);
        chain = a < 0 ? b : a;
    }
}

static bool has_pairs(const smp_graph *graph)
{
    for (int32_t op = 0; op < graph->n_op; op++)
        if (smp_op_tied(graph, op))
            return true;
    return false;
}

static smp_status keep_together(const smp_search_request *request, int32_t **out)
{
    const smp_graph *graph = request->graph;
    size_t n = (size_t)graph->n_op;
    *out = NULL;
    if (!has_pairs(graph))
        return SMP_OK;
    smp_status status = SMP_OK;
    int32_t *parent = malloc(n * sizeof *parent), *together = malloc(n * sizeof *together);
    int32_t *group_pin = malloc(((size_t)graph->n_group + 1) * sizeof *group_pin);
    if (!parent || !together || !group_pin) {
        status = smp_fail_memory(n * sizeof *together);
        goto done;
    }
    for (int32_t op = 0; op < graph->n_op; op++)
        parent[op] = op;
    join_request(request, together, parent);
    join_pairs(request, group_pin, parent);
    for (int32_t op = 0; op < graph->n_op; op++)
        together[op] = -1;
    for (int32_t op = 0; op < graph->n_op; op++) {
        int32_t root = smp_set_find(parent, op);
        if (root != op)
            together[root] = together[op] = root;
    }
    *out = together;
    together = NULL;
done:
    free(parent);
    free(together);
    free(group_pin);
    return status;
}

static void drop_layouts(smp__planner *planner, int stage)
{
    for (smp_layout **l = &planner->layout[2 * stage]; l < &planner->layout[2 * stage + 2]; l++) {
        smp_layout_destroy(*l);
        *l = NULL;
    }
}

static void drop_partition(smp__planner *planner)
{
    for (int s = 0; planner->layout && s < planner->n_stage; s++)
        drop_layouts(planner, s);
    free(planner->layout);
    free(planner->stage);
    free(planner->recompute);
    free(planner->offload);
    free(planner->travels);
    free(planner->offload_bytes);
    smp_flow_destroy(planner->flow);
    planner->layout = NULL;
    planner->stage = NULL;
    planner->recompute = planner->offload = planner->travels = NULL;
    planner->offload_bytes = NULL;
    planner->flow = NULL;
    planner->n_stage = 0;
}

/* What goes to host memory travels, and a step without that is not the step. */
static smp_status check_host_link(const smp_search_request *request)
{
    if (!request->graph->training || request->cluster->host.bytes_per_s > 0.0)
        return SMP_OK;
    const char *asks = request->offload == SMP_OFFLOAD_ALL          ? "--offload all"
                       : request->offload_states == SMP_OFFLOAD_ALL ? "--offload-states all"
                       : smp__states_in_host(request) ? "a plan with `offload_states: true`"
                                                      : NULL;
    return !asks ? SMP_OK
                 : smp_fail(SMP_ERR_INPUT,
                            "%s: cluster '%s' has no link to host memory, expected `links: "
                            "{host: {bandwidth: .., latency_us: ..}}`",
                            asks, request->cluster->name);
}

smp_status smp__planner_open(const smp_search_request *request, smp__planner *planner)
{
    SMP_TRY(check_host_link(request));
    *planner = (smp__planner){.request = *request};
    if (!request->graph->training)
        planner->request.gradient_blocks = 0; /* nothing is added up */
    planner->any_shard = request->sharding.shard == SMP_SHARD_AUTO;
    if (planner->request.sharding.shard < 1)
        planner->request.sharding.shard = 1;
    planner->any_prefetch = request->sharding.prefetch == SMP_PREFETCH_AUTO;
    if (planner->any_prefetch)
        planner->request.sharding.prefetch =
            request->optimize == SMP_OPTIMIZE_MEMORY ? 0 : SMP_PREFETCH_DEFAULT;
    planner->request.sharding.offload_states = smp__states_in_host(request);
    planner->any_states = request->offload_states == SMP_OFFLOAD_AUTO && request->graph->training &&
                          request->cluster->host.bytes_per_s > 0.0 &&
                          !planner->request.sharding.offload_states;
    SMP_TRY(keep_together(request, &planner->together));
    if (planner->together)
        planner->request.together = planner->together;
    smp_status status = smp_costs_build(request->graph, request->cluster, request->profile,
                                        request->microbatch_size, &planner->costs);
    if (status != SMP_OK)
        smp__planner_close(planner);
    return status;
}

void smp__planner_close(smp__planner *planner)
{
    drop_partition(planner);
    free(planner->peaks.item);
    smp_costs_destroy(planner->costs);
    free(planner->together);
    *planner = (smp__planner){0};
}

/* Layouts of the stages in which other ops recompute or offload now are of no use. */
static void hold_masks(smp__planner *planner, const smp_partition *partition, const bool *offload)
{
    for (int32_t op = 0; op < planner->request.graph->n_op; op++) {
        const bool away = offload && offload[op];
        if (planner->recompute[op] == partition->recompute[op] && planner->offload[op] == away)
            continue;
        planner->recompute[op] = partition->recompute[op];
        planner->offload[op] = away;
        drop_layouts(planner, partition->stage[op]);
        planner->offload_bytes[partition->stage[op]] = -1;
    }
}

static smp_status get_layout(smp__planner *planner, int stage, bool split, const smp_layout **out)
{
    smp_layout **layout = &planner->layout[2 * stage + split];
    if (!*layout)
        SMP_TRY(smp_layout_measure(planner->request.graph, planner->flow, stage, split,
                                   planner->recompute, planner->offload, NULL, layout));
    *out = *layout;
    return SMP_OK;
}

/* What travels of each stage, which is the same whether its backwards are split. */
static smp_status find_travels(smp__planner *planner)
{
    const size_t n = (size_t)planner->n_stage;
    memset(planner->travels, 0, n * sizeof *planner->travels);
    planner->any_travels = false;
    for (int32_t op = 0; op < planner->request.graph->n_op; op++)
        planner->travels[planner->stage[op]] |= planner->offload[op];
    for (size_t s = 0; s < n; s++) {
        const smp_layout *layout;
        if (planner->travels[s] && planner->offload_bytes[s] < 0) {
            SMP_TRY(get_layout(planner, (int)s,
                               planner->layout[2 * s] == NULL && planner->layout[2 * s + 1] != NULL,
                               &layout));
            planner->offload_bytes[s] = layout->block_bytes[SMP_BLOCK_AWAY];
        } else if (!planner->travels[s]) {
            planner->offload_bytes[s] = 0;
        }
        planner->travels[s] = planner->offload_bytes[s] > 0;
        planner->any_travels |= planner->travels[s];
    }
    return SMP_OK;
}

/* Made anew only if it differs from the last. */
smp_status smp__planner_hold(smp__planner *planner, const smp_partition *partition,
                             const bool *offload)
{
    const smp_graph *graph = planner->request.graph;
    const size_t n_op = (size_t)graph->n_op, n_stage = (size_t)partition->n_stage;
    const size_t bytes = n_op * sizeof *planner->stage;
    if (planner->n_stage == partition->n_stage &&
        memcmp(planner->stage, partition->stage, bytes) == 0) {
        hold_masks(planner, partition, offload);
        return find_travels(planner);
    }
    drop_partition(planner);
    planner->stage = malloc(bytes > 0 ? bytes : 1);
    planner->recompute = calloc(n_op + 1, sizeof *planner->recompute);
    planner->offload = calloc(n_op + 1, sizeof *planner->offload);
    planner->layout = calloc(2 * n_stage, sizeof(smp_layout *));
    planner->travels = calloc(n_stage, sizeof *planner->travels);
    planner->offload_bytes = calloc(n_stage, sizeof *planner->offload_bytes);
    if (!planner->stage || !planner->recompute || !planner->offload || !planner->layout ||
        !planner->travels || !planner->offload_bytes) {
        drop_partition(planner);
        return smp_fail_memory(bytes);
    }
    if (bytes > 0)
        memcpy(planner->stage, partition->stage, bytes);
    planner->n_stage = partition->n_stage;
    hold_masks(planner, partition, offload);
    smp_status status = smp_flow_build(graph, partition->stage, partition->n_stage,
                                       planner->request.microbatch_size, &planner->flow);
    if (status == SMP_OK)
        status = find_travels(planner);
    if (status != SMP_OK)
        drop_partition(planner);
    return status;
}

smp_status smp__planner_layout(smp__planner *planner, int stage, const smp_program *program,
                               int chunk, const smp_layout **out)
{
    return get_layout(planner, stage, smp_layout_is_split(program, chunk), out);
}

smp_status smp__at_numbers(const smp_search_request *request, smp_status status)
{
    const smp_where where = request->numbers_where;
    if (!where.file || (status != SMP_ERR_INPUT && status != SMP_ERR_NO_FIT))
        return status;
    return smp_fail_context(status, "%s:%d:%d", where.file, where.line, where.column);
}

smp_schedule_shape smp__planner_shape(const smp__planner *planner, int pipeline, int chunks,
                                      int microbatches, int active)
{
    return (smp_schedule_shape){.pipeline = pipeline,
                                .chunks = chunks,
                                .microbatches = microbatches,
                                .training = planner->request.graph->training,
                                .active = active,
                                .group = planner->request.group,
                                .lag = planner->request.weight_lag,
                                .sharding = planner->request.sharding};
}

smp_status smp__planner_check(const smp_schedule_kind *kind, const smp_schedule_shape *shape)
{
    if ((int64_t)shape->pipeline * shape->chunks > SMP_MAX_FORWARDS / shape->microbatches)
        return smp_fail(SMP_ERR_INPUT,
                        "schedule '%s': %d ranks * %d chunks * %d micro-batches, expected at most "
                        "%d forward actions",
                        kind->name, shape->pipeline, shape->chunks, shape->microbatches,
                        SMP_MAX_FORWARDS);
    SMP_TRY(smp_schedule_check(kind, shape));
    return smp_schedule_check_active(kind, shape);
}

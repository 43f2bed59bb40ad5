/* The partition at hand of a planning session: its flow and layouts, made when first asked for. */
#include <stdlib.h>
#include <string.h>

#include "schedule/planner/space/session.h"

static void drop_layouts(smp__planner *planner, int stage)
{
    for (smp_layout **l = &planner->held.layout[2 * stage];
         l < &planner->held.layout[2 * stage + 2]; l++) {
        smp_layout_destroy(*l);
        *l = NULL;
    }
}

void smp__planner_drop(smp__planner *planner)
{
    for (int s = 0; planner->held.layout && s < planner->held.n_stage; s++)
        drop_layouts(planner, s);
    free(planner->held.layout);
    free(planner->held.stage);
    free(planner->held.recompute);
    free(planner->held.offload);
    free(planner->held.travels);
    free(planner->held.offload_bytes);
    smp_flow_destroy(planner->held.flow);
    planner->held.layout = NULL;
    planner->held.stage = NULL;
    planner->held.recompute = planner->held.offload = planner->held.travels = NULL;
    planner->held.offload_bytes = NULL;
    planner->held.flow = NULL;
    planner->held.n_stage = 0;
}

/* Layouts of the stages in which other ops recompute or offload now are of no use. */
static void hold_masks(smp__planner *planner, const smp_partition *partition, const bool *offload)
{
    for (int32_t op = 0; op < planner->request.graph->n_op; op++) {
        const bool away = offload && offload[op];
        if (planner->held.recompute[op] == partition->recompute[op] &&
            planner->held.offload[op] == away)
            continue;
        planner->held.recompute[op] = partition->recompute[op];
        planner->held.offload[op] = away;
        drop_layouts(planner, partition->stage[op]);
        planner->held.offload_bytes[partition->stage[op]] = -1;
    }
}

static smp_status get_layout(smp__planner *planner, int stage, bool split, const smp_layout **out)
{
    smp_layout **layout = &planner->held.layout[2 * stage + split];
    if (!*layout)
        SMP_TRY(smp_layout_measure(planner->request.graph, planner->held.flow, stage, split,
                                   planner->held.recompute, planner->held.offload,
                                   &planner->packings, layout));
    *out = *layout;
    return SMP_OK;
}

/* What travels of each stage, which is the same whether its backwards are split. */
static smp_status find_travels(smp__planner *planner)
{
    const size_t n = (size_t)planner->held.n_stage;
    memset(planner->held.travels, 0, n * sizeof *planner->held.travels);
    planner->held.any_travels = false;
    for (int32_t op = 0; op < planner->request.graph->n_op; op++)
        planner->held.travels[planner->held.stage[op]] |= planner->held.offload[op];
    for (size_t s = 0; s < n; s++) {
        const smp_layout *layout;
        if (planner->held.travels[s] && planner->held.offload_bytes[s] < 0) {
            SMP_TRY(get_layout(planner, (int)s,
                               planner->held.layout[2 * s] == NULL &&
                                   planner->held.layout[2 * s + 1] != NULL,
                               &layout));
            planner->held.offload_bytes[s] = layout->block_bytes[SMP_BLOCK_AWAY];
        } else if (!planner->held.travels[s]) {
            planner->held.offload_bytes[s] = 0;
        }
        planner->held.travels[s] = planner->held.offload_bytes[s] > 0;
        planner->held.any_travels |= planner->held.travels[s];
    }
    return SMP_OK;
}

/* Made anew only if it differs from the last. */
smp_status smp__planner_hold(smp__planner *planner, const smp_partition *partition,
                             const bool *offload)
{
    const smp_graph *graph = planner->request.graph;
    const size_t n_op = (size_t)graph->n_op, n_stage = (size_t)partition->n_stage;
    const size_t bytes = n_op * sizeof *planner->held.stage;
    if (planner->held.n_stage == partition->n_stage &&
        memcmp(planner->held.stage, partition->stage, bytes) == 0) {
        hold_masks(planner, partition, offload);
        return find_travels(planner);
    }
    smp__planner_drop(planner);
    planner->held.stage = malloc(bytes > 0 ? bytes : 1);
    planner->held.recompute = calloc(n_op + 1, sizeof *planner->held.recompute);
    planner->held.offload = calloc(n_op + 1, sizeof *planner->held.offload);
    planner->held.layout = calloc(2 * n_stage, sizeof(smp_layout *));
    planner->held.travels = calloc(n_stage, sizeof *planner->held.travels);
    planner->held.offload_bytes = calloc(n_stage, sizeof *planner->held.offload_bytes);
    if (!planner->held.stage || !planner->held.recompute || !planner->held.offload ||
        !planner->held.layout || !planner->held.travels || !planner->held.offload_bytes) {
        smp__planner_drop(planner);
        return smp_fail_memory(bytes);
    }
    if (bytes > 0)
        memcpy(planner->held.stage, partition->stage, bytes);
    planner->held.n_stage = partition->n_stage;
    hold_masks(planner, partition, offload);
    smp_status status =
        smp_flow_build(graph, partition->stage, partition->n_stage,
                       planner->request.options.microbatch_size, &planner->held.flow);
    if (status == SMP_OK)
        status = find_travels(planner);
    if (status != SMP_OK)
        smp__planner_drop(planner);
    return status;
}

smp_status smp__planner_layout(smp__planner *planner, int stage, const smp_program *program,
                               int chunk, const smp_layout **out)
{
    return get_layout(planner, stage, smp_layout_is_split(program, chunk), out);
}

/* Plans that no planner makes: one of the planner's, with recomputation and offload in random
 * stages and backwards split at random, its peaks computed anew. */
#ifndef SMP_TESTS_EXEC_CHANGED_PLAN_H
#define SMP_TESTS_EXEC_CHANGED_PLAN_H

#include <stdlib.h>

#include "exec/start/planning.h"
#include "schedule/lower/offload_actions.h"
#include "schedule/memory/memory.h"
#include "tests/split_program.h"

typedef struct plan_changes {
    uint64_t seed;
    int recompute_percent;           /* of the stages */
    int recompute_ops_percent;       /* of the ops of these; 0: all */
    int split_percent;               /* of the chunks */
    int whole_percent, soon_percent; /* see split_program */
    int offload_percent;             /* of the stages */
    int offload_ops_percent;         /* of the ops of these; 0: all */
    int horizon;                     /* 0: 1 */
    bool offload_states;
} plan_changes;

/* Of all ops of a stage, or none, a mask. */
static inline const bool *changed_mask(const smp_plan *plan, const smp_plan_stage *stage,
                                       uint64_t *seed, int percent, int ops_percent)
{
    bool *mask = SMP_ARENA_NEW(plan->arena, bool, (size_t)stage->n_op);
    bool any = split_chance(seed, percent);
    for (int32_t i = 0; mask && i < stage->n_op && any; i++)
        mask[i] = ops_percent == 0 || ops_percent == 100 || split_chance(seed, ops_percent);
    return mask;
}

/* What travels of the stages, and S and L in the programs. */
static inline smp_status change_offload(smp_plan *plan, const smp_graph *graph,
                                        const smp_flow *flow, plan_changes *changes)
{
    bool *recompute = SMP_ARENA_NEW(plan->arena, bool, (size_t)graph->n_op);
    bool *offload = SMP_ARENA_NEW(plan->arena, bool, (size_t)graph->n_op);
    int *stage_of_chunk = SMP_ARENA_NEW(plan->arena, int, (size_t)plan->chunks);
    bool *travels = SMP_ARENA_NEW(plan->arena, bool, (size_t)plan->n_stage);
    if (!recompute || !offload || !stage_of_chunk || !travels)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < plan->n_stage; s++) {
        smp_plan_stage *stage = &((smp_plan_stage *)plan->stage)[s];
        stage->offload = changed_mask(plan, stage, &changes->seed, changes->offload_percent,
                                      changes->offload_ops_percent);
        if (!stage->offload)
            return SMP_ERR_NO_MEMORY;
        for (int32_t i = 0; i < stage->n_op; i++) {
            recompute[flow->op_list[flow->op_begin[s] + i]] = stage->recompute[i];
            offload[flow->op_list[flow->op_begin[s] + i]] = stage->offload[i];
        }
    }
    for (int r = 0; r < plan->pipeline; r++)
        for (int c = 0; c < plan->chunks; c++) {
            const int s = smp_plan_stage_of(plan, r, c);
            smp_layout *layout;
            SMP_TRY(smp_layout_measure(graph, flow, s, smp_layout_is_split(&plan->program[r], c),
                                       recompute, offload, NULL, &layout));
            ((smp_plan_stage *)plan->stage)[s].offload_bytes = layout->block_bytes[SMP_BLOCK_AWAY];
            travels[s] = layout->block_bytes[SMP_BLOCK_AWAY] > 0;
            if (travels[s])
                plan->travels = travels;
            smp_layout_destroy(layout);
        }
    if (plan->cluster && plan->cluster->host.bytes_per_s == 0.0)
        ((smp_cluster *)plan->cluster)->host =
            (smp_link_spec){.bytes_per_s = 4e9, .latency_us = 10.0};
    plan->loading_horizon = plan->travels && changes->horizon == 0 ? 1 : changes->horizon;
    plan->sharding.offload_states = changes->offload_states;
    const smp_schedule_shape shape = smp_plan_shape(plan);
    for (int r = 0; r < plan->pipeline; r++) {
        for (int c = 0; c < plan->chunks; c++)
            stage_of_chunk[c] = smp_plan_stage_of(plan, r, c);
        SMP_TRY(smp_offload_actions(&shape, stage_of_chunk, (smp_program *)&plan->program[r]));
    }
    return SMP_OK;
}

static inline smp_status change_peaks(smp_plan *plan, const smp_graph *graph, const smp_flow *flow)
{
    int64_t *host = SMP_ARENA_NEW(plan->arena, int64_t, (size_t)plan->pipeline);
    if (!host)
        return SMP_ERR_NO_MEMORY;
    plan->predicted.host_bytes = NULL;
    for (int r = 0; r < plan->pipeline; r++) {
        SMP_TRY(smp_memory_peak(plan, graph, flow, r, (int64_t *)&plan->predicted.peak_bytes[r],
                                &host[r]));
        if (host[r] > 0)
            plan->predicted.host_bytes = host;
    }
    return SMP_OK;
}

static inline smp_status change_plan(smp_plan *plan, const smp_graph *graph, plan_changes changes)
{
    int32_t *stage_of_op = NULL;
    smp_flow *flow = NULL;
    smp_status status = smp_plan_bind(plan, graph, &stage_of_op);
    if (status == SMP_OK)
        status = smp_flow_build(graph, stage_of_op, plan->n_stage, plan->microbatch_size, &flow);
    for (int s = 0; s < plan->n_stage && status == SMP_OK; s++) {
        smp_plan_stage *stage = &((smp_plan_stage *)plan->stage)[s];
        stage->recompute = changed_mask(plan, stage, &changes.seed, changes.recompute_percent,
                                        changes.recompute_ops_percent);
        status = stage->recompute ? SMP_OK : SMP_ERR_NO_MEMORY;
    }
    for (int r = 0; r < plan->pipeline && status == SMP_OK; r++)
        status = split_program(&changes.seed, plan->chunks, plan->microbatches,
                               changes.split_percent, changes.whole_percent, changes.soon_percent,
                               (smp_program *)&plan->program[r]);
    if (status == SMP_OK)
        status = change_offload(plan, graph, flow, &changes);
    if (status == SMP_OK)
        status = change_peaks(plan, graph, flow);
    smp_flow_destroy(flow);
    free(stage_of_op);
    return status;
}

/* Plans options->model for `ranks` devices, changes the plan and writes it. */
static inline smp_status changed_plan_write(const smp_options *options, int ranks,
                                            const smp_graph *graph, plan_changes changes,
                                            const char *path)
{
    smp_plan *plan = NULL;
    smp_text text = {0};
    smp_status status = smp__plan_from_options(options, ranks, (smp_target){0}, &plan);
    if (status == SMP_OK)
        status = change_plan(plan, graph, changes);
    if (status == SMP_OK)
        status = smp_plan_format(plan, &text);
    if (status == SMP_OK)
        status = smp_file_write(path, text.data, text.length);
    smp_text_free(&text);
    smp_plan_destroy(plan);
    return status;
}

#endif

/* Plans that no planner makes: one of the planner's, with recomputation in random stages and
 * backwards split at random, its peaks computed anew. */
#ifndef SMP_TESTS_EXEC_CHANGED_PLAN_H
#define SMP_TESTS_EXEC_CHANGED_PLAN_H

#include <stdlib.h>

#include "exec/job/plan_from_options.h"
#include "schedule/memory/memory.h"
#include "tests/split_program.h"

typedef struct plan_changes {
    uint64_t seed;
    int recompute_percent;           /* of the stages */
    int recompute_ops_percent;       /* of the ops of these; 0: all */
    int split_percent;               /* of the chunks */
    int whole_percent, soon_percent; /* see split_program */
} plan_changes;

static inline smp_status changed_peak(const smp_plan *plan, const smp_graph *graph,
                                      const smp_flow *flow, int rank, int64_t *peak_bytes)
{
    smp_memory_rank *memory;
    smp_status status = smp_memory_plan_rank(plan, graph, flow, rank, 2, NULL, &memory);
    if (status != SMP_OK)
        return status;
    *peak_bytes = memory->arena_bytes;
    smp_memory_destroy(memory);
    return SMP_OK;
}

static inline smp_status change_recompute(const smp_plan *plan, smp_plan_stage *stage,
                                          plan_changes *changes)
{
    bool *recompute = SMP_ARENA_NEW(plan->arena, bool, (size_t)stage->n_op);
    bool any = split_chance(&changes->seed, changes->recompute_percent);
    int percent = changes->recompute_ops_percent > 0 ? changes->recompute_ops_percent : 100;
    if (!recompute)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < stage->n_op && any; i++)
        recompute[i] = percent == 100 || split_chance(&changes->seed, percent);
    stage->recompute = recompute;
    return SMP_OK;
}

static inline smp_status change_plan(smp_plan *plan, const smp_graph *graph, plan_changes changes)
{
    int32_t *stage_of_op = NULL;
    smp_flow *flow = NULL;
    smp_status status = smp_plan_bind(plan, graph, &stage_of_op);
    if (status == SMP_OK)
        status = smp_flow_build(graph, stage_of_op, plan->n_stage, plan->microbatch_size, &flow);
    for (int s = 0; s < plan->n_stage && status == SMP_OK; s++)
        status = change_recompute(plan, &((smp_plan_stage *)plan->stage)[s], &changes);
    for (int r = 0; r < plan->pipeline && status == SMP_OK; r++) {
        status = split_program(&changes.seed, plan->chunks, plan->microbatches,
                               changes.split_percent, changes.whole_percent, changes.soon_percent,
                               (smp_program *)&plan->program[r]);
        if (status == SMP_OK)
            status = changed_peak(plan, graph, flow, r, (int64_t *)&plan->predicted.peak_bytes[r]);
    }
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

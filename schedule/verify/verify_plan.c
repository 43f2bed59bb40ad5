/* The whole check of a plan against its model: stages, programs, and the peak of every rank as the
 * memory planner computes it again. */
#include <stdlib.h>

#include "schedule/memory/memory.h"
#include "schedule/plan/gradient_blocks.h"
#include "schedule/verify/verify.h"

static smp_status compare(smp_where where, const char *what, int rank, int64_t said,
                          int64_t expected)
{
    return said == expected
               ? SMP_OK
               : smp_fail_at(where, "predicted: %s_bytes of rank %d: got %lld, expected %lld", what,
                             rank, (long long)said, (long long)expected);
}

static smp_status check_peaks(const smp_plan *plan, const smp_graph *graph, const smp_flow *flow)
{
    if (!plan->predicted.peak_bytes)
        return smp_fail(SMP_ERR_INPUT, "predicted: peak_bytes is missing");
    for (int rank = 0; rank < plan->pipeline; rank++) {
        int64_t peak, host;
        SMP_TRY(smp_memory_peak(plan, graph, flow, rank, &peak, &host));
        SMP_TRY(
            compare(plan->place.predicted, "peak", rank, plan->predicted.peak_bytes[rank], peak));
        SMP_TRY(compare(plan->predicted.host_bytes ? plan->place.host : plan->place.predicted,
                        "host", rank,
                        plan->predicted.host_bytes ? plan->predicted.host_bytes[rank] : 0, host));
    }
    return SMP_OK;
}

smp_status smp_verify(const smp_plan *plan, const smp_graph *graph)
{
    int32_t *stage_of_op = NULL;
    smp_flow *flow = NULL;
    SMP_TRY(smp_gradient_joint_check(smp_plan_blocks(plan), plan->ddp, graph));
    SMP_TRY(smp_plan_bind(plan, graph, &stage_of_op));
    smp_status status =
        smp_flow_build(graph, stage_of_op, plan->n_stage, plan->microbatch_size, &flow);
    if (status == SMP_OK)
        status = smp_verify_programs(plan, flow);
    if (status == SMP_OK)
        status = check_peaks(plan, graph, flow);
    smp_flow_destroy(flow);
    free(stage_of_op);
    return status;
}

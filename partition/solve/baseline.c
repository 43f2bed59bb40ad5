/* From a wish per unit to a pipeline that is evaluated. The wish is made to rise along nets before
 * it is clamped to what pins leave, so that a unit goes where the last of its inputs wants to be,
 * and not only as far as that may go. Linear. */
#include "partition/solve/baseline.h"

#include <math.h>

#include "partition/problem/legal.h"
#include "partition/prove/bound.h"

smp_status smp__baseline_finish(const smp_problem *problem, const smp__units *units, int32_t *wish,
                                const char *solver, smp_partition **out)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    int32_t n_op = problem->graph->n_op;
    smp_arena *scratch = smp_arena_create();
    int32_t *op_stage = scratch ? SMP_ARENA_NEW(scratch, int32_t, (size_t)n_op) : NULL;
    if (!op_stage)
        goto done;
    smp__follow_inputs(units, wish);
    status = smp__legalize(problem, units, SMP__PUSH, wish);
    if (status != SMP_OK)
        goto done;
    for (int32_t op = 0; op < n_op; op++)
        op_stage[op] = wish[units->unit_of_op[op]];
    const char *bound;
    double bound_us;
    status = smp__bound_by_compute(problem, units, scratch, &bound, &bound_us);
    if (status == SMP_OK)
        status = smp_partition_evaluate(problem, op_stage, out);
    if (status == SMP_OK) {
        (*out)->lower_bound_us = fmin(bound_us, (*out)->bottleneck_us);
        (*out)->bound = bound;
        (*out)->solver = solver;
    }
done:
    smp_arena_destroy(scratch);
    return status;
}

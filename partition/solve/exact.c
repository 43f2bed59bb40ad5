/* The partitioner "exact": improves what it is given, or an optimal split of a sequence, by exact
 * search, and proves it to be the best where it can, within about a second. smp_partition_prove
 * does the same at greater length. */
#include "partition/prove/prove.h"
#include "partition/solve/partitioner.h"

enum { WORK = 40000000, BYTES = 160 << 20 };

static smp_status copy_partition(const smp_problem *problem, const smp_partition *start,
                                 smp_partition **out)
{
    SMP_TRY(smp_partition_evaluate(problem, start->stage, out));
    (*out)->solver = start->solver;
    (*out)->lower_bound_us = start->lower_bound_us;
    (*out)->bound = start->bound;
    (*out)->timed_out = start->timed_out;
    return SMP_OK;
}

static smp_status solve(const smp_problem *problem, const smp_partition *start, smp_partition **out)
{
    smp__exact_limits limits = {WORK, BYTES, problem->deadline_s};
    smp_partition *partition = NULL;
    if (start) {
        SMP_TRY(copy_partition(problem, start, &partition));
    } else {
        SMP_TRY(smp__partitioner_linear.solve(problem, NULL, &partition));
        partition->solver = "exact";
    }
    smp_status status = smp__prove(problem, &limits, "exact", &partition);
    if (status == SMP_OK)
        *out = partition;
    else
        smp_partition_destroy(partition);
    return status;
}

const smp_partitioner smp__partitioner_exact = {
    .name = "exact",
    .summary = "dynamic programming over all pipelines, with a proof",
    .solve = solve,
    .prover = true,
};

/* The partitioner "exact": improves what it is given, or an optimal split of a line, by exact
 * search, and proves it to be the best where it can. As one of several it is brief; asked for by
 * itself it takes seconds if it has to. smp_partition_prove does the same at length. */
#include "partition/partitioner_registry.h"
#include "partition/prove.h"

enum { BRIEF_WORK = 2000000, BRIEF_BYTES = 24 << 20, WORK = 150000000, BYTES = 160 << 20 };

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
    smp__exact_limits brief = {BRIEF_WORK, BRIEF_BYTES, problem->deadline_s};
    smp__exact_limits full = {WORK, BYTES, problem->deadline_s};
    smp_partition *partition = NULL;
    if (start)
        SMP_TRY(copy_partition(problem, start, &partition));
    else
        SMP_TRY(smp__partitioner_linear.solve(problem, NULL, &partition));
    if (!start)
        partition->solver = "exact";
    smp_status status = smp__prove(problem, start ? &brief : &full, "exact", &partition);
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

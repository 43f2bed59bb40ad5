/* The baseline "equal-parameters": the file order, cut so that every stage holds about the same
 * bytes of weights; of a model without weights, the same number of ops. A unit lies where its
 * middle lies. Linear. */
#include "partition/solve/baseline.h"
#include "partition/solve/partitioner.h"

static double weight_of(const smp__units *units, int32_t u)
{
    double bytes = (double)units->weight_bytes[u];
    for (int64_t h = units->hold_begin[u]; h < units->hold_begin[u + 1]; h++)
        bytes += (double)units->share_bytes[units->hold_share[h]];
    return bytes;
}

static double size_of(const smp__units *units, int32_t u, bool by_weight)
{
    return by_weight ? weight_of(units, u) : (double)(units->op_begin[u + 1] - units->op_begin[u]);
}

static smp_status solve(const smp_problem *problem, const smp_partition *start, smp_partition **out)
{
    (void)start; /* a baseline is measured as it is */
    smp__units *units = NULL;
    SMP_TRY(smp__units_build(problem, &units));
    smp_status status = SMP_ERR_NO_MEMORY;
    int32_t *wish = SMP_ARENA_NEW(units->arena, int32_t, (size_t)units->n);
    if (!wish)
        goto done;
    double total = 0.0, before = 0.0;
    for (int32_t u = 0; u < units->n; u++)
        total += weight_of(units, u);
    bool by_weight = total > 0.0;
    total = by_weight ? total : (double)problem->graph->n_op;
    for (int32_t u = 0; u < units->n; u++) {
        double size = size_of(units, u, by_weight);
        int32_t k = (int32_t)((before + size / 2) / total * problem->n_stage);
        wish[u] = k < problem->n_stage ? k : problem->n_stage - 1;
        before += size;
    }
    status = smp__baseline_finish(problem, units, wish, "equal-parameters", out);
done:
    smp__units_destroy(units);
    return status;
}

const smp_partitioner smp__partitioner_equal_parameters = {
    .name = "equal-parameters",
    .summary = "about the same bytes of weights on every stage (baseline)",
    .solve = solve,
    .baseline = true,
};

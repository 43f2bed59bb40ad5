/* The partitioner "linear": optimal splits of topological orders. The model's own order, depth and
 * breadth first, and the one that keeps least alive; then random orders around the best. A graph
 * that is a chain has one order, and its split is the optimum. */
#include "partition/partitioner_registry.h"
#include "partition/tune.h"

#include "graph/base/text.h"

/* True if the order was not tried before; remembers it by its hash (a collision costs one try). */
static bool is_new(const int32_t *order, int32_t n, uint64_t *seen, int *n_seen)
{
    uint64_t hash = smp_hash(0, order, (size_t)n * sizeof *order);
    for (int i = 0; i < *n_seen; i++) {
        if (seen[i] == hash)
            return false;
    }
    seen[(*n_seen)++] = hash;
    return true;
}

static smp_status solve(const smp_problem *problem, const smp_partition *start, smp_partition **out)
{
    (void)start;
    smp__tuner tuner;
    SMP_TRY(smp__tuner_init(&tuner, problem));
    smp_status status = SMP_OK;
    uint64_t seen[SMP__N_ORDER];
    int n_seen = 0;
    for (int kind = SMP__ORDER_FILE; kind <= SMP__ORDER_NARROW && !smp__tuner_done(&tuner);
         kind++) {
        status = smp__order_make(tuner.units, (smp__order_kind)kind, 0, tuner.order);
        if (status == SMP_OK && is_new(tuner.order, tuner.units->n, seen, &n_seen))
            status = smp__tuner_try(&tuner, tuner.order);
        if (status != SMP_OK)
            goto done;
    }
    status = smp__tuner_improve(&tuner);
    if (status == SMP_OK)
        status = smp__tuner_finish(&tuner, "linear", out);
done:
    smp__tuner_free(&tuner);
    return status;
}

const smp_partitioner smp__partitioner_linear = {
    .name = "linear",
    .summary = "optimal splits of topological orders (dynamic programming), then local search",
    .solve = solve,
};

/* The partitioner "linear": optimal splits of topological orders. The model's own order, depth and
 * breadth first, the one that keeps least alive, those that METIS's parts suggest; then random
 * orders around the best. A graph that is a chain has one order, and its split is the optimum. */
#include "partition/problem/legal.h"
#include "partition/solve/partitioner.h"
#include "partition/solve/tune.h"

#include "graph/base/text.h"

enum { FEW_ORDERS = 1000000 }; /* units beyond which only the first two kinds and METIS are tried */

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

static smp_status try_orders(smp__tuner *tuner)
{
    uint64_t seen[SMP__N_ORDER];
    int n_seen = 0;
    bool few = tuner->units->n > FEW_ORDERS || tuner->problem->quick;
    int last = few ? SMP__ORDER_FORWARD : SMP__ORDER_NARROW;
    bool unique = smp__order_is_unique(tuner->units);
    if (!tuner->uniform && !smp__tuner_done(tuner)) { /* lines measure links roughly */
        SMP_TRY(smp__share_out(tuner->problem, tuner->units, NULL, tuner->trial));
        smp__tuner_offer(tuner);
    }
    for (int kind = SMP__ORDER_FILE; kind <= last && !smp__tuner_done(tuner); kind++) {
        SMP_TRY(smp__order_make(tuner->units, (smp__order_kind)kind, 0, tuner->order));
        if (is_new(tuner->order, tuner->units->n, seen, &n_seen))
            SMP_TRY(smp__tuner_try(tuner, tuner->order));
        if (unique)
            return SMP_OK;
    }
    if (tuner->problem->quick)
        return SMP_OK;
    if (tuner->problem->n_stage > 1 && !smp__tuner_done(tuner))
        SMP_TRY(smp__tuner_try_metis(tuner));
    return smp__tuner_improve(tuner);
}

static smp_status solve(const smp_problem *problem, const smp_partition *start, smp_partition **out)
{
    smp__tuner tuner;
    SMP_TRY(smp__tuner_init(&tuner, problem, start, smp__partitioner_linear.name));
    smp_status status = try_orders(&tuner);
    if (status == SMP_OK)
        status = smp__tuner_polish(&tuner);
    if (status == SMP_OK)
        status = smp__tuner_finish(&tuner, out);
    smp__tuner_free(&tuner);
    return status;
}

const smp_partitioner smp__partitioner_linear = {
    .name = "linear",
    .summary = "optimal splits of topological orders (dynamic programming), then local search",
    .solve = solve,
};

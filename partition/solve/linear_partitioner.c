/* The partitioner "linear": optimal splits of topological orders. The model's own order, depth and
 * breadth first, the one that keeps least alive, those that METIS's parts suggest; then random
 * orders around the best. A graph that is a chain has one order, and its split is the optimum. */
#include "partition/problem/legal.h"
#include "partition/solve/incumbent.h"
#include "partition/solve/partitioner.h"

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

static smp_status try_orders(smp__incumbent *incumbent)
{
    uint64_t seen[SMP__N_ORDER];
    int n_seen = 0;
    bool few = incumbent->units->n > FEW_ORDERS || incumbent->problem->first_look;
    int last = few ? SMP__ORDER_FORWARD : SMP__ORDER_NARROW;
    bool unique = smp__order_is_unique(incumbent->units);
    if (!incumbent->uniform &&
        !smp__incumbent_done(incumbent)) { /* sequences measure links roughly */
        SMP_TRY(smp__share_out(incumbent->problem, incumbent->units, NULL, incumbent->trial));
        smp__incumbent_offer(incumbent);
    }
    for (int kind = SMP__ORDER_FILE; kind <= last && !smp__incumbent_done(incumbent); kind++) {
        SMP_TRY(smp__order_make(incumbent->units, (smp__order_kind)kind, 0, incumbent->order));
        if (is_new(incumbent->order, incumbent->units->n, seen, &n_seen))
            SMP_TRY(smp__incumbent_try(incumbent, incumbent->order));
        if (unique)
            return SMP_OK;
    }
    if (incumbent->problem->first_look)
        return SMP_OK;
    if (incumbent->problem->n_stage > 1 && !smp__incumbent_done(incumbent))
        SMP_TRY(smp__incumbent_try_metis(incumbent));
    return smp__incumbent_improve(incumbent);
}

static smp_status solve(const smp_problem *problem, const smp_partition *start, smp_partition **out)
{
    smp__incumbent incumbent;
    SMP_TRY(smp__incumbent_init(&incumbent, problem, start, smp__partitioner_linear.name));
    smp_status status = try_orders(&incumbent);
    if (status == SMP_OK)
        status = smp__incumbent_polish(&incumbent);
    if (status == SMP_OK)
        status = smp__incumbent_finish(&incumbent, out);
    smp__incumbent_free(&incumbent);
    return status;
}

const smp_partitioner smp__partitioner_linear = {
    .name = "linear",
    .summary = "optimal splits of topological orders (dynamic programming), then local search",
    .solve = solve,
};

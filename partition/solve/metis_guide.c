/* METIS as a guide to orders. Its parts depend on each other in cycles. Units are pushed towards
 * the later (or pulled towards the earlier) part until all tensors flow forward, or the parts only
 * guide the choice among ready units. Each of the three gives an order. */
#include <string.h>

#include "partition/problem/legal.h"
#include "partition/solve/incumbent.h"
#include "partition/solve/metis_graph.h"

enum { MAX_RUNS = 1024 };

static smp_status try_parts(smp__incumbent *incumbent, const int32_t *part, smp_arena *scratch)
{
    const smp__units *units = incumbent->units;
    double *key = SMP_ARENA_NEW(scratch, double, (size_t)units->n);
    int32_t *moved = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n);
    if (!key || !moved)
        return SMP_ERR_NO_MEMORY;
    for (int32_t u = 0; u < units->n; u++)
        key[u] = part[u];
    SMP_TRY(smp__order_by_key(units, key, incumbent->order));
    SMP_TRY(smp__incumbent_try(incumbent, incumbent->order));
    for (int repair = SMP__PUSH; repair <= SMP__PULL && !smp__incumbent_done(incumbent); repair++) {
        memcpy(moved, part, (size_t)units->n * sizeof *moved);
        SMP_TRY(smp__legalize(incumbent->problem, units, (smp__repair)repair, moved));
        SMP_TRY(smp__order_make(units, SMP__ORDER_FILE, 0, incumbent->order));
        SMP_TRY(smp__order_by_stage(units, incumbent->problem->n_stage, moved, incumbent->order));
        SMP_TRY(smp__incumbent_try(incumbent, incumbent->order));
    }
    return SMP_OK;
}

smp_status smp__incumbent_try_metis(smp__incumbent *incumbent)
{
    const smp__units *units = incumbent->units;
    smp__metis_graph graph;
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_arena *scratch = smp_arena_create();
    int32_t *part = scratch ? SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n) : NULL;
    if (!part)
        goto done;
    status = smp__metis_graph_build(incumbent->problem, units, MAX_RUNS, scratch, &graph);
    int32_t *of_vertex = status == SMP_OK ? SMP_ARENA_NEW(scratch, int32_t, (size_t)graph.n) : NULL;
    if (status == SMP_OK)
        status = of_vertex ? smp__metis_bisection(&graph, of_vertex) : SMP_ERR_NO_MEMORY;
    for (int32_t u = 0; u < units->n && status == SMP_OK; u++)
        part[u] = of_vertex[graph.vertex_of[u]];
    if (status == SMP_OK)
        status = try_parts(incumbent, part, scratch);
done:
    smp_arena_destroy(scratch);
    return status;
}

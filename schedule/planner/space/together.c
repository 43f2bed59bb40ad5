/* What a plan must not tear apart beside what the request keeps together: ops that the target runs
 * as one kernel (smp_op_tied). Where pins of the user put them into different stages, pins win:
 * such a plan is legal, its results only differ in rounding. Union of sets, O(ops). */
#include <stdlib.h>

#include "graph/base/sets.h"
#include "graph/model/op.h"
#include "schedule/planner/space/session.h"

/* Stage that an op, or a member of its group, is pinned to; -1: none. */
static int32_t pin_of(const smp_search_request *request, const int32_t *group_pin, int32_t op)
{
    int32_t pin = request->pin ? request->pin[op] : request->graph->op[op].pin;
    int32_t group = request->graph->op[op].group;
    return pin >= 0 || group < 0 ? pin : group_pin[group];
}

static void join_request(const smp_search_request *request, int32_t *first, int32_t *parent)
{
    int32_t n_op = request->graph->n_op;
    for (int32_t op = 0; op < n_op; op++)
        first[op] = -1;
    for (int32_t op = 0; request->together && op < n_op; op++) {
        int32_t label = request->together[op];
        if (label < 0)
            continue;
        if (first[label] < 0)
            first[label] = op;
        smp_set_join(parent, first[label], op);
    }
}

static void join_pairs(const smp_search_request *request, int32_t *group_pin, int32_t *parent)
{
    const smp_graph *graph = request->graph;
    for (int32_t g = 0; g < graph->n_group; g++)
        group_pin[g] = -1;
    for (int32_t op = 0; op < graph->n_op; op++) {
        int32_t pin = request->pin ? request->pin[op] : graph->op[op].pin;
        if (graph->op[op].group >= 0 && pin >= 0)
            group_pin[graph->op[op].group] = pin;
    }
    int32_t chain = -1; /* the pin of what op is joined with */
    for (int32_t op = 0; op < graph->n_op; op++) {
        int32_t a = pin_of(request, group_pin, op);
        a = a < 0 ? chain : a;
        chain = -1;
        if (!smp_op_tied(graph, op))
            continue;
        int32_t b = pin_of(request, group_pin, op + 1);
        if (a >= 0 && b >= 0 && a != b)
            continue;
        smp_set_join(parent, op, op + 1);
        chain = a < 0 ? b : a;
    }
}

static bool has_pairs(const smp_graph *graph)
{
    for (int32_t op = 0; op < graph->n_op; op++)
        if (smp_op_tied(graph, op))
            return true;
    return false;
}

smp_status smp__keep_together(const smp_search_request *request, int32_t **out)
{
    const smp_graph *graph = request->graph;
    size_t n = (size_t)graph->n_op;
    *out = NULL;
    if (!has_pairs(graph))
        return SMP_OK;
    smp_status status = SMP_OK;
    int32_t *parent = malloc(n * sizeof *parent), *together = malloc(n * sizeof *together);
    int32_t *group_pin = malloc(((size_t)graph->n_group + 1) * sizeof *group_pin);
    if (!parent || !together || !group_pin) {
        status = smp_fail_memory(n * sizeof *together);
        goto done;
    }
    for (int32_t op = 0; op < graph->n_op; op++)
        parent[op] = op;
    join_request(request, together, parent);
    join_pairs(request, group_pin, parent);
    for (int32_t op = 0; op < graph->n_op; op++)
        together[op] = -1;
    for (int32_t op = 0; op < graph->n_op; op++) {
        int32_t root = smp_set_find(parent, op);
        if (root != op)
            together[root] = together[op] = root;
    }
    *out = together;
    together = NULL;
done:
    free(parent);
    free(together);
    free(group_pin);
    return status;
}

/* From ops to units: groups and tied weights are merged, then every strongly connected component
 * of the merged graph becomes one unit (its convex closure). What is left is acyclic, and any
 * assignment of stages that rises along its edges is a legal pipeline.
 *
 * Union-find for the merging, Tarjan's algorithm ("Depth-first search and linear graph algorithms",
 * SIAM J. Comput. 1972) without recursion for the components, Kahn's algorithm with a heap on the
 * first op of each unit for the numbering. O(n log n + edges). */
#include "partition/problem/unit_graph.h"

#include "graph/base/clock.h"
#include "graph/base/heap.h"
#include "graph/base/sets.h"
#include "partition/problem/conflict.h"

/* Groups of ops before closure, then units: a label per op and the edges between labels. */
typedef struct cluster_graph {
    int32_t n;
    int32_t *label;  /* [n_op] */
    int64_t *begin;  /* [n + 1] */
    int32_t *target; /* other labels, with repetitions */
} cluster_graph;

/* Joins an op to the first one that has its label. */
static void join(int32_t *parent, int32_t *first, int32_t label, int32_t op)
{
    if (label < 0)
        return;
    if (first[label] < 0)
        first[label] = op;
    smp_set_join(parent, first[label], op);
}

static smp_status merge_ops(const smp_problem *problem, smp_arena *scratch, cluster_graph *out)
{
    const smp_graph *graph = problem->graph;
    size_t n_op = (size_t)graph->n_op, n_group = (size_t)graph->n_group;
    int32_t *parent = SMP_ARENA_NEW(scratch, int32_t, n_op);
    int32_t *first = SMP_ARENA_NEW(scratch, int32_t, n_group + n_op); /* by group, by label */
    out->label = SMP_ARENA_NEW(scratch, int32_t, n_op);
    if (!parent || !first || !out->label)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < n_group + n_op; i++)
        first[i] = -1;
    for (int32_t op = 0; op < graph->n_op; op++)
        parent[op] = op;
    for (int32_t op = 0; op < graph->n_op; op++) {
        join(parent, first, graph->op[op].group, op);
        if (problem->together)
            join(parent, first + n_group, problem->together[op], op);
    }
    for (int32_t p = 0; problem->tie_together && p < graph->n_param; p++) {
        const smp_param *param = &graph->param[p];
        for (int32_t u = param->use_begin + 1; u < param->use_end; u++)
            smp_set_join(parent, graph->use[param->use_begin].op, graph->use[u].op);
    }
    out->n = 0;
    for (int32_t op = 0; op < graph->n_op; op++) {
        int32_t root = smp_set_find(parent, op);
        out->label[op] = root == op ? out->n++ : out->label[root];
    }
    return SMP_OK;
}

/* Edges between different labels, one per use of a tensor. */
static smp_status connect_labels(const smp_graph *graph, smp_arena *scratch, cluster_graph *out)
{
    int64_t *fill = SMP_ARENA_NEW(scratch, int64_t, (size_t)out->n);
    out->begin = SMP_ARENA_NEW(scratch, int64_t, (size_t)out->n + 1);
    if (!fill || !out->begin)
        return SMP_ERR_NO_MEMORY;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t op = 0; op < graph->n_op; op++) {
            int32_t from = out->label[op];
            const smp_op *it = &graph->op[op];
            for (int64_t c = graph->consumer_begin[it->out];
                 c < graph->consumer_begin[it->out + it->n_out]; c++) {
                int32_t to = out->label[graph->consumer[c].op];
                if (to == from)
                    continue;
                if (pass == 0)
                    out->begin[from + 1]++;
                else
                    out->target[fill[from]++] = to;
            }
        }
        if (pass == 0) {
            for (int32_t u = 0; u < out->n; u++) {
                out->begin[u + 1] += out->begin[u];
                fill[u] = out->begin[u];
            }
            out->target = SMP_ARENA_NEW(scratch, int32_t, (size_t)out->begin[out->n]);
            if (!out->target)
                return SMP_ERR_NO_MEMORY;
        }
    }
    return SMP_OK;
}

/* Tarjan's components; component[] of each label, numbered as they close. */
static smp_status close_cycles(const cluster_graph *graph, smp_arena *scratch, int32_t *component,
                               int32_t *n_component)
{
    size_t n = (size_t)graph->n;
    int32_t *index = SMP_ARENA_NEW(scratch, int32_t, n); /* 0: not seen */
    int32_t *low = SMP_ARENA_NEW(scratch, int32_t, n);
    int32_t *open = SMP_ARENA_NEW(scratch, int32_t, n); /* Tarjan's stack */
    int32_t *path = SMP_ARENA_NEW(scratch, int32_t, n); /* depth-first path */
    int64_t *next = SMP_ARENA_NEW(scratch, int64_t, n);
    if (!index || !low || !open || !path || !next)
        return SMP_ERR_NO_MEMORY;
    int32_t seen = 0, n_open = 0, n_path = 0, found = 0;
    for (int32_t u = 0; u < graph->n; u++) {
        component[u] = -1;
        next[u] = graph->begin[u];
    }
    for (int32_t root = 0; root < graph->n; root++) {
        if (index[root])
            continue;
        path[n_path++] = root;
        while (n_path > 0) {
            int32_t u = path[n_path - 1];
            if (!index[u]) {
                index[u] = low[u] = ++seen;
                open[n_open++] = u;
            }
            if (next[u] < graph->begin[u + 1]) {
                int32_t v = graph->target[next[u]++];
                if (!index[v])
                    path[n_path++] = v;
                else if (component[v] < 0 && index[v] < low[u])
                    low[u] = index[v];
                continue;
            }
            n_path--;
            if (n_path > 0 && low[u] < low[path[n_path - 1]])
                low[path[n_path - 1]] = low[u];
            if (low[u] != index[u])
                continue;
            int32_t v;
            do {
                v = open[--n_open];
                component[v] = found;
            } while (v != u);
            found++;
        }
    }
    *n_component = found;
    return SMP_OK;
}

/* Renumbers acyclic labels topologically, the label with the lowest op first among the ready. */
static smp_status number_units(const smp_graph *graph, cluster_graph *units, smp_arena *scratch)
{
    size_t n = (size_t)units->n;
    int32_t *first = SMP_ARENA_NEW(scratch, int32_t, n);
    int32_t *wait = SMP_ARENA_NEW(scratch, int32_t, n);
    int32_t *number = SMP_ARENA_NEW(scratch, int32_t, n);
    smp_heap heap;
    SMP_TRY(smp_heap_init(&heap, scratch, units->n));
    if (!first || !wait || !number)
        return SMP_ERR_NO_MEMORY;
    for (int32_t op = graph->n_op - 1; op >= 0; op--)
        first[units->label[op]] = op;
    for (int64_t e = 0; e < units->begin[units->n]; e++)
        wait[units->target[e]]++;
    for (int32_t u = 0; u < units->n; u++) {
        if (wait[u] == 0)
            smp_heap_set(&heap, u, first[u]);
    }
    for (int32_t done = 0; heap.n > 0; done++) {
        int32_t u = smp_heap_pop(&heap);
        number[u] = done;
        for (int64_t e = units->begin[u]; e < units->begin[u + 1]; e++) {
            int32_t v = units->target[e];
            if (--wait[v] == 0)
                smp_heap_set(&heap, v, first[v]);
        }
    }
    for (int32_t op = 0; op < graph->n_op; op++)
        units->label[op] = number[units->label[op]];
    return SMP_OK;
}

/* Labels of all ops in units. */
static smp_status label_units(const smp_problem *problem, smp_arena *scratch, cluster_graph *units)
{
    const smp_graph *graph = problem->graph;
    SMP_TRY(merge_ops(problem, scratch, units));
    if (units->n == graph->n_op) /* file order is topological */
        return SMP_OK;
    SMP_TRY(connect_labels(graph, scratch, units));
    int32_t *component = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n);
    if (!component)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(close_cycles(units, scratch, component, &units->n));
    for (int32_t op = 0; op < graph->n_op; op++)
        units->label[op] = component[units->label[op]];
    SMP_TRY(connect_labels(graph, scratch, units));
    return number_units(graph, units, scratch);
}

static smp_status store_ops(const smp_graph *graph, const cluster_graph *labels, smp__units *units)
{
    units->n = labels->n;
    units->unit_of_op = SMP_ARENA_NEW(units->arena, int32_t, (size_t)graph->n_op);
    units->op_list = SMP_ARENA_NEW(units->arena, int32_t, (size_t)graph->n_op);
    units->op_begin = SMP_ARENA_NEW(units->arena, int64_t, (size_t)units->n + 2);
    if (!units->unit_of_op || !units->op_list || !units->op_begin)
        return SMP_ERR_NO_MEMORY;
    for (int32_t op = 0; op < graph->n_op; op++) {
        units->unit_of_op[op] = labels->label[op];
        units->op_begin[labels->label[op] + 2]++;
    }
    for (int32_t u = 0; u < units->n; u++)
        units->op_begin[u + 2] += units->op_begin[u + 1];
    for (int32_t op = 0; op < graph->n_op; op++)
        units->op_list[units->op_begin[labels->label[op] + 1]++] = op;
    return SMP_OK;
}

smp_status smp__units_build(const smp_problem *problem, smp__units **out)
{
    smp__obstacle obstacle;
    smp__units *units;
    SMP_TRY(smp__units_try(problem, &units, &obstacle));
    if (obstacle.kind != SMP__OBSTACLE_NONE) {
        smp__units_destroy(units);
        return problem->optional ? smp_fail(SMP_ERR_NO_FIT, "no pipeline")
                                 : smp__conflict_fail(problem);
    }
    *out = units;
    return SMP_OK;
}

smp_status smp__units_try(const smp_problem *problem, smp__units **out, smp__obstacle *obstacle)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    cluster_graph labels = {0};
    smp_arena *arena = smp_arena_create();
    smp_arena *scratch = smp_arena_create();
    smp__units *units = arena ? SMP_ARENA_NEW(arena, smp__units, 1) : NULL;
    if (!units || !scratch)
        goto done;
    units->arena = arena;
    smp_work_count(SMP_WORK_OP, (double)problem->graph->n_op + problem->graph->n_tensor);
    status = label_units(problem, scratch, &labels);
    if (status == SMP_OK)
        status = store_ops(problem->graph, &labels, units);
    if (status == SMP_OK)
        status = smp__units_connect(problem, units);
    if (status == SMP_OK)
        status = smp__units_pin(problem, units, obstacle);
done:
    smp_arena_destroy(scratch);
    if (status == SMP_OK)
        *out = units;
    else
        smp_arena_destroy(arena);
    return status;
}

void smp__units_destroy(smp__units *units)
{
    if (units)
        smp_arena_destroy(units->arena);
}

/* The constraints of a problem as a graph, of which any subset can be switched on. Internal to the
 * conflict search. */
#ifndef SMP_PARTITION_PROBLEM_CONFLICT_GRAPH_H
#define SMP_PARTITION_PROBLEM_CONFLICT_GRAPH_H

#include "partition/problem/conflict.h"
#include "partition/problem/order.h"

/* Nodes are the ops, then one per joiner (group, glue label, tied weight). Along an edge the stage
 * does not fall; a joiner has edges from and to each member. */
typedef struct smp__conflict_graph {
    const smp_problem *problem;
    int32_t n_op, n_join, n_node;
    int32_t n_element;              /* pins, then joiners */
    const smp__constraint *element; /* [n_element] */
    int32_t n_pin;
    bool *on;              /* [n_element] */
    int32_t *pin_element;  /* [n_op] or -1 */
    int64_t *member_begin; /* [n_join + 1] into member */
    int32_t *member;       /* ops, rising */
    int64_t *join_begin;   /* [n_op + 1] into join */
    int32_t *join;         /* joiners of an op */

    /* Of the last check: parts are the strongly connected components, numbered against the flow. */
    int32_t n_part;
    int32_t *part;       /* [n_node] or -1: a joiner that is off */
    int32_t *lo, *hi;    /* [n_part] stages that the pins leave */
    int32_t *matched;    /* [n_part] the stage that a part alone fills, or -1 */
    int failed_stage;    /* the first that no part fills; -1 */
    int32_t *part_order; /* [n_node] nodes by falling part */
    int64_t work;        /* nodes and edges looked at, over all checks */

    int32_t *index, *low, *open, *path, *count; /* scratch */
    int64_t *next;
    smp__heap heap;
} smp__conflict_graph;

/* All constraints are on. Everything is of `arena`. */
smp_status smp__conflict_graph_build(const smp_problem *problem, smp_arena *arena,
                                     smp__conflict_graph *out);

/* Do the constraints that are on allow a pipeline? Fills what is said above. */
bool smp__conflict_graph_check(smp__conflict_graph *graph);

/* Is the pin of an op on, and which stage is it? -1: free. */
static inline int32_t smp__conflict_pin(const smp__conflict_graph *g, int32_t op)
{
    int32_t element = g->pin_element[op];
    return element >= 0 && g->on[element] ? smp_problem_pin(g->problem, op) : -1;
}

/* Neighbours of a node, by index; joiners that are off give -1. */
static inline int64_t smp__conflict_degree(const smp__conflict_graph *g, int32_t node)
{
    const smp_graph *graph = g->problem->graph;
    if (node >= g->n_op)
        return g->member_begin[node - g->n_op + 1] - g->member_begin[node - g->n_op];
    int32_t out = graph->op[node].out;
    return graph->consumer_begin[out + 1] - graph->consumer_begin[out] + g->join_begin[node + 1] -
           g->join_begin[node];
}

static inline int32_t smp__conflict_neighbour(const smp__conflict_graph *g, int32_t node, int64_t i)
{
    const smp_graph *graph = g->problem->graph;
    if (node >= g->n_op)
        return g->member[g->member_begin[node - g->n_op] + i];
    int64_t begin = graph->consumer_begin[graph->op[node].out];
    int64_t n = graph->consumer_begin[graph->op[node].out + 1] - begin;
    if (i < n)
        return graph->consumer[begin + i].op;
    int32_t join = g->join[g->join_begin[node] + i - n];
    return g->on[g->n_pin + join] ? g->n_op + join : -1;
}

#endif

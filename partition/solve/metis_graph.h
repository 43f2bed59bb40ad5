/* The undirected graph that METIS sees, and its bisection into parts in pipeline order. */
#ifndef SMP_PARTITION_SOLVE_METIS_GRAPH_H
#define SMP_PARTITION_SOLVE_METIS_GRAPH_H

#include "partition/problem/unit_graph.h"

enum { SMP__METIS_CONSTRAINTS = 2 }; /* compute, memory */

/* Vertices are units, or runs of units where there are more than twice max_runs of them. */
typedef struct smp__metis_graph {
    const smp_problem *problem;
    const smp__units *units;
    int32_t n;
    int32_t *vertex_of;   /* [units->n] */
    double *place;        /* [n] mean unit index */
    int32_t *weight;      /* [n * SMP__METIS_CONSTRAINTS], each summing to about 2^24 */
    int64_t *begin;       /* [n + 1] */
    int32_t *neighbour;   /* each once */
    int32_t *edge_weight; /* of the bytes between two vertices */
} smp__metis_graph;

smp_status smp__metis_graph_build(const smp_problem *problem, const smp__units *units,
                                  int32_t max_runs, smp_arena *arena, smp__metis_graph *out);

/* Recursive bisection: part[n] in 0..n_stage-1, early parts first, sizes by the stages' speeds. Not
 * yet a legal pipeline, and parts may be empty. */
smp_status smp__metis_bisection(const smp__metis_graph *graph, int32_t *part);

#endif

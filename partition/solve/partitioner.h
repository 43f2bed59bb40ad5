/* What a partitioner is, and the list of them. */
#ifndef SMP_PARTITION_SOLVE_PARTITIONER_H
#define SMP_PARTITION_SOLVE_PARTITIONER_H

#include "graph/base/text.h"
#include "partition/problem/problem.h"

typedef struct smp_partitioner {
    const char *name; /* "linear", "exact" */
    const char *summary;
    /* Finds a legal partition; best effort on memory (out->fits says). `start`: the best partition
     * known, or NULL; a solver may begin there and uses it to prune, and must not return anything
     * worse. Sets lower_bound_us to at least smp_partition_lower_bound, bound, timed_out, solver
     * (start's, if it was not improved). SMP_ERR_NO_FIT with the reason if pins and groups allow no
     * pipeline of n_stage non-empty stages. */
    smp_status (*solve)(const smp_problem *problem, const smp_partition *start,
                        smp_partition **out);
    bool baseline; /* what others do, for comparison: only on request, never in the default */
    bool prover;   /* spends its time on the bound: run by smp_partition_prove or on request */
} smp_partitioner;

/* Every partitioner, smp__partitioner_<id>, in the order in which the default runs them and in
 * which they are offered. All else follows from a line here: declarations, table, help, tests. */
#define SMP_PARTITIONER_LIST(X)                                                                    \
    X(linear)                                                                                      \
    X(exact)                                                                                       \
    X(refine)                                                                                      \
    X(metis_kway)                                                                                  \
    X(metis_recursive)                                                                             \
    X(equal_layers)                                                                                \
    X(equal_parameters)

#define SMP_PARTITIONER_DECLARE(id) extern const smp_partitioner smp__partitioner_##id;
SMP_PARTITIONER_LIST(SMP_PARTITIONER_DECLARE)
#undef SMP_PARTITIONER_DECLARE

#define SMP_PARTITIONER_COUNT(id) +1
enum { SMP_N_PARTITIONER = SMP_PARTITIONER_LIST(SMP_PARTITIONER_COUNT) };
#undef SMP_PARTITIONER_COUNT

const smp_partitioner *smp_partitioner_find(const char *name); /* NULL if unknown */
const smp_partitioner *const *smp_partitioners(void);          /* NULL-terminated */
void smp_partitioner_put_names(smp_text *text);                /* "linear, exact, ..., or auto" */
/* NULL or known; else SMP_ERR_INPUT lists them. what: the option or key. */
smp_status smp_partitioner_check(const char *what, const char *name);

/* The default: runs the registered partitioners but baselines and provers, each from the best so
 * far (or only `name`, if not NULL), and keeps the best: one that fits before one that does not,
 * then the smaller bottleneck. Without tie_together, tied weights are tried both kept together and
 * split; a split tie is charged its gradient exchange once per step, divided by `microbatches`.
 * Stops early where the result meets the lower bound (to 0.2 % for more than 4000 ops). Millions of
 * ops are taken in short runs (partition/problem/coarse.h). Sets lower_bound_us. SMP_ERR_INPUT: a
 * pin outside the pipeline, an unknown name; SMP_ERR_NO_FIT: no pipeline of n_stage non-empty
 * stages exists. */
smp_status smp_partition_solve(const smp_problem *problem, const char *name, int microbatches,
                               smp_partition **out);

#endif

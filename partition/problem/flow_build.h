/* Shared by flow.c and flow_grad.c: the flow while it is being built, unsorted. */
#ifndef SMP_PARTITION_PROBLEM_FLOW_BUILD_H
#define SMP_PARTITION_PROBLEM_FLOW_BUILD_H

#include "partition/problem/flow.h"

typedef struct smp__flow_build {
    const smp_graph *graph;
    const int32_t *stage_of_op;
    int n_stage;
    int64_t batch;
    smp_arena *scratch;
    bool *backward;         /* [n_op], in the flow's arena */
    smp_transfer *transfer; /* malloc'ed, as the next two */
    smp_fold *fold;
    smp_fold_source *source;
    int32_t n_transfer, n_fold, n_source;
    size_t transfer_capacity, fold_capacity, source_capacity;
} smp__flow_build;

smp_status smp__flow_add_transfer(smp__flow_build *build, smp_transfer_kind kind, int32_t tensor,
                                  int32_t from, int32_t to, int32_t *index);

/* Fills build->backward, folds and gradient transfers. */
smp_status smp__flow_add_gradients(smp__flow_build *build);

#endif

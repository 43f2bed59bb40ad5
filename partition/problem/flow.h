/* What flows between stages for each micro-batch: activations, gradients, and the order in which
 * the gradients of a tensor with several consumers are added.
 *
 * The gradient of a tensor is the left fold of its consumers' contributions in one canonical order:
 * consumers in reverse op order, within an op by rising slot. That order does not depend on the
 * split. Where the consumers sit in several stages, the partial sum travels: each stage adds its
 * own contributions and sends one tensor on to the stage of the next consumer, the last one to the
 * producer (relay). If that tour would visit stages in other than falling order (branches whose
 * file order and stage order disagree), every remote consumer's contribution is sent to the
 * producer by itself and folded there. Either way the sum is the same bits as on one rank. */
#ifndef SMP_PARTITION_PROBLEM_FLOW_H
#define SMP_PARTITION_PROBLEM_FLOW_H

#include "graph/model/graph.h"

typedef enum smp_transfer_kind { SMP_TRANSFER_F, SMP_TRANSFER_B } smp_transfer_kind;

/* One tensor from one stage to another, once per micro-batch. */
typedef struct smp_transfer {
    smp_transfer_kind kind;
    int32_t tensor;
    int32_t from_stage;
    int32_t to_stage;
    int64_t bytes; /* per micro-batch */
} smp_transfer;

/* One contribution to a fold: a received partial sum, or the gradient that a local op gives. */
typedef struct smp_fold_source {
    int32_t transfer; /* index, or -1 */
    int32_t op;       /* graph op, or -1 */
    int32_t slot;
} smp_fold_source;

/* Sources are added in this order in the stage; the result is sent on or used by the producer. */
typedef struct smp_fold {
    int32_t tensor;
    int32_t stage;
    int32_t source_begin, source_end;
    int32_t transfer_out; /* -1: the producer lies in this stage */
} smp_fold;

/* A weight used by several stages: accumulators of all uses are exchanged at the reduction. */
typedef struct smp_tie {
    int32_t param;
    int32_t holder_begin, holder_end; /* into smp_flow.holder: stages, rising */
} smp_tie;

typedef struct smp_flow {
    int n_stage;
    int64_t batch;
    int32_t n_transfer, n_fold, n_source, n_tie;
    const smp_transfer *transfer; /* sorted by (kind, from, to, tensor, canonical order) */
    const smp_fold *fold;
    const smp_fold_source *source;
    const int32_t *out_begin; /* [n_stage + 1] into out_list: transfers that leave a stage */
    const int32_t *out_list;
    const int32_t *in_begin; /* [n_stage + 1] into in_list: transfers that reach a stage */
    const int32_t *in_list;
    const int32_t *fold_begin; /* [n_stage + 1] into fold (sorted by stage) */
    const int32_t *op_begin;   /* [n_stage + 1] into op_list: ops of a stage in graph order */
    const int32_t *op_list;
    const smp_tie *tie;
    const int32_t *holder;
    const int32_t *stage_of_op; /* copied */
    const bool *backward;       /* [n_op] the op takes part in the backward pass */
    smp_arena *arena;
    void *owned; /* malloc'ed, freed with it: source */
} smp_flow;

/* stage_of_op: [n_op], legal. Gradients flow only if graph->training. */
smp_status smp_flow_build(const smp_graph *graph, const int32_t *stage_of_op, int n_stage,
                          int64_t batch, smp_flow **out);
void smp_flow_destroy(smp_flow *flow); /* accepts NULL */

/* Does op `op`, whose flow->backward is `backward`, add to the gradient of its input `slot`? */
bool smp_flow_contributes(const smp_graph *graph, const bool *backward, int32_t op, int32_t slot);

#endif

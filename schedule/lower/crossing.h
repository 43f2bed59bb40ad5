/* Which stages exchange messages, seen from the ranks that hold them: what lowering, verifier and
 * simulator ask of a flow. Transfers between two stages of one rank are not messages.
 *
 * A message to the neighbouring stage (F: the next stage, B: the one before) is direct; others jump
 * over stages. */
#ifndef SMP_SCHEDULE_LOWER_CROSSING_H
#define SMP_SCHEDULE_LOWER_CROSSING_H

#include "partition/problem/flow.h"
#include "partition/problem/message.h"
#include "schedule/rules/program.h"

/* Arrays over stages are indexed by transfer kind, then stage. */
typedef struct smp__crossing {
    const smp_flow *flow;
    const int *rank_of; /* [n_stage], copied */
    int *stage_of;      /* [n_rank * chunks] stage of a rank's chunk */
    int *chunk_of;      /* [n_stage] */
    int n_rank, chunks;
    bool *sends[2];    /* `>` exists */
    bool *receives[2]; /* `<` exists */
    bool *direct[2];   /* the stage sends a direct message */
    bool *jumps[2];    /* the stage sends a message that jumps */
} smp__crossing;

/* Each rank holds `chunks` of the flow's n_rank * chunks stages: SMP_ERR_INPUT otherwise. Lives in
 * the arena. O(stages + transfers). */
smp_status smp__crossing_build(smp_arena *arena, const smp_flow *flow, const int *stage_rank,
                               int n_rank, int chunks, smp__crossing *out);

/* What an action on activations (F, or their `>` and `<`) or on gradients moves. */
static inline smp_transfer_kind smp__crossing_kind(smp_action_kind kind)
{
    bool forward = kind == SMP_ACTION_F || kind == SMP_ACTION_SEND_F || kind == SMP_ACTION_RECV_F;
    return forward ? SMP_TRANSFER_F : SMP_TRANSFER_B;
}

static inline smp_action_kind smp__crossing_send(smp_transfer_kind kind)
{
    return kind == SMP_TRANSFER_F ? SMP_ACTION_SEND_F : SMP_ACTION_SEND_B;
}

static inline smp_action_kind smp__crossing_receive(smp_transfer_kind kind)
{
    return kind == SMP_TRANSFER_F ? SMP_ACTION_RECV_F : SMP_ACTION_RECV_B;
}

/* The stage that a stage's direct message of a kind goes to; may lie outside 0 .. n_stage-1. */
static inline int smp__crossing_next(smp_transfer_kind kind, int stage)
{
    return kind == SMP_TRANSFER_F ? stage + 1 : stage - 1;
}

static inline bool smp__crossing_is_direct(const smp_transfer *t)
{
    return t->to_stage == smp__crossing_next(t->kind, t->from_stage);
}

static inline bool smp__crossing_is_message(const smp__crossing *crossing, const smp_transfer *t)
{
    return crossing->rank_of[t->from_stage] != crossing->rank_of[t->to_stage];
}

/* Links: the ordered pairs of ranks that exchange messages, numbered by sender, then receiver.
 * link_of: [n_transfer], -1 where there is no message. Lives in the arena. O(n log n). */
smp_status smp__crossing_links(const smp__crossing *crossing, smp_arena *arena, int32_t **link_of,
                               int *n_link);

/* us: [n * n_transfer] what each transfer takes between the devices of n of the `ddp` replicas, 0
 * where it is no message. device: [ddp * n_rank]. Replicas send the same message at the same time:
 * where the devices of a node share adapters, those that leave or reach the same node wait for each
 * other. O(n transfers), with shared adapters + O(transfers log transfers + links ddp + nodes). */
smp_status smp__crossing_times(const smp__crossing *crossing, const smp_cluster *cluster,
                               const int *device, int ddp, const int *replica, int n,
                               smp_arena *scratch, double *us);

/* Does the stage's `<` wait for a direct message? Fills the stage that sends it. */
bool smp__crossing_source(const smp__crossing *crossing, smp_transfer_kind kind, int stage,
                          int *source);

#endif

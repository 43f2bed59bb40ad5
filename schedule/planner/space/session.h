/* A planning session: costs, and flow and layouts of the partition at hand. */
#ifndef SMP_SCHEDULE_PLANNER_SPACE_SESSION_H
#define SMP_SCHEDULE_PLANNER_SPACE_SESSION_H

#include "schedule/memory/memory.h"
#include "schedule/plan/gradient_blocks.h"
#include "schedule/planner/space/budget.h"
#include "schedule/planner/space/request.h"
#include "schedule/simulate/simulate.h"

/* A planning session, and what a configuration costs in it; shared by the planner's files. */

/* What missed the memory by least, for advice (schedule/planner/advice/advice.c). */
typedef struct smp__nearest {
    bool known;
    int64_t peak_bytes;  /* of the rank that misses; of it */
    int64_t state_bytes; /* what it keeps for ever */
    int64_t limit_bytes; /* and has */
} smp__nearest;

/* A plan that is made to see what a change would bring, not to be used: it is not verified, as its
 * graph may not be the one that was read. */
typedef struct smp__trial {
    int32_t faster_op; /* takes half the time; -1: none */
    bool patient;      /* goes on beyond the deadline until something fits */
    bool brief;        /* for comparison with other trials: nothing is improved or proven */
    /* What bounds say is not below that, in what is minimised, is left out: per sample, or a peak;
     * 0: nothing is. */
    double most;
    bool *left_out; /* set if something was; or NULL */
} smp__trial;

/* Flow and layouts follow from the partition; the search evaluates many configurations of one
 * partition in a row, so those of the last one are kept. */
typedef struct smp__held {
    int32_t *stage;  /* [n_op] the partition that flow and layout are of, */
    bool *recompute; /* [n_op] and what recomputes in it, */
    bool *offload;   /* [n_op] and what is offloaded: */
    bool *travels;   /* [n_stage] whether anything is, */
    bool any_travels;
    int64_t *offload_bytes; /* [n_stage] and how much of one micro-batch; < 0: not known */
    int n_stage;            /* 0: none */
    smp_flow *flow;
    smp_layout **layout; /* [2 * n_stage] whole, split; NULL: not made yet */
} smp__held;

typedef struct smp__planner {
    smp_search_request request; /* as asked for, with `together` as below */
    smp__budget budget;
    int32_t *together; /* owned; NULL: the request's */
    smp_costs *costs;
    smp__held held;
    smp_memo peaks;    /* of kinds of ranks: bytes, host bytes (rank_peaks.c) */
    smp_memo packings; /* of work areas (smp_layout_measure) */
    bool any_shard;    /* degrees of sharding are searched; the request's is what does without */
    bool few_shards;   /* of them few (request.h) */
    bool any_states;   /* ... and the optimizer's states with them in host memory or not */
    bool any_prefetch; /* it may choose how far ahead weights are gathered */
    const smp__trial *trial; /* NULL: for a plan that is to be used */
    bool left_out;           /* something, for what the trial has to beat */
    smp__nearest nearest;    /* of the first search in which nothing fits */
} smp__planner;

static inline bool smp__is_brief(const smp__planner *planner)
{
    return planner->trial && planner->trial->brief;
}

/* The request's `together`, [n_op], with what the target runs as one kernel, owned by the caller;
 * NULL: nothing is (together.c). */
smp_status smp__keep_together(const smp_search_request *request, int32_t **out);
smp_status smp__planner_open(const smp_search_request *request, smp__planner *planner);
void smp__planner_close(smp__planner *planner);

/* Without shards. active: bound on live micro-batches; 0: the rule's own. */
smp_schedule_shape smp__planner_shape(const smp__planner *planner, int pipeline, int chunks,
                                      int microbatches, int active);
/* Blocks of gradients of all replicas: as asked for, else one for each. */
static inline int smp__planner_blocks(const smp__planner *planner, int ddp)
{
    return planner->request.options.gradient_blocks > 0 ? planner->request.options.gradient_blocks
                                                        : ddp;
}
/* Global batches on `ddp` replicas are multiples of `samples`, of which a program has
 * `microbatches`. size: samples of a micro-batch. */
typedef struct smp__least_batch {
    int64_t samples;
    int microbatches;
} smp__least_batch;
smp__least_batch smp__least_batch_of(const smp_search_request *request, int64_t size, int ddp);
/* So many replicas have as many samples as all have: fewer where some have a block less. */
static inline double smp__planner_replicas(const smp__planner *planner, int ddp)
{
    const int blocks = smp__planner_blocks(planner, ddp);
    return blocks < ddp ? ddp : (double)blocks / smp_gradient_share(blocks, ddp);
}
/* Can the schedule run with these numbers? Records why not. */
smp_status smp__planner_check(const smp_schedule_kind *kind, const smp_schedule_shape *shape);
/* Makes the candidate's partition the one that the planner holds: flow, layouts and what travels.
 * offload: the candidate's, [n_op]; NULL: nothing. */
smp_status smp__planner_hold(smp__planner *planner, const smp_partition *partition,
                             const bool *offload);
void smp__planner_drop(smp__planner *planner); /* it holds none */
/* Layout of a stage of that partition under a program; borrowed. */
smp_status smp__planner_layout(smp__planner *planner, int stage, const smp_program *program,
                               int chunk, const smp_layout **out);

#endif

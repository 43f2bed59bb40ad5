/* A configuration in one partition, and what it costs. */
#ifndef SMP_SCHEDULE_PLANNER_FIT_CANDIDATE_H
#define SMP_SCHEDULE_PLANNER_FIT_CANDIDATE_H

#include "schedule/planner/space/request.h"

/* One configuration, evaluated. */
typedef struct smp_candidate {
    int pipeline, ddp, chunks, microbatches;
    double replicas; /* smp__planner_replicas */
    int active;      /* bound on live micro-batches; 0: the rule's own */
    int lag;         /* likewise, on those that wait for W */
    smp_sharding sharding;
    int64_t microbatch_size;
    const char *schedule; /* registry name */
    smp_placement placement;
    int *device;              /* [ddp * pipeline]: device of replica d, rank r at d*pipeline+r */
    int *stage_rank;          /* [pipeline * chunks] */
    int64_t *rank_peak_bytes; /* [pipeline] */
    smp_partition *partition;
    int n_recompute;         /* stages that recompute */
    bool *offload;           /* [n_op] of what the stash travels; NULL: of nothing */
    int n_offload;           /* stages of which something does */
    int horizon;             /* of it */
    const char *solver;      /* of the partition; static text */
    double bottleneck_us;    /* of the partition */
    double step_us;          /* simulated */
    bool is_least;           /* no partition has a shorter step here: all were looked at */
    double step_bound_us[2]; /* what a step of any partition takes at least: in the order of the
                                schedule, and in any order (step_bound.c); of the winner, or 0 */
    double give_up_us;       /* peaks stay 0 if the step takes longer: it is not listed; 0: never */
    int64_t peak_bytes;      /* highest over ranks, exact */
    bool fits;
    int worst_rank; /* rank with the least room, and by how much it misses (or keeps) */
    int64_t room_bytes;
} smp_candidate;

void smp_candidate_destroy(smp_candidate *candidate); /* accepts NULL; frees what it owns */

/* Stages that recompute their activations. */
static inline int smp__count_recomputing(const smp_partition *partition)
{
    int n = 0;
    for (int s = 0; s < partition->n_stage; s++)
        n += partition->load[s].recompute;
    return n;
}

#endif

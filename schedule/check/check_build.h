/* Shared by the files of the plan check: what a sketch and the options agree on, and its score. */
#ifndef SMP_SCHEDULE_CHECK_CHECK_BUILD_H
#define SMP_SCHEDULE_CHECK_CHECK_BUILD_H

#include "schedule/check/check.h"
#include "schedule/planner/fit/given_plan.h"

/* A plan of the planner's, and what it was asked for. Kept until the check is done. */
typedef struct smp__planned {
    struct smp__planned *next; /* made before it */
    smp_search_request request;
    smp_plan *plan;
    const int32_t *stage;    /* [n_op] of its partition, */
    const bool *recompute;   /* [n_op] and what recomputes there: */
    smp_recompute treatment; /* nothing, everything, or some */
    double lower_bound_us;   /* on its bottleneck, whatever the order and the memory, */
    const char *bound;       /* and what proves it; static text */
    double least_us;         /* per sample: nothing that was looked at takes less; 0: not known */
    bool timed_out;
} smp__planned;

typedef struct smp__check_build {
    smp_search_request request; /* devices, ddp, micro-batch size, placement: as agreed */
    const smp_sketch *sketch;
    smp_check *out;
    const smp_schedule_kind *kind;
    smp_schedule_shape shape;
    bool same_numbers;              /* as in the sketch: its programs are for them */
    bool by_rule;                   /* ranks are as the schedule itself places stages */
    int32_t *stage;                 /* [n_op] */
    bool *offload;                  /* [n_op] of what the stash travels, */
    int horizon;                    /* and how far ahead; 0: nothing does */
    bool other_memory;              /* more is in host memory than the sketch says */
    int *rank;                      /* [n_stage] pipeline rank of each stage */
    smp__planned *planned;          /* last made first */
    const smp__planned *same, *any; /* of the two plans to compare with; NULL: none fits */
    smp_arena *arena;               /* scratch */
} smp__check_build;

static inline bool smp__check_is_legal(const smp__check_build *b)
{
    return b->out->findings.n_level[SMP_FINDING_ILLEGAL] == 0;
}

static inline bool smp__check_fits(const smp__check_build *b)
{
    return smp__check_is_legal(b) && b->out->findings.n_level[SMP_FINDING_UNFIT] == 0;
}

/* What the planner makes of a request of this check; NULL: nothing fits, the last error says why.
 * Searched for only where no plan made before answers it (schedule/check/check_plans.c). trial: it
 * is not shown, and there is none if there is no time for it. */
smp_status smp__check_plan(smp__check_build *b, const smp_search_request *request, bool trial,
                           const smp__planned **out);
/* All but the two that the result has. */
void smp__check_plans_free(smp__check_build *b);
/* Whether a partition recomputes nothing, everything, or neither (auto). */
smp_recompute smp__check_treatment(const smp_partition *partition);
/* Whether it makes a difference which device does what. */
bool smp__check_devices_differ(const smp_cluster *cluster);

/* A finding where a rank's program goes beyond a bound that was asked for: on live micro-batches,
 * or on those that wait for W (schedule/check/check_bounds.c). program: [pipeline], verified. */
smp_status smp__check_bounds(const smp__check_build *b, const smp_program *program);

/* By how much each part of a plan that is legal and fits falls short
 * (schedule/check/check_parts.c). */
smp_status smp__check_parts(smp__check_build *b);

/* Fills the partition and, unless programs are wrong, the plan with its prediction; then, of a
 * legal one, the planner's own plans and the bound. Findings where programs or memory are wrong. */
smp_status smp__check_score(smp__check_build *b);

#endif

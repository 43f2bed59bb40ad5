/* Shared by the files of the plan check: what a sketch and the options agree on, and its score. */
#ifndef SMP_SCHEDULE_CHECK_CHECK_BUILD_H
#define SMP_SCHEDULE_CHECK_CHECK_BUILD_H

#include "schedule/check/check.h"
#include "schedule/planner/configs.h"

typedef struct smp__check_build {
    smp_search_request request; /* devices, ddp, micro-batch size, placement: as agreed */
    const smp_sketch *sketch;
    smp_check *out;
    const smp_schedule_kind *kind;
    smp_schedule_shape shape;
    bool same_numbers; /* as in the sketch: its programs are for them */
    bool by_rule;      /* ranks are as the schedule itself places stages */
    int32_t *stage;    /* [n_op] */
    int *rank;         /* [n_stage] pipeline rank of each stage */
    smp_arena *arena;  /* scratch */
} smp__check_build;

static inline bool smp__check_is_legal(const smp__check_build *b)
{
    return b->out->findings.n_level[SMP_FINDING_ILLEGAL] == 0;
}

static inline bool smp__check_fits(const smp__check_build *b)
{
    return smp__check_is_legal(b) && b->out->findings.n_level[SMP_FINDING_UNFIT] == 0;
}

/* A plan as the only configuration of a planner. */
typedef struct smp__scoring {
    smp__check_build *b;
    smp__planner planner;
    smp__configs configs; /* of one: */
    smp__arrangement arrangement;
    smp__config config;
} smp__scoring;

/* Closed with smp__planner_close, also where it fails. */
smp_status smp__scoring_open(smp__check_build *b, smp__scoring *out);
/* From now on with these devices and ranks of stages, rank: [n_stage], borrowed. */
smp_status smp__scoring_place(smp__scoring *s, smp_placement placement, const int *listed,
                              const int *rank);

/* By how much each part of a plan that is legal and fits falls short (schedule/check/check_parts.c). */
smp_status smp__check_parts(smp__check_build *b);

/* Fills the partition and, unless programs are wrong, the plan with its prediction; then, of a legal
 * one, the planner's own plans and the bound. Findings where programs or memory are wrong. */
smp_status smp__check_score(smp__check_build *b);

#endif

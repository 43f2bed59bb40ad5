/* Shared by the files of the plan check: what a sketch and the options agree on, and its score. */
#ifndef SMP_SCHEDULE_CHECK_CHECK_BUILD_H
#define SMP_SCHEDULE_CHECK_CHECK_BUILD_H

#include "schedule/check/check.h"

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

/* Fills the partition and, unless programs are wrong, the plan with its prediction; then, of a legal
 * one, the planner's own plans and the bound. Findings where programs or memory are wrong. */
smp_status smp__check_score(smp__check_build *b);

#endif

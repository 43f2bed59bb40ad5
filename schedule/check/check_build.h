/* Shared by the files of the plan check: the numbers that a sketch and the options agree on, and the
 * steps from them to a scored plan. */
#ifndef SMP_SCHEDULE_CHECK_CHECK_BUILD_H
#define SMP_SCHEDULE_CHECK_CHECK_BUILD_H

#include "schedule/check/check.h"

typedef struct smp__check_build {
    const smp_search_request *request;
    const smp_sketch *sketch;
    const smp_cluster *cluster;
    smp_check *out;
    const smp_costs *costs;
    const smp_schedule_kind *kind;
    smp_schedule_shape shape;
    int ddp, n_stage;
    int64_t microbatch_size;
    smp_placement placement;
    bool same_numbers; /* as in the sketch: its programs are for them */
    int32_t *stage;    /* [n_op] */
    int *rank;         /* [n_stage] pipeline rank of each stage */
    bool by_rule;      /* ranks are as the schedule itself places stages */
    int *device;       /* [ddp * pipeline] */
    smp_arena *arena;  /* scratch */
} smp__check_build;

/* Numbers, then ranks; findings where they cannot be. */
smp_status smp__check_numbers(smp__check_build *b, bool use_placement);
smp_status smp__check_ranks(smp__check_build *b);

/* Loads of the stages: fills out->partition. */
smp_status smp__check_loads(smp__check_build *b);
/* Programs, prediction, memory: fills out->plan; findings where programs or memory are wrong. */
smp_status smp__check_plan(smp__check_build *b);
/* The planner's own plans, and the bound. */
smp_status smp__check_compare(smp__check_build *b);

/* Bytes of the smallest device that stands for a pipeline rank. */
int64_t smp__check_limit(const smp__check_build *b, int rank);

#endif

/* The schedule interface: one static smp_schedule_kind per file, listed in
 * schedule/rules/schedule_registry.c. A schedule orders the compute actions of each rank; sends,
 * receives, reductions and the optimizer are inserted by the lowering. */
#ifndef SMP_SCHEDULE_RULES_SCHEDULE_H
#define SMP_SCHEDULE_RULES_SCHEDULE_H

#include "schedule/rules/program.h"

typedef struct smp_schedule_shape {
    int pipeline; /* ranks */
    int chunks;   /* stages per rank */
    int microbatches;
    bool training; /* false: forwards only */
    int active;    /* most live micro-batches, for schedules that take a bound; 0: their default */
    int group;     /* micro-batches per group of chunked schedules; 0: pipeline */
} smp_schedule_shape;

typedef struct smp_schedule_kind {
    const char *name;
    const char *summary;
    /* SMP_ERR_INPUT saying what can be; NULL: every shape with all numbers >= 1. */
    smp_status (*check)(const smp_schedule_shape *shape);
    /* NULL: stage mod pipeline. */
    int (*stage_rank)(const smp_schedule_shape *shape, int stage);
    /* Appends the rank's compute actions. For each chunk, F actions and B (or W) actions stand in
     * micro-batch order: that is what makes training bit-identical and messages first in, first
     * out. */
    smp_status (*order)(const smp_schedule_shape *shape, int rank, smp_program *program);
    /* Peak number of live (micro-batch, chunk) pairs on a rank, from F to B (or W), as a formula. */
    int (*live)(const smp_schedule_shape *shape, int rank);
    /* Plans of this name may place their stages at will, `chunks` on each rank. */
    bool any_placement;
} smp_schedule_kind;

/* Every name that may stand in a plan: the rules, and "auto" (schedule/auto/list_schedule.h). */
const smp_schedule_kind *smp_schedule_find(const char *name); /* NULL if unknown */
/* The rules, which know orders without knowing costs; NULL-terminated. */
const smp_schedule_kind *const *smp_schedules(void);

/* With the defaults filled in. */
int smp_schedule_stage_rank(const smp_schedule_kind *kind, const smp_schedule_shape *shape,
                            int stage);
/* Stage of a rank's chunk: the chunk-th stage in forward order that the rank holds. -1: none. */
int smp_schedule_stage_of(const smp_schedule_kind *kind, const smp_schedule_shape *shape, int rank,
                          int chunk);

#endif

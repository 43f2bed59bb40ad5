/* Why pins and groups allow no pipeline: the smallest set of them that already contradicts itself.
 *
 * Pins, groups, glue and (tie_together) tied weights are the constraints that a user can lift; the
 * flow of tensors, along which the stage never falls, and that no stage is empty, are facts. */
#ifndef SMP_PARTITION_PROBLEM_CONFLICT_H
#define SMP_PARTITION_PROBLEM_CONFLICT_H

#include "partition/problem/problem.h"

typedef enum smp__constraint_kind {
    SMP__CONSTRAINT_PIN,      /* index: op */
    SMP__CONSTRAINT_GROUP,    /* index: group of the graph */
    SMP__CONSTRAINT_TOGETHER, /* index: label */
    SMP__CONSTRAINT_TIE       /* index: parameter */
} smp__constraint_kind;

typedef struct smp__constraint {
    smp__constraint_kind kind;
    int32_t index;
} smp__constraint;

/* One op of a chain that no stage number can fall along, and how it comes to the next one: as the
 * producer of what that reads (via -1), or through joiner[via], which keeps both together. */
typedef struct smp__chain_step {
    int32_t op;
    int32_t via;
} smp__chain_step;

typedef struct smp__conflict {
    int32_t n; /* 0: a pipeline exists, or the ops alone are too few */
    const smp__constraint
        *element;                  /* all are needed: without any one, the others have a pipeline */
    bool smallest;                 /* no smaller set contradicts itself; false: not proven */
    const smp__constraint *joiner; /* groups and the like, for smp__chain_step.via */
    int32_t n_step;                /* two pins against the flow: from the later stage to the */
    const smp__chain_step *step;   /* earlier one; else 0 */
    int32_t n_other;               /* a chain beside a smaller set that is none; else 0 */
    const smp__chain_step *other;
    bool crowded;           /* too few parts for some stages; then: */
    int32_t n_part;         /* parts that can lie in crowded stages, one too few */
    const int32_t *part_op; /* [n_part] first op of each */
    int32_t n_starved;      /* those stages */
    const int32_t *starved; /* rising */
} smp__conflict;

/* Does any pipeline of n_stage non-empty stages keep the constraints? O(n log n + edges). */
smp_status smp__conflict_feasible(const smp_problem *problem, bool *feasible);

/* Pins have been checked to lie in the pipeline. Everything in *out is of `arena`. Bounded work: on
 * large models the set may be one that is only known not to lose any element. */
smp_status smp__conflict_find(const smp_problem *problem, smp_arena *arena, smp__conflict *out);

/* Finds the conflict and records it as SMP_ERR_NO_FIT, with the places of pins and groups. */
smp_status smp__conflict_fail(const smp_problem *problem);

#endif

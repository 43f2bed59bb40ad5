/* Why pins and what has to stay together allow no pipeline: some of them that contradict each
 * other, none of which could be left out. The flow of tensors, along which the stage never falls,
 * and that no stage is empty, are facts; these constraints are what a user can lift. */
#ifndef SMP_PARTITION_PROBLEM_CONFLICT_H
#define SMP_PARTITION_PROBLEM_CONFLICT_H

#include "partition/problem/unit_graph.h"

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

typedef struct smp__conflict {
    int32_t n; /* 0: the stages are more than the ops */
    const smp__constraint *element;
    bool minimal; /* without any one of them, the others have a pipeline; else not proven */
    smp__obstacle obstacle; /* what they run into */
} smp__conflict;

/* For a problem that has no pipeline. Everything in *out is of `arena`. Bounded work. */
smp_status smp__conflict_find(const smp_problem *problem, smp_arena *arena, smp__conflict *out);

/* Finds the conflict and records it as SMP_ERR_NO_FIT, with the places of pins and groups. */
smp_status smp__conflict_fail(const smp_problem *problem);

#endif

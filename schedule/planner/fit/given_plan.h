/* A plan that is given, in stages, ranks and order: what it costs. The planner evaluates it as the
 * only configuration there is. */
#ifndef SMP_SCHEDULE_PLANNER_FIT_GIVEN_PLAN_H
#define SMP_SCHEDULE_PLANNER_FIT_GIVEN_PLAN_H

#include "schedule/planner/fit/fit.h"

typedef struct smp_given_plan {
    smp__planner planner;
    const smp_schedule_kind *schedule;
    smp_schedule_shape shape;
    smp__configs configs; /* of one: */
    smp__arrangement arrangement;
    smp__config config;
} smp_given_plan;

/* Under a schedule in these numbers, [shape->pipeline * shape->chunks] stages, of which nothing is
 * placed yet. What the request keeps together is not asked: who writes a plan by hand may cut a
 * pair of ops apart. Costs are those of the request. The arena is borrowed. */
smp_status smp_given_plan_open(const smp_search_request *request, const smp_schedule_kind *schedule,
                               const smp_schedule_shape *shape, smp_arena *arena,
                               smp_given_plan *out);
void smp_given_plan_close(smp_given_plan *given); /* also of one that did not open */
/* From now on with these devices and ranks of stages, rank: [n_stage], borrowed. */
smp_status smp_given_plan_place(smp_given_plan *given, smp_placement placement, const int *listed,
                                const int *rank);
/* The problem that its stages solve, where it is placed. */
smp_status smp_given_plan_problem(smp_given_plan *given, smp_problem *out);
/* The plan with these stages, of which `offload` [n_op] (NULL: nothing) travels so far ahead; all
 * is borrowed. */
smp_candidate smp_given_plan_candidate(const smp_given_plan *given, smp_partition *partition,
                                       bool *offload, int horizon);
/* What it costs, as smp__planner_evaluate. program: [pipeline], taken over. */
smp_status smp_plan_evaluate(smp_given_plan *given, const smp_candidate *candidate,
                             smp_program *program, bool exactly, smp__evaluation *out);

#endif

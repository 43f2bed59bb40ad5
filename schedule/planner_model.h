/* Shared by planner.c and planner_model.c: what a configuration costs, for the search. */
#ifndef SMP_SCHEDULE_PLANNER_MODEL_H
#define SMP_SCHEDULE_PLANNER_MODEL_H

#include "schedule/layout.h"
#include "schedule/simulate.h"

/* Flow and layouts follow from the partition alone; the search evaluates many configurations of one
 * partition in a row, so those of the last one are kept. */
typedef struct smp__planner {
    const char **names; /* of all schedules, NULL-terminated */
    int active, group;  /* of every smp_schedule_shape */
    int32_t *stage;     /* [n_op] the partition that flow and layout are of */
    int n_stage;        /* 0: none */
    smp_flow *flow;
    smp_layout **layout; /* [n_stage] */
} smp__planner;

/* One configuration in full. */
typedef struct smp__evaluation {
    smp_program *program; /* [pipeline] */
    int pipeline;
    smp_simulation *simulation;
    int64_t *peak_bytes; /* [pipeline] */
} smp__evaluation;

smp_status smp__planner_open(smp__planner *planner, int active, int group);
void smp__planner_close(smp__planner *planner);

/* The search's view of the schedules; context is the planner. */
smp_schedule_model smp__planner_model(smp__planner *planner);

/* Lowers, simulates and plans the memory of a candidate that has its partition. */
smp_status smp__planner_evaluate(smp__planner *planner, const smp_search_request *request,
                                 const smp_costs *costs, const smp_candidate *candidate,
                                 smp__evaluation *out);
void smp__evaluation_free(smp__evaluation *evaluation);

#endif

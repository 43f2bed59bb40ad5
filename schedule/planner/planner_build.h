/* Shared by planner.c and candidate_cost.c: what a configuration costs, for the search. */
#ifndef SMP_SCHEDULE_PLANNER_PLANNER_BUILD_H
#define SMP_SCHEDULE_PLANNER_PLANNER_BUILD_H

#include "schedule/memory/layout.h"
#include "schedule/planner/planner.h"
#include "schedule/simulate/simulate.h"

/* Peak of one kind of rank. */
typedef struct smp__peak {
    bool used;
    uint64_t hash[2];
    int64_t bytes;
} smp__peak;

/* Hash table, open addressing; capacity is a power of two. */
typedef struct smp__peaks {
    smp__peak *item;
    size_t n, capacity;
} smp__peaks;

/* Flow and layouts follow from the partition; the search evaluates many configurations of one
 * partition in a row, so those of the last one are kept. */
typedef struct smp__planner {
    const char **names; /* of all schedules, NULL-terminated */
    int active, group;  /* of every smp_schedule_shape */
    int32_t *stage;     /* [n_op] the partition that flow and layout are of */
    int n_stage;        /* 0: none */
    smp_flow *flow;
    smp_layout **layout; /* [4 * n_stage] by mode; NULL: not made yet */
    smp__peaks peaks;
} smp__planner;

/* One configuration in full. */
typedef struct smp__evaluation {
    smp_program *program; /* [pipeline] */
    int pipeline;
    smp_simulation *simulation;
    int64_t *peak_bytes; /* [pipeline] */
    bool given_up;       /* takes longer than the candidate may: peak_bytes is not known */
} smp__evaluation;

smp_status smp__planner_open(smp__planner *planner, int active, int group);
void smp__planner_close(smp__planner *planner);

/* The search's view of the schedules; context is the planner. */
smp_schedule_model smp__planner_model(smp__planner *planner);

/* Lowers, simulates and plans the memory of a candidate that has its partition. exactly: the memory
 * of every rank is planned; else that of every kind of rank, unless the step takes too long. */
smp_status smp__planner_evaluate(smp__planner *planner, const smp_search_request *request,
                                 const smp_costs *costs, const smp_candidate *candidate,
                                 bool exactly, smp__evaluation *out);
/* The same with programs of the caller's, which are taken over; memory exactly. */
smp_status smp__planner_evaluate_programs(smp__planner *planner, const smp_search_request *request,
                                          const smp_costs *costs, const smp_candidate *candidate,
                                          smp_program *program, smp__evaluation *out);
void smp__evaluation_free(smp__evaluation *evaluation);

/* What the simulator needs of a candidate whose partition the planner holds. Arrays live in `arena`;
 * `program` is left NULL. */
smp_status smp__planner_simulation_input(const smp__planner *planner,
                                         const smp_search_request *request, const smp_costs *costs,
                                         const smp_candidate *candidate, smp_arena *arena,
                                         smp_simulation_input *out);
/* Least memory of the devices that stand for a pipeline rank, one in each replica. */
int64_t smp__planner_limit(const smp_search_request *request, const smp_candidate *candidate,
                           int rank);

/* Looks for a better order of actions than that of the search's winner, whose evaluation is exact
 * (schedule/planner/try_auto.c). out->taken: evaluation was replaced by that of schedule "auto". Does
 * nothing where the request fixes the schedule or asks for something else than speed. */
smp_status smp__planner_auto(smp__planner *planner, const smp_search_request *request,
                             const smp_costs *costs, const smp_candidate *best,
                             smp__evaluation *evaluation, smp_auto_outcome *out);

smp_schedule_shape smp__planner_shape(const smp__planner *planner,
                                      const smp_search_request *request,
                                      const smp_candidate *candidate);
/* Layout of a stage of the planner's partition under a program; borrowed. */
smp_status smp__planner_layout(smp__planner *planner, const smp_search_request *request,
                               bool recompute, int stage, const smp_program *program, int chunk,
                               const smp_layout **out);
/* Peaks of all ranks, [pipeline]; the planner holds the candidate's partition
 * (schedule/planner/rank_peaks.c). */
smp_status smp__planner_peaks(smp__planner *planner, const smp_search_request *request,
                              const smp_candidate *candidate, const smp_program *program,
                              bool exactly, int64_t *peak_bytes);
/* What the ranks of a candidate need at least: see smp_schedule_model.least_bytes. */
smp_status smp__planner_least_bytes(smp__planner *planner, const smp_search_request *request,
                                    const smp_candidate *candidate, int64_t *bytes);
void smp__peaks_free(smp__peaks *peaks);

/* What the request keeps together (request->glue) and the pairs of ops that the target runs as one
 * kernel (schedule/planner/keep_together.c): [n_op], malloc'ed; NULL if there are no such pairs. */
smp_status smp__planner_keep_together(const smp_search_request *request, int32_t **out);

#endif

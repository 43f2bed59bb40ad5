/* From the costs of a plan to the programs of schedule "auto": the best fixed rule and list
 * scheduling, both judged by the simulator that makes the plan's prediction. */
#ifndef SMP_SCHEDULE_AUTO_AUTO_SCHEDULE_H
#define SMP_SCHEDULE_AUTO_AUTO_SCHEDULE_H

#include "schedule/auto/list_schedule.h"
#include "schedule/simulate/simulate.h"

typedef struct smp_auto_input {
    smp_simulation_input simulation; /* of a training step; `program` is not read */
    const int64_t *stash_bytes;      /* [n_stage] of a live micro-batch */
    const int64_t *limit_bytes;      /* [pipeline] for all stashes of a rank; NULL: no limit */
    /* The exact check of the programs of all ranks, `peak_bytes` of the memory planner, say; NULL:
     * the limit is exact enough. */
    smp_status (*fits)(void *context, const smp_program *programs, bool *fits);
    void *context;
    double effort;     /* see smp_list_input */
    double deadline_s; /* smp_work_s(); 0: never */
} smp_auto_input;

typedef struct smp_auto_result {
    double step_us;        /* simulated, of the programs given out */
    double lower_bound_us; /* no order of compute actions is faster */
    const char *rule;      /* the best fixed rule on these stages; NULL: none fits */
    double rule_us;        /* its simulated step */
    bool found;            /* the programs are faster than the rule's; false: they are the rule's */
} smp_auto_result;

/* programs: [pipeline], filled and lowered; freed by the caller. Never slower than the best fixed
 * rule of the registry that places the stages so, with the bounds on live micro-batches that matter
 * (default, p, 2p-1, and as many as the limit holds). The same input gives the same programs,
 * unless the deadline stops it. SMP_ERR_NO_FIT if nothing fits. */
smp_status smp_auto_schedule(const smp_auto_input *input, smp_program *programs,
                             smp_auto_result *result);

#endif

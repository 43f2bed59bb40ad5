/* The schedule "auto": an order of compute actions found for the costs of this plan's stages,
 * within a memory limit, by list scheduling and improvement. */
#ifndef SMP_SCHEDULE_AUTO_LIST_SCHEDULE_H
#define SMP_SCHEDULE_AUTO_LIST_SCHEDULE_H

#include "partition/problem/flow.h"
#include "schedule/rules/schedule.h"

/* A plan spells out every action; beyond this many forwards it is no use to anyone. */
enum { SMP_MAX_FORWARDS = 1 << 18 };

/* Times are finite and >= 0; all borrowed. */
typedef struct smp_list_input {
    int pipeline, chunks, microbatches;
    const int *stage_rank; /* [n_stage], `chunks` stages on each rank */
    const smp_flow *flow;
    const double *forward_us;  /* [n_stage] */
    const double *input_us;    /* I; B is I and W in one */
    const double *weight_us;   /* W */
    const double *transfer_us; /* [n_transfer] of messages */
    const double *tail_us;     /* [pipeline] from a rank's last action to its end; NULL: nothing */
    const double *stash_bytes; /* [n_stage] alive from F to B (W) */
    const double *limit_bytes; /* [pipeline] of all stashes of a rank at a time; NULL: no limit */
    double effort;             /* compute actions to be timed in all; 0: 3e7, about a second */
    double deadline_s;         /* smp_work_s() at which the best so far is taken; 0: never */
} smp_list_input;

typedef struct smp_list_result {
    double step_us;        /* of the orders given out */
    double start_us;       /* of the best order it began with; < 0: none was given or fitted */
    double lower_bound_us; /* no order within the limit is faster */
} smp_list_result;

/* starts: [n_start * pipeline] compute orders (of fixed rules, say) to begin with; those that break
 * the limit or deadlock are left out. orders: [pipeline], filled; freed by the caller. In each
 * chunk F, I, and B or W stand in micro-batch order. Never slower than the best start. The same
 * input gives the same orders, unless the deadline stops it. SMP_ERR_NO_FIT if the limit does not
 * even let one micro-batch through. */
smp_status smp_list_schedule(const smp_list_input *input, const smp_program *starts, int n_start,
                             smp_program *orders, smp_list_result *result);

#endif

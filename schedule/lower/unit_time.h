/* When each compute action would start if F took 1, B 2, I and W 1, transfers nothing, and every
 * stage waited for its neighbour: the global order that the lowering projects onto ranks. */
#ifndef SMP_SCHEDULE_LOWER_UNIT_TIME_H
#define SMP_SCHEDULE_LOWER_UNIT_TIME_H

#include "schedule/lower/crossing.h"
#include "schedule/rules/schedule.h"

typedef struct smp__timed {
    int64_t start, end;
    int rank;
    smp_action action;
} smp__timed;

/* orders: [n_rank] compute actions of each rank. Gives all of them, sorted by (start, rank),
 * malloc'ed. An action waits for what its stage and the neighbouring stages must have done, which
 * covers every transfer of any flow, as those go forward (F) or back (B) only. SMP_ERR_FAILED if
 * the orders deadlock, SMP_ERR_INPUT if an action is out of range. O(n + the last start). */
smp_status smp__unit_time(const smp__crossing *crossing, int microbatches,
                          const smp_program *orders, smp__timed **timed, int64_t *n);

#endif

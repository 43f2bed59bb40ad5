/* The monotonic clock, for time-outs and timings, and the clock of planning. That one advances
 * with the work that is done, so that what a limit cuts short is the same on any machine and under
 * any load; a ceiling in processor time may push it on. */
#ifndef SMP_GRAPH_BASE_CLOCK_H
#define SMP_GRAPH_BASE_CLOCK_H

#include <stdbool.h>

double smp_clock_s(void);
double smp_clock_thread_s(void); /* for which the calling thread has had a core */

/* What work is counted in; clock.c has the price of each. */
typedef enum smp_work_kind {
    SMP_WORK_OP,       /* an op or a net of a graph gone through once */
    SMP_WORK_COST,     /* an op costed */
    SMP_WORK_LAYOUT,   /* a call of a stage laid out */
    SMP_WORK_SOLVER,   /* a step of a solver of partitions */
    SMP_WORK_INTERVAL, /* neighbours in an order, as a stage */
    SMP_WORK_PROOF,    /* a step of a proof */
    SMP_WORK_BISECT,   /* a vertex or an edge given to METIS */
    SMP_WORK_LOWER,    /* an action of an order, lowered */
    SMP_WORK_ACTION,   /* an action simulated */
    SMP_WORK_EVENT,    /* what a simulation waits for */
    SMP_WORK_LETTER,   /* an action of an order that is looked for, timed */
    SMP_WORK_BUFFER,   /* a buffer to be packed, each time it is sorted */
    SMP_WORK_COMPARE,  /* a buffer compared with one that has its place */
    SMP_WORK_STATE,    /* a state of a choice of splittings followed */
    SMP_N_WORK
} smp_work_kind;

/* Counts work of the calling thread. n >= 0. */
void smp_work_count(smp_work_kind kind, double n);

/* Seconds that the work of this thread so far takes on one core of the machine that the prices are
 * of. Only differences have a meaning. */
double smp_work_s(void);

/* deadline_s: of smp_work_s(); 0 never passes. */
static inline bool smp_work_past(double deadline_s)
{
    return deadline_s > 0.0 && smp_work_s() >= deadline_s;
}

/* From now on the clock of this thread is pushed on to `work_s` later by the time that the thread
 * has had a core for processor_s, and evenly until then; processor_s 0: it is not, any more. */
void smp_work_limit(double work_s, double processor_s);
/* Whether it was the time of the processor that has pushed the clock on since. */
bool smp_work_is_late(void);

#endif

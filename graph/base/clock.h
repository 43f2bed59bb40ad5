/* The monotonic clock, for deadlines and timings. Never part of a decision that a plan must
 * reproduce, except where a time limit strikes. */
#ifndef SMP_GRAPH_BASE_CLOCK_H
#define SMP_GRAPH_BASE_CLOCK_H

#include <stdbool.h>

double smp_clock_s(void);
double smp_clock_thread_s(void); /* for which the calling thread has had a core */

/* deadline_s 0 never passes. */
static inline bool smp_clock_past(double deadline_s)
{
    return deadline_s > 0.0 && smp_clock_s() >= deadline_s;
}

#endif

/* clock_gettime with CLOCK_MONOTONIC and CLOCK_THREAD_CPUTIME_ID; work in a counter of the
 * thread. */
#include "graph/base/clock.h"

#include <time.h>

static double seconds_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double smp_clock_s(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

double smp_clock_thread_s(void)
{
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

/* Nanoseconds of one core: least squares over some 60 plans of examples and workloads, rounded;
 * COST, BISECT, INTERVAL and EVENT, which that does not tell apart, and BUFFER since it is sorted
 * by digits, by profiles of single plans. */
static const double price_ns[SMP_N_WORK] = {
    [SMP_WORK_OP] = 20,       [SMP_WORK_COST] = 300,    [SMP_WORK_LAYOUT] = 720,
    [SMP_WORK_SOLVER] = 7,    [SMP_WORK_INTERVAL] = 15, [SMP_WORK_PROOF] = 7,
    [SMP_WORK_BISECT] = 2000, [SMP_WORK_LOWER] = 200,   [SMP_WORK_ACTION] = 30,
    [SMP_WORK_EVENT] = 45,    [SMP_WORK_LETTER] = 17,   [SMP_WORK_BUFFER] = 60,
    [SMP_WORK_COMPARE] = 1.2, [SMP_WORK_STATE] = 120,
};

/* Work between two looks at the time of the processor. */
#define LOOK_S 1e-4

typedef struct work_clock {
    double spent_s;         /* by work alone */
    double pushed_s;        /* and what the ceiling has added */
    double rate;            /* work for a second of the processor; 0: there is no ceiling */
    double begin_s, core_s; /* of the ceiling: the clock and the processor's time */
    bool late;              /* it has pushed the clock on */
    double look_s;          /* the work at which the processor's time is looked at next */
} work_clock;

static _Thread_local work_clock here = {.spent_s = 1.0}; /* 0 is no deadline */

void smp_work_count(smp_work_kind kind, double n)
{
    here.spent_s += 1e-9 * price_ns[kind] * n;
}

double smp_work_s(void)
{
    if (here.rate > 0.0 && here.spent_s >= here.look_s) {
        const double least_s =
            here.begin_s + here.rate * (smp_clock_thread_s() - here.core_s) - here.spent_s;
        here.late |= least_s > here.pushed_s;
        here.pushed_s = least_s > here.pushed_s ? least_s : here.pushed_s;
        here.look_s = here.spent_s + LOOK_S;
    }
    return here.spent_s + here.pushed_s;
}

void smp_work_limit(double work_s, double processor_s)
{
    here.rate = processor_s > 0.0 ? work_s / processor_s : 0.0;
    here.begin_s = here.spent_s + here.pushed_s;
    here.core_s = smp_clock_thread_s();
    here.look_s = here.spent_s;
    here.late = false;
}

bool smp_work_is_late(void)
{
    return here.late;
}

/* The speeds of the devices of a job's ranks, where some are slower than others, and what a step
 * takes on them. */
#ifndef SMP_TOOLS_ELASTIC_SPEEDS_PLAN_SPEEDS_H
#define SMP_TOOLS_ELASTIC_SPEEDS_PLAN_SPEEDS_H

#include "graph/base/status.h"

enum { SMP__SPEEDS_NAME = 128, SMP__SPEEDS_MOST = 512 };

typedef struct smp__speeds {
    int n;                          /* ranks; 0: none */
    char name[SMP__SPEEDS_NAME];    /* "2x60-5x45": ranks 2 and 5, in percent; of many that are slow
                                       "24-slow-HASH"; "": all alike */
    double speed[SMP__SPEEDS_MOST]; /* [n] share of the usual one, 0.05 to 1 */
} smp__speeds;

/* Names them: others have another name. */
void smp__speeds_name(smp__speeds *speeds);
/* The least of them; 1 where there is none. */
double smp__speeds_least(const smp__speeds *speeds);
/* Predicts a step of the plan in a file, on devices of these speeds. Errors: as of reading and
 * simulating it; SMP_ERR_INPUT: it is for another number. */
smp_status smp__speeds_step(const char *path, const smp__speeds *speeds, double *step_us);

/* The speed of a device that is so many times slower than others: in steps of 5 %, and as it was
 * where that is one step off. before: 0: as others. 0: it is as fast as others. */
double smp__slow_speed(double times, double before);
/* How long a device that was found slow n times is left out. */
double smp__slow_pause_s(int n);

#endif

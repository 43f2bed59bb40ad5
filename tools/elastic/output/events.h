/* What happens to a job, as lines for people on standard error and as JSON for programs, and what
 * it has cost. */
#ifndef SMP_TOOLS_ELASTIC_OUTPUT_EVENTS_H
#define SMP_TOOLS_ELASTIC_OUTPUT_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "graph/base/text.h"

/* From a failure to the next step. */
typedef enum smp__phase { SMP__DETECT, SMP__PLAN, SMP__START, SMP__LOAD, SMP__N_PHASE } smp__phase;

typedef struct smp__events {
    int file;              /* -1: none */
    double begin_s;        /* smp_clock_s */
    int failures, changes; /* of ranks; of the devices in use, as asked for */
    int64_t steps_lost;
    double phase_s[SMP__N_PHASE]; /* all recoveries together */
    double useful_s;              /* in steps that count */
    double told_s;                /* smp_clock_s: the last "steps"; 0: none yet */
} smp__events;

/* path: NULL: no file. SMP_ERR_INPUT: it cannot be opened. */
smp_status smp__events_open(const char *path, smp__events *out);
void smp__events_close(smp__events *events);

/* A line on standard error, "smp-run: ...". */
void smp__events_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* {"time_s": ..., "event": NAME, MORE}; more: members as JSON, or "". */
void smp__events_put(smp__events *events, const char *name, const char *more, ...)
    __attribute__((format(printf, 3, 4)));
/* A step is done, the last of those that are: an event "steps", at most one a second and one for
 * each hundredth of the job's time, so that a file grows with the logarithm of that. */
void smp__events_steps(smp__events *events, int64_t step);
/* The job ends: the summary, as a line and as an event. */
void smp__events_sum(smp__events *events, int code);

#endif

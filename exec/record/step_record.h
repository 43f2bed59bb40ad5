/* When the actions of a rank's last step began and ended, and what went on inside of them. The
 * record of a job without record_trace is NULL: all calls accept it and do nothing. */
#ifndef SMP_EXEC_RECORD_STEP_RECORD_H
#define SMP_EXEC_RECORD_STEP_RECORD_H

#include <stdbool.h>

#include "graph/base/clock.h"
#include "schedule/trace/trace.h"

typedef struct smp__record smp__record;

/* For steps of that many actions. */
smp_status smp__record_open(int64_t actions, smp__record **out);
void smp__record_close(smp__record *record);

/* A step begins: what is known of the last one is forgotten. */
void smp__record_begin(smp__record *record, double begin_s);
/* Is a step being recorded: begun, and its times not yet known? */
bool smp__record_is_on(const smp__record *record);
/* The next action of the program. */
void smp__record_action(smp__record *record, const smp_action *action);
/* When updates of the step before, made in this one, began and ended; 0: there were none. */
void smp__record_beside(smp__record *record, const double times_s[2]);
/* Times are known; the updates are of a rank. */
void smp__record_end(smp__record *record, int world_rank);

/* Microseconds from the step's begin to a time of smp_clock_s, and that begin. */
double smp__record_us(const smp__record *record, double time_s);
double smp__record_begin_s(const smp__record *record);

/* How many actions there were; *event: [actions + 1], the last one the updates beside. The caller
 * may fill in and shift times. 0 and NULL without a record. */
int64_t smp__record_events(const smp__record *record, smp_trace_event **event);
/* Are times of all ranks counted from one moment? smp__record_align says so, from which begin. */
bool smp__record_is_aligned(const smp__record *record);
void smp__record_align(smp__record *record, double begin_s);

/* When what an action asked for was done, beside others: [actions] microseconds, 0 where it was not
 * seen. NULL without a record. */
double *smp__record_ended_us(const smp__record *record);

/* Seconds inside of actions, by the host's clock, that stamps do not tell apart. FORWARD: in
 * forward actions, OTHER: elsewhere. */
typedef enum smp__spent {
    SMP__SPENT_RECOMPUTE,     /* without what is below */
    SMP__SPENT_JOINT_FORWARD, /* sums over replicas that operators ask for */
    SMP__SPENT_JOINT_OTHER,
    SMP__SPENT_GROUP_FORWARD, /* waiting for the devices that compute operators together */
    SMP__SPENT_GROUP_BACKWARD,
    SMP__SPENT_GROUP_OTHER,    /* ... not in an action that computes */
    SMP__SPENT_SENDS,          /* until others took what was sent; between actions */
    SMP__SPENT_NORM,           /* of the gradient */
    SMP__SPENT_UPDATE_FORWARD, /* waiting for updates on the host */
    SMP__SPENT_UPDATE_OTHER,
    SMP__N_SPENT
} smp__spent;

/* The clock, or 0 without a record: for smp__spent_end, which adds what has passed since. */
static inline double smp__spent_begin(const smp__record *record)
{
    return record ? smp_clock_s() : 0.0;
}

void smp__spent_end(smp__record *record, smp__spent on, double begin_s);
void smp__spent_add(smp__record *record, smp__spent on, double seconds);
double smp__spent_s(const smp__record *record, smp__spent on);

/* Steps that touch memory and libraries for the first time, of so many: they do not count. */
static inline int64_t smp__cold_steps(int64_t n_step)
{
    return n_step / 2 < 2 ? n_step / 2 : 2;
}

#endif

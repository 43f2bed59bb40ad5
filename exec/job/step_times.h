/* Where the time of a step goes, by cause (schedule/trace/run_record.h), from the stamps that
 * record_trace keeps: an action's time is work, what is before it is waiting for what it reads. A
 * cause within an action (recomputation, the group of devices that compute operators together, sums
 * that operators ask for) is seen by the host's clock, and so only where the host computes: on a
 * GPU it stays in its action, and the norm of the gradient in END. */
#ifndef SMP_EXEC_JOB_STEP_TIMES_H
#define SMP_EXEC_JOB_STEP_TIMES_H

#include "schedule/trace/run_record.h"
#include "smp.h"

typedef struct smp__step_times {
    int64_t n_step; /* added */
    int64_t n[2];   /* ... cold ones, which count if there are no others, and others */
    double us[2][SMP_TIME_N_CAUSES];
    double *peer_us;            /* [2][pipeline] waited for messages of a rank */
    double *all;                /* [world][2], scratch of a step */
    double last_bubble;         /* of the last step: idle share of all ranks */
    double last_resident_bytes; /* of the rank that had most in memory */
} smp__step_times;

smp_status smp__step_times_open(const smp *s, smp__step_times *times);
void smp__step_times_close(smp__step_times *times);

/* Adds the step just done. Needs record_trace; waits for the device. data_us: what reading its
 * samples took. Collective. */
smp_status smp__step_times_add(smp *s, smp__step_times *times, double step_us, double data_us);

/* The work of a step of all ranks as the plan has it, [world_size], malloc'ed; *out NULL: it has no
 * `cluster:`, or has a rank without work. full_speed: of devices, even where the plan knows of
 * slower ones. */
smp_status smp__step_times_predict(const smp *s, bool full_speed, double **out);

/* The means of all ranks, [world_size], malloc'ed, the same on every rank. Collective. */
smp_status smp__step_times_collect(smp *s, const smp__step_times *times, smp_rank_time **out);

#endif

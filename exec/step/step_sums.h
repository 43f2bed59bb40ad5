/* What ranks tell each other at the end of a step or an evaluation, in one sum: losses, what each
 * is a mean over, times, and what a rank asks all for. */
#ifndef SMP_EXEC_STEP_STEP_SUMS_H
#define SMP_EXEC_STEP_STEP_SUMS_H

#include <stdbool.h>

#include "smp.h"

smp_status smp__step_sums_open(smp *s);
void smp__step_sums_close(smp *s);

/* A step or an evaluation begins: now, a time of smp_clock_s. */
double smp__step_sums_begin(smp *s);
/* The losses of this rank, what they count and their hits: the device has copied them to s->loss.
 */
void smp__step_sums_read(smp *s);
/* Losses of this rank that are not finite, and rows that they count. */
void smp__step_sums_count(const smp *s, double *wrong, double *rows);
/* Adds up: the losses of all replicas, by replica and micro-batch, in that order on every rank, and
 * the time of the slowest. Collective. */
smp_status smp__step_sums_collect(smp *s, smp_step_result *result);

/* Results of the last call, alike on all ranks: losses and rows, by micro-batch of the
 * global batch; microseconds of each rank without waits, [world_size], 0 where they are not
 * timed. */
const double *smp__step_sums_losses(const smp *s, const double **rows);
const double *smp__step_sums_work_us(const smp *s);
/* From here on GPUs time their work, too (smp__device_time_work). */
void smp__step_sums_time_work(smp *s);

/* A signal has asked for the job's end, or rank 0's clock for a save: alike on all ranks, and from
 * then on. The next save is asked for at a time of rank 0's smp_clock_s; 0: never. */
bool smp__step_sums_end_asked(const smp *s);
bool smp__step_sums_save_asked(const smp *s);
void smp__step_sums_ask_save(smp *s, double at_s);

#endif

/* A run while it goes on: the bar, the log, and what its page and the last lines tell of all steps.
 * A job that wants none of it pays nothing. */
#ifndef SMP_TOOLS_RUN_WATCH_H
#define SMP_TOOLS_RUN_WATCH_H

#include "exec/job/step_times.h"
#include "exec/log/progress_bar.h"
#include "exec/log/step_log.h"
#include "exec/log/slow_ranks.h"
#include "tools/run/trainer.h"

struct smp__watch {
    smp__progress_bar bar; /* of rank 0 */
    smp__step_log *log;    /* of rank 0 */
    smp__log_row row;      /* of the step in progress */
    bool records;          /* --log or --report: times are looked at, on all ranks */
    smp__step_times times;
    smp_run_record *record; /* of rank 0, with --report */
    smp__slow_ranks slow;   /* of rank 0; nothing where a device waits by itself */
};

/* After resuming, before the first step. SMP_ERR_INPUT: the log cannot be written. Collective. */
smp_status smp__watch_open(smp__trainer *t);
/* A step is done, for which reading samples took data_us. Collective. */
smp_status smp__watch_step(smp__trainer *t, const smp_step_result *r, double data_us);
/* ... and its line is printed: ranks that have become slow, or are so no more. */
void smp__watch_slow(smp__trainer *t);
/* Behind that step: an evaluation. */
void smp__watch_evaluation(smp__trainer *t, const smp__evaluated *e);
/* The row of that step is complete. Collective. */
smp_status smp__watch_row(smp__trainer *t);
/* Where the time went, printed, and the page. Collective. */
smp_status smp__watch_end(smp__trainer *t);
void smp__watch_close(smp__trainer *t);

#endif

/* Evaluations of the training loop: exec/evaluation.h. */
#include "exec/evaluation.h"

#include <math.h>

#include "exec/batches.h"
#include "exec/printed_lines.h"
#include "exec/watch.h"

smp_status smp__evaluate_held_out(smp__trainer *t, int64_t step)
{
    const int64_t n = smp_data_samples(t->eval_data);
    const int microbatches = t->job->comm.ddp_size * t->job->microbatches;
    double sum = 0.0, rows = 0.0;
    int64_t hits = 0;
    for (smp__batch b = {0}; b.first < n; b.first += b.samples) {
        smp_step_result r;
        b.samples = n - b.first < t->global_batch ? n - b.first : t->global_batch;
        smp_status status = smp__read_batch(t, t->eval_data, b);
        if (status == SMP_OK)
            status = smp_evaluate_short(t->job, (const void *const *)t->buffer, b.samples, &r);
        *t->job_broken = status != SMP_OK;
        if (status != SMP_OK)
            return status;
        const double *losses = t->job->result, *counted = losses + microbatches;
        for (int i = 0; i < microbatches; i++) { /* by replica, then micro-batch */
            sum += losses[i] * counted[i];
            rows += counted[i];
        }
        hits = r.hits >= 0 ? hits + r.hits : -1;
    }
    smp__watch_evaluation(t, rows > 0.0 ? sum / rows : 0.0,
                          rows > 0.0 && hits >= 0 ? (double)hits / rows : NAN);
    if (t->prints)
        smp__print_evaluation(t, step, rows > 0.0 ? sum / rows : 0.0, rows, hits);
    return SMP_OK;
}

/* Evaluations of the training loop: tools/run/evaluation.h. */
#include "tools/run/evaluation.h"

#include <math.h>
#include <stdlib.h>

#include "exec/step/step_sums.h"
#include "tools/run/batches.h"
#include "exec/checkpoint/checkpoint_folder.h"
#include "tools/run/printed_lines.h"
#include "tools/run/watch.h"

smp_status smp__best_find(smp__trainer *t)
{
    const char *directory = t->options->checkpoint;
    smp_status status = SMP_OK;
    t->best_loss = INFINITY;
    if (!t->options->keep_best)
        return SMP_OK;
    if (t->prints && smp__checkpoint_exists(directory)) {
        smp__saved *list = NULL;
        int n = 0;
        status = smp__checkpoint_list(directory, &list, &n);
        const int best = status == SMP_OK ? smp__checkpoint_best(list, n) : -1;
        if (best >= 0)
            t->best_loss = list[best].loss;
        free(list);
    }
    SMP_TRY(smp_agree(t->job, status));
    return smp_broadcast(t->job, SMP_WORLD, 0, &t->best_loss, sizeof(t->best_loss));
}

/* Alike on all ranks, as the losses are. Weights that are best are finite, and other than those
 * that were best before: they are saved even where a skipped step comes after them. */
static void note_loss(smp__trainer *t, int64_t step, double loss)
{
    smp__job_note_evaluation(t->job, step, loss);
    t->best_due = loss < t->best_loss;
    if (t->best_due)
        t->best_loss = loss;
}

/* Among the first SMP_TOP of as many classes every answer is: nothing to count. */
static smp__evaluated put_together(const smp__trainer *t, double sum, double rows, int64_t hits,
                                   int64_t hits_top5)
{
    const bool any = rows > 0.0;
    smp__evaluated e = {.loss = any ? sum / rows : NAN, .rows = rows, .counted = hits >= 0};
    e.counted_top5 = e.counted && t->about.classes > SMP_TOP;
    e.accuracy = any && e.counted ? (double)hits / rows : NAN;
    e.accuracy_top5 = any && e.counted_top5 ? (double)hits_top5 / rows : NAN;
    return e;
}

smp_status smp__evaluate_held_out(smp__trainer *t, int64_t step)
{
    const int64_t microbatches = t->about.global_batch / smp_microbatch_samples(t->job);
    double sum = 0.0, rows = 0.0;
    int64_t hits = 0, hits_top5 = 0;
    for (smp__batch b = smp__batch_in_order(t, t->eval_data, 0); b.samples > 0;
         b = smp__batch_in_order(t, t->eval_data, b.first + b.samples)) {
        smp_step_result r;
        smp_status status = smp__read_batch(t, t->eval_data, b);
        if (status == SMP_OK)
            status = smp_evaluate_short(t->job, (const void *const *)t->buffer, b.samples, &r);
        *t->job_broken = status != SMP_OK;
        if (status != SMP_OK)
            return status;
        if (smp__step_sums_end_asked(t->job) &&
            step < t->options->steps) { /* half an evaluation is none */
            t->stopped = true;
            return SMP_OK;
        }
        const double *counted, *losses = smp__step_sums_losses(t->job, &counted);
        for (int64_t i = 0; i < microbatches; i++) {
            sum += losses[i] * counted[i];
            rows += counted[i];
        }
        hits = r.hits >= 0 ? hits + r.hits : -1;
        hits_top5 += r.hits_top5;
    }
    const smp__evaluated e = put_together(t, sum, rows, hits, hits_top5);
    smp__watch_evaluation(t, &e);
    if (t->prints)
        smp__print_evaluation(t, step, &e);
    if (t->options->keep_best)
        note_loss(t, step, e.loss);
    return SMP_OK;
}

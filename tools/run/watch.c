/* What is seen of a run: tools/run/watch.h. */
#include "tools/run/watch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exec/job/inspect_job.h"
#include "exec/step/step_sums.h"
#include "tools/life/job_life.h"
#include "tools/show/picture.h"
#include "tools/run/printed_lines.h"
#include "tools/run/printed_times.h"
#include "exec/elastic/supervised.h"

static bool wants_bar(const smp__trainer *t)
{
    const smp_train_options *o = t->options;
    int columns;
    if (!t->prints || (o->progress && strcmp(o->progress, "no") == 0))
        return false;
    return (o->progress && strcmp(o->progress, "yes") == 0) ||
           (!o->json && smp__bar_terminal(&columns));
}

static smp_status open_record(smp__trainer *t)
{
    smp__watch *w = t->watch;
    w->record = calloc(1, sizeof(*w->record));
    if (!w->record)
        return smp_fail_memory(sizeof(*w->record));
    w->record->predicted_samples_per_s = t->predicted.samples_per_s;
    w->record->predicted_bubble = t->predicted.bubble;
    return SMP_OK;
}

static smp_status open_slow(smp__trainer *t)
{
    double *predicted_us = NULL;
    if (smp_size(t->job, SMP_WORLD) == 1)
        return SMP_OK;
    smp__step_sums_time_work(t->job);
    if (!t->prints)
        return SMP_OK;
    /* A supervisor knows how slow a device was, and asks whether it still is. */
    smp_status status = smp__step_times_predict(t->job, t->options->rows != NULL, &predicted_us);
    if (predicted_us)
        status = smp__slow_ranks_open(predicted_us, smp_size(t->job, SMP_WORLD), &t->watch->slow);
    free(predicted_us);
    return status;
}

static smp_status open_own(smp__trainer *t)
{
    const smp_train_options *o = t->options;
    /* A job for inference counts steps of its own. A supervisor has looked at an old log already;
     * what is there now may be of ranks that died before anything was saved. */
    const bool resumes = (o->resume || o->rows) && t->about.trains;
    smp__watch *w = calloc(1, sizeof(*w));
    t->watch = w;
    if (!w)
        return smp_fail_memory(sizeof(*w));
    w->records = o->log || o->report;
    if (w->records)
        SMP_TRY(smp__step_times_open(t->job, &w->times));
    SMP_TRY(open_slow(t));
    if (t->prints && o->report)
        SMP_TRY(open_record(t));
    if (t->prints && o->log)
        SMP_TRY(smp__step_log_open(o->log, resumes ? smp_steps_done(t->job) : -1, &w->log));
    return SMP_OK;
}

smp_status smp__watch_open(smp__trainer *t)
{
    SMP_TRY(smp_agree(t->job, open_own(t)));
    if (wants_bar(t))
        smp__bar_begin(&t->watch->bar, smp_steps_done(t->job), t->options->steps);
    return SMP_OK;
}

static void fill_row(smp__trainer *t, const smp_step_result *r)
{
    smp__watch *w = t->watch;
    w->row = (smp__log_row){.step = r->step};
    if (t->about.has_loss)
        smp__log_set(&w->row, SMP__LOG_LOSS, r->loss);
    if (t->about.trains) {
        smp__log_set(&w->row, SMP__LOG_LR, r->lr);
        smp__log_set(&w->row, SMP__LOG_GRAD_NORM, r->grad_norm);
    }
    smp__log_set(&w->row, SMP__LOG_SAMPLES_PER_S, r->samples_per_s);
    smp__log_set(&w->row, SMP__LOG_STEP_US, r->step_us);
    smp__log_set(&w->row, SMP__LOG_PREDICTED_US, r->predicted_us);
    smp__log_set(&w->row, SMP__LOG_SKIPPED, (double)r->skipped);
    if (t->about.scales_loss)
        smp__log_set(&w->row, SMP__LOG_LOSS_SCALE, r->loss_scale);
    smp__log_set(&w->row, SMP__LOG_BUBBLE, w->times.last_bubble);
    smp__log_set(&w->row, SMP__LOG_MEMORY_PEAK_BYTES, w->times.last_resident_bytes);
}

static void record_step(smp__trainer *t, const smp_step_result *r)
{
    smp_run_record *record = t->watch->record;
    smp_curve_add(&record->loss, r->step, t->about.has_loss ? r->loss : NAN);
    smp_curve_add(&record->lr, r->step, t->about.trains ? r->lr : NAN);
    smp_curve_add(&record->grad_norm, r->step, t->about.trains ? r->grad_norm : NAN);
    smp_curve_add(&record->samples_per_s, r->step, r->samples_per_s);
    smp_curve_add(&record->bubble, r->step, t->watch->times.last_bubble);
}

smp_status smp__watch_step(smp__trainer *t, const smp_step_result *r, double data_us)
{
    smp__watch *w = t->watch;
    const double loss = t->about.has_loss ? r->loss : NAN;
    const double each = t->about.tokens > 0 ? (double)t->about.tokens : 1.0;
    if (w->records)
        SMP_TRY(smp__step_times_add(t->job, &w->times, r->step_us, data_us));
    if (w->log)
        fill_row(t, r);
    if (w->record)
        record_step(t, r);
    smp__bar_step(&w->bar, r->step, loss, each * r->samples_per_s,
                  t->about.tokens > 0 ? "tokens" : "samples");
    return SMP_OK;
}

void smp__watch_slow(smp__trainer *t)
{
    smp__slow_ranks *slow = &t->watch->slow;
    if (!slow->rank)
        return;
    smp__slow_ranks_add(slow, smp__step_sums_work_us(t->job));
    for (int rank = 0; rank < slow->n; rank++) {
        const smp__rank_pace *pace = &slow->rank[rank];
        if (pace->change == SMP__RANK_SAME)
            continue;
        if (t->options->rows)
            smp__supervised_pace(rank, pace->change == SMP__RANK_SLOW ? pace->times : 1.0);
        smp__print_pace(t, rank, pace, slow->usual);
    }
}

void smp__watch_evaluation(smp__trainer *t, const smp__evaluated *e)
{
    smp__watch *w = t->watch;
    if (!w)
        return;
    smp__log_set(&w->row, SMP__LOG_EVAL_LOSS, e->loss);
    if (!isnan(e->accuracy))
        smp__log_set(&w->row, SMP__LOG_ACCURACY, e->accuracy);
    if (!isnan(e->accuracy_top5))
        smp__log_set(&w->row, SMP__LOG_ACCURACY_TOP5, e->accuracy_top5);
    if (w->record)
        smp_curve_add(&w->record->eval_loss, smp_steps_done(t->job), e->loss);
}

smp_status smp__watch_row(smp__trainer *t)
{
    smp__watch *w = t->watch;
    if (!t->options->log)
        return SMP_OK;
    return smp_agree(t->job, w->log ? smp__step_log_add(w->log, &w->row) : SMP_OK);
}

/* The life of the job as a section, as far as its supervisor has written it. */
static smp_status add_life(smp_picture *picture, const char *events, smp_text *section)
{
    smp__life life = {0};
    smp_status status = smp__life_read(events, &life);
    if (status == SMP_OK)
        smp__life_html(&life, section);
    else if (status == SMP_ERR_INPUT) /* training is done, and its page is worth having */
        smp_text_append(section,
                        "<p class='aside'>No life of the job: its events cannot be read.</p>\n");
    smp__life_free(&life);
    smp_picture_add_section(picture, section);
    return section->failed           ? smp_fail_memory(section->length)
           : status == SMP_ERR_INPUT ? SMP_OK
                                     : status;
}

/* The page: the prediction above what was measured, and the run. */
static smp_status write_report(const smp_plan *plan, const smp_graph *graph, const char *path,
                               const smp_trace_event *measured, int64_t n, const void *trainer)
{
    const smp__trainer *t = trainer;
    smp_picture *picture = NULL;
    smp_text html = {0}, section = {0};
    smp_status status = smp_picture_open(plan, graph, &picture);
    if (status == SMP_OK)
        status = smp_picture_add_measured(picture, measured, n);
    if (status == SMP_OK)
        smp_picture_add_run(picture, t->watch->record);
    if (status == SMP_OK && t->options->events)
        status = add_life(picture, t->options->events, &section);
    if (status == SMP_OK)
        status = smp_picture_html(picture, &html);
    if (status == SMP_OK)
        status = smp_file_write(path, html.data, html.length);
    smp_text_free(&html);
    smp_text_free(&section);
    smp_picture_close(picture);
    return status;
}

static smp_status tell(smp__trainer *t, const smp_rank_time *rank)
{
    smp__watch *w = t->watch;
    const int64_t steps = w->times.n[w->times.n[1] > 0];
    const int n_rank = smp_size(t->job, SMP_WORLD);
    smp_status status = SMP_OK;
    if (w->record) {
        w->record->rank = rank;
        w->record->n_rank = n_rank;
        w->record->steps = steps;
    }
    if (t->options->report)
        SMP_TRY(smp__events_write(t->job, t->options->report, write_report, t));
    if (t->prints && steps > 0)
        status = smp__print_times(rank, n_rank, steps, t->options->json);
    return smp_agree(t->job, status);
}

smp_status smp__watch_end(smp__trainer *t)
{
    smp__watch *w = t->watch;
    smp_rank_time *rank = NULL;
    smp__bar_lift(&w->bar);
    w->bar.on = false;
    if (!w->records)
        return SMP_OK;
    SMP_TRY(smp__step_times_collect(t->job, &w->times, &rank));
    smp_status status = tell(t, rank);
    if (w->record)
        w->record->rank = NULL;
    free(rank);
    return status;
}

void smp__watch_close(smp__trainer *t)
{
    smp__watch *w = t->watch;
    if (!w)
        return;
    smp__bar_lift(&w->bar);
    smp__step_log_close(w->log);
    smp__step_times_close(&w->times);
    smp__slow_ranks_close(&w->slow);
    free(w->record);
    free(w);
    t->watch = NULL;
}

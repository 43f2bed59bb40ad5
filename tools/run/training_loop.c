/* Training loop. Every rank reads the inputs of its stages, for its replica; rank 0 prints. */
#include "tools/run/training_loop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/step/step_sums.h"
#include "tools/run/batches.h"
#include "exec/checkpoint/checkpoint_folder.h"
#include "tools/run/evaluation.h"
#include "exec/job/on_signal.h"
#include "exec/job/receipt.h"
#include "exec/transport/comm.h"
#include "tools/run/prediction.h"
#include "tools/run/printed_lines.h"
#include "tools/run/run_outputs.h"
#include "exec/elastic/supervised.h"
#include "exec/save/checkpoint_keep.h"
#include "exec/save/checkpoint_load.h"
#include "exec/save/checkpoint_save.h"
#include "tools/run/watch.h"
#include "graph/base/clock.h"

static bool due(int64_t step, int64_t every, int64_t last)
{
    return step == last || (every > 0 && step % every == 0);
}

/* What has become of the save that was begun last. Without --save-must training goes on when the
 * disk fails; a lock that is lost, and weights that are not finite, end it. Alike on all ranks. */
static smp_status note_save(smp__trainer *t, bool last, smp_status status)
{
    const smp__save_state save = smp__save_look(t->job);
    if (!save.goes_on && !save.failed && status == SMP_OK) {
        t->unsaved = -1;
        t->good_step = save.step > t->good_step ? save.step : t->good_step;
    }
    if (!save.failed || smp__replicas_differ(t->job) || status != SMP_ERR_FAILED ||
        t->options->save_must || smp__job_failed(t->job))
        return status;
    t->unsaved = save.step;
    snprintf(t->unsaved_why, sizeof(t->unsaved_why), "%s", smp_last_error());
    if (save.evaluated)
        t->best_loss = INFINITY; /* the best is not there: the next one is */
    if (t->prints && !last)
        smp__print_unsaved(t);
    return SMP_OK;
}

static smp_status compute_step(smp__trainer *t, bool more, double *data_us, smp_step_result *r)
{
    const smp__batch b = smp__next_batch(t);
    smp__job_set_position(t->job, b.first);
    smp_status status = smp__take_batch(t, b, more, data_us);
    *t->job_broken = status != SMP_OK;
    if (status == SMP_OK) {
        status = smp_step_short(t->job, (const void *const *)t->buffer, b.samples, r);
        *t->job_broken = smp__job_failed(t->job); /* else all ranks end alike */
    }
    return status;
}

/* Who was furthest from what was computed again, and by more than twice? Gradients of a wrong
 * weight have reached the others, too. kept: the weight before. */
static smp_status name_wrong(smp__trainer *t, const float *kept, char *text, size_t size)
{
    const int replicas = smp_size(t->job, SMP_DDP);
    double *off = calloc((size_t)replicas, sizeof *off), others = 0.0;
    int worst = 0;
    smp_status status = smp_agree(t->job, off ? SMP_OK : smp_fail_memory(sizeof *off));
    if (status == SMP_OK)
        status = smp__drift_measure(t->job, kept, off);
    if (status != SMP_OK) {
        if (!smp__job_failed(t->job)) /* MPI may still add to it */
            free(off);
        return status;
    }
    for (int i = 1; i < replicas; i++)
        worst = off[i] > off[worst] ? i : worst;
    for (int i = 0; i < replicas; i++)
        others = i != worst && off[i] > others ? off[i] : others;
    if (off[worst] > 2.0 * others)
        snprintf(text, size, "replica %d was wrong%s", worst,
                 others > 0.0 ? ", and the others had its gradients" : "");
    else
        snprintf(text, size, "all were wrong alike");
    free(off);
    return SMP_OK;
}

/* Steps have the same bits whenever they are computed: from what was saved last to this one again,
 * which every replica then has right. */
static smp_status replay(smp__trainer *t, int64_t step)
{
    smp *s = t->job;
    const smp__skips skips = smp__job_skips(s);
    const double begin_s = smp_clock_s();
    char drift[512], wrong[256];
    float *kept = NULL;
    snprintf(drift, sizeof drift, "%s", smp_last_error());
    smp_status status = smp_agree(s, smp__drift_keep(s, &kept));
    smp__replicas_forget(s);
    if (status == SMP_OK)
        status = smp_load(s, t->options->checkpoint);
    const int64_t from = smp_steps_done(s);
    if (status == SMP_OK && from != t->good_step && from != smp__save_look(s).step)
        status = smp_fail(SMP_ERR_FAILED, "%s; what was saved after step %lld is damaged", drift,
                          (long long)t->good_step);
    while (status == SMP_OK && smp_steps_done(s) < step) {
        smp_step_result r;
        double data_us;
        status = compute_step(t, false, &data_us, &r);
    }
    if (status == SMP_OK)
        status = name_wrong(t, kept, wrong, sizeof wrong);
    free(kept);
    if (status == SMP_OK)
        status = smp_fail_context(smp_replicas_check(s), "computed again from step %lld",
                                  (long long)from);
    SMP_TRY(status);
    smp__job_set_skips(s, skips);
    if (t->prints)
        fprintf(stderr, "smp-run: %s; computed again from step %lld: %s; %lld steps, %.1f s\n",
                drift, (long long)from, wrong, (long long)(step - from), smp_clock_s() - begin_s);
    return SMP_OK;
}

/* `saves`: smp_save looks by itself, but does not know what to do. */
static smp_status check_replicas(smp__trainer *t, int64_t step, bool saves)
{
    const smp_train_options *o = t->options;
    const bool saved = t->good_step > 0 || smp__save_look(t->job).goes_on;
    const bool replays = saved && o->on_drift && strcmp(o->on_drift, "replay") == 0;
    if (saves ? !replays : !due(step, o->check_replicas, o->steps))
        return SMP_OK;
    const smp_status status = smp_replicas_check(t->job);
    if (!smp__replicas_differ(t->job))
        return status;
    const smp_status discarded = smp__keep_discard(t->job);
    if (!replays)
        return status == SMP_OK ? discarded : status;
    SMP_TRY(discarded);
    return replay(t, step);
}

static void ask_save(smp__trainer *t)
{
    const double every_s = t->options->save_every_s;
    smp__step_sums_ask_save(t->job, every_s > 0.0 ? smp_clock_s() + every_s : 0.0);
}

/* The weights of a step that is the last one, or of one that is not skipped: see save_due. */
static smp_status save_step(smp__trainer *t, int64_t step)
{
    const smp_train_options *o = t->options;
    const bool last = t->stopped || step == o->steps;
    t->save_due = t->save_due || smp__step_sums_save_asked(t->job) || last ||
                  (o->save_every > 0 && step % o->save_every == 0);
    const bool saves =
        t->saves && (t->best_due || (t->save_due && (smp__job_skips(t->job).in_row == 0 || last)));
    SMP_TRY(check_replicas(t, step, saves));
    if (!saves)
        return SMP_OK;
    t->save_due = t->best_due = false;
    ask_save(t);
    SMP_TRY(note_save(t, last, smp_save_wait(t->job)));
    return last ? note_save(t, true, smp_save(t->job, o->checkpoint))
                : smp_save_begin(t->job, o->checkpoint);
}

static void tell_keep(smp__trainer *t)
{
    if (!t->keep_told && smp__keep_note(t->job)[0] != '\0') {
        fprintf(stderr, "smp-run: %s; training goes on\n", smp__keep_note(t->job));
        t->keep_told = true;
    }
}

static void print_or_hold(smp__trainer *t, const smp_step_result *row)
{
    if (*smp__signal_asked() == SIGTERM && !t->options->rows &&
        t->n_held < (int)(sizeof t->held / sizeof *t->held))
        t->held[t->n_held++] = *row;
    else
        smp__print_step(t, row);
}

static void print_held(smp__trainer *t)
{
    for (int i = 0; i < t->n_held; i++)
        smp__print_step(t, &t->held[i]);
}

static smp_status train_step(smp__trainer *t, int64_t step)
{
    const smp_train_options *o = t->options;
    smp_step_result r;
    double data_us = 0.0;
    SMP_TRY(compute_step(t, step < o->steps, &data_us, &r));
    tell_keep(t);
    t->step_us[t->n_step++] = r.step_us;
    r.samples_per_s *= r.step_us / (r.step_us + data_us);
    SMP_TRY(smp__watch_step(t, &r, data_us));
    if (t->prints && o->rows)
        smp__supervised_mark(step, r.loss);
    if (t->prints && (o->json || step == 1 || due(step, o->log_every, o->steps)))
        print_or_hold(t, &r);
    t->stopped = smp__step_sums_end_asked(t->job) && step < o->steps;
    if (*smp__signal_asked() != SIGTERM)
        smp__watch_slow(t);
    int saved; /* completes a save whose parts are written, or says that it has failed */
    SMP_TRY(note_save(t, false, smp_save_test(t->job, &saved)));
    if (t->eval_data && !t->stopped && due(step, o->eval_every, o->steps))
        SMP_TRY(smp__evaluate_held_out(t, step));
    SMP_TRY(smp__watch_row(t));
    return save_step(t, step);
}

static smp_status resume(smp__trainer *t)
{
    const smp_train_options *o = t->options;
    SMP_TRY(smp_agree(t->job, smp__resume_lock(t)));
    SMP_TRY(o->resume_best ? smp__load_best(t->job, o->checkpoint)
                           : smp_load(t->job, o->checkpoint));
    if (t->prints && smp_load_note(t->job)[0] != '\0')
        fprintf(stderr, "smp-run: %s\n", smp_load_note(t->job));
    double fetched;
    SMP_TRY(smp__keep_fetched(t->job, &fetched));
    if (t->prints && smp__keep_was_loaded(t->job)) {
        char from[64] = "";
        if (fetched > 0.0)
            snprintf(from, sizeof from, " (%.0f bytes of it from other hosts)", fetched);
        fprintf(stderr, "smp-run: resumed from memory, step %lld of %s%s\n",
                (long long)smp_steps_done(t->job), smp__keep_folder(t->job), from);
    } else if (t->prints && t->about.trains) {
        char path[SMP__CHECKPOINT_PATH_BYTES];
        smp__checkpoint_path(path, o->checkpoint, smp_steps_done(t->job));
        fprintf(stderr, "smp-run: resumed after step %lld of %s\n",
                (long long)smp_steps_done(t->job), path);
    }
    if (t->prints && o->rows)
        smp__supervised_loaded(smp__keep_was_loaded(t->job), fetched);
    return SMP_OK;
}

static void find_position(smp__trainer *t)
{
    const int64_t step = smp_steps_done(t->job);
    if (!t->data || smp__job_position(t->job) >= 0)
        return;
    /* version 1: full batches, of as many samples as today's */
    int64_t samples = smp_data_samples(t->data);
    int64_t batches = samples > t->global_batch ? samples / t->global_batch : 1;
    smp__job_set_position(t->job, step / batches * samples + step % batches * t->global_batch);
}

static smp_status take_weights(smp__trainer *t)
{
    SMP_TRY(smp_load_weights(t->job, t->options->given, &t->options->weights_from));
    if (t->prints && smp_load_note(t->job)[0] != '\0')
        fprintf(stderr, "smp-run: %s\n", smp_load_note(t->job));
    return SMP_OK;
}

static bool trains(const smp__trainer *t)
{
    const smp_train_options *o = t->options;
    return t->about.trains && (o->epochs > 0 || o->steps > smp_steps_done(t->job));
}

/* The job has failed if the last save that was due has. */
static smp_status end_unsaved(const smp__trainer *t)
{
    return t->unsaved < 0 ? SMP_OK : smp_fail(SMP_ERR_FAILED, "%s", t->unsaved_why);
}

static void print_keep(const smp__trainer *t)
{
    smp_text text = {0};
    smp__keep_describe(t->job, &text);
    if (t->prints && text.data)
        fprintf(stderr, "smp-run: keeps its state in memory: %s\n", text.data);
    smp_text_free(&text);
}

/* A job that died in its last save has its last state in memory alone. */
static smp_status save_kept(smp__trainer *t)
{
    if (!t->saves || !smp__keep_was_loaded(t->job) || smp_steps_done(t->job) < t->options->steps)
        return SMP_OK;
    return note_save(t, true, smp_save(t->job, t->options->checkpoint));
}

static smp_status run_steps(smp__trainer *t)
{
    const smp_train_options *o = t->options;
    SMP_TRY(smp_agree(t->job,
                      t->prints && o->rows ? smp__supervised_output("--rows", o->rows) : SMP_OK));
    if (t->prints)
        smp__print_target(t->job, o->json);
    print_keep(t);
    t->global_batch = t->about.global_batch;
    if (o->resume)
        SMP_TRY(resume(t));
    t->good_step = o->resume && !smp__keep_was_loaded(t->job) ? smp_steps_done(t->job) : 0;
    SMP_TRY(smp_agree(t->job, smp__order_settle(t)));
    const int64_t least = trains(t) ? t->global_batch : 1;
    if (o->n_data > 0)
        SMP_TRY(smp__batches_open(t, o->data, o->n_data, o->shuffle, least, &t->data));
    if (o->n_eval_data > 0)
        SMP_TRY(smp__batches_open(t, o->eval_data, o->n_eval_data, false, 1, &t->eval_data));
    SMP_TRY(smp__batches_split(t));
    find_position(t);
    SMP_TRY(smp_agree(t->job, smp__receipt_make(t->job, o->told, t->data)));
    SMP_TRY(smp_agree(t->job, smp__receipt_compare(t->job, o->resume_changed)));
    SMP_TRY(smp_agree(t->job, smp__epochs_count(t)));
    SMP_TRY(smp_agree(t->job, smp__buffers_make(t)));
    SMP_TRY(smp_agree(t->job, smp__outputs_check(t)));
    if (o->given)
        SMP_TRY(take_weights(t));
    SMP_TRY(smp__best_find(t));
    if (o->predict)
        SMP_TRY(smp__prediction_open(t));
    SMP_TRY(smp__watch_open(t));
    if (t->saves)
        ask_save(t);
    SMP_TRY(save_kept(t));
    for (int64_t step = smp_steps_done(t->job) + 1; step <= o->steps && !t->stopped; step++)
        SMP_TRY(train_step(t, step));
    if (t->stopped)
        return end_unsaved(t);
    print_held(t);
    if (o->predict)
        SMP_TRY(smp__prediction_write(t));
    if (o->weights) {
        SMP_TRY(smp_export_weights_as(t->job, o->weights, &o->weights_as));
        SMP_TRY(smp_agree(t->job, smp__folder_complete(t)));
    }
    if (o->trace)
        SMP_TRY(smp_trace_write(t->job, o->trace));
    SMP_TRY(smp__watch_end(t));
    if (o->profile)
        SMP_TRY(smp_costs_write(t->job, o->profile));
    if (o->checksum)
        SMP_TRY(smp__print_checksum(t));
    if (t->prints && !o->json)
        smp__print_summary(t);
    smp_status status = SMP_OK;
    if (t->prints && (fflush(stdout) != 0 || ferror(stdout)))
        status = smp_fail(SMP_ERR_FAILED, "standard output: cannot write all results");
    SMP_TRY(smp_agree(t->job, status));
    return end_unsaved(t);
}

/* Do all ranks come to the end of the job? MPI_Finalize waits unwatched. */
static smp_status leave(smp__trainer *t, smp_status status)
{
    char reason[1024] = "";
    if (status != SMP_OK)
        snprintf(reason, sizeof(reason), "%s; then ", smp_last_error());
    smp_status left = smp_agree(t->job, SMP_OK);
    *t->job_broken = left != SMP_OK;
    return left == SMP_OK ? status : smp_fail(left, "%s%s", reason, smp_last_error());
}

static void free_data(smp__trainer *t)
{
    smp__read_ahead_stop(t->ahead);
    t->ahead = NULL;
    smp__buffers_free(t);
    smp_data_close(t->predict_data);
    smp_data_close(t->eval_data); /* may be a part of the other */
    smp_data_close(t->data);
}

/* Signals from here on: exec/job/on_signal.h. */
static void heed_signals(smp__trainer *t)
{
    t->saves = t->options->checkpoint && t->about.trains;
    smp__on_signal(t->job, t->saves);
}

static void tell_stop(smp__trainer *t)
{
    if (!t->prints || !t->stopped)
        return;
    fprintf(stderr, "smp-run: ended by a signal: step %lld is saved in %s, --resume goes on\n",
            (long long)smp_steps_done(t->job), t->options->checkpoint);
    print_held(t);
}

smp_status smp__train(const smp_train_options *options, bool *job_broken, bool *stopped)
{
    smp__trainer t = {.own = *options, .unsaved = -1, .job_broken = job_broken};
    t.options = &t.own;
    *job_broken = false;
    smp__on_signal(NULL, options->checkpoint);
    if (options->steps > 0 || options->epochs > 0)
        t.ahead = smp__read_ahead_start(); /* while this thread may still run on every core */
    smp_status status = smp_init(&t.job, &options->job);
    if (status == SMP_OK) {
        t.prints = smp_rank(t.job, SMP_WORLD) == 0;
        smp_job_describe(t.job, &t.about);
        smp_plan_prediction(t.job, &t.predicted);
        heed_signals(&t);
        status = run_steps(&t);
        smp__watch_close(&t);
        *job_broken = *job_broken || smp__job_failed(t.job);
        free_data(&t);
        if (!*job_broken)
            status = leave(&t, status);
        if (*job_broken)
            smp__job_explain(t.job, status);
        if (status == SMP_OK)
            tell_stop(&t);
    }
    smp__on_signal(NULL, false);
    smp__read_ahead_stop(t.ahead); /* of a job that could not be made */
    *job_broken = *job_broken || status == SMP_ERR_PEER;
    if (t.job && *job_broken)
        smp__save_drop_lock(t.job);
    if (smp__comm_was_told(status)) /* who failed prints that, and then ends all ranks */
        sleep(SMP_TELLER_S);
    if (stopped)
        *stopped = status == SMP_OK && t.stopped;
    if (t.job && !*job_broken)
        smp_finalize(t.job);
    return status;
}

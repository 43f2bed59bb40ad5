/* Training loop. Every rank reads the inputs of its stages, for its replica; rank 0 prints. */
#include "exec/training_loop.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/data/data.h"
#include "exec/inspect_job.h"
#include "exec/on_sigterm.h"
#include "exec/state/checkpoint_folder.h"
#include "exec/state/weights.h"
#include "exec/step/cost_samples.h"
#include "profile/measure.h"

enum { TELLER_S = 2 };

typedef struct trainer {
    const smp_train_options *options;
    smp *job;
    smp_data *data;
    smp_data *eval_data;
    int64_t global_batch;
    void **buffer;   /* [n_input]; NULL where not needed here */
    bool prints;     /* rank 0 */
    int64_t tokens;  /* per sample; 0: samples are not token sequences */
    double *step_us; /* of every step done, for the summary */
    int64_t n_step;
    bool save_due; /* waits for a step that is not skipped: weights that get nowhere must not push
                      good ones out of the directory */
    bool *job_broken;
} trainer;

/* What the job runs on, unless that goes without saying. */
static void print_target(const smp *s)
{
    if (s->device->host_memory && s->device_note[0] == '\0')
        return;
    fprintf(stderr, "smp-run: device %s (%s), %s", s->device->name,
            s->device->describe(s->device_context), smp_precision_name(s->target.precision));
    if (s->device_note[0] != '\0')
        fprintf(stderr, " [%s]", s->device_note);
    if (s->comm.world_size > 1)
        fprintf(stderr, ", transport %s", s->transport->name);
    if (s->comm.world_size > 1 && s->transport_note[0] != '\0')
        fprintf(stderr, " [%s]", s->transport_note);
    fputc('\n', stderr);
}

static smp_status open_data(trainer *t, const char *const *source, int n, bool shuffle,
                            int64_t least, smp_data **out)
{
    const smp *s = t->job;
    smp_data_options options = {.sources = source,
                                .n_source = n,
                                .global_batch = least,
                                .seed = t->options->data_seed,
                                .shuffle = shuffle};
    return smp__comm_agree(&t->job->comm, smp_data_open(s->graph, &options, out));
}

static smp_status make_buffers(trainer *t)
{
    const smp *s = t->job;
    t->buffer = calloc((size_t)s->graph->n_input + 1, sizeof(*t->buffer));
    t->step_us = calloc((size_t)t->options->steps + 1, sizeof(*t->step_us));
    if (!t->buffer || !t->step_us)
        return smp_fail_memory((size_t)t->options->steps * sizeof(*t->step_us));
    for (int i = 0; i < s->graph->n_input; i++) {
        if (!smp_input_needed(s, i))
            continue;
        size_t bytes = (size_t)(smp_step_samples(s) * s->graph->tensor[i].elements) * 4;
        t->buffer[i] = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!t->buffer[i])
            return smp_fail_memory(bytes);
    }
    return SMP_OK;
}

/* A part of a data set. */
typedef struct batch {
    int64_t first, samples;
} batch;

/* None goes across the end of a pass: the last one takes what is left of it, or leaves it out. */
static batch next_batch(const trainer *t)
{
    int64_t first = t->job->samples, samples = smp_data_samples(t->data);
    int64_t left = samples - first % samples;
    if (left >= t->global_batch)
        return (batch){first, t->global_batch};
    if (t->options->drop_last)
        return (batch){first + left, t->global_batch};
    return (batch){first, left};
}

/* This replica's part. */
static smp_status read_batch(trainer *t, smp_data *data, batch b)
{
    const smp *s = t->job;
    int64_t most = smp_step_samples(s), begin = s->comm.replica * most;
    int64_t count = b.samples - begin < most ? b.samples - begin : most;
    for (int i = 0; i < s->graph->n_input && count > 0; i++)
        if (t->buffer[i])
            SMP_TRY(smp_data_read(data, b.first + begin, count, i, t->buffer[i]));
    return SMP_OK;
}

/* JSON has no infinities. */
static const char *json_number(char *buffer, size_t size, const char *format, double value)
{
    snprintf(buffer, size, isfinite(value) ? format : "null", value);
    return buffer;
}

static void print_step(const trainer *t, const smp_step_result *r)
{
    bool has_loss = t->job->graph->loss >= 0;
    char loss[64], norm[64], measured[32], predicted[32];
    if (t->options->json) {
        printf("{\"step\": %" PRId64 ", \"loss\": %s, \"step_us\": %.1f, \"predicted_us\": %.1f, "
               "\"samples_per_s\": %.2f, \"lr\": %.6g, \"grad_norm\": %s, \"skipped\": %" PRId64
               "}\n",
               r->step, json_number(loss, sizeof(loss), "%.9g", has_loss ? r->loss : NAN),
               r->step_us, r->predicted_us, r->samples_per_s, r->lr,
               json_number(norm, sizeof(norm), "%.6g", r->grad_norm), r->skipped);
    } else {
        double rate = t->tokens > 0 ? r->samples_per_s * (double)t->tokens : r->samples_per_s;
        snprintf(loss, sizeof(loss), has_loss ? "%.4f" : "none", r->loss);
        printf("step %" PRId64 "  loss %s  %.0f %s/s  %s  predicted %s (x%.2f)", r->step, loss,
               rate, t->tokens > 0 ? "tokens" : "samples",
               smp_format_us(measured, sizeof(measured), r->step_us),
               smp_format_us(predicted, sizeof(predicted), r->predicted_us),
               r->predicted_us / r->step_us);
        if (r->skipped > 0)
            printf("  skipped %" PRId64, r->skipped);
        putchar('\n');
    }
    fflush(stdout);
}

/* hits: -1 if the loss has none. */
static void print_evaluation(const trainer *t, int64_t step, double loss, double rows, int64_t hits)
{
    const double accuracy = rows > 0.0 ? (double)hits / rows : NAN;
    char text[64], share[64];
    json_number(text, sizeof(text), "%.9g", loss);
    json_number(share, sizeof(share), "%.9g", accuracy);
    if (t->options->json && hits >= 0)
        printf("{\"step\": %" PRId64 ", \"eval_loss\": %s, \"accuracy\": %s}\n", step, text, share);
    else if (t->options->json)
        printf("{\"step\": %" PRId64 ", \"eval_loss\": %s}\n", step, text);
    else if (hits >= 0 && rows > 0.0)
        printf("step %" PRId64 "  evaluation loss %.4f  accuracy %.2f %%\n", step, loss,
               100.0 * accuracy);
    else
        printf("step %" PRId64 "  evaluation loss %.4f\n", step, loss);
    fflush(stdout);
}

/* The mean over the whole set, each target once. The losses of micro-batches are added in the order
 * of the samples: the micro-batch size decides the last bits, and nothing else of the plan does. */
static smp_status evaluate(trainer *t, int64_t step)
{
    const int64_t n = smp_data_samples(t->eval_data);
    const int microbatches = t->job->comm.ddp_size * t->job->microbatches;
    double sum = 0.0, rows = 0.0;
    int64_t hits = 0;
    for (batch b = {0}; b.first < n; b.first += b.samples) {
        smp_step_result r;
        b.samples = n - b.first < t->global_batch ? n - b.first : t->global_batch;
        smp_status status = read_batch(t, t->eval_data, b);
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
    if (t->prints)
        print_evaluation(t, step, rows > 0.0 ? sum / rows : 0.0, rows, hits);
    return SMP_OK;
}

static bool due(int64_t step, int64_t every, int64_t last)
{
    return step == last || (every > 0 && step % every == 0);
}

static smp_status train_step(trainer *t, int64_t step)
{
    const smp_train_options *o = t->options;
    smp_step_result r;
    batch b = next_batch(t);
    t->job->samples = b.first;
    smp_status status = read_batch(t, t->data, b);
    *t->job_broken = status != SMP_OK;
    if (status == SMP_OK) {
        status = smp_step_short(t->job, (const void *const *)t->buffer, b.samples, &r);
        *t->job_broken = t->job->comm.failed; /* else all ranks end alike */
    }
    if (status != SMP_OK)
        return status;
    t->step_us[t->n_step++] = r.step_us;
    if (t->prints && (o->json || step == 1 || due(step, o->log_every, o->steps)))
        print_step(t, &r);
    int saved; /* completes a save whose parts are written, or says that it has failed */
    SMP_TRY(smp_save_test(t->job, &saved));
    if (t->eval_data && due(step, o->eval_every, o->steps))
        SMP_TRY(evaluate(t, step));
    if (!o->checkpoint || !t->job->graph->training)
        return SMP_OK;
    t->save_due = t->save_due || due(step, o->save_every, o->steps);
    if (!t->save_due || (t->job->skipped_in_row > 0 && step < o->steps))
        return SMP_OK;
    t->save_due = false;
    return step < o->steps ? smp_save_begin(t->job, o->checkpoint)
                           : smp_save(t->job, o->checkpoint);
}

static void print_summary(const trainer *t)
{
    int64_t skip = smp__cold_steps(t->n_step);
    int64_t n = t->n_step - skip;
    if (n <= 0)
        return;
    double median = smp__median(t->step_us + skip, n), predicted = t->job->plan->predicted.step_us;
    char measured[32], planned[32];
    printf("median step %s, predicted %s, error %+.1f %% (%" PRId64 " step%s)\n",
           smp_format_us(measured, sizeof(measured), median),
           smp_format_us(planned, sizeof(planned), predicted), 100.0 * (predicted / median - 1.0),
           n, n == 1 ? "" : "s");
}

static smp_status print_checksum(trainer *t)
{
    smp *s = t->job;
    uint64_t own = 0;
    SMP_TRY(smp__weights_hash(s, &own));
    for (int replica = 0; replica < s->comm.ddp_size; replica++) {
        int root = smp_plan_first_process(s->plan, replica, 0);
        uint64_t hash = own;
        SMP_TRY(smp__comm_share(&s->comm, &hash, sizeof(hash), root));
        if (t->prints)
            printf(t->options->json ? "{\"replica\": %d, \"weights\": \"%016" PRIx64 "\"}\n"
                                    : "replica %d weights %016" PRIx64 "\n",
                   replica, hash);
    }
    return SMP_OK;
}

static smp_status check_folder(const char *path, const char *what)
{
    if (!path)
        return SMP_OK;
    const char *slash = strrchr(path, '/');
    char folder[4096];
    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    if (access(folder, W_OK | X_OK) != 0)
        return smp_fail(SMP_ERR_INPUT, "%s: cannot write %s: %s", path, what, strerror(errno));
    return SMP_OK;
}

static smp_status check_checkpoint(const trainer *t)
{
    const smp_train_options *o = t->options;
    if (!t->job->graph->training)
        return o->resume && o->save_every == 0
                   ? SMP_OK
                   : smp_fail(SMP_ERR_INPUT, "--checkpoint: the plan is for inference, nothing to "
                                             "save; with --resume its weights come from there");
    if (!o->resume && smp__checkpoint_exists(o->checkpoint))
        return smp_fail(SMP_ERR_INPUT,
                        "%s: holds a checkpoint already: continue it with --resume or choose "
                        "another directory",
                        o->checkpoint);
    SMP_TRY(smp__checkpoint_folder_make(o->checkpoint));
    if (access(o->checkpoint, W_OK | X_OK) != 0)
        return smp_fail(SMP_ERR_INPUT, "%s: cannot write checkpoints: %s", o->checkpoint,
                        strerror(errno));
    return SMP_OK;
}

/* What the end of the job will write can be written: found now, not after hours. */
static smp_status check_outputs(const trainer *t)
{
    const smp_train_options *o = t->options;
    if (!t->prints)
        return SMP_OK;
    if (o->checkpoint)
        SMP_TRY(check_checkpoint(t));
    if (o->report && !t->job->plan->cluster)
        return smp_fail(SMP_ERR_INPUT,
                        "--report: the plan has no `cluster:`, so there is no prediction to draw: "
                        "plan again with this version of smp-partition");
    SMP_TRY(check_folder(o->trace, "the trace"));
    SMP_TRY(check_folder(o->profile, "the profile"));
    if (check_folder(o->weights, "the weights") != SMP_OK)
        return smp_fail(SMP_ERR_FAILED, "%s", smp_last_error());
    return check_folder(o->report, "the report");
}

static smp_status resume(trainer *t)
{
    SMP_TRY(smp_load(t->job, t->options->checkpoint));
    if (t->prints && smp_load_note(t->job)[0] != '\0')
        fprintf(stderr, "smp-run: %s\n", smp_load_note(t->job));
    if (t->data &&
        t->job->samples < 0) { /* version 1: full batches, of as many samples as today's */
        int64_t samples = smp_data_samples(t->data);
        int64_t batches = samples > t->global_batch ? samples / t->global_batch : 1;
        t->job->samples =
            t->job->step / batches * samples + t->job->step % batches * t->global_batch;
    }
    return SMP_OK;
}

static smp_status run(trainer *t)
{
    const smp_train_options *o = t->options;
    t->prints = smp_rank(t->job, SMP_WORLD) == 0;
    if (t->prints)
        print_target(t->job);
    for (int i = 0; i < t->job->graph->n_input; i++) {
        const smp_tensor *input = &t->job->graph->tensor[i];
        if (t->tokens == 0 && input->dtype == SMP_I32 && input->shape.n_dim == 1)
            t->tokens = input->shape.dim[0];
    }
    t->global_batch = smp__job_global_batch(t->job);
    int64_t least = o->drop_last ? t->global_batch : 1;
    if (o->n_data > 0)
        SMP_TRY(open_data(t, o->data, o->n_data, o->shuffle, least, &t->data));
    if (o->n_eval_data > 0)
        SMP_TRY(open_data(t, o->eval_data, o->n_eval_data, false, 1, &t->eval_data));
    SMP_TRY(smp__comm_agree(&t->job->comm, make_buffers(t)));
    SMP_TRY(smp__comm_agree(&t->job->comm, check_outputs(t)));
    if (o->resume)
        SMP_TRY(resume(t));
    for (int64_t step = t->job->step + 1; step <= o->steps; step++)
        SMP_TRY(train_step(t, step));
    if (o->weights)
        SMP_TRY(smp_export_weights(t->job, o->weights));
    if (o->trace)
        SMP_TRY(smp_trace_write(t->job, o->trace));
    if (o->report)
        SMP_TRY(smp__report_write(t->job, o->report));
    if (o->profile)
        SMP_TRY(smp_costs_write(t->job, o->profile));
    if (o->checksum)
        SMP_TRY(print_checksum(t));
    if (t->prints && !o->json)
        print_summary(t);
    smp_status status = SMP_OK;
    if (t->prints && (fflush(stdout) != 0 || ferror(stdout)))
        status = smp_fail(SMP_ERR_FAILED, "standard output: cannot write all results");
    return smp__comm_agree(&t->job->comm, status);
}

/* Do all ranks come to the end of the job? MPI_Finalize waits unwatched. */
static smp_status leave(trainer *t, smp_status status)
{
    char reason[1024] = "";
    if (status != SMP_OK)
        snprintf(reason, sizeof(reason), "%s; then ", smp_last_error());
    smp_status left = smp__comm_agree(&t->job->comm, SMP_OK);
    *t->job_broken = left != SMP_OK;
    return left == SMP_OK ? status : smp_fail(left, "%s%s", reason, smp_last_error());
}

static void free_data(trainer *t)
{
    for (int i = 0; t->buffer && i < t->job->graph->n_input; i++)
        free(t->buffer[i]);
    free(t->buffer);
    free(t->step_us);
    smp_data_close(t->data);
    smp_data_close(t->eval_data);
}

smp_status smp__train(const smp_train_options *options, bool *job_broken)
{
    trainer t = {.options = options, .job_broken = job_broken};
    *job_broken = false;
    smp_status status = smp_init(&t.job, &options->job);
    if (status == SMP_OK) {
        smp__on_sigterm(t.job);
        status = run(&t);
        *job_broken = *job_broken || t.job->comm.failed;
        free_data(&t);
        if (!*job_broken)
            status = leave(&t, status);
        if (*job_broken && !t.job->comm.told && t.job->doing)
            smp__job_context(t.job, status);
        smp__on_sigterm(NULL);
    }
    *job_broken = *job_broken || status == SMP_ERR_PEER;
    if (smp__comm_was_told(status)) /* who failed prints that, and then ends all ranks */
        sleep(TELLER_S);
    if (t.job && !*job_broken)
        smp_finalize(t.job);
    return status;
}

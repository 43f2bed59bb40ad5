/* Batches of the training loop: tools/run/batches.h. */
#include "tools/run/batches.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "graph/base/clock.h"

smp_status smp__batches_open(smp__trainer *t, const char *const *source, int n, bool shuffle,
                             int64_t least, smp_data **out)
{
    smp_data_options options = {.sources = source,
                                .n_source = n,
                                .global_batch = least,
                                .seed = t->options->data_seed,
                                .shuffle = shuffle};
    return smp__job_data_open(t->job, &options, out);
}

/* What a resumed run would do otherwise than the one that it continues. */
static smp_status fail_order(const char *option, const char *was)
{
    return smp_fail(SMP_ERR_INPUT,
                    "%s: the run that is resumed had %s, and its samples would be others: leave "
                    "the option out, or start a run of its own in another directory",
                    option, was);
}

/* Do the options agree with the order in a checkpoint? */
static smp_status check_order(const smp__trainer *t, const smp__sample_order *order)
{
    const smp_train_options *o = t->options;
    char was[64];
    snprintf(was, sizeof was, "%" PRIu64, order->seed);
    if (o->data_seed != SMP__SEED_DEFAULT && o->data_seed != order->seed)
        return fail_order("--data-seed", was);
    if (!o->shuffle && order->shuffle)
        return fail_order("--no-shuffle", "its samples shuffled");
    if (o->drop_last && !order->drop_last)
        return fail_order("--drop-last", "short batches, too");
    snprintf(was, sizeof was, "%.9g", (double)order->held_out / SMP__WHOLE);
    if (o->held_out > 0 && o->held_out != order->held_out)
        return fail_order("--eval-split", order->held_out > 0 ? was : "none");
    if (o->n_eval_data > 0 && order->held_out > 0)
        return smp_fail(SMP_ERR_INPUT,
                        "--eval-data: the run that is resumed holds out %s of its --data", was);
    return SMP_OK;
}

smp_status smp__order_settle(smp__trainer *t)
{
    smp_train_options *o = &t->own;
    const smp__sample_order order = smp__job_order(t->job);
    if (o->resume && order.known) {
        SMP_TRY(check_order(t, &order));
        o->data_seed = order.seed;
        o->shuffle = order.shuffle;
        o->drop_last = order.drop_last;
        o->held_out = order.held_out;
    }
    if (o->data_seed == SMP__SEED_DEFAULT)
        o->data_seed = 1;
    smp__job_set_order(t->job, (smp__sample_order){.known = true,
                                                   .seed = o->data_seed,
                                                   .held_out = o->held_out,
                                                   .shuffle = o->shuffle,
                                                   .drop_last = o->drop_last});
    if (o->eval_every > 0 && o->n_eval_data == 0 && o->held_out == 0)
        return smp_fail(SMP_ERR_INPUT, "--eval-every needs --eval-data SOURCE or --eval-split X");
    if (o->keep_best && o->n_eval_data == 0 && o->held_out == 0)
        return smp_fail(SMP_ERR_INPUT, "--keep-best needs --eval-data SOURCE or --eval-split X");
    return SMP_OK;
}

smp_status smp__batches_split(smp__trainer *t)
{
    if (t->options->held_out == 0 || !t->data)
        return SMP_OK;
    const double share = (double)t->options->held_out / SMP__WHOLE;
    return smp_agree(t->job, smp_data_split(t->data, share, &t->eval_data));
}

smp_status smp__epochs_count(smp__trainer *t)
{
    const int64_t passes = t->options->epochs, at = smp__job_position(t->job),
                  batch = t->global_batch;
    if (passes == 0)
        return SMP_OK;
    const int64_t samples = smp_data_samples(t->data);
    int64_t end;
    if (__builtin_mul_overflow(passes, samples, &end) || end > INT64_MAX / 2)
        return smp_fail(SMP_ERR_INPUT,
                        "--epochs: %" PRId64 " passes over %" PRId64
                        " samples are more than can be counted",
                        passes, samples);
    const int64_t round_up = t->options->drop_last ? 0 : batch - 1;
    const int64_t left = samples - at % samples; /* of the pass that has begun */
    t->own.steps = smp_steps_done(t->job);
    if (at < end)
        t->own.steps += (left + round_up) / batch +
                        (end - at - left) / samples * ((samples + round_up) / batch);
    return SMP_OK;
}

static smp_status make_buffers(const smp *s, void ***out)
{
    const int n = smp_input_count(s);
    void **buffer = *out = calloc((size_t)n + 1, sizeof(*buffer));
    if (!buffer)
        return smp_fail_memory((size_t)n * sizeof(*buffer));
    for (int i = 0; i < n; i++) {
        if (!smp_input_needed(s, i))
            continue;
        const int64_t samples = smp_input_is_split(s, i) ? smp_step_samples(s) : 1;
        size_t bytes = (size_t)(samples * smp_input_elements(s, i)) * 4;
        buffer[i] = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!buffer[i])
            return smp_fail_memory(bytes);
    }
    return SMP_OK;
}

smp_status smp__buffers_make(smp__trainer *t)
{
    t->step_us = calloc((size_t)t->options->steps + 1, sizeof(*t->step_us));
    if (!t->step_us)
        return smp_fail_memory((size_t)t->options->steps * sizeof(*t->step_us));
    SMP_TRY(make_buffers(t->job, &t->buffer));
    return t->ahead ? make_buffers(t->job, &t->spare) : SMP_OK;
}

void smp__buffers_free(smp__trainer *t)
{
    void **const both[] = {t->buffer, t->spare};
    for (int k = 0; k < 2; k++) {
        for (int i = 0; both[k] && i < smp_input_count(t->job); i++)
            free(both[k][i]);
        free(both[k]);
    }
    free(t->step_us);
}

/* None goes across the end of a pass. */
static smp__batch batch_at(const smp__trainer *t, int64_t first)
{
    int64_t samples = smp_data_samples(t->data);
    int64_t left = samples - first % samples;
    if (left >= t->global_batch)
        return (smp__batch){first, t->global_batch};
    if (t->options->drop_last)
        return (smp__batch){first + left, t->global_batch};
    return (smp__batch){first, left};
}

smp__batch smp__next_batch(const smp__trainer *t)
{
    return batch_at(t, smp__job_position(t->job));
}

/* This replica's part of a batch. */
static smp__reading part_of(const smp__trainer *t, smp_data *data, smp__batch b, void **buffer)
{
    const smp *s = t->job;
    int64_t most = smp_step_samples(s), begin = smp_samples_before(s);
    return (smp__reading){.data = data,
                          .first = b.first + begin,
                          .count = b.samples - begin < most ? b.samples - begin : most,
                          .n_input = smp_input_count(s),
                          .buffer = buffer};
}

smp__batch smp__batch_in_order(const smp__trainer *t, const smp_data *data, int64_t first)
{
    const int64_t left = smp_data_samples(data) - first;
    return (smp__batch){first, left < t->global_batch ? left : t->global_batch};
}

smp_status smp__read_batch(smp__trainer *t, smp_data *data, smp__batch b)
{
    const smp__reading part = part_of(t, data, b, t->buffer);
    return smp__reading_do(&part);
}

/* What it costs to have the thread read, and to wait for it: less is sooner read here. */
enum { HAND_OVER_US = 50 };

/* Another batch than the one read ahead follows only where the position was moved in between. */
static smp_status get_batch(smp__trainer *t, smp__batch b)
{
    if (t->asked.samples > 0) {
        const smp_status status = smp__read_ahead_wait(t->ahead);
        const bool same = t->asked.first == b.first && t->asked.samples == b.samples;
        t->asked = (smp__batch){0};
        if (same) {
            void **const read = t->spare;
            t->spare = t->buffer;
            t->buffer = read;
            t->read_us = smp__read_ahead_took_us(t->ahead);
            return status;
        }
    }
    const double begin_s = smp_clock_s();
    const smp_status status = smp__read_batch(t, t->data, b);
    t->read_us = (smp_clock_s() - begin_s) * 1e6;
    return status;
}

smp_status smp__take_batch(smp__trainer *t, smp__batch b, bool more, double *wait_us)
{
    const double begin_s = smp_clock_s();
    SMP_TRY(get_batch(t, b));
    *wait_us = (smp_clock_s() - begin_s) * 1e6;
    if (t->n_step > 0) {
        t->wait_us += *wait_us;
        t->longest_wait_us = *wait_us > t->longest_wait_us ? *wait_us : t->longest_wait_us;
    }
    if (more && t->ahead && t->read_us > HAND_OVER_US) {
        t->asked = batch_at(t, b.first + b.samples);
        const smp__reading part = part_of(t, t->data, t->asked, t->spare);
        smp__read_ahead_ask(t->ahead, &part);
    }
    return SMP_OK;
}

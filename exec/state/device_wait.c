/* The host waits for the device, and looks where it is.
 *
 * Every action ends with a stamp that the device passes when it gets there, so a wait that takes
 * too long, or an error, names the first action that is not done. Progress of the device starts the
 * watchdog's clock again: a long step is not a hang. */
#include "exec/state/device_wait.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/state/updates.h"

/* A stamp after every PACE_CALLS operators, of which the oldest of PACE_SLOTS is waited for: at
 * most PACE_CALLS * PACE_SLOTS operators of a few kernels each are in the queue, which holds about
 * a thousand (assumed: it is not documented). */
enum { PACE_CALLS = 24, PACE_SLOTS = 4 };

/* Waits for a group within actions whose times are not yet read. */
enum { WAIT_SLOTS = 64 };

struct smp__queue {
    int64_t position; /* actions of the step that are enqueued */
    int64_t passed;   /* ... of which the device has done at least so many */
    int64_t calls;    /* operators enqueued, for smp__device_pace */
    bool times_work;
    int64_t timed;       /* of the actions that are passed, so many are in: */
    double work_s;       /* ... of the step, without its update */
    int64_t waits;       /* for a group, within actions */
    int64_t timed_waits; /* ... of which so many are out of work_s */
    double update_s;     /* of the weights, as smp__device_note_update has seen it */
};

smp_status smp__device_queue_open(smp *s)
{
    s->queue = calloc(1, sizeof *s->queue);
    return s->queue ? SMP_OK : smp_fail_memory(sizeof *s->queue);
}

void smp__device_queue_close(smp *s)
{
    free(s->queue);
}

void smp__device_queue_begin(smp *s)
{
    s->queue->position = s->queue->passed = s->queue->timed = 0;
    s->queue->waits = s->queue->timed_waits = 0;
    s->queue->work_s = 0.0;
}

int64_t smp__device_position(const smp *s)
{
    return s->queue->position;
}

/* Is there a stamp for the begin of every action? With a trace, and where work may be timed. */
static bool has_begins(const smp *s)
{
    return s->record || (!s->device->host_memory && s->comm->world_size > 1);
}

/* Stamps: the end of every action, the begin of every action, the slots, those of waits, marks. */
static int pace_stamp(const smp *s, int64_t mark)
{
    return (int)(s->work->program->n * (has_begins(s) ? 2 : 1) + mark % PACE_SLOTS);
}

static int wait_stamp(const smp *s, int64_t wait, bool over)
{
    return pace_stamp(s, 0) + PACE_SLOTS + (int)(wait % WAIT_SLOTS) * 2 + over;
}

static int mark_stamp(const smp *s, int mark)
{
    return wait_stamp(s, 0, false) + (has_begins(s) ? 2 * WAIT_SLOTS : 0) + mark;
}

int smp__device_stamps(const smp *s, int marks)
{
    return mark_stamp(s, marks);
}

static int begin_stamp(const smp *s, int64_t action)
{
    return (int)(s->work->program->n + action);
}

/* Is the device past both stamps? The seconds between them, else 0. */
static bool stamps_passed(const smp *s, int begin, int end, double *between_s)
{
    double begin_s, end_s;
    *between_s = 0.0;
    if (!s->device->passed(s->device_context, begin, &begin_s) ||
        !s->device->passed(s->device_context, end, &end_s))
        return false;
    *between_s = end_s - begin_s;
    return true;
}

/* Times are read as the device goes on, not when it is idle and the host should hurry. */
static void time_passed(smp *s)
{
    struct smp__queue *q = s->queue;
    double took_s;
    for (; q->times_work && q->timed < q->passed; q->timed++)
        if (smp_action_is_compute(s->work->program->action[q->timed].kind) &&
            stamps_passed(s, begin_stamp(s, q->timed), (int)q->timed, &took_s))
            q->work_s += took_s;
    for (; q->timed_waits < q->waits; q->timed_waits++) {
        const int64_t i = q->timed_waits;
        if (!stamps_passed(s, wait_stamp(s, i, false), wait_stamp(s, i, true), &took_s))
            break;
        q->work_s -= took_s;
    }
}

/* True if the device has done an action more than was known. */
static bool advance(smp *s)
{
    int64_t before = s->queue->passed;
    while (s->queue->passed < s->queue->position &&
           s->device->passed(s->device_context, (int)s->queue->passed, NULL))
        s->queue->passed++;
    time_passed(s);
    return s->queue->passed > before;
}

/* The first action that the device has not done, as far as is known; NULL: it has done all. */
static const smp_action *first_open(const smp *s)
{
    for (int64_t i = s->queue->passed; i < s->queue->position; i++) {
        const smp_action *action = &s->work->program->action[i];
        if (action->kind != SMP_ACTION_RECV_F && action->kind != SMP_ACTION_RECV_B)
            return action; /* a receive is nothing on the compute stream */
    }
    return NULL;
}

typedef struct device_wait {
    smp *job;
    int stamp; /* -1: until it is idle */
    smp_wait wait;
} device_wait;

static void describe_device(const void *context, char *buffer, size_t size)
{
    const smp *s = ((const device_wait *)context)->job;
    const smp_action *action = first_open(s);
    if (!action) {
        snprintf(buffer, size, "its device");
        return;
    }
    smp_text text = {0};
    smp_action_format(action, &text);
    snprintf(buffer, size, "its device to finish %s, %lld of %lld actions behind the host",
             text.data ? text.data : "an action",
             (long long)(s->queue->position - s->queue->passed), (long long)s->work->program->n);
    smp_text_free(&text);
}

/* Is the device idle, or has it passed the stamp? */
static smp_status test_device(void *context, bool *done)
{
    device_wait *w = context;
    smp *s = w->job;
    SMP_TRY(s->device->idle(s->device_context, done));
    *done = *done || (w->stamp >= 0 && s->device->passed(s->device_context, w->stamp, NULL));
    if (*done)
        return SMP_OK;
    if (s->endpoint->context)
        SMP_TRY(s->endpoint->transport->progress(s->endpoint->context));
    SMP_TRY(smp__updates_look(s));
    if (advance(s))
        w->wait.waited_s = 0.0;
    return SMP_OK;
}

/* What failed is the first action that is not done, not the one that the host is at. */
static void blame(smp *s)
{
    const smp_action *action = first_open(s);
    if (action)
        smp__place_action(s->place, action);
}

static smp_status wait_or_blame(smp *s, int stamp)
{
    device_wait w = {.job = s, .stamp = stamp};
    smp_status status = smp__comm_wait_until(s->comm, &w.wait, test_device, describe_device, &w);
    if (status != SMP_OK)
        blame(s);
    return status;
}

void smp__device_blame(smp *s)
{
    bool done;
    if (!s->device->host_memory && s->device->idle(s->device_context, &done) != SMP_OK)
        blame(s);
}

smp_status smp__device_idle(smp *s)
{
    SMP_TRY(wait_or_blame(s, -1));
    s->queue->passed = s->queue->position;
    return SMP_OK;
}

smp_status smp__device_pace(smp *s)
{
    if (s->device->host_memory || ++s->queue->calls % PACE_CALLS != 0)
        return SMP_OK;
    int64_t mark = s->queue->calls / PACE_CALLS;
    SMP_TRY(s->device->stamp(s->device_context, pace_stamp(s, mark)));
    return mark < PACE_SLOTS ? SMP_OK : wait_or_blame(s, pace_stamp(s, mark + 1));
}

smp_status smp__stamp_begin(smp *s)
{
    return s->record || s->queue->times_work
               ? s->device->stamp(s->device_context, begin_stamp(s, s->queue->position))
               : SMP_OK;
}

smp_status smp__stamp_end(smp *s)
{
    if (s->record || !s->device->host_memory) /* of the host's own steps only a trace asks */
        SMP_TRY(s->device->stamp(s->device_context, (int)s->queue->position));
    smp__record_action(s->record, &s->work->program->action[s->queue->position]);
    s->queue->position++;
    if (!s->device->host_memory)
        advance(s);
    return SMP_OK;
}

void smp__device_time_work(smp *s)
{
    s->queue->times_work = has_begins(s) && !s->device->host_memory && s->plan->cluster;
}

void smp__device_note_update(smp *s)
{
    const int64_t last = s->work->program->n - 1;
    if (s->queue->times_work && s->work->program->action[last].kind == SMP_ACTION_OPTIMIZE)
        stamps_passed(s, begin_stamp(s, last), (int)last, &s->queue->update_s);
}

smp_status smp__stamp_wait(smp *s, bool over)
{
    struct smp__queue *q = s->queue;
    if (!q->times_work || q->position >= s->work->program->n ||
        !smp_action_is_compute(s->work->program->action[q->position].kind))
        return SMP_OK;
    time_passed(s);
    if (!over && q->waits - q->timed_waits == WAIT_SLOTS) {
        SMP_TRY(wait_or_blame(s, wait_stamp(s, q->timed_waits, true)));
        time_passed(s);
    }
    SMP_TRY(s->device->stamp(s->device_context, wait_stamp(s, q->waits, over)));
    q->waits += over;
    return SMP_OK;
}

double smp__device_work_us(smp *s)
{
    time_passed(s);
    return 1e6 * (s->queue->work_s + s->queue->update_s);
}

smp_status smp__stamp_mark(smp *s, int mark)
{
    return s->device->stamp(s->device_context, mark_stamp(s, mark));
}

smp_status smp__mark_time(const smp *s, int mark, double *time_s)
{
    if (s->device->passed(s->device_context, mark_stamp(s, mark), time_s))
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "the device has no time for mark %d of the step", mark);
}

smp_status smp__trace_collect(smp *s)
{
    if (!smp__record_is_on(s->record))
        return SMP_OK;
    SMP_TRY(smp__device_idle(s));
    smp_trace_event *event;
    const int64_t n = smp__record_events(s->record, &event);
    const double *ended_us = smp__record_ended_us(s->record);
    for (int64_t i = 0; i < n; i++, event++) {
        double begin_s = smp__record_begin_s(s->record), end_s = begin_s;
        if (!s->device->passed(s->device_context, begin_stamp(s, i), &begin_s) ||
            !s->device->passed(s->device_context, (int)i, &end_s))
            return smp_fail(SMP_ERR_FAILED, "the device has no time for action %lld of the step",
                            (long long)i);
        event->world_rank = s->comm->world_rank;
        event->stage = event->action.chunk >= 0 ? s->work->stage_of_chunk[event->action.chunk] : -1;
        event->start_us = smp__record_us(s->record, begin_s);
        event->end_us = fmax(smp__record_us(s->record, end_s), ended_us[i]);
    }
    smp__record_end(s->record, s->comm->world_rank);
    return SMP_OK;
}

/* In the host area of a GPU's rank? */
static bool is_in_host(const smp *s, const void *place)
{
    const char *at = place;
    return s->buffers->host_area && at >= s->buffers->host_area &&
           at < s->buffers->host_area + s->memory->host_bytes;
}

smp_status smp__copy_in(smp *s, void *target, const void *values, int64_t bytes)
{
    if (s->device->host_memory)
        return s->device->copy(s->device_context, target, values, bytes);
    if (is_in_host(s, target)) {
        memcpy(target, values, (size_t)bytes);
        return SMP_OK;
    }
    SMP_TRY(smp__device_idle(s)); /* it may still read the pieces of an update */
    for (int64_t done = 0; done < bytes; done += SMP__PIECE_BYTES) {
        int64_t n = bytes - done < SMP__PIECE_BYTES ? bytes - done : SMP__PIECE_BYTES;
        memcpy(s->buffers->piece, (const char *)values + done, (size_t)n);
        SMP_TRY(s->device->upload(s->device_context, (char *)target + done, s->buffers->piece, n));
        SMP_TRY(smp__device_idle(s));
    }
    return SMP_OK;
}

smp_status smp__copy_out(smp *s, void *values, const void *source, int64_t bytes)
{
    if (s->device->host_memory)
        return s->device->copy(s->device_context, values, source, bytes);
    if (is_in_host(s, source)) {
        memcpy(values, source, (size_t)bytes);
        return SMP_OK;
    }
    for (int64_t done = 0; done < bytes; done += SMP__PIECE_BYTES) {
        int64_t n = bytes - done < SMP__PIECE_BYTES ? bytes - done : SMP__PIECE_BYTES;
        SMP_TRY(s->device->download(s->device_context, s->buffers->piece,
                                    (const char *)source + done, n));
        SMP_TRY(smp__device_idle(s));
        memcpy((char *)values + done, s->buffers->piece, (size_t)n);
    }
    return SMP_OK;
}

smp_status smp__copy_view(smp *s, const void *source, int64_t bytes, const void **values,
                          void **copy)
{
    *copy = NULL;
    *values = source;
    if (s->device->host_memory)
        return SMP_OK;
    void *buffer = malloc((size_t)bytes + 1);
    smp_status status =
        buffer ? smp__copy_out(s, buffer, source, bytes) : smp_fail_memory((size_t)bytes);
    if (status != SMP_OK) {
        free(buffer);
        return status;
    }
    *values = *copy = buffer;
    return SMP_OK;
}

/* What a program may look at between steps: weights by name, the events of the last step. */
#include "exec/job/inspect_job.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "exec/save/checkpoint_keep.h"
#include "exec/state/handle.h"
#include "exec/state/device_wait.h"
#include "exec/state/shards.h"
#include "exec/state/updates.h"
#include "exec/state/weights.h"

int smp_weight_count(const smp *s)
{
    return smp_graph_whole(s->graph)->n_param;
}

static bool has_weight(const smp *s, int weight)
{
    return weight >= 0 && weight < smp_weight_count(s);
}

const char *smp_weight_name(const smp *s, int weight)
{
    return has_weight(s, weight) ? smp_graph_whole(s->graph)->param[weight].name : NULL;
}

int64_t smp_weight_elements(const smp *s, int weight)
{
    return has_weight(s, weight) ? smp_graph_whole(s->graph)->param[weight].elements : 0;
}

/* A weight on its way from or to a caller's memory. */
enum { SLICE_ELEMENTS = 1 << 18 };

typedef struct weight_copy {
    int32_t param;         /* of this rank's graph */
    smp__holding *holding; /* [n] */
    int n;
    float *slice;      /* SLICE_ELEMENTS of a device's part */
    smp_status status; /* of this rank, which goes on with the others */
} weight_copy;

static smp_status open_copy(const smp *s, const char *name, int64_t count, weight_copy *c)
{
    SMP_TRY(smp__job_usable(s));
    c->param = name ? smp_graph_find_param(s->graph, name) : -1;
    if (c->param < 0)
        return smp_fail(SMP_ERR_INPUT, "weight '%s': the model has no weight of that name",
                        name ? name : "(null)");
    const int64_t elements = smp__runs_whole(&s->graph->param[c->param]);
    if (count != elements)
        return smp_fail(SMP_ERR_INPUT, "weight '%s': got %" PRId64 " elements, it has %" PRId64,
                        name, count, elements);
    const size_t holdings = (size_t)smp__most_holdings(s) * sizeof(*c->holding);
    c->holding = malloc(holdings);
    c->slice = malloc(SLICE_ELEMENTS * sizeof(float));
    return c->holding && c->slice ? SMP_OK
                                  : smp_fail_memory(holdings + SLICE_ELEMENTS * sizeof(float));
}

static void close_copy(weight_copy *c)
{
    free(c->holding);
    free(c->slice);
}

/* What one rank has, to all. */
static smp_status share_holding(smp *s, weight_copy *c, const smp__holding *h, float *values)
{
    const int32_t held = smp__job_find_param(s, c->param);
    for (int64_t at = h->begin, n; at < h->end; at += n) {
        n = h->end - at < SLICE_ELEMENTS ? h->end - at : SLICE_ELEMENTS;
        const int64_t bytes = n * (int64_t)sizeof(float);
        if (s->comm->world_rank == h->rank && c->status == SMP_OK)
            c->status = smp__copy_out(s, c->slice, smp__weight_at(s, held, at), bytes);
        SMP_TRY(smp__comm_share(s->comm, c->slice, bytes, h->rank));
        smp__runs_put(h->runs, c->slice, at, n, values, 0);
    }
    return SMP_OK;
}

static smp_status share_weight(smp *s, weight_copy *c, float *values)
{
    SMP_TRY(smp__find_holdings(s, c->param, c->holding, &c->n));
    for (int i = 0; i < c->n; i++)
        SMP_TRY(share_holding(s, c, &c->holding[i], values));
    if (s->device->host_memory) /* a device may fail, a host not */
        return SMP_OK;
    return smp__comm_agree(s->comm, c->status);
}

smp_status smp_weight_get(smp *s, const char *name, float *values, int64_t count)
{
    weight_copy c = {0};
    if (!s || !values)
        return smp_fail(SMP_ERR_INPUT, "smp_weight_get: a NULL argument");
    smp_status status = smp__comm_agree(s->comm, open_copy(s, name, count, &c));
    if (status == SMP_OK)
        status = smp__updates_settle(s);
    if (status == SMP_OK)
        status = share_weight(s, &c, values);
    close_copy(&c);
    return status;
}

/* What is here of it: all, or its part. */
static smp_status set_weight(smp *s, const weight_copy *c, const float *values)
{
    const smp_param *param = &s->graph->param[c->param];
    const int32_t held = smp__job_find_param(s, c->param);
    if (held < 0)
        return SMP_OK;
    const smp__range here = smp__held_range(s, held);
    for (int64_t at = here.begin, n; at < here.end; at += n) {
        n = here.end - at < SLICE_ELEMENTS ? here.end - at : SLICE_ELEMENTS;
        smp__runs_take(smp__runs_of(param), c->slice, at, n, values, 0);
        SMP_TRY(smp__copy_in(s, smp__weight_at(s, held, at), c->slice, n * (int64_t)sizeof(float)));
    }
    return smp__weight_round(s, held);
}

smp_status smp_weight_set(smp *s, const char *name, const float *values, int64_t count)
{
    weight_copy c = {0};
    if (!s || !values)
        return smp_fail(SMP_ERR_INPUT, "smp_weight_set: a NULL argument");
    smp_status status = smp__comm_agree(s->comm, open_copy(s, name, count, &c));
    if (status == SMP_OK)
        status = smp__updates_settle(s);
    if (status == SMP_OK)
        status = smp__keep_settle(s);
    if (status == SMP_OK)
        status = set_weight(s, &c, values);
    close_copy(&c);
    return status;
}

/* It travels as so many bytes. */
static smp_status check_length(const smp *s)
{
    smp_trace_event *event;
    const int64_t bytes =
        (smp__record_events(s->record, &event) + 1) * (int64_t)sizeof(smp_trace_event);
    if (bytes <= INT_MAX)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "a trace of %" PRId64 " bytes: expected at most %d", bytes,
                    INT_MAX);
}

/* Rank 0 gets everybody's events, malloc'ed. Ranks run the same binary: events travel as bytes.
 * What MPI may still use after a failure is not freed. */
static smp_status gather_events(smp *s, smp_trace_event **events, int64_t *n)
{
    const int size = s->comm->world_size;
    smp_trace_event *event;
    int64_t n_own = smp__record_events(s->record, &event);
    n_own += event[n_own].end_us > event[n_own].start_us;              /* the updates beside */
    const int bytes = (int)(n_own * (int64_t)sizeof(smp_trace_event)); /* check_length */
    int64_t total = 0;
    int *count = calloc((size_t)size * 2 + 1, sizeof(int)), *own;
    smp_status status = count ? SMP_OK : smp_fail_memory((size_t)size * 2 * sizeof(int));
    if ((status = smp__comm_agree(s->comm, status)) != SMP_OK)
        goto done;
    own = count + 2 * size;
    *own = bytes;
    status = smp__comm_finish(
        s->comm,
        MPI_Igather(own, 1, MPI_INT, count, 1, MPI_INT, 0, s->comm->world, &s->comm->collective),
        "the lengths of the other ranks' traces");
    if (status != SMP_OK)
        goto done;
    for (int rank = 0; s->comm->world_rank == 0 && rank < size; rank++) {
        count[size + rank] = (int)total;
        total += count[rank];
    }
    *events = total <= INT_MAX ? malloc((size_t)total + 1) : NULL;
    if (!*events)
        status = smp_fail(SMP_ERR_FAILED, "no memory for a trace of %" PRId64 " bytes", total);
    if ((status = smp__comm_agree(s->comm, status)) != SMP_OK)
        goto done;
    status = smp__comm_finish(s->comm,
                              MPI_Igatherv(event, bytes, MPI_BYTE, *events, count, count + size,
                                           MPI_BYTE, 0, s->comm->world, &s->comm->collective),
                              "the other ranks' traces");
    *n = total / (int64_t)sizeof(smp_trace_event);
done:
    if (!s->comm->failed)
        free(count);
    return status;
}

static bool is_of(const smp *s, const smp__channel *channel, const smp_action *action)
{
    const bool send = action->kind == SMP_ACTION_SEND_F || action->kind == SMP_ACTION_SEND_B;
    const bool forward = action->kind == SMP_ACTION_SEND_F || action->kind == SMP_ACTION_RECV_F;
    const smp_transfer *transfer = &s->work->flow->transfer[channel->transfer];
    return channel->outgoing == send && (transfer->kind == SMP_TRANSFER_F) == forward;
}

/* When the action that a `<` is for began: on a device that waits by itself its messages had come
 * by then. */
static double reader_begin_us(const smp_trace_event *event, int64_t n, int64_t at)
{
    const smp_action *receive = &event[at].action;
    for (int64_t i = at + 1; i < n; i++) {
        const smp_action *a = &event[i].action;
        const bool reads = receive->kind == SMP_ACTION_RECV_F
                               ? a->kind == SMP_ACTION_F
                               : a->kind == SMP_ACTION_B || a->kind == SMP_ACTION_I;
        if (reads && a->chunk == receive->chunk && a->microbatch == receive->microbatch)
            return event[i].start_us;
    }
    return event[at].start_us;
}

/* The `<` of this rank end when their messages had come; arrived_us: [n_transfer][microbatches]. */
static void end_receives(const smp *s, double *arrived_us)
{
    smp_trace_event *events;
    const int64_t n = smp__record_events(s->record, &events);
    for (int64_t i = 0; i < n; i++) {
        smp_trace_event *event = &events[i];
        const smp_action *a = &event->action;
        const smp__chunk *chunk = a->chunk < 0 ? NULL : &s->work->chunk[a->chunk];
        if (a->kind != SMP_ACTION_RECV_F && a->kind != SMP_ACTION_RECV_B)
            continue;
        event->end_us = event->start_us;
        for (int k = 0; k < chunk->n_channel; k++) {
            if (!is_of(s, &chunk->channel[k], a))
                continue;
            const double us = s->endpoint->transport->on_device
                                  ? reader_begin_us(events, n, i)
                                  : chunk->channel[k].arrived_us[a->microbatch];
            arrived_us[(int64_t)chunk->channel[k].transfer * s->work->microbatches +
                       a->microbatch] = us;
            event->end_us = us > event->end_us ? us : event->end_us;
        }
    }
}

static void end_sends(const smp *s, const double *arrived_us)
{
    smp_trace_event *events;
    const int64_t n = smp__record_events(s->record, &events);
    for (int64_t i = 0; i < n; i++) {
        smp_trace_event *event = &events[i];
        const smp_action *a = &event->action;
        const smp__chunk *chunk = a->chunk < 0 ? NULL : &s->work->chunk[a->chunk];
        if (a->kind != SMP_ACTION_SEND_F && a->kind != SMP_ACTION_SEND_B)
            continue;
        event->end_us = event->start_us;
        for (int k = 0; k < chunk->n_channel; k++) {
            if (!is_of(s, &chunk->channel[k], a))
                continue;
            const double us =
                arrived_us[(int64_t)chunk->channel[k].transfer * s->work->microbatches +
                           a->microbatch];
            event->end_us = us > event->end_us ? us : event->end_us;
        }
    }
}

static void count_from(smp *s, double begin_s)
{
    const double later_us = 1e6 * (smp__record_begin_s(s->record) - begin_s);
    smp__record_align(s->record, begin_s);
    for (int chunk = 0; chunk < s->work->chunks; chunk++)
        for (int i = 0; i < s->work->chunk[chunk].n_channel; i++)
            for (int mb = 0;
                 s->work->chunk[chunk].channel[i].arrived_us && mb < s->work->microbatches; mb++)
                s->work->chunk[chunk].channel[i].arrived_us[mb] += later_us;
}

/* Times are counted from where the first rank began its step, if all ranks are on one machine, with
 * one clock. Else from where each one did: about the same moment, since all come from the sums of
 * the step before. */
static smp_status align_times(smp *s)
{
    const int size = s->comm->world_size;
    if (smp__record_is_aligned(s->record) || s->comm->node_size < size)
        return SMP_OK;
    double first_s = smp__record_begin_s(s->record);
    double *begin_s = calloc((size_t)size, sizeof(*begin_s));
    smp_status status =
        smp__comm_agree(s->comm, begin_s ? SMP_OK : smp_fail_memory((size_t)size * 8));
    if (status == SMP_OK) {
        begin_s[s->comm->world_rank] = first_s;
        status = smp__comm_sum(s->comm, begin_s, size);
    }
    for (int rank = 0; status == SMP_OK && rank < size; rank++)
        first_s = begin_s[rank] < first_s ? begin_s[rank] : first_s;
    if (!s->comm->failed) /* MPI may still add to it */
        free(begin_s);
    if (status != SMP_OK)
        return status;
    count_from(s, first_s);
    return SMP_OK;
}

/* Ends of sends and receives as smp_trace_event says. */
static smp_status end_messages(smp *s)
{
    const int64_t n = (int64_t)s->work->flow->n_transfer * s->work->microbatches;
    double *all_us = NULL;
    smp_status status = align_times(s);
    if (status != SMP_OK || n == 0 || s->comm->pipeline_size == 1)
        return status;
    if (n > INT_MAX || !(all_us = calloc((size_t)n, sizeof(*all_us))))
        status = smp_fail_memory((size_t)n * sizeof(*all_us));
    status = smp__comm_agree(s->comm, status);
    for (int replica = 0; replica < s->comm->ddp_size && status == SMP_OK; replica++) {
        for (int device = 0; device < s->comm->tensor_most && status == SMP_OK; device++) {
            const bool here = replica == s->comm->replica && device == s->comm->tensor_rank;
            memset(all_us, 0, (size_t)n * sizeof(*all_us));
            if (here)
                end_receives(s, all_us);
            status = smp__comm_sum(s->comm, all_us, (int)n);
            if (status == SMP_OK && here)
                end_sends(s, all_us);
        }
    }
    if (!s->comm->failed) /* MPI may still add to it */
        free(all_us);
    return status;
}

static smp_status write_trace(const smp_plan *plan, const smp_graph *graph, const char *path,
                              const smp_trace_event *measured, int64_t n, const void *data)
{
    (void)data;
    return smp_trace_save(plan, graph, measured, n, path);
}

smp_status smp__events_write(smp *s, const char *path, smp__event_writer *writer, const void *data)
{
    smp_trace_event *events = NULL;
    int64_t n = 0;
    SMP_TRY(smp__job_usable(s));
    smp_status status = smp__trace_collect(s);
    if (status == SMP_OK)
        status = check_length(s);
    status = smp__comm_agree(s->comm, status);
    if (status == SMP_OK)
        status = end_messages(s);
    if (status == SMP_OK)
        status = gather_events(s, &events, &n);
    if (status == SMP_OK)
        status = smp__comm_agree(s->comm, s->comm->world_rank == 0
                                              ? writer(s->plan, s->graph, path, events, n, data)
                                              : SMP_OK);
    if (!s->comm->failed)
        free(events);
    return status;
}

smp_status smp_trace_write(smp *s, const char *path)
{
    if (!s || !path)
        return smp_fail(SMP_ERR_INPUT, "smp_trace_write: a NULL argument");
    if (!s->record)
        return smp_fail(SMP_ERR_INPUT, "smp_trace_write needs options.record_trace");
    return smp__events_write(s, path, write_trace, NULL);
}

/* What a program may look at between steps: weights by name, the last step as a trace or a page. */
#include "exec/inspect_job.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "exec/state/device_wait.h"
#include "exec/state/weights.h"
#include "schedule/show/picture.h"

int smp_weight_count(const smp *s)
{
    return s->graph->n_param;
}

static bool has_weight(const smp *s, int weight)
{
    return weight >= 0 && weight < s->graph->n_param;
}

const char *smp_weight_name(const smp *s, int weight)
{
    return has_weight(s, weight) ? s->graph->param[weight].name : NULL;
}

int64_t smp_weight_elements(const smp *s, int weight)
{
    return has_weight(s, weight) ? s->graph->param[weight].elements : 0;
}

static smp_status find_weight(const smp *s, const char *name, int64_t count, int32_t *param)
{
    SMP_TRY(smp__job_usable(s));
    *param = name ? smp_graph_find_param(s->graph, name) : -1;
    if (*param < 0)
        return smp_fail(SMP_ERR_INPUT, "weight '%s': the model has no weight of that name",
                        name ? name : "(null)");
    int64_t elements = s->graph->param[*param].elements;
    if (count != elements)
        return smp_fail(SMP_ERR_INPUT, "weight '%s': got %" PRId64 " elements, it has %" PRId64,
                        name, count, elements);
    return SMP_OK;
}

smp_status smp_weight_get(smp *s, const char *name, float *values, int64_t count)
{
    int32_t param = -1;
    if (!s || !values)
        return smp_fail(SMP_ERR_INPUT, "smp_weight_get: a NULL argument");
    SMP_TRY(smp__comm_agree(&s->comm, find_weight(s, name, count, &param)));
    int32_t held = smp__job_find_param(s, param);
    bool source = held >= 0 && s->memory->param[held].owner && s->comm.replica == 0;
    int root = source ? s->comm.world_rank : -1;
    SMP_TRY(smp__comm_max(&s->comm, &root));
    smp_status status = SMP_OK;
    if (source)
        status = smp__copy_out(s, values, s->arena + s->memory->param[held].weight,
                               count * (int64_t)sizeof(float));
    if (!s->device->host_memory) /* a device may fail here, a host not */
        SMP_TRY(smp__comm_agree(&s->comm, status));
    return smp__comm_share(&s->comm, values, count * (int64_t)sizeof(float), root);
}

smp_status smp_weight_set(smp *s, const char *name, const float *values, int64_t count)
{
    int32_t param = -1;
    if (!s || !values)
        return smp_fail(SMP_ERR_INPUT, "smp_weight_set: a NULL argument");
    SMP_TRY(smp__comm_agree(&s->comm, find_weight(s, name, count, &param)));
    int32_t held = smp__job_find_param(s, param);
    if (held < 0)
        return SMP_OK;
    SMP_TRY(smp__copy_in(s, s->arena + s->memory->param[held].weight, values,
                         count * (int64_t)sizeof(float)));
    return smp__weight_round(s, held);
}

/* Rank 0 gets everybody's events, malloc'ed. Ranks run the same binary: events travel as bytes.
 * What MPI may still use after a failure is not freed. */
static smp_status gather_events(smp *s, smp_trace_event **events, int64_t *n)
{
    const int64_t own_bytes = s->n_event * (int64_t)sizeof(smp_trace_event);
    const int size = s->comm.world_size, bytes = (int)own_bytes;
    int64_t total = 0;
    int *count = calloc((size_t)size * 2 + 1, sizeof(int)), *own;
    smp_status status = count ? SMP_OK : smp_fail_memory((size_t)size * 2 * sizeof(int));
    if (own_bytes > INT_MAX)
        status = smp_fail(SMP_ERR_FAILED, "a trace of %" PRId64 " bytes: expected at most %d",
                          own_bytes, INT_MAX);
    if ((status = smp__comm_agree(&s->comm, status)) != SMP_OK)
        goto done;
    own = count + 2 * size;
    *own = bytes;
    status = smp__comm_finish(
        &s->comm,
        MPI_Igather(own, 1, MPI_INT, count, 1, MPI_INT, 0, s->comm.world, &s->comm.collective),
        "the lengths of the other ranks' traces");
    if (status != SMP_OK)
        goto done;
    for (int rank = 0; s->comm.world_rank == 0 && rank < size; rank++) {
        count[size + rank] = (int)total;
        total += count[rank];
    }
    *events = total <= INT_MAX ? malloc((size_t)total + 1) : NULL;
    if (!*events)
        status = smp_fail(SMP_ERR_FAILED, "no memory for a trace of %" PRId64 " bytes", total);
    if ((status = smp__comm_agree(&s->comm, status)) != SMP_OK)
        goto done;
    status = smp__comm_finish(&s->comm,
                              MPI_Igatherv(s->event, bytes, MPI_BYTE, *events, count, count + size,
                                           MPI_BYTE, 0, s->comm.world, &s->comm.collective),
                              "the other ranks' traces");
    *n = total / (int64_t)sizeof(smp_trace_event);
done:
    if (!s->comm.failed)
        free(count);
    return status;
}

static smp_status write_trace(smp *s, const char *path, const smp_trace_event *measured, int64_t n)
{
    return smp_trace_save(s->plan, s->graph, measured, n, path);
}

/* The prediction above what was measured. */
static smp_status write_report(smp *s, const char *path, const smp_trace_event *measured, int64_t n)
{
    smp_picture *picture = NULL;
    smp_text html = {0};
    smp_status status = smp_picture_open(s->plan, s->graph, &picture);
    if (status == SMP_OK)
        status = smp_picture_add_measured(picture, measured, n);
    if (status == SMP_OK)
        status = smp_picture_html(picture, &html);
    if (status == SMP_OK)
        status = smp_file_write(path, html.data, html.length);
    smp_text_free(&html);
    smp_picture_close(picture);
    return status;
}

typedef smp_status event_writer(smp *s, const char *path, const smp_trace_event *measured,
                                int64_t n);

static smp_status write_events(smp *s, const char *path, event_writer *writer)
{
    smp_trace_event *events = NULL;
    int64_t n = 0;
    SMP_TRY(smp__job_usable(s));
    smp_status status = smp__comm_agree(&s->comm, smp__trace_collect(s));
    if (status == SMP_OK)
        status = gather_events(s, &events, &n);
    if (status == SMP_OK)
        status = smp__comm_agree(&s->comm,
                                 s->comm.world_rank == 0 ? writer(s, path, events, n) : SMP_OK);
    if (!s->comm.failed)
        free(events);
    return status;
}

smp_status smp__report_write(smp *s, const char *path)
{
    return write_events(s, path, write_report);
}

smp_status smp_trace_write(smp *s, const char *path)
{
    if (!s || !path)
        return smp_fail(SMP_ERR_INPUT, "smp_trace_write: a NULL argument");
    if (!s->event)
        return smp_fail(SMP_ERR_INPUT, "smp_trace_write needs options.record_trace");
    return write_events(s, path, write_trace);
}

/* The link to host memory, over the host area that a job would take: a copy out and one back, begun
 * together as S and L are, until the slower one has arrived. That is what a plan may count on in
 * each direction, since in the middle of a step both are busy, and one alone takes no longer. All
 * devices measure at once, as they share their host's memory; rank 0's time counts. */
#include "exec/probe/probe_host.h"

#include <stdio.h>

#include "graph/base/clock.h"

static smp_status open_far(smp__probe_state *p, smp__probe_host *host, int64_t bytes)
{
    if (bytes <= host->bytes)
        return SMP_OK;
    const smp_offload_area_options options = {.device = p->device,
                                              .device_context = p->device_context,
                                              .bytes = SMP_COPY_DIRECTIONS * bytes,
                                              .slots = SMP_COPY_DIRECTIONS,
                                              .folder = host->folder};
    smp__probe_host_close(host);
    SMP_TRY(smp_offload_area_open(&options, &host->area));
    host->bytes = bytes;
    return SMP_OK;
}

typedef struct copy_wait {
    smp_offload_area *area;
    int slot;
} copy_wait;

static smp_status test_copy(void *context, bool *done)
{
    const copy_wait *w = context;
    return smp_offload_area_join(w->area, w->slot, done);
}

static void describe_copy(const void *context, char *buffer, size_t size)
{
    const copy_wait *w = context;
    snprintf(buffer, size, "a copy %s host memory (%s)",
             w->slot == SMP_COPY_TO_HOST ? "to" : "from", smp_offload_area_name(w->area));
}

/* Waits as a rank does, which leaves the cores to the threads that copy. */
static smp_status copy_both(smp__probe_state *p, smp_offload_area *area, char *const *values,
                            int64_t bytes)
{
    smp_comm alone = {.crowded = true, .notice = MPI_COMM_NULL};
    smp_comm *comm = p->parallel ? &p->comm : &alone;
    for (int way = 0; way < SMP_COPY_DIRECTIONS; way++)
        SMP_TRY(smp_offload_area_begin(area, way, (smp_copy_direction)way, values[way], way * bytes,
                                       bytes));
    for (int way = 0; way < SMP_COPY_DIRECTIONS; way++)
        SMP_TRY(smp__comm_wait_until(comm, &(smp_wait){0}, test_copy, describe_copy,
                                     &(copy_wait){area, way}));
    return SMP_OK;
}

static smp_status copies(smp__probe_state *p, const smp__probe_host *host, int64_t bytes,
                         int repeat, double *us)
{
    int64_t at[SMP_COPY_DIRECTIONS], total = 0;
    char *values[SMP_COPY_DIRECTIONS];
    for (int way = 0; way < SMP_COPY_DIRECTIONS; way++)
        if (!smp__probe_place(&total, bytes, &at[way]))
            return smp_fail(SMP_ERR_INPUT, "link to the host: %lld bytes", (long long)bytes);
    SMP_TRY(smp__probe_pool(p, total));
    for (int way = 0; way < SMP_COPY_DIRECTIONS; way++)
        values[way] = p->pool + at[way];
    SMP_TRY(copy_both(p, host->area, values, bytes)); /* warm-up */
    SMP_TRY(smp__probe_idle(p));
    const double begin_s = smp_clock_s();
    for (int i = 0; i < repeat; i++)
        SMP_TRY(copy_both(p, host->area, values, bytes));
    SMP_TRY(smp__probe_idle(p));
    *us = 1e6 * (smp_clock_s() - begin_s) / repeat;
    return SMP_OK;
}

smp_status smp__probe_host_time(smp__probe_state *p, smp__probe_host *host, int64_t bytes,
                                int repeat, double *us, double *spent_us)
{
    const double entered_s = smp_clock_s();
    smp_status status = host->idles ? SMP_OK : open_far(p, host, bytes);
    if (p->parallel)
        status = smp__comm_agree(&p->comm, status); /* begin together */
    SMP_TRY(status);
    *us = 0;
    status = host->idles ? SMP_OK : copies(p, host, bytes, repeat, us);
    const bool counts = !p->parallel || p->comm.world_rank == 0;
    host->took[0] = counts ? *us : 0;
    host->took[1] = counts ? 1e6 * (smp_clock_s() - entered_s) : 0;
    if (p->parallel) {
        SMP_TRY(smp__comm_agree(&p->comm, status));
        SMP_TRY(smp__comm_sum(&p->comm, host->took, 2));
    }
    *us = host->took[0];
    *spent_us = host->took[1];
    return status;
}

void smp__probe_host_close(smp__probe_host *host)
{
    smp_offload_area_close(host->area);
    host->area = NULL;
    host->bytes = 0;
}

/* The probe on a CPU rank: the optimizer, the addition of gradients, the link, and what all ranks do
 * together. Operators: exec/probe_op.c. */
#include "exec/probe.h"

#include <stdlib.h>
#include <string.h>

#include "exec/optimizer.h"
#include "exec/probe_op.h"
#include "graph/base/random.h"

enum { LINK_TAG = 1 };

#define VALUE_SCALE 0.05f

/* Includes clearing the gradient for the next step. */
static smp_status time_optimizer(void *context, int64_t elements, int repeat, double *us)
{
    smp__cpu_probe *p = context;
    const smp_optimizer *adamw = smp_optimizer_find("adamw");
    const smp_options options = smp_options_default();
    const int64_t bytes = elements * (int64_t)sizeof(float);
    int64_t offset[4], total = 0;
    for (int i = 0; i < 4; i++)
        if (!smp__probe_place(&total, bytes, &offset[i]))
            return smp_fail(SMP_ERR_INPUT, "optimizer: %lld elements", (long long)elements);
    SMP_TRY(smp__probe_pool(p, total));
    smp__probe_fill(p, p->pool + offset[0], bytes, VALUE_SCALE);
    smp__probe_fill(p, p->pool + offset[1], bytes, VALUE_SCALE);
    memset(p->pool + offset[2], 0, (size_t)(total - offset[2]));
    smp_update update = {.weight = (float *)(p->pool + offset[0]),
                         .grad = (float *)(p->pool + offset[1]),
                         .state = {(float *)(p->pool + offset[2]), (float *)(p->pool + offset[3])},
                         .elements = elements,
                         .grad_scale = 1,
                         .lr = 1e-3f,
                         .options = &options};
    const double begin_s = smp_clock_s();
    for (int i = 0; i < repeat; i++) {
        update.step = i + 1;
        adamw->update(&update);
        p->device->zero(p->pool + offset[1], bytes);
    }
    *us = 1e6 * (smp_clock_s() - begin_s) / repeat;
    return SMP_OK;
}

static smp_status time_reduce(void *context, int64_t elements, int repeat, double *us)
{
    smp__cpu_probe *p = context;
    const int64_t bytes = elements * (int64_t)sizeof(float);
    int64_t offset[2], total = 0;
    for (int i = 0; i < 2; i++)
        if (!smp__probe_place(&total, bytes, &offset[i]))
            return smp_fail(SMP_ERR_INPUT, "reduce: %lld elements", (long long)elements);
    SMP_TRY(smp__probe_pool(p, total));
    for (int i = 0; i < 2; i++)
        smp__probe_fill(p, p->pool + offset[i], bytes, VALUE_SCALE);
    const double begin_s = smp_clock_s();
    for (int i = 0; i < repeat; i++)
        p->device->add((float *)(p->pool + offset[0]), (float *)(p->pool + offset[1]), elements);
    *us = 1e6 * (smp_clock_s() - begin_s) / repeat;
    return SMP_OK;
}

static void describe_link(const void *context, char *buffer, size_t size)
{
    (void)context;
    strncpy(buffer, "the other end of the link", size - 1);
    buffer[size - 1] = '\0';
}

static smp_status finish(smp__cpu_probe *p, MPI_Request *request)
{
    smp_wait wait = {0};
    for (int done = 0;;) {
        MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (done)
            return SMP_OK;
        SMP_TRY(smp__comm_pause(&p->comm, &wait, describe_link, NULL));
    }
}

/* There and back; the receive is posted ahead, as in training. */
static smp_status round_trip(smp__cpu_probe *p, char *out, char *in, int bytes)
{
    const int peer = 1 - p->comm.world_rank;
    MPI_Request receive, send;
    MPI_Irecv(in, bytes, MPI_BYTE, peer, LINK_TAG, p->comm.world, &receive);
    if (p->comm.world_rank == 1)
        SMP_TRY(finish(p, &receive));
    MPI_Isend(out, bytes, MPI_BYTE, peer, LINK_TAG, p->comm.world, &send);
    SMP_TRY(finish(p, &send));
    return p->comm.world_rank == 0 ? finish(p, &receive) : SMP_OK;
}

/* Half a round trip between ranks 0 and 1; 0 on the others. */
static smp_status time_link(void *context, int64_t bytes, int repeat, double *us)
{
    smp__cpu_probe *p = context;
    int64_t out = 0, in = 0, total = 0;
    smp_status status = SMP_OK;
    *us = 0;
    if (p->comm.world_rank <= 1) {
        status = bytes <= INT32_MAX && smp__probe_place(&total, bytes, &out) &&
                         smp__probe_place(&total, bytes, &in)
                     ? smp__probe_pool(p, total)
                     : smp_fail(SMP_ERR_INPUT, "link: %lld bytes", (long long)bytes);
    }
    SMP_TRY(smp__comm_agree(&p->comm, status));
    if (p->comm.world_rank > 1)
        return SMP_OK;
    SMP_TRY(round_trip(p, p->pool + out, p->pool + in, (int)bytes)); /* warm-up */
    const double begin_s = smp_clock_s();
    for (int i = 0; i < repeat; i++)
        SMP_TRY(round_trip(p, p->pool + out, p->pool + in, (int)bytes));
    *us = 1e6 * (smp_clock_s() - begin_s) / repeat / 2;
    return SMP_OK;
}

static smp_status sync_ranks(void *context, smp_status status)
{
    smp__cpu_probe *p = context;
    return smp__comm_agree(&p->comm, status);
}

static smp_status make_pattern(smp__cpu_probe *p)
{
    p->pattern = malloc(SMP__PATTERN_FLOATS * sizeof *p->pattern);
    if (!p->pattern)
        return smp_fail_memory(SMP__PATTERN_FLOATS * sizeof *p->pattern);
    for (int i = 0; i < SMP__PATTERN_FLOATS; i += 4) {
        const smp_random4 random = smp_random_philox(1, (uint64_t)i, 0);
        for (int k = 0; k < 4; k++)
            p->pattern[i + k] = 2 * smp_random_uniform(random.v[k]) - 1;
    }
    return SMP_OK;
}

/* The memory of a node is shared by its ranks. */
static smp_status find_memory(smp__cpu_probe *p)
{
    smp_cluster *machine;
    MPI_Comm node;
    int ranks = 1;
    if (p->parallel) {
        MPI_Comm_split_type(p->comm.world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
        MPI_Comm_size(node, &ranks);
        MPI_Comm_free(&node);
    }
    SMP_TRY(smp_cluster_local(ranks, &machine));
    p->memory_limit = machine->device[0].memory_bytes;
    smp_cluster_destroy(machine);
    return SMP_OK;
}

static smp_status start(smp__cpu_probe *p)
{
    int initialised = 0, finalised = 0;
    p->device = smp_device_find("cpu");
    SMP_TRY(p->device->open());
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    if (initialised && !finalised) {
        SMP_TRY(smp__comm_open(&p->comm, 0));
        p->parallel = true;
    }
    SMP_TRY(find_memory(p));
    SMP_TRY(make_pattern(p));
    p->probe = (smp_probe){.context = p,
                           .device = "cpu",
                           .open = smp__probe_open,
                           .time = smp__probe_time,
                           .close = smp__probe_close,
                           .time_optimizer = time_optimizer,
                           .time_reduce = time_reduce};
    if (p->parallel) {
        p->probe.sync = sync_ranks;
        p->probe.time_link = p->comm.world_size > 1 ? time_link : NULL;
    }
    return SMP_OK;
}

smp_status smp_probe_cpu_create(smp_probe **out)
{
    smp__cpu_probe *p = calloc(1, sizeof *p);
    smp_status status;
    if (!p)
        return smp_fail_memory(sizeof *p);
    status = start(p);
    if (status == SMP_OK)
        *out = &p->probe;
    else
        smp_probe_cpu_destroy(&p->probe);
    return status;
}

void smp_probe_cpu_destroy(smp_probe *probe)
{
    smp__cpu_probe *p = (smp__cpu_probe *)probe;
    if (!p)
        return;
    if (p->pool)
        p->device->release(p->pool, p->pool_bytes);
    if (p->parallel)
        smp__comm_close(&p->comm);
    free(p->pattern);
    free(p);
}

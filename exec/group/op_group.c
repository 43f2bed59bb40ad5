/* What the devices of a group exchange in the middle of an operator. Sums are made here, by rising
 * device, whatever MPI does inside: an all_reduce is a reduce_scatter, in which everybody gets what
 * all have of its share and adds it up, and an all_gather: 2 (T - 1) / T of the array over the
 * link, as a ring. The waits are watched, and nothing is allocated in them.
 *
 * A call may be begun and finished later. Who looks in between moves it on, from its first half to
 * its second too; one call is under way at a time, so there is one order of halves.
 *
 * Why it cannot deadlock: the devices of a group run one program, so they come to the same calls in
 * the same order, and of the first call that is not done everywhere all that stands before it is
 * done everywhere. Each group has a communicator of its own. */
#include "exec/group/op_group.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHIFT_TAG = 1 }; /* of the group's communicator, whose other calls are collective */

static void describe(const void *context, char *buffer, size_t size)
{
    const smp__op_group *g = context;
    if (g->group.size == 2)
        snprintf(buffer, size, "device %d, which computes its operators with it",
                 1 - g->group.index);
    else
        snprintf(buffer, size, "the other %d devices that compute its operators with it",
                 g->group.size - 1);
}

/* n: of each device, in the caller's arrays. */
static smp_status check_count(const smp__op_group *g, int64_t n)
{
    if (n <= INT_MAX)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "%lld values of each of %d devices, expected at most %d",
                    (long long)n, g->group.size, INT_MAX);
}

/* In those of the group, too. */
static smp_status check(const smp__op_group *g, int64_t n)
{
    if (n * g->group.size <= g->most + g->group.size)
        return check_count(g, n);
    return smp_fail(SMP_ERR_FAILED,
                    "%lld values of each of %d devices, expected at most %lld in all", (long long)n,
                    g->group.size, (long long)g->most);
}

/* rows [size][n] -> their sum. */
static void add_rows(float *restrict sum, const float *restrict rows, int64_t n, int size)
{
    memcpy(sum, rows, (size_t)n * sizeof *sum);
    for (int i = 1; i < size; i++)
        for (int64_t e = 0; e < n; e++)
            sum[e] += rows[i * n + e];
}

/* The half that is begun sends each other device so many floats. */
static smp_status ask(smp__op_group *g, int64_t n, int started, const char *call)
{
    SMP_TRY(smp__comm_check(started, call));
    g->half_bytes = (g->group.size - 1) * n * (int64_t)sizeof(float);
    g->late = (smp__late_sum){0};
    smp__throttle_ask(&g->throttle, &g->late);
    return smp__throttle_begin(&g->throttle, g->ranks, &g->late);
}

static smp_status exchange(smp__op_group *g, const float *all, float *got, int64_t n)
{
    return ask(g, n,
               MPI_Ialltoall(all, (int)n, MPI_FLOAT, got, (int)n, MPI_FLOAT, g->ranks, &g->request),
               "MPI_Ialltoall");
}

static smp_status gather(smp__op_group *g, const float *own, float *all, int64_t n)
{
    return ask(
        g, n, MPI_Iallgather(own, (int)n, MPI_FLOAT, all, (int)n, MPI_FLOAT, g->ranks, &g->request),
        "MPI_Iallgather");
}

/* What follows a half whose data is there: another one, or the end. */
static smp_status follow(smp__op_group *g)
{
    const smp__group_half half = g->half;
    g->half = SMP__NO_HALF;
    switch (half) {
    case SMP__HALF_SUM:
        add_rows(g->sent, g->came, g->n, g->group.size);
        SMP_TRY(gather(g, g->sent, g->came, g->n));
        g->half = SMP__HALF_SPREAD;
        return SMP_OK;
    case SMP__HALF_SPREAD:
        memcpy(g->to, g->came, (size_t)g->n_values * sizeof(float));
        return SMP_OK;
    case SMP__HALF_OWN_SUM:
        add_rows(g->to, g->came, g->n, g->group.size);
        return SMP_OK;
    case SMP__HALF_MOVE:
    case SMP__NO_HALF:
        break;
    }
    return SMP_OK;
}

static smp_status arrived(smp__op_group *g, int flag, bool *there)
{
    *there = flag;
    return flag ? smp__throttle_arrived(&g->throttle, &g->late, 1, g->half_bytes, there) : SMP_OK;
}

/* May be asked again when all is there. */
static smp_status look_at_shift(smp__op_group *g, bool *done)
{
    int flag = 0;
    SMP_TRY(smp__comm_check(MPI_Testall(2, g->shift, &flag, MPI_STATUSES_IGNORE), "MPI_Testall"));
    return arrived(g, flag, done);
}

smp_status smp__op_group_look(smp__op_group *g)
{
    int flag = 0;
    bool there;
    if (g->shifting)
        return look_at_shift(g, &there);
    if (g->half == SMP__NO_HALF)
        return SMP_OK;
    SMP_TRY(smp__comm_check(MPI_Test(&g->request, &flag, MPI_STATUS_IGNORE), "MPI_Test"));
    SMP_TRY(arrived(g, flag, &there));
    return there ? follow(g) : SMP_OK;
}

static smp_status look_at_transfers(void *context)
{
    return smp__op_group_look(context);
}

static smp_status wait_for(smp__op_group *g, smp_wait_test test)
{
    const double begin_s = g->timed ? smp_clock_s() : 0.0;
    smp_status status = smp__comm_wait_until(g->comm, &(smp_wait){0}, test, describe, g);
    g->waited_s += g->timed ? smp_clock_s() - begin_s : 0.0;
    return status;
}

static smp_status test(void *context, bool *done)
{
    smp__op_group *g = context;
    SMP_TRY(smp__op_group_look(g));
    *done = g->half == SMP__NO_HALF;
    return *done || !g->progress ? SMP_OK : g->progress(g->progress_context);
}

static smp_status finish(void *context)
{
    smp__op_group *g = context;
    if (g->half == SMP__NO_HALF)
        return SMP_OK;
    return wait_for(g, test);
}

/* The last device's share is filled up with zeroes. */
static smp_status begin_sum(smp__op_group *g, float *values, int64_t n)
{
    const int size = g->group.size;
    const int64_t share = (n + size - 1) / size;
    SMP_TRY(check(g, share));
    memcpy(g->sent, values, (size_t)n * sizeof *values);
    memset(g->sent + n, 0, (size_t)(share * size - n) * sizeof *values);
    g->n = share;
    g->n_values = n;
    SMP_TRY(exchange(g, g->sent, g->came, share));
    g->half = SMP__HALF_SUM;
    return SMP_OK;
}

static smp_status begin_move(smp__op_group *g, smp_group_call call, const float *from, float *to,
                             int64_t n)
{
    const bool sum = call == SMP_GROUP_REDUCE_SCATTER;
    SMP_TRY(sum ? check(g, n) : check_count(g, n));
    g->n = n;
    SMP_TRY(call == SMP_GROUP_ALL_GATHER ? gather(g, from, to, n)
                                         : exchange(g, from, sum ? g->came : to, n));
    g->half = sum ? SMP__HALF_OWN_SUM : SMP__HALF_MOVE;
    return SMP_OK;
}

/* A call at a time, so that halves come in one order on all devices. */
static smp_status begin(void *context, smp_group_call call, const float *from, float *to, int64_t n)
{
    smp__op_group *g = context;
    SMP_TRY(finish(g));
    g->to = to;
    return call == SMP_GROUP_ALL_REDUCE ? begin_sum(g, to, n) : begin_move(g, call, from, to, n);
}

static smp_status whole_call(void *context, smp_group_call call, const float *from, float *to,
                             int64_t n)
{
    SMP_TRY(begin(context, call, from, to, n));
    return finish(context);
}

static smp_status all_reduce(void *context, float *values, int64_t n)
{
    return whole_call(context, SMP_GROUP_ALL_REDUCE, NULL, values, n);
}

static smp_status all_gather(void *context, const float *own, float *all, int64_t n)
{
    return whole_call(context, SMP_GROUP_ALL_GATHER, own, all, n);
}

static smp_status reduce_scatter(void *context, const float *all, float *own, int64_t n)
{
    return whole_call(context, SMP_GROUP_REDUCE_SCATTER, all, own, n);
}

static smp_status all_to_all(void *context, const float *all, float *got, int64_t n)
{
    return whole_call(context, SMP_GROUP_ALL_TO_ALL, all, got, n);
}

static smp_status test_shift(void *context, bool *done)
{
    smp__op_group *g = context;
    SMP_TRY(look_at_shift(g, done));
    return *done || !g->progress ? SMP_OK : g->progress(g->progress_context);
}

/* What comes is asked for first, so that it need not be kept elsewhere. */
static smp_status shift(void *context, const float *own, float *got, int64_t n, int32_t by)
{
    smp__op_group *g = context;
    const int size = g->group.size, to = (g->group.index + by) % size;
    const int from = (g->group.index + size - by % size) % size;
    if (n > INT_MAX)
        return smp_fail(SMP_ERR_FAILED, "%lld values for one device, expected at most %d",
                        (long long)n, INT_MAX);
    SMP_TRY(finish(g));
    SMP_TRY(smp__comm_check(
        MPI_Irecv(got, (int)n, MPI_FLOAT, from, SHIFT_TAG, g->ranks, &g->shift[0]), "MPI_Irecv"));
    SMP_TRY(ask(g, n, MPI_Isend(own, (int)n, MPI_FLOAT, to, SHIFT_TAG, g->ranks, &g->shift[1]),
                "MPI_Isend"));
    g->half_bytes = n * (int64_t)sizeof(float);
    g->shifting = true;
    return SMP_OK;
}

static smp_status shifted(void *context)
{
    smp__op_group *g = context;
    SMP_TRY(wait_for(g, test_shift));
    g->shifting = false;
    return SMP_OK;
}

smp_status smp__op_group_open(smp__op_group *g, smp_comm *comm, MPI_Comm ranks, int64_t most,
                              smp__op_group_progress progress, void *context)
{
    *g = (smp__op_group){.comm = comm,
                         .ranks = ranks,
                         .progress = progress,
                         .progress_context = context,
                         .most = most};
    g->group = (smp_op_group){.context = g,
                              .all_reduce = all_reduce,
                              .all_gather = all_gather,
                              .reduce_scatter = reduce_scatter,
                              .all_to_all = all_to_all,
                              .shift = shift,
                              .shifted = shifted,
                              .begin = begin,
                              .finish = finish,
                              .look = look_at_transfers};
    MPI_Comm_size(ranks, &g->group.size);
    MPI_Comm_rank(ranks, &g->group.index);
    SMP_TRY(smp__throttle_open(&g->throttle));
    const size_t room = (size_t)(most + g->group.size) * sizeof(float);
    g->sent = malloc(room);
    g->came = malloc(room);
    return g->sent && g->came ? SMP_OK : smp_fail_memory(2 * room);
}

/* For a device with memory of its own: arrays go through pinned host memory, and what host memory
 * has adds them up. The host waits for the device before every exchange; what is copied back is
 * ordered by the compute stream, and is overwritten after the next such wait at the earliest. */
static void describe_staged(const void *context, char *buffer, size_t size)
{
    const smp__op_group *g = context;
    snprintf(buffer, size, "the device, which is to exchange values with %d others",
             g->group.size - 1);
}

static smp_status test_staged(void *context, bool *done)
{
    smp__op_group *g = context;
    SMP_TRY(g->device->idle(g->device_context, done));
    return *done || !g->progress ? SMP_OK : g->progress(g->progress_context);
}

/* n values of the device to g->down; so many are to come. */
static smp_status bring(smp__op_group *g, const float *from, int64_t n, int64_t come)
{
    const int64_t most = g->most + g->group.size;
    if (n > most || come > most)
        return smp_fail(SMP_ERR_FAILED, "%lld values for the devices, %lld back, expected %lld",
                        (long long)n, (long long)come, (long long)most);
    SMP_TRY(g->device->download(g->device_context, g->down, from, n * (int64_t)sizeof(float)));
    return smp__comm_wait_until(g->comm, &(smp_wait){0}, test_staged, describe_staged, g);
}

static smp_status take_values(smp__op_group *g, float *to, const char *from, int64_t n)
{
    return g->device->upload(g->device_context, to, from, n * (int64_t)sizeof(float));
}

static smp_status all_reduce_staged(void *context, float *values, int64_t n)
{
    smp__op_group *g = context;
    SMP_TRY(bring(g, values, n, n));
    SMP_TRY(g->host.all_reduce(g, (float *)g->down, n));
    return take_values(g, values, g->down, n);
}

static smp_status all_gather_staged(void *context, const float *own, float *all, int64_t n)
{
    smp__op_group *g = context;
    SMP_TRY(bring(g, own, n, n * g->group.size));
    SMP_TRY(g->host.all_gather(g, (float *)g->down, (float *)g->up, n));
    return take_values(g, all, g->up, n * g->group.size);
}

static smp_status reduce_scatter_staged(void *context, const float *all, float *own, int64_t n)
{
    smp__op_group *g = context;
    SMP_TRY(bring(g, all, n * g->group.size, n));
    SMP_TRY(g->host.reduce_scatter(g, (float *)g->down, (float *)g->up, n));
    return take_values(g, own, g->up, n);
}

static smp_status all_to_all_staged(void *context, const float *all, float *got, int64_t n)
{
    smp__op_group *g = context;
    SMP_TRY(bring(g, all, n * g->group.size, n * g->group.size));
    SMP_TRY(g->host.all_to_all(g, (float *)g->down, (float *)g->up, n));
    return take_values(g, got, g->up, n * g->group.size);
}

static smp_status shift_staged(void *context, const float *own, float *got, int64_t n, int32_t by)
{
    smp__op_group *g = context;
    g->coming = got;
    g->n_coming = n;
    SMP_TRY(bring(g, own, n, n));
    return g->host.shift(g, (float *)g->down, (float *)g->up, n, by);
}

static smp_status shifted_staged(void *context)
{
    smp__op_group *g = context;
    SMP_TRY(g->host.shifted(g));
    return take_values(g, g->coming, g->up, g->n_coming);
}

static smp_status read_staged(void *context, const void *from, int64_t bytes)
{
    smp__op_group *g = context;
    return g->device->download(g->device_context, g->down, from, bytes);
}

static smp_status have_read_staged(void *context, void *host, int64_t bytes)
{
    smp__op_group *g = context;
    SMP_TRY(smp__comm_wait_until(g->comm, &(smp_wait){0}, test_staged, describe_staged, g));
    memcpy(host, g->down, (size_t)bytes);
    return SMP_OK;
}

/* Halves are for arrays of the host: here a call begun is a whole one. */
smp_status smp__op_group_stage(smp__op_group *g, const smp_device *device, void *device_context)
{
    const int64_t arrays = (g->most + g->group.size) * (int64_t)sizeof(float);
    const int64_t bytes = arrays > SMP_GROUP_READ ? arrays : SMP_GROUP_READ;
    g->host = g->group;
    g->group.begin = NULL;
    g->group.finish = NULL;
    g->group.look = NULL;
    g->group.read = read_staged;
    g->group.have_read = have_read_staged;
    g->group.all_reduce = all_reduce_staged;
    g->group.all_gather = all_gather_staged;
    g->group.reduce_scatter = reduce_scatter_staged;
    g->group.all_to_all = all_to_all_staged;
    g->group.shift = shift_staged;
    g->group.shifted = shifted_staged;
    g->device = device;
    g->device_context = device_context;
    SMP_TRY(device->reserve_host(device_context, bytes, &g->down));
    return device->reserve_host(device_context, bytes, &g->up);
}

void smp__op_group_close(smp__op_group *g)
{
    if (!g->comm || g->comm->failed)
        return;
    if (g->down)
        g->device->release_host(g->device_context, g->down);
    if (g->up)
        g->device->release_host(g->device_context, g->up);
    free(g->sent);
    free(g->came);
    smp__throttle_close(&g->throttle);
}

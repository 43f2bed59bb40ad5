/* The devices of a group, in device memory, over every transport and on every device: each call of
 * smp_op_group against what it says, to the bit, for arrays of all lengths; in the order of the
 * compute stream: what is sent is written just before and overwritten just behind, what has come is
 * read at once. And a network that fails in a call. Run it on 1, 2, 4 and 8 ranks. */
#include <mpi.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/group/op_group.h"
#include "exec/transport/transport.h"
#include "tests/case_count.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            give_up(__LINE__, #condition);                                                         \
    } while (0)
#define OK(call) CHECK((call) == SMP_OK)

enum { MOST = 5000, BYTES = MOST * (int)sizeof(float) };

static int world_rank, world_size;

static void give_up(int line, const char *condition)
{
    fprintf(stderr, "rank %d: test_device_groups.c:%d: %s failed: %s\n", world_rank, line,
            condition, smp_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

typedef struct bench {
    smp_comm comm;
    const smp_device *device;
    void *device_context;
    const smp_transport *transport;
    void *transport_context;
    smp__op_group own;         /* where the transport has none */
    const smp_op_group *group; /* that of one of them */
    char *from, *to, *kept;    /* device memory, [MOST] */
    char *in, *out;            /* [MOST] that the device copies from and to */
} bench;

/* What device `owner` has at place e in a round: no sum of these is exact. */
static float value_of(int owner, int64_t e, int round)
{
    return 1.0f / (float)(1 + (e * 7 + owner * 11 + round * 3) % 1009) - 0.1f * (float)owner;
}

static float sum_of(const bench *b, int64_t e, int round)
{
    float sum = value_of(0, e, round);
    for (int i = 1; i < b->group->size; i++)
        sum += value_of(i, e, round);
    return sum;
}

static void describe(const void *context, char *buffer, size_t size)
{
    snprintf(buffer, size, "%s", (const char *)context);
}

static smp_status progress(void *context)
{
    bench *b = context;
    return b->transport->progress(b->transport_context);
}

static void wait_idle(bench *b)
{
    smp_wait wait = {0};
    for (bool done = false;;) {
        OK(b->device->idle(b->device_context, &done));
        if (done)
            return;
        OK(progress(b));
        OK(smp__comm_pause(&b->comm, &wait, describe, "the device"));
    }
}

/* n values of this device to `from` on the device; NaN to `to`. */
static void put(bench *b, int64_t n, int round)
{
    wait_idle(b);
    memset(b->in, 0xFF, BYTES);
    OK(b->device->upload(b->device_context, b->to, b->in, BYTES));
    wait_idle(b);
    for (int64_t e = 0; e < n; e++)
        ((float *)b->in)[e] = value_of(b->group->index, e, round);
    OK(b->device->upload(b->device_context, b->from, b->in, BYTES));
}

/* The first values of what the call made; what it was given is overwritten. */
static const float *take(bench *b, const char *made)
{
    OK(b->device->copy(b->device_context, b->kept, made, BYTES));
    OK(b->device->zero(b->device_context, b->from, BYTES));
    OK(b->device->zero(b->device_context, b->to, BYTES));
    OK(b->device->download(b->device_context, b->out, b->kept, BYTES));
    wait_idle(b);
    return (const float *)b->out;
}

/* n: of each device. */
static void check_calls(bench *b, int64_t n, int round)
{
    const smp_op_group *g = b->group;
    float *from = (float *)b->from, *to = (float *)b->to;
    const float *got;
    const long unaligned = emulate_nccl_unaligned();
    put(b, n, round);
    OK(g->all_reduce(g->context, from, n));
    CHECK(emulate_nccl_unaligned() == unaligned);
    got = take(b, b->from);
    for (int64_t e = 0; e < n; e++)
        CHECK(got[e] == sum_of(b, e, round));
    put(b, n, round);
    OK(g->all_gather(g->context, from, to, n));
    got = take(b, b->to);
    for (int64_t e = 0; e < n * g->size; e++)
        CHECK(got[e] == value_of((int)(e / n), e % n, round));
    put(b, n * g->size, round);
    OK(g->reduce_scatter(g->context, from, to, n));
    got = take(b, b->to);
    for (int64_t e = 0; e < n; e++)
        CHECK(got[e] == sum_of(b, g->index * n + e, round));
    put(b, n * g->size, round);
    OK(g->all_to_all(g->context, from, to, n));
    got = take(b, b->to);
    for (int64_t e = 0; e < n * g->size; e++)
        CHECK(got[e] == value_of((int)(e / n), g->index * n + e % n, round));
    put(b, n, round);
    OK(g->shift(g->context, from, to, n, 1 + round % 3));
    OK(g->shifted(g->context));
    got = take(b, b->to);
    for (int64_t e = 0; e < n; e++)
        CHECK(got[e] == value_of((g->index + 3 * g->size - 1 - round % 3) % g->size, e, round));
}

/* What runs beside the compute comes behind what was before, and before what comes behind its
 * finish, or behind another call; numbers for the host are those of what was enqueued before. */
static void check_beside(bench *b, int64_t n, int round)
{
    const smp_op_group *g = b->group, *beside;
    float *from = (float *)b->from, *to = (float *)b->to, *kept = (float *)b->kept;
    float host[2] = {0};
    void *device;
    const float *got;
    if (n >= 2 && g->read) {
        put(b, n, round);
        OK(g->read(g->context, from, sizeof host));
        OK(b->device->zero(b->device_context, b->from, BYTES));
        OK(g->have_read(g->context, host, sizeof host));
        CHECK(host[0] == value_of(g->index, 0, round) && host[1] == value_of(g->index, 1, round));
    }
    if (!g->beside)
        return;
    put(b, n, round);
    OK(g->beside(g->context, &beside, &device));
    CHECK(beside->size == g->size && beside->index == g->index);
    OK(beside->all_gather(beside->context, from, to, n));
    OK(b->device->zero(b->device_context, b->kept, BYTES));
    OK(g->finish(g->context));
    got = take(b, b->to);
    for (int64_t e = 0; e < n * g->size; e++)
        CHECK(got[e] == value_of((int)(e / n), e % n, round));
    put(b, n, round);
    OK(g->beside(g->context, &beside, &device));
    OK(beside->all_reduce(beside->context, from, n));
    OK(g->all_gather(g->context, from, to, n)); /* not finished: that of the sums all the same */
    OK(b->device->copy(b->device_context, kept, to, BYTES));
    OK(g->finish(g->context));
    got = take(b, b->to);
    for (int64_t e = 0; e < n * g->size; e++)
        CHECK(got[e] == sum_of(b, e % n, round));
}

/* The last rank comes late to an exchange: the others' hosts have what they read before it. Between
 * the two calls NCCL's group may be called, unlike others. */
static void check_read(bench *b, int64_t n, int round)
{
    const smp_op_group *g = b->group;
    const bool late = world_rank == world_size - 1;
    float host[2];
    if (!g->beside) /* the staged transport's exchange waits by itself */
        return;
    put(b, n, round);
    wait_idle(b);
    if (late)
        MPI_Barrier(b->comm.world);
    OK(g->read(g->context, b->from, sizeof host));
    OK(g->all_gather(g->context, (float *)b->from, (float *)b->to, n));
    OK(g->have_read(g->context, host, sizeof host));
    CHECK(host[0] == value_of(g->index, 0, round) && host[1] == value_of(g->index, 1, round));
    if (!late)
        MPI_Barrier(b->comm.world);
    wait_idle(b);
}

/* The last rank comes late: the compute of those that exchange with it does not wait for that. */
static void check_late(bench *b, int64_t n, int round)
{
    const smp_op_group *g = b->group, *beside;
    const bool late = world_rank == world_size - 1;
    float *from = (float *)b->from, *to = (float *)b->to;
    void *device;
    for (int gathers = 0; g->beside && gathers < 2; gathers++) {
        put(b, n, round);
        if (late)
            MPI_Barrier(b->comm.world);
        OK(gathers ? g->beside(g->context, &beside, &device)
                   : g->shift(g->context, from, to, n, 1));
        if (gathers)
            OK(beside->all_gather(beside->context, from, to, n));
        OK(b->device->zero(b->device_context, b->kept, BYTES));
        wait_idle(b);
        if (!late)
            MPI_Barrier(b->comm.world);
        OK(gathers ? g->finish(g->context) : g->shifted(g->context));
        const float *got = take(b, b->to);
        for (int64_t e = 0; e < n * (gathers ? g->size : 1); e++)
            CHECK(got[e] == value_of(gathers ? (int)(e / n) : (g->index + g->size - 1) % g->size,
                                     e % n, round));
    }
}

/* Groups of `size` neighbours. */
static void open_bench(bench *b, const smp_device *device, int size)
{
    *b = (bench){.device = device};
    OK(smp__comm_open(&b->comm, (smp_comm_limits){30, 900, 900}));
    OK(smp__comm_split(&b->comm, (smp_comm_place){.pipeline_rank = world_rank / size,
                                                  .shard = 1,
                                                  .tensor = size,
                                                  .tensor_rank = world_rank % size}));
    smp_device_options options = {.node_rank = b->comm.node_rank};
    OK(smp__comm_agree(&b->comm, device->open(&options, &b->device_context)));
    OK(device->reserve(b->device_context, BYTES, &b->from));
    OK(device->reserve(b->device_context, BYTES, &b->to));
    OK(device->reserve(b->device_context, BYTES, &b->kept));
    OK(device->reserve_host(b->device_context, BYTES, &b->in));
    OK(device->reserve_host(b->device_context, BYTES, &b->out));
}

static void close_bench(bench *b)
{
    b->device->release(b->device_context, b->from, BYTES);
    b->device->release(b->device_context, b->to, BYTES);
    b->device->release(b->device_context, b->kept, BYTES);
    b->device->release_host(b->device_context, b->in);
    b->device->release_host(b->device_context, b->out);
    b->device->close(b->device_context);
    smp__comm_close(&b->comm);
}

/* False: the transport does not suit. No device has memory for the longest sum that is announced:
 * it goes in pieces. */
static bool open_group(bench *b, const smp_transport *transport)
{
    const smp_transport_options options = {.comm = &b->comm,
                                           .device = b->device,
                                           .device_context = b->device_context,
                                           .group_floats = (int64_t)1 << 40};
    b->transport = transport;
    if (smp__comm_agree(&b->comm, smp_transport_suits(transport, &options)) != SMP_OK)
        return false;
    OK(smp__comm_agree(&b->comm, transport->open(&options, &b->transport_context)));
    b->group = transport->group ? transport->group(b->transport_context) : &b->own.group;
    if (transport->group)
        return true;
    OK(smp__op_group_open(&b->own, &b->comm, b->comm.tensor, MOST, progress, b));
    if (!b->device->host_memory)
        OK(smp__op_group_stage(&b->own, b->device, b->device_context));
    return true;
}

static int run_groups(const smp_device *device, int size)
{
    static bench b;
    int ran = 0;
    open_bench(&b, device, size);
    const int rounds = few_or_many(30, 60);
    for (const smp_transport *const *t = device->transports; *t; t++) {
        if (!open_group(&b, *t))
            continue;
        CHECK(b.group->size == size && b.group->index == world_rank % size);
        const long threads = emulate_nccl_threads();
        for (int round = 0; round < rounds; round++) {
            const int64_t n = round < 20 ? round : (round * 37 + size) % (MOST / size);
            check_calls(&b, n, round);
            check_beside(&b, n, round);
        }
        check_late(&b, MOST / size, rounds);
        check_read(&b, MOST / size, rounds);
        CHECK(emulate_nccl_threads() == threads);
        if (!b.transport->group)
            smp__op_group_close(&b.own);
        b.transport->close(b.transport_context);
        ran++;
    }
    close_bench(&b);
    return ran;
}

/* A device's part in a sum fails: its progress says so, and the others hear of it. */
static void test_failure(const smp_device *device)
{
    static bench b;
    open_bench(&b, device, world_size);
    CHECK(open_group(&b, smp_transport_find("nccl")));
    MPI_Barrier(b.comm.world); /* who is still opening it would hear of the failure there */
    emulate_nccl_fail(world_rank == 1 ? 0 : -1);
    put(&b, MOST, 0);
    smp_wait wait = {0};
    smp_status status = b.group->all_reduce(b.group->context, (float *)b.from, MOST);
    while (status == SMP_OK) {
        bool idle = false;
        OK(device->idle(b.device_context, &idle));
        CHECK(world_rank != 1 || !idle);
        status = progress(&b);
        if (status == SMP_OK)
            status = smp__comm_pause(&b.comm, &wait, describe, "the end");
    }
    CHECK(status == SMP_ERR_PEER);
    CHECK(strstr(smp_last_error(),
                 "devices that compute layers together: NCCL: remote process exited"));
    b.transport->abort(b.transport_context);
    smp__comm_notify(&b.comm, status);
    for (bool idle = false; !idle;)
        OK(device->idle(b.device_context, &idle));
    b.transport->close(b.transport_context);
    close_bench(&b);
}

int main(int argc, char **argv)
{
    setenv("SMP_EMULATE_LAZY", "1", 1);
    setenv("SMP_EMULATE_DEVICES", "8", 1);
    setenv("SMP_EMULATE_MULTIPROCESSORS", "54", 1);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    for (int i = 0; smp_devices()[i]; i++)
        for (int size = 2; size <= world_size; size *= 2) {
            const int ran = run_groups(smp_devices()[i], size);
            CHECK(ran == (smp_devices()[i]->host_memory ? 1 : 2));
        }
    if (world_size > 1)
        test_failure(smp_device_find("cuda"));
    MPI_Finalize();
    return 0;
}

/* Sums over GPUs, those of replicas and those inside of operators, beside NCCL's all-reduce of as
 * many bytes: one rank a GPU.
 *
 *     mpirun -n N bench_sums [--times R] [--only replicas|operators|nccl] BYTES...
 *
 * Rank 0 prints a line of JSON for each size. For each of the three, or for one: us of a sum, of R
 * in a row; us of the host until they were enqueued; GB/s of the bus, the 2 (N - 1) / N of the
 * bytes that every rank must send at least, over the time. The emulator has no all-reduce: nothing
 * is printed of it, and its times mean nothing. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/nccl/nccl_open.h"
#include "graph/base/library.h"

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != SMP_OK)                                                                      \
            give_up(#call);                                                                        \
    } while (0)

enum { WARM = 3 };

static int times = 20;
static const char *only; /* NULL: all */

static void give_up(const char *call)
{
    fprintf(stderr, "bench_sums: %s: %s\n", call, smp_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

typedef struct bench {
    smp_comm comm;
    const smp_device *device;
    void *device_context;
    const smp_transport *transport;
    void *transport_context;
    float *data; /* device memory */
    int64_t floats, *cut;
} bench;

/* Enqueues one sum of b->data. */
typedef smp_status (*sum_call)(bench *b);

static smp_status sum_replicas(bench *b)
{
    const smp_sum sum = {
        .data = b->data, .cut = b->cut, .reach = SMP_REACH_ALL, .add = true, .gather = true};
    smp_reduction *reduction;
    bool done;
    SMP_TRY(b->transport->reduce(b->transport_context, &sum, &reduction));
    return b->transport->reduce_test(b->transport_context, &reduction, &done);
}

static smp_status sum_in_operator(bench *b)
{
    const smp_op_group *group = b->transport->group(b->transport_context);
    return group->all_reduce(group->context, b->data, b->floats);
}

#ifndef SMP_EMULATED
static struct {
    __typeof__(&ncclGetUniqueId) get_unique_id;
    __typeof__(&ncclCommInitRank) init_rank;
    __typeof__(&ncclAllReduce) all_reduce;
    __typeof__(&ncclCommDestroy) destroy;
} nccl;
static ncclComm_t all;

static smp_status sum_in_nccl(bench *b)
{
    const smp_cuda *cuda = b->device->kernel_context(b->device_context);
    if (nccl.all_reduce(b->data, b->data, (size_t)b->floats, ncclFloat32, ncclSum, all,
                        cuda->stream) != ncclSuccess)
        return smp_fail(SMP_ERR_FAILED, "NCCL's all-reduce failed");
    return SMP_OK;
}

static void open_nccl(const smp_comm *comm)
{
    static const char *const symbol[] = {"ncclGetUniqueId", "ncclCommInitRank", "ncclAllReduce",
                                         "ncclCommDestroy"};
    ncclUniqueId id;
    OK(smp_library_open("libnccl.so.2", SMP_CUDA_LIBRARY_DIR, 4, symbol, (void **)&nccl));
    if (comm->world_rank == 0 && nccl.get_unique_id(&id) != ncclSuccess)
        give_up("ncclGetUniqueId");
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (nccl.init_rank(&all, comm->world_size, id, comm->world_rank) != ncclSuccess)
        give_up("ncclCommInitRank");
}
#endif

static void describe(const void *context, char *buffer, size_t size)
{
    snprintf(buffer, size, "%s", (const char *)context);
}

static void wait_idle(bench *b)
{
    smp_wait wait = {0};
    for (bool done = false; !done;) {
        OK(b->device->idle(b->device_context, &done));
        if (b->transport_context)
            OK(b->transport->progress(b->transport_context));
        if (!done)
            OK(smp__comm_pause(&b->comm, &wait, describe, "the device"));
    }
}

static double measure(bench *b, sum_call call, double *host_s)
{
    double begin = 0.0;
    for (int i = -WARM; i < times; i++) {
        if (i == 0) {
            wait_idle(b);
            MPI_Barrier(MPI_COMM_WORLD);
            begin = MPI_Wtime();
        }
        OK(call(b));
    }
    *host_s = (MPI_Wtime() - begin) / times;
    wait_idle(b);
    return (MPI_Wtime() - begin) / times;
}

static void print_measured(bench *b, const char *name, sum_call call)
{
    if (only && strcmp(only, name) != 0)
        return;
    double host_s, took_s = measure(b, call, &host_s), most[2] = {took_s, host_s};
    const int ranks = b->comm.world_size;
    const double sent = 2.0 * (ranks - 1) / ranks * (double)b->floats * sizeof(float);
    MPI_Allreduce(MPI_IN_PLACE, most, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (b->comm.world_rank == 0)
        printf(", \"%s_us\": %.1f, \"%s_host_us\": %.1f, \"%s_gb_s\": %.2f", name, 1e6 * most[0],
               name, 1e6 * most[1], name, sent / most[0] / 1e9);
}

/* Ranks as replicas, or as a group that computes operators together. */
static void open_bench(bench *b, int64_t floats, bool together)
{
    int ranks, rank;
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    *b = (bench){.device = smp_device_find("cuda"), .transport = smp_transport_find("nccl")};
    b->floats = floats;
    OK(smp__comm_open(&b->comm, (smp_comm_limits){60, 600, 600}));
    OK(smp__comm_split(&b->comm, (smp_comm_place){.replica = together ? 0 : rank,
                                                  .shard = 1,
                                                  .tensor = together ? ranks : 1,
                                                  .tensor_rank = together ? rank : 0}));
    const smp_device_options device = {.node_rank = b->comm.node_rank};
    OK(smp__comm_agree(&b->comm, b->device->open(&device, &b->device_context)));
    OK(b->device->reserve(b->device_context, floats * (int64_t)sizeof(float), (char **)&b->data));
    b->cut = calloc((size_t)ranks + 1, sizeof *b->cut);
    if (!b->cut)
        give_up("calloc");
    for (int i = 1; i <= ranks; i++)
        b->cut[i] = i == ranks ? floats : floats * i / ranks / 32 * 32;
    const smp_transport_options options = {.comm = &b->comm,
                                           .device = b->device,
                                           .device_context = b->device_context,
                                           .reductions = 2,
                                           .group_floats = together ? floats : 0};
    OK(smp__comm_agree(&b->comm, smp_transport_suits(b->transport, &options)));
    OK(smp__comm_agree(&b->comm, b->transport->open(&options, &b->transport_context)));
}

static void close_bench(bench *b)
{
    b->transport->close(b->transport_context);
    b->device->release(b->device_context, (char *)b->data, b->floats * (int64_t)sizeof(float));
    b->device->close(b->device_context);
    smp__comm_close(&b->comm);
    free(b->cut);
}

static void run_size(int64_t floats)
{
    bench b;
    open_bench(&b, floats, false);
    if (b.comm.world_rank == 0)
        printf("{\"ranks\": %d, \"bytes\": %lld", b.comm.world_size,
               (long long)floats * (long long)sizeof(float));
    print_measured(&b, "replicas", sum_replicas);
    close_bench(&b);
    open_bench(&b, floats, true);
    print_measured(&b, "operators", sum_in_operator);
#ifndef SMP_EMULATED
    open_nccl(&b.comm);
    print_measured(&b, "nccl", sum_in_nccl);
    nccl.destroy(all);
#endif
    if (b.comm.world_rank == 0)
        printf("}\n");
    close_bench(&b);
}

int main(int argc, char **argv)
{
    const smp_device *device = smp_device_find("cuda");
    if (device && device->before_mpi)
        device->before_mpi();
    MPI_Init(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        const bool more = i + 1 < argc;
        if (more && strcmp(argv[i], "--only") == 0) {
            only = argv[++i];
        } else if (more && strcmp(argv[i], "--times") == 0) {
            times = atoi(argv[++i]);
        } else if (atoll(argv[i]) > 0 && times > 0) {
            run_size((atoll(argv[i]) + 3) / 4);
        } else {
            fprintf(stderr, "bench_sums: '%s', expected --times R, --only NAME, or bytes\n",
                    argv[i]);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
    }
    MPI_Finalize();
    return 0;
}

/* Can NCCL serve a job? A GPU for each rank, queues and multiprocessors for what waits, the
 * library. */
#include <stdlib.h>
#include <string.h>

#include "exec/cuda/cuda_queues.h"
#include "exec/nccl/nccl_open.h"
#include "graph/base/text.h"

static smp_status find_bus(char bus[64])
{
    int device;
    SMP_TRY(SMP_CUDA(cudaGetDevice, &device));
    return SMP_CUDA(cudaDeviceGetPCIBusId, bus, 64, device);
}

/* Two ranks of this machine with the same GPU: NCCL refuses them. It tells GPUs apart by where they
 * are on the bus: slices of one (MIG) have names of their own, but one place. */
static smp_status check_shared(smp_comm *comm)
{
    char own[64] = "";
    smp_status status = find_bus(own);
    void *all;
    SMP_TRY(smp__comm_gather_node(comm, own, 64, &all));
    const char(*id)[64] = all;
    for (int i = 0; i < comm->node_size; i++)
        for (int j = 0; status == SMP_OK && j < i; j++)
            if (memcmp(id[i], id[j], sizeof(*id)) == 0)
                status = smp_fail(SMP_ERR_FAILED, "two ranks share GPU %.64s", id[i]);
    free(all);
    return status;
}

/* A stream for each lane, beside those of computing, sums (two), the group, and of what travels to
 * the host and back: two in one queue would wait for each other. */
static smp_status check_queues(const smp_transport_options *options)
{
    enum { OTHERS = 6 };
    if (options->n_lane + OTHERS <= smp__cuda_queues())
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED,
                    "%d lanes of messages and %d streams besides, the GPU has %d queues (%s)",
                    options->n_lane, (int)OTHERS, smp__cuda_queues(), SMP__CUDA_QUEUES);
}

int64_t smp__nccl_came_floats(const smp_transport_options *options)
{
    const int64_t least = options->comm->tensor_size * (int64_t)SMP__NCCL_ALIGNED;
    const int64_t most = least > SMP__NCCL_CAME_FLOATS ? least : SMP__NCCL_CAME_FLOATS;
    if (options->comm->tensor_size == 1 || options->group_floats == 0)
        return 0;
    return options->group_floats < most - least ? options->group_floats + least : most;
}

int smp__nccl_taken(const smp_transport_options *options)
{
    const bool sums = options->comm->ddp_size > 1, group = smp__nccl_came_floats(options) > 0;
    return options->n_lane * SMP__NCCL_LANE_CTAS + (sums + group) * SMP__NCCL_SUM_CTAS;
}

/* When all are taken, the kernels whose results others wait for have none. */
static smp_status check_multiprocessors(const smp_transport_options *options)
{
    const smp_cuda *cuda = options->device->kernel_context(options->device_context);
    const int taken = smp__nccl_taken(options);
    if (taken < cuda->multiprocessors)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED,
                    "%d lanes of messages, and sums, can take %d multiprocessors, the GPU has %d",
                    options->n_lane, taken, cuda->multiprocessors);
}

_Static_assert(SMP__NCCL_PARTS_FLOATS * sizeof(float) <= SMP_SUM_PIECE_BYTES &&
                   SMP__NCCL_CAME_FLOATS * sizeof(float) <= SMP_SUM_PIECE_BYTES,
               "plans know of less than pieces of sums take");

static int members_of(MPI_Comm comm)
{
    int members = 1;
    if (comm != MPI_COMM_NULL)
        MPI_Comm_size(comm, &members);
    return members;
}

/* For communicators, and for what is reserved after they are open: if it is missed then, it is too
 * late for another transport. */
static smp_status check_memory(const smp_transport_options *options)
{
    char takes[32], later[32], room[32];
    int64_t available;
    const smp_comm *comm = options->comm;
    const int64_t bytes =
        smp_communicator_bytes(&(smp_communicators){.lanes = options->n_lane,
                                                    .replicas = comm->ddp_size,
                                                    .shard = comm->shard_size,
                                                    .near = members_of(comm->near),
                                                    .far = members_of(comm->far),
                                                    .tensor = comm->tensor_size,
                                                    .node = comm->node_size});
    SMP_TRY(options->device->available(options->device_context, &available));
    if (bytes + options->later_bytes <= available)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED,
                    "its communicators may take %s, and what is reserved after them takes %s; %s "
                    "are free",
                    smp_format_bytes(takes, sizeof takes, bytes),
                    smp_format_bytes(later, sizeof later, options->later_bytes),
                    smp_format_bytes(room, sizeof room, available));
}

/* Then a launch returns when it is done: that of a receive when its sender has come. */
static smp_status check_launches(void)
{
    const char *given = getenv("CUDA_LAUNCH_BLOCKING");
    if (!given || strtol(given, NULL, 10) == 0)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "CUDA_LAUNCH_BLOCKING=%s: launches would wait for other ranks",
                    given);
}

smp_status smp__nccl_suits(const smp_transport_options *options)
{
    SMP_TRY(check_shared(options->comm)); /* all ranks of the machine take part */
    SMP_TRY(check_launches());
    SMP_TRY(check_queues(options));
    SMP_TRY(check_multiprocessors(options));
    SMP_TRY(check_memory(options));
    return smp__nccl_open();
}

/* Device memory that NCCL's communicators take, and what sums over them pass through: beside the
 * arena, on every device of a job. */
#ifndef SMP_SCHEDULE_MEMORY_COMMUNICATORS_H
#define SMP_SCHEDULE_MEMORY_COMMUNICATORS_H

#include <stdint.h>

/* Channels of a communicator at most, powers of two: blocks of a kernel that waits for its peers,
 * each with buffers of its own. Of messages between two ranks; of sums and groups. Few, since
 * kernels run meanwhile: chosen, not measured. Of two NCCL gives one to a message of at most 16 MiB
 * over NVLink. */
enum { SMP_LANE_CHANNELS = 2, SMP_SUM_CHANNELS = 16 };

/* Device memory that pieces of sums pass through: over replicas, and as much of a tensor group. */
enum { SMP_SUM_PIECE_BYTES = 32 << 20 };

/* Whom a device exchanges something with: members of each group of ranks, itself included; 1: there
 * is none. */
typedef struct smp_communicators {
    int lanes;     /* from another device or to it, in one direction */
    int replicas;  /* with the same stages, */
    int shard;     /* of these a shard group, */
    int near, far; /* the two hops of their sums */
    int tensor;    /* that compute every operator together */
    int node;      /* of all, those of this machine at most */
} smp_communicators;

/* An upper bound, not measured, for NCCL's settings as they come (NCCL_BUFFSIZE, NCCL_MAX_CTAS,
 * NCCL_CUMEM_ENABLE, NCCL_RUNTIME_CONNECT): read from the sources of 2.22.3, 2.25.1 and 2.26.2, and
 * from copies that do not say which version they are. The code of its kernels counts as that of
 * other libraries. 0: there is nobody. */
int64_t smp_communicator_bytes(const smp_communicators *of);

/* " beside 1.4 GiB of communicators", after a limit that is without them; "" of 0 bytes. */
enum { SMP_BESIDE_CHARS = 64 };
const char *smp_beside_communicators(char buffer[SMP_BESIDE_CHARS], int64_t bytes);

#endif

/* Streams of a GPU share the hardware's queues, of which a process has eight unless it asks for
 * more: a message that waits for its peer would hold up whatever stands after it in the same
 * queue. CUDA looks at a variable once, when the process opens it, which an MPI that knows GPUs may
 * do in MPI_Init; a user's own setting stands. Needs no CUDA. */
#ifndef SMP_EXEC_CUDA_CUDA_QUEUES_H
#define SMP_EXEC_CUDA_CUDA_QUEUES_H

#include <stdbool.h>
#include <stdlib.h>

#define SMP__CUDA_QUEUES "CUDA_DEVICE_MAX_CONNECTIONS"

enum { SMP__MOST_CUDA_QUEUES = 32 };

/* Is the setting ours, to be taken back? */
static inline bool smp__ask_for_cuda_queues(void)
{
    return !getenv(SMP__CUDA_QUEUES) && setenv(SMP__CUDA_QUEUES, "32", 0) == 0;
}

/* How many there are, if nobody opened CUDA before we could ask. */
static inline int smp__cuda_queues(void)
{
    const char *given = getenv(SMP__CUDA_QUEUES);
    const long n = given ? strtol(given, NULL, 10) : SMP__MOST_CUDA_QUEUES;
    return n < 1 ? 1 : n < SMP__MOST_CUDA_QUEUES ? (int)n : SMP__MOST_CUDA_QUEUES;
}

#endif

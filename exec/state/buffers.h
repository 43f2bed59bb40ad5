/* The memory of a job: its arena and what else is on the device, and the host memory that the
 * device copies from and to. Taken once by smp_init (exec/job/job.c). */
#ifndef SMP_EXEC_STATE_BUFFERS_H
#define SMP_EXEC_STATE_BUFFERS_H

#include <stdint.h>

#include "schedule/memory/memory.h"

typedef struct smp__buffers {
    char *arena;     /* of the device: what the memory plan places */
    char *host_area; /* as this process sees it, where states lie in it; else NULL */
    char *extra;     /* device memory besides the arena: `loss_gradient`, inputs */
    int64_t extra_bytes;
    char *loss_gradient; /* in it: [microbatches] shares of the loss, 64 bytes apart */
    char *host;  /* of device->reserve_host: inputs, and what the host reads after a wait: */
    char *loss;  /* in it: [microbatches] smp__loss_slot, 64 bytes apart */
    char *share; /* in it: likewise, where `loss_gradient` is copied from */
    char *piece; /* in it: SMP__PIECE_BYTES for copies; NULL with host memory */
} smp__buffers;

enum { SMP__PIECE_BYTES = 16 << 20 };

/* A micro-batch's place among the losses. */
typedef struct smp__loss_slot {
    float loss;
    int64_t hits[SMP_OP_HITS]; /* of a loss that counts them; in training not written */
} smp__loss_slot;
_Static_assert(sizeof(smp__loss_slot) <= SMP_LOSS_SLOT_BYTES, "one does not reach into the next");

#endif

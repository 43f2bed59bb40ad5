/* A file in which a rank shows others that it lives: a page that it has mapped, and a thread of it
 * writes to ten times a second. A process that is stopped, or gone, stops beating; what it says
 * stays. Whoever may read the folder of kept states may look (kept_folder.h). */
#ifndef SMP_EXEC_CHECKPOINT_HEARTBEAT_H
#define SMP_EXEC_CHECKPOINT_HEARTBEAT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "graph/base/status.h"

#define SMP__BEAT_NAME "beat-" /* and the rank of the world */
#define SMP__BEAT_MAGIC "SMPBEAT1"
enum { SMP__BEAT_BYTES = 4096, SMP__BEAT_EVERY_MS = 100 };

/* The beginning of the page, in the bytes of this machine; the rest is 0. */
typedef struct smp__beat {
    char magic[8]; /* SMP__BEAT_MAGIC, without its end; written last */
    int64_t pid;
    int64_t start_ticks; /* of the process: smp__process_start; another one may get its number */
    int32_t world_rank, world_size;
    _Atomic int64_t step;       /* steps done by the job */
    _Atomic int64_t beat;       /* counts */
    _Atomic double monotonic_s; /* CLOCK_MONOTONIC of the last one */
    _Atomic double step_s;      /* what the last step took; 0: none is done */
} smp__beat;
_Static_assert(sizeof(smp__beat) == 64, "others read it");

/* This rank's, in a folder given by its descriptor. SMP_ERR_FAILED: the file cannot be made. */
typedef struct smp__heartbeat smp__heartbeat;
smp_status smp__heartbeat_start(int directory, int world_rank, int world_size,
                                smp__heartbeat **out);
/* Accepts NULL, as what follows. */
void smp__heartbeat_step(smp__heartbeat *heartbeat, int64_t step, double step_s);
/* The file stays, and says that nobody beats any more. */
void smp__heartbeat_stop(smp__heartbeat *heartbeat);

/* What a file in that folder says; false: it is none, or not complete yet. */
bool smp__beat_read(int directory, const char *name, smp__beat *out);

#endif

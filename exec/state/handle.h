/* The inside of the public handle `smp`: one training job as one rank sees it. A pointer to each
 * part, whose header says what it is; those named by a file alone are known to their room.
 *
 * Built once by smp_init: the plan, this rank's program, the layouts of its stages, the memory plan
 * and the arena, operator state, and address tables. A step then only walks the program.
 *
 * The device runs behind the host: a step enqueues everything and waits once, for the losses and
 * the gradient norm; the optimizer runs while the next step is prepared. The arena is device
 * memory: the host sees its contents through smp__copy_out and smp__copy_in alone. */
#ifndef SMP_EXEC_STATE_HANDLE_H
#define SMP_EXEC_STATE_HANDLE_H

#include "exec/transport/comm.h"
#include "exec/device/device.h"
#include "exec/optimizer/optimizer.h"
#include "exec/record/rank_place.h"
#include "exec/record/step_record.h"
#include "exec/state/buffers.h"
#include "exec/state/given.h"
#include "exec/state/work.h"
#include "exec/transport/transport.h"

typedef struct smp__stash_copies smp__stash_copies;

/* This end of what moves tensors between ranks. */
typedef struct smp__endpoint {
    const smp_transport *transport;
    void *context; /* NULL: not open */
} smp__endpoint;

struct smp {
    smp_options *options;
    struct smp__setup *setup; /* exec/job/setup.h */
    smp_comm *comm;
    const smp_device *device;
    void *device_context;
    smp_target *target; /* what the job runs on */
    smp__endpoint *endpoint;
    const smp_optimizer *optimizer;
    struct smp__weights *weights; /* exec/state/weights.h */

    smp_graph *graph;
    smp_plan *plan;
    smp__work *work;
    smp_memory_rank *memory;
    smp__buffers *buffers;
    smp__given *given;
    struct smp__stash_copies
        *stash_copies;            /* exec/offload/stash_copies.h; NULL: the rank has no host area */
    struct smp__updates *updates; /* exec/state/updates.h; NULL: states are in the arena */
    struct smp__stepping *stepping; /* exec/step/stepping.h */

    int64_t step;                   /* steps done */
    struct smp__progress *progress; /* exec/state/progress.h */
    bool broken;                    /* a step failed */
    smp__place *place;              /* what the rank is doing */
    struct smp__queue *queue;       /* exec/state/device_wait.h */
    smp__record *record; /* of the last step; times are known after smp__trace_collect. NULL: not
                            record_trace */
    struct smp__saving *saving; /* exec/save/checkpoint_save.h */
};

enum { SMP__STEP_SUMS = 2 }; /* other sums over all ranks that go with the norm */

/* Address of a value of (chunk, micro-batch). */
void *smp__job_address(const smp *s, int chunk, smp_ref ref, int microbatch);
/* Numbers this replica's micro-batches, once the plan is known. */
void smp__job_number(smp *s);
/* Micro-batches that a replica's program begins with and has no samples for: those of one block
 * where it has fewer blocks of gradients than others (schedule/plan/gradient_blocks.h), else 0. */
int smp__job_first(const smp *s, int replica);
/* Number of a replica's micro-batch among those of all replicas; and how many these are. */
int64_t smp__job_microbatch(const smp *s, int replica, int microbatch);
int64_t smp__job_microbatches(const smp *s);
/* Samples in a micro-batch of the call in progress, `batch` or less: they are given by replica,
 * then micro-batch, and padding stands behind them. */
int64_t smp__job_samples(const smp *s, int replica, int microbatch);
/* How many micro-batches of the step behind this one, of all replicas, have samples. */
int64_t smp__job_following(const smp *s, int replica, int microbatch);
/* Index into memory->param for a graph weight, -1 if not held here. */
int32_t smp__job_find_param(const smp *s, int32_t param);

/* Optimizer states kept per weight: none in inference. */
int smp__job_states(const smp *s);
/* ... and a number for each whole weight? */
bool smp__job_keeps(const smp *s);
/* Chunk of this rank that is a stage, -1 if it lies elsewhere. */
int smp__job_chunk_of_stage(const smp *s, int stage);
/* SMP_ERR_FAILED after a failed step. */
smp_status smp__job_usable(const smp *s);

/* Samples in one step of all replicas. */
int64_t smp__job_global_batch(const smp *s);

/* The end of a call that said what it does: after a failure elsewhere that stays its place. */
smp_status smp__job_leave(smp *s, smp_status status);

/* Puts "rank 2 (replica 0, stage 2, F3.0): " before the recorded message, outside of steps what the
 * rank is doing. */
smp_status smp__job_context(const smp *s, smp_status status);

#endif

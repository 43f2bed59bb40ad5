/* The inside of the public handle `smp`: one training job as one rank sees it.
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
#include "exec/data/index_range.h"
#include "exec/device/device.h"
#include "exec/optimizer/optimizer.h"
#include "exec/record/rank_place.h"
#include "exec/record/step_record.h"
#include "exec/transport/transport.h"
#include "schedule/memory/memory.h"
#include "schedule/plan/plan.h"

typedef struct smp__stash_copies smp__stash_copies;

/* A message of this rank: one transfer, with a request per micro-batch. */
typedef struct smp__channel {
    int32_t transfer; /* index in flow */
    int peer;         /* pipeline rank */
    int chunk;        /* of this rank */
    int32_t border;   /* of the chunk's layout */
    int lane;         /* index in smp.lanes */
    bool outgoing;
    smp_request *request; /* [microbatches] */
    double *arrived_us;   /* [microbatches], incoming with record_trace: in the last step */
} smp__channel;

/* One op of one chunk, ready to call. */
typedef struct smp__call {
    const smp_layout_call *layout;
    const smp_op *op;
    const smp_op_kernels *kernels;
    void *state;
    const float **param;  /* [n_param] */
    const void **param16; /* [n_param] in bf16 or fp16, else NULL */
    float **dparam;       /* [n_param] accumulators of this op's uses */
    bool pair;            /* its forward and that of the next call are one kernel */
    bool input_pair;      /* ... its backward_input and that of the call before */
    int updates;          /* how many of the job's `updates` its forward has to find made */
} smp__call;

typedef struct smp__chunk {
    int stage;
    smp_layout *layout;
    smp__call *call; /* [layout->n_call] */
    int n_channel;
    smp__channel *channel; /* all messages of this chunk */
    bool gathers;          /* its weights are under way */
    int64_t gathered;      /* where weights in parts were gathered last */
    int updates;           /* the most of its calls' */
} smp__chunk;

/* A model input. With host memory the kernels read the caller's arrays, else a copy of them; of an
 * input that is not split always a copy, one micro-batch for all. */
typedef struct smp__input {
    bool needed;
    const char *data;   /* micro-batch 0 of the step in progress, as the kernels see it */
    const char *padded; /* likewise all micro-batches that samples do not fill */
    int64_t bytes;      /* of a micro-batch */
    int64_t stride;     /* from a micro-batch to the next: bytes, or 0 if it is not split */
    int places;         /* micro-batches in memory of the job */
    char *host;   /* [places * bytes] for the device to copy from; with host memory what the kernels
                     do not read in the caller's array */
    char *device; /* the same in device memory; NULL with host memory */
    smp__index_range range; /* of an int32 input */
    double counted;         /* how often its values decide what counts in the loss */
    bool counts_here;       /* ... and this rank is the one of its replica that looks at them */
} smp__input;

/* A micro-batch's place among the losses. */
typedef struct smp__loss_slot {
    float loss;
    int64_t hits[SMP_OP_HITS]; /* of a loss that counts them; in training not written */
} smp__loss_slot;
_Static_assert(sizeof(smp__loss_slot) <= SMP_LOSS_SLOT_BYTES, "one does not reach into the next");

typedef struct smp__cost_samples smp__cost_samples;

struct smp {
    smp_options *options; /* in `strings`, as their strings are */
    smp_arena *strings;
    smp_comm *comm;
    const smp_device *device;
    void *device_context;
    smp_target target;        /* what the job runs on */
    struct smp__found *found; /* exec/job/choose_device.h */
    const smp_transport *transport;
    void *transport_context;
    struct smp__lanes *lanes; /* exec/step/message_lanes.h */
    const smp_optimizer *optimizer;
    struct smp__weights *weights; /* exec/state/weights.h */

    smp_graph *graph;
    smp_plan *plan;
    int32_t *stage_of_op;
    int *stage_rank; /* [n_stage] */
    smp_flow *flow;
    const smp_program *program; /* of this rank */
    int chunks, microbatches;
    int64_t batch; /* samples of a micro-batch */
    int *stage_of_chunk;
    smp__chunk *chunk; /* [chunks] */
    smp_memory_rank *memory;
    char *arena;
    struct smp__stash_copies
        *travel; /* exec/offload/stash_copies.h; NULL: the rank has no host area */
    char *far;   /* the host area as this process sees it, where states lie in it; else NULL */
    struct smp__updates *updates; /* exec/state/updates.h; NULL: states are in the arena */
    char *extra;                  /* device memory besides the arena: `loss_gradient`, inputs */
    int64_t extra_bytes;
    char *loss_gradient; /* in it: [microbatches] shares of the loss, 64 bytes apart */
    smp__input *input;   /* [n_input] */
    char *host;  /* of device->reserve_host: inputs, and what the host reads after a wait: */
    char *loss;  /* in it: [microbatches] smp__loss_slot, 64 bytes apart */
    char *share; /* in it: likewise, where `loss_gradient` is copied from */
    char *piece; /* in it: SMP__PIECE_BYTES for copies; NULL with host memory */
    struct smp__reducer *reducer; /* exec/step/reduce.h */
    struct smp__joint *joint;     /* exec/step/joint_sums.h; NULL: no operator here needs it */
    const struct smp__tap *tap;   /* exec/step/tap.h; NULL: nothing is copied out */
    struct smp__op_group *tensor_group; /* exec/group/op_group.h; NULL: this rank computes its ops
                                           alone */
    double *rows;        /* [ddp * microbatches]: what each loss is a mean over, see loss_share.h */
    MPI_Comm rows_group; /* ranks that have to tell each other at the start; MPI_COMM_NULL: none */
    struct smp__step_sums *sums; /* exec/step/step_sums.h */

    int first_microbatch; /* of the inputs: what micro-batch 0 of a call reads; 0 in training */
    int64_t step;         /* steps done */
    struct smp__progress *progress; /* exec/state/progress.h */
    bool training_call;             /* false while evaluating */
    bool stale;  /* weights have been updated, each rank its part, and not gathered since */
    bool broken; /* a step failed */
    char load_note[1024];     /* see smp_load_note */
    smp__place *place;        /* what the rank is doing */
    struct smp__queue *queue; /* exec/state/device_wait.h */
    int64_t at;               /* in the program: the action in progress */
    double moved_s;           /* when messages moved on last, between operators */

    smp__cost_samples *cost_samples; /* exec/step/cost_samples.h; NULL: not record_costs */
    smp__record *record;   /* of the last step; times are known after smp__trace_collect. NULL: not
                            record_trace */
    int64_t samples_given; /* of the global batch, by the call in progress */

    struct smp__saving *saving; /* exec/state/checkpoint_save.h */

    struct smp__group_memory *group_memory; /* of exec/job/group_calls.c */
};

enum {
    SMP__PIECE_BYTES = 16 << 20, /* of smp.piece */
    SMP__STEP_SUMS = 2           /* other sums over all ranks that go with the norm */
};

/* Address of a value of (chunk, micro-batch). */
void *smp__job_address(const smp *s, int chunk, smp_ref ref, int microbatch);
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

/* The inside of the public handle `smp`: one training job as one rank sees it.
 *
 * Built once by smp_init: the plan, this rank's program, the layouts of its stages, the memory plan
 * and the arena, operator state, and address tables. A step then only walks the program.
 *
 * The device runs behind the host: a step enqueues everything and waits once, for the losses and the
 * gradient norm; the optimizer runs while the next step is prepared. The arena is device memory: the
 * host sees its contents through smp__copy_out and smp__copy_in alone. */
#ifndef SMP_EXEC_STATE_HANDLE_H
#define SMP_EXEC_STATE_HANDLE_H

#include "exec/transport/comm.h"
#include "exec/data/index_range.h"
#include "exec/device/device.h"
#include "exec/optimizer/optimizer.h"
#include "exec/transport/transport.h"
#include "schedule/memory/memory.h"
#include "schedule/plan/plan.h"
#include "schedule/show/trace.h"

/* A message of this rank: one transfer, with a request per micro-batch. */
typedef struct smp__channel {
    int32_t transfer; /* index in flow */
    int peer;         /* pipeline rank */
    int chunk;        /* of this rank */
    int32_t border;   /* of the chunk's layout */
    int lane;         /* index in smp.lane */
    bool outgoing;
    smp_request *request; /* [microbatches] */
} smp__channel;

/* One op of one chunk, ready to call. */
typedef struct smp__call {
    const smp_layout_call *layout;
    const smp_op *op;
    const smp_op_kernels *kernels;
    void *state;
    const float **param;  /* [n_param] */
    const void **param16; /* [n_param] in bf16, else NULL */
    float **dparam;       /* [n_param] accumulators of this op's uses */
    bool pair;            /* its forward and that of the next call are one kernel */
} smp__call;

typedef struct smp__chunk {
    int stage;
    smp_layout *layout;
    smp__call *call; /* [layout->n_call] */
    int n_channel;
    smp__channel *channel; /* all messages of this chunk */
} smp__chunk;

/* A tied weight's accumulator on its way from / to another rank. */
typedef struct smp__tie_message {
    int32_t use; /* graph use */
    int peer;
    int chunk;      /* outgoing: of the accumulator; incoming: -1 */
    int lane;       /* index in smp.lane */
    int64_t offset; /* in the arena, which is reserved later than lanes are opened */
    smp_request request;
} smp__tie_message;

typedef struct smp__reducer {
    smp_reduction **bucket; /* [chunks]; NULL: not in flight */
    smp__tie_message *tie;
    int n_tie;
} smp__reducer;

/* A model input. With host memory the kernels read the caller's arrays, else a copy of them. */
typedef struct smp__input {
    bool needed;
    const char *data; /* micro-batch 0 of the step in progress, as the kernels see it */
    int64_t stride;   /* bytes from a micro-batch to the next */
    char *host;       /* [microbatches * stride] for the device to copy from; NULL: not used */
    char *device;     /* the same in device memory */
    smp__index_range range; /* of an int32 input */
} smp__input;

struct smp {
    smp_options options; /* strings point into `strings` */
    smp_arena *strings;
    smp_comm comm;
    const smp_device *device;
    void *device_context;
    void *kernel_context;  /* what calls of operators get as their device */
    smp_target target;     /* what the job runs on */
    char device_note[512]; /* why not a better one ("auto"), or empty */
    const smp_transport *transport;
    void *transport_context;
    char transport_note[512]; /* what the better ones said, or empty */
    int n_lane;
    smp_lane *lane; /* of this rank, by rising id */
    const smp_optimizer *optimizer;

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
    char *extra; /* device memory besides the arena: `seed`, inputs */
    int64_t extra_bytes;
    float *seed;       /* in it: gradient of the loss, 1 / (microbatches * ddp) */
    smp__input *input; /* [n_input] */
    char *host;        /* of device->reserve_host: inputs, and what the host reads after a wait: */
    char *loss;        /* in it: [microbatches] losses, 64 bytes apart */
    double *square;    /* in it: [n_param] sums of squares of gradients */
    char *piece;       /* in it: SMP__PIECE_BYTES for copies; NULL with host memory */
    smp__reducer reducer;
    double *norm;   /* [graph->n_param] for the global norm */
    double *result; /* [ddp * microbatches + world_size]: losses, times */

    int first_microbatch; /* of the inputs: what micro-batch 0 of a call reads; 0 in training */
    int64_t step;         /* steps done */
    bool training_call;   /* false while evaluating */
    bool broken;          /* a step failed */
    smp_action current;   /* action in progress, for messages */
    int64_t position;     /* actions of the step that are enqueued */
    int64_t passed;       /* ... of which the device has done at least so many */
    int64_t calls;        /* operators enqueued, for smp__device_pace */

    smp_trace_event *event; /* [program n], with record_trace */
    int64_t n_event;        /* of the last step; times are known after smp__trace_collect */
    bool collected;
    double step_begin_s;
};

enum { SMP__PIECE_BYTES = 16 << 20 };

/* planning.c: the plan for options->model on options->devices (0: `ranks`) devices. */
smp_status smp__plan_from_options(const smp_options *options, int ranks, smp_target target,
                                  smp_plan **out);

/* choose.c: what the job runs on. All collective. */
smp_status smp__choose_device(smp *s);    /* sets device, target, device_note; needs the graph */
smp_status smp__choose_transport(smp *s); /* sets transport, transport_note */
smp_status smp__device_open(smp *s);
/* SMP_ERR_NO_FIT if the arena and `extra` do not fit the device, with those of the ranks that share
 * it. */
smp_status smp__device_check_memory(smp *s);

/* device_wait.c: the host and the device. With the watchdog: a device that gets nowhere is
 * SMP_ERR_PEER, naming the first action that it has not done. */
smp_status smp__device_idle(smp *s);
/* If the device itself has failed: s->current becomes the action that it was at. */
void smp__device_blame(smp *s);
/* Called after every operator: keeps the host within some hundred kernels of the device, since a
 * launch into a full queue would block where nobody watches. */
smp_status smp__device_pace(smp *s);
/* Stamps that the device needs for a program of n actions. */
int smp__device_stamps(int64_t actions, bool trace);
/* Notes where the device begins (with record_trace) or ends the action at s->position. */
smp_status smp__stamp_begin(smp *s);
smp_status smp__stamp_end(smp *s);
/* Fills in the times of `event`. Waits for the device. */
smp_status smp__trace_collect(smp *s);
/* Between host memory and device memory, in pieces; return when done. */
smp_status smp__copy_in(smp *s, void *target, const void *values, int64_t bytes);
smp_status smp__copy_out(smp *s, void *values, const void *source, int64_t bytes);
/* What stands at `source` in the arena, for the host to read: *values; *copy is to be freed. */
smp_status smp__copy_view(smp *s, const void *source, int64_t bytes, const void **values,
                          void **copy);

/* inputs.c: model inputs for the kernels. */
smp_status smp__inputs_build(smp *s);
/* Of the copies: as much device memory as host memory, and where they are. 0: none. */
int64_t smp__inputs_bytes(const smp *s);
void smp__inputs_place(smp *s, char *device, char *host);
/* The caller's arrays of a step: checked and on their way to the device. */
smp_status smp__inputs_begin(smp *s, const void *const *inputs);

/* job.c: building and freeing everything after the groups exist. */
smp_status smp__job_build(smp *s);
void smp__job_free(smp *s);

/* Address of a value of (chunk, micro-batch). */
void *smp__job_address(const smp *s, int chunk, smp_ref ref, int microbatch);
/* Index into memory->param for a graph weight, -1 if not held here. */
int32_t smp__job_find_param(const smp *s, int32_t param);

/* stage.c: the kernels of one action. */
smp_status smp__stage_forward(smp *s, int chunk, int microbatch);
smp_status smp__stage_backward(smp *s, int chunk, int microbatch); /* B */
smp_status smp__stage_input(smp *s, int chunk, int microbatch);    /* I */
smp_status smp__stage_weight(smp *s, int chunk, int microbatch);   /* W */

/* warm_up.c: what is slow the first time, done before the weights are there. */
smp_status smp__warm_up(smp *s);

/* messages.c: tensors between stages. */
smp_status smp__messages_lanes(smp *s, smp_transport_options *options); /* before open */
smp_status smp__messages_build(smp *s);                                 /* after it */
void smp__messages_free(smp *s);
smp_status smp__messages_post(smp *s, smp_memory_message message);
smp_status smp__messages_send(smp *s, int chunk, int microbatch, smp_transfer_kind kind);
/* Waits until everything that a forward (F) or backward (B) needs is there. */
smp_status smp__messages_arrive(smp *s, int chunk, int microbatch, smp_transfer_kind kind);
/* Waits until a send of this rank is complete. */
smp_status smp__messages_sent(smp *s, smp_memory_message message);
/* One request, with the watchdog; `channel` for the message on time-out. */
smp_status smp__messages_wait(smp *s, smp_request *request, const smp__channel *channel,
                              int microbatch);

/* reduce.c: gradients over replicas and over stages that share a weight. */
smp_status smp__reduce_build(smp *s);
void smp__reduce_free(smp *s);
smp_status smp__reduce_begin_step(smp *s);       /* posts receives of tied gradients */
smp_status smp__reduce_start(smp *s, int chunk); /* R.c */
smp_status smp__reduce_finish(smp *s);           /* every gradient is final, or will be when the
                                                      device gets there */

/* checkpoint.c: does the directory hold a complete checkpoint? */
bool smp__checkpoint_exists(const char *path);

/* weights.c */
smp_status smp__weights_init(smp *s);
/* Enqueued: the bf16 copies of all weights, or of memory->param[index]. */
smp_status smp__weights_round(smp *s);
smp_status smp__weight_round(smp *s, int32_t index);
/* Enqueued: the sums of squares of the gradients; then, when the device is idle, the global norm of
 * them (collective). */
smp_status smp__weights_square(smp *s);
smp_status smp__weights_norm(smp *s, double *norm);
/* Enqueued: the optimizer, and zero for the accumulators. */
smp_status smp__weights_update(smp *s, int64_t step, float lr, float grad_scale);
/* A hash of the weights of this rank's replica, the same for every split. Collective. */
smp_status smp__weights_hash(smp *s, uint64_t *hash);

/* Writes a page of the last step, predicted above measured. Needs record_trace and a plan with
 * `cluster:`. Collective; rank 0 writes. */
smp_status smp__report_write(smp *s, const char *path);

/* Optimizer states kept per weight: none in inference. */
int smp__job_states(const smp *s);
/* Chunk of this rank that is a stage, -1 if it lies elsewhere. */
int smp__job_chunk_of_stage(const smp *s, int stage);
/* SMP_ERR_FAILED after a failed step. */
smp_status smp__job_usable(const smp *s);

/* Puts "rank 2 (replica 0, stage 2, F3.0): " before the recorded message. */
smp_status smp__job_context(const smp *s, smp_status status);

#endif

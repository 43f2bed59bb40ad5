/* The inside of the public handle `smp`: one training job as one rank sees it.
 *
 * Built once by smp_init: the plan, this rank's program, the layouts of its stages, the memory plan
 * and the arena, operator state, and address tables. A step then only walks the program. */
#ifndef SMP_EXEC_JOB_H
#define SMP_EXEC_JOB_H

#include "exec/comm.h"
#include "exec/device.h"
#include "exec/optimizer.h"
#include "exec/transport.h"
#include "schedule/memory.h"
#include "schedule/plan.h"
#include "schedule/trace.h"

/* A message of this rank: one transfer, with a request per micro-batch. */
typedef struct smp__channel {
    int32_t transfer; /* index in flow */
    int peer;         /* pipeline rank */
    int chunk;        /* of this rank */
    int32_t border;   /* of the chunk's layout */
    bool outgoing;
    smp_request *request; /* [microbatches] */
} smp__channel;

/* One op of one chunk, ready to call. */
typedef struct smp__call {
    const smp_layout_call *layout;
    const smp_op *op;
    const smp_op_kernels *kernels;
    void *state;
    const float **param; /* [n_param] */
    float **dparam;      /* [n_param] accumulators of this op's uses */
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
    int chunk; /* outgoing: of the accumulator; incoming: -1 */
    float *data;
    smp_request request;
} smp__tie_message;

typedef struct smp__reducer {
    smp_reduction **bucket; /* [chunks]; NULL: not in flight */
    smp__tie_message *tie;
    int n_tie;
} smp__reducer;

struct smp {
    smp_options options; /* strings point into `strings` */
    smp_arena *strings;
    smp_comm comm;
    const smp_device *device;
    const smp_transport *transport;
    void *transport_context;
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
    float *seed; /* gradient of the loss: 1 / (microbatches * ddp) */
    smp__reducer reducer;
    double *norm;   /* [graph->n_param] for the global norm */
    double *result; /* [ddp * microbatches + world_size]: losses, times */

    const void *const *inputs; /* of the step in progress */
    const void **shifted;      /* [n_input] the inputs of one micro-batch, while evaluating */
    int64_t step;              /* steps done */
    bool training_call;        /* false while evaluating */
    bool broken;               /* a step failed */
    smp_action current;        /* action in progress, for messages */

    smp_trace_event *event; /* [program n], with record_trace */
    int64_t n_event;
    double step_begin_s;
    double action_begin_s; /* of the action in progress, with record_trace */
};

/* planning.c: the plan for options->model on options->devices (0: `ranks`) devices. */
smp_status smp__plan_from_options(const smp_options *options, int ranks, smp_plan **out);

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

/* messages.c: tensors between stages. */
smp_status smp__messages_build(smp *s);
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

/* reduce.c: gradients over replicas and over stages that share a weight; the global norm. */
smp_status smp__reduce_build(smp *s);
void smp__reduce_free(smp *s);
smp_status smp__reduce_begin_step(smp *s);         /* posts receives of tied gradients */
smp_status smp__reduce_start(smp *s, int chunk);   /* R.c */
smp_status smp__reduce_finish(smp *s);             /* every gradient is final */
smp_status smp__reduce_norm(smp *s, double *norm); /* collective */

/* checkpoint.c: does the directory hold a complete checkpoint? */
bool smp__checkpoint_exists(const char *path);

/* weights.c */
void smp__weights_init(smp *s);
void smp__weights_update(smp *s, int64_t step, float lr, float grad_scale);
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

/* What this rank computes: its stages, their operators and messages, and its program. Made once by
 * smp_init; a step only walks it. */
#ifndef SMP_EXEC_STATE_WORK_H
#define SMP_EXEC_STATE_WORK_H

#include "exec/device/device.h"
#include "exec/transport/transport.h"
#include "schedule/memory/memory.h"
#include "schedule/plan/plan.h"

/* A message of this rank: one transfer, with a request per micro-batch. */
typedef struct smp__channel {
    int32_t transfer; /* index in flow */
    int peer;         /* pipeline rank */
    int chunk;        /* of this rank */
    int32_t border;   /* of the chunk's layout */
    int lane;         /* of exec/step/message_lanes.h */
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

typedef struct smp__work {
    int32_t *stage_of_op; /* [n_op] */
    int *stage_rank;      /* [n_stage] */
    smp_flow *flow;
    const smp_program *program; /* of this rank */
    int chunks, microbatches;
    int first;      /* smp__job_first of this replica */
    int64_t number; /* smp__job_microbatch of its micro-batch 0 */
    int64_t batch;  /* samples of a micro-batch */
    int *stage_of_chunk;
    smp__chunk *chunk; /* [chunks] */
} smp__work;

#endif

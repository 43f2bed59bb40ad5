/* Between devices that each have some of the tokens and some of the experts of a mixture: rows of
 * tokens to the places of their experts, and back (GShard, Lepikhin et al. 2020). */
#ifndef SMP_GRAPH_OPS_EXPERT_EXCHANGE_H
#define SMP_GRAPH_OPS_EXPERT_EXCHANGE_H

#include "graph/ops/experts/routing.h"

/* One call's numbers, in its workspace. A count or a first place has a number for each device,
 * sample, choice (first, second, ..), run of neighbouring tokens (in a zigzag there are two) and
 * expert, in this order. */
typedef struct smp__expert_exchange {
    smp__routing r;
    const smp_op_group *group;
    int64_t batch, devices, runs, d;
    int64_t room; /* rows from a device to another in one round */
    int64_t most; /* that two devices have for each other in all rounds: the same on all devices */
    const float *count; /* tokens that choose so: integers below 2^24 */
    int32_t *first;     /* the place of the first of them; the capacity: none has one */
    int32_t *place;   /* [batch * tokens * top_k]: number of a choice's row among those that go from
                       this device to its expert's; -1: it has no place there */
    int32_t *base;    /* [batch][top_k][runs][experts]: that of the first row, of this device */
    smp__route route; /* expert, gate: of all samples */
    float *sent, *got;
} smp__expert_exchange;

/* Bytes of what a forward call saves for one sample, and of the workspace of any call. */
int64_t smp__experts_saved(const smp_graph *graph, const smp_op *op);
int64_t smp__experts_bytes(const smp_graph *graph, const smp_op *op, int64_t batch, int64_t d);

/* What a call sends where one round is enough: messages of the mean length, a forward call's with
 * the counts. */
smp_op_exchange smp__experts_work(const smp_graph *graph, const smp_op *op, int64_t batch,
                                  int64_t d, bool forward);

/* Routes the micro-batch. A forward call tells the other devices how many tokens chose which expert
 * and saves what they tell in `aux`, for the calls of the backward pass. d: floats of a row. */
smp_status smp__experts_begin(const smp_op_call *call, int64_t d, bool gates, bool forward,
                              smp__expert_exchange *x);
/* Sends rows [batch * tokens][d] to each expert that a token chose, times their gates if by_gate;
 * places [batch][own experts][capacity][d], zeroes where nobody is. */
smp_status smp__experts_send(const smp__expert_exchange *x, const float *rows, bool by_gate,
                             float *places);
/* The rows at the places of the choices: choices [batch * tokens * top_k][d], left as they are
 * where there is no place; or, `sum`, added to [batch * tokens][d]. */
smp_status smp__experts_return(const smp__expert_exchange *x, const float *places, bool sum,
                               float *choices);

/* The logits of sample b: their part of the route. */
smp__route smp__experts_route(const smp__expert_exchange *x, int64_t b);

/* The same on a GPU, for kernels (expert_exchange.cuh). */
typedef struct smp__device_exchange {
    smp__routing r;
    smp__device_route route; /* slot: tokens of its run before it that chose so; choice: of a place,
                                whose row: device * bound + its number; used: nothing */
    int64_t batch, devices, index, runs, d;
    int64_t room;       /* rows from a device to another in one round */
    int64_t bound;      /* in all rounds, at most */
    float *count, *own; /* own: of this device alone */
    int32_t *first;     /* the place of the first of them */
    int32_t *start;     /* and its number among the rows from its device to its expert's */
    int32_t *most;      /* [1] that two devices have for each other in all rounds */
    void *sent, *got;   /* [devices] of a round's rows, filled up to whole floats */
    void *rows;         /* [batch * tokens * top_k][d] of the choices; NULL: not kept */
    int64_t bytes;      /* of the workspace */
} smp__device_exchange;

/* Bytes that a forward call saves for one sample; `rows`: the rows of the choices, too. */
int64_t smp__device_exchange_saved(const smp_graph *graph, const smp_op *op, bool rows);
/* rows: kept, in `aux` if they are `saved`, else in the workspace. Without arrays: sizes. */
smp__device_exchange smp__device_exchange_at(const smp_graph *graph, const smp_op *op,
                                             int64_t batch, bool gates, bool rows, bool saved,
                                             void *aux, void *workspace);

#endif

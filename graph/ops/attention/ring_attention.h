/* What the CPU's and the GPU's ring_attention share: whose keys are at hand in which round, which
 * runs of them the device's queries see; and what lies where in the GPU's workspace. */
#ifndef SMP_GRAPH_OPS_RING_ATTENTION_H
#define SMP_GRAPH_OPS_RING_ATTENTION_H

#include "graph/math/attention.h"

/* A part is `runs` runs of neighbouring positions. */
typedef struct smp__ring {
    smp__attention at;  /* a run of queries against a run of keys: the same of all */
    int64_t part[2];    /* queries, keys of a device */
    int64_t kv_columns; /* of a row of k, and of v */
    int64_t devices, device, runs, rounds;
} smp__ring;

smp__ring smp__ring_of(const smp_graph *graph, const smp_op *op);
/* The position of the first row of a device's run; length: rows of a run. */
int64_t smp__ring_run(const smp__ring *r, int64_t device, int64_t run, int64_t length);
/* Run i of the queries against run j of a device's keys: row t of them is at position before + t
 * if row 0 of these is at 0. */
smp__attention smp__ring_pair(const smp__ring *r, int64_t device, int64_t i, int64_t j);
/* Does any of these queries see any of these keys, as far as causality and the window go? */
bool smp__ring_sees(const smp__attention *pair);
/* Whose keys are at hand in a round. */
int64_t smp__ring_source(const smp__ring *r, int64_t round);
/* Values of keys and values that travel, of a micro-batch. */
int64_t smp__ring_travelling(const smp__ring *r, int64_t batch);

/* A GPU's workspace, offsets in bytes. Keys and values travel in the type of the activations, sums
 * of their gradients in fp32: what is sent is [sums | keys | values] of one of two arrays, or an
 * end of it. */
typedef struct smp__ring_room {
    int64_t sums[2], kv[2]; /* kv after sums */
    int64_t part;           /* forward: the output of a pair; backward: dq by runs of keys, of all
                               queries */
    int64_t dkv;            /* by runs of queries, of all keys */
    int64_t rows;           /* forward: the logarithms of a pair; backward: delta */
    int64_t total;          /* fp32: the output so far, if it is not kept so; dq so far */
    int64_t bias, bytes;
} smp__ring_room;

smp__ring_room smp__ring_room_of(const smp__ring *r, smp_dtype dtype, int64_t batch, bool backward);

#endif

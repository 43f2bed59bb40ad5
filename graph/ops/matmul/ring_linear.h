/* What the CPU's and the GPU's ring_linear share: which rows are a device's, and what lies where in
 * the workspace. */
#ifndef SMP_GRAPH_OPS_RING_LINEAR_H
#define SMP_GRAPH_OPS_RING_LINEAR_H

#include "graph/ops/collective/collective.h"

typedef struct smp__linear_ring {
    int64_t devices, device;
    bool scatters;      /* in forward */
    int64_t rows;       /* of a device's block: (outer, runs, rows of a run) */
    smp__parts run;     /* where they lie in the whole; a run in rows */
    int64_t columns[2]; /* of x, of y, on this device */
    int64_t value;      /* bytes of each of theirs */
    int64_t summand;    /* bytes of a summand's: fp32, on a GPU as the others */
} smp__linear_ring;

smp__linear_ring smp__linear_ring_of(const smp_graph *graph, const smp_op *op, int64_t batch);
/* Does a block lie in the whole as it would alone? */
bool smp__linear_is_dense(const smp__linear_ring *r, int64_t columns);
/* Floats of the message that is a block of so many bytes a value. */
int64_t smp__linear_message(const smp__linear_ring *r, int64_t columns, int64_t value);

/* Places in a workspace, in bytes: what comes, or is sent, by turns; summands of all devices,
 * `step` apart; a block apart; on a GPU the own block, if it is no whole floats. */
typedef struct smp__linear_places {
    int64_t travels[2], summand, step, side, own, end;
} smp__linear_places;

/* For a product of a block with so many columns that makes one with so many others. */
smp__linear_places smp__linear_places_of(const smp__linear_ring *r, bool scatters, int64_t from,
                                         int64_t to);

#endif

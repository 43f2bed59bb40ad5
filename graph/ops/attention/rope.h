/* Attributes of rope. */
#ifndef SMP_GRAPH_OPS_ROPE_H
#define SMP_GRAPH_OPS_ROPE_H

#include "graph/ops/ops.h"

enum {
    SMP__ROPE_HEADS,
    SMP__ROPE_BASE,
    SMP__ROPE_ROTATED,
    SMP__ROPE_INTERLEAVED,
    SMP__ROPE_DEVICES,
    SMP__ROPE_AXIS,
    SMP__ROPE_BLOCKS
};

#endif

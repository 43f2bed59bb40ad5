/* What a step keeps for the next one: a part for each file of this room, which others do not
 * see. */
#ifndef SMP_EXEC_STEP_STEPPING_H
#define SMP_EXEC_STEP_STEPPING_H

#include "exec/state/handle.h"

/* A tensor that forward passes copy out as soon as it is made, since its memory is used again. */
typedef struct smp__tap {
    int chunk, call, slot; /* of this rank, that make it; chunk -1: another rank does */
    int64_t bytes;         /* of a micro-batch, as it lies here */
    char *values;          /* [microbatches][bytes], of the host */
} smp__tap;

struct smp__stepping {
    struct smp__lanes *lanes; /* message_lanes.h */
    struct smp__reducer *reducer;
    struct smp__joint *joint; /* joint_sums.h; NULL: no operator here needs it */
    const smp__tap *tap;      /* NULL: nothing is copied out */
    struct smp__step_sums *sums;
    struct smp__op_group *tensor_group; /* exec/group/op_group.h; NULL: this rank computes its ops
                                           alone */
    struct smp__captures *captures;     /* captures.h; NULL: nothing is captured */
    struct smp__cost_samples *cost_samples; /* NULL: not record_costs */
    double moved_s;                         /* when messages moved on last, between operators */
};

#endif

/* What one op costs, from all that is known of it: what cost tables and prices share. Internal to
 * the layer. */
#ifndef SMP_PROFILE_OP_COST_H
#define SMP_PROFILE_OP_COST_H

#include "profile/costs.h"

typedef struct smp__costing {
    const smp_cluster *cluster;
    const smp_profile *profile; /* or NULL */
    bool of_whole;              /* it was measured on the whole of what is asked for */
    smp_device_spec device;     /* what estimates go by */
    int64_t microbatch_size;
    double slowdown;  /* of all times: devices of a group take turns */
    unsigned sources; /* of all ops so far */
} smp__costing;

smp__costing smp__costing_open(const smp_cluster *cluster, const smp_profile *profile,
                               bool of_whole, int64_t microbatch_size);

/* Weight bytes that the optimizer updates per second. */
double smp__optimizer_rate(const smp__costing *costing, smp_target target);

/* The op in the whole that a split one is a share of, and in the profile; -1: it is new. Where the
 * profile is not that of the whole, `measured` alone counts. */
typedef struct smp__op_origin {
    const smp_graph *whole;
    int32_t op, measured;
} smp__op_origin;

/* cost: has the bytes of smp__estimate_bytes. */
smp_status smp__op_cost(smp__costing *costing, const smp_graph *graph, int32_t index,
                        smp__op_origin origin, smp_op_cost *cost);

#endif

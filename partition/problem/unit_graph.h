/* The problem in units: the ops that must share a stage, merged. What the solvers work on.
 *
 * A unit is a group, the users of a tied weight (tie_together), a single op, or the union of such
 * sets with everything that lies between their members (a stage is convex, so whatever has to share
 * a stage takes along all paths between its members). Units are numbered in a topological order:
 * that of the model file as far as merging allows. All adjacency is flat CSR. */
#ifndef SMP_PARTITION_PROBLEM_UNIT_GRAPH_H
#define SMP_PARTITION_PROBLEM_UNIT_GRAPH_H

#include <math.h>

#include "partition/problem/message.h"
#include "partition/problem/recompute_price.h"

/* What `bytes` of idle weights (smp_param) count as bytes of weights with gradients and states. */
static inline double smp__idle_weight(const smp_problem *problem, double bytes)
{
    return bytes * problem->idle_factor / problem->state_factor;
}

/* Nets lead from lower to higher numbers; ranges of stages never fall along them. */
typedef struct smp__units {
    int32_t n;
    int32_t n_net;   /* tensors that leave their unit */
    int32_t n_share; /* tied weights held by several units */

    int32_t *unit_of_op; /* [n_op] */
    int64_t *op_begin;   /* [n + 1] into op_list: ops of a unit, rising */
    int32_t *op_list;    /* [n_op] */

    double *compute_us;    /* [n] forward + backward of one micro-batch on device 0 */
    double *forward_us;    /* [n] of that, forward */
    int64_t *weight_bytes; /* [n] without shared weights */
    int64_t *stash_bytes;
    int64_t *workspace_bytes; /* largest of the unit's ops */
    smp__price price;         /* of recomputing, where that is a choice */

    int32_t *net_unit;           /* [n_net] producer */
    int64_t *net_bytes;          /* one way */
    double *net_us[SMP__N_LINK]; /* [n_net] there, and back with the gradient when training */
    int64_t *net_begin;          /* [n_net + 1] into net_consumer */
    int32_t *net_consumer;       /* distinct units other than the producer, rising */
    int64_t *in_begin;           /* [n + 1] into in_net: nets that a unit reads, rising */
    int32_t *in_net;
    int64_t *out_begin; /* [n + 1] into out_net: nets that a unit makes, rising */
    int32_t *out_net;

    int64_t *share_bytes; /* [n_share] */
    int64_t *share_begin; /* [n_share + 1] into share_unit: holders, rising */
    int32_t *share_unit;
    int64_t *hold_begin; /* [n + 1] into hold_share */
    int32_t *hold_share;

    /* Stages that pins leave to a unit: lo..hi, rising along every net. The anchor range is a part
     * of it in which every stage has a unit that can lie nowhere else; an order sorted by it can
     * be cut into n_stage non-empty stages. */
    bool has_pin;
    bool memory_binds; /* some stage might not fit, or recompute because of that */
    int32_t *lo, *hi;
    int32_t *anchor_lo, *anchor_hi;

    smp_arena *arena;
} smp__units;

/* Why there is no pipeline of n_stage stages. */
typedef enum smp__obstacle_kind {
    SMP__OBSTACLE_NONE,
    SMP__OBSTACLE_FEW_UNITS,  /* than stages */
    SMP__OBSTACLE_FLOW,       /* pins leave a unit no stage, since tensors do not flow back */
    SMP__OBSTACLE_EMPTY_STAGE /* pins leave a stage no unit of its own */
} smp__obstacle_kind;

typedef struct smp__obstacle {
    smp__obstacle_kind kind;
    int32_t n_unit;
} smp__obstacle;

/* SMP_ERR_INPUT for a pin outside the pipeline; SMP_ERR_NO_FIT, naming what contradicts itself, if
 * pins and what stays together leave no pipeline. */
smp_status smp__units_build(const smp_problem *problem, smp__units **out);
/* The same where there may be none: then SMP_OK and an obstacle, and units without stage ranges. */
smp_status smp__units_try(const smp_problem *problem, smp__units **out, smp__obstacle *obstacle);
void smp__units_destroy(smp__units *units); /* accepts NULL */

/* Fills the nets, shared weights and sums of units whose ops are known (partition/problem/nets.c).
 * SMP_ERR_INPUT if the sums are beyond what can be computed with. */
smp_status smp__units_connect(const smp_problem *problem, smp__units *units);
/* Fills the stage ranges (partition/problem/pins.c). */
smp_status smp__units_pin(const smp_problem *problem, smp__units *units, smp__obstacle *obstacle);

/* Bytes that stage s may keep. Limits that no device has are none. */
static inline double smp__memory_limit(const smp_problem *problem, int s)
{
    int64_t limit = problem->memory_limit[s];
    return limit < INT64_MAX / 2 ? (double)limit : (double)INFINITY;
}

/* Compute of a unit on device 0, whatever the memory of its stage. */
static inline double smp__unit_work_us(const smp_problem *problem, const smp__units *units,
                                       int32_t unit)
{
    return units->compute_us[unit] +
           (smp_problem_recomputes_all(problem) ? units->forward_us[unit] : 0.0);
}

/* a + b, or INT64_MAX. Both >= 0. */
static inline int64_t smp__add_bytes(int64_t a, int64_t b)
{
    return a > INT64_MAX - b ? INT64_MAX : a + b;
}

#endif

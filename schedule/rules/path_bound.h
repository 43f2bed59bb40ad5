/* The least that the longest path through a rule's order can be (schedule/rules/path_bound.c). */
#ifndef SMP_SCHEDULE_RULES_PATH_BOUND_H
#define SMP_SCHEDULE_RULES_PATH_BOUND_H

#include "schedule/rules/schedule.h"

/* Times of an op: forward, gradient of the inputs, of the weights; and once at the end of a step, when its
 * weights are updated. */
typedef struct smp__op_times {
    double forward_us, input_us, weight_us, update_us;
} smp__op_times;

typedef struct smp__path_problem {
    const smp_schedule_kind *kind;
    const smp_schedule_shape *shape;
    const double *slowdown; /* [pipeline] times which a rank's compute counts, updates apart */
    int32_t n_op;
    const smp__op_times *op; /* [n_op] */
    /* [2][stages] or NULL: a message takes at least, from the stage before and, back, from the one
     * behind */
    const double *message_us;
    int beside; /* a stage that the others do not wait for, or -1 */
} smp__path_problem;

/* What every way to spread the ops over the stages costs at least: the step takes *fixed_us and op_us of each
 * op, [n_op], if each stage needs what the one before it makes, and its gradients what the one after it
 * makes. Where a stage stands beside, of the ops that it does not hold. Nothing is counted but compute and
 * these messages. All 0 where the order is too long to look at. */
smp_status smp__path_bound(const smp__path_problem *problem, double *fixed_us, double *op_us);

#endif

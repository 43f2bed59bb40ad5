/* The least that the longest path through a rule's order can be (path_bound.c). */
#ifndef SMP_SCHEDULE_ORDER_BOUND_PATH_BOUND_H
#define SMP_SCHEDULE_ORDER_BOUND_PATH_BOUND_H

#include "partition/problem/longest_chain.h"
#include "schedule/rules/schedule.h"

/* Times of an op: forward, gradient of the inputs, of the weights; and once at the end of a step,
 * when its weights are updated. */
typedef struct smp__op_times {
    double forward_us, input_us, weight_us, update_us;
} smp__op_times;

typedef struct smp__path_problem {
    const smp_schedule_kind *kind;
    const smp_schedule_shape *shape;
    double deadline_s;      /* smp_work_s() at which what is found by then is taken; 0: never */
    const double *slowdown; /* [pipeline] times which a rank's compute counts, updates apart */
    int32_t n_op;
    const smp__op_times *op; /* [n_op] */
    /* [2][stages] or NULL: a message takes at least, from the stage before and, back, from the one
     * after */
    const double *message_us;
    int beside; /* a stage that the others do not wait for, or -1 */
} smp__path_problem;

/* What a path through whole ops takes (border_bound.c). */
typedef struct smp__whole_ops {
    const smp__chain *chain; /* the longest */
    int32_t most_marks; /* ops of it that are looked at one by one; 0: as many as are worth it */
    double bound_us;    /* that is known of any partition; it is raised */
    double most_us;     /* a plan's step: more need not be proven */
    /* [n_op] or NULL: of the partition with the shortest longest path that the search met; of ops
     * that it left open the first stage that they may have */
    int32_t *stage;
    double stage_us; /* that path; INFINITY: none was met */
} smp__whole_ops;

/* Actions on a path, or the mean of several, and how long it waits for messages. */
enum { SMP__PATH_ROWS = 4 }; /* forwards, inputs, weights, updates */
typedef struct smp__path {
    double *count; /* [SMP__PATH_ROWS][stages], times the slowdown */
    double message_us;
} smp__path;

/* What ops of these times cost the path on a stage. */
static inline double smp__path_us(const double *count, int n_stage, const smp__op_times *t,
                                  int stage)
{
    return count[stage] * t->forward_us + count[n_stage + stage] * t->input_us +
           count[2 * n_stage + stage] * t->weight_us + count[3 * n_stage + stage] * t->update_us;
}

/* op_us: [n_op], what each op costs the path where it is cheapest. */
void smp__path_price(const smp__path_problem *problem, const double *count, double *op_us);

/* What every way to spread the ops over the stages costs at least: the step takes *fixed_us and
 * op_us of each op, [n_op], if each stage needs what the one before it makes, and its gradients
 * what the one after it makes. Where a stage stands beside, of the ops that it does not hold.
 * Nothing is counted but compute and these messages. All 0 where the order is too long to look at.
 *
 * whole: NULL, or with no stage beside; what it says holds for any. */
smp_status smp__path_bound(const smp__path_problem *problem, double *fixed_us, double *op_us,
                           smp__whole_ops *whole);

#endif

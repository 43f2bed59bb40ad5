/* What each border of a pipeline may enclose if every load stays below a target.
 *
 * Border k lies between stages k - 1 and k; the units before it form a set D that is closed under
 * predecessors (a downset). Below a target of t, the k stages before it compute for at most k * t,
 * and the others for at most (K - k) * t (in proportion to their speeds), so D's compute lies in a
 * window. A unit whose predecessors alone exceed the window's top is surely after the border; one
 * without whose successors the rest cannot reach the bottom is surely before it. */
#ifndef SMP_PARTITION_PROVE_WINDOW_H
#define SMP_PARTITION_PROVE_WINDOW_H

#include "partition/problem/unit_graph.h"

/* Transfers by link class as a stage sees them. What a stage receives is charged by the cheapest
 * link to any earlier stage, what it sends by the cheapest to any later one: exact where all links
 * are alike, otherwise never too much. Of several replicas the cheapest in any; compute is that of
 * the slowest device, which has no cheaper links than these in its replica. */
enum { SMP__N_COST = 3 };

typedef struct smp__window {
    const smp_problem *problem;
    const smp__units *units;
    int n_stage;
    bool overlap;
    bool exact_links;  /* one class is all there is */
    bool may_be_empty; /* stages may hold nothing; the caller's to set */

    double *work_us; /* [n] compute on device 0; with the forward pass twice if all recompute */
    double total_us;
    double *before_us; /* [n] of a unit and all its predecessors, or less on huge graphs */
    double *after_us;  /* [n] of a unit and all its successors, or less */
    double *slowdown;  /* [n_stage] of the slowest device in any replica */
    double *speed;     /* [n_stage + 1] of the stages before a border, summed */
    double *slow_head; /* [n_stage + 1] the least speed among the stages before a border */
    double *slow_tail; /* [n_stage + 1] ... after it */

    int n_cost;                   /* 1 if exact_links */
    double *cost_us[SMP__N_COST]; /* [n_net] */
    int *in_cost, *out_cost;      /* [n_stage] indices into cost_us */
    double *least_us;             /* [n_net] by the cheapest link of all */

    /* For the target of the last call: compute that border k may enclose, 0..n_stage. */
    double *top_us, *bottom_us;
} smp__window;

/* One stage per rank. O(n * nets / 64), above MAX_EXACT units O(n + nets). */
smp_status smp__window_init(smp__window *window, const smp_problem *problem,
                            const smp__units *units, smp_arena *arena);

/* Sets top and bottom for a target. A little room is left for rounding. */
void smp__window_set(smp__window *window, double target_us);

typedef enum smp__side {
    SMP__SIDE_BEFORE, /* surely before the border */
    SMP__SIDE_FREE,
    SMP__SIDE_BEHIND
} smp__side;

static inline bool smp__window_before(const smp__window *window, int border, int32_t unit)
{
    return window->units->hi[unit] < border ||
           window->total_us - window->after_us[unit] < window->bottom_us[border];
}

static inline bool smp__window_behind(const smp__window *window, int border, int32_t unit)
{
    return window->units->lo[unit] >= border || window->before_us[unit] > window->top_us[border];
}

/* A unit that would have to be on both sides (no pipeline has all loads below the target) counts as
 * before. */
static inline smp__side smp__window_side(const smp__window *window, int border, int32_t unit)
{
    if (smp__window_before(window, border, unit))
        return SMP__SIDE_BEFORE;
    return smp__window_behind(window, border, unit) ? SMP__SIDE_BEHIND : SMP__SIDE_FREE;
}

#endif

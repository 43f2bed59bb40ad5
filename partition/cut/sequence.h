/* A sequence of units: an order prepared for cutting it into stages. A stage is an interval [i, j)
 * of positions; its load and memory follow from those of a neighbouring interval in O(degree). They
 * are no differences of prefix sums: a net is paid once however many readers it has, and not at all
 * where the interval holds its producer and all of them. */
#ifndef SMP_PARTITION_CUT_SEQUENCE_H
#define SMP_PARTITION_CUT_SEQUENCE_H

#include "partition/problem/evaluate.h"

/* A net at one of its readers. Positions; -1 / n where there is none. */
typedef struct smp__read {
    int32_t net;
    int32_t producer;
    int32_t previous; /* reader before this one */
    int32_t next;     /* reader after this one */
} smp__read;

/* A net at its producer. */
typedef struct smp__make {
    int32_t net;
    int32_t first; /* reader */
    int32_t last;
} smp__make;

/* A shared weight at one of its holders. */
typedef struct smp__hold {
    int32_t share;
    int32_t previous;
    int32_t next;
} smp__hold;

enum { SMP__BLOCK = 256 }; /* positions whose least head or tail is known */

typedef struct smp__sequence {
    const smp_problem *problem;
    const smp__units *units;
    int32_t n; /* positions */
    int n_stage;
    int32_t *unit;      /* [n] at each position */
    double *before_us;  /* [n + 1] compute of the positions before, on device 0; where every stage
                           recomputes, with the second forward pass */
    double *forward_us; /* [n + 1] forward alone; NULL unless a stage may choose to recompute */
    int64_t *read_begin, *make_begin; /* [n + 1] */
    int64_t *hold_begin;              /* [n + 1]; NULL: nothing shared, or memory does not bind */
    smp__read *read;
    smp__make *make;
    smp__hold *hold;
    /* Least transfers of a stage that begins (ends) at a border: those of its first (last) unit;
     * and the least of each SMP__BLOCK borders. */
    double *head_us[SMP__N_LINK]; /* [n + 1]; NULL: zero */
    double *tail_us[SMP__N_LINK]; /* [n + 1]; NULL: zero */
    double *head_block_us[SMP__N_LINK];
    double *tail_block_us[SMP__N_LINK];

    /* Per stage. The link of a stage's inputs is taken to be that from the rank before it, of its
     * outputs that to the rank after it: exact where all ranks are linked alike, or where tensors
     * only go to the next stage. Of several replicas the slowest device and the farthest link. */
    double *slowdown; /* [n_stage] */
    smp__link *in_link, *out_link;
    int32_t *border_lo, *border_hi; /* [n_stage + 1] where pins allow stage k to begin */
    bool feasible;                  /* some choice of borders respects them */
    bool memory_binds;              /* as the units'; otherwise intervals count no bytes */
    double limit_share;             /* share of the memory limits to respect: 1 */
    smp_arena *arena;
} smp__sequence;

/* order: [units->n], topological. */
smp_status smp__sequence_build(const smp_problem *problem, const smp__units *units,
                               const int32_t *order, smp__sequence **out);
void smp__sequence_destroy(smp__sequence *sequence); /* accepts NULL */

/* What an interval holds. */
typedef struct smp__interval {
    double in_us, out_us;
    smp__holdings held; /* zero unless sequence->memory_binds */
} smp__interval;

/* [i + 1, j) becomes [i, j), of stage k. */
void smp__interval_push_left(const smp__sequence *sequence, int k, smp__interval *interval,
                             int32_t i, int32_t j);
/* [i, j) becomes [i, j + 1). */
void smp__interval_push_right(const smp__sequence *sequence, int k, smp__interval *interval,
                              int32_t i, int32_t j);

/* Without a recomputation that only memory asks for. */
static inline double smp__interval_compute_us(const smp__sequence *sequence, int k, int32_t i,
                                              int32_t j)
{
    return (sequence->before_us[j] - sequence->before_us[i]) * sequence->slowdown[k];
}

/* False: no interval that contains this one fits stage k. Weights, stashes and workspace grow with
 * an interval; what crosses its ends does not, so it is left out, and of the two ways to treat the
 * stash the cheaper one counts. */
static inline bool smp__interval_may_fit(const smp__sequence *sequence, int k,
                                         const smp__interval *interval)
{
    if (!sequence->memory_binds)
        return true;
    const smp_problem *problem = sequence->problem;
    const smp__holdings *held = &interval->held;
    double live = problem->live[k];
    if (smp_problem_recomputes_all(problem) ||
        (problem->graph->training && problem->recompute == SMP_RECOMPUTE_AUTO && live > 1.0))
        live = 1.0;
    double bytes = problem->state_factor * held->weight + live * held->stash + held->workspace;
    return bytes <= sequence->limit_share * smp__memory_limit(problem, k);
}

/* Load of [i, j) as stage k; false if that does not fit. compute_us: smp__interval_compute_us. */
static inline bool smp__interval_load(const smp__sequence *sequence, int k,
                                      const smp__interval *interval, int32_t i, int32_t j,
                                      double compute_us, double *load_us)
{
    double transfer_us = interval->in_us + interval->out_us;
    if (sequence->memory_binds) {
        double share, limit = sequence->limit_share * smp__memory_limit(sequence->problem, k);
        if (smp__stage_memory(sequence->problem, k, &interval->held, limit, &share) > limit)
            return false;
        if (share > 0.0 && sequence->forward_us)
            compute_us += smp__recompute_part(sequence->problem, &sequence->units->price, share) *
                          (sequence->forward_us[j] - sequence->forward_us[i]) *
                          sequence->slowdown[k];
    }
    *load_us = smp__load_us(sequence->problem->cluster, compute_us, transfer_us);
    return true;
}

/* Least head (tail) of the borders lo..hi. O(SMP__BLOCK + (hi - lo) / SMP__BLOCK). */
double smp__sequence_least_head(const smp__sequence *sequence, smp__link link, int32_t lo,
                                int32_t hi);
double smp__sequence_least_tail(const smp__sequence *sequence, smp__link link, int32_t lo,
                                int32_t hi);

#endif

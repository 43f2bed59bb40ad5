/* Units on a line: an order prepared for cutting it into stages. A stage is an interval [i, j) of
 * positions; its load and memory follow from those of a neighbouring interval in O(degree). */
#ifndef SMP_PARTITION_CUT_LINE_H
#define SMP_PARTITION_CUT_LINE_H

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

typedef struct smp__line {
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
     * only go to the next stage. */
    double *slowdown; /* [n_stage] */
    smp__link *in_link, *out_link;
    int32_t *border_lo, *border_hi; /* [n_stage + 1] where pins allow stage k to begin */
    bool feasible;                  /* some choice of borders respects them */
    bool memory_binds;              /* as the units'; otherwise intervals count no bytes */
    double fill;                    /* share of the memory limits to respect: 1 */
    smp_arena *arena;
} smp__line;

/* order: [units->n], topological. */
smp_status smp__line_build(const smp_problem *problem, const smp__units *units,
                           const int32_t *order, smp__line **out);
void smp__line_destroy(smp__line *line); /* accepts NULL */

/* What an interval holds. */
typedef struct smp__interval {
    double in_us, out_us;
    smp__held held; /* zero unless line->memory_binds */
} smp__interval;

/* [i + 1, j) becomes [i, j), of stage k. */
void smp__interval_push_left(const smp__line *line, int k, smp__interval *interval, int32_t i,
                             int32_t j);
/* [i, j) becomes [i, j + 1). */
void smp__interval_push_right(const smp__line *line, int k, smp__interval *interval, int32_t i,
                              int32_t j);

/* Without a recomputation that only memory asks for. */
static inline double smp__interval_compute_us(const smp__line *line, int k, int32_t i, int32_t j)
{
    return (line->before_us[j] - line->before_us[i]) * line->slowdown[k];
}

/* False: no interval that contains this one fits stage k. Weights, stashes and workspace grow with
 * an interval; what crosses its ends does not, so it is left out, and of the two ways to treat the
 * stash the cheaper one counts. */
static inline bool smp__interval_may_fit(const smp__line *line, int k,
                                         const smp__interval *interval)
{
    if (!line->memory_binds)
        return true;
    const smp_problem *problem = line->problem;
    const smp__held *held = &interval->held;
    double live = problem->live[k];
    if (problem->graph->training && problem->recompute == SMP_RECOMPUTE_ALL)
        live = 1.0;
    else if (problem->graph->training && problem->recompute == SMP_RECOMPUTE_AUTO && live > 1.0)
        live = 1.0;
    double bytes = problem->state_factor * held->weight + live * held->stash + held->workspace;
    return bytes <= line->fill * smp__memory_limit(problem, k);
}

/* Load of [i, j) as stage k; false if that does not fit. compute_us: smp__interval_compute_us. */
static inline bool smp__interval_load(const smp__line *line, int k, const smp__interval *interval,
                                      int32_t i, int32_t j, double compute_us, double *load_us)
{
    double transfer_us = interval->in_us + interval->out_us;
    if (line->memory_binds) {
        bool recompute;
        double bytes = smp__stage_memory(line->problem, k, &interval->held, &recompute);
        if (bytes > line->fill * smp__memory_limit(line->problem, k))
            return false;
        if (recompute && line->forward_us)
            compute_us += (line->forward_us[j] - line->forward_us[i]) * line->slowdown[k];
    }
    if (line->problem->cluster->overlap)
        *load_us = compute_us > transfer_us ? compute_us : transfer_us;
    else
        *load_us = compute_us + transfer_us;
    return true;
}

/* Least head (tail) of the borders lo..hi. O(SMP__BLOCK + (hi - lo) / SMP__BLOCK). */
double smp__line_least_head(const smp__line *line, smp__link link, int32_t lo, int32_t hi);
double smp__line_least_tail(const smp__line *line, smp__link link, int32_t lo, int32_t hi);

#endif

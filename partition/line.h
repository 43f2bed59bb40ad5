/* Units on a line: an order prepared for cutting it into stages. A stage is an interval [i, j) of
 * positions; its load and memory follow from those of a neighbouring interval in O(degree). */
#ifndef SMP_PARTITION_LINE_H
#define SMP_PARTITION_LINE_H

#include "partition/contract.h"

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

typedef struct smp__line {
    const smp_problem *problem;
    const smp__units *units;
    int32_t n; /* positions */
    int n_stage;
    int32_t *unit;     /* [n] at each position */
    double *before_us; /* [n + 1] compute of the positions before, on device 0 */
    int64_t *read_begin, *make_begin, *hold_begin; /* [n + 1] */
    smp__read *read;
    smp__make *make;
    smp__hold *hold;
    /* Least transfers of a stage that begins (ends) at a border: those of its first (last) unit. */
    double *head_us[SMP__N_LINK]; /* [n + 1] */
    double *tail_us[SMP__N_LINK]; /* [n + 1] */

    /* Per stage. The link of a stage's inputs is taken to be that from the rank before it, of its
     * outputs that to the rank after it: exact where all ranks are linked alike, or where tensors
     * only go to the next stage. */
    double *slowdown; /* [n_stage] */
    smp__link *in_link, *out_link;
    int32_t *border_lo, *border_hi; /* [n_stage + 1] where pins allow stage k to begin */
    bool feasible;                  /* some choice of borders respects them */
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
    double weight_bytes, stash_bytes, workspace_bytes;
} smp__interval;

/* [i + 1, j) becomes [i, j), of stage k. */
void smp__interval_push_left(const smp__line *line, int k, smp__interval *interval, int32_t i,
                             int32_t j);
/* [i, j) becomes [i, j + 1). */
void smp__interval_push_right(const smp__line *line, int k, smp__interval *interval, int32_t i,
                              int32_t j);

static inline double smp__interval_compute_us(const smp__line *line, int k, int32_t i, int32_t j)
{
    return (line->before_us[j] - line->before_us[i]) * line->slowdown[k];
}

static inline double smp__interval_load_us(const smp__line *line, const smp__interval *interval,
                                           double compute_us)
{
    double transfer_us = interval->in_us + interval->out_us;
    if (line->problem->cluster->overlap)
        return compute_us > transfer_us ? compute_us : transfer_us;
    return compute_us + transfer_us;
}

static inline double smp__interval_memory(const smp__line *line, int k,
                                          const smp__interval *interval)
{
    const smp_problem *problem = line->problem;
    return problem->state_factor * interval->weight_bytes +
           problem->live[k] * interval->stash_bytes + interval->workspace_bytes;
}

static inline bool smp__interval_fits(const smp__line *line, int k, const smp__interval *interval)
{
    int64_t limit = line->problem->memory_limit[k] > 0 ? line->problem->memory_limit[k] : 1;
    return smp__interval_memory(line, k, interval) <= line->fill * (double)limit;
}

#endif

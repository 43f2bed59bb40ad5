/* Exact search over chains of downsets, for one target at a time. */
#ifndef SMP_PARTITION_PROVE_EXACT_H
#define SMP_PARTITION_PROVE_EXACT_H

#include "partition/prove/downset.h"

typedef struct smp__exact_limits {
    int64_t work;      /* downsets visited, and the like, over all calls; some 10 ns each */
    size_t bytes;      /* memory of a search */
    double deadline_s; /* smp_work_s(); 0: never */
} smp__exact_limits;

typedef enum smp__exact_answer {
    SMP__EXACT_NONE,  /* no pipeline that fits is faster than the target */
    SMP__EXACT_FOUND, /* the fastest one is, by the window's measure of transfers */
    SMP__EXACT_LIMIT, /* gave up */
    SMP__EXACT_LATE   /* gave up: the deadline struck */
} smp__exact_answer;

/* The fastest pipeline with every load below target_us, for which the window is set; INFINITY: the
 * fastest of all. Fills unit_stage[units->n] and *best_us if there is one. *work: what remains of
 * the limit. */
smp_status smp__exact_search(const smp__window *window, double target_us,
                             const smp__exact_limits *limits, int64_t *work,
                             smp__exact_answer *answer, double *best_us, int32_t *unit_stage);

/* The fastest pipeline of a small graph below target_us, as smp__evaluate measures it, whatever the
 * links and the stages on a rank. *best_us: INFINITY if there is none; else unit_stage is filled.
 * *complete: nothing was left out for want of work. */
smp_status smp__exact_small(const smp_problem *problem, const smp__units *units, double target_us,
                            int64_t *work, bool *complete, double *best_us, int32_t *unit_stage);

#endif

/* Ranks that fall behind while a run goes on: whose work in a step, without what they wait for,
 * takes a fifth longer than predicted, measured by half of the ranks (a profile that is wrong is
 * wrong for all), in ten steps in a row. */
#ifndef SMP_EXEC_LOG_SLOW_RANKS_H
#define SMP_EXEC_LOG_SLOW_RANKS_H

#include <stdbool.h>

#include "graph/base/status.h"

typedef enum smp__rank_change {
    SMP__RANK_SAME,
    SMP__RANK_SLOW,     /* the last ten steps were; it was not named before */
    SMP__RANK_RECOVERED /* of one that was named none of the last ten was */
} smp__rank_change;

typedef struct smp__rank_pace {
    double predicted_us;
    double ratio;            /* of the last step, to the prediction */
    double mean;             /* ... of those that changed what the rank is known as */
    double times;            /* ... to the usual ratio then: how many times slower it is */
    double sum, sum_times;   /* of the steps in a row */
    int row;                 /* steps in a row that are not what the rank is known as */
    bool named;              /* it is known as slow */
    smp__rank_change change; /* by the last step */
} smp__rank_pace;

typedef struct smp__slow_ranks {
    smp__rank_pace *rank; /* [n]; NULL: nothing is predicted */
    double *sorted;       /* [n] scratch */
    double usual;         /* ratio of the last step that half of the ranks do not exceed */
    int n;
} smp__slow_ranks;

enum { SMP__SLOW_STEPS = 10 };

/* predicted_us: [n] the work of a step, above 0. */
smp_status smp__slow_ranks_open(const double *predicted_us, int n, smp__slow_ranks *out);
/* work_us: [n] of a step. Sets `change` of every rank. O(n log n). */
void smp__slow_ranks_add(smp__slow_ranks *slow, const double *work_us);
void smp__slow_ranks_close(smp__slow_ranks *slow);

#endif

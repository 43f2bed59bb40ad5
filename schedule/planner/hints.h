/* What would help most: single changes of the best plan, each with the gain that it computes to. */
#ifndef SMP_SCHEDULE_PLANNER_HINTS_H
#define SMP_SCHEDULE_PLANNER_HINTS_H

#include "schedule/planner/search.h"

typedef enum smp_hint_kind {
    SMP_HINT_SPLIT_OP,     /* one op (or what must stay with it) is the bottleneck */
    SMP_HINT_BALANCE,      /* all ranks equally loaded */
    SMP_HINT_MICROBATCHES, /* twice the micro-batches */
    SMP_HINT_MEMORY,       /* memory for another configuration, or to recompute less */
    SMP_HINT_INTRA_LINK,   /* links within nodes twice as fast */
    SMP_HINT_INTER_LINK,   /* links between nodes twice as fast */
    SMP_HINT_FREE_LINKS    /* transfers and reductions that cost nothing: the most links can give */
} smp_hint_kind;

typedef struct smp_hint {
    smp_hint_kind kind;
    double gain;    /* share of the objective's time per sample that it saves, 0 to 1 */
    char text[240]; /* a phrase: "split op 'lm_head' of stage 3 in two" */
} smp_hint;

enum { SMP_HINTS_MAX = 8 };

#endif

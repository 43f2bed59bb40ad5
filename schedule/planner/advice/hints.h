/* What would help most: single changes of a plan, each with the gain of the plan that was made with
 * it. */
#ifndef SMP_SCHEDULE_PLANNER_ADVICE_HINTS_H
#define SMP_SCHEDULE_PLANNER_ADVICE_HINTS_H

#include "schedule/planner/search/search.h"

typedef enum smp_hint_kind {
    SMP_HINT_FASTER_OP, /* one op (or what must stay with it) is the bottleneck: in half the time */
    SMP_HINT_FREE_OPS,  /* no groups, pins and cuts */
    SMP_HINT_MICROBATCHES, /* twice the micro-batches */
    SMP_HINT_RECOMPUTE,    /* only where memory asks for it, not everywhere */
    SMP_HINT_MEMORY,       /* memory for another configuration, or to recompute less */
    SMP_HINT_INTRA_LINK,   /* links within nodes twice as fast */
    SMP_HINT_INTER_LINK,   /* links between nodes twice as fast */
    SMP_HINT_FREE_LINKS    /* transfers and reductions that cost nothing: the most links can give */
} smp_hint_kind;

typedef struct smp_hint {
    smp_hint_kind kind;
    double gain;    /* share of the objective's time per sample that it saves, 0 to 1 */
    char text[240]; /* a phrase: "32 micro-batches instead of 16" */
    /* With which numbers it was planned. */
    int pipeline, ddp, chunks, microbatches;
    const char *schedule; /* registry name; NULL: auto */
    int64_t memory_bytes; /* per device; 0: the cluster's */
    int32_t op;           /* SMP_HINT_FASTER_OP: which; else -1 */
} smp_hint;

enum { SMP_HINTS_MAX = 9 };
#define SMP_HINTS_ALL (~0u)

/* What would help the plan most, of `kinds` (bits 1 << smp_hint_kind): fills hint[] with
 * what saves at least 0.1 %, largest first; *n: how many. Each change is planned, with all else as
 * in the plan: ranks, replicas, chunks, micro-batches, schedule (any where the plan's order is its
 * own) and placement. The gain is that of the plan so made. request: the one that made the result;
 * if it has a deadline, hints get 30 % of what planning took, or 0.3 s of work, and what is not
 * tried by then is left out. */
smp_status smp_planner_hints(const smp_search_request *request, const smp_planner_result *result,
                             unsigned kinds, smp_hint *hint, int *n);

#endif

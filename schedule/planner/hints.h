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
    double gain;          /* share of the objective's time per sample that it saves, 0 to 1 */
    int stage;            /* SPLIT_OP: where the op lies; else -1 */
    int32_t op;           /* SPLIT_OP: the largest op of the stage; else -1 */
    int64_t memory_bytes; /* MEMORY: per device; else 0 */
    char text[240];       /* a phrase: "split op 'lm_head' of stage 3 in two" */
} smp_hint;

enum { SMP_HINTS_MAX = 8 };

/* Fills hint[SMP_HINTS_MAX] with those that gain at least 0.1 %, largest first; *n: how many. Each
 * gain is that of the plan evaluated anew with the one change, by the same simulation; SPLIT_OP and
 * BALANCE lower the load of the slowest ranks to what would then be slowest. request, costs and
 * model: those of the search. Costs some simulations of the best plan, no search. */
smp_status smp_search_hints(const smp_search_request *request, const smp_costs *costs,
                            const smp_schedule_model *model, const smp_search_result *result,
                            smp_hint *hint, int *n);

#endif

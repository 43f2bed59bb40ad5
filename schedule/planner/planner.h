/* From a model, a cluster and a profile to a verified plan: costs, search, lowering, simulation,
 * memory. What smp-partition and smp_init call. */
#ifndef SMP_SCHEDULE_PLANNER_PLANNER_H
#define SMP_SCHEDULE_PLANNER_PLANNER_H

#include "schedule/planner/hints.h"
#include "schedule/plan/plan.h"

/* What the engine of schedule "searched" came to for the winner of the search. */
typedef struct smp_auto_outcome {
    bool tried;
    bool taken;            /* the plan's programs are its own; else those of a fixed rule */
    double rule_us;        /* step of the winner under its rule */
    double found_us;       /* the best step found */
    double lower_bound_us; /* no order of this partition's actions is faster */
} smp_auto_outcome;

/* Means against memory. */
typedef enum smp_means {
    SMP_MEANS_NONE,
    SMP_MEANS_RECOMPUTE,
    SMP_MEANS_OFFLOAD,
    SMP_MEANS_STATES,
    SMP_MEANS_SHARDS,
    SMP_N_MEANS
} smp_means;

/* The plan's stages and order with one of the means that it has alone, or without any. */
typedef struct smp_bought {
    const char *means; /* "nothing", "recompute", ...; static text */
    double step_us;
    int64_t peak_bytes; /* of the fullest rank, */
    int64_t room_bytes; /* and the least room of all; < 0: it does not fit */
} smp_bought;

typedef struct smp_planner_result {
    smp_plan *plan;
    smp_search_result search; /* for --explain and the table */
    smp_auto_outcome order;
    const char *bound;       /* what proves plan->predicted.lower_bound_us; static text */
    int active_microbatches; /* that the plan's rule is bound to; 0: none, or an order of its own */
    int64_t room_bytes;      /* least of all ranks, */
    int tight_rank;          /* on this one */
    char cost_source[64];    /* smp_costs.source */
    /* Exchanges of gradients within groups, in a micro-batch of all stages, and what of them weight
     * gradients hide; 0 where they are not put off. */
    double exchange_us, hidden_us;
    smp_bought bought[SMP_N_MEANS];
    int n_bought;      /* 0: the plan needs none of them */
    double planning_s; /* wall clock */
} smp_planner_result;

/* request: see schedule/planner/search.h. model_path: what to write in the plan. The plan has been
 * verified. Errors: SMP_ERR_INPUT; SMP_ERR_NO_FIT, if the request asks for advice with what would
 * make it fit: single changes of it, each of which was planned, in 30 % of the time that is
 * left. */
smp_status smp_plan_make(const smp_search_request *request, const char *model_path,
                         smp_planner_result *out);
/* What would help the plan most: fills hint[SMP_HINTS_MAX] with what saves at least 0.1 %, largest
 * first; *n: how many. Each change is planned, with all else as in the plan: ranks, replicas,
 * chunks, micro-batches, schedule (any where the plan's order is its own) and placement. The gain
 * is that of the plan so made. request: the one that made the result; if it has a deadline, hints
 * get 30 % of what planning took, or 0.3 s, and what is not tried by then is left out. */
smp_status smp_planner_hints(const smp_search_request *request, const smp_planner_result *result,
                             smp_hint *hint, int *n);
void smp_planner_result_destroy(smp_planner_result *result);

#endif

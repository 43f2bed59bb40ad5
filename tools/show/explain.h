/* The reasons of a plan (--explain), in plain words and as JSON. All append to the text. */
#ifndef SMP_TOOLS_SHOW_EXPLAIN_H
#define SMP_TOOLS_SHOW_EXPLAIN_H

#include "schedule/tensor/tensor_plan.h"

/* Which solver won, what limits the slowest rank, what proves the bound and how far the plan is
 * from it, whether the time limit struck, the ten best configurations of the search. */
smp_status smp_explain_plan(const smp_planner_result *result, smp_text *text);

/* What would help most, each change with the gain that it was evaluated to. request: the one that
 * made the result. */
smp_status smp_explain_hints(const smp_search_request *request, const smp_planner_result *result,
                             smp_text *text);

/* The splittings that were looked at, and what each came to; nothing of a single one. */
smp_status smp_explain_tensor(const smp_tensor_result *made, smp_text *text);

/* How many ops are split, and how, where devices compute them together. */
void smp_explain_splitting(const smp_plan *plan, smp_text *text);

/* What limits the slowest rank of a plan, stage by stage. */
void smp_explain_bottleneck(const smp_plan *plan, const smp_partition *partition, smp_text *text);

/* json: a plan's or a check's object, which gets a key "explanation" with all of the above, and the
 * drawing of tools/show/picture.h: tools/show/README.md. */
smp_status smp_explain_json(const smp_tensor_result *made, smp_text *json);
/* What of it can be said of a plan that was not searched for. */
smp_status smp_explain_checked_json(const smp_plan *plan, const smp_partition *partition,
                                    const smp_graph *graph, smp_text *json);

/* For both forms. */
int smp__slowest_rank(const smp_plan *plan, const smp_partition *partition);
/* The bound on micro-batches that wait for W, where the schedule takes one; 0: there is none. */
int smp__weight_lag(const smp_candidate *candidate);
const char *smp__placement_word(smp_placement placement);
/* Why there is no plan of it, where none fits. */
const char *smp__splitting_miss(const smp_tensor_tried *tried);
const char *smp__shards_miss(const smp_shard_tried *tried);

#endif

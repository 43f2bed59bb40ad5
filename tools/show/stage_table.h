/* The table that smp-partition prints: a row per stage, and a few lines of summary. */
#ifndef SMP_TOOLS_SHOW_STAGE_TABLE_H
#define SMP_TOOLS_SHOW_STAGE_TABLE_H

#include "schedule/planner/planner.h"

/* partition: the loads of the plan's stages. Appends to the text. */
smp_status smp_stage_table(const smp_plan *plan, const smp_partition *partition,
                           const smp_graph *graph, smp_text *text);

/* What a training of so many tokens takes, and costs at a price of a device hour (0: not told).
 * SMP_ERR_INPUT: the model reads no tokens. */
smp_status smp_put_training(const smp_plan *plan, const smp_graph *graph, double tokens,
                            double price, smp_text *text);

/* What of the optimizer lies in host memory; "" if nothing does. */
const char *smp_show_offloaded_states(const smp_plan *plan);
/* A line: what keeping the state of every keep_every-th step costs. SMP_ERR_NO_FIT: a host has less
 * memory than that takes. */
smp_status smp_put_keeping(const smp_plan *plan, const smp_graph *graph, int64_t keep_every,
                           smp_text *text);

#endif

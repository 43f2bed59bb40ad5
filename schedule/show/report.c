/* The table of a plan. Linear in stages. */
#include "schedule/show/report.h"

#include <stdio.h>

#include "schedule/show/text_table.h"

/* First and last op of a stage in graph order, their names cut where they are long. */
static void put_ops(char *cell, const smp_plan_stage *stage)
{
    const char *first = stage->op[0], *last = stage->op[stage->n_op - 1];
    if (stage->n_op == 1)
        snprintf(cell, SMP__CELL, "<%.24s", first);
    else
        snprintf(cell, SMP__CELL, "<%.24s .. %.24s", first, last);
}

/* `recompute`: the table has that column. */
static void put_stage(smp__table *t, const smp_plan *plan, const smp_partition *partition, int s,
                      bool recompute)
{
    const smp_plan_stage *stage = &plan->stage[s];
    const smp_stage_load *load = &partition->load[s];
    double bottleneck = plan->predicted.bottleneck_us;
    int row = s + 1, column = 0;
    snprintf(smp__table_cell(t, row, column++), SMP__CELL, "%d", s);
    snprintf(smp__table_cell(t, row, column++), SMP__CELL, "%d", stage->rank);
    snprintf(smp__table_cell(t, row, column++), SMP__CELL, "%d", (int)stage->n_op);
    put_ops(smp__table_cell(t, row, column++), stage);
    smp_format_us(smp__table_cell(t, row, column++), SMP__CELL, load->forward_us);
    smp_format_us(smp__table_cell(t, row, column++), SMP__CELL, load->backward_us);
    smp_format_us(smp__table_cell(t, row, column++), SMP__CELL, load->transfer_us);
    snprintf(smp__table_cell(t, row, column++), SMP__CELL, "%.1f %%",
             bottleneck > 0 ? 100 * load->load_us / bottleneck : 0.0);
    smp_format_bytes(smp__table_cell(t, row, column++), SMP__CELL, load->in_bytes);
    smp_format_bytes(smp__table_cell(t, row, column++), SMP__CELL, load->out_bytes);
    smp_format_bytes(smp__table_cell(t, row, column++), SMP__CELL, load->weight_bytes);
    smp_format_bytes(smp__table_cell(t, row, column++), SMP__CELL, load->stash_bytes);
    smp_format_bytes(smp__table_cell(t, row, column++), SMP__CELL,
                     plan->predicted.peak_bytes[stage->rank]);
    if (recompute)
        snprintf(smp__table_cell(t, row, column++), SMP__CELL, "<%s",
                 stage->recompute ? "yes" : "-");
}

static const char *plural(int64_t n, const char *more)
{
    return n == 1 ? "" : more;
}

static void put_summary(const smp_plan *plan, const smp_graph *graph, int n_recompute,
                        smp_text *text)
{
    const smp_predicted *predicted = &plan->predicted;
    char step[32], bottleneck[32], bound[32];
    smp_text_append(text, "(times, received, sent and stash are per micro-batch%s)\n\n",
                    n_recompute > 0 ? "; stages that recompute run forward once more" : "");
    smp_text_append(text,
                    "%s: %d ops on %d device%s = %d pipeline rank%s x %d replica%s, %d chunk%s; "
                    "%s, %d micro-batch%s of %lld sample%s\n",
                    graph->name, (int)graph->n_op, plan->devices, plural(plan->devices, "s"),
                    plan->pipeline, plural(plan->pipeline, "s"), plan->ddp, plural(plan->ddp, "s"),
                    plan->chunks, plural(plan->chunks, "s"), plan->schedule, plan->microbatches,
                    plural(plan->microbatches, "es"), (long long)plan->microbatch_size,
                    plural(plan->microbatch_size, "s"));
    if (plan->target.backend != SMP_BACKEND_CPU)
        smp_text_append(text, "on %s in %s\n", smp_backend_name(plan->target.backend),
                        smp_precision_name(plan->target.precision));
    smp_text_append(text, "predicted: step %s, %.1f samples/s, bubble %.1f %%\n",
                    smp_format_us(step, sizeof step, predicted->step_us), predicted->samples_per_s,
                    100 * predicted->bubble);
    smp_text_append(text, "bottleneck: %s per micro-batch, proven lower bound %s, gap %.1f %%\n",
                    smp_format_us(bottleneck, sizeof bottleneck, predicted->bottleneck_us),
                    smp_format_us(bound, sizeof bound, predicted->lower_bound_us),
                    100 * predicted->gap);
}

smp_status smp_report_plan(const smp_plan *plan, const smp_partition *partition,
                           const smp_graph *graph, smp_text *text)
{
    enum { COLUMNS = 14 };
    static const char *const heads[COLUMNS] = {
        "stage", "rank",     "ops",  "<first .. last", "forward", "backward",  "transfer",
        "load",  "received", "sent", "weights",        "stash",   "rank peak", "<recompute"};
    smp__table t;
    int n_recompute = 0;
    for (int s = 0; s < plan->n_stage; s++)
        n_recompute += plan->stage[s].recompute;
    SMP_TRY(smp__table_open(&t, n_recompute > 0 ? COLUMNS : COLUMNS - 1, plan->n_stage + 1, heads));
    for (int s = 0; s < plan->n_stage; s++)
        put_stage(&t, plan, partition, s, n_recompute > 0);
    SMP_TRY(smp__table_print(&t, text));
    put_summary(plan, graph, n_recompute, text);
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}

smp_status smp_report_table(const smp_planner_result *result, const smp_graph *graph,
                            smp_text *text)
{
    return smp_report_plan(result->plan, result->search.best->partition, graph, text);
}

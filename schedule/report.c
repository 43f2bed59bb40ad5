/* Plans as text. Columns are as wide as their widest cell. Linear in stages and configurations. */
#include "schedule/report.h"

#include <stdio.h>
#include <string.h>

enum { COLUMNS = 13, CELL = 64, SHOWN_CONFIGURATIONS = 10 };

/* A table under construction: all cells, row by row; a cell starting with '<' is left-aligned. */
typedef struct table {
    smp_arena *arena;
    int columns, rows;
    char (*cell)[CELL];
} table;

static smp_status table_open(table *t, int columns, int rows)
{
    t->arena = smp_arena_create();
    t->columns = columns;
    t->rows = rows;
    t->cell = t->arena ? smp_arena_alloc(t->arena, (size_t)columns * (size_t)rows, CELL) : NULL;
    return t->cell ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static char *table_cell(table *t, int row, int column)
{
    return t->cell[(size_t)row * (size_t)t->columns + (size_t)column];
}

static void table_print(table *t, smp_text *text)
{
    for (int row = 0; row < t->rows; row++) {
        for (int column = 0; column < t->columns; column++) {
            int width = 0;
            for (int i = 0; i < t->rows; i++) {
                const char *cell = table_cell(t, i, column);
                int length = (int)strlen(cell) - (cell[0] == '<');
                width = length > width ? length : width;
            }
            const char *cell = table_cell(t, row, column);
            bool last = column == t->columns - 1;
            if (cell[0] == '<')
                smp_text_append(text, "%s%-*s", column ? "  " : "", last ? 0 : width, cell + 1);
            else
                smp_text_append(text, "%s%*s", column ? "  " : "", width, cell);
        }
        smp_text_append(text, "\n");
    }
}

/* First and last op of a stage in graph order, their names cut where they are long. */
static void put_ops(char *cell, const smp_plan_stage *stage)
{
    const char *first = stage->op[0], *last = stage->op[stage->n_op - 1];
    if (stage->n_op == 1)
        snprintf(cell, CELL, "<%.24s", first);
    else
        snprintf(cell, CELL, "<%.24s .. %.24s", first, last);
}

static double rank_load(const smp_planner_result *result, int rank)
{
    const smp_candidate *best = result->search.best;
    double load = 0;
    for (int s = 0; s < best->partition->n_stage; s++)
        if (best->stage_rank[s] == rank)
            load += best->partition->load[s].load_us;
    return load;
}

static void put_stage(table *t, const smp_planner_result *result, int s)
{
    const smp_plan *plan = result->plan;
    const smp_plan_stage *stage = &plan->stage[s];
    const smp_stage_load *load = &result->search.best->partition->load[s];
    double bottleneck = plan->predicted.bottleneck_us;
    int row = s + 1, column = 0;
    snprintf(table_cell(t, row, column++), CELL, "%d", s);
    snprintf(table_cell(t, row, column++), CELL, "%d", stage->rank);
    snprintf(table_cell(t, row, column++), CELL, "%d", (int)stage->n_op);
    put_ops(table_cell(t, row, column++), stage);
    smp_format_us(table_cell(t, row, column++), CELL, load->forward_us);
    smp_format_us(table_cell(t, row, column++), CELL, load->backward_us);
    smp_format_us(table_cell(t, row, column++), CELL, load->transfer_us);
    snprintf(table_cell(t, row, column++), CELL, "%.1f %%",
             bottleneck > 0 ? 100 * load->load_us / bottleneck : 0.0);
    smp_format_bytes(table_cell(t, row, column++), CELL, load->in_bytes);
    smp_format_bytes(table_cell(t, row, column++), CELL, load->out_bytes);
    smp_format_bytes(table_cell(t, row, column++), CELL, load->weight_bytes);
    smp_format_bytes(table_cell(t, row, column++), CELL, load->stash_bytes);
    smp_format_bytes(table_cell(t, row, column++), CELL, plan->predicted.peak_bytes[stage->rank]);
}

static void put_summary(const smp_planner_result *result, const smp_graph *graph, smp_text *text)
{
    const smp_plan *plan = result->plan;
    const smp_predicted *predicted = &plan->predicted;
    char step[32], bottleneck[32], bound[32];
    smp_text_append(text,
                    "(times, received, sent and stash are per micro-batch)\n\n%s: %d ops on %d "
                    "device%s = %d pipeline rank%s x %d replica%s, %d chunk%s; "
                    "%s, %d micro-batch%s of %lld sample%s\n",
                    graph->name, (int)graph->n_op, plan->devices, plan->devices == 1 ? "" : "s",
                    plan->pipeline, plan->pipeline == 1 ? "" : "s", plan->ddp,
                    plan->ddp == 1 ? "" : "s", plan->chunks, plan->chunks == 1 ? "" : "s",
                    plan->schedule, plan->microbatches, plan->microbatches == 1 ? "" : "es",
                    (long long)plan->microbatch_size, plan->microbatch_size == 1 ? "" : "s");
    smp_text_append(text, "predicted: step %s, %.1f samples/s, bubble %.1f %%\n",
                    smp_format_us(step, sizeof step, predicted->step_us), predicted->samples_per_s,
                    100 * predicted->bubble);
    smp_text_append(text, "bottleneck: %s per micro-batch, proven lower bound %s, gap %.1f %%\n",
                    smp_format_us(bottleneck, sizeof bottleneck, predicted->bottleneck_us),
                    smp_format_us(bound, sizeof bound, predicted->lower_bound_us),
                    100 * predicted->gap);
}

smp_status smp_report_table(const smp_planner_result *result, const smp_graph *graph,
                            smp_text *text)
{
    static const char *const heads[COLUMNS] = {
        "stage", "rank",     "ops",  "<first .. last", "forward", "backward", "transfer",
        "load",  "received", "sent", "weights",        "stash",   "rank peak"};
    table t = {0};
    smp_status status = table_open(&t, COLUMNS, result->plan->n_stage + 1);
    if (status == SMP_OK) {
        for (int column = 0; column < COLUMNS; column++)
            snprintf(table_cell(&t, 0, column), CELL, "%s", heads[column]);
        for (int s = 0; s < result->plan->n_stage; s++)
            put_stage(&t, result, s);
        table_print(&t, text);
        put_summary(result, graph, text);
        if (text->failed)
            status = smp_fail_memory(text->capacity);
    }
    smp_arena_destroy(t.arena);
    return status;
}

static int slowest_rank(const smp_planner_result *result)
{
    int slowest = 0;
    for (int r = 1; r < result->plan->pipeline; r++)
        if (rank_load(result, r) > rank_load(result, slowest))
            slowest = r;
    return slowest;
}

static void explain_bottleneck(const smp_planner_result *result, smp_text *text)
{
    const smp_candidate *best = result->search.best;
    int rank = slowest_rank(result);
    char load[32], compute[32], transfer[32], bound[32];
    smp_text_append(text, "solver: %s found the partition; costs: %s\n",
                    best->partition->solver ? best->partition->solver : "-", result->cost_source);
    smp_text_append(text, "bottleneck: rank %d, %s per micro-batch\n", rank,
                    smp_format_us(load, sizeof load, rank_load(result, rank)));
    for (int s = 0; s < best->partition->n_stage; s++) {
        const smp_stage_load *stage = &best->partition->load[s];
        double compute_us = stage->forward_us + stage->backward_us;
        if (best->stage_rank[s] != rank)
            continue;
        smp_text_append(text, "  stage %d: compute %s, transfers %s: limited by %s%s\n", s,
                        smp_format_us(compute, sizeof compute, compute_us),
                        smp_format_us(transfer, sizeof transfer, stage->transfer_us),
                        compute_us >= stage->transfer_us ? "compute" : "transfers",
                        stage->n_op == 1 ? ", a single op" : "");
    }
    smp_text_append(text, "bound: no pipeline of %d ranks is faster than %s; the gap is %.2f %%\n",
                    result->plan->pipeline,
                    smp_format_us(bound, sizeof bound, result->plan->predicted.lower_bound_us),
                    100 * result->plan->predicted.gap);
    char peak[32], room[32];
    smp_text_append(text, "memory: peak %s, least room %s on rank %d\n",
                    smp_format_bytes(peak, sizeof peak, best->peak_bytes),
                    smp_format_bytes(room, sizeof room, best->room_bytes), best->worst_rank);
}

static void put_configuration(table *t, const smp_candidate *c, int row)
{
    int column = 0;
    snprintf(table_cell(t, row, column++), CELL, "%d", row);
    snprintf(table_cell(t, row, column++), CELL, "%d", c->pipeline);
    snprintf(table_cell(t, row, column++), CELL, "%d", c->ddp);
    snprintf(table_cell(t, row, column++), CELL, "%d", c->chunks);
    snprintf(table_cell(t, row, column++), CELL, "<%s", c->schedule);
    snprintf(table_cell(t, row, column++), CELL, "%d", c->microbatches);
    double samples = (double)c->ddp * c->microbatches * (double)c->microbatch_size;
    smp_format_us(table_cell(t, row, column++), CELL, c->step_us);
    snprintf(table_cell(t, row, column++), CELL, "%.1f",
             c->step_us > 0 ? 1e6 * samples / c->step_us : 0.0);
    smp_format_bytes(table_cell(t, row, column++), CELL, c->peak_bytes);
    snprintf(table_cell(t, row, column++), CELL, "<%s", c->fits ? "yes" : "no");
}

smp_status smp_report_explain(const smp_planner_result *result, smp_text *text)
{
    enum { N = 10 };
    static const char *const heads[N] = {"#", "pipeline", "ddp",       "chunks", "<schedule",
                                         "m", "step",     "samples/s", "peak",   "<fits"};
    const smp_search_result *search = &result->search;
    int shown = search->n_tried < SHOWN_CONFIGURATIONS ? search->n_tried : SHOWN_CONFIGURATIONS;
    table t = {0};
    explain_bottleneck(result, text);
    smp_text_append(text, "best %d of %d configurations (m: micro-batches):\n", shown,
                    search->n_tried);
    smp_status status = table_open(&t, N, shown + 1);
    if (status == SMP_OK) {
        for (int column = 0; column < N; column++)
            snprintf(table_cell(&t, 0, column), CELL, "%s", heads[column]);
        for (int i = 0; i < shown; i++)
            put_configuration(&t, search->tried[i], i + 1);
        table_print(&t, text);
        if (text->failed)
            status = smp_fail_memory(text->capacity);
    }
    smp_arena_destroy(t.arena);
    return status;
}

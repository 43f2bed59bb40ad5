/* Plans as rows; see the header. */
#include "tools/partition/comparison.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/simulate/simulate.h"
#include "tools/show/text_table.h"

enum { SHOWN = 60 /* characters of a name */ };

const char *const smp_time_share_names[SMP_TIME_SHARES] = {
    [SMP_TIME_COMPUTE] = "compute",     [SMP_TIME_RAMP] = "fill and drain",
    [SMP_TIME_IMBALANCE] = "imbalance", [SMP_TIME_TRANSFER] = "transfer",
    [SMP_TIME_REDUCTION] = "reduction",
};

static smp_status add_row(smp_comparison *comparison, const char *name, smp_compared **out)
{
    if (comparison->n == SMP_MAX_COMPARED)
        return smp_fail(SMP_ERR_INPUT, "more than %d plans to compare", SMP_MAX_COMPARED);
    if (!comparison->row)
        comparison->row = calloc(SMP_MAX_COMPARED, sizeof *comparison->row);
    if (!comparison->row)
        return smp_fail_memory(SMP_MAX_COMPARED * sizeof *comparison->row);
    *out = &comparison->row[comparison->n++];
    snprintf((*out)->name, sizeof(*out)->name, "%s", name);
    return SMP_OK;
}

smp_status smp_comparison_miss(smp_comparison *comparison, const char *name, const char *reason)
{
    smp_compared *row = NULL;
    SMP_TRY(add_row(comparison, name, &row));
    snprintf(row->reason, sizeof row->reason, "%s", reason);
    return SMP_OK;
}

void smp_comparison_free(smp_comparison *comparison)
{
    free(comparison->row);
    *comparison = (smp_comparison){0};
}

static void set_shares(const smp_simulation *s, smp_compared *row)
{
    const double whole_us = s->step_us * s->pipeline;
    double sum[SMP_TIME_SHARES] = {0.0};
    for (int r = 0; r < s->pipeline; r++) {
        sum[SMP_TIME_COMPUTE] += s->busy_us[r];
        sum[SMP_TIME_RAMP] += s->warmup_us[r] + s->drain_us[r];
        sum[SMP_TIME_IMBALANCE] += s->imbalance_us[r];
        sum[SMP_TIME_TRANSFER] += s->transfer_us[r] + s->offload_us[r];
        sum[SMP_TIME_REDUCTION] += s->reduction_us[r];
    }
    for (int k = 0; k < SMP_TIME_SHARES; k++)
        row->share[k] = whole_us > 0.0 ? sum[k] / whole_us : 0.0;
}

static smp_status simulate(const smp_plan *plan, const smp_graph *graph, smp_compared *row)
{
    smp_simulated_plan simulated = {0};
    if (!plan->cluster)
        return SMP_OK;
    const smp_status status = smp_simulated_plan_open(plan, graph, &simulated);
    if (status == SMP_OK)
        set_shares(simulated.simulation, row);
    smp_simulated_plan_close(&simulated);
    return status;
}

smp_status smp_comparison_add(smp_comparison *comparison, const char *name, const smp_plan *plan,
                              const smp_graph *graph)
{
    smp_compared *row = NULL;
    SMP_TRY(add_row(comparison, name, &row));
    row->made = true;
    char tensor[32];
    snprintf(row->degrees, sizeof row->degrees, "%d x %d x %s, %d", plan->pipeline, plan->ddp,
             smp_format_tensor(tensor, sizeof tensor, plan), plan->chunks);
    snprintf(row->schedule, sizeof row->schedule, "%s", plan->schedule);
    row->devices = smp_plan_processes(plan);
    row->microbatches = plan->microbatches;
    row->microbatch_size = plan->microbatch_size;
    row->step_us = plan->predicted.step_us + plan->predicted.waits_us;
    row->samples_per_s = plan->predicted.samples_per_s;
    row->bubble = plan->predicted.bubble;
    for (int r = 0; r < plan->pipeline; r++)
        if (plan->predicted.peak_bytes[r] > row->peak_bytes)
            row->peak_bytes = plan->predicted.peak_bytes[r];
    smp_plan_figures_get(plan, graph, &row->figures);
    return simulate(plan, graph, row);
}

static void put_speed(smp__table *t, const smp_compared *row)
{
    char count[32];
    const double tokens = row->figures.tokens_per_s;
    if (tokens > 0.0)
        smp__table_put(t, "%s", smp_format_count(count, sizeof count, tokens));
    else
        smp__table_put(t, "-");
    smp__table_put(t, "%.1f", row->samples_per_s);
}

static void put_row(smp__table *t, const smp_compared *row)
{
    const size_t length = strlen(row->name); /* of a long path the end */
    smp__table_put(t, "<%s", row->name + (length > SHOWN ? length - SHOWN : 0));
    smp__table_put(t, "<%s", row->degrees);
    smp__table_put(t, "<%s", row->schedule);
    smp__table_put(t, "%d x %lld", row->microbatches, (long long)row->microbatch_size);
    smp__table_put(t, "%lld", (long long)row->figures.global_batch);
    smp__table_put_us(t, row->step_us);
    put_speed(t, row);
    if (row->figures.mfu > 0.0)
        smp__table_put(t, "%.1f %%", 100.0 * row->figures.mfu);
    else
        smp__table_put(t, "-");
    smp__table_put_bytes(t, row->peak_bytes);
    smp__table_put(t, "%.1f %%", 100.0 * row->bubble);
    for (int k = 0; k < SMP_TIME_SHARES; k++)
        smp__table_put(t, "%.1f %%", 100.0 * row->share[k]);
}

/* The columns that options add: days, and what those cost. */
static void put_training(smp__table *t, const smp_comparison *comparison, const smp_compared *row)
{
    double days, device_hours;
    char count[32];
    const bool known = smp_plan_training_time(&row->figures, comparison->tokens, row->devices,
                                              &days, &device_hours);
    if (comparison->tokens > 0.0)
        smp__table_put(t, known ? "%.1f" : "-", days);
    if (comparison->price > 0.0)
        smp__table_put(
            t, "%s",
            known ? smp_format_count(count, sizeof count, comparison->price * device_hours) : "-");
}

smp_status smp_comparison_table(const smp_comparison *comparison, smp_text *text)
{
    static const char *const heads[] = {
        "<plan",      "<P x D x T, V", "<schedule", "micro-batches", "batch",  "step",
        "tokens/s",   "samples/s",     "MFU",       "rank peak",     "bubble", "compute",
        "fill+drain", "imbalance",     "transfer",  "reduction",     "days",   "cost"};
    const int columns = (int)(sizeof heads / sizeof heads[0]) - (comparison->tokens <= 0.0) -
                        (comparison->price <= 0.0);
    smp__table t;
    int n = 0;
    for (int i = 0; i < comparison->n; i++)
        n += comparison->row[i].made;
    SMP_TRY(smp__table_open(&t, columns, n, heads));
    for (int i = 0; i < comparison->n; i++)
        if (comparison->row[i].made) {
            put_row(&t, &comparison->row[i]);
            put_training(&t, comparison, &comparison->row[i]);
        }
    SMP_TRY(smp__table_print(&t, text));
    smp_text_append(text, "(P: pipeline ranks, D: replicas, T: devices of a group, V: chunks; rank "
                          "peak: of the fullest; from compute on: where rank time goes)\n");
    for (int i = 0; i < comparison->n; i++)
        if (!comparison->row[i].made)
            smp_text_append(text, "%s: no plan: %s\n", comparison->row[i].name,
                            comparison->row[i].reason);
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}

/* A field of a CSV (RFC 4180). */
static void put_field(smp_text *text, const char *value)
{
    smp_text_append(text, "\"");
    for (; *value; value++)
        smp_text_append(text, *value == '"' ? "\"%c" : "%c", *value);
    smp_text_append(text, "\"");
}

static void put_days(const smp_comparison *comparison, const smp_compared *row, smp_text *text)
{
    double days, hours;
    const bool known =
        comparison->tokens > 0.0 &&
        smp_plan_training_time(&row->figures, comparison->tokens, row->devices, &days, &hours);
    smp_text_append(text, ",");
    if (known)
        smp_text_append(text, "%.6g", days);
    smp_text_append(text, ",");
    if (known && comparison->price > 0.0)
        smp_text_append(text, "%.6g", comparison->price * hours);
    smp_text_append(text, "\n");
}

smp_status smp_comparison_csv(const smp_comparison *comparison, smp_text *text)
{
    smp_text_append(text, "plan,reason,devices,degrees,schedule,microbatches,microbatch_size,"
                          "global_batch,parameters,step_s,samples_per_s,tokens_per_s,"
                          "device_flops_per_s,mfu,peak_bytes,bubble,compute,fill_and_drain,"
                          "imbalance,transfer,reduction,days,cost\n");
    for (int i = 0; i < comparison->n; i++) {
        const smp_compared *row = &comparison->row[i];
        put_field(text, row->name);
        smp_text_append(text, ",");
        put_field(text, row->reason);
        if (!row->made) {
            smp_text_append(text, ",,,,,,,,,,,,,,,,,,,,,\n");
            continue;
        }
        smp_text_append(text, ",%d,", row->devices);
        put_field(text, row->degrees);
        smp_text_append(text, ",%s,%d,%lld,%lld,%lld,%.9g,%.9g,%.9g,%.9g,%.6g,%lld,%.6g",
                        row->schedule, row->microbatches, (long long)row->microbatch_size,
                        (long long)row->figures.global_batch, (long long)row->figures.parameters,
                        row->step_us / 1e6, row->samples_per_s, row->figures.tokens_per_s,
                        row->figures.device_flops_per_s, row->figures.mfu,
                        (long long)row->peak_bytes, row->bubble);
        for (int k = 0; k < SMP_TIME_SHARES; k++)
            smp_text_append(text, ",%.6g", row->share[k]);
        put_days(comparison, row, text);
    }
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}

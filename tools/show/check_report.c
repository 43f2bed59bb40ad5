/* The check of a plan as text and as JSON. */
#include <inttypes.h>
#include <stdio.h>

#include "tools/show/check_report.h"
#include "tools/show/plan_figures.h"
#include "tools/show/stage_table.h"

static void put_findings(const smp_findings *findings, smp_finding_level level, const char *head,
                         smp_text *text)
{
    for (int32_t i = 0; i < findings->n; i++) {
        const smp_finding *item = &findings->item[i];
        if (item->level != level)
            continue;
        smp_text_append(text, "%s: ", head);
        if (item->where.file && item->where.line > 0)
            smp_text_append(text, "%s:%d:%d: ", item->where.file, item->where.line,
                            item->where.column);
        smp_text_append(text, "%s\n", item->message);
    }
}

static void put_best(const smp_check_best *best, const char *what, bool bottleneck, smp_text *text)
{
    char time[32];
    const smp_plan *plan = best->plan;
    double slower = 100 * (best->ratio - 1);
    char tensor[32], groups[64] = "";
    if (!plan) {
        if (best->reason[0])
            smp_text_append(text, "%s: none fits (%s)\n", what, best->reason);
        return;
    }
    smp_format_us(time, sizeof time,
                  bottleneck ? plan->predicted.bottleneck_us : plan->predicted.step_us);
    if (smp_plan_tensor(plan) > 1)
        snprintf(groups, sizeof groups, " of tensor %s",
                 smp_format_tensor(tensor, sizeof tensor, plan));
    smp_text_append(text, "%s: %s %s with %d x %d rank%s%s, %d chunk%s, %d micro-batch%s, %s", what,
                    bottleneck ? "bottleneck" : "step", time, plan->pipeline, plan->ddp,
                    plan->devices == 1 ? "" : "s", groups, plan->chunks,
                    plan->chunks == 1 ? "" : "s", plan->microbatches,
                    plan->microbatches == 1 ? "" : "es", plan->schedule);
    if (slower > 0.005 || slower < -0.005)
        smp_text_append(text, "; this plan takes %.2f %% %s time per sample",
                        slower > 0 ? slower : -slower, slower > 0 ? "more" : "less");
    else
        smp_text_append(text, "; this plan is as good");
    smp_text_append(text, "%s\n", best->timed_out ? " (all effort spent)" : "");
}

/* What each part falls short by, largest first. */
static void put_parts(const smp_check *check, bool bottleneck, smp_text *text)
{
    char saved[32];
    double sum_us = 0.0, sum = 0.0;
    for (int i = 0; i < check->n_part; i++) {
        sum_us += check->part[i].saved_us;
        sum += check->part[i].share;
    }
    if (check->n_part == 0)
        return;
    smp_text_append(text, "parts fall short by %s (%.1f %%) of the %s:",
                    smp_format_us(saved, sizeof saved, sum_us), 100 * sum,
                    bottleneck ? "bottleneck" : "step");
    for (int i = 0; i < check->n_part; i++) {
        const smp_check_part *part = &check->part[i];
        smp_text_append(text, "%s %s %s (%.1f %%)", i > 0 ? "," : "",
                        smp_check_part_name(part->kind),
                        smp_format_us(saved, sizeof saved, part->saved_us), 100 * part->share);
    }
    smp_text_append(text, "%s\n", check->parts_timed_out ? " (all effort spent)" : "");
}

smp_status smp_check_report(const smp_check *check, const smp_search_request *request,
                            smp_text *text)
{
    int n = check->findings.n_level[SMP_FINDING_ILLEGAL];
    bool bottleneck = request->options.objective == SMP_OBJECTIVE_BOTTLENECK;
    if (check->plan) {
        SMP_TRY(smp_stage_table(check->plan, check->partition, request->graph, text));
        smp_text_append(text, "the bound is proven by %s\n", check->bound);
        put_best(&check->same, "best of the same numbers", bottleneck, text);
        put_best(&check->any, "best of all", bottleneck, text);
        put_parts(check, bottleneck, text);
        smp_text_append(text, "\n");
    }
    put_findings(&check->findings, SMP_FINDING_ILLEGAL, "illegal", text);
    put_findings(&check->findings, SMP_FINDING_UNFIT, "does not fit", text);
    put_findings(&check->findings, SMP_FINDING_NOTE, "note", text);
    if (!check->legal)
        smp_text_append(text, "the plan is illegal: %d finding%s\n", n, n == 1 ? "" : "s");
    else
        smp_text_append(text, "the plan is legal and %s\n",
                        check->fits ? "fits" : "does not fit the memory");
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}

static void put_json_findings(const smp_findings *findings, bool notes, smp_text *json)
{
    static const char *const levels[] = {"illegal", "memory", "note"};
    const char *comma = "";
    for (int32_t i = 0; i < findings->n; i++) {
        const smp_finding *item = &findings->item[i];
        if ((item->level == SMP_FINDING_NOTE) != notes)
            continue;
        smp_text_append(json, "%s{\"level\": \"%s\", \"kind\": \"%s\", \"message\": ", comma,
                        levels[item->level], item->kind);
        smp_text_append_quoted(json, item->message);
        if (item->where.line > 0)
            smp_text_append(json, ", \"line\": %d, \"column\": %d", item->where.line,
                            item->where.column);
        smp_text_append(json, "}");
        comma = ", ";
    }
}

typedef struct named {
    const char *key;
    double value;
} named;

static void put_numbers(smp_text *json, const named *number, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        smp_text_append(json, ", \"%s\": ", number[i].key);
        smp_text_append_double(json, number[i].value);
    }
}

static void put_json_best(const smp_check_best *best, const char *key, smp_text *json)
{
    const smp_plan *plan = best->plan;
    if (!plan) {
        smp_text_append(json, ", \"%s\": null", key);
        return;
    }
    const named numbers[] = {{"step_us", plan->predicted.step_us},
                             {"bottleneck_us", plan->predicted.bottleneck_us},
                             {"lower_bound_us", plan->predicted.lower_bound_us},
                             {"time_per_sample_us", best->time_us},
                             {"ratio", best->ratio}};
    smp_text_append(json,
                    ", \"%s\": {\"pipeline\": %d, \"ddp\": %d, \"chunks\": %d, \"microbatches\": "
                    "%d, \"schedule\": \"%s\"",
                    key, plan->pipeline, plan->ddp, plan->chunks, plan->microbatches,
                    plan->schedule);
    put_numbers(json, numbers, 5);
    smp_text_append(json, ", \"timed_out\": %s}", best->timed_out ? "true" : "false");
}

static void put_json_parts(const smp_check *check, smp_text *json)
{
    smp_text_append(json, ", \"parts\": [");
    for (int i = 0; i < check->n_part; i++) {
        const named numbers[] = {{"saved_us", check->part[i].saved_us},
                                 {"share", check->part[i].share}};
        smp_text_append(json, "%s{\"part\": \"%s\"", i > 0 ? ", " : "",
                        smp_check_part_name(check->part[i].kind));
        put_numbers(json, numbers, 2);
        smp_text_append(json, "}");
    }
    smp_text_append(json, "], \"parts_timed_out\": %s", check->parts_timed_out ? "true" : "false");
}

static void put_json_stages(const smp_check *check, smp_text *json)
{
    const smp_plan *plan = check->plan;
    smp_text_append(json, ", \"stages\": [");
    for (int s = 0; s < plan->n_stage; s++) {
        const smp_stage_load *load = &check->partition->load[s];
        int32_t again = smp_plan_stage_recomputes(&plan->stage[s]);
        const named numbers[] = {{"forward_us", load->forward_us},
                                 {"backward_us", load->backward_us},
                                 {"transfer_us", load->transfer_us},
                                 {"load_us", load->load_us}};
        smp_text_append(json, "%s{\"stage\": %d, \"rank\": %d, \"ops\": %d, \"recompute\": %s",
                        s > 0 ? ", " : "", s, plan->stage[s].rank, (int)plan->stage[s].n_op,
                        again > 0 ? "true" : "false");
        if (again > 0 && again < plan->stage[s].n_op)
            smp_text_append(json, ", \"recompute_ops\": %d", (int)again);
        put_numbers(json, numbers, 4);
        smp_text_append(json,
                        ", \"in_bytes\": %" PRId64 ", \"out_bytes\": %" PRId64
                        ", \"weight_bytes\": %" PRId64 ", \"stash_bytes\": %" PRId64
                        ", \"memory_bytes\": %" PRId64 "}",
                        load->in_bytes, load->out_bytes, load->weight_bytes, load->stash_bytes,
                        load->memory_bytes);
    }
    smp_text_append(json, "]");
}

static void put_json_scores(const smp_check *check, smp_text *json)
{
    const smp_plan *plan = check->plan;
    const smp_predicted *is = &plan->predicted;
    const named numbers[] = {{"step_us", is->step_us},
                             {"bubble", is->bubble},
                             {"samples_per_s", is->samples_per_s},
                             {"bottleneck_us", is->bottleneck_us},
                             {"lower_bound_us", is->lower_bound_us},
                             {"gap", is->gap},
                             {"time_per_sample_us", check->time_us}};
    smp_text_append(json, ", \"parallel\": {\"devices\": %d, \"pipeline\": %d, \"ddp\": %d, ",
                    smp_plan_processes(plan), plan->pipeline, plan->ddp);
    if (smp_plan_tensor(plan) > 1)
        smp_text_append(json, "\"tensor\": %d, ", smp_plan_tensor(plan));
    smp_text_append(json,
                    "\"chunks\": %d}, \"batch\": {\"microbatches\": %d, \"microbatch_size\": "
                    "%" PRId64 ", \"gradient_blocks\": %d}, \"schedule\": \"%s\"",
                    plan->chunks, plan->microbatches, plan->microbatch_size, plan->gradient_blocks,
                    plan->schedule);
    if (plan->target.backend != SMP_BACKEND_CPU)
        smp_text_append(json, ", \"execution\": {\"device\": \"%s\", \"precision\": \"%s\"}",
                        smp_backend_name(plan->target.backend),
                        smp_precision_name(plan->target.precision));
    put_numbers(json, numbers, 7);
    smp_text_append(json, ", \"bound\": \"%s\", \"costs\": ", check->bound);
    smp_text_append_quoted(json, check->cost_source);
    smp_text_append(json, ", \"peak_bytes\": [");
    for (int r = 0; r < plan->pipeline; r++)
        smp_text_append(json, "%s%" PRId64, r > 0 ? ", " : "", is->peak_bytes[r]);
    smp_text_append(json, "]");
    put_json_stages(check, json);
    put_json_best(&check->same, "best_same", json);
    put_json_best(&check->any, "best", json);
    put_json_parts(check, json);
}

smp_status smp_check_report_json(const smp_check *check, const smp_search_request *request,
                                 smp_text *json)
{
    smp_text_append(json, "{\"smp\": 1, \"model\": ");
    smp_text_append_quoted(json, request->graph->name);
    smp_text_append(json, ", \"legal\": %s, \"fits\": %s, \"problems\": [",
                    check->legal ? "true" : "false", check->fits ? "true" : "false");
    put_json_findings(&check->findings, false, json);
    smp_text_append(json, "], \"notes\": [");
    put_json_findings(&check->findings, true, json);
    smp_text_append(json, "]");
    if (check->plan)
        put_json_scores(check, json);
    smp_text_append(json, "}\n");
    return json->failed ? smp_fail_memory(json->capacity) : SMP_OK;
}

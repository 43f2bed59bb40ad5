/* The check of a plan as text and as JSON. */
#include <inttypes.h>

#include "schedule/check/check.h"
#include "schedule/show/stage_table.h"

static void put_place(smp_where where, smp_text *text)
{
    if (!where.file || where.line < 1)
        return;
    smp_text_append(text, "%s:%d:%d: ", where.file, where.line, where.column);
}

static void put_findings(const smp_check *check, smp_finding_level level, smp_text *text)
{
    static const char *const heads[] = {"illegal", "does not fit", "note"};
    const smp_findings *f = &check->findings;
    for (int32_t i = 0; i < f->n; i++) {
        if (f->item[i].level != level)
            continue;
        smp_text_append(text, "%s: ", heads[level]);
        put_place(f->item[i].where, text);
        smp_text_append(text, "%s\n", f->item[i].message);
    }
}

static void put_best(const smp_check_best *best, const char *what, bool bottleneck, smp_text *text)
{
    char time[32];
    if (!best->found) {
        if (best->reason[0])
            smp_text_append(text, "%s: none fits (%s)\n", what, best->reason);
        return;
    }
    smp_text_append(
        text, "%s: %s %s", what, bottleneck ? "bottleneck" : "step",
        smp_format_us(time, sizeof time, bottleneck ? best->bottleneck_us : best->step_us));
    smp_text_append(text, " with %d x %d rank%s, %d chunk%s, %d micro-batch%s, %s", best->pipeline,
                    best->ddp, best->pipeline * best->ddp == 1 ? "" : "s", best->chunks,
                    best->chunks == 1 ? "" : "s", best->microbatches,
                    best->microbatches == 1 ? "" : "es", best->schedule);
    double slower = 100 * (best->ratio - 1);
    if (slower > 0.005)
        smp_text_append(text, "; this plan takes %.2f %% more time per sample", slower);
    else if (slower < -0.005)
        smp_text_append(text, "; this plan takes %.2f %% less time per sample", -slower);
    else
        smp_text_append(text, "; this plan is as good");
    smp_text_append(text, "%s\n", best->timed_out ? " (time limit)" : "");
}

smp_status smp_check_report(const smp_check *check, const smp_search_request *request,
                            smp_text *text)
{
    const smp_findings *f = &check->findings;
    bool bottleneck = request->objective == SMP_OBJECTIVE_BOTTLENECK;
    if (check->plan) {
        SMP_TRY(smp_stage_table(check->plan, check->partition, request->graph, text));
        smp_text_append(text, "costs: %s; the bound is proven by %s\n", check->cost_source,
                        check->bound);
        put_best(&check->same, "best of the same numbers", bottleneck, text);
        put_best(&check->any, "best of all", bottleneck, text);
        smp_text_append(text, "\n");
    }
    put_findings(check, SMP_FINDING_ILLEGAL, text);
    put_findings(check, SMP_FINDING_UNFIT, text);
    put_findings(check, SMP_FINDING_NOTE, text);
    if (!check->legal)
        smp_text_append(text, "the plan is illegal: %d finding%s\n",
                        f->n_level[SMP_FINDING_ILLEGAL],
                        f->n_level[SMP_FINDING_ILLEGAL] == 1 ? "" : "s");
    else
        smp_text_append(text, "the plan is legal and %s\n",
                        check->fits ? "fits" : "does not fit the memory");
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}

static void put_json_findings(const smp_check *check, bool notes, smp_text *json)
{
    static const char *const levels[] = {"illegal", "memory", "note"};
    const smp_findings *f = &check->findings;
    bool first = true;
    smp_text_append(json, "[");
    for (int32_t i = 0; i < f->n; i++) {
        const smp_finding *item = &f->item[i];
        if ((item->level == SMP_FINDING_NOTE) != notes)
            continue;
        smp_text_append(json,
                        "%s{\"level\": \"%s\", \"kind\": \"%s\", \"message\": ", first ? "" : ", ",
                        levels[item->level], item->kind);
        smp_text_append_quoted(json, item->message);
        if (item->where.line > 0)
            smp_text_append(json, ", \"line\": %d, \"column\": %d", item->where.line,
                            item->where.column);
        smp_text_append(json, "}");
        first = false;
    }
    smp_text_append(json, "]");
}

static void put_number(smp_text *json, const char *key, double value)
{
    smp_text_append(json, ", \"%s\": ", key);
    smp_text_append_double(json, value);
}

static void put_json_best(const smp_check_best *best, const char *key, smp_text *json)
{
    smp_text_append(json, ", \"%s\": ", key);
    if (!best->found) {
        smp_text_append(json, "null");
        return;
    }
    smp_text_append(json,
                    "{\"pipeline\": %d, \"ddp\": %d, \"chunks\": %d, \"microbatches\": %d, "
                    "\"schedule\": \"%s\"",
                    best->pipeline, best->ddp, best->chunks, best->microbatches, best->schedule);
    put_number(json, "step_us", best->step_us);
    put_number(json, "bottleneck_us", best->bottleneck_us);
    put_number(json, "lower_bound_us", best->lower_bound_us);
    put_number(json, "time_per_sample_us", best->time_us);
    put_number(json, "ratio", best->ratio);
    smp_text_append(json, ", \"timed_out\": %s}", best->timed_out ? "true" : "false");
}

static void put_json_stages(const smp_check *check, smp_text *json)
{
    const smp_plan *plan = check->plan;
    smp_text_append(json, ", \"stages\": [");
    for (int s = 0; s < plan->n_stage; s++) {
        const smp_stage_load *load = &check->partition->load[s];
        smp_text_append(json, "%s{\"stage\": %d, \"rank\": %d, \"ops\": %d, \"recompute\": %s",
                        s > 0 ? ", " : "", s, plan->stage[s].rank, (int)plan->stage[s].n_op,
                        plan->stage[s].recompute ? "true" : "false");
        put_number(json, "forward_us", load->forward_us);
        put_number(json, "backward_us", load->backward_us);
        put_number(json, "transfer_us", load->transfer_us);
        put_number(json, "load_us", load->load_us);
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
    const smp_predicted *predicted = &plan->predicted;
    smp_text_append(json,
                    ", \"parallel\": {\"devices\": %d, \"pipeline\": %d, \"ddp\": %d, "
                    "\"chunks\": %d}, \"batch\": {\"microbatches\": %d, \"microbatch_size\": "
                    "%" PRId64 "}, \"schedule\": \"%s\"",
                    plan->devices, plan->pipeline, plan->ddp, plan->chunks, plan->microbatches,
                    plan->microbatch_size, plan->schedule);
    if (plan->target.backend != SMP_BACKEND_CPU)
        smp_text_append(json, ", \"execution\": {\"device\": \"%s\", \"precision\": \"%s\"}",
                        smp_backend_name(plan->target.backend),
                        smp_precision_name(plan->target.precision));
    put_number(json, "step_us", predicted->step_us);
    put_number(json, "bubble", predicted->bubble);
    put_number(json, "samples_per_s", predicted->samples_per_s);
    put_number(json, "bottleneck_us", predicted->bottleneck_us);
    put_number(json, "lower_bound_us", predicted->lower_bound_us);
    put_number(json, "gap", predicted->gap);
    put_number(json, "time_per_sample_us", check->time_us);
    smp_text_append(json, ", \"bound\": ");
    smp_text_append_quoted(json, check->bound);
    smp_text_append(json, ", \"costs\": ");
    smp_text_append_quoted(json, check->cost_source);
    smp_text_append(json, ", \"peak_bytes\": [");
    for (int r = 0; r < plan->pipeline; r++)
        smp_text_append(json, "%s%" PRId64, r > 0 ? ", " : "", predicted->peak_bytes[r]);
    smp_text_append(json, "]");
    put_json_stages(check, json);
    put_json_best(&check->same, "best_same", json);
    put_json_best(&check->any, "best", json);
}

smp_status smp_check_report_json(const smp_check *check, const smp_search_request *request,
                                 smp_text *json)
{
    smp_text_append(json, "{\"smp\": 1, \"model\": ");
    smp_text_append_quoted(json, request->graph->name);
    smp_text_append(json, ", \"legal\": %s, \"fits\": %s, \"problems\": ",
                    check->legal ? "true" : "false", check->fits ? "true" : "false");
    put_json_findings(check, false, json);
    smp_text_append(json, ", \"notes\": ");
    put_json_findings(check, true, json);
    if (check->plan)
        put_json_scores(check, json);
    smp_text_append(json, "}\n");
    return json->failed ? smp_fail_memory(json->capacity) : SMP_OK;
}

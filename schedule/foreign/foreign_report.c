/* The verdict on a foreign schedule as text and as JSON. */
#include <stdio.h>

#include "schedule/foreign/foreign_judge.h"

/* "4.5 ms", or of units "4.5". */
static const char *time_text(const smp_foreign_verdict *v, double us, char buffer[32])
{
    if (v->measured)
        return smp_format_us(buffer, 32, us);
    snprintf(buffer, 32, "%.4g", us / SMP__FOREIGN_UNIT_US);
    return buffer;
}

static void put_ranks(const smp_foreign_verdict *v, smp_text *text)
{
    char busy[32], idle[32], warmup[32], wait[32], drain[32];
    smp_text_append(
        text, "rank  stages          live      busy      idle   warm-up   waiting     drain\n");
    for (int r = 0; r < v->foreign->n_rank; r++) {
        const smp_foreign_load *load = &v->run.rank[r];
        smp_text stages = {0};
        for (int s = 0; s < v->foreign->n_stage; s++)
            if (v->foreign->stage_rank[s] == r)
                smp_text_append(&stages, "%s%d", stages.data ? ", " : "", s);
        smp_text_append(text, "%4d  %-14.60s %5d %9s %9s %9s %9s %9s\n", r,
                        stages.data ? stages.data : "", load->live,
                        time_text(v, load->busy_us, busy), time_text(v, load->idle_us, idle),
                        time_text(v, load->warmup_us, warmup), time_text(v, load->wait_us, wait),
                        time_text(v, load->drain_us, drain));
        text->failed |= stages.failed;
        smp_text_free(&stages);
    }
}

static double bubble(const smp_foreign_verdict *v)
{
    double idle = 0;
    for (int r = 0; r < v->foreign->n_rank; r++)
        idle += v->run.rank[r].idle_us;
    return v->run.step_us > 0 ? idle / (v->run.step_us * v->foreign->n_rank) : 0;
}

static void put_best(const smp_foreign_verdict *v, smp_text *text)
{
    char step[32];
    if (!v->best) {
        smp_text_append(text, "no plan to compare with: %s\n", v->reason);
        return;
    }
    const double more = 100 * (v->run.step_us / v->best_step - 1);
    smp_text_append(text, "schedule %s on the same stages: step %s", v->best->schedule,
                    time_text(v, v->best_step, step));
    if (v->best->predicted.step_lower_bound_us > 0)
        smp_text_append(text, " (no order is below %s)",
                        time_text(v, v->best->predicted.step_lower_bound_us, step));
    if (more > 0.05)
        smp_text_append(text, "; this one takes %.1f %% more\n", more);
    else
        smp_text_append(text, "; this one is as good\n");
}

smp_status smp_foreign_report(const smp_foreign_verdict *v, smp_text *text)
{
    char step[32];
    const smp_foreign *f = v->foreign;
    smp_text_append(text, "%s: %s, %d stages on %d ranks, %d micro-batches%s%s\n", f->file,
                    f->format, f->n_stage, f->n_rank, f->microbatches,
                    f->communicates ? ", with sends and receives" : "",
                    f->training ? "" : ", forwards only");
    if (f->n_overlap > 0)
        smp_text_append(text,
                        "%d forwards run together with a backward: counted one after the other\n",
                        f->n_overlap);
    if (v->legal) {
        put_ranks(v, text);
        smp_text_append(text, "step %s, bubble %.1f %%; times: %s, transfers free\n",
                        time_text(v, v->run.step_us, step), 100 * bubble(v),
                        v->measured ? "those of the plan's stages"
                        : f->layers ? "a layer 1 forward and 2 backward"
                                    : "forward 1, backward 2, a half of it 1");
        put_best(v, text);
    }
    for (int32_t i = 0; i < v->findings.n; i++) {
        const smp_finding *item = &v->findings.item[i];
        smp_text_append(text, "illegal: ");
        if (item->where.line > 0)
            smp_text_append(text, "%s:%d:%d: ", item->where.file, item->where.line,
                            item->where.column);
        smp_text_append(text, "%s\n", item->message);
    }
    smp_text_append(text, "%s\n",
                    v->legal      ? "free of deadlock"
                    : v->complete ? "it deadlocks"
                                  : "it is not complete");
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}

static void put_number(const smp_foreign_verdict *v, const char *key, double us, smp_text *json)
{
    smp_text_append(json, "\"%s\": ", key);
    smp_text_append_double(json, v->measured ? us : us / SMP__FOREIGN_UNIT_US);
}

static void put_json_ranks(const smp_foreign_verdict *v, smp_text *json)
{
    smp_text_append(json, ", \"ranks\": [");
    for (int r = 0; r < v->foreign->n_rank; r++) {
        const smp_foreign_load *load = &v->run.rank[r];
        const struct {
            const char *key;
            double us;
        } times[] = {{"busy", load->busy_us},
                     {"idle", load->idle_us},
                     {"warmup", load->warmup_us},
                     {"waiting", load->wait_us},
                     {"drain", load->drain_us}};
        smp_text_append(json, "%s{\"live\": %d", r > 0 ? ", " : "", load->live);
        for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
            smp_text_append(json, ", ");
            put_number(v, times[i].key, times[i].us, json);
        }
        smp_text_append(json, "}");
    }
    smp_text_append(json, "], ");
    put_number(v, "step", v->run.step_us, json);
    smp_text_append(json, ", \"bubble\": ");
    smp_text_append_double(json, bubble(v));
    if (!v->best)
        return;
    smp_text_append(json, ", \"best\": {\"schedule\": ");
    smp_text_append_quoted(json, v->best->schedule);
    smp_text_append(json, ", ");
    put_number(v, "step", v->best_step, json);
    smp_text_append(json, ", ");
    put_number(v, "lower_bound", v->best->predicted.step_lower_bound_us, json);
    smp_text_append(json, "}");
}

smp_status smp_foreign_report_json(const smp_foreign_verdict *v, smp_text *json)
{
    const smp_foreign *f = v->foreign;
    smp_text_append(json,
                    "{\"format\": \"%s\", \"stages\": %d, \"pipeline\": %d, \"microbatches\": %d, "
                    "\"communicates\": %s, \"legal\": %s, \"complete\": %s, \"unit\": \"%s\"",
                    f->format, f->n_stage, f->n_rank, f->microbatches,
                    f->communicates ? "true" : "false", v->legal ? "true" : "false",
                    v->complete ? "true" : "false", v->measured ? "us" : "forward");
    if (v->legal)
        put_json_ranks(v, json);
    smp_text_append(json, ", \"findings\": [");
    for (int32_t i = 0; i < v->findings.n; i++) {
        const smp_finding *item = &v->findings.item[i];
        smp_text_append(json, "%s{\"kind\": \"%s\", \"message\": ", i > 0 ? ", " : "", item->kind);
        smp_text_append_quoted(json, item->message);
        if (item->where.line > 0)
            smp_text_append(json, ", \"line\": %d, \"column\": %d", item->where.line,
                            item->where.column);
        smp_text_append(json, "}");
    }
    smp_text_append(json, "]}\n");
    return json->failed ? smp_fail_memory(json->capacity) : SMP_OK;
}

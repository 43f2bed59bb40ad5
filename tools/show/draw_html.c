/* The page: report_page.html with its style, its script and the data of a picture, in one file that
 * loads nothing. The data is JSON for report_page.js, times as whole ticks of tick_us and as
 * differences, so that numbers are short: some 20 bytes per action. An action of a lane is seven
 * numbers of `cells`:
 *
 *   its kind (F B I W O: 0 to 4), micro-batch and stage (-1: none), ticks idle before it, ticks
 *   that it takes, ticks between the arrival of its input and its start (-1: it receives nothing),
 *   change of the bytes held, in units of `unit` (predicted timeline only)
 *
 * Linear in actions. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "tools/show/picture_model.h"

/* Made by the build from the files of these names (cmake/SmpEmbed.cmake). */
extern const unsigned char smp__file_report_page_html[];
extern const unsigned char smp__file_report_page_css[];
extern const unsigned char smp__file_report_page_js[];

enum { TICKS = 1000000, UNITS = 20000 }; /* resolution of times and bytes */

typedef struct page {
    const smp_picture *picture;
    smp_text *json;
    double tick_us;
    int64_t unit; /* bytes */
} page;

static int64_t to_ticks(const page *p, double us)
{
    return llround(us / p->tick_us);
}

static void put_key(const page *p, const char *key)
{
    smp_text_append(p->json, ",\"%s\":", key);
}

static void put_number(const page *p, const char *key, double value)
{
    put_key(p, key);
    smp_text_append_double(p->json, value);
}

static void put_int(const page *p, const char *key, int64_t value)
{
    put_key(p, key);
    smp_text_append(p->json, "%" PRId64, value);
}

static void put_string(const page *p, const char *key, const char *value)
{
    put_key(p, key);
    smp_text_append_quoted(p->json, value);
}

static void put_head(const page *p)
{
    const smp_plan *plan = p->picture->plan;
    const smp_predicted *predicted = &plan->predicted;
    smp_text_append(p->json, "{\"smp\":1,\"model\":");
    smp_text_append_quoted(p->json, plan->model_name);
    put_string(p, "schedule", plan->schedule);
    put_string(p, "cluster", plan->cluster && plan->cluster->name ? plan->cluster->name : "");
    put_int(p, "overlap", plan->cluster && plan->cluster->overlap);
    put_int(p, "shared_cores", plan->cluster && plan->cluster->cores_per_node > 0);
    put_int(p, "pipeline", plan->pipeline);
    put_int(p, "ddp", plan->ddp);
    put_int(p, "tensor", smp_plan_tensor(plan));
    put_int(p, "replica", p->picture->simulated.simulation->replica);
    put_int(p, "chunks", plan->chunks);
    put_int(p, "microbatches", plan->microbatches);
    put_int(p, "microbatch_size", plan->microbatch_size);
    put_number(p, "tick_us", p->tick_us);
    put_int(p, "unit", p->unit);
    put_key(p, "predicted");
    smp_text_append(p->json, "{\"step_us\":");
    smp_text_append_double(p->json, p->picture->predicted.end_us);
    put_number(p, "bubble", p->picture->bubble);
    put_number(p, "samples_per_s", predicted->samples_per_s);
    put_number(p, "bottleneck_us", predicted->bottleneck_us);
    put_number(p, "lower_bound_us", predicted->lower_bound_us);
    put_number(p, "gap", predicted->gap);
    put_number(p, "step_lower_bound_us", predicted->step_lower_bound_us);
    put_number(p, "step_gap", predicted->step_gap);
    smp_text_append(p->json, "}");
}

static void put_stages(const page *p)
{
    const smp_plan *plan = p->picture->plan;
    put_key(p, "stages");
    for (int s = 0; s < plan->n_stage; s++) {
        const smp_plan_stage *stage = &plan->stage[s];
        smp_text_append(p->json, "%s{\"rank\":%d", s ? ",\n" : "[", stage->rank);
        put_number(p, "forward", stage->forward_us);
        put_number(p, "backward", stage->backward_us);
        put_int(p, "weights", stage->weight_bytes);
        put_int(p, "stash", stage->stash_bytes);
        put_int(p, "recompute", smp_plan_stage_recomputes(stage));
        put_key(p, "ops");
        for (int32_t i = 0; i < stage->n_op; i++) {
            smp_text_append(p->json, i ? "," : "[");
            smp_text_append_quoted(p->json, stage->op[i]);
        }
        smp_text_append(p->json, "]}");
    }
    smp_text_append(p->json, "]");
}

/* What ranks send each other for a micro-batch. */
static void put_flow(const page *p)
{
    const smp_flow *flow = p->picture->flow;
    const char *comma = "";
    put_key(p, "flow");
    smp_text_append(p->json, "[");
    for (int32_t i = 0; i < flow->n_transfer; i++) {
        const smp_transfer *t = &flow->transfer[i];
        if (!smp__crossing_is_message(&p->picture->crossing, t))
            continue;
        smp_text_append(p->json, "%s{\"back\":%d", comma, t->kind != SMP_TRANSFER_F);
        put_int(p, "from", t->from_stage);
        put_int(p, "to", t->to_stage);
        put_int(p, "bytes", t->bytes);
        put_string(p, "tensor", p->picture->graph->tensor[t->tensor].name);
        smp_text_append(p->json, "}");
        comma = ",\n";
    }
    smp_text_append(p->json, "]");
}

static void put_memory(const page *p)
{
    put_key(p, "memory");
    for (int rank = 0; rank < p->picture->plan->pipeline; rank++) {
        const smp__rank_memory *m = &p->picture->memory[rank];
        smp_text_append(p->json, "%s{\"fixed\":%" PRId64, rank ? "," : "[", m->fixed_bytes);
        put_int(p, "reserved", m->reserved_bytes);
        put_int(p, "limit", m->limit_bytes);
        smp_text_append(p->json, "}");
    }
    smp_text_append(p->json, "]");
}

static void put_cells(const page *p, const smp__lane *lane)
{
    int64_t at = 0, held = 0;
    put_key(p, "cells");
    smp_text_append(p->json, "[");
    for (int64_t i = 0; i < lane->n; i++) {
        const smp__cell *c = &lane->cell[i];
        int64_t start = to_ticks(p, c->start_us), end = to_ticks(p, c->end_us);
        int64_t late = c->ready_us < 0.0 ? -1 : start - to_ticks(p, c->ready_us);
        int64_t bytes = c->bytes / p->unit;
        smp_text_append(p->json, "%s%d,%d,%d,%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64,
                        i ? "," : "", smp__cell_class(c->kind), (int)c->microbatch, (int)c->stage,
                        start - at, end - start, late < -1 ? 0 : late, bytes - held);
        at = end;
        held = bytes;
    }
    smp_text_append(p->json, "]");
}

static void put_lane(const page *p, const smp__lane *lane)
{
    smp_text_append(p->json, "{\"busy\":");
    smp_text_append_double(p->json, lane->busy_us);
    put_key(p, "wait");
    for (int i = 0; i < SMP__WAIT_KINDS; i++) {
        smp_text_append(p->json, i ? "," : "[");
        smp_text_append_double(p->json, lane->wait_us[i]);
    }
    smp_text_append(p->json, "]");
    put_key(p, "beside"); /* start, length, place in "RGSL" */
    smp_text_append(p->json, "[");
    for (int64_t i = 0; i < lane->n_beside; i++) {
        const smp__beside *r = &lane->beside[i];
        int64_t start = to_ticks(p, r->start_us);
        smp_text_append(p->json, "%s[%" PRId64 ",%" PRId64 ",%d]", i ? "," : "", start,
                        to_ticks(p, r->end_us) - start, r->kind);
    }
    smp_text_append(p->json, "]");
    put_cells(p, lane);
    smp_text_append(p->json, "}");
}

static void put_timeline(const page *p, const char *name, const smp__timeline *timeline)
{
    smp_text_append(p->json, "{\"name\":\"%s\"", name);
    put_int(p, "end", to_ticks(p, timeline->end_us));
    put_key(p, "lanes");
    for (int rank = 0; rank < p->picture->plan->pipeline; rank++) {
        smp_text_append(p->json, rank ? ",\n" : "[");
        put_lane(p, &timeline->lane[rank]);
    }
    smp_text_append(p->json, "]}");
}

static void put_data(const page *p)
{
    put_head(p);
    put_stages(p);
    put_flow(p);
    put_memory(p);
    put_key(p, "timelines");
    smp_text_append(p->json, "[");
    put_timeline(p, "predicted", &p->picture->predicted);
    if (p->picture->measured.lane) {
        smp_text_append(p->json, ",\n");
        put_timeline(p, "measured", &p->picture->measured);
    }
    smp_text_append(p->json, "]}\n");
}

/* JSON inside HTML: no '<', which could end or change the script element. */
static void put_escaped(smp_text *html, const smp_text *json)
{
    const char *at = json->data, *end = json->data + json->length;
    while (at < end) {
        const char *less = memchr(at, '<', (size_t)(end - at));
        smp_text_append_bytes(html, at, (size_t)((less ? less : end) - at));
        if (!less)
            break;
        smp_text_append(html, "\\u003c");
        at = less + 1;
    }
}

static void put_file(smp_text *html, const unsigned char *file)
{
    smp_text_append_bytes(html, (const char *)file, strlen((const char *)file));
}

/* What is above the timeline. */
static void put_sections(const smp_picture *picture, smp_text *html)
{
    if (picture->section)
        smp_text_append_bytes(html, picture->section->data, picture->section->length);
    if (picture->run)
        smp_run_record_html(picture->run, html);
}

/* The template with its places {{NAME}} filled. */
static smp_status assemble(const page *p, const smp_text *json, smp_text *html)
{
    const char *at = (const char *)smp__file_report_page_html;
    for (const char *open; (open = strstr(at, "{{")); at = strstr(open, "}}") + 2) {
        smp_text_append_bytes(html, at, (size_t)(open - at));
        if (strncmp(open, "{{STYLE}}", 9) == 0)
            put_file(html, smp__file_report_page_css);
        else if (strncmp(open, "{{SCRIPT}}", 10) == 0)
            put_file(html, smp__file_report_page_js);
        else if (strncmp(open, "{{RUN}}", 7) != 0)
            put_escaped(html, json);
        else
            put_sections(p->picture, html);
    }
    smp_text_append(html, "%s", at);
    return html->failed || json->failed ? smp_fail_memory(html->capacity) : SMP_OK;
}

void smp_picture_add_run(smp_picture *picture, const smp_run_record *run)
{
    picture->run = run;
}

void smp_picture_add_section(smp_picture *picture, const smp_text *html)
{
    picture->section = html;
}

smp_status smp_picture_html(const smp_picture *picture, smp_text *html)
{
    smp_text json = {0};
    page p = {.picture = picture, .json = &json, .unit = 1};
    int64_t most = 1;
    for (int rank = 0; rank < picture->plan->pipeline; rank++)
        if (picture->memory[rank].alive_bytes > most)
            most = picture->memory[rank].alive_bytes;
    p.unit = most / UNITS > 1 ? most / UNITS : 1;
    p.tick_us = smp__picture_end_us(picture) / TICKS;
    put_data(&p);
    smp_status status = json.failed ? smp_fail_memory(json.capacity) : assemble(&p, &json, html);
    smp_text_free(&json);
    return status;
}

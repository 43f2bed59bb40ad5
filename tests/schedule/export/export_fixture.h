/* For the tests of exports: exporting, and plans of chains with given op names and cuts. */
#ifndef SMP_TESTS_SCHEDULE_EXPORT_EXPORT_FIXTURE_H
#define SMP_TESTS_SCHEDULE_EXPORT_EXPORT_FIXTURE_H

#include "tests/schedule/made_plan.h"
#include "schedule/export/export.h"

static inline smp_text exported(const char *format, const smp_plan *plan, const smp_graph *graph)
{
    smp_text text = {0}, again = {0};
    const smp_exporter *exporter = smp_exporter_find(format);
    assert_non_null(exporter);
    if (exporter->write(plan, graph, &text) || exporter->write(plan, graph, &again))
        fail_msg("%s: %s", format, smp_last_error());
    assert_string_equal(text.data, again.data);
    smp_text_free(&again);
    return text;
}

static inline void assert_refused(const char *format, const smp_plan *plan, const smp_graph *graph,
                                  const char *words)
{
    smp_text text = {0};
    assert_int_equal(smp_exporter_find(format)->write(plan, graph, &text), SMP_ERR_INPUT);
    if (!strstr(smp_last_error(), words) || !strstr(smp_last_error(), format))
        fail_msg("got '%s', expected '%s'", smp_last_error(), words);
    smp_text_free(&text);
}

typedef struct cut_plan {
    smp_graph *graph;
    smp_plan plan;
    smp_plan_stage stage[16];
    const char *name[256];
    smp_program program[16];
} cut_plan;

/* A chain of opaque ops with these names, cut before the ops begin[1] .. begin[n_stage - 1]. */
static inline void cut_open(cut_plan *c, const char *const *names, int n_op, const int *begin,
                            int n_stage, int pipeline)
{
    smp_text text = {0};
    smp_text_append(&text,
                    "smp: 1\nname: cut\nmode: inference\ninputs:\n  t: {dtype: float32, shape: "
                    "[4]}\nops:\n");
    for (int i = 0; i < n_op; i++)
        smp_text_append(&text,
                        "  - {op: opaque, name: \"%s\", in: [%s], out: x, cost: {forward_us: 1, "
                        "backward_us: 2, weight_bytes: 8, stash_bytes: 8, output_bytes: 64}}\n",
                        names[i], i ? "x" : "t");
    *c = (cut_plan){0};
    if (smp_graph_parse("cut.yaml", text.data, text.length, &c->graph))
        fail_msg("%s", smp_last_error());
    smp_text_free(&text);
    for (int i = 0; i < n_op; i++)
        c->name[i] = c->graph->op[i].name;
    for (int s = 0; s < n_stage; s++)
        c->stage[s] =
            (smp_plan_stage){.rank = s % pipeline,
                             .n_op = (s + 1 < n_stage ? begin[s + 1] : n_op) - (s ? begin[s] : 0),
                             .op = &c->name[s ? begin[s] : 0]};
    c->plan = (smp_plan){.model_path = "cut.yaml",
                         .model_name = "cut",
                         .fingerprint = c->graph->fingerprint,
                         .devices = pipeline,
                         .pipeline = pipeline,
                         .ddp = 1,
                         .chunks = n_stage / pipeline,
                         .microbatches = 1,
                         .microbatch_size = 1,
                         .schedule = "simple",
                         .n_stage = n_stage,
                         .stage = c->stage,
                         .program = c->program};
}

static inline void cut_close(cut_plan *c)
{
    smp_graph_destroy(c->graph);
}

#endif

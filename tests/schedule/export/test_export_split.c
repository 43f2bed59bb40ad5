/* Exports of plans whose ops are split over groups of devices: of the model's own ops, as another
 * framework's modules are split by itself. */
#include "tests/schedule/fixture.h"

#include "schedule/export/export.h"
#include "schedule/plan/split_patterns.h"
#include "schedule/planner/planner.h"

static const smp_split_entry MEGATRON[] = {
    {"h*.attn.qkv", "columns/3", {0}}, {"h*.attn", "packed heads", {0}}, {"h*.proj", "rows", {0}},
    {"h*.mlp.fc", "columns", {0}},     {"h*.gelu", "elements@1", {0}},
};

typedef struct made {
    smp_graph *graph;
    smp_cluster *cluster, *groups;
    smp_planner_result result;
    int32_t *together;
} made;

/* Two ranks, cut between layers; whole: as one device computes it. */
static void make(bool whole, made *m)
{
    *m = (made){0};
    const smp_splitting patterns = {.devices = 2, .n_entry = 5, .entry = MEGATRON};
    smp_splitting splitting = {0};
    smp_arena *arena = smp_arena_create();
    if (smp_graph_read(SMP_SOURCE_DIR "/examples/gpt-tiny.yaml", &m->graph) != SMP_OK ||
        smp_splitting_resolve(&patterns, m->graph, arena, &splitting) != SMP_OK ||
        smp_cluster_local(4, &m->cluster) != SMP_OK ||
        smp_cluster_group(m->cluster, whole ? 1 : 2, &m->groups) != SMP_OK)
        fail_msg("%s", smp_last_error());
    if (whole)
        splitting = (smp_splitting){0};
    smp_search_request request = {.cluster = m->groups,
                                  .splitting = splitting,
                                  .options.devices = 2,
                                  .options.stages = 2,
                                  .options.ddp = 1,
                                  .options.chunks = 1,
                                  .options.microbatches = 4,
                                  .options.microbatch_size = 2,
                                  .options.schedule = "simple",
                                  .options.memory_bytes = (int64_t)1 << 32,
                                  .options.seed = 1};
    /* every op but those that begin layer 2 keeps to the one before it */
    if (smp_splitting_apply(&splitting, 0, &m->graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    m->together = calloc((size_t)m->graph->n_op, sizeof *m->together);
    for (int32_t op = smp_graph_find_op(m->graph, "h2.ln_1"); op < m->graph->n_op; op++)
        m->together[op] = 1;
    request.graph = m->graph;
    request.together = m->together;
    if (smp_plan_make(&request, "model.yaml", &m->result) != SMP_OK)
        fail_msg("%s", smp_last_error());
    smp_arena_destroy(arena);
}

static void free_made(made *m)
{
    smp_planner_result_destroy(&m->result);
    smp_cluster_destroy(m->groups);
    smp_cluster_destroy(m->cluster);
    smp_graph_destroy(m->graph);
    free(m->together);
}

/* The same stages of the same model give the same files, split or not. */
static void test_export_split_names_modules(void **state)
{
    (void)state;
    static const char *const formats[] = {"torch-csv", "torch-stages", "torchtitan",
                                          "megatron-layout", "deepspeed-parts"};
    made whole, split;
    make(true, &whole);
    make(false, &split);
    assert_true(split.graph->n_op > whole.graph->n_op);
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const smp_exporter *exporter = smp_exporter_find(formats[i]);
        smp_text a = {0}, b = {0}, notes[2] = {{0}, {0}};
        if (exporter->write(whole.result.plan, whole.graph, &a) != SMP_OK ||
            exporter->write(split.result.plan, split.graph, &b) != SMP_OK)
            fail_msg("%s", smp_last_error());
        assert_string_equal(a.data, b.data);
        assert_null(strchr(b.data, ':'));
        assert_int_equal(SMP_OK,
                         smp_export_notes(exporter, whole.result.plan, whole.graph, &notes[0]));
        assert_int_equal(SMP_OK,
                         smp_export_notes(exporter, split.result.plan, split.graph, &notes[1]));
        assert_null(notes[0].data ? strstr(notes[0].data, "tensor") : NULL);
        if (strcmp(formats[i], "torch-stages") != 0) /* beside torch-csv, which says it */
            assert_non_null(strstr(notes[1].data, "does not say that groups of 2 devices"));
        for (int k = 0; k < 2; k++)
            smp_text_free(&notes[k]);
        smp_text_free(&a);
        smp_text_free(&b);
    }
    free_made(&whole);
    free_made(&split);
}

/* What says all of a plan says all of this one. */
static void test_export_split_json_and_dot(void **state)
{
    (void)state;
    made split;
    smp_text json = {0}, dot = {0}, notes = {0};
    make(false, &split);
    const smp_plan *plan = split.result.plan;
    assert_int_equal(SMP_OK, smp_exporter_find("json")->write(plan, split.graph, &json));
    assert_non_null(strstr(json.data, "\"tensor\": 2, "));
    assert_non_null(strstr(json.data, "{\"op\": \"h3.mlp.proj\", \"as\": \"rows\"}"));
    assert_int_equal(SMP_OK, smp_exporter_find("dot")->write(plan, split.graph, &dot));
    assert_non_null(strstr(dot.data, "\"h3.mlp.proj\" -> \"h3.mlp.proj:whole\""));
    assert_int_equal(SMP_OK,
                     smp_export_notes(smp_exporter_find("json"), plan, split.graph, &notes));
    assert_int_equal(0, notes.length);
    smp_text_free(&json);
    smp_text_free(&dot);
    smp_text_free(&notes);
    free_made(&split);
}

/* A stage of nothing but what devices exchange is no module of PyTorch's. */
static void test_export_split_empty_stage(void **state)
{
    (void)state;
    static const char *const first[] = {"wte", "wpe"}, *const second[] = {"h0.ln_1:shared"};
    static const smp_plan_stage stages[] = {{.n_op = 2, .op = first},
                                            {.rank = 1, .n_op = 1, .op = second}};
    const smp_plan plan = {.splitting = {.devices = 2}, .n_stage = 2, .stage = stages};
    made split;
    smp_text text = {0};
    make(false, &split);
    assert_int_equal(SMP_ERR_INPUT,
                     smp_exporter_find("torch-stages")->write(&plan, split.graph, &text));
    assert_non_null(strstr(smp_last_error(), "torch-stages: stage 1 has no module"));
    smp_text_free(&text);
    free_made(&split);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_export_split_names_modules),
        cmocka_unit_test(test_export_split_json_and_dot),
        cmocka_unit_test(test_export_split_empty_stage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

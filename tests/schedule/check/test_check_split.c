/* The check of plans whose ops are split over groups of devices: what splitting puts between the
 * ops lies where they do; the plan that is made is one of the split model, for every device of a
 * group, and is written as it is read. */
#include "tests/split_check.h"

#include "schedule/verify/verify.h"

static const smp_finding *find(const smp_check *check, const char *kind)
{
    for (int32_t i = 0; i < check->findings.n; i++)
        if (strcmp(check->findings.item[i].kind, kind) == 0)
            return &check->findings.item[i];
    return NULL;
}

/* A sketch that names the model's ops, each of them, cut before op `cut`. */
static void name_ops(int32_t cut, smp_text *text)
{
    smp_graph *whole = open_model();
    smp_text_append(text, "smp: 1\nparallel: {tensor: 2}\n" MEGATRON "stages:\n  - {ops: [");
    for (int32_t op = 0; op < whole->n_op; op++)
        smp_text_append(text, "%s%s",
                        op == 0     ? ""
                        : op == cut ? "]}\n  - {ops: ["
                                    : ", ",
                        whole->op[op].name);
    smp_text_append(text, "]}\n");
    smp_graph_destroy(whole);
}

/* Wherever the model is cut, every op that splitting brings lies with the op that it is named
 * after. */
static void test_check_split_places_collectives(void **state)
{
    (void)state;
    int brought = 0;
    for (int32_t cut = 1; cut < 45; cut += 4) {
        smp_text text = {0};
        setting s;
        name_ops(cut, &text);
        open_setting(text.data, 4, &s);
        smp_findings findings = {.arena = smp_arena_create()};
        int32_t *stage = calloc((size_t)s.graph->n_op, sizeof *stage);
        assert_int_equal(SMP_OK, smp__check_stages(s.graph, s.sketch, 2, stage, &findings));
        if (findings.n_level[SMP_FINDING_ILLEGAL] > 0)
            fail_msg("cut %d: %s", (int)cut, findings.item[0].message);
        for (int32_t op = 0; op < s.graph->n_op; op++) {
            const char *name = s.graph->op[op].name, *colon = strrchr(name, ':');
            const int32_t own = smp_graph_find_op(s.graph->whole, name);
            if (own >= 0) {
                assert_int_equal(stage[op], own >= cut);
                continue;
            }
            char of[64];
            snprintf(of, sizeof of, "%.*s", (int)(colon - name), name);
            assert_int_equal(stage[smp_graph_find_op(s.graph, of)], stage[op]);
            brought++;
        }
        free(stage);
        free(findings.item);
        smp_arena_destroy(findings.arena);
        close_setting(&s);
        smp_text_free(&text);
    }
    assert_int_equal(24 * 11, brought); /* two sums and two biases forward, two sums backward */
}

/* What splitting makes of an input lies with the first that reads it. */
static void test_check_split_places_parts_of_inputs(void **state)
{
    (void)state;
    static const char model[] =
        "smp: 1\nname: two\n"
        "inputs: {i: {dtype: float32, shape: [4, 6]}, late: {dtype: float32, shape: [4, 6]}}\n"
        "ops:\n"
        "  - {op: linear, name: a, in: i, out: x, features: 6}\n"
        "  - {op: linear, name: b, in: x, out: x, features: 6}\n"
        "  - {op: sub, name: c, in: [x, late], out: y}\n"
        "  - {op: mul, name: d, in: [y, late], out: y}\n"
        "  - {op: mse, name: loss, in: [y, late], out: loss}\n"
        "loss: loss\n";
    static const char text[] = "smp: 1\nparallel: {tensor: 2}\nsplit:\n  - {op: a, as: rows}\n"
                               "  - {op: c, as: \"elements@1\"}\n  - {op: d, as: \"elements@1\"}\n"
                               "stages: [{ops: a}, {ops: [b, c]}, {ops: [d, loss]}]\n";
    smp_graph *graph;
    smp_sketch *sketch;
    smp_splitting splitting;
    int32_t stage[32];
    smp_findings findings = {.arena = smp_arena_create()};
    assert_int_equal(SMP_OK, smp_graph_parse("m.yaml", model, strlen(model), &graph));
    assert_int_equal(SMP_OK, smp_sketch_parse("s.yaml", text, strlen(text), &sketch));
    if (smp_splitting_resolve(&sketch->splitting, graph, sketch->arena, &splitting) != SMP_OK ||
        smp_splitting_apply(&splitting, 0, &graph) != SMP_OK ||
        smp__check_stages(graph, sketch, 3, stage, &findings) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_int_equal(0, findings.n_level[SMP_FINDING_ILLEGAL]);
    int of_input[2] = {0, 0};
    for (int32_t op = 0; op < graph->n_op; op++) {
        const int32_t in = graph->op[op].in[0];
        if (in < graph->n_input && smp_graph_find_op(graph->whole, graph->op[op].name) < 0) {
            assert_int_equal(in, stage[op]); /* `late` is read by stages 1 and 2 */
            of_input[in]++;
        }
    }
    assert_int_equal(1, of_input[0]);
    assert_int_equal(1, of_input[1]);
    free(findings.item);
    smp_arena_destroy(findings.arena);
    smp_sketch_destroy(sketch);
    smp_graph_destroy(graph);
}

static void assert_opens(const smp_plan *plan)
{
    for (int index = 0; index < TENSOR; index++) {
        smp_graph *graph;
        if (smp_plan_open_model(plan, NULL, index, &graph) != SMP_OK ||
            smp_verify(plan, graph) != SMP_OK)
            fail_msg("device %d: %s", index, smp_last_error());
        assert_int_equal(index, graph->device);
        smp_graph_destroy(graph);
    }
}

/* The plan of a sketch by hand is whole, and reads back to the same bytes. */
static void test_check_split_makes_a_plan(void **state)
{
    (void)state;
    static const char text[] = "smp: 1\nparallel: {tensor: 2, ddp: 2, pipeline: 2}\n" MEGATRON
                               "stages:\n  - {ops: [wte, wpe, \"h0.*\", \"h1.*\"]}\n"
                               "  - {ops: [\"h2.*\", \"h3.*\", ln_f..loss]}\n";
    setting s;
    smp_check check;
    smp_text yaml = {0}, again = {0};
    smp_plan *plan;
    open_setting(text, 8, &s);
    if (smp_check_sketch(&s.request, false, s.sketch, &check) != SMP_OK || !check.legal ||
        !check.fits)
        fail_msg("%s", smp_last_error());
    assert_int_equal(4, check.plan->devices);
    assert_int_equal(8, smp_plan_processes(check.plan));
    assert_int_equal(24, check.plan->splitting.n_entry);
    assert_string_equal("columns/3", check.plan->splitting.entry[0].as);
    assert_true(check.plan->cluster != (const smp_cluster *)s.groups);
    assert_true(check.plan->cluster->of != (const smp_cluster *)s.cluster);
    assert_int_equal(8, smp_cluster_devices(check.plan->cluster->of));
    close_setting(&s); /* the plan has copies of all */
    assert_int_equal(SMP_OK, smp_plan_format(check.plan, &yaml));
    assert_non_null(strstr(yaml.data, "{devices: 8, pipeline: 2, ddp: 2, tensor: 2, "));
    assert_non_null(strstr(yaml.data, "nodes: 1, devices_per_node: 8, "));
    if (smp_plan_parse("again.yaml", yaml.data, yaml.length, &plan) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_int_equal(SMP_OK, smp_plan_format(plan, &again));
    assert_string_equal(yaml.data, again.data);
    assert_opens(plan);
    smp_plan_destroy(plan);
    smp_text_free(&yaml);
    smp_text_free(&again);
    smp_check_free(&check);
}

/* A plan's splitting is part of it: with another one it is a plan of another model. */
static void test_check_split_other_splitting(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *message;
    } cases[] = {
        {"{op: h0.mlp.gelu, as: \"elements@1\"}", "{op: h0.mlp.gelu, as: \"elements@0\"}",
         "the plan was made for model 'gpt-tiny' with fingerprint"},
        {"{op: h0.mlp.fc, as: columns}", "{op: h0.mlp.fx, as: columns}",
         "again.yaml:8:5: split: op 'h0.mlp.fx': the model has no such op"},
        {"{op: h0.mlp.fc, as: columns}", "{op: h0.mlp.fc, as: column}",
         "again.yaml:8:5: split: op 'h0.mlp.fc' (linear): split 'column', expected whole, columns"},
        {"{op: h1.attn, as", "{op: h0.attn, as",
         "again.yaml:12:5: split: op 'h0.attn': named twice"},
        {"{op: h0.mlp.fc, as: columns}", "{op: \"h*.mlp.fc\", as: columns}",
         "again.yaml:8:5: split: op 'h*.mlp.fc': the model has no such op"},
    };
    static const char text[] =
        "smp: 1\nparallel: {tensor: 2}\n" MEGATRON "stages: [{ops: \"*\"}]\n";
    setting s;
    smp_check check;
    smp_text yaml = {0};
    open_setting(text, 2, &s);
    assert_int_equal(SMP_OK, smp_check_sketch(&s.request, false, s.sketch, &check));
    assert_int_equal(SMP_OK, smp_plan_format(check.plan, &yaml));
    assert_opens(check.plan);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        smp_text edited = {0};
        smp_plan *plan;
        smp_graph *graph;
        const char *at = strstr(yaml.data, cases[i].from);
        assert_non_null(at);
        smp_text_append(&edited, "%.*s%s%s", (int)(at - yaml.data), yaml.data, cases[i].to,
                        at + strlen(cases[i].from));
        assert_int_equal(SMP_OK, smp_plan_parse("again.yaml", edited.data, edited.length, &plan));
        smp_status status = smp_plan_open_model(plan, NULL, 0, &graph);
        if (status == SMP_OK) {
            status = smp_verify(plan, graph);
            smp_graph_destroy(graph);
        }
        assert_int_equal(SMP_ERR_INPUT, status);
        if (!strstr(smp_last_error(), cases[i].message))
            fail_msg("case %zu: '%s'", i, smp_last_error());
        smp_plan_destroy(plan);
        smp_text_free(&edited);
    }
    smp_text_free(&yaml);
    smp_check_free(&check);
    close_setting(&s);
}

static void test_check_split_findings(void **state)
{
    (void)state;
    static const char many[] =
        "smp: 1\nparallel: {tensor: 2, ddp: 3}\n" MEGATRON "stages: [{ops: \"*\"}]\n";
    static const char none[] = "smp: 1\nparallel: {tensor: 2}\nstages: [{ops: \"*\"}]\n";
    setting s;
    smp_check check;
    open_setting(many, 4, &s);
    assert_int_equal(SMP_OK, smp_check_sketch(&s.request, false, s.sketch, &check));
    assert_non_null(find(&check, "devices"));
    assert_non_null(
        strstr(find(&check, "devices")->message, "1 ranks * 3 replicas * tensor 2 need 6 devices"));
    assert_non_null(strstr(find(&check, "devices")->message, "has 4"));
    assert_null(find(&check, "split"));
    smp_check_free(&check);
    close_setting(&s);
    open_setting(none, 4, &s);
    assert_int_equal(SMP_OK, smp_check_sketch(&s.request, false, s.sketch, &check));
    assert_true(check.legal);
    assert_int_equal(SMP_FINDING_NOTE, find(&check, "split")->level);
    smp_check_free(&check);
    close_setting(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_split_places_collectives),
        cmocka_unit_test(test_check_split_places_parts_of_inputs),
        cmocka_unit_test(test_check_split_makes_a_plan),
        cmocka_unit_test(test_check_split_other_splitting),
        cmocka_unit_test(test_check_split_findings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

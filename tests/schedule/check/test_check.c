/* The check of plans: what is found against a naive look at random stages; scores against those of
 * the plan when it was made; sketches: what is filled in, patterns, pins and cuts made of them. */
#include "tests/case_count.h"
#include "tests/schedule/fixture.h"

#include "graph/base/clock.h"
#include "schedule/check/check.h"
#include "schedule/plan/op_pattern.h"

/* A chain of opaque ops with skips, now and then pinned or grouped. */
static smp_graph *random_graph(fixture_random *random, int n_op, int n_stage)
{
    smp_text text = {0};
    smp_graph *graph = NULL;
    smp_text_append(&text, "smp: 1\nname: random\nops:\n");
    for (int i = 0; i < n_op; i++) {
        smp_text_append(&text, "  - {op: opaque, name: n%d, out: t%d", i, i);
        if (i > 0 && !fixture_chance(random, 20))
            smp_text_append(&text, ", in: [t%d, t%d]", (int)fixture_below(random, i), i - 1);
        if (fixture_chance(random, 10))
            smp_text_append(&text, ", stage: %d", (int)fixture_below(random, n_stage));
        if (fixture_chance(random, 15))
            smp_text_append(&text, ", group: g%d", (int)fixture_below(random, 2));
        smp_text_append(&text,
                        ", cost: {forward_us: %d, weight_bytes: 64, stash_bytes: 64, "
                        "output_bytes: 64}}\n",
                        1 + (int)fixture_below(random, 9));
    }
    if (smp_graph_parse("random.yaml", text.data, text.length, &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    smp_text_free(&text);
    return graph;
}

static smp_sketch *parse(const char *text)
{
    smp_sketch *sketch = NULL;
    if (smp_sketch_parse("plan.yaml", text, strlen(text), &sketch) != SMP_OK)
        fail_msg("%s\n%s", smp_last_error(), text);
    return sketch;
}

/* Stages as text; op i lies in stage[i], in none if that is -1. */
static smp_sketch *sketch_of(const smp_graph *graph, const int32_t *stage, int n_stage)
{
    smp_text text = {0};
    smp_text_append(&text, "smp: 1\nstages:\n");
    for (int s = 0; s < n_stage; s++) {
        bool first = true;
        smp_text_append(&text, "  - {ops: [");
        for (int32_t i = 0; i < graph->n_op; i++) {
            if (stage[i] != s)
                continue;
            smp_text_append(&text, "%s%s", first ? "" : ", ", graph->op[i].name);
            first = false;
        }
        smp_text_append(&text, "]}\n");
    }
    smp_sketch *sketch = parse(text.data);
    smp_text_free(&text);
    return sketch;
}

static int count_kind(const smp_findings *findings, const char *kind, smp_finding_level level)
{
    int n = 0;
    for (int32_t i = 0; i < findings->n; i++)
        n += findings->item[i].level == level && strcmp(findings->item[i].kind, kind) == 0;
    return n;
}

/* Counts of what a naive look sees. */
typedef struct naive {
    int missing_runs, empty, order, pin, group;
    bool cyclic;
} naive;

static naive look(const smp_graph *graph, const int32_t *stage, int n_stage)
{
    naive n = {0};
    bool reach[16][16] = {{false}};
    for (int32_t i = 0; i < graph->n_op; i++) {
        n.missing_runs += stage[i] < 0 && (i == 0 || stage[i - 1] >= 0);
        n.pin += stage[i] >= 0 && graph->op[i].pin >= 0 && graph->op[i].pin != stage[i];
        for (int32_t k = 0; k < graph->op[i].n_in; k++) {
            int32_t from = graph->tensor[graph->op[i].in[k]].producer;
            if (from < 0 || stage[from] < 0 || stage[i] < 0 || stage[from] == stage[i])
                continue;
            n.order += stage[from] > stage[i];
            reach[stage[from]][stage[i]] = true;
        }
    }
    bool before = true;
    for (int s = 0; s < n_stage; s++) {
        bool held = false;
        for (int32_t i = 0; i < graph->n_op; i++)
            held |= stage[i] == s;
        n.empty += !held && before; /* runs of them */
        before = held;
    }
    for (int32_t g = 0; g < graph->n_group; g++) {
        int32_t seen = -1;
        bool torn = false;
        for (int32_t i = 0; i < graph->n_op; i++) {
            if (graph->op[i].group != g || stage[i] < 0)
                continue;
            torn |= seen >= 0 && stage[i] != seen;
            seen = stage[i];
        }
        n.group += torn;
    }
    for (int k = 0; k < n_stage; k++)
        for (int a = 0; a < n_stage; a++)
            for (int b = 0; b < n_stage; b++)
                reach[a][b] |= reach[a][k] && reach[k][b];
    for (int s = 0; s < n_stage; s++)
        n.cyclic |= reach[s][s];
    return n;
}

static void test_check_finds_everything(void **state)
{
    (void)state;
    const int cases = few_or_many(1000, 3000);
    int legal = 0, cyclic = 0, misnumbered = 0;
    for (uint64_t seed = 0; seed < (uint64_t)cases; seed++) {
        fixture_random random = {seed};
        int n_stage = 1 + (int)fixture_below(&random, 4);
        int n_op = 2 + (int)fixture_below(&random, 8);
        smp_graph *graph = random_graph(&random, n_op, n_stage);
        smp_findings findings = {.arena = smp_arena_create()};
        int32_t stage[16], got[16];
        bool near = fixture_chance(&random, 70);
        for (int i = 0; i < n_op; i++) {
            stage[i] = near ? i * n_stage / n_op : (int32_t)fixture_below(&random, n_stage);
            if (fixture_chance(&random, 5))
                stage[i] = (int32_t)fixture_below(&random, n_stage);
            if (fixture_chance(&random, 3))
                stage[i] = -1;
        }
        smp_sketch *sketch = sketch_of(graph, stage, n_stage);
        assert_int_equal(SMP_OK, smp__check_stages(graph, sketch, n_stage, got, &findings));
        naive n = look(graph, stage, n_stage);
        assert_memory_equal(stage, got, (size_t)n_op * sizeof *stage);
        smp_finding_level illegal = SMP_FINDING_ILLEGAL;
        assert_int_equal(n.missing_runs, count_kind(&findings, "missing-op", illegal));
        assert_int_equal(n.empty, count_kind(&findings, "empty-stage", illegal));
        assert_int_equal(n.order, count_kind(&findings, "order", illegal));
        assert_int_equal(n.pin, count_kind(&findings, "pin", illegal));
        assert_int_equal(n.group, count_kind(&findings, "group", illegal));
        assert_int_equal(n.cyclic, count_kind(&findings, "cycle", illegal) > 0);
        assert_int_equal(n.order > 0 && !n.cyclic,
                         count_kind(&findings, "order", SMP_FINDING_NOTE));
        legal += findings.n_level[illegal] == 0;
        cyclic += n.cyclic;
        misnumbered += n.order > 0 && !n.cyclic;
        free(findings.item);
        smp_arena_destroy(findings.arena);
        smp_sketch_destroy(sketch);
        smp_graph_destroy(graph);
    }
    if (legal < cases / 15 || cyclic < cases / 15 || misnumbered < cases / 30)
        fail_msg("%d legal, %d cyclic, %d misnumbered", legal, cyclic, misnumbered);
}

/* Without time for more than the first plans to compare with that fit. */
static void open_example(const char *name, int devices, smp_search_request *request)
{
    char path[512];
    smp_graph *graph;
    smp_cluster *cluster;
    snprintf(path, sizeof path, "%s/examples/%s", SMP_SOURCE_DIR, name);
    if (smp_graph_read(path, &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_int_equal(SMP_OK, smp_cluster_local(devices, &cluster));
    *request = (smp_search_request){.graph = graph,
                                    .cluster = cluster,
                                    .options.devices = devices,
                                    .options.microbatch_size = 1,
                                    .options.memory_bytes = (int64_t)1 << 32,
                                    .options.seed = 1,
                                    .options.recompute = SMP_RECOMPUTE_AUTO,
                                    .placement = SMP_PLACEMENT_AUTO,
                                    .deadline_s = smp_work_s()};
}

static void close_example(smp_search_request *request)
{
    smp_cluster_destroy((smp_cluster *)request->cluster);
    smp_graph_destroy((smp_graph *)request->graph);
}

static void assert_legal(const smp_check *check)
{
    for (int32_t i = 0; i < check->findings.n; i++)
        if (check->findings.item[i].level != SMP_FINDING_NOTE)
            fail_msg("%s", check->findings.item[i].message);
    assert_true(check->legal && check->fits);
}

/* A plan as made, written and checked: the same numbers to the last bit, and of a small model, for
 * which there is time, the best of all is not slower. n_fast: of the devices, so many are twice as
 * fast; negative: the last ones, and the very last of them lies in a node of its own. */
static void check_made(const char *model, int devices, int n_fast, smp_search_request change,
                       bool keep)
{
    bool small = strcmp(model, "mlp.yaml") == 0;
    int per_node = n_fast < 0 ? devices - 1 : devices, slow = n_fast < 0 ? devices + n_fast : 0;
    smp_search_request request, as_made = change;
    smp_planner_result result;
    smp_text text = {0};
    smp_check check;
    open_example(model, n_fast < 0 ? 2 * per_node : devices, &request);
    smp_cluster *cluster = (smp_cluster *)request.cluster;
    cluster->nodes = n_fast < 0 ? 2 : 1;
    cluster->devices_per_node = per_node;
    cluster->inter_node.latency_us = 200;
    request.options.devices = devices;
    request.deadline_s = small ? 0.0 : request.deadline_s;
    for (int d = 0; d < abs(n_fast); d++)
        ((smp_device_spec *)cluster->device)[slow + d].flops_fp32 *= 2;
    as_made.graph = request.graph;
    as_made.cluster = request.cluster;
    as_made.options.devices = request.options.devices;
    as_made.options.microbatch_size = request.options.microbatch_size;
    as_made.options.memory_bytes = request.options.memory_bytes;
    as_made.options.seed = request.options.seed;
    if (smp_plan_make(&as_made, "model.yaml", &result) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_int_equal(SMP_OK, smp_plan_format(result.plan, &text));
    if (!keep) { /* the programs are made again */
        char *programs = strstr(text.data, "programs:");
        char *rest = strstr(strstr(programs, "predicted:"), "\n");
        memmove(programs, rest + 1, strlen(rest));
    }
    smp_sketch *sketch = parse(text.data);
    if (smp_check_sketch(&request, false, sketch, &check) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_legal(&check);
    const smp_predicted *made = &result.plan->predicted, *now = &check.plan->predicted;
    assert_true(made->step_us == now->step_us && made->bubble == now->bubble);
    assert_true(made->bottleneck_us == now->bottleneck_us);
    assert_memory_equal(made->peak_bytes, now->peak_bytes,
                        (size_t)result.plan->pipeline * sizeof(int64_t));
    for (int s = 0; s < result.plan->n_stage; s++)
        assert_memory_equal(result.plan->stage[s].recompute, check.plan->stage[s].recompute,
                            (size_t)result.plan->stage[s].n_op);
    assert_true(now->lower_bound_us <= now->bottleneck_us);
    /* Whatever the search finds in its time, the plan at hand is a candidate. */
    assert_true(check.any.plan && check.same.plan);
    assert_true(!check.fits || (check.any.ratio >= 1.0 && check.same.ratio >= 1.0));
    smp_check_free(&check);
    smp_sketch_destroy(sketch);
    smp_text_free(&text);
    smp_planner_result_destroy(&result);
    close_example(&request);
}

static void test_check_scores_as_planned(void **state)
{
    (void)state;
    smp_search_request a = {.options.stages = 2, .options.chunks = 1, .options.microbatches = 8},
                       b = a, c = a;
    a.options.recompute = b.options.recompute = SMP_RECOMPUTE_AUTO;
    a.placement = b.placement = c.placement = SMP_PLACEMENT_AUTO;
    b.options.chunks = 2;
    b.options.microbatches = 4;
    b.options.schedule = "interleaved";
    c.options.stages = 3;
    c.options.microbatches = 5;
    c.options.schedule = "simple";
    c.options.recompute = SMP_RECOMPUTE_ALL;
    check_made("gpt-tiny.yaml", 2, 0, a, true);
    check_made("mlp.yaml", 2, 0, a, true);
    check_made("gpt-tiny.yaml", 4, 0, b, true);
    check_made("gpt-tiny.yaml", 4, 0, b, false);
    check_made("mlp.yaml", 4, 0, b, true);
    check_made("gpt-tiny.yaml", 3, 0, c, true);
    check_made("branches.yaml", 3, 0, c, false);
    a.options.ddp = 2; /* the second replica, the slower one, sets the pace */
    a.placement = SMP_PLACEMENT_CLUSTER;
    check_made("gpt-tiny.yaml", 4, 2, a, true);
    check_made("mlp.yaml", 4, 2, a, true);
    b.options.ddp = 2; /* one replica computes longer, the other one's tensors take longer */
    b.placement = SMP_PLACEMENT_CLUSTER;
    check_made("gpt-tiny.yaml", 4, -2, b, true);
    check_made("mlp.yaml", 4, -2, b, true);
    b.options.recompute = SMP_RECOMPUTE_ALL;
    check_made("gpt-tiny.yaml", 4, -2, b, true);
}

/* A list is obeyed, cut down to what is made again; what is written is obeyed once more. An op of
 * another stage is an error. */
static void test_check_recompute_list(void **state)
{
    (void)state;
    static const char *const text[] = {
        "smp: 1\nstages: [{ops: [wte..h1.res_2], recompute: [\"*.gelu\", \"*.ln_?\", "
        "\"h?.res_1\"]}, "
        "{ops: [h2.ln_1..loss], recompute: false}]\n",
        "smp: 1\nstages: [{ops: [wte..h1.res_2], recompute: false}, "
        "{ops: [h2.ln_1..loss], recompute: false}]\n",
        "smp: 1\nstages: [{ops: [wte..h1.res_2], recompute: [h3.mlp.gelu]}, "
        "{ops: [h2.ln_1..loss]}]\n"};
    smp_search_request request;
    smp_check check[2];
    open_example("gpt-tiny.yaml", 2, &request);
    for (int i = 0; i < 2; i++) {
        smp_sketch *sketch = parse(text[i]);
        assert_int_equal(SMP_OK, smp_check_sketch(&request, false, sketch, &check[i]));
        assert_legal(&check[i]);
        smp_sketch_destroy(sketch);
    }
    const smp_plan_stage *stage = &check[0].plan->stage[0];
    assert_int_equal(0, smp_plan_stage_recomputes(&check[0].plan->stage[1]));
    int n_recompute = 0;
    for (int32_t i = 0; i < stage->n_op; i++) {
        const char *op = stage->op[i];
        bool listed = strstr(op, "gelu") || strstr(op, ".ln_") || strstr(op, "res_1");
        assert_true(!stage->recompute[i] || listed);
        assert_true(stage->recompute[i] || !strstr(op, "gelu"));
        n_recompute += stage->recompute[i];
    }
    assert_true(n_recompute >= 4 && stage->recompute_us > 0.0);
    assert_true(stage->recompute_us < stage->forward_us);
    assert_true(check[0].plan->predicted.step_us > check[1].plan->predicted.step_us);
    assert_true(check[0].plan->predicted.peak_bytes[0] < check[1].plan->predicted.peak_bytes[0]);
    assert_int_equal(check[0].plan->predicted.peak_bytes[1],
                     check[1].plan->predicted.peak_bytes[1]);
    smp_text written = {0};
    assert_int_equal(SMP_OK, smp_plan_format(check[0].plan, &written));
    smp_sketch *sketch = parse(written.data);
    smp_check again;
    assert_int_equal(SMP_OK, smp_check_sketch(&request, false, sketch, &again));
    assert_legal(&again);
    assert_true(again.plan->predicted.step_us == check[0].plan->predicted.step_us);
    assert_memory_equal(again.plan->stage[0].recompute, stage->recompute, (size_t)stage->n_op);
    smp_check_free(&again);
    smp_sketch_destroy(sketch);
    sketch = parse(text[2]);
    assert_int_equal(SMP_ERR_INPUT, smp_check_sketch(&request, false, sketch, &again));
    assert_non_null(
        strstr(smp_last_error(), "2:45: stage: recompute: stage 0 has no op 'h3.mlp.gelu'"));
    smp_sketch_destroy(sketch);
    smp_text_free(&written);
    for (int i = 0; i < 2; i++)
        smp_check_free(&check[i]);
    close_example(&request);
}

/* Stages that say nothing recompute as much as it takes to fit, and one that says no does not. */
static void test_check_chooses_what_recomputes(void **state)
{
    (void)state;
    static const char *const text[] = {
        "smp: 1\nstages: [{ops: [wte..h1.res_2]}, {ops: [h2.ln_1..loss]}]\n",
        "smp: 1\nstages: [{ops: [wte..h1.res_2], recompute: false}, {ops: [h2.ln_1..loss]}]\n"};
    smp_search_request request;
    open_example("gpt-tiny.yaml", 2, &request);
    request.options.microbatch_size = 16;
    request.options.microbatches = 8;
    request.options.schedule = "interleaved";
    request.options.memory_bytes = (int64_t)36 << 20;
    for (int i = 0; i < 2; i++) {
        smp_check check;
        smp_sketch *sketch = parse(text[i]);
        if (smp_check_sketch(&request, false, sketch, &check) != SMP_OK)
            fail_msg("%s", smp_last_error());
        int32_t n_recompute = smp_plan_stage_recomputes(&check.plan->stage[0]);
        assert_int_equal(check.fits, i == 0);
        assert_true(i == 0 ? n_recompute > 0 && n_recompute < check.plan->stage[0].n_op
                           : n_recompute == 0);
        smp_check_free(&check);
        smp_sketch_destroy(sketch);
    }
    close_example(&request);
}

/* Ranks may be dealt out in any order where no schedule is asked for; loads follow. */
static void test_check_ranks_in_any_order(void **state)
{
    (void)state;
    static const char *const text[2] = {
        "smp: 1\nstages: [{ops: [wte..h0.res_2]}, {ops: [\"h1.*\"]}, {ops: [h2.ln_1..loss]}]\n",
        "smp: 1\nstages: [{rank: 2, ops: [wte..h0.res_2]}, {rank: 0, ops: [\"h1.*\"]}, "
        "{rank: 1, ops: [h2.ln_1..loss]}]\n"};
    smp_search_request request;
    smp_check check[2];
    open_example("gpt-tiny.yaml", 3, &request);
    for (int i = 0; i < 2; i++) {
        smp_sketch *sketch = parse(text[i]);
        assert_int_equal(SMP_OK, smp_check_sketch(&request, false, sketch, &check[i]));
        assert_legal(&check[i]);
        smp_sketch_destroy(sketch);
    }
    const smp_plan *plan = check[1].plan, *plain = check[0].plan;
    assert_int_equal(12, plan->microbatches);
    assert_string_equal("interleaved", plain->schedule);
    assert_string_equal("searched", plan->schedule); /* no rule places stages so */
    assert_int_equal(2, plan->stage[0].rank);
    assert_true(plan->predicted.bottleneck_us == plain->predicted.bottleneck_us);
    assert_int_equal(plan->program[2].n, plain->program[0].n);
    smp_check_free(&check[0]);
    smp_check_free(&check[1]);
    close_example(&request);
}

static void test_check_pattern(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *name;
        bool matches;
    } cases[] = {{"a", "a", true},        {"a", "b", false},         {"*", "", true},
                 {"*", "abc", true},      {"a*c", "abcbc", true},    {"a*c", "abcb", false},
                 {"?b*", "abc", true},    {"?b*", "bc", false},      {"a**", "a", true},
                 {"h*.x", "h12.x", true}, {"h*.x", "h12.xy", false}, {"", "a", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(cases[i].matches, smp_text_like(cases[i].pattern, cases[i].name));
}

/* Ops that a text names, as "1 3 4". */
static void expect_ops(const smp_graph *graph, const char *text, const char *expected)
{
    smp_text got = {0};
    smp_op_match match = smp_op_match_begin(graph, text);
    for (int32_t op; (op = smp_op_match_next(graph, &match)) >= 0;)
        smp_text_append(&got, "%s%d", got.length ? " " : "", op);
    assert_string_equal(expected, got.data ? got.data : "");
    smp_text_free(&got);
}

static void test_check_ops_by_pattern(void **state)
{
    (void)state;
    static const char model[] =
        "smp: 1\nname: m\nops:\n"
        "  - {op: opaque, name: a.b, out: t0, cost: {forward_us: 1}}\n"
        "  - {op: opaque, name: a_, in: t0, out: t1, cost: {forward_us: 1}}\n"
        "  - {op: opaque, name: a..c, in: t1, out: t2, stage: 1, cost: {forward_us: 1}}\n"
        "  - {op: opaque, name: c, in: t2, out: t3, cost: {forward_us: 1}}\n";
    smp_graph *graph;
    int32_t *together, *pin;
    smp_where *where;
    assert_int_equal(SMP_OK, smp_graph_parse("m.yaml", model, strlen(model), &graph));
    expect_ops(graph, "a_", "1");
    expect_ops(graph, "a?*", "0 1 2");
    expect_ops(graph, "a.b..c", "0 1 2 3");
    expect_ops(graph, "a..c", "2");
    expect_ops(graph, "a..c..c", "2 3");
    expect_ops(graph, "c..a.b", "");
    expect_ops(graph, "b", "");
    assert_int_equal(SMP_OK,
                     smp_op_cuts(graph, "--cut-at", (const char *[]){"a_", "c"}, 2, &together));
    assert_memory_equal(together, ((int32_t[]){0, 1, 1, 2}), 4 * sizeof *together);
    free(together);
    assert_int_equal(SMP_ERR_INPUT,
                     smp_op_cuts(graph, "--cut-at", (const char *[]){"c", "d*"}, 2, &together));

    smp_sketch *sketch = parse("smp: 1\nstages: [{ops: a.b}, {stage: 3, ops: [c]}]\n");
    assert_int_equal(4, sketch->n_stage);
    assert_int_equal(SMP_OK, smp_sketch_pins(sketch, graph, NULL, &pin, &where));
    assert_memory_equal(pin, ((int32_t[]){0, -1, 1, 3}), 4 * sizeof *pin);
    assert_true(where[0].line == 2 && where[0].column == 16);
    assert_null(where[2].file); /* the model's */
    free(pin);
    free(where);
    assert_int_equal(SMP_OK, smp_sketch_pins(sketch, graph, "3", &pin, &where));
    assert_memory_equal(pin, ((int32_t[]){-1, -1, 1, 3}), 4 * sizeof *pin);
    assert_null(where[0].file);
    assert_true(where[3].line == 2 && where[3].column > where[0].column);
    free(pin);
    free(where);
    static const char *const lists[] = {
        "1", "0-1", "3-0", "x", "0,", "", "-1", "0--3", "99999999999999999999"};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        assert_int_equal(SMP_ERR_INPUT, smp_sketch_pins(sketch, graph, lists[i], &pin, &where));
    smp_sketch_destroy(sketch);
    smp_graph_destroy(graph);
}

static void test_check_sketch_shape(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int stages, chunks; /* options */
        int pipeline, per_rank;
    } cases[] = {
        {"stages: [{ops: a}, {ops: b}, {ops: c}]", 0, 0, 3, 1},
        {"stages: [{ops: a}, {ops: b}, {ops: c}, {ops: d}]", 2, 0, 2, 2},
        {"stages: [{ops: a}, {ops: b}, {ops: c}, {ops: d}]", 0, 2, 2, 2},
        {"stages: [{ops: a}, {ops: b}, {ops: c}]", 2, 0, 2, 0},
        {"stages: [{rank: 0, ops: a}, {rank: 1, ops: b}, {rank: 1, ops: c}, {rank: 0, ops: d}]", 0,
         0, 2, 2},
        {"parallel: {pipeline: 2}\nstages: [{ops: a}, {ops: b}, {ops: c}, {ops: d}]", 0, 0, 2, 2},
        {"parallel: {chunks: 2}\nstages: [{ops: a}, {ops: b}]", 0, 0, 1, 2},
        {"parallel: {pipeline: 4, chunks: 2}\nstages: [{stage: 5, ops: b}]", 0, 0, 4, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, "smp: 1\n%s\n", cases[i].text);
        smp_sketch *sketch = parse(text);
        int pipeline = cases[i].stages, chunks = cases[i].chunks;
        smp_sketch_shape(sketch, &pipeline, &chunks);
        if (pipeline != cases[i].pipeline || chunks != cases[i].per_rank)
            fail_msg("case %zu: %d ranks * %d", i, pipeline, chunks);
        smp_sketch_destroy(sketch);
    }
}

/* For another device, in another precision: legal wherever it cuts, with a note where that tears
 * two ops of one kernel apart. */
static void test_check_execution(void **state)
{
    (void)state;
    static const char *const op[] = {"ln_2", "mlp.fc", "mlp.gelu", "mlp.proj"};
    smp_search_request request;
    open_example("gpt-tiny.yaml", 2, &request);
    for (int d = 0; d < 2; d++)
        ((smp_device_spec *)request.cluster->device)[d].flops_bf16 = 1e12;
    for (int torn = 0; torn < 3; torn++) {
        smp_check check;
        char text[256];
        snprintf(text, sizeof text,
                 "smp: 1\nexecution: {device: cuda, precision: bf16}\n"
                 "stages: [{ops: wte..h1.%s}, {ops: h1.%s..loss}]\n",
                 op[torn], op[torn + 1]);
        smp_sketch *sketch = parse(text);
        assert_true(sketch->has_target);
        assert_int_equal(SMP_OK, smp_graph_set_target((smp_graph *)request.graph, sketch->target));
        if (smp_check_sketch(&request, false, sketch, &check) != SMP_OK)
            fail_msg("%s", smp_last_error());
        assert_legal(&check);
        assert_int_equal(torn > 0, count_kind(&check.findings, "pair", SMP_FINDING_NOTE));
        assert_true(check.same.plan && check.any.plan);
        assert_int_equal(SMP_BACKEND_CUDA, check.plan->target.backend);
        assert_int_equal(SMP_PRECISION_BF16, check.plan->target.precision);
        smp_check_free(&check);
        smp_sketch_destroy(sketch);
    }
    close_example(&request);
}

static void test_check_sketch_broken(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "'stages' is missing"},
        {"stages: []", "plan.yaml:2:9: stages: got an empty list"},
        {"stages: [{}]", "plan.yaml:2:10: stage: key 'ops' is missing"},
        {"stages: [a]", "plan.yaml:2:10: stage"},
        {"stages: [{ops: {}}]", "ops"},
        {"stages: [{ops: [\"\"]}]", "empty string"},
        {"stages: [{ops: a, op: b}]", "'op'"},
        {"stages: [{stage: 1, ops: a}, {stage: 1, ops: b}]", "got 1 twice, first at line 2"},
        {"stages: [{stage: -1, ops: a}]", "stage"},
        {"stages: [{rank: x, ops: a}]", "rank"},
        {"stages: [{recompute: 7, ops: a}]", "recompute"},
        {"stages: [{ops: a}]\nprograms: [Q0.0]", "Q0.0"},
        {"stages: [{ops: a}]\nprograms: F0.0", "programs"},
        {"stages: [{ops: a}]\npredicted: {peak_bytes: [x]}", "peak_bytes"},
        {"stages: [{ops: a}]\nbatch: {microbatches: 0}", "microbatches"},
        {"stages: [{ops: a}]\nparallel: {placement: wide}", "cluster, spread or a list"},
        {"stages: [{ops: a}]\nmodel: {fingerprint: x}", "hexadecimal"},
        {"stages: [{ops: a}]\nstage: 1", "'stage'"},
        {"stages: [{ops: a}]\nexecution: {device: gpu, precision: bf16}",
         "got 'gpu', expected cpu or"},
        {"stages: [{ops: a}]\nexecution: {precision: bf16}", "'device' is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        smp_sketch *sketch = NULL;
        snprintf(text, sizeof text, "smp: 1\n%s\n", cases[i].text);
        if (smp_sketch_parse("plan.yaml", text, strlen(text), &sketch) != SMP_ERR_INPUT)
            fail_msg("case %zu was accepted", i);
        if (!strstr(smp_last_error(), cases[i].message))
            fail_msg("case %zu: '%s' does not say '%s'", i, smp_last_error(), cases[i].message);
        assert_null(sketch);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_finds_everything),
        cmocka_unit_test(test_check_scores_as_planned),
        cmocka_unit_test(test_check_recompute_list),
        cmocka_unit_test(test_check_chooses_what_recomputes),
        cmocka_unit_test(test_check_ranks_in_any_order),
        cmocka_unit_test(test_check_pattern),
        cmocka_unit_test(test_check_ops_by_pattern),
        cmocka_unit_test(test_check_sketch_shape),
        cmocka_unit_test(test_check_execution),
        cmocka_unit_test(test_check_sketch_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Exports, each read back by a parser written from the documentation of its format: PyTorch's
 * schedule CSV, the DOT grammar, JSON; the registry and the files. */
#include "tests/schedule/export/export_fixture.h"

#include "graph/yaml/yaml.h"
#include "schedule/planner/planner.h"

#include <unistd.h>

/* ---- torch ---- */

/* As _Action.from_str: digits, one of F I B W, digits. */
static smp_action torch_action(const char **at, int *stage)
{
    static const char letters[] = "FBIW";
    char *end;
    *stage = (int)strtol(*at, &end, 10);
    assert_true(end > *at && **at >= '0' && **at <= '9');
    const char *letter = strchr(letters, *end);
    assert_true(*end && letter);
    *at = end + 1;
    assert_true(**at >= '0' && **at <= '9');
    smp_action action = {.kind = (smp_action_kind)(letter - letters),
                         .microbatch = (int32_t)strtol(*at, &end, 10)};
    *at = end;
    return action;
}

/* A row per rank; the rows hold the compute actions of the programs in order, and for each stage
 * and micro-batch F once, and B once or I and W. */
static void check_torch_csv(const smp_plan *plan, const char *csv)
{
    int *seen = calloc((size_t)plan->n_stage * (size_t)plan->microbatches, sizeof *seen);
    for (int rank = 0; rank < plan->pipeline; rank++) {
        const smp_program *program = &plan->program[rank];
        for (int64_t i = 0; i < program->n; i++) {
            const smp_action *a = &program->action[i];
            int stage;
            if (!smp_action_is_compute(a->kind))
                continue;
            smp_action read = torch_action(&csv, &stage);
            assert_int_equal(read.kind, a->kind);
            assert_int_equal(read.microbatch, a->microbatch);
            assert_int_equal(plan->stage[stage].rank, rank);
            assert_int_equal(stage, smp_plan_stage_of(plan, rank, a->chunk));
            seen[stage * plan->microbatches + read.microbatch] += 1 << 4 * (int)read.kind;
            csv += *csv == ',';
        }
        assert_int_equal(*csv++, '\n');
    }
    assert_int_equal(*csv, '\0');
    for (int i = 0; i < plan->n_stage * plan->microbatches; i++)
        assert_true(seen[i] == 0x0011 || seen[i] == 0x1101);
    free(seen);
}

static void test_export_torch_csv(void **state)
{
    (void)state;
    for (const smp_schedule_kind *const *kind = smp_schedules(); *kind; kind++)
        for (int p = 1; p <= 4; p++)
            for (int v = 1; v <= 3; v++)
                for (int m = 1; m <= 12; m += 5) {
                    smp_schedule_shape shape = {p, v, m, true, 0, 0, {.shard = 1}, {0}};
                    if (smp_schedule_check(*kind, &shape) != SMP_OK)
                        continue;
                    made_plan made;
                    made_plan_create(&made, (*kind)->name, p, v, m, true, made_skips);
                    smp_text csv = exported("torch-csv", &made.plan, made.graph);
                    check_torch_csv(&made.plan, csv.data);
                    smp_text_free(&csv);
                    made_plan_free(&made);
                }
}

static void test_export_torch_inference(void **state)
{
    (void)state;
    made_plan made;
    made_plan_create(&made, "simple", 2, 1, 2, false, made_chain);
    assert_refused("torch-csv", &made.plan, made.graph, "training");
    made_plan_free(&made);
}

/* The next CSV field (RFC 4180) into `field`; the character after it. */
static char csv_field(const char **at, char *field, size_t size)
{
    size_t n = 0;
    bool quoted = **at == '"';
    for (*at += quoted; **at; (*at)++) {
        if (quoted && (*at)[0] == '"' && (*at)[1] == '"')
            (*at)++;
        else if (quoted ? **at == '"' : **at == ',' || **at == '\n')
            break;
        assert_true(n + 1 < size);
        field[n++] = **at;
    }
    field[n] = '\0';
    *at += quoted;
    return *(*at)++;
}

static void test_export_torch_stages(void **state)
{
    static const char *const names[] = {"a", "b.c", "a, b", "say \"x\"", "e"};
    static const int begin[] = {0, 2, 3};
    (void)state;
    cut_plan c;
    char field[64], number[16], end;
    cut_open(&c, (const char *const[]){"o0", "o1", "o2", "o3", "o4"}, 5, begin, 3, 3);
    for (int i = 0; i < 5; i++)
        c.name[i] = names[i];
    smp_text csv = exported("torch-stages", &c.plan, c.graph);
    const char *at = csv.data;
    for (int s = 0, op = 0; s < 3; s++) {
        snprintf(number, sizeof number, "%d", s);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(csv_field(&at, field, sizeof field), ',');
            assert_string_equal(field, number);
        }
        do {
            end = csv_field(&at, field, sizeof field);
            assert_string_equal(field, names[op++]);
        } while (end == ',');
        assert_int_equal(end, '\n');
        assert_int_equal(op, s < 2 ? begin[s + 1] : 5);
    }
    assert_int_equal(*at, '\0');
    smp_text_free(&csv);
    cut_close(&c);
}

/* ---- DOT ---- */

typedef struct dot_reader {
    const char *at;
    char token[256]; /* an id without its quotes, or one of { } [ ] = ; , -> */
    bool quoted;
} dot_reader;

static void dot_next(dot_reader *d)
{
    size_t n = 0;
    while (*d->at == ' ' || *d->at == '\n')
        d->at++;
    d->quoted = *d->at == '"';
    if (d->quoted) {
        for (d->at++; *d->at != '"'; d->at++) {
            d->at += *d->at == '\\';
            assert_true(*d->at && n + 1 < sizeof d->token);
            d->token[n++] = *d->at;
        }
        d->at++;
    } else if (strncmp(d->at, "->", 2) == 0) {
        d->token[n++] = *d->at++;
        d->token[n++] = *d->at++;
    } else if (*d->at && strchr("{}[]=;,", *d->at)) {
        d->token[n++] = *d->at++;
    } else {
        while (*d->at && !strchr(" \n{}[]=;,\"", *d->at))
            d->token[n++] = *d->at++;
    }
    d->token[n] = '\0';
}

static bool dot_is(const dot_reader *d, const char *token)
{
    return !d->quoted && strcmp(d->token, token) == 0;
}

static void dot_expect(dot_reader *d, const char *token)
{
    if (!dot_is(d, token))
        fail_msg("got '%s', expected '%s'", d->token, token);
    dot_next(d);
}

/* [ id = id , ... ] or nothing. */
static void dot_attributes(dot_reader *d)
{
    if (!dot_is(d, "["))
        return;
    do {
        dot_next(d);
        dot_next(d);
        dot_expect(d, "=");
        dot_next(d);
    } while (dot_is(d, ","));
    dot_expect(d, "]");
}

typedef struct dot_count {
    int nodes, edges, inputs;
} dot_count;

/* stmt_list: attributes of a kind, id = id, nodes, edges, subgraphs. */
static void dot_statements(dot_reader *d, const smp_plan *plan, const smp_graph *graph, int stage,
                           dot_count *count)
{
    while (!dot_is(d, "}")) {
        char id[256];
        int inner;
        if (dot_is(d, "subgraph")) {
            dot_next(d);
            assert_int_equal(sscanf(d->token, "cluster_%d", &inner), 1);
            dot_next(d);
            dot_expect(d, "{");
            int before = count->nodes;
            dot_statements(d, plan, graph, inner, count);
            assert_int_equal(count->nodes - before, plan->stage[inner].n_op);
            dot_expect(d, "}");
            continue;
        }
        snprintf(id, sizeof id, "%s", d->token);
        bool quoted = d->quoted;
        dot_next(d);
        if (dot_is(d, "=")) {
            dot_next(d);
            dot_next(d);
        } else if (dot_is(d, "->")) {
            dot_next(d);
            int32_t to = smp_graph_find_op(graph, d->token);
            assert_true(to >= 0);
            bool found = false;
            for (int32_t i = 0; i < graph->op[to].n_in; i++) {
                const smp_tensor *t = &graph->tensor[graph->op[to].in[i]];
                found |= t->producer >= 0
                             ? strcmp(graph->op[t->producer].name, id) == 0
                             : strncmp(id, "input ", 6) == 0 && strcmp(t->name, id + 6) == 0;
            }
            assert_true(found);
            count->edges++;
            dot_next(d);
            dot_attributes(d);
        } else {
            count->nodes += quoted && stage >= 0;
            count->inputs += quoted && stage < 0;
            if (quoted && stage >= 0) {
                bool held = false;
                for (int32_t i = 0; i < plan->stage[stage].n_op; i++)
                    held |= strcmp(plan->stage[stage].op[i], id) == 0;
                assert_true(held);
            }
            dot_attributes(d);
        }
        dot_expect(d, ";");
    }
}

static void test_export_dot(void **state)
{
    (void)state;
    for (int p = 1; p <= 4; p++) {
        made_plan made;
        made_plan_create(&made, "interleaved", p, 3, 2, true, made_skips);
        made.plan.model_name = "a \"quoted\\ name";
        smp_text text = exported("dot", &made.plan, made.graph);
        dot_reader d = {.at = text.data};
        dot_count count = {0};
        int edges = 0;
        for (int32_t u = 0; u < made.graph->n_op; u++)
            edges += made.graph->op[u].n_in;
        dot_next(&d);
        dot_expect(&d, "digraph");
        assert_string_equal(d.token, made.plan.model_name);
        dot_next(&d);
        dot_expect(&d, "{");
        dot_statements(&d, &made.plan, made.graph, -1, &count);
        dot_expect(&d, "}");
        assert_int_equal(count.nodes, made.graph->n_op);
        assert_int_equal(count.inputs, made.graph->n_input);
        assert_int_equal(count.edges, edges);
        smp_text_free(&text);
        made_plan_free(&made);
    }
}

/* ---- JSON, the registry, files ---- */

static void test_export_json(void **state)
{
    (void)state;
    made_plan made;
    const int64_t peak[2] = {1, 2};
    made_plan_create(&made, "interleaved", 2, 2, 3, true, made_chain);
    made.plan.predicted.peak_bytes = peak;
    smp_text text = exported("json", &made.plan, made.graph);
    smp_yaml *yaml = NULL;
    const smp_yaml_node *top = NULL;
    if (smp_yaml_parse("plan.json", text.data, text.length, &yaml) || smp_yaml_top(yaml, &top))
        fail_msg("%s", smp_last_error());
    assert_int_equal(smp_yaml_list_size(smp_yaml_get(top, "stages")), 4);
    assert_int_equal(smp_yaml_list_size(smp_yaml_get(top, "programs")), 2);
    smp_yaml_destroy(yaml);
    smp_text_free(&text);
    made_plan_free(&made);
}

static void test_export_registry(void **state)
{
    (void)state;
    const smp_exporter *found = NULL;
    const char *path = NULL;
    int n = 0;
    for (const smp_exporter *const *e = smp_exporters(); *e; e++, n++) {
        size_t summary = (*e)->summary ? strlen((*e)->summary) : 0;
        if (smp_exporter_find((*e)->name) != *e)
            fail_msg("%s: another exporter has this name", (*e)->name);
        if (summary <= 10 || summary >= 90)
            fail_msg("%s: a summary of %zu characters", (*e)->name, summary);
        if (!(*e)->beside != !(*e)->beside_suffix)
            fail_msg("%s: a file beside it without a suffix, or the reverse", (*e)->name);
    }
    assert_true(n > 0);
    assert_null(smp_exporter_find("nothing"));
    assert_null(smp_exporter_find(NULL));
    assert_int_equal(smp_export_parse("--export", "dot:a:b.dot", &found, &path), SMP_OK);
    assert_string_equal(found->name, "dot");
    assert_string_equal(path, "a:b.dot");
    static const char *const bad[] = {"dto:x", "dot", "dot:", "", ":x", "torch-csv"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(smp_export_parse("--export", bad[i], &found, &path), SMP_ERR_INPUT);
        assert_non_null(strstr(smp_last_error(), "--export"));
    }
    assert_int_equal(smp_export_parse("--export", "torch_csv:x", &found, &path), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "did you mean 'torch-csv'"));
}

/* Writes the same twice, or refuses twice with a reason that begins with its name. */
static void check_exporter(const smp_exporter *exporter, const smp_plan *plan,
                           const smp_graph *graph)
{
    smp_text text[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        smp_status status = exporter->write(plan, graph, &text[i]);
        if (status == SMP_ERR_INPUT &&
            strncmp(smp_last_error(), exporter->name, strlen(exporter->name)) == 0)
            text[i].length = 0; /* what it wrote before it saw why not */
        else if (status != SMP_OK || text[i].length == 0)
            fail_msg("%s: status %d, %zu bytes, message '%s'", exporter->name, (int)status,
                     text[i].length, smp_last_error());
    }
    if (text[0].length != text[1].length ||
        (text[0].length > 0 && memcmp(text[0].data, text[1].data, text[0].length) != 0))
        fail_msg("%s: the same plan gave other bytes", exporter->name);
    smp_text_free(&text[0]);
    smp_text_free(&text[1]);
}

/* Every exporter on plans of a real model: cut anywhere, one and two stages per rank. */
static void test_export_every_format(void **state)
{
    (void)state;
    smp_graph *graph = NULL;
    smp_cluster *local = NULL;
    assert_int_equal(smp_graph_read(SMP_SOURCE_DIR "/examples/gpt-tiny.yaml", &graph), SMP_OK);
    assert_int_equal(smp_cluster_local(2, &local), SMP_OK);
    for (int chunks = 1; chunks <= 2; chunks++) {
        smp_planner_result result;
        smp_search_request request = {.graph = graph,
                                      .cluster = local,
                                      .options.devices = 2,
                                      .options.stages = 2,
                                      .options.chunks = chunks,
                                      .options.microbatches = 4,
                                      .options.microbatch_size = 2,
                                      .options.memory_bytes = (int64_t)1 << 32,
                                      .options.seed = 1};
        if (smp_plan_make(&request, "model.yaml", &result) != SMP_OK)
            fail_msg("%s", smp_last_error());
        for (const smp_exporter *const *e = smp_exporters(); *e; e++)
            check_exporter(*e, result.plan, graph);
        smp_planner_result_destroy(&result);
    }
    smp_cluster_destroy(local);
    smp_graph_destroy(graph);
}

static void test_export_files(void **state)
{
    (void)state;
    made_plan made;
    char folder[] = "test_export_XXXXXX", path[64], beside[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/plan.csv", folder);
    snprintf(beside, sizeof beside, "%s/plan.csv.stages", folder);
    made_plan_create(&made, "simple", 2, 1, 2, true, made_chain);
    const smp_exporter *exporter = smp_exporter_find("torch-csv");
    assert_int_equal(smp_export_file(exporter, &made.plan, made.graph, path), SMP_OK);
    char *data = NULL;
    size_t bytes = 0;
    assert_int_equal(smp_file_read(path, 1 << 20, &data, &bytes), SMP_OK);
    assert_string_equal(data, "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
    free(data);
    assert_int_equal(smp_file_read(beside, 1 << 20, &data, &bytes), SMP_OK);
    assert_string_equal(data, "0,0,o0\n1,1,o1\n");
    free(data);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(beside), 0);
    assert_int_equal(rmdir(folder), 0);
    assert_true(smp_export_file(exporter, &made.plan, made.graph, path) != SMP_OK);
    made_plan_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_export_torch_csv),    cmocka_unit_test(test_export_torch_inference),
        cmocka_unit_test(test_export_torch_stages), cmocka_unit_test(test_export_dot),
        cmocka_unit_test(test_export_json),         cmocka_unit_test(test_export_registry),
        cmocka_unit_test(test_export_every_format), cmocka_unit_test(test_export_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Drawings, read back: the data of the page against the program and the simulation, the figure as
 * XML, the lines for a terminal; every schedule over a grid of sizes, and plans of real models. */
#include "tests/schedule/made_plan.h"
#include "tools/show/picture.h"
#include "tools/show/picture_model.h"
#include "schedule/planner/planner.h"

#include "graph/yaml/yaml.h"

#include <math.h>

static const smp_device_spec devices[64] = {
    [0] = {.memory_bytes = 1 << 20}, [1] = {.memory_bytes = 1 << 19}};
static smp_cluster cluster = {.name = "test",
                              .nodes = 1,
                              .devices_per_node = 64,
                              .device = devices,
                              .intra_node = {.latency_us = 0.125, .bytes_per_s = 1e9},
                              .inter_node = {.latency_us = 1, .bytes_per_s = 1e9},
                              .overlap = true};

static smp_picture *open_picture(const made_plan *made)
{
    smp_picture *picture = NULL;
    if (smp_picture_open(&made->plan, made->graph, &picture) != SMP_OK)
        fail_msg("%s, p %d v %d m %d: %s", made->plan.schedule, made->plan.pipeline,
                 made->plan.chunks, made->plan.microbatches, smp_last_error());
    return picture;
}

/* ---- the model of the picture ---- */

static bool is_cell(const smp_action *a)
{
    return smp_action_is_compute(a->kind) || a->kind == SMP_ACTION_OPTIMIZE;
}

static void check_lane(const smp_plan *plan, const smp_picture *picture, int rank)
{
    const smp__lane *lane = &picture->predicted.lane[rank];
    const smp__rank_memory *memory = &picture->memory[rank];
    int64_t at = 0;
    double free_us = 0.0, busy_us = 0.0, waited_us = 0.0;
    for (int64_t i = 0; i < plan->program[rank].n; i++) {
        const smp_action *a = &plan->program[rank].action[i];
        if (!is_cell(a))
            continue;
        const smp__cell *c = &lane->cell[at++];
        assert_int_equal(c->kind, a->kind);
        assert_int_equal(c->microbatch, a->microbatch);
        assert_int_equal(c->stage, a->chunk < 0 ? -1 : smp_plan_stage_of(plan, rank, a->chunk));
        assert_true(c->start_us >= free_us - 1e-9 && c->end_us >= c->start_us);
        assert_true(c->ready_us <= c->start_us + 1e-9);
        assert_true(c->bytes >= memory->fixed_bytes && c->bytes <= memory->alive_bytes);
        free_us = c->end_us;
        busy_us += c->end_us - c->start_us;
    }
    assert_int_equal(at, lane->n);
    assert_true(memory->alive_bytes <= memory->reserved_bytes);
    for (int i = 0; i < SMP__WAIT_KINDS; i++)
        waited_us += lane->wait_us[i];
    assert_true(fabs(busy_us - lane->busy_us) < 1e-6);
    assert_true(fabs(busy_us + waited_us - picture->predicted.end_us) < 1e-6);
    assert_int_equal(memory->limit_bytes, devices[rank].memory_bytes);
}

/* ---- the page ---- */

static const smp_yaml_node *child(const smp_yaml_node *map, const char *key)
{
    const smp_yaml_node *found = smp_yaml_get(map, key);
    if (!found)
        fail_msg("no '%s'", key);
    return found;
}

static int64_t int_of(const smp_yaml_node *node)
{
    int64_t value = 0;
    if (smp_yaml_int(node, "number", -((int64_t)1 << 52), (int64_t)1 << 52, &value))
        fail_msg("%s", smp_last_error());
    return value;
}

static double double_of(const smp_yaml_node *node)
{
    double value = 0;
    if (smp_yaml_double(node, "number", -1e300, 1e300, &value))
        fail_msg("%s", smp_last_error());
    return value;
}

/* Times agree to half a tick, bytes to a unit. */
static void check_page_lane(const smp_yaml_node *node, const smp__lane *lane, double tick_us,
                            int64_t unit)
{
    enum { KIND, MICROBATCH, STAGE, IDLE, BUSY, LATE, BYTES, NUMBERS };
    const smp_yaml_node *cells = child(node, "cells");
    int64_t ticks = 0, held = 0;
    assert_int_equal(smp_yaml_list_size(cells), NUMBERS * lane->n);
    for (int64_t i = 0; i < lane->n; i++) {
        const smp__cell *c = &lane->cell[i];
        int64_t value[NUMBERS];
        for (int k = 0; k < NUMBERS; k++)
            value[k] = int_of(smp_yaml_list_at(cells, (int)(NUMBERS * i + k)));
        assert_int_equal(value[KIND], c->kind <= SMP_ACTION_W ? (int)c->kind : 4);
        assert_int_equal(value[MICROBATCH], c->microbatch);
        assert_int_equal(value[STAGE], c->stage);
        ticks += value[IDLE];
        assert_true(fabs((double)ticks * tick_us - c->start_us) <= 0.5001 * tick_us);
        assert_int_equal(value[LATE] < 0, c->ready_us < 0.0);
        if (value[LATE] >= 0)
            assert_true(fabs((double)(ticks - value[LATE]) * tick_us - c->ready_us) <=
                        1.001 * tick_us);
        ticks += value[BUSY];
        assert_true(fabs((double)ticks * tick_us - c->end_us) <= 0.5001 * tick_us);
        held += value[BYTES];
        assert_int_equal(held, c->bytes / unit);
    }
}

static void check_page(const smp_picture *picture)
{
    static const char open[] = "id=\"data\">";
    smp_text html = {0};
    smp_yaml *yaml = NULL;
    assert_int_equal(smp_picture_html(picture, &html), SMP_OK);
    const char *data = strstr(html.data, open);
    assert_non_null(data);
    data += sizeof open - 1;
    size_t length = (size_t)(strstr(data, "</script>") - data);
    if (smp_yaml_parse("page", data, length, &yaml)) /* JSON is YAML in flow style */
        fail_msg("%s", smp_last_error());
    const smp_yaml_node *root = NULL;
    assert_int_equal(smp_yaml_top(yaml, &root), SMP_OK);
    const smp_yaml_node *timelines = child(root, "timelines");
    double tick_us = double_of(child(root, "tick_us"));
    assert_true(tick_us <= smp__picture_end_us(picture) / 1e6 * (1 + 1e-9));
    assert_int_equal(smp_yaml_list_size(timelines), picture->measured.lane ? 2 : 1);
    for (int t = 0; t < smp_yaml_list_size(timelines); t++)
        for (int rank = 0; rank < picture->plan->pipeline; rank++) {
            const smp__timeline *timeline = t == 0 ? &picture->predicted : &picture->measured;
            const smp_yaml_node *lanes = child(smp_yaml_list_at(timelines, t), "lanes");
            check_page_lane(smp_yaml_list_at(lanes, rank), &timeline->lane[rank], tick_us,
                            int_of(child(root, "unit")));
        }
    assert_int_equal(smp_yaml_list_size(child(root, "stages")), picture->plan->n_stage);
    /* One file: nothing is loaded. */
    static const char *const outside[] = {
        "src=", "href=", "url(", "@import", "http:", "https:", "fetch(", "XMLHttp", "{{"};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++)
        assert_null(strstr(html.data, outside[i]));
    smp_yaml_destroy(yaml);
    smp_text_free(&html);
}

/* ---- the figure ---- */

/* Well-formed XML: tags nest, attributes are quoted, text has no loose '<' or '&'. Counts elements
 * of a name. */
static int count_elements(const char *xml, const char *name)
{
    char stack[16][16];
    int depth = 0, found = 0;
    for (const char *at = xml; *at; at++) {
        if (*at == '&' && strncmp(at, "&lt;", 4) != 0 && strncmp(at, "&amp;", 5) != 0)
            fail_msg("loose & at %.20s", at);
        if (*at != '<')
            continue;
        bool closing = at[1] == '/';
        const char *begin = at + 1 + closing, *end = begin;
        while ((*end >= 'a' && *end <= 'z') || *end == 'A')
            end++;
        assert_in_range(end - begin, 1, 15);
        bool quoted = false;
        for (at = end; *at && (quoted || *at != '>'); at++) {
            quoted ^= *at == '"';
            assert_true(*at != '<');
        }
        assert_int_equal(*at, '>');
        if (closing) {
            assert_true(depth > 0);
            depth--;
            assert_int_equal(strlen(stack[depth]), end - begin);
            assert_memory_equal(stack[depth], begin, (size_t)(end - begin));
        } else {
            found += strlen(name) == (size_t)(end - begin) &&
                     strncmp(begin, name, (size_t)(end - begin)) == 0;
        }
        if (!closing && at[-1] != '/') {
            assert_true(depth < 16);
            snprintf(stack[depth++], sizeof stack[0], "%.*s", (int)(end - begin), begin);
        }
    }
    assert_int_equal(depth, 0);
    return found;
}

static void check_figure(const smp_picture *picture)
{
    smp_text svg = {0};
    char label[32];
    assert_int_equal(smp_picture_svg(picture, &svg), SMP_OK);
    assert_int_equal(count_elements(svg.data, "svg"), 1);
    assert_null(strstr(svg.data, "nan"));
    for (int rank = 0; rank < picture->plan->pipeline && picture->plan->pipeline <= 32; rank++) {
        snprintf(label, sizeof label, ">rank %d</text>", rank);
        assert_non_null(strstr(svg.data, label));
    }
    smp_text_free(&svg);
}

/* ---- the lines ---- */

static void check_lines(const smp_picture *picture, int columns)
{
    smp_text text = {0};
    int lines = 0, wanted = picture->plan->pipeline * (picture->measured.lane ? 2 : 1) + 2;
    assert_int_equal(smp_picture_text(picture, columns, &text), SMP_OK);
    for (const char *at = text.data; *at; lines++) {
        const char *end = strchr(at, '\n');
        assert_non_null(end);
        if (lines < wanted - 1)
            assert_true(end - at <= (columns ? columns : 100));
        for (; at < end; at++)
            assert_in_range(*at, ' ', '~');
        at = end + 1;
    }
    assert_int_equal(lines, wanted);
    smp_text_free(&text);
}

static void check_picture(const made_plan *made)
{
    smp_picture *picture = open_picture(made);
    for (int rank = 0; rank < made->plan.pipeline; rank++)
        check_lane(&made->plan, picture, rank);
    check_page(picture);
    check_figure(picture);
    check_lines(picture, 60);
    smp_picture_close(picture);
}

static void test_picture_every_schedule(void **state)
{
    (void)state;
    for (const smp_schedule_kind *const *kind = smp_schedules(); *kind; kind++)
        for (int p = 1; p <= 4; p++)
            for (int v = 1; v <= 2; v++)
                for (int m = 1; m <= 9; m += 4)
                    for (int training = 0; training < 2; training++) {
                        smp_schedule_shape shape = {p, v, m, training, 0, 0, {.shard = 1}, {0}};
                        if (smp_schedule_check(*kind, &shape) != SMP_OK)
                            continue;
                        made_plan made;
                        made_plan_create(&made, (*kind)->name, p, v, m, training, made_skips);
                        for (int s = 0; s < made.plan.n_stage; s++) {
                            made.stage[s].forward_us = 1.0 + 0.37 * (s % 3);
                            made.stage[s].backward_us = training ? 2.1 + 0.21 * (s % 4) : 0.0;
                        }
                        cluster.overlap = (p + m) % 2 == 0;
                        made.plan.cluster = &cluster;
                        check_picture(&made);
                        made_plan_free(&made);
                    }
    cluster.overlap = true;
}

static void make_chain(made_plan *made, int p, int v, int m)
{
    made_plan_create(made, "interleaved", p, v, m, true, made_chain);
    made->plan.cluster = &cluster;
}

/* Two ranks, two micro-batches: every number by hand. Links take 0.125 + 0.064 us. */
static void test_picture_lines_by_hand(void **state)
{
    (void)state;
    made_plan made;
    smp_text text = {0};
    make_chain(&made, 2, 1, 2);
    smp_picture *picture = open_picture(&made);
    assert_true(fabs(picture->predicted.lane[1].cell[0].ready_us - 1.189) < 1e-9);
    assert_true(fabs(picture->predicted.lane[1].cell[0].start_us - 1.189) < 1e-9);
    assert_int_equal(smp_picture_text(picture, 69, &text), SMP_OK);
    const char *rank_0 = strstr(text.data, "rank 0 "), *rank_1 = strstr(text.data, "rank 1 ");
    assert_non_null(rank_0);
    assert_non_null(rank_1);
    /* Rank 0: F0 0-1, F1 1-2, B0 4.378-6.378, B1 7.378-9.378; rank 1: F0 1.189-2.189, B0 -4.189, F1
     * -5.189, B1 -7.189. 42 columns of 0.2233 us. */
    assert_memory_equal(rank_0 + 9, "0>>>1>>>>...........0<<<<<<<<....1<<<<<<<<", 42);
    assert_memory_equal(rank_1 + 9, ".....0>>>>0<<<<<<<<1>>>1<<<<<<<<..........", 42);
    smp_text again = {0};
    assert_int_equal(smp_plan_draw_text(&made.plan, made.graph, 69, &again), SMP_OK);
    assert_string_equal(again.data, text.data);
    smp_text_free(&again);
    smp_text_free(&text);
    smp_picture_close(picture);
    made_plan_free(&made);
}

static smp_trace_event *measure(const made_plan *made, double times, int64_t *n)
{
    smp_simulation *simulation = NULL;
    smp_trace_event *events = NULL;
    assert_int_equal(smp_simulate_plan(&made->plan, made->graph, made->flow, &simulation), SMP_OK);
    assert_int_equal(smp_trace_predicted(&made->plan, simulation, &events, n), SMP_OK);
    for (int64_t i = 0; i < *n; i++) {
        events[i].start_us *= times;
        events[i].end_us *= times;
    }
    smp_simulation_destroy(simulation);
    return events;
}

static void test_picture_measured(void **state)
{
    (void)state;
    made_plan made;
    int64_t n = 0;
    make_chain(&made, 3, 2, 7);
    smp_picture *picture = open_picture(&made);
    smp_trace_event *events = measure(&made, 1.25, &n);
    assert_int_equal(smp_picture_add_measured(picture, events, n), SMP_OK);
    for (int rank = 0; rank < 3; rank++) {
        const smp__lane *a = &picture->predicted.lane[rank], *b = &picture->measured.lane[rank];
        assert_int_equal(a->n, b->n);
        for (int64_t i = 0; i < a->n; i++)
            assert_true(fabs(b->cell[i].start_us - 1.25 * a->cell[i].start_us) < 1e-9);
    }
    check_page(picture);
    check_figure(picture);
    check_lines(picture, 0);
    /* Events of other replicas do not matter; events that no plan of this shape has are refused. */
    events[0].world_rank = 17;
    assert_int_equal(smp_picture_add_measured(picture, events, n), SMP_OK);
    /* nor do those of all but the first of a group that computes ops together */
    made.plan.splitting.devices = 2;
    for (int64_t i = 0; i < n; i++)
        events[i].world_rank = 2 * events[i].world_rank + 1;
    events[0].world_rank = 0;
    assert_int_equal(smp_picture_add_measured(picture, events, n), SMP_OK);
    assert_int_equal(picture->measured.lane[0].n + picture->measured.lane[1].n, 1);
    made.plan.splitting.devices = 0;
    events[0].stage = 6;
    assert_int_equal(smp_picture_add_measured(picture, events, n), SMP_ERR_INPUT);
    assert_int_equal(smp_picture_add_measured(picture, NULL, 0), SMP_OK);
    check_page(picture);
    check_figure(picture);
    free(events);
    smp_picture_close(picture);
    made_plan_free(&made);
}

static void test_picture_hostile_names(void **state)
{
    (void)state;
    made_plan made;
    smp_text html = {0}, svg = {0};
    make_chain(&made, 2, 1, 2);
    made.plan.model_name = "</script><script>alert(1)</script>&\"{{DATA}}";
    smp_picture *picture = open_picture(&made);
    check_figure(picture);
    assert_int_equal(smp_picture_html(picture, &html), SMP_OK);
    assert_null(strstr(html.data, "<script>alert"));
    assert_non_null(strstr(html.data, "\\u003cscript>alert(1)"));
    assert_int_equal(smp_picture_svg(picture, &svg), SMP_OK);
    assert_non_null(strstr(svg.data, "&lt;/script>&lt;script>alert(1)"));
    smp_text_free(&html);
    smp_text_free(&svg);
    smp_picture_close(picture);
    made_plan_free(&made);
}

static void test_picture_same_bytes(void **state)
{
    (void)state;
    made_plan made;
    smp_text text[6] = {{0}};
    make_chain(&made, 4, 2, 8);
    for (int i = 0; i < 2; i++) {
        smp_picture *picture = open_picture(&made);
        assert_int_equal(smp_picture_html(picture, &text[i]), SMP_OK);
        assert_int_equal(smp_picture_svg(picture, &text[2 + i]), SMP_OK);
        assert_int_equal(smp_picture_text(picture, 80, &text[4 + i]), SMP_OK);
        smp_picture_close(picture);
    }
    for (int i = 0; i < 6; i += 2)
        assert_string_equal(text[i].data, text[i + 1].data);
    for (int i = 0; i < 6; i++)
        smp_text_free(&text[i]);
    made_plan_free(&made);
}

/* Small at the sizes that people draw. */
static void test_picture_sizes(void **state)
{
    static const struct {
        int pipeline, microbatches;
        size_t html_bytes, svg_bytes;
    } sizes[] = {{8, 64, 200000, 100000}, {64, 512, 2000000, 800000}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        made_plan made;
        smp_text html = {0}, svg = {0};
        make_chain(&made, sizes[i].pipeline, 1, sizes[i].microbatches);
        smp_picture *picture = open_picture(&made);
        assert_int_equal(smp_picture_html(picture, &html), SMP_OK);
        assert_int_equal(smp_picture_svg(picture, &svg), SMP_OK);
        assert_in_range(html.length, 1, sizes[i].html_bytes);
        assert_in_range(svg.length, 1, sizes[i].svg_bytes);
        check_figure(picture);
        check_lines(picture, 120);
        smp_text_free(&html);
        smp_text_free(&svg);
        smp_picture_close(picture);
        made_plan_free(&made);
    }
}

static void test_picture_refuses(void **state)
{
    (void)state;
    made_plan made;
    smp_picture *picture = NULL;
    make_chain(&made, 2, 1, 2);
    made.plan.cluster = NULL;
    assert_int_equal(smp_picture_open(&made.plan, made.graph, &picture), SMP_ERR_INPUT);
    made.plan.cluster = &cluster;
    made.plan.fingerprint++;
    assert_int_equal(smp_picture_open(&made.plan, made.graph, &picture), SMP_ERR_INPUT);
    assert_null(picture);
    smp_picture_close(NULL);
    made_plan_free(&made);
}

/* Plans of the examples: the arena that is drawn is the one that the plan reserves. Planned for the
 * least step, which takes longest, only where that has an order of its own. */
static void test_picture_examples(void **state)
{
    (void)state;
    static const char *const models[] = {"mlp.yaml", "gpt-tiny.yaml", "branches.yaml"};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        for (int chunks = 1; chunks <= 2; chunks++) {
            char path[512];
            smp_graph *graph = NULL;
            smp_cluster *local = NULL;
            smp_planner_result result;
            smp_picture *picture = NULL;
            snprintf(path, sizeof path, "%s/examples/%s", SMP_SOURCE_DIR, models[i]);
            assert_int_equal(smp_graph_read(path, &graph), SMP_OK);
            assert_int_equal(smp_cluster_local(4, &local), SMP_OK);
            smp_search_request request = {.graph = graph,
                                          .cluster = local,
                                          .options.devices = 4,
                                          .options.stages = 2,
                                          .options.chunks = chunks,
                                          .options.microbatches = 4,
                                          .options.microbatch_size = 2,
                                          .options.objective = i == 2 ? SMP_OBJECTIVE_STEP
                                                                      : SMP_OBJECTIVE_BOTTLENECK,
                                          .options.memory_bytes = (int64_t)1 << 32,
                                          .options.seed = 1};
            if (smp_plan_make(&request, "model.yaml", &result) != SMP_OK ||
                smp_picture_open(result.plan, graph, &picture) != SMP_OK)
                fail_msg("%s", smp_last_error());
            for (int rank = 0; rank < result.plan->pipeline; rank++) {
                assert_int_equal(picture->memory[rank].reserved_bytes,
                                 result.plan->predicted.peak_bytes[rank]);
                assert_true(picture->memory[rank].fixed_bytes > 0);
            }
            assert_true(picture->predicted.end_us == result.plan->predicted.step_us);
            check_page(picture);
            check_figure(picture);
            smp_picture_close(picture);
            smp_planner_result_destroy(&result);
            smp_cluster_destroy(local);
            smp_graph_destroy(graph);
        }
}

static int64_t count_of(const char *text, const char *what)
{
    int64_t n = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
        n++;
    return n;
}

/* What travels: a line, a strip for each store and load, entries of the page; elsewhere nothing. */
static void test_picture_offload(void **state)
{
    (void)state;
    smp_graph *graph = NULL;
    smp_cluster *local = NULL;
    assert_int_equal(smp_graph_read(SMP_SOURCE_DIR "/examples/gpt-tiny.yaml", &graph), SMP_OK);
    assert_int_equal(smp_cluster_local(2, &local), SMP_OK);
    local->host = (smp_link_spec){.latency_us = 10.0, .bytes_per_s = 4e9};
    for (int away = 0; away < 2; away++) {
        smp_planner_result result;
        smp_picture *picture = NULL;
        smp_text text = {0}, svg = {0};
        smp_search_request request = {.graph = graph,
                                      .cluster = local,
                                      .options.devices = 2,
                                      .options.stages = 2,
                                      .options.chunks = 1,
                                      .options.microbatches = 6,
                                      .options.microbatch_size = 2,
                                      .options.schedule = "simple",
                                      .options.memory_bytes = (int64_t)1 << 32,
                                      .options.offload = away ? SMP_OFFLOAD_ALL : SMP_OFFLOAD_AUTO,
                                      .options.loading_horizon = 1,
                                      .options.seed = 1};
        if (smp_plan_make(&request, "model.yaml", &result) != SMP_OK ||
            smp_picture_open(result.plan, graph, &picture) != SMP_OK ||
            smp_picture_text(picture, 100, &text) != SMP_OK ||
            smp_picture_svg(picture, &svg) != SMP_OK)
            fail_msg("%s", smp_last_error());
        int64_t stores = 0, drawn = 0;
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(picture->memory[rank].reserved_bytes,
                             result.plan->predicted.peak_bytes[rank]);
            for (int64_t i = 0; i < result.plan->program[rank].n; i++)
                stores += result.plan->program[rank].action[i].kind == SMP_ACTION_STORE;
            for (int64_t i = 0; i < picture->predicted.lane[rank].n_beside; i++)
                drawn += smp__beside_letters[picture->predicted.lane[rank].beside[i].kind] == 'S';
        }
        assert_true(away ? stores >= 6 : stores == 0);
        assert_int_equal(stores, drawn);
        assert_int_equal(away ? 2 : 0, count_of(text.data, "\n  host "));
        assert_int_equal(away ? 1 : 0, count_of(text.data, "^ loaded again"));
        assert_int_equal(away ? stores + 1 : 0, count_of(svg.data, "<rect class=\"S\""));
        assert_int_equal(away ? stores + 1 : 0, count_of(svg.data, "<rect class=\"L\""));
        check_page(picture);
        check_figure(picture);
        smp_text_free(&text);
        smp_text_free(&svg);
        smp_picture_close(picture);
        smp_planner_result_destroy(&result);
    }
    smp_cluster_destroy(local);
    smp_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_picture_every_schedule), cmocka_unit_test(test_picture_lines_by_hand),
        cmocka_unit_test(test_picture_measured),       cmocka_unit_test(test_picture_hostile_names),
        cmocka_unit_test(test_picture_same_bytes),     cmocka_unit_test(test_picture_sizes),
        cmocka_unit_test(test_picture_refuses),        cmocka_unit_test(test_picture_examples),
        cmocka_unit_test(test_picture_offload),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

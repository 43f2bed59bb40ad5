/* Chrome traces: well-formed, complete, and no two events of a thread overlap. */
#include "tests/schedule/made_plan.h"
#include "schedule/trace/trace.h"

#include "graph/yaml/yaml.h"

static const smp_device_spec devices[4];
static const smp_cluster cluster = {.name = "test",
                                    .nodes = 1,
                                    .devices_per_node = 4,
                                    .device = devices,
                                    .intra_node = {.latency_us = 3.25, .bytes_per_s = 1e300},
                                    .overlap = true};

static bool first_to_all(int reader, int producer)
{
    return producer == 0 || producer == reader - 1;
}

static void make_trace(made_plan *made, smp_trace_event **events, int64_t *n)
{
    smp_simulation *simulation = NULL;
    made_plan_create(made, "interleaved", 4, 1, 6, true, first_to_all);
    made->plan.cluster = &cluster;
    if (smp_simulate_plan(&made->plan, made->graph, made->flow, &simulation) ||
        smp_trace_predicted(&made->plan, simulation, events, n))
        fail_msg("%s", smp_last_error());
    smp_simulation_destroy(simulation);
}

static void test_trace_predicted_events(void **state)
{
    (void)state;
    made_plan made;
    smp_trace_event *events;
    int64_t n, expected = 0;
    make_trace(&made, &events, &n);
    for (int r = 0; r < 4; r++)
        expected += made.program[r].n;
    assert_int_equal(n, expected);
    int optimizers = 0;
    for (int64_t i = 0; i < n; i++) {
        assert_true(events[i].end_us >= events[i].start_us);
        bool optimizer = events[i].action.kind == SMP_ACTION_OPTIMIZE;
        optimizers += optimizer;
        assert_int_equal(events[i].stage, optimizer ? -1 : events[i].world_rank);
    }
    assert_int_equal(optimizers, 4);
    free(events);
    made_plan_free(&made);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
        n++;
    return n;
}

enum { MAX_TID = 20000 };

/* Events are written by rising start within a rank, so within a thread too. */
static void assert_no_overlap(const char *json, int pid)
{
    static double free_us[MAX_TID];
    memset(free_us, 0, sizeof free_us);
    char begin[40];
    snprintf(begin, sizeof begin, "\"ph\":\"X\",\"pid\":%d,\"tid\":", pid);
    for (const char *at = json; (at = strstr(at, begin)); at++) {
        long tid = strtol(at + strlen(begin), NULL, 10);
        double start = strtod(strstr(at, "\"ts\":") + 5, NULL);
        double duration = strtod(strstr(at, "\"dur\":") + 6, NULL);
        assert_in_range(tid, 0, MAX_TID - 1);
        assert_true(start >= free_us[tid] - 1e-9);
        assert_true(duration >= 0.0);
        free_us[tid] = start + duration;
    }
}

static void test_trace_format(void **state)
{
    (void)state;
    made_plan made;
    smp_trace_event *events;
    int64_t n;
    smp_text json = {0}, again = {0};
    make_trace(&made, &events, &n);
    assert_int_equal(smp_trace_format(&made.plan, events, n, NULL, 0, &json), SMP_OK);
    smp_yaml *parsed = NULL; /* JSON is YAML in flow style */
    if (smp_yaml_parse("trace.json", json.data, json.length, &parsed))
        fail_msg("%s", smp_last_error());
    smp_yaml_destroy(parsed);
    assert_int_equal(count(json.data, "\"ph\":\"X\""), n);
    assert_int_equal(count(json.data, "\"process_name\""), 1);
    assert_int_equal(count(json.data, "{\"name\":\"rank 2\"}"), 1);
    assert_int_equal(count(json.data, "{\"name\":\"F3.0\",\"cat\":\"forward\""), 4);
    assert_int_equal(count(json.data, "{\"name\":\"O\",\"cat\":\"optimizer\""), 4);
    assert_non_null(strstr(json.data, "{\"name\":\"F0.0\",\"cat\":\"forward\",\"ph\":\"X\",\"pid\":"
                                      "1,\"tid\":1,\"ts\":4.25,\"dur\":1,\"args\":{\"rank\":1,"
                                      "\"stage\":1,\"microbatch\":0,\"chunk\":0}}"));
    assert_no_overlap(json.data, 1);
    assert_int_equal(smp_trace_format(&made.plan, events, n, events, n, &again), SMP_OK);
    assert_int_equal(count(again.data, "\"ph\":\"X\""), 2 * n);
    assert_int_equal(count(again.data, "\"process_name\""), 2);
    assert_int_equal(count(again.data, "\"measured\""), 1);
    assert_no_overlap(again.data, 2);
    smp_text_free(&json);
    smp_text_free(&again);
    free(events);
    made_plan_free(&made);
}

/* Where devices compute ops together, the events are of the first of each group, and threads of all
 * of them are apart. */
static void test_trace_of_groups(void **state)
{
    (void)state;
    made_plan made;
    smp_trace_event *events;
    int64_t n;
    smp_text json = {0};
    make_trace(&made, &events, &n);
    free(events);
    made.plan.splitting.devices = 3;
    smp_simulation *simulation = NULL;
    assert_int_equal(smp_simulate_plan(&made.plan, made.graph, made.flow, &simulation), SMP_OK);
    assert_int_equal(smp_trace_predicted(&made.plan, simulation, &events, &n), SMP_OK);
    smp_simulation_destroy(simulation);
    for (int64_t i = 0; i < n; i++)
        if (events[i].stage >= 0)
            assert_int_equal(events[i].world_rank, 3 * events[i].stage);
    smp_trace_event *all = malloc(3 * (size_t)n * sizeof *all); /* as a job of 12 processes has */
    for (int64_t i = 0; i < 3 * n; i++) {
        all[i] = events[i / 3];
        all[i].world_rank += (int)(i % 3);
    }
    assert_int_equal(smp_trace_format(&made.plan, events, n, all, 3 * n, &json), SMP_OK);
    assert_no_overlap(json.data, 1);
    assert_no_overlap(json.data, 2);
    assert_int_equal(count(json.data, "{\"name\":\"rank 11\"}"), 1);
    smp_text_free(&json);
    free(events);
    free(all);
    made_plan_free(&made);
}

/* Stores and loads have a thread each, in which one follows the other however slow their link is.
 */
static void test_trace_of_offload(void **state)
{
    (void)state;
    made_plan made;
    bool travels[4] = {true, true, false, false};
    smp_cluster slow = cluster;
    smp_simulation *simulation = NULL;
    smp_trace_event *events = NULL;
    smp_text json = {0};
    int64_t n = 0;
    slow.host = (smp_link_spec){.latency_us = 0.5, .bytes_per_s = 1e6};
    made_plan_stages(&made, "interleaved", 4, 1, 12, true, made_skips);
    made.plan.cluster = &slow;
    made.plan.travels = travels;
    made.plan.loading_horizon = 1;
    for (int s = 0; s < 4; s++)
        made.stage[s].offload_bytes = travels[s] ? 8 : 0; /* 8.5 us: longer than F and B */
    made_plan_lower(&made);
    if (smp_simulate_plan(&made.plan, made.graph, made.flow, &simulation) ||
        smp_trace_predicted(&made.plan, simulation, &events, &n) ||
        smp_trace_format(&made.plan, events, n, NULL, 0, &json))
        fail_msg("%s", smp_last_error());
    assert_int_equal(1, count(json.data, "{\"name\":\"rank 0 stores\"}"));
    assert_int_equal(1, count(json.data, "{\"name\":\"rank 1 loads\"}"));
    assert_int_equal(0, count(json.data, "{\"name\":\"rank 3 loads\"}"));
    assert_true(count(json.data, "\"cat\":\"offload\"") > 20);
    assert_no_overlap(json.data, 1);
    smp_text_free(&json);
    smp_simulation_destroy(simulation);
    free(events);
    made_plan_free(&made);
}

/* Those that go on beside a step have a row of their own, from its beginning on. */
static void test_trace_of_updates(void **state)
{
    (void)state;
    made_plan made;
    smp_simulation *simulation = NULL;
    smp_trace_event *events = NULL;
    smp_text json = {0};
    int64_t n = 0;
    made_plan_stages(&made, "1f1b", 2, 1, 4, true, made_chain);
    smp_cluster linked = cluster;
    linked.host.bytes_per_s = 2e6; /* a byte of weights an us, since gradients come down, too */
    made.plan.cluster = &linked;
    made.plan.sharding.offload_states = true;
    made.plan.target.backend = made.graph->target.backend = SMP_BACKEND_CUDA;
    for (int s = 0; s < 2; s++)
        made.stage[s].weight_bytes = 7 + s;
    made_plan_lower(&made);
    if (smp_simulate_plan(&made.plan, made.graph, made.flow, &simulation) ||
        smp_trace_predicted(&made.plan, simulation, &events, &n) ||
        smp_trace_format(&made.plan, events, n, NULL, 0, &json))
        fail_msg("%s", smp_last_error());
    for (int rank = 0; rank < 2; rank++) {
        char name[64];
        snprintf(name, sizeof name, "{\"name\":\"rank %d updates on the host\"}", rank);
        assert_int_equal(1, count(json.data, name));
        snprintf(name, sizeof name, "\"ts\":0,\"dur\":%d,\"args\":{\"rank\":%d}", 7 + rank, rank);
        assert_int_equal(1, count(json.data, name));
    }
    assert_int_equal(4, count(json.data, "\"name\":\"O\""));
    smp_text_free(&json);
    smp_simulation_destroy(simulation);
    free(events);
    made_plan_free(&made);
}

static void test_trace_empty(void **state)
{
    (void)state;
    made_plan made;
    smp_text json = {0};
    made_plan_create(&made, "simple", 1, 1, 1, true, made_chain);
    assert_int_equal(smp_trace_format(&made.plan, NULL, 0, NULL, 0, &json), SMP_OK);
    assert_string_equal(json.data, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n]}\n");
    smp_text_free(&json);
    made_plan_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace_predicted_events), cmocka_unit_test(test_trace_format),
        cmocka_unit_test(test_trace_of_groups),        cmocka_unit_test(test_trace_of_offload),
        cmocka_unit_test(test_trace_of_updates),       cmocka_unit_test(test_trace_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

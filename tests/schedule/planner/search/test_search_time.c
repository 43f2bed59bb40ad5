/* Large searches and their time. What promises most is looked at first, and what is found before
 * the time is over is near what all of the search finds. The clock is the test's own: every
 * evaluation and every rank that is laid out takes a second, nothing else takes any. */
#include "tests/case_count.h"
#include "tests/schedule/fixture.h"

#include <math.h>

#include "schedule/planner/planner.h"
#include "schedule/planner/search/search_state.h"

static double clock_s = 1.0;

double __wrap_smp_work_s(void);
double __wrap_smp_work_s(void)
{
    return clock_s;
}

smp_status __real_smp__planner_peak(smp__planner *, const smp_candidate *, const smp_program *, int,
                                    bool, int64_t *);
smp_status __wrap_smp__planner_peak(smp__planner *, const smp_candidate *, const smp_program *, int,
                                    bool, int64_t *);
smp_status __wrap_smp__planner_peak(smp__planner *planner, const smp_candidate *candidate,
                                    const smp_program *program, int rank, bool exactly,
                                    int64_t *peak_bytes)
{
    clock_s += 1.0;
    return __real_smp__planner_peak(planner, candidate, program, rank, exactly, peak_bytes);
}

smp_status __real_smp__planner_evaluate(smp__planner *, const smp_candidate *, smp_program *, bool,
                                        smp__evaluation *);
smp_status __wrap_smp__planner_evaluate(smp__planner *, const smp_candidate *, smp_program *, bool,
                                        smp__evaluation *);
smp_status __wrap_smp__planner_evaluate(smp__planner *planner, const smp_candidate *candidate,
                                        smp_program *program, bool exactly, smp__evaluation *out)
{
    clock_s += 1.0;
    return __real_smp__planner_evaluate(planner, candidate, program, exactly, out);
}

enum { DEVICES = 8, LAYERS = 160 };

typedef struct setting {
    smp_graph *graph;
    smp_device_spec device[DEVICES];
    smp_cluster cluster;
    smp_search_request request;
} setting;

/* Layers with much to keep and little memory: something has to recompute. */
static void open_setting(setting *s, int64_t memory_bytes)
{
    static const char model[] =
        "smp: 1\nname: layers\nlet: {T: 64, d: 32, layers: %d}\n"
        "inputs: {tokens: {dtype: int32, shape: [T]}, targets: {dtype: int32, shape: [T]}}\nops:\n"
        "  - {op: embedding, name: wte, in: tokens, out: x, rows: 64, features: d}\n"
        "  - repeat: layers\n    as: i\n    ops:\n"
        "      - {op: linear, name: \"h{i}.fc\", in: x, out: a, features: d}\n"
        "      - {op: gelu, name: \"h{i}.gelu\", in: a, out: x}\n"
        "  - {op: linear, name: head, in: x, out: logits, features: 64, bias: false}\n"
        "  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}\n"
        "loss: loss\n";
    smp_text text = {0};
    smp_text_append(&text, model, LAYERS);
    *s = (setting){0};
    if (smp_graph_parse("model.yaml", text.data, strlen(text.data), &s->graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    free(text.data);
    for (int d = 0; d < DEVICES; d++)
        s->device[d] = (smp_device_spec){
            .name = "d", .memory_bytes = memory_bytes, .flops_fp32 = 1e10, .bytes_per_s = 1e11};
    s->cluster = (smp_cluster){.name = "c",
                               .nodes = 2,
                               .devices_per_node = DEVICES / 2,
                               .device = s->device,
                               .intra_node = {.latency_us = 1, .bytes_per_s = 1e11},
                               .inter_node = {.latency_us = 3, .bytes_per_s = 1e10},
                               .overlap = true};
    s->request = (smp_search_request){.graph = s->graph,
                                      .cluster = &s->cluster,
                                      .options.devices = DEVICES,
                                      .options.microbatch_size = 2,
                                      .options.recompute = SMP_RECOMPUTE_AUTO,
                                      .placement = SMP_PLACEMENT_AUTO,
                                      .options.seed = 1};
}

/* Of those that memory does not make doubtful, each promises as much as the next one at least. */
static void test_search_time_best_first(void **state)
{
    (void)state;
    setting s;
    smp__planner planner;
    smp__configs configs;
    open_setting(&s, (int64_t)1 << 40);
    assert_int_equal(SMP_OK, smp__planner_open(&s.request, &planner));
    assert_int_equal(SMP_OK, smp__configs_list(&planner, &configs));
    assert_int_equal(SMP_OK, smp__search_order(&configs));
    assert_true(configs.quick && configs.n > 50);
    for (int32_t i = 1; i < configs.n; i++) {
        const smp__config *before = &configs.config[i - 1], *config = &configs.config[i];
        if (smp__config_is_doubtful(before) != smp__config_is_doubtful(config))
            assert_true(smp__config_is_doubtful(config));
        else if (before->estimate > config->estimate)
            fail_msg("configuration %d of %d promises %g us, the one before it %g us", (int)i,
                     (int)configs.n, config->estimate, before->estimate);
    }
    smp__configs_free(&configs);
    smp__planner_close(&planner);
    smp_graph_destroy(s.graph);
}

/* Seconds of the test's clock that a plan takes, and its time per sample. */
static double plan(setting *s, double limit_s, double *sample_us, bool *timed_out)
{
    smp_planner_result result;
    double begin_s = clock_s;
    s->request.deadline_s = limit_s > 0.0 ? begin_s + limit_s : 0.0;
    if (smp_plan_make(&s->request, "model.yaml", &result) != SMP_OK)
        fail_msg("%g s: %s", limit_s, smp_last_error());
    *sample_us = smp_plan_sample_us(&s->request, result.plan);
    *timed_out = result.search.timed_out;
    smp_planner_result_destroy(&result);
    return clock_s - begin_s;
}

static void test_search_time_is_kept(void **state)
{
    (void)state;
    setting s;
    bool timed_out;
    double best_us, sample_us;
    int n_cut = 0;
    open_setting(&s, (int64_t)3 << 19);
    double all_s = plan(&s, 0.0, &best_us, &timed_out);
    assert_false(timed_out);
    for (int percent = 10; percent < (is_long() ? 100 : 60); percent += is_long() ? 20 : 40) {
        double limit_s = all_s * percent / 100;
        double took_s = plan(&s, limit_s, &sample_us, &timed_out);
        n_cut += timed_out;
        if (took_s > 1.05 * limit_s)
            fail_msg("%g s with a limit of %g s", took_s, limit_s);
        if (sample_us > 1.1 * best_us)
            fail_msg("%g us a sample in %g s, %g us in %g s", sample_us, limit_s, best_us, all_s);
    }
    assert_true(n_cut >= 1);
    smp_graph_destroy(s.graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_search_time_best_first),
        cmocka_unit_test(test_search_time_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What of a plan falls short: plans by hand, right but for one part, which is the one that is
 * named; plans of the planner's own, which fall short in nothing; and the plan around one by hand,
 * which is no slower. Linked with --wrap (tests/CMakeLists.txt), so that evaluating a plan takes a
 * second, and nothing else takes any time. */
#include "tests/case_count.h"
#include "tests/partition/problem_fixture.h"

#include "schedule/check/check.h"
#include "schedule/planner/planner.h"
#include "schedule/planner/search/search.h"

static double clock_s = 1.0;

double __wrap_smp_work_s(void);
double __wrap_smp_work_s(void)
{
    return clock_s;
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

typedef struct setting {
    fixture f; /* cluster and devices */
    smp_graph *graph;
    smp_search_request request;
} setting;

static void read_chain(setting *s, const int *forward_us, int n)
{
    smp_text model = {0};
    smp_text_append(&model, "smp: 1\nname: chain\nops:\n");
    for (int i = 0; i < n; i++) {
        smp_text_append(&model, "  - {op: opaque, name: n%d, out: t%d", i, i);
        if (i > 0)
            smp_text_append(&model, ", in: t%d", i - 1);
        smp_text_append(&model,
                        ", cost: {forward_us: %d, backward_us: %d, weight_bytes: 0, stash_bytes: "
                        "1000, output_bytes: 0}}\n",
                        forward_us[i], 2 * forward_us[i]);
    }
    if (smp_graph_parse("model.yaml", model.data, model.length, &s->graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    smp_text_free(&model);
}

static void open_setting(setting *s, const int *forward_us, int n, int devices)
{
    *s = (setting){0};
    read_chain(s, forward_us, n);
    fixture_cluster(&s->f, devices, devices, 1e9);
    s->f.cluster.overlap = true;
    for (int d = 0; d < devices; d++)
        s->f.device_spec[d].memory_bytes = 1 << 20;
    s->request = (smp_search_request){.graph = s->graph,
                                      .cluster = &s->f.cluster,
                                      .options.devices = devices,
                                      .options.microbatch_size = 1,
                                      .options.seed = 1,
                                      .options.recompute = SMP_RECOMPUTE_AUTO,
                                      .placement = SMP_PLACEMENT_AUTO};
}

static void check_text(const setting *s, const char *text, smp_check *check)
{
    smp_sketch *sketch = NULL;
    if (smp_sketch_parse("plan.yaml", text, strlen(text), &sketch) != SMP_OK ||
        smp_check_sketch(&s->request, false, sketch, check) != SMP_OK)
        fail_msg("%s\n%s", smp_last_error(), text);
    if (!check->legal || !check->fits)
        fail_msg("%s", check->findings.item[0].message);
    assert_int_equal(SMP_N_PART, check->n_part);
    smp_sketch_destroy(sketch);
}

static double saved_by(const smp_check *check, smp_check_part_kind kind)
{
    for (int i = 0; i < check->n_part; i++)
        if (check->part[i].kind == kind)
            return check->part[i].saved_us;
    return -1.0;
}

/* The part that is spoiled is the largest, and saves at least so much of the step. */
static void expect_part(const setting *s, const char *text, smp_check_part_kind kind,
                        double least_share)
{
    smp_check check;
    check_text(s, text, &check);
    const smp_check_part *first = &check.part[0];
    if (first->kind != kind || first->share < least_share)
        fail_msg("%s saves %.4g us (%.1f %%), expected %s\n%s", smp_check_part_name(first->kind),
                 first->saved_us, 100 * first->share, smp_check_part_name(kind), text);
    for (int i = 1; i < check.n_part; i++)
        assert_true(check.part[i].saved_us >= 0.0 &&
                    check.part[i].saved_us <= check.part[i - 1].saved_us);
    smp_check_free(&check);
}

static const int alike[8] = {10, 10, 10, 10, 10, 10, 10, 10};

static void test_check_parts_partition(void **state)
{
    (void)state;
    setting s;
    open_setting(&s, alike, 8, 2);
    static const char text[] = "smp: 1\nbatch: {microbatches: 8}\nschedule: zero-bubble\n"
                               "stages: [{ops: n0..n5}, {ops: [n6, n7]}]\n";
    expect_part(&s, text, SMP_PART_PARTITION, 0.25);
    s.request.options.objective = SMP_OBJECTIVE_BOTTLENECK;
    expect_part(&s, text, SMP_PART_PARTITION, 0.33);
    smp_graph_destroy(s.graph);
}

/* One micro-batch after the other. */
static void test_check_parts_order(void **state)
{
    (void)state;
    setting s;
    open_setting(&s, alike, 8, 2);
    expect_part(&s,
                "smp: 1\nparallel: {devices: 2, pipeline: 2, ddp: 1, chunks: 1}\n"
                "batch: {microbatches: 3, microbatch_size: 1}\nschedule: interleaved\n"
                "stages: [{ops: n0..n3}, {ops: n4..n7}]\nprograms:\n"
                "  - \"F0.0 >F0.0 <B0.0 B0.0 F1.0 >F1.0 <B1.0 B1.0 F2.0 >F2.0 <B2.0 B2.0 R.0 O\"\n"
                "  - \"<F0.0 F0.0 B0.0 >B0.0 <F1.0 F1.0 B1.0 >B1.0 <F2.0 F2.0 B2.0 >B2.0 R.0 O\"\n",
                SMP_PART_ORDER, 0.3);
    smp_graph_destroy(s.graph);
}

static void test_check_parts_recompute(void **state)
{
    (void)state;
    setting s;
    open_setting(&s, alike, 8, 2);
    expect_part(&s,
                "smp: 1\nbatch: {microbatches: 8}\nschedule: zero-bubble\n"
                "stages: [{ops: n0..n3, recompute: true}, {ops: n4..n7, recompute: true}]\n",
                SMP_PART_RECOMPUTE, 0.15);
    smp_graph_destroy(s.graph);
}

/* The long stage lies on the slow device. Nothing else can be chosen. */
static void test_check_parts_placement(void **state)
{
    (void)state;
    static const int two[] = {20, 10}, three[] = {30, 10, 10};
    setting s;
    open_setting(&s, two, 2, 2);
    s.f.device_spec[1].flops_fp32 *= 2.0;
    expect_part(&s,
                "smp: 1\nbatch: {microbatches: 8}\nschedule: zero-bubble\n"
                "stages: [{ops: n0}, {ops: n1}]\n",
                SMP_PART_PLACEMENT, 0.3);
    smp_graph_destroy(s.graph);
    open_setting(&s, three, 3, 3);
    s.f.device_spec[2].flops_fp32 *= 3.0;
    expect_part(&s,
                "smp: 1\nbatch: {microbatches: 6}\n"
                "stages: [{rank: 1, ops: n0}, {rank: 0, ops: n1}, {rank: 2, ops: n2}]\n",
                SMP_PART_PLACEMENT, 0.3);
    smp_graph_destroy(s.graph);
}

/* On a slow device and one twice as fast. Neither the other order of them nor the other cut helps,
 * but both do. */
static void test_check_parts_together(void **state)
{
    (void)state;
    static const int three[] = {20, 12, 10};
    setting s;
    open_setting(&s, three, 3, 2);
    s.f.device_spec[1].flops_fp32 *= 2.0;
    s.request.options.objective = SMP_OBJECTIVE_BOTTLENECK;
    expect_part(&s, "smp: 1\nschedule: simple\nstages: [{ops: n0}, {ops: [n1, n2]}]\n",
                SMP_PART_TOGETHER, 0.19);
    smp_graph_destroy(s.graph);
}

/* All that a check finds in so many seconds is what it finds without a limit, or it says that it
 * was cut short, soon after the time is over. */
static void test_check_parts_keep_the_time_limit(void **state)
{
    (void)state;
    static const int four[] = {10, 40, 10, 10};
    static const char text[] = "smp: 1\nbatch: {microbatches: 4}\nschedule: simple\n"
                               "stages: [{ops: n0}, {ops: n1}, {ops: n2}, {ops: n3}]\n";
    enum { AFTER = 8 /* evaluations: the plan's own, and what cannot be done without */ };
    setting s;
    smp_check whole, check;
    int n_cut = 0;
    open_setting(&s, four, 4, 4);
    s.f.device_spec[3].flops_fp32 *= 3.0;
    s.request.options.objective = SMP_OBJECTIVE_BOTTLENECK;
    check_text(&s, text, &whole);
    assert_false(whole.parts_timed_out);
    for (int limit = 1; limit < 100; limit += 7) {
        s.request.deadline_s = clock_s + limit;
        check_text(&s, text, &check);
        if (clock_s > s.request.deadline_s + AFTER)
            fail_msg("%g s with a limit of %d s", clock_s - s.request.deadline_s + limit, limit);
        for (int i = 0; i < SMP_N_PART && !check.parts_timed_out; i++)
            assert_true(check.part[i].saved_us == saved_by(&whole, check.part[i].kind));
        n_cut += check.parts_timed_out;
        smp_check_free(&check);
    }
    assert_true(n_cut >= 3 && !check.parts_timed_out);
    smp_check_free(&whole);
    smp_graph_destroy(s.graph);
}

/* The best of all is searched for once: it is that of its own numbers, too, and no part does
 * better. */
static void test_check_parts_of_the_best(void **state)
{
    (void)state;
    setting s;
    smp_planner_result result;
    smp_check check;
    smp_text text = {0};
    open_setting(&s, alike, 8, 2);
    assert_int_equal(SMP_OK, smp_plan_make(&s.request, "model.yaml", &result));
    assert_int_equal(SMP_OK, smp_plan_format(result.plan, &text));
    double begin_s = clock_s;
    check_text(&s, text.data, &check);
    assert_ptr_equal(check.any.plan, check.same.plan);
    assert_true(check.any.plan && check.any.ratio == 1.0 && check.part[0].saved_us == 0.0);
    assert_true(clock_s - begin_s < 5.0); /* the plan as it is, one search */
    smp_check_free(&check);
    smp_text_free(&text);
    smp_planner_result_destroy(&result);
    smp_graph_destroy(s.graph);
}

/* The planner's own plans, of random chains: no part saves more than what it takes for as good. And
 * around the stages of random plans by hand: no slower, and no part saves more than there is. */
static void test_check_parts_of_own_plans(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < (is_long() ? 8 : 4); seed++) {
        fixture_random random = {seed << 32};
        int forward_us[6], cut = 1 + fixture_below(&random, 5);
        char text[256];
        setting s;
        smp_planner_result result;
        smp_check check;
        smp_text own = {0};
        double compute_us = 0.0;
        for (int i = 0; i < 6; i++) {
            forward_us[i] = 1 + fixture_below(&random, 40);
            compute_us += 3.0 * forward_us[i];
        }
        open_setting(&s, forward_us, 6, 2);
        s.request.options.stages = 2;
        s.request.options.chunks = 1;
        s.request.options.microbatches = 4;
        assert_int_equal(SMP_OK, smp_plan_make(&s.request, "model.yaml", &result));
        assert_int_equal(SMP_OK, smp_plan_format(result.plan, &own));
        check_text(&s, own.data, &check);
        for (int i = 0; i < check.n_part; i++)
            if (check.part[i].share > 0.0101)
                fail_msg("seed %d: %s saves %.2f %%", (int)seed,
                         smp_check_part_name(check.part[i].kind), 100 * check.part[i].share);
        smp_check_free(&check);
        smp_text_free(&own);
        smp_planner_result_destroy(&result);
        int32_t pin[6];
        for (int i = 0; i < 6; i++)
            pin[i] = i >= cut;
        snprintf(text, sizeof text,
                 "smp: 1\nbatch: {microbatches: 4}\nschedule: simple\n"
                 "stages: [{ops: n0..n%d}, {ops: n%d..n5}]\n",
                 cut - 1, cut);
        check_text(&s, text, &check);
        s.request.pin = pin;
        assert_int_equal(SMP_OK, smp_plan_make(&s.request, "model.yaml", &result));
        double step_us = check.plan->predicted.step_us, left_us = step_us;
        for (int i = 0; i < check.n_part; i++)
            left_us -= check.part[i].saved_us;
        assert_true(result.plan->predicted.step_us <= step_us * (1.0 + 1e-9));
        assert_true(left_us <= result.plan->predicted.step_us * (1.0 + 1e-5)); /* its order alone */
        assert_true(left_us >= 0.5 * 4 * compute_us);
        assert_true(saved_by(&check, SMP_PART_RECOMPUTE) == 0.0);
        smp_planner_result_destroy(&result);
        smp_check_free(&check);
        smp_graph_destroy(s.graph);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_parts_partition),
        cmocka_unit_test(test_check_parts_order),
        cmocka_unit_test(test_check_parts_recompute),
        cmocka_unit_test(test_check_parts_placement),
        cmocka_unit_test(test_check_parts_together),
        cmocka_unit_test(test_check_parts_keep_the_time_limit),
        cmocka_unit_test(test_check_parts_of_the_best),
        cmocka_unit_test(test_check_parts_of_own_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

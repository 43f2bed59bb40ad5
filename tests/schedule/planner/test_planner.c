/* From model to verified plan: automatic and fixed configurations, the same bytes every time, files
 * that predict the same step as the planner did, and what does not fit. */
#include "tests/case_count.h"
#include "tests/schedule/fixture.h"

#include <math.h>

#include "schedule/planner/planner.h"
#include "schedule/simulate/simulate.h"
#include "schedule/verify/verify.h"

typedef struct setting {
    smp_graph *graph;
    smp_cluster *cluster;
    smp_search_request request;
    int32_t *together;
} setting;

static void open_setting(setting *s, const char *model, int devices)
{
    char path[512];
    snprintf(path, sizeof path, "%s/examples/%s", SMP_SOURCE_DIR, model);
    *s = (setting){0};
    if (smp_graph_read(path, &s->graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_int_equal(SMP_OK, smp_cluster_local(devices, &s->cluster));
    s->request = (smp_search_request){.graph = s->graph,
                                      .cluster = s->cluster,
                                      .options.devices = devices,
                                      .options.microbatch_size = 2,
                                      .options.memory_bytes = (int64_t)1 << 32,
                                      .options.seed = 1};
}

/* Few places to cut at, so that few partitions are searched. */
static void join_ops(setting *s, int n_joined)
{
    s->together = calloc((size_t)s->graph->n_op, sizeof *s->together);
    assert_non_null(s->together);
    for (int32_t op = 0; op < s->graph->n_op; op++)
        s->together[op] = op / n_joined;
    s->request.together = s->together;
}

static void close_setting(setting *s)
{
    free(s->together);
    smp_cluster_destroy(s->cluster);
    smp_graph_destroy(s->graph);
}

static void check_prediction(const smp_plan *plan, const smp_graph *graph)
{
    smp_simulated_plan simulated;
    assert_int_equal(SMP_OK, smp_simulated_plan_open(plan, graph, &simulated));
    assert_true(simulated.simulation->step_us == plan->predicted.step_us);
    assert_true(simulated.simulation->bubble == plan->predicted.bubble);
    smp_simulated_plan_close(&simulated);
}

/* Makes the plan, writes it, reads it, verifies it and simulates it again. */
static void check_plan(const setting *s, smp_planner_result *out)
{
    smp_text text = {0}, second = {0};
    if (smp_plan_make(&s->request, "model.yaml", out) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_int_equal(SMP_OK, smp_plan_format(out->plan, &text));

    smp_plan *read = NULL;
    if (smp_plan_parse("plan.yaml", text.data, text.length, &read) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_int_equal(SMP_OK, smp_plan_format(read, &second));
    assert_string_equal(text.data, second.data);
    if (smp_verify(read, s->graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    check_prediction(read, s->graph);

    const smp_search_request *r = &s->request;
    assert_int_equal(r->options.devices, read->pipeline * read->ddp);
    assert_true(r->options.stages == 0 || r->options.stages == read->pipeline);
    assert_true(r->options.ddp == 0 || r->options.ddp == read->ddp);
    assert_true(r->options.chunks == 0 || r->options.chunks == read->chunks);
    assert_true(r->options.microbatches == 0 || r->options.microbatches == read->microbatches);
    assert_true(read->predicted.gap >= -1e-9);
    for (int rank = 0; rank < read->pipeline; rank++)
        assert_true(read->predicted.peak_bytes[rank] <= r->options.memory_bytes);

    smp_text_free(&text);
    smp_text_free(&second);
    smp_plan_destroy(read);
}

static void check_and_close(setting *s)
{
    smp_planner_result result;
    check_plan(s, &result);
    smp_planner_result_destroy(&result);
    close_setting(s);
}

/* Once more: the same bytes. */
static void check_twice(const setting *s)
{
    smp_planner_result result, again;
    smp_text text = {0}, second = {0};
    check_plan(s, &result);
    assert_int_equal(SMP_OK, smp_plan_make(&s->request, "model.yaml", &again));
    assert_int_equal(SMP_OK, smp_plan_format(result.plan, &text));
    assert_int_equal(SMP_OK, smp_plan_format(again.plan, &second));
    assert_string_equal(text.data, second.data);
    smp_text_free(&text);
    smp_text_free(&second);
    smp_planner_result_destroy(&result);
    smp_planner_result_destroy(&again);
}

static void test_planner_automatic(void **state)
{
    (void)state;
    static const char *const models[] = {"mlp.yaml", "gpt-tiny.yaml", "branches.yaml"};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        for (int devices = 1; devices <= 4; devices *= 2) {
            setting s;
            open_setting(&s, models[i], devices);
            if (i > 0 && !is_long()) /* the first is small */
                join_ops(&s, i == 1 ? 8 : 4);
            check_twice(&s);
            s.request.options.optimize = SMP_OPTIMIZE_MEMORY;
            check_and_close(&s);
        }
}

static void test_planner_fixed(void **state)
{
    (void)state;
    for (int chunks = 1; chunks <= 3; chunks++)
        for (int m = 1; m <= (is_long() ? 7 : 3); m += is_long() ? 3 : 2)
            for (int ddp = 1; ddp <= 2; ddp++) {
                setting s;
                open_setting(&s, "branches.yaml", 4);
                s.request.options.ddp = ddp;
                s.request.options.stages = 4 / ddp;
                s.request.options.chunks = chunks;
                s.request.options.microbatches = m;
                s.request.options.schedule = "interleaved";
                s.request.placement = m == 1 ? SMP_PLACEMENT_SPREAD : SMP_PLACEMENT_CLUSTER;
                if (!is_long())
                    join_ops(&s, 2);
                check_and_close(&s);
            }
}

static void test_planner_objective_bottleneck(void **state)
{
    (void)state;
    setting s;
    open_setting(&s, "gpt-tiny.yaml", 4);
    s.request.options.objective = SMP_OBJECTIVE_BOTTLENECK;
    s.request.options.stages = 4;
    s.request.options.schedule = "simple";
    check_and_close(&s);
}

/* The step, and the peak of the fullest rank. */
static double step_of(setting *s, const char *schedule, int64_t memory_bytes, int64_t *peak_bytes)
{
    smp_planner_result result;
    s->request.options.schedule = schedule;
    s->request.options.memory_bytes = memory_bytes;
    if (smp_plan_make(&s->request, "model.yaml", &result) != SMP_OK)
        fail_msg("%s", smp_last_error());
    const smp_predicted *predicted = &result.plan->predicted;
    const double step_us = predicted->step_us;
    *peak_bytes = 0;
    for (int r = 0; r < result.plan->pipeline; r++)
        if (predicted->peak_bytes[r] > *peak_bytes)
            *peak_bytes = predicted->peak_bytes[r];
    smp_planner_result_destroy(&result);
    return step_us;
}

/* What W waits for takes memory that 1F1B does not need, but zero-bubble can do without: in the
 * same memory it is never slower. */
static void test_planner_zero_bubble_in_little_memory(void **state)
{
    setting s;
    int64_t peak, ignored;
    (void)state;
    open_setting(&s, "gpt-tiny.yaml", 4);
    s.request.options.stages = 4;
    s.request.options.ddp = s.request.options.chunks = 1;
    s.request.options.microbatches = 16;
    s.request.options.microbatch_size = 8;
    if (!is_long())
        join_ops(&s, 4);
    s.request.options.recompute = SMP_RECOMPUTE_AUTO;
    step_of(&s, "interleaved", (int64_t)1 << 32, &peak);
    for (int percent = 100; percent >= 60; percent -= is_long() ? 20 : 40) {
        const int64_t memory = peak * percent / 100;
        const double base_us = step_of(&s, "interleaved", memory, &ignored);
        const double us = step_of(&s, "zero-bubble", memory, &ignored);
        if (us > base_us)
            fail_msg("%d %% of the memory: %g us, 1F1B %g", percent, us, base_us);
    }
    close_setting(&s);
}

static void test_planner_no_fit(void **state)
{
    (void)state;
    setting s;
    smp_planner_result result;
    open_setting(&s, "gpt-tiny.yaml", 2);
    s.request.options.memory_bytes = 100000;
    assert_int_equal(SMP_ERR_NO_FIT, smp_plan_make(&s.request, "model.yaml", &result));
    assert_true(strlen(smp_last_error()) > 0);
    close_setting(&s);
}

static void test_planner_bad_request(void **state)
{
    (void)state;
    setting s;
    smp_planner_result result;
    open_setting(&s, "mlp.yaml", 2);
    s.request.options.devices = 3;
    assert_int_equal(SMP_ERR_INPUT, smp_plan_make(&s.request, "model.yaml", &result));
    s.request.options.devices = 2;
    s.request.options.microbatch_size = 0;
    assert_int_equal(SMP_ERR_INPUT, smp_plan_make(&s.request, "model.yaml", &result));
    s.request.options.microbatch_size = 1;
    s.request.options.microbatches = 1 << 24;
    assert_int_not_equal(SMP_OK, smp_plan_make(&s.request, "model.yaml", &result));
    close_setting(&s);
}

/* For CUDA: on equal cards. */
static void open_cards(setting *s, const char *model, int devices, smp_precision precision)
{
    open_setting(s, model, devices);
    smp_device_spec *device = (smp_device_spec *)s->cluster->device; /* its own memory */
    for (int d = 0; d < devices; d++) {
        device[d].flops_bf16 = 16 * device[d].flops_fp32;
        device[d].flops_fp8 = 2 * device[d].flops_bf16;
    }
    s->cluster->cores_per_node = 0;
    assert_int_equal(SMP_OK,
                     smp_graph_set_target(s->graph, (smp_target){SMP_BACKEND_CUDA, precision}));
}

/* Stages of the ops of a plan; malloc'ed. */
static int32_t *stages_of(const smp_plan *plan, const smp_graph *graph)
{
    int32_t *stage = NULL;
    if (smp_plan_bind(plan, graph, &stage) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return stage;
}

/* Every plan holds, says what it is for, and tears no pair apart, whatever the number of stages. */
static void test_planner_cuda(void **state)
{
    (void)state;
    for (int precision = 0; precision < SMP_N_PRECISION; precision++)
        for (int devices = 1; devices <= 8; devices += 1 + devices / 3) {
            if (!is_long() && devices > 2 && (devices < 7 || precision != SMP_PRECISION_BF16))
                continue;
            setting s;
            smp_planner_result result;
            int pairs = 0;
            open_cards(&s, "gpt-tiny.yaml", devices, (smp_precision)precision);
            s.request.options.stages = devices;
            s.request.options.microbatches = is_long() ? 4 : 2;
            check_plan(&s, &result);
            assert_int_equal(SMP_BACKEND_CUDA, result.plan->target.backend);
            assert_int_equal(precision, result.plan->target.precision);
            int32_t *stage = stages_of(result.plan, s.graph);
            for (int32_t op = 0; op < s.graph->n_op; op++)
                if (smp_op_tied(s.graph, op)) {
                    pairs++; /* the GELU with what is before it, and with what is behind */
                    assert_int_equal(stage[op], stage[op + 1]);
                }
            assert_int_equal(2 * 4, pairs);
            free(stage);
            smp_planner_result_destroy(&result);
            close_setting(&s);
        }
}

/* bf16: the copy of the weights counts, and is less than what activations save. */
static void test_planner_bf16_memory(void **state)
{
    (void)state;
    int64_t peak[SMP_N_PRECISION];
    for (int precision = 0; precision < SMP_N_PRECISION; precision++) {
        setting s;
        smp_planner_result result;
        open_cards(&s, "gpt-tiny.yaml", 1, (smp_precision)precision);
        s.request.options.microbatches = 1;
        s.request.options.microbatch_size = 16;
        assert_int_equal(SMP_OK, smp_plan_make(&s.request, "model.yaml", &result));
        peak[precision] = result.plan->predicted.peak_bytes[0];
        smp_planner_result_destroy(&result);
        s.request.options.memory_bytes = peak[precision] - 1;
        s.request.options.recompute = SMP_RECOMPUTE_NONE;
        assert_int_equal(SMP_ERR_NO_FIT, smp_plan_make(&s.request, "model.yaml", &result));
        close_setting(&s);
    }
    assert_int_equal(peak[SMP_PRECISION_FP32], peak[SMP_PRECISION_TF32]);
    assert_true(peak[SMP_PRECISION_BF16] < peak[SMP_PRECISION_FP32]);
    assert_true(peak[SMP_PRECISION_BF16] > peak[SMP_PRECISION_FP32] / 2);
    assert_true(peak[SMP_PRECISION_FP8] > peak[SMP_PRECISION_BF16]); /* rounded factors */
}

/* What a user asks for goes before what a kernel would like; what both keep together stays so. */
static void test_planner_pairs_and_pins(void **state)
{
    (void)state;
    setting s;
    smp_planner_result result;
    open_cards(&s, "gpt-tiny.yaml", 2, SMP_PRECISION_BF16);
    const smp_graph *g = s.graph;
    int32_t n = g->n_op, first = 0;
    while (!smp_op_tied_forward(g, first))
        first++;
    int32_t *pin = calloc((size_t)n, sizeof *pin), *together = calloc((size_t)n, sizeof *together);
    for (int32_t op = 0; op < n; op++)
        pin[op] = op <= first ? 0 : 1;
    s.request.options.stages = 2;
    s.request.options.chunks = 1;
    s.request.pin = pin;
    if (smp_plan_make(&s.request, "model.yaml", &result) != SMP_OK)
        fail_msg("%s", smp_last_error());
    int32_t *stage = stages_of(result.plan, g);
    assert_int_equal(0, stage[first]);
    assert_int_equal(1, stage[first + 1]);
    free(stage);
    smp_planner_result_destroy(&result);
    /* of three in a chain the middle one goes with the first */
    assert_true(smp_op_fused_backward(g, first + 1));
    pin[first + 1] = -1;
    if (smp_plan_make(&s.request, "model.yaml", &result) != SMP_OK)
        fail_msg("%s", smp_last_error());
    stage = stages_of(result.plan, g);
    assert_int_equal(0, stage[first + 1]);
    assert_int_equal(1, stage[first + 2]);
    free(stage);
    smp_planner_result_destroy(&result);

    /* cuts allowed at the gelu of every pair, and nowhere else but in the middle */
    for (int32_t op = 0, label = 0; op < n; op++) {
        label += op == n / 2 || (op > 0 && smp_op_tied_forward(g, op - 1));
        together[op] = label;
    }
    assert_false(smp_op_tied_forward(g, n / 2 - 1));
    s.request.pin = NULL;
    s.request.together = together;
    if (smp_plan_make(&s.request, "model.yaml", &result) != SMP_OK)
        fail_msg("%s", smp_last_error());
    stage = stages_of(result.plan, g);
    for (int32_t op = 0; op < n; op++)
        assert_int_equal(op >= n / 2, stage[op]);
    free(stage);
    smp_planner_result_destroy(&result);
    free(pin);
    free(together);
    close_setting(&s);
}

/* A kind without CUDA kernels is refused before anything is searched. */
static void test_planner_needs_kernels(void **state)
{
    (void)state;
    setting s;
    smp_planner_result result;
    open_cards(&s, "mlp.yaml", 2, SMP_PRECISION_FP32);
    smp_op_kind made_up = *s.graph->op[1].kind;
    made_up.name = "made-up";
    ((smp_op *)s.graph->op)[1].kind = &made_up;
    assert_int_equal(SMP_ERR_INPUT, smp_plan_make(&s.request, "model.yaml", &result));
    assert_non_null(strstr(smp_last_error(), "'made-up' has no kernel for cuda"));
    assert_non_null(strstr(smp_last_error(), "mlp.yaml:"));
    close_setting(&s);
}

/* Costs by a profile, in which I takes the given share of every backward. */
static void make_profile(const setting *s, double share, smp_op_cost *cost, smp_profile *out)
{
    for (int32_t op = 0; op < s->graph->n_op; op++)
        cost[op] = (smp_op_cost){.forward_us = 100 + op,
                                 .backward_us = 250,
                                 .backward_input_us = share * 250,
                                 .backward_weight_us = (1 - share) * 250,
                                 .stash_bytes = 1000,
                                 .output_bytes = 1000};
    *out = (smp_profile){.model = s->graph->name,
                         .fingerprint = s->graph->fingerprint,
                         .device = "cpu",
                         .dtype = "fp32",
                         .microbatch_size = s->request.options.microbatch_size,
                         .n_op = s->graph->n_op,
                         .op = cost};
}

/* What the plan's file says of the split is what it was made with, and the bound knows it. */
static void check_read_again(const smp_planner_result *result, const smp_graph *graph)
{
    smp_text text = {0};
    smp_plan *read = NULL;
    assert_int_equal(SMP_OK, smp_plan_format(result->plan, &text));
    assert_int_equal(SMP_OK, smp_plan_parse("plan.yaml", text.data, text.length, &read));
    check_prediction(read, graph);
    assert_true(result->plan->predicted.step_lower_bound_us > 0 &&
                result->plan->predicted.step_lower_bound_us <= result->plan->predicted.step_us);
    smp_plan_destroy(read);
    smp_text_free(&text);
}

/* A measured split of backwards counts where they are split, in the prediction and in the plan. */
static void test_planner_measured_split(void **state)
{
    (void)state;
    static const char *const schedules[] = {"zero-bubble", "interleaved", NULL};
    static const double shares[] = {0.5, 0.25, 1.0};
    for (int k = 0; k < 3; k++) {
        double step_us[4];
        for (int i = 0; i < 4; i++) {
            setting s;
            smp_profile profile;
            smp_planner_result result;
            open_setting(&s, "gpt-tiny.yaml", 4);
            s.cluster->cores_per_node = 0;
            smp_op_cost *cost = calloc((size_t)s.graph->n_op, sizeof *cost);
            make_profile(&s, shares[i % 3], cost, &profile);
            s.request.profile = &profile;
            s.request.options.stages = s.request.options.microbatches = 4;
            s.request.options.chunks = 1;
            s.request.options.schedule = schedules[k];
            if (smp_plan_make(&s.request, "model.yaml", &result) != SMP_OK)
                fail_msg("%s", smp_last_error());
            check_prediction(result.plan, s.graph);
            check_read_again(&result, s.graph);
            if (i == 3) { /* without it: in halves */
                result.plan->backward_input_us = NULL;
                smp_simulated_plan halves;
                assert_int_equal(SMP_OK, smp_simulated_plan_open(result.plan, s.graph, &halves));
                step_us[3] = halves.simulation->step_us;
                smp_simulated_plan_close(&halves);
            } else {
                step_us[i] = result.plan->predicted.step_us;
            }
            smp_planner_result_destroy(&result);
            free(cost);
            close_setting(&s);
        }
        if (schedules[k] && strcmp(schedules[k], "interleaved") == 0)
            assert_true(step_us[0] == step_us[1] && step_us[0] == step_us[2]);
        else
            assert_true(step_us[1] < step_us[0] && step_us[0] < step_us[2]);
        if (schedules[k])
            assert_true(fabs(step_us[3] - step_us[0]) < 1e-6 * step_us[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planner_automatic),
        cmocka_unit_test(test_planner_fixed),
        cmocka_unit_test(test_planner_objective_bottleneck),
        cmocka_unit_test(test_planner_zero_bubble_in_little_memory),
        cmocka_unit_test(test_planner_no_fit),
        cmocka_unit_test(test_planner_bad_request),
        cmocka_unit_test(test_planner_cuda),
        cmocka_unit_test(test_planner_bf16_memory),
        cmocka_unit_test(test_planner_pairs_and_pins),
        cmocka_unit_test(test_planner_needs_kernels),
        cmocka_unit_test(test_planner_measured_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Pipelines whose stages have groups of their own sizes: where only these fit they are found, no
 * pipeline by hand is faster by more than 3 %, and what is found is what the plan says. */
#include "tests/schedule/tensor/setting.h"

#include <math.h>

#include "schedule/tensor/tensor_mix.h"
#include "schedule/tensor/tensor_plan.h"

enum { USED = 5, OPS = 8 };

/* Two large products before two small ones. */
static const char model[] =
    "smp: 1\nname: wide\n"
    "inputs: {x: {dtype: float32, shape: [256]}, y: {dtype: float32, shape: [256]}}\n"
    "ops:\n"
    "  - {op: linear, name: up, in: x, out: h, features: 2048}\n"
    "  - {op: relu, name: act, in: h, out: h}\n"
    "  - {op: linear, name: down, in: h, out: h, features: 256}\n"
    "  - {op: relu, name: act_1, in: h, out: h}\n"
    "  - {op: linear, name: small, in: h, out: h, features: 256}\n"
    "  - {op: relu, name: act_2, in: h, out: h}\n"
    "  - {op: linear, name: last, in: h, out: h, features: 256}\n"
    "  - {op: mse, name: loss, in: [h, y], out: loss}\n"
    "loss: loss\n";

/* A weight of a large product keeps 8 MiB. */
static void open_wide(setting *s, int devices, int64_t memory_bytes)
{
    open_setting(s, model, devices, memory_bytes, 1e11);
    for (int d = 0; d < devices; d++)
        s->device[d].flops_fp32 = s->device[d].bytes_per_s = 1e11;
    s->request.options.devices = USED;
    s->request.options.microbatches = 0;
    s->request.options.global_batch = 64;
    s->request.options.microbatch_size = 8;
    s->request.placement = SMP_PLACEMENT_AUTO;
}

/* What the last search was asked of its ops. */
typedef struct pinning {
    const int32_t *stage;
    int32_t *pin;
} pinning;

static smp_status pin_ops(void *context, smp_search_request *r)
{
    pinning *p = context;
    free(p->pin);
    p->pin = calloc((size_t)r->graph->n_op, sizeof *p->pin);
    for (int32_t o = 0; o < r->graph->n_op; o++) {
        const int32_t whole = smp_graph_find_op(smp_graph_whole(r->graph), r->graph->op[o].name);
        p->pin[o] = whole < 0 ? -1 : p->stage[whole];
    }
    smp_tensor_pin_between(r->graph, r->rank_begin, r->options.stages, p->pin);
    r->pin = p->pin;
    return SMP_OK;
}

/* Microseconds a sample of one pipeline by hand, with products by columns and rows; INFINITY where
 * it does not fit. cut: where stages begin, and the end. */
static double by_hand(const setting *s, int stages, const int *size, const int *cut)
{
    static const smp_split_entry entry[] = {
        {"up", "columns", {"t", 1, 1}},       {"act", "elements@0", {"t", 1, 1}},
        {"down", "rows", {"t", 1, 1}},        {"small", "columns", {"t", 1, 1}},
        {"act_2", "elements@0", {"t", 1, 1}}, {"last", "rows", {"t", 1, 1}}};
    int32_t stage[OPS];
    int begin[OPS + 1] = {0}, most = 1;
    smp_split_fewer fewer[OPS];
    smp_split_entry used[OPS];
    smp_tensor_result out;
    pinning pins = {.stage = stage};
    smp_tensor_request how = {.only_fixed = true,
                              .fixed = used,
                              .fewer = fewer,
                              .rank_begin = begin,
                              .overlap = SMP_TENSOR_OVERLAP_NO,
                              .adapt = pin_ops,
                              .context = &pins};
    for (int k = 0; k < stages; k++) {
        begin[k + 1] = begin[k] + size[k];
        most = size[k] > most ? size[k] : most;
        for (int o = cut[k]; o < cut[k + 1]; o++)
            stage[o] = k;
    }
    how.tensor = most;
    for (int o = 0; o < OPS; o++)
        if (size[stage[o]] < most)
            fewer[how.n_fewer++] = (smp_split_fewer){s->graph->op[o].name, size[stage[o]]};
    for (size_t i = 0; i < sizeof entry / sizeof *entry; i++)
        if (size[stage[smp_graph_find_op(s->graph, entry[i].op)]] > 1)
            used[how.n_fixed++] = entry[i];
    setting own = *s;
    own.request.options.stages = stages;
    own.request.options.ddp = 1;
    smp_status status = smp_tensor_plan(&own.request, &how, "model.yaml", &out);
    double us = INFINITY;
    if (status == SMP_OK) {
        us = smp_plan_sample_us(&out.request, out.result.plan);
        smp_tensor_result_destroy(&out);
    } else if (status != SMP_ERR_NO_FIT) {
        fail_msg("%s", smp_last_error());
    }
    free(pins.pin);
    return us;
}

/* Over all sizes of two and three stages and all places where they begin. */
static double best_by_hand(const setting *s)
{
    static const int size[][3] = {{4, 1, 0}, {1, 4, 0}, {2, 2, 1}, {2, 1, 2}, {1, 2, 2}};
    double best = INFINITY;
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        const int stages = size[i][2] > 0 ? 3 : 2;
        for (int a = 1; a < OPS; a++)
            for (int b = stages == 3 ? a + 1 : OPS; b < OPS + (stages == 2); b++) {
                const int cut[] = {0, a, stages == 3 ? b : OPS, OPS};
                best = fmin(best, by_hand(s, stages, size[i], cut));
            }
    }
    return best;
}

static void test_tensor_mix_alone_fits(void **state)
{
    (void)state;
    setting s;
    smp_tensor_result out;
    const smp_tensor_request how = {.mix = true};
    open_wide(&s, DEVICES, INT64_C(7) << 20);
    assert_int_equal(SMP_ERR_NO_FIT,
                     smp_tensor_plan(&s.request, &(smp_tensor_request){0}, "model.yaml", &out));
    if (smp_tensor_plan(&s.request, &how, "model.yaml", &out) != SMP_OK)
        fail_msg("%s", smp_last_error());
    const smp_plan *plan = out.result.plan;
    assert_non_null(plan->rank_begin);
    assert_int_equal(USED, smp_plan_processes(plan));
    int least = DEVICES;
    for (int r = 0; r < plan->pipeline; r++) {
        least = smp_plan_rank_tensor(plan, r) < least ? smp_plan_rank_tensor(plan, r) : least;
        assert_true(plan->predicted.peak_bytes[r] <= s.device[0].memory_bytes);
    }
    assert_true(least < smp_plan_tensor(plan));
    const double us = smp_plan_sample_us(&out.request, plan), best_us = best_by_hand(&s);
    print_message("%.3f us a sample, %.3f the best by hand\n", us, best_us);
    assert_true(best_us < INFINITY);
    assert_true(us <= 1.03 * best_us);
    smp_tensor_result_destroy(&out);
    smp_graph_destroy(s.graph);
}

/* Two replicas of three blocks of gradients: one has a block more, of as many micro-batches as both
 * have programs of. */
static void test_tensor_mix_of_uneven_replicas(void **state)
{
    (void)state;
    static const int64_t batch[] = {24, 16}; /* samples: of three blocks of 8, and of two */
    for (int i = 0; i < 2; i++) {
        setting s;
        smp_tensor_result out;
        open_wide(&s, MOST_DEVICES, INT64_C(7) << 20);
        s.request.options.devices = 2 * USED;
        s.request.options.ddp = 2;
        s.request.options.gradient_blocks = 3;
        s.request.options.global_batch = batch[i];
        const smp_status status =
            smp_tensor_plan(&s.request, &(smp_tensor_request){.mix = true}, "model.yaml", &out);
        assert_int_equal(status, i == 0 ? SMP_OK : SMP_ERR_NO_FIT);
        if (status == SMP_OK) {
            assert_non_null(out.result.plan->rank_begin);
            assert_int_equal(out.result.plan->microbatches, 2);
            assert_int_equal(smp_plan_microbatches(out.result.plan), 3);
            smp_tensor_result_destroy(&out);
        }
        smp_graph_destroy(s.graph);
    }
}

/* With memory for all, groups alike are taken unless others gain 3 %. */
static void test_tensor_mix_has_to_pay(void **state)
{
    (void)state;
    setting s;
    smp_tensor_result alike, mixed;
    open_wide(&s, DEVICES, INT64_C(1) << 30);
    assert_int_equal(SMP_OK,
                     smp_tensor_plan(&s.request, &(smp_tensor_request){0}, "model.yaml", &alike));
    assert_int_equal(SMP_OK, smp_tensor_plan(&s.request, &(smp_tensor_request){.mix = true},
                                             "model.yaml", &mixed));
    const double alike_us = smp_plan_sample_us(&alike.request, alike.result.plan),
                 mixed_us = smp_plan_sample_us(&mixed.request, mixed.result.plan);
    print_message("%.3f us a sample with groups alike, %.3f\n", alike_us, mixed_us);
    assert_true(mixed.result.plan->rank_begin ? mixed_us * 1.03 <= alike_us : mixed_us <= alike_us);
    smp_tensor_result_destroy(&alike);
    smp_tensor_result_destroy(&mixed);
    smp_graph_destroy(s.graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_mix_alone_fits),
        cmocka_unit_test(test_tensor_mix_of_uneven_replicas),
        cmocka_unit_test(test_tensor_mix_has_to_pay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

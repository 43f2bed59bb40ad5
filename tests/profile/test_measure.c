/* Measurement with a probe of made-up times: equal ops once, medians, additions, failures. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "profile/distinct.h"
#include "profile/profile.h"

/* Two equal blocks; a and b differ in their input's gradient: x is a model input. h2 has two
 * consumers, so one contribution to its gradient is added. */
static const char model[] = "smp: 1\n"
                            "name: net\n"
                            "%s"
                            "inputs:\n"
                            "  x: {dtype: float32, shape: [8]}\n"
                            "  y: {dtype: float32, shape: [8]}\n"
                            "ops:\n"
                            "  - {op: linear, name: a, in: x, out: h, features: 8}\n"
                            "  - {op: linear, name: b, in: h, out: h, features: 8}\n"
                            "  - {op: relu, name: c, in: h, out: h2}\n"
                            "  - {op: linear, name: d, in: h2, out: h, features: 8}\n"
                            "  - {op: relu, name: e, in: h, out: h}\n"
                            "  - {op: linear, name: f, in: h, out: h, features: 8, bias: false}\n"
                            "  - {op: add, name: g, in: [h, h2], out: h}\n"
                            "  - {op: mse, name: loss, in: [h, y], out: loss}\n"
                            "loss: loss\n";

enum { N_OP = 8, N_DISTINCT = 6, BATCH = 5, OUTLIER_EVERY = 4 };

/* Times depend on the op and the part; one call in four is disturbed. */
typedef struct fake {
    const smp_op *open;
    int opened[N_OP];
    int64_t batch;
    int calls, runs_short, opens, closes, syncs, links, last_progress, total_progress;
    int fail_at_open; /* 0: never */
    int fail_at_call;
} fake;

static double true_us(const smp_op *op, smp_probe_part part)
{
    return 10.0 * (op->name[0] - 'a' + 1) + (double)part;
}

static smp_status fake_open(void *context, const smp_graph *graph, const smp_op *op, int64_t batch)
{
    fake *f = context;
    assert_null(f->open);
    if (++f->opens == f->fail_at_open)
        return smp_fail(SMP_ERR_NO_MEMORY, "no room");
    f->open = op;
    f->batch = batch;
    f->opened[op - graph->op]++;
    return SMP_OK;
}

static smp_status fake_time(void *context, smp_probe_part part, int repeat, double *us)
{
    fake *f = context;
    assert_non_null(f->open);
    assert_true(repeat >= 1);
    if (++f->calls == f->fail_at_call)
        return smp_fail(SMP_ERR_FAILED, "broken kernel");
    *us = true_us(f->open, part);
    if (*us * repeat < 100)
        f->runs_short++;
    if (f->calls % OUTLIER_EVERY == 0)
        *us *= 50;
    return SMP_OK;
}

static void fake_close(void *context)
{
    fake *f = context;
    assert_non_null(f->open);
    f->open = NULL;
    f->closes++;
}

static smp_status fake_link(void *context, int64_t bytes, int repeat, double *us)
{
    fake *f = context;
    assert_true(repeat >= 1);
    *us = 2 + (double)bytes / 1000;
    if (f->links++ % OUTLIER_EVERY == 0)
        *us = 1e6;
    return SMP_OK;
}

static smp_status fake_optimizer(void *context, int64_t elements, int repeat, double *us)
{
    (void)context, (void)repeat;
    *us = (double)elements * 4 / 2000; /* 2 GB/s */
    return SMP_OK;
}

static smp_status fake_reduce(void *context, int64_t elements, int repeat, double *us)
{
    (void)context, (void)repeat;
    *us = (double)elements * 4 / 8000; /* 8 GB/s */
    return SMP_OK;
}

static smp_status fake_sync(void *context, smp_status status)
{
    ((fake *)context)->syncs++;
    return status;
}

static void note_progress(void *context, int done, int total)
{
    fake *f = context;
    assert_int_equal(done, f->last_progress + 1);
    f->last_progress = done;
    f->total_progress = total;
}

static smp_probe make_probe(fake *f)
{
    *f = (fake){0};
    return (smp_probe){.context = f,
                       .device = "fake",
                       .open = fake_open,
                       .time = fake_time,
                       .close = fake_close,
                       .time_link = fake_link,
                       .time_optimizer = fake_optimizer,
                       .time_reduce = fake_reduce,
                       .sync = fake_sync};
}

static smp_profile_options make_options(fake *f)
{
    return (smp_profile_options){.microbatch_size = BATCH,
                                 .min_sample_us = 100,
                                 .samples = 9,
                                 .progress = note_progress,
                                 .progress_context = f};
}

static smp_graph *parse(const char *mode)
{
    char text[2048];
    smp_graph *graph = NULL;
    snprintf(text, sizeof text, model, mode);
    if (smp_graph_parse("model.yaml", text, strlen(text), &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_int_equal(graph->n_op, N_OP);
    return graph;
}

static void test_measure_finds_distinct_ops(void **state)
{
    static const int32_t expected[N_OP] = {0, 1, 2, 1, 2, 3, 4, 5};
    smp_graph *graph = parse("");
    smp_arena *arena = smp_arena_create();
    smp__distinct distinct;
    (void)state;
    assert_int_equal(smp__distinct_ops(graph, arena, &distinct), SMP_OK);
    assert_int_equal(distinct.n, N_DISTINCT);
    for (int i = 0; i < N_OP; i++)
        assert_int_equal(distinct.class_of[i], expected[i]);
    smp_arena_destroy(arena);
    smp_graph_destroy(graph);
}

static void test_measure_takes_medians_of_distinct_ops(void **state)
{
    static const int first[N_OP] = {0, 1, 2, 1, 2, 5, 6, 7};
    smp_graph *graph = parse("");
    fake f;
    const smp_probe probe = make_probe(&f);
    const smp_profile_options options = make_options(&f);
    smp_profile *p = NULL;
    (void)state;
    if (smp_profile_measure(graph, &probe, &options, &p) != SMP_OK)
        fail_msg("%s", smp_last_error());
    for (int i = 0; i < N_OP; i++)
        assert_int_equal(f.opened[i] > 0, first[i] == i);
    assert_int_equal(f.opens, f.closes);
    assert_int_equal(f.batch, BATCH);
    assert_int_equal(f.last_progress, f.total_progress);
    assert_true(f.last_progress % N_DISTINCT == 0 && f.last_progress > 0);
    /* only warm-ups and calibration run shorter than a sample: 1 per opening and part, 2 per part */
    assert_true(f.runs_short < f.calls / 2);

    for (int i = 0; i < N_OP; i++) {
        const smp_op *op = &graph->op[first[i]];
        const bool weights = op->n_param > 0, input = i != 0;
        /* h2 goes to d and g: g is the last consumer, so d's contribution is the one added */
        const double added = i == 3 ? 4.0 * 8 * BATCH / 8e9 * 1e6 : 0;
        assert_true(p->op[i].forward_us == true_us(op, SMP_PROBE_FORWARD));
        assert_true(fabs(p->op[i].backward_input_us -
                         (input ? true_us(op, SMP_PROBE_BACKWARD_INPUT) : 0) - added) < 1e-9);
        assert_true(p->op[i].backward_weight_us ==
                    (weights ? true_us(op, SMP_PROBE_BACKWARD_WEIGHT) : 0));
        assert_true(fabs(p->op[i].backward_us - p->op[i].backward_input_us -
                         p->op[i].backward_weight_us) < 1e-9);
        assert_string_equal(p->name[i], graph->op[i].name);
        assert_int_equal(p->op[i].output_bytes, i == 7 ? 4 : 4 * 8 * BATCH);
    }
    assert_int_equal(p->op[0].weight_bytes, 4 * 72);
    assert_true(fabs(p->optimizer_bytes_per_s / 2e9 - 1) < 1e-9);
    assert_true(fabs(p->reduce_bytes_per_s / 8e9 - 1) < 1e-9);
    assert_true(p->fingerprint == graph->fingerprint);
    assert_string_equal(p->device, "fake");
    assert_int_equal(p->link.n_point, 0);
    assert_int_equal(f.links, 0);
    smp_profile_destroy(p);
    smp_graph_destroy(graph);
}

static void test_measure_links_give_a_rising_curve(void **state)
{
    smp_graph *graph = parse("");
    fake f;
    smp_probe probe = make_probe(&f);
    smp_profile_options options = make_options(&f);
    smp_profile *p = NULL;
    (void)state;
    options.links = true;
    assert_int_equal(smp_profile_measure(graph, &probe, &options, &p), SMP_OK);
    assert_true(p->link.n_point >= 5);
    assert_int_equal(p->link.point_bytes[0], 8);
    assert_int_equal(p->link.point_bytes[p->link.n_point - 1], 32 << 20);
    for (int i = 0; i < p->link.n_point; i++) {
        assert_true(fabs(p->link.point_us[i] - 2 - (double)p->link.point_bytes[i] / 1000) < 1e-9);
        assert_true(i == 0 || p->link.point_bytes[i] > p->link.point_bytes[i - 1]);
    }
    assert_true(fabs(p->link.bytes_per_s / 1e9 - 1) < 1e-3);
    smp_profile_destroy(p);

    probe.time_link = NULL;
    p = NULL;
    assert_int_equal(smp_profile_measure(graph, &probe, &options, &p), SMP_ERR_INPUT);
    assert_null(p);
    smp_graph_destroy(graph);
}

static void test_measure_inference_runs_forward_only(void **state)
{
    smp_graph *graph = parse("mode: inference\n");
    fake f;
    const smp_probe probe = make_probe(&f);
    const smp_profile_options options = make_options(&f);
    smp_profile *p = NULL;
    (void)state;
    assert_int_equal(smp_profile_measure(graph, &probe, &options, &p), SMP_OK);
    for (int i = 0; i < N_OP; i++) {
        assert_true(p->op[i].forward_us > 0 && p->op[i].backward_us == 0);
        assert_int_equal(p->op[i].stash_bytes, 0);
    }
    assert_true(p->optimizer_bytes_per_s == 0);
    smp_profile_destroy(p);
    smp_graph_destroy(graph);
}

/* After a failure all ranks meet in sync: the failed one must not open, time or leave early. */
static void test_measure_failure_ends_at_the_next_sync(void **state)
{
    smp_graph *graph = parse("");
    (void)state;
    for (int at = 1; at <= 60; at++) {
        for (int open = 0; open <= 1; open++) {
            fake f;
            const smp_probe probe = make_probe(&f);
            const smp_profile_options options = make_options(&f);
            smp_profile *p = NULL;
            if (open && at > 3 * N_DISTINCT)
                continue;
            f.fail_at_open = open ? at : 0;
            f.fail_at_call = open ? 0 : at;
            assert_int_equal(smp_profile_measure(graph, &probe, &options, &p),
                             open ? SMP_ERR_NO_MEMORY : SMP_ERR_FAILED);
            assert_null(p);
            assert_null(f.open);
            if (open)
                assert_int_equal(f.opens, at);
            else
                assert_int_equal(f.calls, at);
            /* before the first op two syncs; then one per op opened, and the one that ends it */
            assert_int_equal(f.syncs, 2 + f.opens + (open ? 0 : 1));
        }
    }
    smp_graph_destroy(graph);
}

static void test_measure_refuses_wrong_options(void **state)
{
    smp_graph *graph = parse("");
    fake f;
    const smp_probe probe = make_probe(&f);
    smp_profile *p = NULL;
    (void)state;
    for (int i = 0; i < 3; i++) {
        smp_profile_options options = make_options(&f);
        if (i < 2)
            options.microbatch_size = i == 0 ? 0 : INT64_MAX;
        else
            options.samples = 0;
        assert_int_equal(smp_profile_measure(graph, &probe, &options, &p), SMP_ERR_INPUT);
        assert_null(p);
    }
    smp_graph_destroy(graph);
}

static const char pair_model[] =
    "smp: 1\nname: pair\ninputs: {x: {dtype: float32, shape: [8]}}\nops:\n"
    "  - {op: linear, name: a, in: x, out: h, features: 8}\n"
    "  - {op: gelu, name: b, in: h, out: h}\n"
    "  - {op: linear, name: c, in: h, out: h, features: 8}\n"
    "  - {op: linear, name: d, in: h, out: h, features: 8}\n"
    "  - {op: gelu, name: e, in: h, out: h}\n";

/* The target is written; a product that its gelu rides on is measured apart from one alone, and a
 * probe that runs both at once is not asked for the gelu. */
static void test_measure_of_a_target(void **state)
{
    static const smp_target bf16 = {SMP_BACKEND_CUDA, SMP_PRECISION_BF16};
    smp_graph *graph = NULL;
    (void)state;
    assert_int_equal(smp_graph_parse("m.yaml", pair_model, strlen(pair_model), &graph), SMP_OK);
    assert_int_equal(smp_graph_set_target(graph, bf16), SMP_OK);
    for (int fuses = 0; fuses < 2; fuses++) {
        fake f;
        smp_probe probe = make_probe(&f);
        const smp_profile_options options = make_options(&f);
        smp_profile *p = NULL;
        probe.memory_bytes = 12345;
        probe.fuses = fuses;
        assert_int_equal(smp_profile_measure(graph, &probe, &options, &p), SMP_OK);
        assert_string_equal(p->dtype, "bf16");
        assert_int_equal(p->memory_bytes, 12345);
        assert_int_equal(smp_profile_target(p).backend, SMP_BACKEND_CUDA);
        assert_int_equal(p->op[0].output_bytes, 2 * 8 * BATCH);
        assert_true(f.opened[2] > 0 && f.opened[3] > 0); /* c alone, d with e */
        for (int i = 1; i < 5; i += 3) {
            assert_int_equal(fuses, p->op[i].forward_us == 0);
            assert_true(p->op[i].backward_input_us > 0);
        }
        smp_profile_destroy(p);
    }
    smp_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measure_finds_distinct_ops),
        cmocka_unit_test(test_measure_takes_medians_of_distinct_ops),
        cmocka_unit_test(test_measure_links_give_a_rising_curve),
        cmocka_unit_test(test_measure_inference_runs_forward_only),
        cmocka_unit_test(test_measure_failure_ends_at_the_next_sync),
        cmocka_unit_test(test_measure_refuses_wrong_options),
        cmocka_unit_test(test_measure_of_a_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

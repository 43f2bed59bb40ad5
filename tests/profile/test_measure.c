/* Measurement with a probe of made-up times: equal ops once, medians, additions, failures. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "graph/base/random.h"
#include "profile/distinct.h"
#include "profile/measure.h"
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
    bool tells_nothing; /* runs take time, and are said to take none */
    bool probe_links[SMP_LINK_KINDS];
    double far_us, far_bytes_per_us;
    int64_t busy_bytes; /* while messages of this size are timed something else runs; 0: never */
    double spent_us[SMP_LINK_KINDS];
    int64_t largest[SMP_LINK_KINDS]; /* message so far */
    int link_progress;
} fake;

static double true_us(const smp_op *op, smp_op_part part)
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

static smp_status fake_time(void *context, smp_op_part part, int repeat, double *us)
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
    if (f->tells_nothing) {
        assert_true(repeat <= 10000);
        usleep(100);
        *us = 0;
    }
    return SMP_OK;
}

static void fake_close(void *context)
{
    fake *f = context;
    assert_non_null(f->open);
    f->open = NULL;
    f->closes++;
}

/* Inside a node 1 GB/s; between nodes as f->far says. */
static smp_status fake_link(void *context, smp_link_kind kind, int64_t bytes, int repeat,
                            double *us, double *spent_us)
{
    fake *f = context;
    assert_true(repeat >= 1);
    assert_true(f->probe_links[kind]);
    *us = kind == SMP_LINK_INTRA_NODE ? 2 + (double)bytes / 1000
                                      : f->far_us + (double)bytes / f->far_bytes_per_us;
    if (f->links++ % OUTLIER_EVERY == 0)
        *us *= 3;
    if (bytes == f->busy_bytes)
        *us += 2000;
    *spent_us = 2 * *us * (repeat + 1);
    f->spent_us[kind] += *spent_us;
    f->largest[kind] = bytes;
    return SMP_OK;
}

static void note_link(void *context, smp_link_kind kind, int64_t bytes, double left_s)
{
    fake *f = context;
    assert_true(f->probe_links[kind] && bytes >= 8 && left_s <= 1000);
    f->link_progress++;
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

static smp_status fake_keeping(void *context, double *bytes_per_s)
{
    (void)context;
    *bytes_per_s = 1.5e9 + 0.25;
    return SMP_OK;
}

static smp_status fake_launches(void *context, smp_launch_costs *costs)
{
    (void)context;
    *costs = (smp_launch_costs){2.5, 6.1234567, 0.125};
    return SMP_OK;
}

static smp_status fake_core_switch(void *context, int turns, double *us)
{
    (void)context;
    *us = 1e-4 + turns;
    return SMP_OK;
}

static smp_probe make_probe(fake *f)
{
    *f = (fake){.probe_links = {true, true}, .far_us = 100, .far_bytes_per_us = 25};
    return (smp_probe){.context = f,
                       .device = "fake",
                       .open = fake_open,
                       .time = fake_time,
                       .close = fake_close,
                       .has_link = {true, true},
                       .time_link = fake_link,
                       .time_optimizer = fake_optimizer,
                       .time_reduce = fake_reduce,
                       .time_core_switch = fake_core_switch,
                       .time_keeping = fake_keeping,
                       .time_launches = fake_launches,
                       .sync = fake_sync};
}

static smp_profile_options make_options(fake *f)
{
    return (smp_profile_options){.microbatch_size = BATCH,
                                 .min_sample_us = 100,
                                 .samples = 9,
                                 .link_s = 1000,
                                 .progress = note_progress,
                                 .link_progress = note_link,
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

/* A fourth on either side does not count. */
static void test_middle_mean(void **state)
{
    double few[] = {9, 1, 4}, skewed[] = {1000, 1, 7, 2, 3, 3, 9, 2};
    (void)state;
    assert_true(smp__middle_mean(few, 0) == 0);
    assert_true(smp__middle_mean(few, 3) == 4);
    assert_true(smp__middle_mean(skewed, 8) == (2 + 3 + 3 + 7) / 4.0);
}

/* A time of nothing is measured in no more runs than the clock allows. */
static void test_measure_runs_by_the_clock(void **state)
{
    smp_graph *graph = parse("");
    fake f;
    const smp_probe probe = make_probe(&f);
    const smp_profile_options options = make_options(&f);
    smp_profile *p = NULL;
    (void)state;
    f.tells_nothing = true;
    assert_int_equal(smp_profile_measure(graph, &probe, &options, &p), SMP_OK);
    smp_profile_destroy(p);
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
    /* only warm-ups and calibration run shorter than a sample: 1 per opening and part, 2 per
     * part */
    assert_true(f.runs_short < f.calls / 2);

    for (int i = 0; i < N_OP; i++) {
        const smp_op *op = &graph->op[first[i]];
        const bool weights = op->n_param > 0, input = i != 0 && !op->kind->passes_dout;
        /* h2 goes to d and g: g is the last consumer, so d's contribution is the one added */
        const double added = i == 3 ? 4.0 * 8 * BATCH / 8e9 * 1e6 : 0;
        assert_true(p->op[i].forward_us == true_us(op, SMP_OP_FORWARD));
        assert_true(fabs(p->op[i].backward_input_us -
                         (input ? true_us(op, SMP_OP_BACKWARD_INPUT) : 0) - added) < 1e-9);
        assert_true(p->op[i].backward_weight_us ==
                    (weights ? true_us(op, SMP_OP_BACKWARD_WEIGHT) : 0));
        assert_true(fabs(p->op[i].backward_us - p->op[i].backward_input_us -
                         p->op[i].backward_weight_us) < 1e-9);
        assert_string_equal(p->name[i], graph->op[i].name);
        assert_int_equal(p->op[i].output_bytes, i == 7 ? 4 : 4 * 8 * BATCH);
    }
    assert_int_equal(p->op[0].weight_bytes, 4 * 72);
    assert_true(fabs(p->optimizer_bytes_per_s / 2e9 - 1) < 1e-9);
    assert_true(fabs(p->reduce_bytes_per_s / 8e9 - 1) < 1e-9);
    assert_true(p->launch.kernel_us == 2.5 && p->launch.graph_us == 6.123);
    assert_true(p->launch.graph_kernel_us == 0.125);
    assert_true(p->fingerprint == graph->fingerprint);
    assert_string_equal(p->device, "fake");
    assert_int_equal(p->link[SMP_LINK_INTRA_NODE].n_point, 0);
    assert_int_equal(p->link[SMP_LINK_INTER_NODE].n_point, 0);
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
    const smp_link_spec *near = &p->link[SMP_LINK_INTRA_NODE];
    const smp_link_spec *far = &p->link[SMP_LINK_INTER_NODE];
    assert_true(near->n_point >= 5);
    assert_int_equal(near->point_bytes[0], 8);
    assert_int_equal(near->point_bytes[near->n_point - 1], 32 << 20);
    for (int i = 0; i < near->n_point; i++) {
        assert_true(fabs(near->point_us[i] - 2 - (double)near->point_bytes[i] / 1000) < 1e-9);
        assert_true(i == 0 || near->point_bytes[i] > near->point_bytes[i - 1]);
    }
    assert_true(fabs(near->bytes_per_s / 1e9 - 1) < 1e-3);
    assert_int_equal(far->n_point, near->n_point);
    assert_true(fabs(far->latency_us / 100 - 1) < 0.01);
    assert_true(fabs(far->bytes_per_s / 25e6 - 1) < 1e-3);
    assert_int_equal(f.link_progress, 2 * near->n_point);
    smp_profile_destroy(p);

    f.busy_bytes = 64; /* a busy moment at one size lifts no other */
    f.last_progress = 0;
    assert_int_equal(smp_profile_measure(graph, &probe, &options, &p), SMP_OK);
    near = &p->link[SMP_LINK_INTRA_NODE];
    for (int i = 0; i < near->n_point; i++) {
        const int at = near->point_bytes[i] == f.busy_bytes ? i + 1 : i;
        assert_true(fabs(near->point_us[i] - 2 - (double)near->point_bytes[at] / 1000) < 1e-9);
    }
    smp_profile_destroy(p);
    f.busy_bytes = 0;

    probe.has_link[SMP_LINK_INTRA_NODE] = f.probe_links[SMP_LINK_INTRA_NODE] = false;
    f.last_progress = 0;
    assert_int_equal(smp_profile_measure(graph, &probe, &options, &p), SMP_OK);
    assert_int_equal(p->link[SMP_LINK_INTRA_NODE].n_point, 0);
    assert_true(p->link[SMP_LINK_INTER_NODE].n_point > 0);
    smp_profile_destroy(p);

    probe.has_link[SMP_LINK_INTER_NODE] = false; /* one rank alone: the link to its host */
    probe.has_link[SMP_LINK_HOST] = f.probe_links[SMP_LINK_HOST] = true;
    f.last_progress = 0;
    assert_int_equal(smp_profile_measure(graph, &probe, &options, &p), SMP_OK);
    assert_int_equal(p->link[SMP_LINK_INTER_NODE].n_point, 0);
    assert_int_equal(p->link[SMP_LINK_HOST].n_point, 9);
    assert_true(fabs(p->link[SMP_LINK_HOST].bytes_per_s / 25e6 - 1) < 1e-3);
    smp_profile_destroy(p);
    smp_graph_destroy(graph);
}

/* Whatever the link, the time is kept, but for what the first messages take; a faster link gets
 * larger ones, and what is measured is right. */
static void test_measure_links_keep_to_their_time(void **state)
{
    static const struct {
        double us, bytes_per_us, link_s;
        int64_t largest; /* message that there is time for */
    } cases[] = {
        {100, 25, 10, 8 << 20},    /* 200 Mbit/s: 32 MiB take 5.4 s there and back twice */
        {100, 25, 1, 256 << 10},   /* less time */
        {100, 25, 1000, 32 << 20}, /* enough */
        {1, 10000, 0.5, 32 << 20}, /* fast */
        {50000, 1, 10, 32 << 10},  /* far and slow */
        {1e6, 1e-3, 10, 64},       /* hardly there */
        {100, 25, 1e-6, 8},        /* no time at all */
    };
    smp_graph *graph = parse("");
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake f;
        smp_probe probe = make_probe(&f);
        smp_profile_options options = make_options(&f);
        smp_profile *p = NULL;
        options.links = true;
        options.link_s = cases[i].link_s;
        f.far_us = cases[i].us;
        f.far_bytes_per_us = cases[i].bytes_per_us;
        assert_int_equal(smp_profile_measure(graph, &probe, &options, &p), SMP_OK);
        const smp_link_spec *far = &p->link[SMP_LINK_INTER_NODE];
        const int last = far->n_point - 1;
        const double least_us = 3 * 8 * (cases[i].us + 64 / cases[i].bytes_per_us);
        const double spent_us = f.spent_us[0] + f.spent_us[1];
        if (far->point_bytes[last] != cases[i].largest)
            fail_msg("case %zu: up to %lld bytes", i, (long long)far->point_bytes[last]);
        if (spent_us > 1.5e6 * cases[i].link_s + least_us)
            fail_msg("case %zu: took %g us of %g s", i, spent_us, cases[i].link_s);
        const double us = cases[i].us + (double)far->point_bytes[last] / cases[i].bytes_per_us;
        if (!(far->point_us[last] >= 0.999 * us && far->point_us[last] <= 3.001 * us))
            fail_msg("case %zu: got %g us, expected %g", i, far->point_us[last], us);
        smp_profile_destroy(p);
    }
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
    assert_true(p->keep_bytes_per_s == 1.5e9 && p->launch.kernel_us == 0);
    assert_true(p->core_switch_us >= 10 && p->core_switch_us == floor(p->core_switch_us));
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

/* 0 to 6, whatever parts are measured. */
static double noise_of(const fake *f)
{
    return (double)(smp_random_mix((uint64_t)f->calls) % 7);
}

/* Times that scatter at first: those ops alone are measured again, as often as asked, and the least
 * scattered measurement is taken. */
static smp_status noisy_time(void *context, smp_op_part part, int repeat, double *us)
{
    fake *f = context;
    const smp_op *op = f->open;
    (void)repeat;
    f->calls++;
    *us = true_us(op, part);
    if (op->name[0] == 'b' && f->opened[1] <= 3) /* in the first measurement alone */
        *us *= 1 + 0.1 * noise_of(f);
    if (op->name[0] == 'c') /* always, and more each time */
        *us *= 1 + 0.1 * f->opened[2] * noise_of(f);
    return SMP_OK;
}

static int again_calls, again_scattered[4];

static void note_again(void *context, int scattered, int total)
{
    (void)context;
    assert_int_equal(total, N_DISTINCT);
    assert_true(again_calls < 4);
    again_scattered[again_calls++] = scattered;
}

static void test_measure_again_what_scatters(void **state)
{
    smp_graph *graph = parse("");
    (void)state;
    for (int again = 0; again <= 3; again++) {
        fake f;
        smp_probe probe = make_probe(&f);
        smp_profile_options options = make_options(&f);
        smp_profile *p = NULL;
        probe.time = noisy_time;
        options.again = again;
        options.most_spread = 0.1;
        options.again_progress = note_again;
        again_calls = 0;
        assert_int_equal(smp_profile_measure(graph, &probe, &options, &p), SMP_OK);
        assert_int_equal(again_calls, again);
        for (int i = 0; i < again; i++)
            assert_int_equal(again_scattered[i], i == 0 ? 2 : 1);
        assert_int_equal(f.opened[0], 3);
        assert_int_equal(f.opened[1], again > 0 ? 6 : 3);
        assert_int_equal(f.opened[2], 3 * (1 + again));
        assert_true(p->spread[0] == 0 && p->spread[2] > 0.1);
        assert_true(again > 0 ? p->spread[1] == 0 : p->spread[1] > 0.1);
        assert_int_equal(p->op[1].forward_us == true_us(&graph->op[1], SMP_OP_FORWARD), again > 0);
        assert_true(p->op[2].forward_us < 3 * true_us(&graph->op[2], SMP_OP_FORWARD));
        assert_true(p->spread[3] == p->spread[1] && p->spread[4] == p->spread[2]);
        smp_profile_destroy(p);
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
            assert_int_equal(fuses && i == 1, p->op[i].backward_input_us == 0); /* c runs b's */
        }
        smp_profile_destroy(p);
    }
    smp_graph_destroy(graph);
}

static const char alike_model[] =
    "smp: 1\nname: pair\ninputs: {x: {dtype: float32, shape: [8]}}\nops:\n"
    "  - {op: linear, name: a, in: x, out: h, features: 8}\n"
    "  - {op: linear, name: b, in: x, out: u, features: 8}\n"
    "  - {op: silu, name: c, in: h, out: h}\n"
    "  - {op: mul, name: d, in: [h, u], out: h}\n"
    "  - {op: add, name: e, in: [h, h], out: h}\n"
    "  - {op: rmsnorm, name: f, in: h, out: n}\n"
    "  - {op: add, name: g, in: [n, h], out: h}\n"
    "  - {op: layernorm, name: i, in: h, out: h}\n";

/* A pair that a stage may part is measured as one, each kind of it by itself, and both have a
 * share: by what they read and write, silu and product 2 to 2 arrays, sum and norm 3 to 1. */
static void test_measure_shares_pairs_out(void **state)
{
    static const smp_target bf16 = {SMP_BACKEND_CUDA, SMP_PRECISION_BF16};
    enum { SILU = 2, MUL, SUM, NORM, SUM_2, NORM_2 };
    smp_graph *graph = NULL;
    fake f;
    smp_probe probe = make_probe(&f);
    const smp_profile_options options = make_options(&f);
    smp_profile *p = NULL;
    (void)state;
    assert_int_equal(smp_graph_parse("m.yaml", alike_model, strlen(alike_model), &graph), SMP_OK);
    assert_int_equal(smp_graph_set_target(graph, bf16), SMP_OK);
    probe.fuses = true;
    assert_int_equal(smp_profile_measure(graph, &probe, &options, &p), SMP_OK);
    assert_true(f.opened[SUM] > 0 && f.opened[SUM_2] > 0);
    assert_true(p->op[SILU].forward_us > 0);
    assert_true(fabs(p->op[SILU].forward_us - p->op[MUL].forward_us) <= 1e-3);
    assert_true(fabs(p->op[SUM].forward_us - 3 * p->op[NORM].forward_us) <= 4e-3);
    assert_true(fabs(p->op[SUM].forward_us + p->op[NORM].forward_us -
                     true_us(&graph->op[SUM], SMP_OP_FORWARD)) <= 2e-3);
    assert_true(p->op[SILU].backward_input_us == 0); /* d runs c's */
    smp_profile_destroy(p);
    smp_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measure_finds_distinct_ops),
        cmocka_unit_test(test_middle_mean),
        cmocka_unit_test(test_measure_takes_medians_of_distinct_ops),
        cmocka_unit_test(test_measure_runs_by_the_clock),
        cmocka_unit_test(test_measure_links_give_a_rising_curve),
        cmocka_unit_test(test_measure_links_keep_to_their_time),
        cmocka_unit_test(test_measure_inference_runs_forward_only),
        cmocka_unit_test(test_measure_again_what_scatters),
        cmocka_unit_test(test_measure_failure_ends_at_the_next_sync),
        cmocka_unit_test(test_measure_refuses_wrong_options),
        cmocka_unit_test(test_measure_of_a_target),
        cmocka_unit_test(test_measure_shares_pairs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

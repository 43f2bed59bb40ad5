/* Replicas that differ: by hand, and at random against every replica simulated by itself, with the
 * reductions between them put together afterwards. */
#include "tests/schedule/fixture.h"
#include "tests/schedule/simulate/simulate_fixture.h"

#include <math.h>
#include <string.h>

/* Nodes of three devices. */
static void open_setting(setting *s, made_plan *made, const char *schedule, int pipeline,
                         int chunks, int microbatches, bool training, int ddp)
{
    made_plan_create(made, schedule, pipeline, chunks, microbatches, training, made_skips);
    setting_open(s, made, 4, ddp);
}

static void assert_us(double got, double expected)
{
    if (fabs(got - expected) > 1e-9 * fmax(1.0, fabs(expected)))
        fail_msg("got %.12g us, expected %.12g us", got, expected);
}

static double end_of(const setting *s, const smp_simulation *simulation, int rank,
                     smp_action_kind kind)
{
    const smp_program *program = &s->made->program[rank];
    for (int64_t i = 0; i < program->n; i++)
        if (program->action[i].kind == kind)
            return simulation->end_us[rank][i];
    fail_msg("rank %d has no action of kind %d", rank, (int)kind);
    return 0.0;
}

/* The first replica lies in one node, the second on two, with 100 us between them. */
static void test_replicas_that_cross_nodes_count(void **state)
{
    (void)state;
    setting s;
    made_plan made;
    open_setting(&s, &made, "simple", 2, 1, 1, true, 2);
    s.cluster.inter_node.latency_us = 100.0;
    smp_simulation *got = simulate(&s.input);
    assert_int_equal(got->replica, 1);
    assert_us(end_of(&s, got, 1, SMP_ACTION_F), 102);
    assert_us(end_of(&s, got, 0, SMP_ACTION_B), 206);
    assert_us(got->step_us, 206);
    assert_us(got->busy_us[0], 3);
    smp_simulation_destroy(got);
    s.input.ddp = 1;
    got = simulate(&s.input);
    assert_int_equal(got->replica, 0);
    assert_us(got->step_us, 6);
    smp_simulation_destroy(got);
    made_plan_free(&made);
}

static void assert_shared(double expected_us, setting *s, int adapters, const int device[4])
{
    memcpy(s->device, device, 4 * sizeof *device);
    s->cluster.adapters_per_node = adapters;
    smp_simulation *got = simulate(&s->input);
    assert_us(got->step_us, expected_us);
    smp_simulation_destroy(got);
}

/* Two replicas of two ranks, three messages of 5 us each one after the other. They share the only
 * adapter of a node that both leave, or that both reach. */
static void test_messages_of_replicas_share_adapters(void **state)
{
    (void)state;
    setting s;
    made_plan made;
    made_plan_create(&made, "simple", 2, 1, 3, false, made_chain);
    setting_open(&s, &made, 4, 2); /* nodes of three devices */
    s.cluster.inter_node.latency_us = 5.0;
    const double alone_us = 1 + 3 * 5 + 1, together_us = 1 + 3 * 10 + 1;
    assert_shared(alone_us, &s, 0, (int[]){0, 3, 1, 4});
    assert_shared(together_us, &s, 1, (int[]){0, 3, 1, 4});
    assert_shared(alone_us, &s, 2, (int[]){0, 3, 1, 4});
    assert_shared(together_us, &s, 1, (int[]){0, 3, 1, 6}); /* to two nodes */
    assert_shared(together_us, &s, 1, (int[]){0, 6, 3, 7}); /* from two */
    assert_shared(alone_us, &s, 1, (int[]){0, 3, 6, 9});
    assert_shared(alone_us, &s, 1, (int[]){0, 3, 1, 2}); /* one stays in its node */
    made_plan_free(&made);
}

/* Times are those of the slowest device; the first replica takes half and a third of them. Its
 * reduction waits for the second: two steps of 500 bytes at 1 MB/s. */
static void test_replicas_on_slower_devices_count(void **state)
{
    (void)state;
    setting s;
    made_plan made;
    open_setting(&s, &made, "simple", 2, 1, 1, true, 2);
    s.spec[2].flops_fp32 = 0.5e12;
    s.spec[3].flops_fp32 = 1e12 / 3;
    s.cluster.devices_per_node = 4;
    s.cluster.intra_node.bytes_per_s = 1e6;
    s.weight_bytes[1] = 1000;
    smp_simulation *got = simulate(&s.input);
    double message_us = MADE_OUTPUT_BYTES;
    assert_int_equal(got->replica, 1);
    assert_us(end_of(&s, got, 1, SMP_ACTION_B), 4 + message_us);
    assert_us(end_of(&s, got, 1, SMP_ACTION_REDUCE), 4 + message_us + 1000);
    assert_us(got->step_us, 4 + message_us + 1000);
    smp_simulation_destroy(got);
    memcpy(s.device, (const int[]){2, 3, 0, 1}, 4 * sizeof *s.device);
    got = simulate(&s.input);
    assert_int_equal(got->replica, 0);
    assert_us(got->step_us, 4 + message_us + 1000);
    smp_simulation_destroy(got);
    made_plan_free(&made);
}

/* Sums in the middle of the first stage's operator: 48 bytes once around the ring, 58 us a message,
 * in F and in B, and again in B for what of the forward runs again. */
static void test_sums_of_operators_take_time(void **state)
{
    static const char model[] = "smp: 1\nname: joint\n"
                                "inputs:\n  t: {dtype: float32, shape: [3, 4]}\n"
                                "ops:\n"
                                "  - {op: batchnorm, name: b, in: t, out: x, sync: true}\n"
                                "  - {op: mse, name: loss, in: [x, t], out: loss}\n"
                                "loss: loss\n";
    const double recompute_us[] = {0.5, 0};
    (void)state;
    setting s;
    made_plan made;
    smp_graph *graph;
    assert_int_equal(smp_graph_parse("joint.yaml", model, strlen(model), &graph), SMP_OK);
    made_plan_create(&made, "simple", 2, 1, 1, true, made_chain);
    for (int ddp = 1; ddp <= 3; ddp++) {
        setting_open(&s, &made, 1, ddp);
        s.cluster.intra_node = (smp_link_spec){.latency_us = 10, .bytes_per_s = 1e6};
        smp_simulation *without = simulate(&s.input);
        s.input.graph = graph;
        smp_simulation *with = simulate(&s.input);
        s.input.recompute_us = recompute_us;
        smp_simulation *again = simulate(&s.input);
        assert_us(with->step_us, without->step_us + 58 * 2 * (ddp - 1));
        assert_us(again->step_us, with->step_us + 0.5 + 58 * 0.5 * (ddp - 1));
        smp_simulation_destroy(without);
        smp_simulation_destroy(with);
        smp_simulation_destroy(again);
    }
    smp_graph_destroy(graph);
    made_plan_free(&made);
}

static void open_random(setting *s, made_plan *made, fixture_random *random)
{
    static const char *const names[] = {"simple", "interleaved", "breadth-first"};
    int pipeline = 1 + (int)fixture_below(random, 3),
        chunks = pipeline > 1 ? 1 + (int)fixture_below(random, 2) : 1;
    int ddp = 1 + (int)fixture_below(random, MAX_REPLICAS);
    const char *name = names[fixture_below(random, 2) + (chunks > 1)];
    open_setting(s, made, name, pipeline, chunks, pipeline * (1 + (int)fixture_below(random, 2)),
                 fixture_below(random, 4) > 0, ddp);
    s->cluster.overlap = fixture_below(random, 2);
    s->cluster.intra_node =
        (smp_link_spec){.latency_us = (double)fixture_below(random, 3), .bytes_per_s = 1e9};
    s->cluster.inter_node =
        (smp_link_spec){.latency_us = (double)fixture_below(random, 20), .bytes_per_s = 1e7};
    s->input.optimizer_bytes_per_s = 1e9;
    for (int d = 0; d < MAX_DEVICES; d++)
        s->spec[d].flops_fp32 = 1e12 / (double)(1 + fixture_below(random, 3));
    for (int i = 0; i < s->made->plan.n_stage; i++) {
        s->forward_us[i] = (double)(1 + fixture_below(random, 20));
        s->backward_us[i] = (double)fixture_below(random, 40);
        s->weight_bytes[i] = 4 * fixture_below(random, 5000);
    }
    for (int i = 0; i < pipeline * ddp; i++)
        s->device[i] = (int)fixture_below(random, MAX_DEVICES);
}

static double slowdown_of(const setting *s, int replica, int rank)
{
    return 1e12 / s->spec[s->device[replica * s->input.pipeline + rank]].flops_fp32;
}

/* One replica alone: what it takes on its own devices. */
static smp_simulation *simulate_alone(const setting *s, int replica)
{
    smp_simulation_input input = s->input;
    double forward_us[MAX_STAGES], backward_us[MAX_STAGES];
    for (int i = 0; i < s->made->plan.n_stage; i++) {
        double slowest = 0.0;
        for (int d = 0; d < s->input.ddp; d++)
            slowest = fmax(slowest, slowdown_of(s, d, s->rank[i]));
        double share = slowdown_of(s, replica, s->rank[i]) / slowest;
        forward_us[i] = share * s->forward_us[i];
        backward_us[i] = share * s->backward_us[i];
    }
    input.ddp = 1;
    input.device = &s->device[replica * s->input.pipeline];
    input.forward_us = forward_us;
    input.backward_us = backward_us;
    return simulate(&input);
}

static double ring_us(const setting *s, int rank, int64_t bytes)
{
    int d = s->input.ddp;
    double slowest = 0.0;
    for (int i = 0; i < d && d > 1 && bytes > 0; i++) {
        int from = s->device[i * s->input.pipeline + rank];
        int to = s->device[(i + 1) % d * s->input.pipeline + rank];
        const smp_link_spec *link =
            from / 3 == to / 3 ? &s->cluster.intra_node : &s->cluster.inter_node;
        slowest = fmax(slowest,
                       link->latency_us + (double)((bytes + d - 1) / d) / link->bytes_per_s * 1e6);
    }
    return 2.0 * (d - 1) * slowest;
}

/* The end of a rank's step: its reductions one after the other as they become possible, each when
 * the last replica has come to it, then the optimizer. */
static double end_of_rank(const setting *s, smp_simulation *const *alone, int rank)
{
    const smp_program *program = &s->made->program[rank];
    double ready_us[2] = {0.0, 0.0}, end_us = 0.0;
    int64_t bytes[2] = {0, 0}, all = 0;
    int n = 0;
    for (int64_t i = 0; i < program->n; i++) {
        if (program->action[i].kind != SMP_ACTION_REDUCE)
            continue;
        int stage = smp_plan_stage_of(&s->made->plan, rank, program->action[i].chunk);
        bytes[n] = s->weight_bytes[stage];
        all += bytes[n];
        for (int d = 0; d < s->input.ddp; d++)
            ready_us[n] = fmax(ready_us[n], alone[d]->start_us[rank][i]);
        n++;
    }
    for (int i = 0; i < n; i++) /* chunks reach R in the order of the program */
        end_us = fmax(end_us, ready_us[i]) + ring_us(s, rank, bytes[i]);
    for (int d = 0; d < s->input.ddp && n == 0; d++)
        end_us = fmax(end_us, alone[d]->step_us);
    return end_us + 1e6 * (double)all / s->input.optimizer_bytes_per_s;
}

static void test_replicas_against_each_alone(void **state)
{
    (void)state;
    int other = 0;
    for (uint64_t seed = 0; seed < 500; seed++) {
        fixture_random random = {seed << 32};
        setting s;
        made_plan made;
        smp_simulation *alone[MAX_REPLICAS];
        open_random(&s, &made, &random);
        double step_us = 0.0;
        for (int d = 0; d < s.input.ddp; d++)
            alone[d] = simulate_alone(&s, d);
        for (int rank = 0; rank < s.input.pipeline; rank++)
            step_us = fmax(step_us, end_of_rank(&s, alone, rank));
        smp_simulation *got = simulate(&s.input);
        if (fabs(got->step_us - step_us) > 1e-9 * step_us)
            fail_msg("seed %d: %.12g us, expected %.12g us", (int)seed, got->step_us, step_us);
        for (int rank = 0; rank < s.input.pipeline; rank++)
            for (int64_t i = 0; i < made.program[rank].n; i++)
                if (made.program[rank].action[i].kind < SMP_ACTION_REDUCE)
                    assert_us(got->end_us[rank][i], alone[got->replica]->end_us[rank][i]);
        other += got->replica > 0;
        for (int d = 0; d < s.input.ddp; d++)
            smp_simulation_destroy(alone[d]);
        smp_simulation_destroy(got);
        made_plan_free(&made);
    }
    assert_true(other > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replicas_that_cross_nodes_count),
        cmocka_unit_test(test_replicas_on_slower_devices_count),
        cmocka_unit_test(test_messages_of_replicas_share_adapters),
        cmocka_unit_test(test_sums_of_operators_take_time),
        cmocka_unit_test(test_replicas_against_each_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

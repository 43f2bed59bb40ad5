/* Times of gathers and of the two hops of reductions, by hand: a byte takes 1 us. */
#include "tests/schedule/simulate/simulate_fixture.h"

#include <math.h>

static void assert_step(const smp_simulation_input *input, double expected)
{
    smp_simulation *got = simulate(input);
    if (fabs(got->step_us - expected) > 1e-6)
        fail_msg("got %.12g us, expected %.12g us", got->step_us, expected);
    smp_simulation_destroy(got);
}

static void open_one_rank(setting *s, made_plan *made, int chunks, int microbatches, bool training,
                          const char *program, int ddp, smp_sharding sharding)
{
    made_plan_stages(made, "breadth-first", 1, chunks, microbatches, training, made_chain);
    made_plan_write(made, 0, program);
    setting_open(s, made, 1, ddp);
    s->cluster.intra_node.bytes_per_s = 1e6;
    s->input.sharding = sharding;
    for (int stage = 0; stage < chunks; stage++)
        s->weight_bytes[stage] = 1000;
}

/* The group gathers and scatters sums in shard - 1 messages, groups add in two turns. */
static void test_simulate_rings_of_groups(void **state)
{
    (void)state;
    setting s;
    made_plan made;
    open_one_rank(&s, &made, 1, 1, true, "G.0 F0.0 B0.0 R.0 A.0 O", 4,
                  (smp_sharding){.shard = 2, .what = SMP_SHARD_OPTIMIZER});
    assert_step(&s.input, 500 + 1 + 2 + 500 + 2 * 250);
    s.cluster.nodes = 2; /* a group in each: the sums across take the slower link */
    s.cluster.devices_per_node = 2;
    s.cluster.inter_node = (smp_link_spec){.latency_us = 100, .bytes_per_s = 1e6};
    assert_step(&s.input, 500 + 1 + 2 + 500 + 2 * 350);
    s.input.sharding.shard = 4; /* every ring crosses the nodes; there is nothing to add across */
    assert_step(&s.input, 3 * 350 + 1 + 2 + 3 * 350);
    made_plan_free(&made);
}

/* The second gather runs while the first chunk computes; what is left of it is waited for. */
static void test_simulate_gathers_ahead(void **state)
{
    (void)state;
    setting s;
    made_plan made;
    open_one_rank(&s, &made, 2, 2, false, "G.0 G.1 F0.0 F1.0 D.0 F0.1 F1.1 D.1", 2,
                  (smp_sharding){.shard = 2, .what = SMP_SHARD_WEIGHTS});
    s.forward_us[0] = s.forward_us[1] = 300;
    assert_step(&s.input, 500 + 4 * 300);
    s.forward_us[0] = 100;
    assert_step(&s.input, 500 + 500 + 2 * 300);
    made_plan_free(&made);
    open_one_rank(&s, &made, 2, 2, false, "G.0 F0.0 F1.0 D.0 G.1 F0.1 F1.1 D.1", 2,
                  (smp_sharding){.shard = 2, .what = SMP_SHARD_WEIGHTS});
    s.forward_us[0] = s.forward_us[1] = 300;
    assert_step(&s.input, 500 + 600 + 500 + 600);
    made_plan_free(&made);
}

/* With no weight that is tied, one choice is the best. */
static void assert_hops(int expected, const smp_simulation_input *input)
{
    int choice[SMP_HOPS_CHOICES];
    assert_int_equal(1, smp_node_replicas(input, 0, 1000, 0, choice));
    assert_int_equal(expected, choice[0]);
}

/* Four replicas on two nodes: around one ring; first inside the nodes, where a half is left to send
 * between them; and the same where the two devices of a node share an adapter. */
static void test_simulate_two_hops(void **state)
{
    (void)state;
    setting s;
    made_plan made;
    open_one_rank(&s, &made, 1, 1, true, "F0.0 B0.0 R.0 O", 4, (smp_sharding){.shard = 1});
    s.cluster.nodes = 2;
    s.cluster.devices_per_node = 2;
    s.cluster.inter_node = (smp_link_spec){.latency_us = 100, .bytes_per_s = 1e6};
    assert_step(&s.input, 3 + 6 * 350);
    s.input.sharding.node_replicas = 2;
    assert_step(&s.input, 3 + 2 * 500 + 2 * 350);
    s.input.sharding.gradient_wire = SMP_WIRE_BF16; /* half of the bytes in both hops */
    assert_step(&s.input, 3 + 2 * 250 + 2 * (100 + 125));
    s.input.sharding.gradient_wire = SMP_WIRE_FP32;
    assert_hops(2, &s.input);
    s.cluster.adapters_per_node = 1;
    assert_step(&s.input, 3 + 2 * 500 + 2 * 2 * 350);
    s.input.sharding.node_replicas = 0;
    assert_step(&s.input, 3 + 2 * (250 + 2 * 2 * 350));
    assert_hops(2, &s.input);
    s.device[1] =
        2; /* neighbouring replicas lie on different nodes: a half crosses, then the rest */
    s.device[2] = 1;
    assert_step(&s.input, 3 + 2 * (250 + 2 * 2 * 350));
    s.input.sharding.node_replicas = 2;
    assert_step(&s.input, 3 + 2 * (2 * 600 + 250));
    assert_hops(2, &s.input);
    made_plan_free(&made);
}

/* The same with all states in shards of four: every gather, and the sum, goes one way. */
static void test_simulate_two_hops_of_groups(void **state)
{
    (void)state;
    static const smp_sharding sharding = {.shard = 4, .what = SMP_SHARD_WEIGHTS};
    setting s;
    made_plan made;
    open_one_rank(&s, &made, 1, 1, true, "G.0 F0.0 B0.0 R.0 D.0 A.0 O", 4, sharding);
    s.cluster.nodes = 2;
    s.cluster.devices_per_node = 2;
    s.cluster.inter_node = (smp_link_spec){.latency_us = 100, .bytes_per_s = 1e6};
    assert_step(&s.input, 3 + 2 * 3 * 350);
    s.input.sharding.node_replicas = 2;
    assert_step(&s.input, 3 + 2 * (500 + 350));
    s.input.sharding.gradient_wire = SMP_WIRE_BF16; /* of the sum, not of the gather */
    assert_step(&s.input, 3 + (500 + 350) + (250 + 225));
    s.input.sharding.gradient_wire = SMP_WIRE_FP32;
    assert_hops(2, &s.input);
    s.input.sharding.shard = 2; /* inside a node: only the second hop of sums leaves it */
    s.input.sharding.node_replicas = 0;
    assert_hops(0, &s.input);
    made_plan_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulate_rings_of_groups),
        cmocka_unit_test(test_simulate_gathers_ahead),
        cmocka_unit_test(test_simulate_two_hops),
        cmocka_unit_test(test_simulate_two_hops_of_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

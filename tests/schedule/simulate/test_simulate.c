/* The simulator against times worked out by hand: links, overlap, shared cores, reductions, ties.
 */
#include "tests/schedule/simulate/simulate_fixture.h"

#include <math.h>

static int64_t find(const made_plan *made, int rank, const char *text)
{
    smp_program one = {0};
    assert_int_equal(smp_program_parse(text, 0, (smp_where){"text", 1, 1}, &one), SMP_OK);
    const smp_program *p = &made->program[rank];
    int64_t at = 0;
    while (at < p->n && (p->action[at].kind != one.action[0].kind ||
                         p->action[at].microbatch != one.action[0].microbatch ||
                         p->action[at].chunk != one.action[0].chunk))
        at++;
    smp_program_free(&one);
    if (at == p->n)
        fail_msg("rank %d has no %s", rank, text);
    return at;
}

static void assert_us(double got, double expected)
{
    if (fabs(got - expected) > 1e-6)
        fail_msg("got %.9g us, expected %.9g us", got, expected);
}

static void assert_action(const made_plan *made, const smp_simulation *s, int rank,
                          const char *action, double start_us, double end_us)
{
    int64_t i = find(made, rank, action);
    if (fabs(s->start_us[rank][i] - start_us) > 1e-6 || fabs(s->end_us[rank][i] - end_us) > 1e-6)
        fail_msg("rank %d %s: %g to %g us, expected %g to %g", rank, action, s->start_us[rank][i],
                 s->end_us[rank][i], start_us, end_us);
}

static void test_simulate_link_time(void **state)
{
    (void)state;
    made_plan made;
    setting s;
    made_plan_create(&made, "simple", 2, 1, 1, true, made_chain);
    setting_open(&s, &made, 1, 1);
    s.cluster.intra_node = (smp_link_spec){.latency_us = 3.0, .bytes_per_s = 1e6}; /* 67 us */
    s.input.optimizer_bytes_per_s = 1e6;
    s.weight_bytes[0] = 5;
    s.weight_bytes[1] = 200;
    smp_simulation *got = simulate(&s.input);
    assert_action(&made, got, 0, "F0.0", 0, 1);
    assert_action(&made, got, 0, ">F0.0", 1, 68);
    assert_action(&made, got, 1, "<F0.0", 0, 68);
    assert_action(&made, got, 1, "F0.0", 68, 69);
    assert_action(&made, got, 1, "B0.0", 69, 71);
    assert_action(&made, got, 1, "O", 71, 271);
    assert_action(&made, got, 0, "B0.0", 138, 140);
    assert_action(&made, got, 0, "O", 140, 145);
    assert_us(got->step_us, 271);
    assert_us(got->busy_us[0], 8);
    assert_us(got->busy_us[1], 203);
    assert_us(got->bubble, 137.0 / 140.0);
    smp_simulation_destroy(got);
    made_plan_free(&made);
}

/* What no file can say, a caller can. */
static void test_simulate_refuses_a_step_without_end(void **state)
{
    (void)state;
    made_plan made;
    setting s;
    smp_simulation *got = NULL;
    made_plan_create(&made, "simple", 2, 1, 1, true, made_chain);
    setting_open(&s, &made, 1, 1);
    s.cluster.intra_node.bytes_per_s = 1e-320;
    assert_int_equal(smp_simulate(&s.input, &got), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "inf"));
    assert_null(got);
    made_plan_free(&made);
}

/* Three messages over one slow link go one after the other; compute beside them goes on. */
static void test_simulate_link_is_first_in_first_out(void **state)
{
    (void)state;
    made_plan made;
    setting s;
    made_plan_create(&made, "simple", 2, 1, 3, false, made_chain);
    setting_open(&s, &made, 1, 1);
    s.cluster.intra_node = (smp_link_spec){.latency_us = 5.0, .bytes_per_s = 1e300};
    smp_simulation *got = simulate(&s.input);
    assert_action(&made, got, 0, "F2.0", 2, 3);
    assert_action(&made, got, 0, ">F2.0", 3, 16);
    assert_action(&made, got, 1, "F0.0", 6, 7);
    assert_action(&made, got, 1, "F1.0", 11, 12);
    assert_action(&made, got, 1, "F2.0", 16, 17);
    assert_us(got->step_us, 17);
    smp_simulation_destroy(got);
    made_plan_free(&made);
}

static void test_simulate_without_overlap(void **state)
{
    (void)state;
    made_plan made;
    setting s;
    made_plan_create(&made, "simple", 2, 1, 2, false, made_chain);
    setting_open(&s, &made, 1, 1);
    s.cluster.overlap = false;
    s.cluster.intra_node = (smp_link_spec){.latency_us = 5.0, .bytes_per_s = 1e300};
    smp_simulation *got = simulate(&s.input);
    assert_action(&made, got, 0, ">F0.0", 1, 6);
    assert_action(&made, got, 0, "F1.0", 6, 7);
    assert_action(&made, got, 1, "<F0.0", 0, 6);
    assert_action(&made, got, 1, "<F1.0", 7, 12);
    assert_us(got->step_us, 13);
    smp_simulation_destroy(got);
    s.forward_us[1] = 20.0; /* the receiver comes late and takes the message's time then */
    got = simulate(&s.input);
    assert_action(&made, got, 0, ">F1.0", 7, 12);
    assert_action(&made, got, 1, "<F1.0", 26, 31);
    assert_us(got->step_us, 51);
    smp_simulation_destroy(got);
    made_plan_free(&made);
}

static bool no_edges(int reader, int producer)
{
    (void)reader;
    (void)producer;
    return false;
}

/* Four ranks of 1, 2, 3, 4 us on two cores. */
static void test_simulate_shared_cores(void **state)
{
    (void)state;
    made_plan made;
    setting s;
    made_plan_create(&made, "simple", 4, 1, 1, false, no_edges);
    setting_open(&s, &made, 1, 1);
    s.cluster.cores_per_node = 2;
    for (int i = 0; i < 4; i++)
        s.forward_us[i] = i + 1;
    smp_simulation *got = simulate(&s.input);
    /* ranks 0 and 2 on one core, 1 and 3 on the other; the second waits for the first */
    const double switch_us = SMP_DEFAULT_CORE_SWITCH_US;
    const double starts[4] = {0, 0, 1, 2};
    const double ends[4] = {1, 2, 1 + switch_us + 3, 2 + switch_us + 4};
    for (int r = 0; r < 4; r++)
        assert_action(&made, got, r, "F0.0", starts[r], ends[r]);
    assert_us(got->step_us, 6 + switch_us);
    assert_us(got->busy_us[1], 2);
    assert_us(got->busy_us[3], 4 + switch_us);
    smp_simulation_destroy(got);
    s.cluster.nodes = 2; /* two devices and two cores each */
    s.cluster.devices_per_node = 2;
    got = simulate(&s.input);
    assert_us(got->step_us, 4);
    smp_simulation_destroy(got);
    s.cluster.cores_per_node = 1;
    got = simulate(&s.input);
    const double one_starts[4] = {0, 1, 0, 3};
    const double one_ends[4] = {1, 1 + switch_us + 2, 3, 3 + switch_us + 4};
    for (int r = 0; r < 4; r++)
        assert_action(&made, got, r, "F0.0", one_starts[r], one_ends[r]);
    smp_simulation_destroy(got);
    made_plan_free(&made);
}

/* Who has another chunk to go on with keeps the core for a slice, which may end within an
 * action. */
static void test_simulate_cores_are_kept_for_a_slice(void **state)
{
    (void)state;
    made_plan made;
    setting s;
    made_plan_create(&made, "simple", 2, 2, 2, false, no_edges);
    setting_open(&s, &made, 1, 1);
    s.cluster.cores_per_node = 1;
    s.cluster.core_switch_us = 100;
    for (int i = 0; i < 4; i++)
        s.forward_us[i] = 3000;
    smp_simulation *got = simulate(&s.input);
    assert_action(&made, got, 0, "F0.0", 0, 3000);
    assert_action(&made, got, 0, "F1.0", 3000, 10200); /* 1000 of it in the first slice */
    assert_action(&made, got, 1, "F0.0", 4000, 7100);
    assert_action(&made, got, 1, "F1.0", 7100, 14300);
    assert_action(&made, got, 0, "F0.1", 10200, 17400);
    assert_action(&made, got, 1, "F0.1", 14300, 21500);
    assert_action(&made, got, 0, "F1.1", 17400, 20400);
    assert_action(&made, got, 1, "F1.1", 21500, 24500);
    smp_simulation_destroy(got);
    for (int i = 0; i < 4; i++)
        s.forward_us[i] = 900; /* all four are done before */
    got = simulate(&s.input);
    assert_action(&made, got, 0, "F1.1", 2700, 3600);
    assert_action(&made, got, 1, "F1.1", 6400, 7300);
    smp_simulation_destroy(got);
    for (int i = 0; i < 4; i++)
        s.forward_us[i] = 1e13; /* a hundred days: 2e10 slices, of which most are longer */
    got = simulate(&s.input);
    assert_true(got->step_us >= 8e13 && got->step_us <= 1.03 * 8e13);
    smp_simulation_destroy(got);
    made_plan_free(&made);
}

/* Four replicas of one rank on two cores, and as many cores as replicas. */
static void test_simulate_replicas_share_cores(void **state)
{
    (void)state;
    made_plan made;
    setting s;
    made_plan_create(&made, "simple", 1, 1, 2, true, made_chain);
    setting_open(&s, &made, 1, 4);
    s.cluster.cores_per_node = 2;
    s.weight_bytes[0] = 1000000;
    s.input.optimizer_bytes_per_s = 1e12;
    smp_simulation *got = simulate(&s.input);
    /* on each core 6 of compute and 1 of the optimizer, twice: first one, the other, then in
     * turns */
    assert_us(got->step_us, 14 + 3 * SMP_DEFAULT_CORE_SWITCH_US);
    smp_simulation_destroy(got);
    s.cluster.cores_per_node = 4;
    got = simulate(&s.input);
    assert_us(got->step_us, 7);
    smp_simulation_destroy(got);
    made_plan_free(&made);
}

/* Two chunks of two replicas: a device adds up the gradients of one beside the backward of the
 * other; cores that move the data themselves do it after all else. */
static void test_simulate_cores_move_what_is_summed(void **state)
{
    (void)state;
    made_plan made;
    setting s;
    made_plan_create(&made, "breadth-first", 1, 2, 1, true, made_chain);
    setting_open(&s, &made, 1, 2);
    s.cluster.intra_node.bytes_per_s = 1e12;
    s.weight_bytes[0] = s.weight_bytes[1] = 1000000;
    s.input.optimizer_bytes_per_s = 1e12;
    smp_simulation *got = simulate(&s.input);
    assert_us(got->step_us, 2 + 4 + 1 + 2); /* a sum: two messages of half */
    smp_simulation_destroy(got);
    s.cluster.cores_per_node = MAX_DEVICES;
    got = simulate(&s.input);
    assert_us(got->step_us, 2 + 4 + 2 + 2);
    assert_us(got->reduction_us[0], 2);
    smp_simulation_destroy(got);
    s.spec[0].bytes_per_s = 5.5e11; /* a part goes through memory 11 times: two sums of 10 */
    got = simulate(&s.input);
    assert_us(got->step_us, 2 + 4 + 20 + 2);
    smp_simulation_destroy(got);
    made_plan_free(&made);
}

/* With a core for every rank, sharing changes nothing; with one core the work is done one after the
 * other, and passing the core on costs time. */
static void test_simulate_core_bounds(void **state)
{
    (void)state;
    made_plan made;
    setting s;
    made_plan_create(&made, "interleaved", 4, 2, 8, true, made_chain);
    setting_open(&s, &made, 1, 1);
    smp_simulation *alone = simulate(&s.input);
    assert_us(alone->step_us, 3 * (8 * 2 + 3));
    s.cluster.cores_per_node = 4;
    smp_simulation *four = simulate(&s.input);
    assert_us(four->step_us, alone->step_us);
    for (int r = 0; r < 4; r++)
        for (int64_t i = 0; i < made.program[r].n; i++)
            assert_us(four->end_us[r][i], alone->end_us[r][i]);
    s.cluster.cores_per_node = 1;
    smp_simulation *one = simulate(&s.input);
    double switches = (one->step_us - 3 * 8 * 8) / SMP_DEFAULT_CORE_SWITCH_US;
    assert_us(switches, (double)(int64_t)(switches + 0.5));
    assert_true(switches >= 4 && switches <= 2 * 8 * 8);
    s.cluster.core_switch_us *= 2;
    smp_simulation *slow = simulate(&s.input);
    assert_us(slow->step_us - one->step_us, one->step_us - 3 * 8 * 8);
    smp_simulation_destroy(alone);
    smp_simulation_destroy(four);
    smp_simulation_destroy(one);
    smp_simulation_destroy(slow);
    made_plan_free(&made);
}

/* Two chunks: the last chunk's ring runs beside the first chunk's backwards, the first chunk's
 * waits for the channel. */
static void test_simulate_ring(void **state)
{
    (void)state;
    made_plan made;
    setting s;
    made_plan_create(&made, "simple", 1, 2, 1, true, made_chain);
    setting_open(&s, &made, 1, 4);
    s.cluster.intra_node = (smp_link_spec){.latency_us = 3.0, .bytes_per_s = 1e6};
    s.weight_bytes[0] = 400;
    s.weight_bytes[1] = 1000;
    smp_simulation *got = simulate(&s.input);
    assert_action(&made, got, 0, "R.1", 4, 4 + 6 * 253);
    assert_action(&made, got, 0, "R.0", 6, 4 + 6 * 253 + 6 * 103);
    assert_action(&made, got, 0, "O", 4 + 6 * 356, 4 + 6 * 356);
    smp_simulation_destroy(got);
    s.cluster.nodes = 2; /* the ring crosses a slower link */
    s.cluster.devices_per_node = 2;
    s.cluster.inter_node = (smp_link_spec){.latency_us = 10.0, .bytes_per_s = 1e6};
    got = simulate(&s.input);
    assert_action(&made, got, 0, "R.1", 4, 4 + 6 * 260);
    smp_simulation_destroy(got);
    made_plan_free(&made);
}

/* A weight of 64 bytes used by the two stages: exchanged when both have reached R, then reduced. */
static void test_simulate_tied_weights(void **state)
{
    (void)state;
    const char *model = "smp: 1\nname: tied\ninputs:\n  x: {dtype: float32, shape: [4]}\nops:\n"
                        "  - {op: linear, name: a, in: x, out: x, features: 4, bias: false}\n"
                        "  - {op: linear, name: b, in: x, out: x, features: 4, bias: false, "
                        "weight: a.weight}\n";
    made_plan made;
    made_plan_create(&made, "simple", 2, 1, 1, true, made_chain);
    smp_flow_destroy(made.flow);
    smp_graph_destroy(made.graph);
    if (smp_graph_parse("tied.yaml", model, strlen(model), &made.graph) ||
        smp_flow_build(made.graph, (const int32_t[]){0, 1}, 2, 1, &made.flow))
        fail_msg("%s", smp_last_error());
    assert_int_equal(made.flow->n_tie, 1);
    setting s;
    setting_open(&s, &made, 1, 1);
    s.weight_bytes[0] = s.weight_bytes[1] = 64;
    s.cluster.intra_node = (smp_link_spec){.latency_us = 36.0, .bytes_per_s = 1e6};
    /* A message of 16 bytes takes 52, so rank 0 is done at 1 + 52 + 1 + 2 + 52 + 2 = 110. */
    smp_simulation *got = simulate(&s.input);
    assert_action(&made, got, 1, "R.0", 56, 110 + 100);
    assert_action(&made, got, 0, "R.0", 110, 110 + 100);
    assert_us(got->step_us, 210);
    smp_simulation_destroy(got);
    s.input.ddp = 2;
    s.weight_bytes[0] = 164; /* 100 bytes that are not tied: a ring of their own before */
    got = simulate(&s.input);
    assert_action(&made, got, 0, "R.0", 110, 110 + 2 * 86 + 100 + 2 * 68);
    smp_simulation_destroy(got);
    s.input.ddp = 1;
    s.rank[1] = 0; /* both on one rank: nothing to exchange, and one copy for the optimizer */
    s.input.pipeline = 1;
    s.input.chunks = 2;
    s.weight_bytes[0] = 64;
    s.input.optimizer_bytes_per_s = 1e6;
    made_plan_write(&made, 0, "F0.0 F0.1 B0.1 R.1 B0.0 R.0 O");
    got = simulate(&s.input);
    assert_action(&made, got, 0, "R.0", 6, 6);
    assert_action(&made, got, 0, "O", 6, 70);
    smp_simulation_destroy(got);
    made_plan_free(&made);
}

static void test_simulate_split_backward(void **state)
{
    (void)state;
    made_plan made;
    setting s;
    made_plan_create(&made, "simple", 1, 1, 1, true, made_chain);
    setting_open(&s, &made, 1, 1);
    made_plan_write(&made, 0, "F0.0 I0.0 W0.0 R.0 O");
    s.backward_us[0] = 5.0;
    smp_simulation *got = simulate(&s.input);
    assert_action(&made, got, 0, "I0.0", 1, 3.5);
    assert_action(&made, got, 0, "W0.0", 3.5, 6);
    smp_simulation_destroy(got);
    const double input_us[1] = {2.0};
    s.input.backward_input_us = input_us;
    got = simulate(&s.input);
    assert_action(&made, got, 0, "W0.0", 3, 6);
    smp_simulation_destroy(got);
    made_plan_free(&made);
}

/* I takes what its ops' costs say, of no op more than its whole backward: as the bounds count
 * it. */
static void test_simulate_split_of_costs(void **state)
{
    (void)state;
    const smp_op_cost op[] = {{.backward_us = 5, .backward_input_us = 10},
                              {.backward_us = 5},
                              {.backward_us = 8, .backward_input_us = 2}};
    const int32_t stage_of_op[] = {0, 0, 1};
    const double backward_us[] = {20, 8, 1}, *input_us;
    const smp_costs costs = {.n_op = 3, .op = op};
    smp_arena *arena = smp_arena_create();
    assert_int_equal(SMP_OK,
                     smp_split_backward(&costs, stage_of_op, 3, backward_us, arena, &input_us));
    assert_us(input_us[0], 10);
    assert_us(input_us[1], 2);
    assert_us(input_us[2], 0);
    smp_arena_destroy(arena);
}

static void assert_idle(const smp_simulation *s, int rank, double warmup_us, double drain_us,
                        double transfer_us, double imbalance_us, double reduction_us)
{
    assert_us(s->warmup_us[rank], warmup_us);
    assert_us(s->drain_us[rank], drain_us);
    assert_us(s->transfer_us[rank], transfer_us);
    assert_us(s->imbalance_us[rank], imbalance_us);
    assert_us(s->reduction_us[rank], reduction_us);
}

/* Equal stages and free links: filling and draining only. A slow stage: its neighbours wait. */
static void test_simulate_idle_causes(void **state)
{
    (void)state;
    made_plan made;
    setting s;
    made_plan_create(&made, "interleaved", 2, 1, 4, true, made_chain);
    setting_open(&s, &made, 1, 1);
    smp_simulation *got = simulate(&s.input); /* F0 F1 . . B0 F2 . B1 F3 B2 B3 on rank 0 */
    assert_us(got->step_us, 15);
    assert_idle(got, 0, 2, 1, 0, 0, 0);
    assert_idle(got, 1, 1, 2, 0, 0, 0);
    smp_simulation_destroy(got);
    s.backward_us[1] = 3.0; /* rank 0 waits one unit for B1 and one for B2 */
    got = simulate(&s.input);
    assert_us(got->step_us, 1 + 16 + 2);
    assert_idle(got, 0, 3, 1 + 2, 0, 1, 0);
    assert_idle(got, 1, 1, 2, 0, 0, 0);
    smp_simulation_destroy(got);
    s.backward_us[1] = 2.0;
    s.cluster.intra_node = (smp_link_spec){.latency_us = 0.5, .bytes_per_s = 1e300};
    got = simulate(&s.input);
    assert_idle(got, 1, 1, 2.5, 0.5 + 0.5, 0.5, 0);
    assert_us(got->idle_us[0] + got->busy_us[0], got->step_us);
    smp_simulation_destroy(got);
    setting_open(&s, &made, 1, 2); /* a ring of 2 * 50.5 us; the optimizer takes 10 us */
    s.cluster.intra_node = (smp_link_spec){.latency_us = 0.0, .bytes_per_s = 1e6};
    s.weight_bytes[0] = s.weight_bytes[1] = 101;
    s.cluster.intra_node.latency_us = 0.0;
    s.input.optimizer_bytes_per_s = 101e5;
    got = simulate(&s.input);
    assert_us(got->reduction_us[0], 2 * 51);
    assert_us(got->reduction_us[1], 2 * 51);
    assert_us(got->busy_us[1], 12 + 10);
    smp_simulation_destroy(got);
    made_plan_free(&made);
}

static void test_simulate_idle_adds_up(void **state)
{
    (void)state;
    for (int seed = 0; seed < 200; seed++) {
        const smp_schedule_kind *kind = smp_schedules()[seed % 5];
        bool training = seed % 5 != 4;
        smp_schedule_shape shape = {
            1 + seed % 4, 1 + seed / 4 % 2, 1 + seed % 7, training, 0, 0, {.shard = 1}, {0}};
        if (smp_schedule_check(kind, &shape))
            continue;
        made_plan made;
        setting s;
        made_plan_create(&made, kind->name, shape.pipeline, shape.chunks, shape.microbatches,
                         training, made_chain);
        setting_open(&s, &made, 1, 1 + seed / 8 % 2);
        s.cluster.overlap = seed % 3;
        s.cluster.cores_per_node = seed % 11 == 0 ? 2 : 0;
        s.cluster.intra_node = (smp_link_spec){.latency_us = seed % 13 * 0.3, .bytes_per_s = 1e8};
        s.input.optimizer_bytes_per_s = 1e8;
        for (int i = 0; i < MAX_STAGES; i++) {
            s.forward_us[i] = 1.0 + seed * (i + 1) % 5 * 0.7;
            s.backward_us[i] = 1.0 + seed * (i + 2) % 7 * 0.9;
            s.weight_bytes[i] = 100 * (i + 1);
        }
        smp_simulation *got = simulate(&s.input);
        for (int r = 0; r < shape.pipeline; r++) {
            assert_us(got->idle_us[r] + got->busy_us[r], got->step_us);
            assert_true(got->idle_us[r] == got->warmup_us[r] + got->drain_us[r] +
                                               got->transfer_us[r] + got->offload_us[r] +
                                               got->imbalance_us[r] + got->reduction_us[r]);
            assert_true(got->warmup_us[r] >= 0 && got->drain_us[r] >= 0 &&
                        got->transfer_us[r] >= 0 && got->imbalance_us[r] >= 0 &&
                        got->reduction_us[r] >= 0);
        }
        smp_simulation_destroy(got);
        made_plan_free(&made);
    }
}

/* A stage that recomputes runs its forward again before its backward, or the first half of it. */
static void test_simulate_recompute(void **state)
{
    (void)state;
    made_plan made;
    setting s;
    made_plan_create(&made, "simple", 1, 1, 1, true, made_chain);
    setting_open(&s, &made, 1, 1);
    made.stage[0].recompute_us = 3.0;
    made.stage[0].forward_us = 3.0;
    made.plan.cluster = &s.cluster;
    smp_simulation *got = NULL;
    assert_int_equal(smp_simulate_plan(&made.plan, made.graph, made.flow, &got), SMP_OK);
    assert_action(&made, got, 0, "B0.0", 3, 3 + 3 + 2);
    smp_simulation_destroy(got);
    made_plan_write(&made, 0, "F0.0 I0.0 W0.0 R.0 O");
    assert_int_equal(smp_simulate_plan(&made.plan, made.graph, made.flow, &got), SMP_OK);
    assert_action(&made, got, 0, "I0.0", 3, 3 + 3 + 1);
    assert_action(&made, got, 0, "W0.0", 7, 8);
    smp_simulation_destroy(got);
    made.stage[0].recompute_us = 0.5; /* a part of it */
    assert_int_equal(smp_simulate_plan(&made.plan, made.graph, made.flow, &got), SMP_OK);
    assert_action(&made, got, 0, "I0.0", 3, 3 + 0.5 + 1);
    smp_simulation_destroy(got);
    made_plan_free(&made);
}

static void refuses(const setting *s, smp_status status, const char *words)
{
    smp_simulation *got = NULL;
    assert_int_equal(smp_simulate(&s->input, &got), status);
    assert_null(got);
    if (!strstr(smp_last_error(), words))
        fail_msg("got '%s', expected '%s'", smp_last_error(), words);
}

static void test_simulate_refuses(void **state)
{
    (void)state;
    made_plan made;
    setting s;
    made_plan_create(&made, "simple", 2, 1, 2, true, made_chain);
    setting_open(&s, &made, 1, 1);
    s.device[1] = MAX_DEVICES;
    refuses(&s, SMP_ERR_INPUT, "rank 1 of 2 lies on device 12");
    s.device[1] = 1;
    s.input.ddp = 7;
    refuses(&s, SMP_ERR_INPUT, "has 12 devices");
    s.input.ddp = 1;
    s.backward_us[1] = NAN;
    refuses(&s, SMP_ERR_INPUT, "stage 1 takes");
    s.backward_us[1] = -1.0;
    refuses(&s, SMP_ERR_INPUT, "stage 1 takes");
    s.backward_us[1] = 1.0;
    s.rank[1] = 0;
    refuses(&s, SMP_ERR_INPUT, "stage 1");
    s.rank[1] = 1;
    s.input.microbatches = 1;
    refuses(&s, SMP_ERR_INPUT, "micro-batch 1 of chunk 0");
    s.input.microbatches = 2;
    made_plan_write(&made, 0, "F0.0 >F0.0 <B0.0 B0.0 F1.0 >F1.0 <B1.0 B1.0 R.0 O");
    made_plan_write(&made, 1, "<F0.0 F0.0 <F1.0 F1.0 B0.0 >B0.0 B1.0 >B1.0 R.0 O");
    refuses(&s, SMP_ERR_FAILED, "rank 0 waits at action 4 B0.0");
    smp_simulation *got = NULL;
    assert_int_equal(smp_simulate_plan(&made.plan, made.graph, made.flow, &got), SMP_ERR_INPUT);
    made_plan_free(&made);
}

/* A plan says what smp_simulate is told: stage times, weights, ranks and the placement. */
static void test_simulate_plan_as_read(void **state)
{
    (void)state;
    made_plan made;
    setting s;
    made_plan_create(&made, "interleaved", 2, 2, 3, true, made_chain);
    setting_open(&s, &made, 1, 2);
    s.cluster.nodes = 4;
    s.cluster.devices_per_node = 1;
    s.cluster.inter_node = (smp_link_spec){.latency_us = 0.5, .bytes_per_s = 1e9};
    for (int i = 0; i < 4; i++) {
        s.weight_bytes[i] = made.stage[i].weight_bytes = 100 * (i + 1);
        s.forward_us[i] = made.stage[i].forward_us = 1.0 + i;
        s.backward_us[i] = made.stage[i].backward_us = 2.0 + i;
    }
    made.plan.cluster = &s.cluster;
    made.plan.ddp = 2;
    made.plan.placement = SMP_PLACEMENT_SPREAD;
    made.plan.optimizer_bytes_per_s = s.input.optimizer_bytes_per_s = 1e8;
    smp_simulation *got = NULL, *expected = simulate(&s.input);
    if (smp_simulate_plan(&made.plan, made.graph, made.flow, &got))
        fail_msg("%s", smp_last_error());
    assert_us(got->step_us, expected->step_us);
    assert_us(got->bubble, expected->bubble);
    smp_simulation_destroy(got);
    smp_simulation_destroy(expected);
    made.plan.ddp = 3;
    assert_int_equal(smp_simulate_plan(&made.plan, made.graph, made.flow, &got), SMP_ERR_INPUT);
    made_plan_free(&made);
    smp_simulation_destroy(NULL);
}

/* Two replicas of one rank, a core each: of two normal sums with deviation s the larger is
 * s / sqrt(pi) above their mean. Alone a rank waits for nobody: its draws have its time as mean. */
static void test_simulate_draws(void **state)
{
    enum { DRAWS = 2000 };
    const double scatter = 0.1, own_us = 3, deviation_us = scatter * sqrt(1 + 2 * 2);
    (void)state;
    for (int ddp = 1; ddp <= 2; ddp++) {
        double sum_us = 0, squares = 0;
        made_plan made;
        setting s;
        made_plan_create(&made, "simple", 1, 1, 1, true, made_chain);
        setting_open(&s, &made, 1, ddp);
        s.cluster.cores_per_node = 2;
        s.cluster.scatter = scatter;
        for (s.input.draw = 1; s.input.draw <= DRAWS; s.input.draw++) {
            smp_simulation *got = simulate(&s.input), *again = simulate(&s.input);
            assert_true(got->step_us == again->step_us);
            sum_us += got->step_us - own_us;
            squares += (got->step_us - own_us) * (got->step_us - own_us);
            smp_simulation_destroy(got);
            smp_simulation_destroy(again);
        }
        const double more_us = ddp == 1 ? 0 : deviation_us / sqrt(acos(-1));
        assert_true(fabs(sum_us / DRAWS - more_us) < 5 * deviation_us / sqrt(DRAWS));
        assert_true(fabs(squares / DRAWS / (deviation_us * deviation_us) - 1) < 0.2);
        s.input.draw = 0;
        smp_simulation *plain = simulate(&s.input);
        assert_us(plain->step_us, own_us);
        smp_simulation_destroy(plain);
        made_plan_free(&made);
    }
}

/* What a plan waits in the mean: nothing without scatter, and more where times scatter more. */
static void test_simulate_waits(void **state)
{
    double waits_us[3];
    made_plan made;
    setting s;
    (void)state;
    made_plan_create(&made, "1f1b", 4, 1, 8, true, made_chain);
    setting_open(&s, &made, 1, 1);
    for (int i = 0; i < 4; i++) {
        made.stage[i].forward_us = 1.0;
        made.stage[i].backward_us = 2.0;
    }
    made.plan.cluster = &s.cluster;
    smp_simulation *plain = simulate(&s.input);
    for (int i = 0; i < 3; i++) {
        s.cluster.scatter = 0.05 * i;
        assert_int_equal(
            smp_simulate_waits(&made.plan, made.graph, made.flow, plain->step_us, &waits_us[i]),
            SMP_OK);
    }
    assert_true(waits_us[0] == 0 && waits_us[1] > 0.01 * plain->step_us);
    assert_true(waits_us[2] > 1.5 * waits_us[1] && waits_us[2] < 0.2 * plain->step_us);
    smp_simulation_destroy(plain);
    made_plan_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulate_link_time),
        cmocka_unit_test(test_simulate_refuses_a_step_without_end),
        cmocka_unit_test(test_simulate_link_is_first_in_first_out),
        cmocka_unit_test(test_simulate_without_overlap),
        cmocka_unit_test(test_simulate_shared_cores),
        cmocka_unit_test(test_simulate_cores_are_kept_for_a_slice),
        cmocka_unit_test(test_simulate_replicas_share_cores),
        cmocka_unit_test(test_simulate_cores_move_what_is_summed),
        cmocka_unit_test(test_simulate_core_bounds),
        cmocka_unit_test(test_simulate_ring),
        cmocka_unit_test(test_simulate_tied_weights),
        cmocka_unit_test(test_simulate_split_backward),
        cmocka_unit_test(test_simulate_split_of_costs),
        cmocka_unit_test(test_simulate_idle_causes),
        cmocka_unit_test(test_simulate_idle_adds_up),
        cmocka_unit_test(test_simulate_recompute),
        cmocka_unit_test(test_simulate_refuses),
        cmocka_unit_test(test_simulate_plan_as_read),
        cmocka_unit_test(test_simulate_draws),
        cmocka_unit_test(test_simulate_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

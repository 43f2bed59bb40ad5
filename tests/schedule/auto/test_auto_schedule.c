/* The schedule "auto" on stages that cost different amounts: never slower than the best fixed rule,
 * clearly faster on average, above its lower bound, within the memory limit, the best of all orders
 * where all can be tried. */
#include "tests/case_count.h"
#include "tests/schedule/fixture.h"
#include "tests/schedule/made_plan.h"
#include "schedule/auto/auto_schedule.h"

#include <math.h>

enum { MAX_RANKS = 8, MAX_STAGES = 32 };

typedef struct costs {
    smp_cluster cluster;
    smp_device_spec device[MAX_RANKS];
    double forward_us[MAX_STAGES], backward_us[MAX_STAGES], input_us[MAX_STAGES];
    int64_t weight_bytes[MAX_STAGES], stash_bytes[MAX_STAGES], limit_bytes[MAX_RANKS];
    int rank[MAX_STAGES], place[MAX_RANKS];
    smp_auto_input input;
} costs;

static double between(fixture_random *random, double low, double high)
{
    return low + (high - low) * (double)fixture_below(random, 1000) / 1000.0;
}

/* Stages of 50 to 200 us forward, backwards of 1.6 to 2.4 times that, links of 10 to 100 us. */
static void set_costs(costs *c, const made_plan *made, fixture_random *random)
{
    *c = (costs){.cluster = {.name = "unequal",
                             .nodes = 1,
                             .devices_per_node = MAX_RANKS,
                             .device = c->device,
                             .intra_node = {.bytes_per_s = 1e12},
                             .overlap = true}};
    c->cluster.intra_node.latency_us = between(random, 10.0, 100.0);
    for (int s = 0; s < made->plan.n_stage; s++) {
        c->forward_us[s] = between(random, 50.0, 200.0);
        c->backward_us[s] = c->forward_us[s] * between(random, 1.6, 2.4);
        c->input_us[s] = c->backward_us[s] * between(random, 0.4, 0.6);
        c->stash_bytes[s] = 1 << 20;
        c->rank[s] = made->stage[s].rank;
    }
    for (int r = 0; r < MAX_RANKS; r++)
        c->place[r] = r;
    c->input = (smp_auto_input){.simulation = {.pipeline = made->plan.pipeline,
                                               .chunks = made->plan.chunks,
                                               .ddp = 1,
                                               .microbatches = made->plan.microbatches,
                                               .stage_rank = c->rank,
                                               .forward_us = c->forward_us,
                                               .backward_us = c->backward_us,
                                               .backward_input_us = c->input_us,
                                               .weight_bytes = c->weight_bytes,
                                               .flow = made->flow,
                                               .graph = made->graph,
                                               .cluster = &c->cluster,
                                               .device = c->place},
                                .stash_bytes = c->stash_bytes,
                                .effort = 1e7};
}

/* How many micro-batches each rank can keep. */
static void limit_memory(costs *c, int microbatches)
{
    const smp_simulation_input *s = &c->input.simulation;
    for (int r = 0; r < s->pipeline; r++)
        c->limit_bytes[r] = (int64_t)microbatches * s->chunks << 20;
    c->input.limit_bytes = c->limit_bytes;
}

static smp_auto_result solve(made_plan *made, const costs *c)
{
    smp_auto_result result;
    for (int r = 0; r < made->plan.pipeline; r++)
        smp_program_free(&made->program[r]);
    if (smp_auto_schedule(&c->input, made->program, &result))
        fail_msg("%s", smp_last_error());
    made->plan.schedule = "searched";
    if (smp_verify_programs(&made->plan, made->flow))
        fail_msg("%s", smp_last_error());
    return result;
}

static double simulate(const made_plan *made, const costs *c)
{
    smp_simulation_input input = c->input.simulation;
    smp_simulation *s = NULL;
    input.program = made->program;
    if (smp_simulate(&input, &s))
        fail_msg("%s", smp_last_error());
    double us = s->step_us;
    smp_simulation_destroy(s);
    return us;
}

static void assert_within_limits(const made_plan *made, const costs *c)
{
    for (int r = 0; r < made->plan.pipeline; r++) {
        int64_t bytes = 0;
        for (int64_t i = 0; i < made->program[r].n; i++) {
            const smp_action *a = &made->program[r].action[i];
            int stage = a->chunk < 0 ? 0 : smp_plan_stage_of(&made->plan, r, a->chunk);
            if (a->kind == SMP_ACTION_F)
                bytes += c->stash_bytes[stage];
            assert_true(bytes <= c->limit_bytes[r]);
            if (a->kind == SMP_ACTION_B || a->kind == SMP_ACTION_W)
                bytes -= c->stash_bytes[stage];
        }
    }
}

/* Twenty cases: 4 or 8 ranks, one chunk or two (in a ring or a V), p to 3p micro-batches, memory
 * for 3/4, 1 and 3/2 times what 1F1B keeps on its first rank. */
static void test_auto_beats_rules(void **state)
{
    (void)state;
    enum { CASES = 20 };
    double gain = 0.0, gap = 0.0, worst_gap = 0.0, worst_gain = 1e300;
    for (int i = 0; i < CASES; i++) {
        fixture_random random = {1000 + (uint64_t)i};
        int p = i % 2 ? 8 : 4, v = i % 5 == 4 ? 2 : 1, m = p * (1 + i % 3), memory = 3 + i / 2 % 3;
        made_plan made;
        costs c;
        made_plan_stages(&made, i % 10 == 9 ? "zero-bubble" : "interleaved", p, v, m, true,
                         made_chain);
        set_costs(&c, &made, &random);
        limit_memory(&c, v > 1 || memory == 5 ? 3 * p / 2 : memory * p / 4);
        smp_auto_result r = solve(&made, &c);
        assert_within_limits(&made, &c);
        assert_non_null(r.rule);
        assert_true(fabs(simulate(&made, &c) - r.step_us) < 1e-6);
        assert_true(r.step_us <= r.rule_us && r.lower_bound_us <= r.step_us);
        double faster = r.rule_us / r.step_us - 1.0, above = r.step_us / r.lower_bound_us - 1.0;
        print_message("p %d v %d m %2d, memory %2d: %s %.0f us, auto %.0f us (%.1f %% faster), "
                      "bound %.0f us (%.1f %% above)\n",
                      p, v, m, (int)(c.limit_bytes[0] >> 20) / v, r.rule, r.rule_us, r.step_us,
                      100 * faster, r.lower_bound_us, 100 * above);
        gain += faster / CASES;
        gap += above / CASES;
        worst_gap = above > worst_gap ? above : worst_gap;
        worst_gain = faster < worst_gain ? faster : worst_gain;
        made_plan_free(&made);
    }
    print_message("mean %.1f %% faster than the best rule (least %.1f %%), %.1f %% above the bound "
                  "(most %.1f %%)\n",
                  100 * gain, 100 * worst_gain, 100 * gap, 100 * worst_gap);
    assert_true(gain >= 0.05 && worst_gain >= 0.0 && gap < 0.10);
}

static bool skips(int reader, int producer)
{
    return producer == reader - 1 || (reader > 2 && producer == reader % 3);
}

/* What the list scheduler says of its orders is what the simulator says of the lowered programs. */
static void test_auto_times_are_the_simulators(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        fixture_random random = {seed};
        int p = 1 + (int)fixture_below(&random, 5), v = 1 + (int)fixture_below(&random, 3);
        int m = 1 + (int)fixture_below(&random, 6);
        made_plan made;
        costs c;
        made_plan_stages(&made, v == 2 && seed % 2 ? "zero-bubble" : "simple", p, v, m, true,
                         seed % 3 ? skips : made_chain);
        set_costs(&c, &made, &random);
        limit_memory(&c, 1 + (int)fixture_below(&random, m));
        double transfer_us[200], times[4][MAX_STAGES], limits[MAX_RANKS];
        assert_true(made.flow->n_transfer <= 200);
        for (int32_t i = 0; i < made.flow->n_transfer; i++)
            transfer_us[i] = smp_link_us(&c.cluster.intra_node, made.flow->transfer[i].bytes);
        for (int s = 0; s < made.plan.n_stage; s++) {
            times[0][s] = c.forward_us[s];
            times[1][s] = c.input_us[s];
            times[2][s] = c.backward_us[s] - c.input_us[s];
            times[3][s] = (double)c.stash_bytes[s];
        }
        for (int r = 0; r < p; r++)
            limits[r] = (double)c.limit_bytes[r];
        smp_list_input input = {.pipeline = p,
                                .chunks = v,
                                .microbatches = m,
                                .stage_rank = c.rank,
                                .flow = made.flow,
                                .forward_us = times[0],
                                .input_us = times[1],
                                .weight_us = times[2],
                                .transfer_us = transfer_us,
                                .stash_bytes = times[3],
                                .limit_bytes = limits,
                                .effort = 2e5};
        smp_program orders[MAX_RANKS];
        smp_list_result r;
        if (smp_list_schedule(&input, NULL, 0, orders, &r))
            fail_msg("seed %d: %s", (int)seed, smp_last_error());
        smp_schedule_shape shape = {p, v, m, true, 0, 0, {.shard = 1}, {0}};
        if (smp_lower_orders(&shape, c.rank, made.flow, orders, made.program))
            fail_msg("seed %d: %s", (int)seed, smp_last_error());
        made.plan.schedule = "searched";
        if (smp_verify_programs(&made.plan, made.flow))
            fail_msg("seed %d: %s", (int)seed, smp_last_error());
        assert_within_limits(&made, &c);
        double step_us = simulate(&made, &c);
        if (fabs(step_us - r.step_us) > 1e-6 || r.lower_bound_us > step_us + 1e-6 ||
            r.start_us >= 0)
            fail_msg("seed %d: simulated %g, said %g, bound %g", (int)seed, step_us, r.step_us,
                     r.lower_bound_us);
        for (int rank = 0; rank < p; rank++)
            smp_program_free(&orders[rank]);
        made_plan_free(&made);
    }
}

/* ---- all orders of tiny pipelines */

typedef struct tiny {
    double forward_us[2], input_us[2], weight_us[2]; /* of the first replica */
    double slowdown[2][2], link_us[2];               /* of each replica, and rank */
    int replicas, microbatches, limit;
    char word[2][16];
    int used[2];
    double best_us;
} tiny;

/* Times of the two words in a replica by going over them until nothing changes; < 0: a deadlock. */
static double time_words(const tiny *t, int replica)
{
    double link_us = t->link_us[replica];
    double forward_us[2][4], input_us[2][4], now_us[2] = {0};
    int at[2] = {0}, done[2][3] = {{0}};
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < 2; r++)
            for (; at[r] < 3 * t->microbatches; at[r]++, moved = true) {
                int kind = t->word[r][at[r]], mb = done[r][kind];
                if ((kind == 0 && r == 1 && done[0][0] <= mb) ||
                    (kind == 1 && r == 0 && done[1][1] <= mb))
                    break;
                double begin_us = now_us[r];
                if (kind == 0 && r == 1)
                    begin_us = fmax(begin_us, forward_us[0][mb] + link_us);
                if (kind == 1 && r == 0)
                    begin_us = fmax(begin_us, input_us[1][mb] + link_us);
                double cost_us[3] = {t->forward_us[r], t->input_us[r], t->weight_us[r]};
                now_us[r] = begin_us + t->slowdown[replica][r] * cost_us[kind];
                if (kind == 0)
                    forward_us[r][mb] = now_us[r];
                if (kind == 1)
                    input_us[r][mb] = now_us[r];
                done[r][kind]++;
            }
    }
    bool all = at[0] == 3 * t->microbatches && at[1] == 3 * t->microbatches;
    return all ? fmax(now_us[0], now_us[1]) : -1.0;
}

static void try_words(tiny *t, int rank, int f, int i, int w)
{
    if (w == t->microbatches && rank == 1) {
        double us = time_words(t, 0);
        if (us >= 0.0 && t->replicas > 1)
            us = fmax(us, time_words(t, 1));
        if (us >= 0.0 && us < t->best_us)
            t->best_us = us;
        return;
    }
    if (w == t->microbatches) {
        try_words(t, 1, 0, 0, 0);
        return;
    }
    char *next = &t->word[rank][f + i + w];
    if (f < t->microbatches && f - w < t->limit) {
        *next = 0;
        try_words(t, rank, f + 1, i, w);
    }
    if (i < f) {
        *next = 1;
        try_words(t, rank, f, i + 1, w);
    }
    if (w < i) {
        *next = 2;
        try_words(t, rank, f, i, w + 1);
    }
}

/* A second replica, on two nodes, with devices that are up to twice as slow. Stages state the times
 * of the slowest device. */
static void add_replica(costs *c, tiny *t, fixture_random *random)
{
    c->cluster.nodes = 4;
    c->cluster.devices_per_node = 2;
    memcpy(c->place, (const int[]){0, 1, 2, 4}, 4 * sizeof *c->place);
    c->input.simulation.ddp = t->replicas = 2;
    c->cluster.inter_node = (smp_link_spec){.bytes_per_s = 1e300};
    c->cluster.inter_node.latency_us = t->link_us[1] =
        t->link_us[0] + (double)fixture_below(random, 200);
    for (int d = 0; d < MAX_RANKS; d++)
        c->device[d].flops_fp32 = 1e12 / (1 + (double)fixture_below(random, 2));
    for (int r = 0; r < 2; r++) {
        double slowest = fmin(c->device[r].flops_fp32, c->device[c->place[2 + r]].flops_fp32);
        for (int k = 0; k < 2; k++)
            t->slowdown[k][r] = slowest / c->device[c->place[2 * k + r]].flops_fp32;
    }
}

/* Of how many cases the best order was found. */
static int count_best(int cases, bool replicas)
{
    int best = 0;
    for (uint64_t seed = 1; seed <= (uint64_t)cases; seed++) {
        fixture_random random = {seed};
        int m = 2 + (int)fixture_below(&random, 2);
        made_plan made;
        costs c;
        made_plan_stages(&made, "interleaved", 2, 1, m, true, made_chain);
        set_costs(&c, &made, &random);
        limit_memory(&c, 1 + (int)fixture_below(&random, m));
        c.cluster.intra_node.bytes_per_s = 1e300;
        tiny t = {.link_us = {floor(8 * c.cluster.intra_node.latency_us) / 8},
                  .slowdown = {{1.0, 1.0}},
                  .replicas = 1,
                  .microbatches = m,
                  .limit = (int)(c.limit_bytes[0] >> 20),
                  .best_us = 1e300};
        for (int s = 0; s < 2; s++) {
            /* dividing by 8 keeps sums exact, whatever their order */
            c.forward_us[s] = t.forward_us[s] = floor(8 * c.forward_us[s]) / 8;
            c.input_us[s] = t.input_us[s] = floor(8 * c.input_us[s]) / 8;
            t.weight_us[s] = floor(8 * (c.backward_us[s] - c.input_us[s])) / 8;
            c.backward_us[s] = t.input_us[s] + t.weight_us[s];
        }
        c.cluster.intra_node.latency_us = t.link_us[0];
        if (replicas)
            add_replica(&c, &t, &random);
        try_words(&t, 0, 0, 0, 0);
        smp_auto_result r = solve(&made, &c);
        if (r.step_us < t.best_us - 1e-6 || r.lower_bound_us > t.best_us + 1e-6)
            fail_msg("seed %d: %g, bound %g, best of all %g", (int)seed, r.step_us,
                     r.lower_bound_us, t.best_us);
        best += r.step_us < t.best_us + 1e-6;
        made_plan_free(&made);
    }
    return best;
}

static void test_auto_finds_the_best_of_all(void **state)
{
    (void)state;
    int n = few_or_many(12, 40);
    assert_int_equal(count_best(n, false), n);
}

/* Found less often: the model is of one replica. The bound holds all the same. */
static void test_auto_with_replicas_that_differ(void **state)
{
    (void)state;
    int n = few_or_many(25, 100), best = count_best(n, true);
    print_message("the best order in %d of %d\n", best, n);
    assert_true(best * 10 >= n * 9);
}

static void test_auto_is_deterministic(void **state)
{
    (void)state;
    fixture_random random = {7};
    made_plan made[2];
    costs c[2];
    for (int i = 0; i < 2; i++) {
        random.state = 7;
        made_plan_stages(&made[i], "interleaved", 4, 2, 6, true, skips);
        set_costs(&c[i], &made[i], &random);
        solve(&made[i], &c[i]);
    }
    for (int r = 0; r < 4; r++) {
        smp_text text = {0};
        smp_program_format(&made[1].program[r], &text);
        assert_program(&made[0].program[r], text.data);
        smp_text_free(&text);
    }
    for (int i = 0; i < 2; i++)
        made_plan_free(&made[i]);
}

static smp_status count_calls(void *context, const smp_program *programs, bool *fits)
{
    /* Only whole backwards, say, have a place. */
    *fits = true;
    for (int64_t i = 0; i < programs[0].n; i++)
        *fits &= programs[0].action[i].kind != SMP_ACTION_I;
    ++*(int *)context;
    return SMP_OK;
}

/* Transfers that occupy the ranks; shared cores; reductions; what fits is asked. */
static void test_auto_settings(void **state)
{
    (void)state;
    fixture_random random = {3};
    made_plan made;
    costs c;
    int calls = 0;
    made_plan_stages(&made, "interleaved", 4, 1, 8, true, made_chain);
    set_costs(&c, &made, &random);
    c.input.effort = 1e6;
    smp_auto_result free_choice = solve(&made, &c);
    assert_true(free_choice.found);
    c.input.fits = count_calls;
    c.input.context = &calls;
    smp_auto_result r = solve(&made, &c);
    assert_true(calls > 2);
    assert_true(r.rule && smp_schedule_find(r.rule));
    c.input.fits = NULL;
    c.cluster.overlap = false;
    r = solve(&made, &c);
    assert_true(r.step_us <= r.rule_us && r.lower_bound_us <= r.step_us);
    c.cluster.cores_per_node = 2;
    r = solve(&made, &c);
    assert_true(r.step_us <= r.rule_us && r.lower_bound_us <= r.step_us);
    c.cluster.cores_per_node = 0;
    c.cluster.overlap = true;
    c.input.simulation.ddp = 2;
    c.input.simulation.optimizer_bytes_per_s = 1e9;
    for (int s = 0; s < 4; s++)
        c.weight_bytes[s] = 100000 * (s + 1);
    r = solve(&made, &c);
    assert_true(r.step_us <= r.rule_us && r.lower_bound_us <= r.step_us);
    assert_true(r.lower_bound_us > free_choice.lower_bound_us);
    made_plan_free(&made);
}

static void test_auto_refuses(void **state)
{
    (void)state;
    fixture_random random = {5};
    smp_program program[4];
    smp_auto_result r;
    made_plan made;
    costs c;
    made_plan_stages(&made, "interleaved", 2, 2, 3, true, made_chain);
    set_costs(&c, &made, &random);
    limit_memory(&c, 1);
    assert_int_equal(smp_auto_schedule(&c.input, made.program, &r), SMP_OK); /* just fits */
    c.limit_bytes[1]--;
    assert_int_equal(smp_auto_schedule(&c.input, program, &r), SMP_ERR_NO_FIT);
    assert_non_null(strstr(smp_last_error(), "one micro-batch needs"));
    c.limit_bytes[1]++;
    c.forward_us[2] = NAN;
    assert_int_equal(smp_auto_schedule(&c.input, program, &r), SMP_ERR_INPUT);
    c.forward_us[2] = 1.0;
    c.rank[1] = 0;
    assert_int_equal(smp_auto_schedule(&c.input, program, &r), SMP_ERR_INPUT);
    made_plan_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto_beats_rules),
        cmocka_unit_test(test_auto_times_are_the_simulators),
        cmocka_unit_test(test_auto_finds_the_best_of_all),
        cmocka_unit_test(test_auto_with_replicas_that_differ),
        cmocka_unit_test(test_auto_is_deterministic),
        cmocka_unit_test(test_auto_settings),
        cmocka_unit_test(test_auto_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

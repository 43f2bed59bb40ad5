/* The schedule "auto" on stages that cost different amounts: never slower than the best fixed rule,
 * clearly faster on average, above its lower bound, within the memory limit, the best of all orders
 * where all can be tried. */
#include "fixture.h"
#include "made_plan.h"
#include "schedule/auto_schedule.h"

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

/* Stages of 100 to 200 us forward, backwards of 1.6 to 2.4 times that, links of 10 to 40 us. */
static void set_costs(costs *c, const made_plan *made, fixture_random *random)
{
    *c = (costs){.cluster = {.name = "unequal",
                             .nodes = 1,
                             .devices_per_node = MAX_RANKS,
                             .device = c->device,
                             .intra_node = {.bytes_per_s = 1e12},
                             .overlap = true}};
    c->cluster.intra_node.latency_us = between(random, 10.0, 40.0);
    for (int s = 0; s < made->plan.n_stage; s++) {
        c->forward_us[s] = between(random, 100.0, 200.0);
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
                                .stash_bytes = c->stash_bytes};
}

/* Each rank keeps as many micro-batches as the pipeline has ranks, which is what 1F1B needs. */
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
    made->plan.schedule = "auto";
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

static void test_auto_beats_rules(void **state)
{
    (void)state;
    enum { CASES = 20 };
    double gain = 0.0, gap = 0.0, worst_gap = 0.0, worst_gain = 1e300;
    for (int i = 0; i < CASES; i++) {
        fixture_random random = {1000 + (uint64_t)i};
        int p = i % 2 ? 8 : 4, v = i % 5 == 4 ? 2 : 1, m = p * (1 + i % 3);
        made_plan made;
        costs c;
        /* the V and the ring place two chunks differently */
        made_plan_stages(&made, i % 10 == 9 ? "zero-bubble" : "interleaved", p, v, m, true,
                         made_chain);
        set_costs(&c, &made, &random);
        limit_memory(&c, p);
        smp_auto_result r = solve(&made, &c);
        assert_within_limits(&made, &c);
        assert_non_null(r.rule);
        double step_us = simulate(&made, &c);
        assert_true(fabs(step_us - r.step_us) < 1e-6);
        assert_true(r.step_us <= r.rule_us && r.lower_bound_us <= r.step_us * (1.0 + 1e-12));
        double faster = 1.0 - r.step_us / r.rule_us, above = r.step_us / r.lower_bound_us - 1.0;
        print_message("p %d v %d m %2d: %s %.0f us, auto %.0f us (%.1f %% faster), bound %.0f us "
                      "(%.1f %%)\n",
                      p, v, m, r.rule, r.rule_us, r.step_us, 100 * faster, r.lower_bound_us,
                      100 * above);
        gain += faster / CASES;
        gap += above / CASES;
        worst_gap = above > worst_gap ? above : worst_gap;
        worst_gain = faster < worst_gain ? faster : worst_gain;
        made_plan_free(&made);
    }
    print_message("mean %.1f %% faster than the best rule (least %.1f %%), %.1f %% above the bound "
                  "(most %.1f %%)\n",
                  100 * gain, 100 * worst_gain, 100 * gap, 100 * worst_gap);
    assert_true(gain >= 0.05 && worst_gain >= 0.0 && gap < 0.15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto_beats_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

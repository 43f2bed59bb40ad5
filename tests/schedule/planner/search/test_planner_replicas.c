/* Replicas that cross nodes or sit on slower devices: what the planner chooses and predicts against
 * all orders of devices and all splits of a chain, every replica counted by itself with nothing of
 * the planner. */
#include "tests/schedule/fixture.h"

#include <math.h>

#include "schedule/planner/planner.h"
#include "tests/chain_model.h"

enum { MAX_OPS = 6, MAX_DEVICES = 6, MICROBATCHES = 2 };

typedef struct setting {
    chain_op op[MAX_OPS];
    smp_graph *graph;
    smp_device_spec device[MAX_DEVICES];
    smp_cluster cluster;
    smp_search_request request;
} setting;

/* 2 x 2, 2 x 3 or 3 x 2 devices of up to three speeds, links between nodes up to 1000 times
 * slower. */
static void set_cluster(setting *s, fixture_random *random)
{
    static const int shapes[][2] = {{2, 2}, {2, 3}, {3, 2}};
    const int *shape = shapes[(int)fixture_below(random, 3)];
    bool mixed = (int)fixture_below(random, 2);
    s->cluster = (smp_cluster){.name = "c",
                               .nodes = shape[0],
                               .devices_per_node = shape[1],
                               .device = s->device,
                               .intra_node = {.latency_us = 1, .bytes_per_s = 1e10},
                               .inter_node = {.latency_us = 5},
                               .overlap = (int)fixture_below(random, 2)};
    s->cluster.inter_node.bytes_per_s = 1e10 / pow(10, (int)fixture_below(random, 4));
    for (int d = 0; d < MAX_DEVICES; d++)
        s->device[d] =
            (smp_device_spec){.name = "d",
                              .memory_bytes = (int64_t)1 << 40,
                              .flops_fp32 = 1e11 / (mixed ? 1 + (int)fixture_below(random, 3) : 1),
                              .bytes_per_s = 1e11};
}

static void open_setting(setting *s, fixture_random *random)
{
    for (int i = 0; i < MAX_OPS; i++) {
        s->op[i] = (chain_op){0};
        s->op[i].forward_us = 10 + (int)fixture_below(random, 50);
        s->op[i].backward_us = 10 + (int)fixture_below(random, 100);
        s->op[i].output_bytes = 1000 * (1 + (int)fixture_below(random, 30));
        s->op[i].weight_bytes = 4000 * (1 + (int)fixture_below(random, 30));
    }
    s->graph = chain_model(s->op, MAX_OPS);
    set_cluster(s, random);
    s->request =
        (smp_search_request){.graph = s->graph,
                             .cluster = &s->cluster,
                             .options.devices = s->cluster.nodes * s->cluster.devices_per_node,
                             .options.chunks = 1,
                             .options.microbatches = MICROBATCHES,
                             .options.microbatch_size = 1,
                             .options.schedule = "simple",
                             .placement = SMP_PLACEMENT_AUTO,
                             .options.seed = 1};
}

/* Devices of replica d and rank r, at d * p + r. */
static void place(smp_placement placement, int p, int ddp, int *device)
{
    for (int i = 0; i < p * ddp; i++)
        device[i] = placement == SMP_PLACEMENT_CLUSTER ? i : i % p * ddp + i / p;
}

static double link_us(const setting *s, int a, int b, int64_t bytes)
{
    int per_node = s->cluster.devices_per_node;
    const smp_link_spec *link =
        a / per_node == b / per_node ? &s->cluster.intra_node : &s->cluster.inter_node;
    return link->latency_us + (double)bytes / link->bytes_per_s * 1e6;
}

/* A split of the chain on the devices of one replica. border: [p + 1] */
typedef struct replica {
    const setting *s;
    const int *border;
    int p;
    int device[MAX_DEVICES];
    double forward_us[MAX_DEVICES], backward_us[MAX_DEVICES];
    double transfer_us[MAX_DEVICES]; /* one way, from a stage to the next */
} replica;

static replica make_replica(const setting *s, const int *border, int p, const int *device,
                            int index)
{
    replica r = {.s = s, .border = border, .p = p};
    for (int k = 0; k < p; k++) {
        r.device[k] = device[index * p + k];
        double slowdown = s->device[0].flops_fp32 / s->device[r.device[k]].flops_fp32;
        for (int i = border[k]; i < border[k + 1]; i++) {
            r.forward_us[k] += slowdown * s->op[i].forward_us;
            r.backward_us[k] += slowdown * s->op[i].backward_us;
        }
    }
    for (int k = 0; k + 1 < p; k++)
        r.transfer_us[k] =
            link_us(s, r.device[k], r.device[k + 1], s->op[border[k + 1] - 1].output_bytes);
    return r;
}

/* The slowest rank for one micro-batch. Gradients go back over every border. */
static double slowest_us(const replica *r)
{
    double slowest = 0.0;
    for (int k = 0; k < r->p; k++) {
        double compute = r->forward_us[k] + r->backward_us[k];
        double transfer = 2.0 * ((k > 0 ? r->transfer_us[k - 1] : 0.0) + r->transfer_us[k]);
        slowest =
            fmax(slowest, r->s->cluster.overlap ? fmax(compute, transfer) : compute + transfer);
    }
    return slowest;
}

/* All forwards, then all backwards, with transfers beside compute: when each rank is through. */
static void run_simple(const replica *r, double *end_us)
{
    double arrival[MICROBATCHES][MAX_DEVICES] = {{0}}, forth[MAX_DEVICES] = {0};
    double back[MAX_DEVICES] = {0};
    memset(end_us, 0, MAX_DEVICES * sizeof *end_us);
    for (int m = 0; m < MICROBATCHES; m++)
        for (int k = 0; k < r->p; k++) {
            end_us[k] = fmax(end_us[k], arrival[m][k]) + r->forward_us[k];
            forth[k] = fmax(forth[k], end_us[k]) + r->transfer_us[k];
            if (k + 1 < r->p)
                arrival[m][k + 1] = forth[k];
        }
    memset(arrival, 0, sizeof arrival);
    for (int m = 0; m < MICROBATCHES; m++)
        for (int k = r->p - 1; k >= 0; k--) {
            end_us[k] = fmax(end_us[k], arrival[m][k]) + r->backward_us[k];
            if (k == 0)
                continue;
            back[k] = fmax(back[k], end_us[k]) + r->transfer_us[k - 1];
            arrival[m][k - 1] = back[k];
        }
}

static double bottleneck_of(const setting *s, const int *border, int p, const int *device)
{
    int ddp = s->request.options.devices / p;
    double slowest = 0.0;
    for (int d = 0; d < ddp; d++) {
        replica r = make_replica(s, border, p, device, d);
        slowest = fmax(slowest, slowest_us(&r));
    }
    return slowest;
}

static double step_of(const setting *s, const int *border, int p, const int *device,
                      double optimizer_bytes_per_s)
{
    int ddp = s->request.options.devices / p;
    double through[MAX_DEVICES] = {0}, step = 0.0;
    for (int d = 0; d < ddp; d++) {
        double end_us[MAX_DEVICES];
        replica r = make_replica(s, border, p, device, d);
        run_simple(&r, end_us);
        for (int k = 0; k < p; k++)
            through[k] = fmax(through[k], end_us[k]);
    }
    for (int k = 0; k < p; k++) {
        int64_t bytes = 0;
        double ring = 0.0;
        for (int i = border[k]; i < border[k + 1]; i++)
            bytes += s->op[i].weight_bytes;
        for (int d = 0; d < ddp && ddp > 1; d++)
            ring = fmax(ring, link_us(s, device[d * p + k], device[(d + 1) % ddp * p + k],
                                      (bytes + ddp - 1) / ddp));
        step = fmax(step, through[k] + 2.0 * (ddp - 1) * ring +
                              1e6 * (double)bytes / optimizer_bytes_per_s);
    }
    return step;
}

/* The least bottleneck and the least step of all splits in p stages. */
static void best_split(const setting *s, int p, const int *device, double optimizer_bytes_per_s,
                       double *bottleneck_us, double *step_us)
{
    *bottleneck_us = *step_us = INFINITY;
    for (unsigned cuts = 0; cuts < 1u << (MAX_OPS - 1); cuts++) { /* bit i: behind op i */
        int border[MAX_OPS + 1] = {0}, n = 0;
        for (int i = 0; i + 1 < MAX_OPS; i++)
            if (cuts >> i & 1)
                border[++n] = i + 1;
        border[++n] = MAX_OPS;
        if (n != p)
            continue;
        *bottleneck_us = fmin(*bottleneck_us, bottleneck_of(s, border, p, device));
        *step_us = fmin(*step_us, step_of(s, border, p, device, optimizer_bytes_per_s));
    }
}

static smp_planner_result plan(const smp_search_request *request)
{
    smp_planner_result result;
    if (smp_plan_make(request, "chain.yaml", &result) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return result;
}

static void assert_near(uint64_t seed, double got, double expected)
{
    if (fabs(got - expected) > 1e-9 * expected)
        fail_msg("seed %d: got %.12g us, expected %.12g us", (int)seed, got, expected);
}

static double per_sample(double us, const smp_plan *p)
{
    return us / p->ddp;
}

/* One pipeline and placement: the split with the least step, and that with the least bottleneck.
 * Gives the step per sample. */
static void check_fixed(const setting *s, uint64_t seed, int p, smp_placement placement,
                        double *step_us)
{
    double least_bottleneck, least_step;
    int device[MAX_DEVICES];
    smp_search_request request = s->request;
    place(placement, p, s->request.options.devices / p, device);
    request.options.stages = p;
    request.placement = placement;
    smp_planner_result by_step = plan(&request);
    request.options.objective = SMP_OBJECTIVE_BOTTLENECK;
    smp_planner_result by_bottleneck = plan(&request);
    const smp_predicted *made = &by_step.plan->predicted;
    best_split(s, p, device, by_step.plan->optimizer_bytes_per_s, &least_bottleneck, &least_step);
    assert_near(seed, by_bottleneck.plan->predicted.bottleneck_us, least_bottleneck);
    assert_true(made->lower_bound_us <= made->bottleneck_us);
    assert_true(made->step_lower_bound_us <= made->step_us * (1.0 + 1e-9));
    if (s->cluster.overlap) { /* else the simulation counts sends one by one */
        assert_true(made->step_lower_bound_us <= least_step * (1.0 + 1e-9));
        assert_near(seed, made->step_us, least_step);
    }
    *step_us = per_sample(made->step_us, by_step.plan);
    smp_planner_result_destroy(&by_step);
    smp_planner_result_destroy(&by_bottleneck);
}

/* Per sample, of all orders of the places from `i` on, pipelines and splits. */
static void try_orders(const setting *s, int *device, int i, double optimizer_bytes_per_s,
                       double *step_us, double *bottleneck_us)
{
    int n = s->request.options.devices;
    for (int p = 1; p <= n && i == n; p++) {
        double bottleneck, step;
        if (n % p != 0)
            continue;
        best_split(s, p, device, optimizer_bytes_per_s, &bottleneck, &step);
        *step_us = fmin(*step_us, step * p / n);
        *bottleneck_us = fmin(*bottleneck_us, bottleneck * p);
    }
    for (int k = i; k < n; k++) {
        int kept = device[i];
        device[i] = device[k];
        device[k] = kept;
        try_orders(s, device, i + 1, optimizer_bytes_per_s, step_us, bottleneck_us);
        device[k] = device[i];
        device[i] = kept;
    }
}

static void test_planner_replicas_all_placements(void **state)
{
    (void)state;
    int crossing = 0, missed = 0; /* exchanges of two are not all orders of six */
    for (uint64_t seed = 0; seed < 40; seed++) {
        setting s;
        fixture_random random = {seed << 32};
        double least_step = INFINITY;
        open_setting(&s, &random);
        for (int p = 1; p <= s.request.options.devices; p++)
            for (int placement = SMP_PLACEMENT_CLUSTER; placement <= SMP_PLACEMENT_SPREAD;
                 placement++) {
                if (s.request.options.devices % p != 0)
                    continue;
                double step_us;
                check_fixed(&s, seed, p, (smp_placement)placement, &step_us);
                least_step = fmin(least_step, step_us);
            }
        smp_planner_result best = plan(&s.request);
        double all_step = INFINITY, all_bottleneck = INFINITY;
        int device[MAX_DEVICES] = {0, 1, 2, 3, 4, 5};
        try_orders(&s, device, 0, best.plan->optimizer_bytes_per_s, &all_step, &all_bottleneck);
        double us = per_sample(best.plan->predicted.step_us, best.plan);
        if (us > least_step * 1.01 || (s.cluster.overlap && us < all_step * (1.0 - 1e-9)))
            fail_msg("seed %d: step %.12g us, the best is %.12g us", (int)seed, us, all_step);
        missed += s.cluster.overlap && us > all_step * 1.01;
        crossing += best.plan->pipeline > 1 && best.plan->ddp > 1;
        smp_planner_result_destroy(&best);
        s.request.options.objective = SMP_OBJECTIVE_BOTTLENECK;
        best = plan(&s.request);
        us = per_sample(best.plan->predicted.bottleneck_us, best.plan) * s.request.options.devices;
        bool misses = us > all_bottleneck * 1.01;
        if (us < all_bottleneck * (1.0 - 1e-9) ||
            (misses && s.request.options.devices < MAX_DEVICES))
            fail_msg("seed %d: bottleneck %.12g us, the best is %.12g us", (int)seed, us,
                     all_bottleneck);
        missed += misses;
        smp_planner_result_destroy(&best);
        smp_graph_destroy(s.graph);
    }
    print_message("pipelines with replicas: %d of 40\n", crossing);
    assert_true(crossing >= 4);
    assert_true(missed <= 4);
}

/* What recomputing nothing would gain, where replicas differ in links and devices. */
static void test_planner_replicas_hints(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        setting s;
        fixture_random random = {seed << 32};
        smp_hint hint[SMP_HINTS_MAX];
        int n;
        double gain = 0.0, without_us, ignored;
        int device[MAX_DEVICES];
        open_setting(&s, &random);
        s.request.options.stages = 2;
        s.request.options.objective = SMP_OBJECTIVE_BOTTLENECK;
        s.request.options.recompute = SMP_RECOMPUTE_ALL;
        smp_planner_result result = plan(&s.request);
        for (int i = 0; i < s.request.options.devices; i++)
            device[i] = smp_plan_device(result.plan, i / 2, i % 2);
        best_split(&s, 2, device, 1.0, &without_us, &ignored);
        double expected = 1.0 - without_us / result.plan->predicted.bottleneck_us;
        assert_int_equal(SMP_OK, smp_planner_hints(&s.request, &result, SMP_HINTS_ALL, hint, &n));
        for (int i = 0; i < n; i++)
            gain = hint[i].kind == SMP_HINT_RECOMPUTE ? hint[i].gain : gain;
        if (fabs(gain - expected) > (gain > 0.0 ? 1e-9 : 1e-3))
            fail_msg("seed %d: got %.12g, expected %.12g", (int)seed, gain, expected);
        smp_planner_result_destroy(&result);
        smp_graph_destroy(s.graph);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planner_replicas_all_placements),
        cmocka_unit_test(test_planner_replicas_hints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

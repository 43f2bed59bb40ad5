/* The step that the planner finds against every order of the devices with every number of chunks,
 * each planned by itself (test_step_search.c: against all splits), on random graphs of up to eight
 * ops and clusters of up to six devices, equal or not; with one schedule and one chunk, or with
 * any. */
#include "tests/case_count.h"
#include "tests/schedule/fixture.h"

#include <math.h>

#include "schedule/planner/planner.h"
#include "tests/chain_model.h"

enum { MOST_OPS = 8, MOST_DEVICES = 6, MOST_ORDERS = 720 };
enum { FEW_CASES = 14, MANY_CASES = 100 };

typedef struct setting {
    smp_graph *graph;
    smp_device_spec device[MOST_DEVICES];
    smp_cluster cluster;
    smp_search_request request;
} setting;

static smp_graph *random_graph(fixture_random *random)
{
    chain_op op[MOST_OPS];
    const int n = MOST_OPS - 2 + (int)fixture_below(random, 3);
    for (int i = 0; i < n; i++)
        op[i] = (chain_op){.forward_us = 10 + (int)fixture_below(random, 90),
                           .backward_us = 20 + (int)fixture_below(random, 180),
                           .weight_bytes = 4000 * (1 + (int)fixture_below(random, 30)),
                           .stash_bytes = 1000 * (1 + (int)fixture_below(random, 30)),
                           .output_bytes = 1000 * (1 + (int)fixture_below(random, 60)),
                           .skip = (int)fixture_below(random, 3)};
    return chain_model(op, n);
}

/* One to three nodes, of devices of one to three speeds; some seeds with little memory on one.
 * large: of six devices too. */
static void open_setting(setting *s, fixture_random *random, bool large)
{
    static const int shapes[][2] = {{1, 3}, {1, 4}, {2, 1}, {2, 2}, {2, 2}, {2, 3}, {3, 2}};
    const int *shape = shapes[(int)fixture_below(random, large ? 7 : 5)];
    int n = shape[0] * shape[1], kinds = 1 + (int)fixture_below(random, 3);
    s->graph = random_graph(random);
    s->cluster = (smp_cluster){.name = "c",
                               .nodes = shape[0],
                               .devices_per_node = shape[1],
                               .device = s->device,
                               .intra_node = {.latency_us = 1, .bytes_per_s = 1e10},
                               .inter_node = {.latency_us = 5, .bytes_per_s = 5e8},
                               .overlap = (int)fixture_below(random, 2)};
    for (int d = 0; d < n; d++)
        s->device[d] =
            (smp_device_spec){.name = "d",
                              .memory_bytes = (int64_t)1 << 40,
                              .flops_fp32 = 1e11 / (1 + (int)fixture_below(random, kinds)),
                              .bytes_per_s = 1e11};
    if ((int)fixture_below(random, 3) == 0)
        s->device[(int)fixture_below(random, n)].memory_bytes = 900000;
    int ddp = n % 2 == 0 && n > 2 && (int)fixture_below(random, 3) == 0 ? 2 : 1;
    const bool any = (int)fixture_below(random, 2);
    s->request = (smp_search_request){.graph = s->graph,
                                      .cluster = &s->cluster,
                                      .options.devices = n,
                                      .options.ddp = ddp,
                                      .options.chunks = any ? 0 : 1,
                                      .options.microbatches = 2 + (int)fixture_below(random, 4),
                                      .options.microbatch_size = 1,
                                      .options.schedule = any ? NULL : "interleaved",
                                      .placement = SMP_PLACEMENT_AUTO,
                                      .options.seed = 1};
}

/* Under the best rule: the order of actions that is looked for at last begins with one winner.
 * INFINITY: nothing fits. */
static double step_of(const smp_search_request *request)
{
    smp_planner_result result;
    smp_status status = smp_plan_make(request, "chain.yaml", &result);
    if (status == SMP_ERR_NO_FIT || status == SMP_ERR_INPUT)
        return INFINITY; /* or a rule that has no such number of chunks */
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
    const double us = result.search.tried[0]->step_us;
    assert_true(result.plan->predicted.step_us <= us * (1 + 1e-9));
    smp_planner_result_destroy(&result);
    return us;
}

/* Orders alike but for which node or which of equal devices it is are planned once: place by place,
 * the kind of the device, and the first place that has its node. */
typedef struct orders {
    const setting *s;
    int device[MOST_DEVICES];
    int seen[MOST_ORDERS][MOST_DEVICES], n_seen;
    double least_us;
} orders;

static bool is_new(orders *o)
{
    const int n = o->s->request.options.devices, per_node = o->s->cluster.devices_per_node;
    int *row = o->seen[o->n_seen];
    for (int i = 0; i < n; i++) {
        int kind = 0, first = 0;
        while (!smp_devices_alike(&o->s->device[kind], &o->s->device[o->device[i]]))
            kind++;
        while (o->device[first] / per_node != o->device[i] / per_node)
            first++;
        row[i] = kind * MOST_DEVICES + first;
    }
    for (int k = 0; k < o->n_seen; k++)
        if (memcmp(o->seen[k], row, (size_t)n * sizeof *row) == 0)
            return false;
    o->n_seen++;
    return true;
}

/* With each number of chunks by itself. */
static void plan_order(orders *o)
{
    const smp_plan_options *options = &o->s->request.options;
    smp_search_request request = o->s->request;
    request.placement = smp_placement_of(o->device, options->devices / options->ddp, options->ddp);
    request.device = o->device;
    for (int v = 1; v <= (options->chunks == 1 ? 1 : 4); v++) {
        request.options.chunks = v;
        o->least_us = fmin(o->least_us, step_of(&request));
    }
}

static void try_orders(orders *o, int i)
{
    const int n = o->s->request.options.devices;
    if (i == n) {
        if (is_new(o))
            plan_order(o);
        return;
    }
    for (int k = i; k < n; k++) {
        int kept = o->device[i];
        o->device[i] = o->device[k];
        o->device[k] = kept;
        try_orders(o, i + 1);
        o->device[k] = o->device[i];
        o->device[i] = kept;
    }
}

static void test_device_orders_all(void **state)
{
    (void)state;
    const int n = few_or_many(FEW_CASES, MANY_CASES);
    int better = 0, impossible = 0, worse = 0;
    for (uint64_t seed = 0; seed < (uint64_t)n; seed++) {
        setting s;
        fixture_random random = {seed << 32 | 7};
        static orders o;
        double placed_us = INFINITY;
        open_setting(&s, &random, n > FEW_CASES);
        o = (orders){.s = &s, .device = {0, 1, 2, 3, 4, 5}, .least_us = INFINITY};
        try_orders(&o, 0);
        const double least_us = o.least_us;
        for (int placement = 0; placement < SMP_PLACEMENT_AUTO; placement++) {
            smp_search_request request = s.request;
            request.placement = (smp_placement)placement;
            placed_us = fmin(placed_us, step_of(&request));
        }
        double us = step_of(&s.request);
        better += us < placed_us * 0.999;
        impossible += isinf(least_us);
        if (isinf(us) ? !isinf(least_us) : us > least_us * 1.01) {
            print_message(
                "seed %d, %d x %d devices, %s: step %.12g us, the best order's is %.12g\n",
                (int)seed, s.cluster.nodes, s.cluster.devices_per_node,
                s.request.options.schedule ? s.request.options.schedule : "any", us, least_us);
            worse++;
        }
        smp_graph_destroy(s.graph);
    }
    print_message("another order than the two placements: %d of %d, none fits: %d\n", better, n,
                  impossible);
    assert_int_equal(0, worse);
    assert_true(better >= n / 4);
    assert_true(impossible < n / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_device_orders_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

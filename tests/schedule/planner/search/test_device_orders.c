/* The step that the planner finds against every order of the devices, each planned as a listed
 * placement, on random graphs and clusters of two to four devices, equal or not; with one schedule
 * and one chunk, or with any. */
#include "tests/case_count.h"
#include "tests/schedule/fixture.h"

#include <math.h>

#include "schedule/planner/planner.h"
#include "tests/chain_model.h"

enum { N_OPS = 6, MOST_DEVICES = 4 };

typedef struct setting {
    smp_graph *graph;
    smp_device_spec device[MOST_DEVICES];
    smp_cluster cluster;
    smp_search_request request;
} setting;

static smp_graph *random_graph(fixture_random *random)
{
    chain_op op[N_OPS];
    for (int i = 0; i < N_OPS; i++)
        op[i] = (chain_op){.forward_us = 10 + (int)fixture_below(random, 90),
                           .backward_us = 20 + (int)fixture_below(random, 180),
                           .weight_bytes = 4000 * (1 + (int)fixture_below(random, 30)),
                           .stash_bytes = 1000 * (1 + (int)fixture_below(random, 30)),
                           .output_bytes = 1000 * (1 + (int)fixture_below(random, 60)),
                           .skip = (int)fixture_below(random, 3)};
    return chain_model(op, N_OPS);
}

/* One or two nodes, of devices of two or three speeds; some seeds with little memory on one. */
static void open_setting(setting *s, fixture_random *random)
{
    static const int shapes[][2] = {{1, 3}, {1, 4}, {2, 1}, {2, 2}, {2, 2}};
    const int *shape = shapes[(int)fixture_below(random, 5)];
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
    int ddp = n == 4 && (int)fixture_below(random, 3) == 0 ? 2 : 1;
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
    if (status == SMP_ERR_NO_FIT)
        return INFINITY;
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
    const double us = result.search.tried[0]->step_us;
    assert_true(result.plan->predicted.step_us <= us * (1 + 1e-9));
    smp_planner_result_destroy(&result);
    return us;
}

static void try_orders(const setting *s, int *order, int i, double *least_us)
{
    if (i == s->request.options.devices) {
        smp_search_request request = s->request;
        request.placement = smp_placement_of(order, i / request.options.ddp, request.options.ddp);
        request.device = order;
        *least_us = fmin(*least_us, step_of(&request));
        return;
    }
    for (int k = i; k < s->request.options.devices; k++) {
        int kept = order[i];
        order[i] = order[k];
        order[k] = kept;
        try_orders(s, order, i + 1, least_us);
        order[k] = order[i];
        order[i] = kept;
    }
}

static void test_device_orders_all(void **state)
{
    (void)state;
    const int n = few_or_many(14, 60);
    int better = 0, impossible = 0, worse = 0;
    for (uint64_t seed = 0; seed < (uint64_t)n; seed++) {
        setting s;
        fixture_random random = {seed << 32 | 7};
        int order[MOST_DEVICES] = {0, 1, 2, 3};
        double least_us = INFINITY, placed_us = INFINITY;
        open_setting(&s, &random);
        try_orders(&s, order, 0, &least_us);
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

/* How many neighbouring replicas sum first: what the planner chooses against every number that can
 * be named. gpt-tiny has a tied weight, which all replicas sum whatever is sharded. */
#include "tests/schedule/fixture.h"

#include <math.h>

#include "schedule/planner/planner.h"

enum { DEVICES = 16 };

/* 16 of them, in nodes, on the links of examples/cluster-a100.yaml. */
static smp_cluster make_cluster(smp_device_spec *device, int nodes, bool overlap)
{
    for (int d = 0; d < DEVICES; d++)
        device[d] = (smp_device_spec){.name = "d",
                                      .memory_bytes = (int64_t)1 << 36,
                                      .flops_fp32 = 19.5e12,
                                      .bytes_per_s = 2e12};
    return (smp_cluster){.name = "c",
                         .nodes = nodes,
                         .devices_per_node = DEVICES / nodes,
                         .device = device,
                         .intra_node = {.latency_us = 3, .bytes_per_s = 3e11},
                         .inter_node = {.latency_us = 8, .bytes_per_s = 2.5e10},
                         .overlap = overlap};
}

static double planned_us(const smp_search_request *request, int node_replicas, int *chosen)
{
    smp_search_request r = *request;
    smp_planner_result result;
    r.sharding.node_replicas = node_replicas;
    if (smp_plan_make(&r, "model.yaml", &result) != SMP_OK)
        fail_msg("%s", smp_last_error());
    const double step_us = result.plan->predicted.step_us;
    *chosen = result.plan->sharding.node_replicas;
    smp_planner_result_destroy(&result);
    return step_us;
}

/* No number that is named is faster than what is chosen, but by what steps may differ by anyway. */
static void assert_chosen(const smp_search_request *request)
{
    const int ddp = DEVICES / request->options.stages, shard = request->sharding.shard;
    int best = 0, chosen, given;
    double least_us = INFINITY;
    const double auto_us = planned_us(request, SMP_HOPS_AUTO, &chosen);
    for (int near = 0; near<ddp; near = near> 0 ? 2 * near : 2) {
        const double us = planned_us(request, near, &given);
        assert_int_equal(near, given);
        best = us < least_us ? near : best;
        least_us = fmin(us, least_us);
    }
    if (auto_us > 1.001 * least_us)
        fail_msg("%d nodes, %d ranks, shard %d, what %d: %d take %g us, %d take %g us",
                 request->cluster->nodes, request->options.stages, shard,
                 (int)request->sharding.what, chosen, auto_us, best, least_us);
}

static void test_planner_hops_are_the_best_that_can_be_named(void **state)
{
    (void)state;
    static const smp_sharding sharding[] = {
        {.shard = 1},
        {.shard = 2, .what = SMP_SHARD_OPTIMIZER},
        {.shard = 4, .what = SMP_SHARD_WEIGHTS},
        {.shard = 8, .what = SMP_SHARD_WEIGHTS},
        {.shard = 16, .what = SMP_SHARD_WEIGHTS, .gradient_wire = SMP_WIRE_BF16}};
    smp_device_spec device[DEVICES];
    smp_graph *graph = NULL;
    assert_int_equal(smp_graph_read(SMP_SOURCE_DIR "/examples/gpt-tiny.yaml", &graph), SMP_OK);
    for (int nodes = 2; nodes <= 4; nodes *= 2)
        for (size_t i = 0; i < sizeof sharding / sizeof *sharding; i++)
            for (int stages = 1; stages <= 2; stages++) {
                const smp_cluster cluster = make_cluster(device, nodes, i % 2 == 0);
                smp_search_request request = {.graph = graph,
                                              .cluster = &cluster,
                                              .options.devices = DEVICES,
                                              .options.stages = stages,
                                              .options.ddp = DEVICES / stages,
                                              .options.chunks = 4,
                                              .options.microbatches = stages,
                                              .options.microbatch_size = 1,
                                              .options.schedule = "breadth-first",
                                              .options.partitioner = "linear",
                                              .sharding = sharding[i],
                                              .options.seed = 1};
                request.sharding.bucket_bytes = SMP_BUCKET_AUTO;
                if (sharding[i].shard <= request.options.ddp)
                    assert_chosen(&request);
            }
    smp_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planner_hops_are_the_best_that_can_be_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

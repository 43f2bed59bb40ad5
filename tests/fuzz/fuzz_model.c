/* The model reader, and what follows from shapes alone: costs on both backends, a pipeline of two
 * stages, and what these send each other. */
#include "tests/fuzz/fuzz.h"

#include "partition/problem/flow.h"
#include "partition/solve/partitioner.h"
#include "profile/costs.h"

static const smp_cluster *devices(void)
{
    static smp_cluster *cluster;
    if (!cluster)
        FUZZ_REQUIRE(smp_cluster_read(SMP_SOURCE_DIR "/examples/cluster-h100.yaml", &cluster) ==
                     SMP_OK);
    return cluster;
}

/* Two stages, as a planner's first look finds them: with what can be told of their best. */
static void partition(const smp_graph *graph, const smp_costs *costs)
{
    static const int ranks[] = {0, 1};
    static const double live[] = {2.0, 1.0};
    static const int64_t limit[] = {INT64_MAX / 8, INT64_MAX / 8};
    const smp_problem problem = {
        .graph = graph,
        .costs = costs,
        .cluster = devices(),
        .n_stage = 2,
        .pipeline = 2,
        .stage_rank = ranks,
        .device = ranks,
        .state_factor =
            0.25 * (double)smp_weight_element_bytes(graph, smp_planned_states(graph->training)),
        .live = live,
        .memory_limit = limit,
        .first_look = true};
    smp_partition *found = NULL;
    smp_status status = smp_partitioner_find("linear")->solve(&problem, NULL, &found);
    if (status == SMP_ERR_NO_FIT || !fuzz_taken(status))
        return;
    FUZZ_REQUIRE(isfinite(found->bottleneck_us) && found->lower_bound_us <= found->bottleneck_us);
    smp_partition_destroy(found);
}

static void estimate(const smp_graph *graph, int64_t batch)
{
    smp_costs *costs = NULL;
    if (!fuzz_taken(smp_costs_build(graph, devices(), NULL, batch, &costs)))
        return;
    for (int32_t i = 0; i < costs->n_op; i++) {
        const smp_op_cost *cost = &costs->op[i];
        FUZZ_REQUIRE(isfinite(cost->forward_us) && cost->forward_us >= 0.0);
        FUZZ_REQUIRE(isfinite(cost->backward_us) && cost->backward_us >= 0.0);
        FUZZ_REQUIRE(cost->weight_bytes >= 0 && cost->stash_bytes >= 0 && cost->output_bytes >= 0 &&
                     cost->workspace_bytes >= 0);
    }
    if (graph->n_op > 1)
        partition(graph, costs);
    smp_costs_destroy(costs);
}

/* File order is a topological order, so any cut of it makes two stages. */
static void split(const smp_graph *graph)
{
    smp_flow *flow = NULL;
    int32_t *stage = calloc((size_t)graph->n_op, sizeof *stage);
    FUZZ_REQUIRE(stage != NULL);
    for (int32_t i = graph->n_op / 2; i < graph->n_op; i++)
        stage[i] = 1;
    if (fuzz_taken(smp_flow_build(graph, stage, 2, 1, &flow)))
        smp_flow_destroy(flow);
    free(stage);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const smp_target targets[] = {{SMP_BACKEND_CPU, SMP_PRECISION_FP32},
                                         {SMP_BACKEND_CUDA, SMP_PRECISION_BF16}};
    smp_graph *graph = NULL;
    if (!fuzz_taken(smp_graph_parse("model.yaml", (const char *)data, size, &graph)))
        return 0;
    for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
        if (!fuzz_taken(smp_graph_set_target(graph, targets[t])))
            continue;
        fuzz_taken(smp_graph_check_runnable(graph));
        estimate(graph, 1);
        estimate(graph, 1 << 20);
    }
    if (graph->n_op > 1)
        split(graph);
    smp_graph_destroy(graph);
    return 0;
}

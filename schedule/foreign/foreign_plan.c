/* What the planner makes of the stages of a foreign schedule: each becomes one operator of a chain
 * that takes as long, on as many devices with links that cost nothing, so that only the order of
 * actions is left to choose. */
#include <stdlib.h>
#include <string.h>

#include "schedule/foreign/foreign_judge.h"
#include "schedule/planner/planner.h"

static smp_status write_chain(const smp_foreign *foreign, const smp_foreign_times *times,
                              smp_text *model)
{
    smp_text_append(model, "smp: 1\nname: stages\nmode: %s\nops:\n",
                    foreign->training ? "training" : "inference");
    for (int s = 0; s < foreign->n_stage; s++) {
        smp_text_append(model, "  - {op: opaque, name: s%d, ", s);
        if (s > 0)
            smp_text_append(model, "in: t%d, ", s - 1);
        smp_text_append(model, "out: t%d, weights: [{name: w%d, bytes: 4}], cost: {forward_us: ", s,
                        s);
        smp_text_append_double(model, times->forward_us[s]);
        smp_text_append(model, ", backward_us: ");
        smp_text_append_double(model, times->backward_us[s]);
        smp_text_append(model, "}}\n");
    }
    return model->failed ? smp_fail_memory(model->capacity) : SMP_OK;
}

/* How a backward is shared out between its halves, which a model file does not say. */
static smp_status make_profile(const smp_graph *graph, const smp_foreign_times *times,
                               smp_arena *arena, smp_profile *out)
{
    smp_op_cost *cost = SMP_ARENA_NEW(arena, smp_op_cost, (size_t)graph->n_op);
    const char **name = SMP_ARENA_NEW(arena, const char *, (size_t)graph->n_op);
    if (!cost || !name)
        return SMP_ERR_NO_MEMORY;
    for (int32_t s = 0; s < graph->n_op; s++) {
        name[s] = graph->op[s].name;
        cost[s] =
            (smp_op_cost){.forward_us = times->forward_us[s],
                          .backward_us = times->backward_us[s],
                          .backward_input_us = times->backward_input_us[s],
                          .backward_weight_us = times->backward_us[s] - times->backward_input_us[s],
                          .weight_bytes = 4};
    }
    *out = (smp_profile){.model = graph->name,
                         .fingerprint = graph->fingerprint,
                         .device = "cpu",
                         .dtype = smp_precision_name(SMP_PRECISION_FP32),
                         .microbatch_size = 1,
                         .n_op = graph->n_op,
                         .name = name,
                         .op = cost,
                         .optimizer_bytes_per_s = 1e21};
    return SMP_OK;
}

static smp_status plan_chain(const smp_foreign *foreign, const smp_foreign_times *times,
                             const smp_graph *graph, double deadline_s, smp_arena *arena,
                             smp_plan **out)
{
    const smp_link_spec link = {.latency_us = 0, .bytes_per_s = 1e18};
    smp_cluster cluster = {.name = "ranks",
                           .nodes = 1,
                           .devices_per_node = foreign->n_rank,
                           .intra_node = link,
                           .inter_node = link,
                           .overlap = true,
                           .core_switch_us = SMP_DEFAULT_CORE_SWITCH_US};
    smp_device_spec *device = SMP_ARENA_NEW(arena, smp_device_spec, (size_t)foreign->n_rank);
    smp_profile profile;
    smp_planner_result result = {0};
    if (!device)
        return SMP_ERR_NO_MEMORY;
    for (int r = 0; r < foreign->n_rank; r++)
        device[r] = (smp_device_spec){.name = "rank",
                                      .memory_bytes = (int64_t)1 << 50,
                                      .flops_fp32 = 1e15,
                                      .bytes_per_s = 1e15};
    cluster.device = device;
    SMP_TRY(make_profile(graph, times, arena, &profile));
    const smp_search_request request = {.graph = graph,
                                        .cluster = &cluster,
                                        .profile = &profile,
                                        .options.devices = foreign->n_rank,
                                        .options.stages = foreign->n_rank,
                                        .options.ddp = 1,
                                        .options.chunks = foreign->n_stage / foreign->n_rank,
                                        .options.microbatches = foreign->microbatches,
                                        .options.microbatch_size = 1,
                                        .sharding = {.shard = 1},
                                        .placement = SMP_PLACEMENT_CLUSTER,
                                        .options.seed = 1,
                                        .options.recompute = SMP_RECOMPUTE_NONE,
                                        .deadline_s = deadline_s};
    smp_status status = smp_plan_make(&request, "stages", &result);
    if (status == SMP_OK) {
        *out = result.plan;
        result.plan = NULL;
    }
    smp_planner_result_destroy(&result);
    return status;
}

smp_status smp__foreign_plan(const smp_foreign *foreign, const smp_foreign_times *times,
                             double deadline_s, smp_plan **out)
{
    smp_text model = {0};
    smp_graph *graph = NULL;
    if (foreign->n_stage % foreign->n_rank != 0)
        return smp_fail(SMP_ERR_INPUT, "%d ranks do not divide %d stages", foreign->n_rank,
                        foreign->n_stage);
    smp_arena *arena = smp_arena_create();
    smp_status status = arena ? write_chain(foreign, times, &model) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        status = smp_graph_parse("stages", model.data, model.length, &graph);
    if (status == SMP_OK)
        status = plan_chain(foreign, times, graph, deadline_s, arena, out);
    smp_graph_destroy(graph);
    smp_text_free(&model);
    smp_arena_destroy(arena);
    return status;
}

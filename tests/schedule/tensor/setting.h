/* What tests of splittings plan: a model on equal devices of one node, in one order. */
#ifndef TESTS_SCHEDULE_TENSOR_SETTING_H
#define TESTS_SCHEDULE_TENSOR_SETTING_H

#include "schedule/planner/space/request.h"
#include "tests/schedule/fixture.h"

enum { DEVICES = 8, MOST_DEVICES = 20 };

typedef struct setting {
    smp_graph *graph;
    smp_device_spec device[MOST_DEVICES];
    smp_cluster cluster;
    smp_search_request request;
} setting;

static void open_setting(setting *s, const char *text, int devices, int64_t memory_bytes,
                         double link_bytes_per_s)
{
    *s = (setting){0};
    assert_in_range(devices, 1, MOST_DEVICES);
    if (smp_graph_parse("model.yaml", text, strlen(text), &s->graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    for (int d = 0; d < devices; d++)
        s->device[d] = (smp_device_spec){
            .name = "d", .memory_bytes = memory_bytes, .flops_fp32 = 1e14, .bytes_per_s = 1.5e12};
    s->cluster = (smp_cluster){.name = "c",
                               .nodes = 1,
                               .devices_per_node = devices,
                               .device = s->device,
                               .intra_node = {.latency_us = 1, .bytes_per_s = link_bytes_per_s},
                               .inter_node = {.latency_us = 1, .bytes_per_s = link_bytes_per_s},
                               .overlap = true};
    s->request = (smp_search_request){.graph = s->graph,
                                      .cluster = &s->cluster,
                                      .options.devices = devices,
                                      .options.chunks = 1,
                                      .options.microbatches = 2,
                                      .options.microbatch_size = 4,
                                      .options.schedule = "simple",
                                      .sharding = {.shard = 1},
                                      .placement = SMP_PLACEMENT_CLUSTER,
                                      .options.recompute = SMP_RECOMPUTE_NONE,
                                      .options.seed = 1};
}

#endif

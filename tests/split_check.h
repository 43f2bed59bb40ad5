/* The check of plans whose ops are split over groups of two devices: a model and what is asked. */
#ifndef SMP_TESTS_SPLIT_CHECK_H
#define SMP_TESTS_SPLIT_CHECK_H

#include "tests/schedule/fixture.h"

#include "schedule/check/check.h"
#include "schedule/plan/split_patterns.h"

enum { TENSOR = 2 };

#define MEGATRON                                                                                   \
    "split:\n"                                                                                     \
    "  - {op: \"h*.attn.qkv\", as: columns/3}\n"                                                   \
    "  - {op: \"h*.attn\", as: packed heads}\n"                                                    \
    "  - {op: \"h*.proj\", as: rows}\n"                                                            \
    "  - {op: \"h*.mlp.fc\", as: columns}\n"                                                       \
    "  - {op: \"h*.mlp.gelu\", as: \"elements@1\"}\n"

typedef struct setting {
    smp_sketch *sketch;
    smp_graph *graph;
    smp_cluster *cluster, *groups;
    smp_search_request request;
} setting;

static smp_graph *open_model(void)
{
    smp_graph *graph;
    if (smp_graph_read(SMP_SOURCE_DIR "/examples/gpt-tiny.yaml", &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return graph;
}

static void open_setting(const char *text, int devices, setting *s)
{
    *s = (setting){.graph = open_model()};
    if (smp_sketch_parse("s.yaml", text, strlen(text), &s->sketch) != SMP_OK ||
        smp_splitting_resolve(&s->sketch->splitting, s->graph, s->sketch->arena,
                              &s->request.splitting) != SMP_OK ||
        smp_splitting_apply(&s->request.splitting, 0, &s->graph) != SMP_OK ||
        smp_cluster_local(devices, &s->cluster) != SMP_OK ||
        smp_cluster_group(s->cluster, TENSOR, &s->groups) != SMP_OK)
        fail_msg("%s", smp_last_error());
    s->request.graph = s->graph;
    s->request.cluster = s->groups;
    s->request.options.memory_bytes = (int64_t)1 << 32;
    s->request.options.seed = 1;
    s->request.options.recompute = SMP_RECOMPUTE_AUTO;
    s->request.placement = SMP_PLACEMENT_AUTO;
    s->request.deadline_s = 1; /* over: no more than the first plans to compare with */
}

static void close_setting(setting *s)
{
    smp_cluster_destroy(s->groups);
    smp_cluster_destroy(s->cluster);
    smp_graph_destroy(s->graph);
    smp_sketch_destroy(s->sketch);
}

#endif

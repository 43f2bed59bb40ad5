/* dot: the graph in the DOT language of Graphviz, ops coloured by stage and boxed by it. Edges
 * carry tensors; those that cross to another rank are drawn heavy, with the bytes of a micro-batch.
 *
 *     dot -Tsvg FILE -o plan.svg
 *
 * Linear in ops and edges. */
#include <stdlib.h>

#include "graph/model/op.h"
#include "schedule/export/export_kinds.h"

/* Light fills that differ for colour-blind readers too; neighbours are far apart. */
static const char *const fills[] = {"#bcd7f0", "#fbd8ae", "#c5e5c9", "#efc4d4",
                                    "#d9cef0", "#f3ecad", "#b9e3e2", "#dcd6cc"};

#define INPUT "input " /* before the name of an input, which may be that of an op too */

enum { N_FILL = sizeof fills / sizeof fills[0] };

/* A quoted DOT string: only '"' and '\' are special. */
static void put_id(smp_text *out, const char *prefix, const char *value)
{
    smp_text_append(out, "\"%s", prefix);
    for (; *value; value++) {
        if (*value == '"' || *value == '\\')
            smp_text_append(out, "\\");
        smp_text_append_bytes(out, value, 1);
    }
    smp_text_append(out, "\"");
}

static void put_stage(const smp_plan *plan, const smp_graph *graph, int s, smp_text *out)
{
    char forward[32], backward[32], weights[32];
    const smp_plan_stage *stage = &plan->stage[s];
    smp_text_append(out,
                    "  subgraph cluster_%d {\n    label=\"stage %d, rank %d: forward %s, backward "
                    "%s, weights %s\";\n    style=\"rounded\"; color=\"#8a8f98\";\n    node "
                    "[fillcolor=\"%s\"];\n",
                    s, s, stage->rank, smp_format_us(forward, sizeof forward, stage->forward_us),
                    smp_format_us(backward, sizeof backward, stage->backward_us),
                    smp_format_bytes(weights, sizeof weights, stage->weight_bytes),
                    fills[s % N_FILL]);
    for (int32_t i = 0; i < stage->n_op; i++) {
        int32_t u = smp_graph_find_op(graph, stage->op[i]);
        smp_text_append(out, "    ");
        put_id(out, "", stage->op[i]);
        smp_text_append(out, " [tooltip=");
        put_id(out, "", graph->op[u].kind->name);
        smp_text_append(out, "];\n");
    }
    smp_text_append(out, "  }\n");
}

static void put_edge(const smp_plan *plan, const smp_graph *graph, const int32_t *stage, int32_t u,
                     int32_t tensor, smp_text *out)
{
    int32_t producer = graph->tensor[tensor].producer;
    smp_text_append(out, "  ");
    if (producer < 0)
        put_id(out, INPUT, graph->tensor[tensor].name);
    else
        put_id(out, "", graph->op[producer].name);
    smp_text_append(out, " -> ");
    put_id(out, "", graph->op[u].name);
    if (producer >= 0 && plan->stage[stage[producer]].rank != plan->stage[stage[u]].rank) {
        char bytes[32];
        smp_text_append(out, " [penwidth=2.4, label=\"%s\"]",
                        smp_format_bytes(bytes, sizeof bytes,
                                         smp_tensor_bytes(graph, tensor, plan->microbatch_size)));
    }
    smp_text_append(out, ";\n");
}

static smp_status write(const smp_plan *plan, const smp_graph *graph, smp_text *out)
{
    int32_t *stage = NULL;
    SMP_TRY(smp_plan_bind(plan, graph, &stage));
    smp_text_append(out, "digraph ");
    put_id(out, "", plan->model_name);
    smp_text_append(out, " {\n  rankdir=TB;\n  node [shape=box, style=\"filled,rounded\", "
                         "fontname=\"Helvetica\", fontsize=11, color=\"#5c6370\"];\n  edge "
                         "[fontname=\"Helvetica\", fontsize=9, color=\"#5c6370\"];\n  graph "
                         "[fontname=\"Helvetica\", fontsize=11];\n");
    for (int32_t t = 0; t < graph->n_input; t++) {
        smp_text_append(out, "  ");
        put_id(out, INPUT, graph->tensor[t].name);
        smp_text_append(out, " [shape=ellipse, style=\"filled\", fillcolor=\"#ffffff\"];\n");
    }
    for (int s = 0; s < plan->n_stage; s++)
        put_stage(plan, graph, s, out);
    for (int32_t u = 0; u < graph->n_op; u++)
        for (int32_t i = 0; i < graph->op[u].n_in; i++)
            put_edge(plan, graph, stage, u, graph->op[u].in[i], out);
    smp_text_append(out, "}\n");
    free(stage);
    return SMP_OK;
}

const smp_exporter smp__export_dot = {
    .name = "dot",
    .summary = "the graph coloured by stage, for Graphviz",
    .write = write,
};

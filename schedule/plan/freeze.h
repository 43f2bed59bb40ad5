/* Which weights of a model are frozen, as plans and people say it: patterns as of ops
 * (op_pattern.h), of the weights' names. */
#ifndef SMP_SCHEDULE_PLAN_FREEZE_H
#define SMP_SCHEDULE_PLAN_FREEZE_H

#include "graph/base/text.h"
#include "graph/model/graph.h"
#include "graph/yaml/yaml.h"

enum { SMP_MAX_FREEZES = 256 }; /* patterns of a command line */

typedef struct smp_freeze_entry {
    const char *text; /* of a name of a weight: "wte.weight", "h0.*" */
    smp_where where;  /* for messages: in the file, or the option */
} smp_freeze_entry;

typedef struct smp_freezing {
    int32_t n;
    const smp_freeze_entry *entry;
} smp_freezing;

/* Freezes what the entries name, smp_graph_freeze, in a graph that is whole; none: does nothing.
 * Running statistics that a pattern names go on. A weight of several ops goes by the name of the
 * first. SMP_ERR_INPUT, at the entry's place: no weight matches, or only statistics do.
 * O(entries * weights), bounded as patterns of ops are. */
smp_status smp_freezing_apply(const smp_freezing *freezing, smp_graph *graph);

/* The frozen weights of a graph, split or not, by name in the order of the model; copies. */
smp_status smp_freezing_of(const smp_graph *graph, smp_arena *arena, smp_freezing *out);

/* `freeze: [text, ...]` of a plan's file, which may be absent. SMP_ERR_INPUT with its place. */
smp_status smp__freezing_read(const smp_yaml_node *top, const char *file, smp_arena *arena,
                              smp_freezing *out);

#endif

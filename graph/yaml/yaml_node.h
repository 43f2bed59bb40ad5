/* The tree that yaml_load.c builds and yaml.c reads. */
#ifndef SMP_GRAPH_YAML_YAML_NODE_H
#define SMP_GRAPH_YAML_YAML_NODE_H

#include "graph/base/arena.h"
#include "graph/yaml/yaml.h"

/* Maps up to this size are searched linearly. */
enum { SMP__YAML_SMALL_MAP = 8 };

/* One per value, shared where an alias names it; kept small, large models have millions. */
struct smp_yaml_node {
    const smp_yaml *yaml;
    union {
        const char *text;                 /* scalar */
        const smp_yaml_node *const *item; /* list; map: key 0, value 0, key 1, value 1, ... */
    } u;
    const int32_t *order; /* larger maps: entries sorted by key; else NULL */
    int64_t expanded;     /* nodes of this subtree with every alias written out */
    int32_t count;        /* items or entries */
    int32_t line;
    int32_t column;
    uint8_t kind;
    uint8_t quoted; /* scalar: not plain */
    uint8_t height; /* levels of lists and maps, this one too; 0 for a scalar */
    uint8_t open;   /* while being read: an alias to it would be a cycle */
};

struct smp_yaml {
    smp_arena *arena;
    const char *name;
    const smp_yaml_node *top;
};

#endif

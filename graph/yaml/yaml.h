/* Reading YAML with a place for every error. A thin layer over libyaml's document: nodes carry line
 * and column, maps reject duplicate keys, aliases are resolved to the node they name.
 *
 * Every function that takes a node reports a wrong type as
 * "file:line:column: key: got ..., expected ...". */
#ifndef SMP_GRAPH_YAML_YAML_H
#define SMP_GRAPH_YAML_YAML_H

#include <stdbool.h>

#include "graph/base/status.h"

typedef struct smp_yaml smp_yaml;           /* one loaded document */
typedef struct smp_yaml_node smp_yaml_node; /* owned by the document */

typedef enum smp_yaml_kind { SMP_YAML_SCALAR, SMP_YAML_LIST, SMP_YAML_MAP } smp_yaml_kind;

/* Reads the file (at most 1 GiB, one document). SMP_ERR_INPUT with file:line:column. */
smp_status smp_yaml_read(const char *path, smp_yaml **out);
/* The same from memory; `name` stands for the file in messages. */
smp_status smp_yaml_parse(const char *name, const char *data, size_t bytes, smp_yaml **out);
void smp_yaml_destroy(smp_yaml *yaml);

const char *smp_yaml_file(const smp_yaml *yaml);
/* The top node: a map that starts with `smp: 1`, checked here. */
smp_status smp_yaml_top(const smp_yaml *yaml, const smp_yaml_node **out);
/* The top node, whatever it is: of a line of JSON, which has no such head. */
const smp_yaml_node *smp_yaml_root(const smp_yaml *yaml);
/* The top node of a document of that kind ("plan"), which has no other keys than these. One of
 * another kind is told from its keys and named. */
smp_status smp_yaml_document(const smp_yaml *yaml, const char *kind, const char *const *known,
                             size_t count, const smp_yaml_node **out);

smp_yaml_kind smp_yaml_kind_of(const smp_yaml_node *node);
smp_where smp_yaml_where(const smp_yaml_node *node);

/* Maps. Keys are plain strings, unique. */
int smp_yaml_map_size(const smp_yaml_node *map);
const char *smp_yaml_map_key(const smp_yaml_node *map, int i);
smp_where smp_yaml_map_key_where(const smp_yaml_node *map, int i);
const smp_yaml_node *smp_yaml_map_value(const smp_yaml_node *map, int i);
/* NULL if absent. */
const smp_yaml_node *smp_yaml_get(const smp_yaml_node *map, const char *key);
/* Fails: `got` is no key, or what `kind` says, of `known`. Names the nearest, or all. */
smp_status smp_fail_unknown(smp_where where, const char *what, const char *kind, const char *got,
                            const char *const *known, size_t count);
/* Fails on the first key not among `known`, naming the nearest known key. */
smp_status smp_yaml_known_keys(const smp_yaml_node *map, const char *what, const char *const *known,
                               size_t count);

/* Lists. */
int smp_yaml_list_size(const smp_yaml_node *list);
const smp_yaml_node *smp_yaml_list_at(const smp_yaml_node *list, int i);

/* Scalars: text as written, and whether it was quoted. */
const char *smp_yaml_text(const smp_yaml_node *node); /* NULL unless a scalar */
bool smp_yaml_quoted(const smp_yaml_node *node);

/* What numbers of files may be. Within these, no time, rate or sum of sizes that a plan makes of
 * them is infinite or leaves 64 bits. */
#define SMP_MIN_US 1e-250 /* or 0; the rate of a step that is shorter could be infinite */
#define SMP_MAX_US 1e15
#define SMP_MIN_RATE 1.0  /* per second */
#define SMP_MAX_RATE 1e21 /* free links of planning studies are written as 1e18 B/s */
#define SMP_MAX_BYTES ((int64_t)1 << 60)

/* Typed reads; `what` names the value in messages ("memory", "op 'h0.attn': heads"). */
smp_status smp_yaml_map(const smp_yaml_node *node, const char *what);  /* is a map, or fails */
smp_status smp_yaml_list(const smp_yaml_node *node, const char *what); /* is a list, or fails */
smp_status smp_yaml_string(const smp_yaml_node *node, const char *what, const char **out);
smp_status smp_yaml_bool(const smp_yaml_node *node, const char *what, bool *out);
smp_status smp_yaml_int(const smp_yaml_node *node, const char *what, int64_t min, int64_t max,
                        int64_t *out);
smp_status smp_yaml_double(const smp_yaml_node *node, const char *what, double min, double max,
                           double *out);
smp_status smp_yaml_us(const smp_yaml_node *node, const char *what, double *out);
/* Without a unit. or_none: 0 is read too. */
smp_status smp_yaml_rate(const smp_yaml_node *node, const char *what, bool or_none, double *out);
smp_status smp_yaml_bytes(const smp_yaml_node *node, const char *what, int64_t *out);
smp_status smp_yaml_bytes_per_s(const smp_yaml_node *node, const char *what, double *out);
smp_status smp_yaml_flops(const smp_yaml_node *node, const char *what, double *out);

#endif

/* Typed reads of a key of a map, for the readers of files: the key has to be there, and messages
 * name it as "what: key" (maps and lists: "key"). */
#ifndef SMP_GRAPH_YAML_YAML_FIELD_H
#define SMP_GRAPH_YAML_YAML_FIELD_H

#include "graph/base/arena.h"
#include "graph/yaml/yaml.h"

#define SMP__COUNT(array) (sizeof(array) / sizeof((array)[0]))

smp_status smp__field(const smp_yaml_node *map, const char *what, const char *key,
                      const smp_yaml_node **out);
/* A map with known keys only. */
smp_status smp__field_map(const smp_yaml_node *map, const char *what, const char *key,
                          const char *const *keys, size_t n_key, const smp_yaml_node **out);
smp_status smp__field_list(const smp_yaml_node *map, const char *what, const char *key,
                           const smp_yaml_node **out);
smp_status smp__field_int64(const smp_yaml_node *map, const char *what, const char *key,
                            int64_t min, int64_t max, int64_t *out);
smp_status smp__field_int(const smp_yaml_node *map, const char *what, const char *key, int min,
                          int max, int *out);
smp_status smp__field_double(const smp_yaml_node *map, const char *what, const char *key,
                             double min, double max, double *out);
smp_status smp__field_us(const smp_yaml_node *map, const char *what, const char *key, double *out);
smp_status smp__field_rate(const smp_yaml_node *map, const char *what, const char *key,
                           bool or_none, double *out);
smp_status smp__field_bytes(const smp_yaml_node *map, const char *what, const char *key,
                            int64_t *out);
/* A string that is not empty, copied. */
smp_status smp__field_text(const smp_yaml_node *map, const char *what, const char *key,
                           smp_arena *arena, const char **out);
smp_status smp__copy_text(const smp_yaml_node *node, const char *what, smp_arena *arena,
                          const char **out);
/* A number format, fp32 or bf16: is it bf16? *out stays as it is where there is no such key. */
smp_status smp__field_bf16(const smp_yaml_node *map, const char *what, const char *key, bool *out);
/* The fingerprint of a `model:` map, 16 hexadecimal digits. */
smp_status smp__field_fingerprint(const smp_yaml_node *model, uint64_t *out);

#endif

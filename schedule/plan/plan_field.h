/* Typed reads of a key of a map, for the readers of plan files: the key has to be there, and
 * messages name it as "what: key". */
#ifndef SMP_SCHEDULE_PLAN_PLAN_FIELD_H
#define SMP_SCHEDULE_PLAN_PLAN_FIELD_H

#include "graph/base/arena.h"
#include "graph/base/yaml.h"
#include "schedule/plan/plan.h"

#define SMP__COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define SMP__MAX_US 1e300
#define SMP__MAX_RATE 1e21
#define SMP__MAX_BYTES ((int64_t)1 << 62)

enum {
    SMP__MAX_DEVICES = 1 << 20,
    SMP__MAX_STAGES = 1 << 20,
    SMP__MAX_BATCH = 1 << 30,
    SMP__MAX_CORES = 1 << 16
};

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
/* A string that is not empty, copied. */
smp_status smp__field_text(const smp_yaml_node *map, const char *what, const char *key,
                           smp_arena *arena, const char **out);
smp_status smp__copy_text(const smp_yaml_node *node, const char *what, smp_arena *arena,
                          const char **out);

/* The fingerprint of a `model:` map, 16 hexadecimal digits. */
smp_status smp__field_fingerprint(const smp_yaml_node *model, uint64_t *out);
smp_status smp__field_placement(const smp_yaml_node *parallel, smp_placement *out);

/* The top map's `execution:`, {device: cuda, precision: bf16}; *out stays as it is where there
 * is none. */
smp_status smp__plan_read_target(const smp_yaml_node *top, smp_target *out);

/* The top map's `cluster:` of at least `devices` devices; *out stays NULL if there is none. */
smp_status smp__plan_read_cluster(const smp_yaml_node *top, int devices, smp_arena *arena,
                                  const smp_cluster **out, double *optimizer_bytes_per_s);

#endif

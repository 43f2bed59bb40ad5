/* What the readers of plan files share: limits, and typed reads of what only plans have. */
#ifndef SMP_SCHEDULE_PLAN_PLAN_FIELD_H
#define SMP_SCHEDULE_PLAN_PLAN_FIELD_H

#include "graph/yaml/yaml_field.h"
#include "schedule/plan/plan.h"

/* What plans add up of times and sizes within those of graph/yaml/yaml.h stays below these. */
#define SMP__MAX_SUM_US 1e100
#define SMP__MAX_SUM_BYTES ((int64_t)1 << 62)
#define SMP__MAX_RATIO 1e300

enum {
    SMP__MAX_DEVICES = 1 << 20,
    SMP__MAX_STAGES = 1 << 20,
    SMP__MAX_MICROBATCHES = 1 << 30,
    SMP__MAX_CORES = 1 << 16,
    SMP__MAX_TENSOR = 1 << 12 /* devices of a group */
};

/* Reads a plan file into a sketch. whole: every key that smp_plan has is there, and the counts go
 * together (schedule/plan/plan_file.c). Frees the document. */
struct smp_sketch;
smp_status smp__sketch_from_yaml(smp_yaml *yaml, bool whole, struct smp_sketch **out);

/* *listed: the list of SMP_PLACEMENT_LISTED, in `arena`; as it is for the others. */
smp_status smp__field_placement(const smp_yaml_node *parallel, int pipeline, int ddp,
                                smp_arena *arena, smp_placement *out, const int **listed);

/* The top map's `execution:`, {device: cuda, precision: bf16}; *out stays as it is where there
 * is none. */
smp_status smp__plan_read_target(const smp_yaml_node *top, smp_target *out, int64_t *library_bytes);

/* The top map's `cluster:` of at least `devices` devices, as groups of `tensor` (which may be 0 or
 * 1: as they are) or as they are for who groups them; *out stays NULL if there is none. */
smp_status smp__plan_read_cluster(const smp_yaml_node *top, int devices, int tensor,
                                  smp_arena *arena, const smp_cluster **out,
                                  double *optimizer_bytes_per_s);

/* The top map's `split:`, entries of `splitting` (whose devices are set); `file`: the name in their
 * places. */
smp_status smp__plan_read_split(const smp_yaml_node *top, const char *file, smp_arena *arena,
                                smp_splitting *splitting);

#endif

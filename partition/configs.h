/* The configurations that a search looks at, their partitions and what they can cost at least. */
#ifndef SMP_PARTITION_CONFIGS_H
#define SMP_PARTITION_CONFIGS_H

#include "partition/search.h"
#include "partition/solve.h"

/* Partitions of a family under memory limits, for one vector of live counts. */
typedef struct smp__limited {
    struct smp__limited *next;
    double scale;       /* of the limits */
    const double *live; /* [n_stage] */
    smp__variants variants;
} smp__limited;

/* Partitions without memory limits for one (pipeline, chunks, placement of stages). Shared by all
 * configurations that differ in micro-batches or in schedules that place stages alike. */
typedef struct smp__family {
    int pipeline, chunks;
    const int *stage_rank;
    smp_status status; /* SMP_ERR_NO_FIT, SMP_ERR_INPUT: there is no such pipeline */
    smp__variants variants;
    smp__limited *limited;
    double estimate; /* best of its configurations */
} smp__family;

typedef struct smp__config {
    int pipeline, ddp, chunks, microbatches;
    const char *schedule;
    int *device;     /* [ddp * pipeline] */
    int *stage_rank; /* [pipeline * chunks] */
    double *live;    /* [pipeline * chunks] */
    int64_t *limit;  /* [pipeline * chunks] */
    int32_t family;
    double estimate;        /* of what is minimised; orders the search, decides nothing */
    double family_estimate; /* best of the family */
} smp__config;

typedef struct smp__configs {
    const smp_search_request *request;
    const smp_costs *costs;
    const smp_schedule_model *model;
    smp__config *config;
    int32_t n;
    smp__family *family;
    int32_t n_family;
    size_t capacity, family_capacity;
    smp_arena *arena;
} smp__configs;

/* Lists every configuration that the request allows and the schedules can run, and solves the
 * families. SMP_ERR_INPUT for contradictory numbers; if nothing remains, the first reason. */
smp_status smp__configs_list(const smp_search_request *request, const smp_costs *costs,
                             const smp_schedule_model *model, smp__configs *out);
void smp__configs_free(smp__configs *configs);

/* Solves every family, drops the configurations of those that have no pipeline, estimates and sorts
 * the others: by family, best first. If nothing remains, the first reason. */
smp_status smp__families_solve(smp__configs *configs);

/* Memory of the smallest device that stands for a pipeline rank. */
int64_t smp__config_memory(const smp__configs *configs, const smp__config *config, int rank);

/* The partition of a configuration, owned by the caller: that of its family if it fits the memory,
 * else one made under the limits, shrunk by `spare` (0..1), which may not fit either. */
smp_status smp__config_partition(smp__configs *configs, const smp__config *config, double spare,
                                 smp_partition **out);

/* The fastest partition whose fullest stage is at most 1 % fuller than it has to be. */
smp_status smp__config_least_memory(smp__configs *configs, const smp__config *config,
                                    smp_partition **out);

/* No schedule of this partition takes less time per step: a rank computes all micro-batches of its
 * stages, and before that the first one has passed the stages before its first. */
double smp__config_least_step_us(const smp__config *config, const smp_partition *partition);

/* The SMP_ERR_NO_FIT message for the candidate that missed by least. */
smp_status smp__search_no_fit(const smp__configs *configs, const smp__config *config,
                              const smp_candidate *nearest);

#endif

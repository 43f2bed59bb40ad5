/* Planning from the options of smp.h, whoever has them: smp-partition, smp_plan_write, or smp_init
 * with a model. Options are called in messages as smp-partition calls them. */
#ifndef SMP_EXEC_START_PLANNING_H
#define SMP_EXEC_START_PLANNING_H

#include "exec/start/split_from.h"
#include "schedule/foreign/foreign_take.h"
#include "schedule/plan/sketch.h"
#include "schedule/tensor/tensor_plan.h"

enum { SMP_MAX_COUNT = 1 << 20 }; /* of devices, stages, micro-batches */
enum { SMP_MAX_BATCH = 1 << 30 }; /* samples of a step */

/* What planning reads, and what it makes of it. */
typedef struct smp__planning {
    const smp_options *options; /* the caller's */
    smp_search_request request;
    smp_graph *graph;
    smp_profile *profile;
    smp_cluster *cluster; /* NULL: the sketch's */
    smp_cluster *groups;  /* of the cluster's devices, or the sketch's; NULL: none */
    smp_sketch *sketch;   /* of `fix`, or what is checked */
    smp__split_from split_from;
    smp_foreign *foreign; /* of `schedule_from` */
    smp_split_entry *split;
    int n_split;
    const char **cut; /* [n_cut], in cut_text */
    char *cut_text;
    int n_cut;
    int32_t *pin, *together; /* of the graph that is planned */
    smp_where *pin_where;
    int *rank_begin; /* [ranks + 1] of the sketch, where its groups differ; NULL */
    int n_ranks;
    int *device; /* ... the first of each group */
    smp_split_fewer *fewer;
    int32_t n_fewer;
    smp_tensor_request tensor;
    smp_tensor_result made;
} smp__planning;

/* Reads everything that the options name. target: what to plan for; NULL: what the options say,
 * else the plan that is kept, else what the profile was measured on, else the CPU in fp32. ranks:
 * devices where the options leave them open; 0: all of the cluster. To be closed in any case.
 * Errors: SMP_ERR_INPUT. */
smp_status smp__planning_open(const smp_options *options, const smp_target *target, int ranks,
                              smp__planning *out);
/* The same for a plan that is judged: options->model may be NULL where the plan names it. */
smp_status smp__planning_open_checked(const smp_options *options, const char *plan,
                                      smp__planning *out);
/* Fills `made`; the time limit begins here. model_path: what the plan calls the model. Errors: as
 * of smp_tensor_plan. */
smp_status smp__planning_run(smp__planning *planning, const char *model_path);
void smp__planning_close(smp__planning *planning);

/* What the options ask of the planner, but for files. SMP_ERR_INPUT: a number out of range, or an
 * unknown name. */
smp_status smp__plan_request_fill(const smp_plan_options *options, int ranks,
                                  smp_search_request *out);
/* A placement's word, or its letters D, P and T in any order. *neighbours: T is the last of them,
 * or not named. SMP_ERR_INPUT, prefixed by `name`. */
smp_status smp__placement_read(const char *name, const char *text, smp_placement *out,
                               bool *neighbours);

/* The plan for options->model on so many ranks. */
smp_status smp__plan_from_options(const smp_options *options, int ranks, smp_target target,
                                  smp_plan **out);

#endif

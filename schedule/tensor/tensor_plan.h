/* Plans of models whose operators groups of devices compute together: how many devices, which
 * operator is split how, and everything else that a plan says. */
#ifndef SMP_SCHEDULE_TENSOR_TENSOR_PLAN_H
#define SMP_SCHEDULE_TENSOR_TENSOR_PLAN_H

#include "schedule/planner/planner.h"

enum { SMP_TENSOR_MOST_SIZE = 8 }; /* samples of a micro-batch that is not asked for */

/* What is asked beside a search. */
typedef struct smp_tensor_request {
    int tensor;                   /* devices of a group; 0: the best of all */
    int32_t n_fixed;              /* ops, or patterns (schedule/plan/split_patterns.h), that are */
    const smp_split_entry *fixed; /* split so in any case */
    bool only_fixed;              /* every other op is whole, as where a plan says it */
    /* Groups that differ, as of smp_search_request: `tensor` is the largest, and only_fixed set. */
    const int *rank_begin;
    int32_t n_fewer;
    const smp_split_fewer *fewer;
    bool mix;      /* stages may have groups of their own sizes; nothing fixes ops or stages */
    bool any_size; /* micro-batches of several samples are looked at, too */
    smp_tensor_overlap overlap;
    /* What the request says of the ops of one graph (pins, what is kept together), set anew for
     * every graph that is looked at; NULL: nothing. Its arrays hold until the next call. */
    smp_status (*adapt)(void *context, smp_search_request *request);
    void *context;
} smp_tensor_request;

/* One splitting that was looked at. */
typedef struct smp_tensor_tried {
    int tensor; /* devices of the largest group, */
    int least;  /* ... and of the smallest, where they differ; else 0 */
    int64_t microbatch_size;
    double memory_price; /* its weights and activations counted that much (tensor_choice.h) */
    int32_t n_split;     /* ops */
    int32_t n_pieces;    /* of them products that exchange in pieces */
    bool exact;          /* no splitting costs less at that price */
    bool looked_at, fits;
    bool slower;      /* bounds have ruled out plans of it, which cannot beat the best before */
    double sample_us; /* as the objective counts, and of the fullest rank; of what fits */
    int64_t peak_bytes;
} smp_tensor_tried;

typedef struct smp_tensor_result {
    smp_planner_result result;
    smp_search_request request; /* that made it: the graph and the cluster of the groups below */
    smp_graph *graph;           /* owned, as all else; NULL: the model's own, nothing is split */
    smp_cluster *cluster;       /* NULL: the one asked for */
    int n_lean; /* products that are ours, since nothing fits with the workspaces that a library
                   needs for them; 0: all are as was measured to be the fastest */
    smp_arena *arena;
    smp_tensor_tried *tried;
    int n_tried;
    int largest_left_out; /* groups of so many devices were not looked at, for want of work; 0: of
                             all sizes were */
} smp_tensor_result;

/* base: of the whole model, the devices of the cluster and a profile of the whole model; of
 * `devices` groups of T are formed, neighbours of one node. The splittings of each T are
 * planned while half of the work lasts, the most promising of each T first: until something fits,
 * then of each what may still be better, as the planner's bounds say. The best one is planned once
 * more in what is left; within 1 % the smaller group wins, and of equal ones always the same
 * splitting. Without a deadline all are planned in full. Errors: as of smp_plan_make;
 * SMP_ERR_INPUT if no T suits the devices. */
smp_status smp_tensor_plan(const smp_search_request *base, const smp_tensor_request *how,
                           const char *model_path, smp_tensor_result *out);
void smp_tensor_result_destroy(smp_tensor_result *result);

#endif

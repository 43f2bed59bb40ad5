/* Pipelines whose stages have groups of their own sizes, and splittings of their own. */
#ifndef SMP_SCHEDULE_TENSOR_TENSOR_MIX_H
#define SMP_SCHEDULE_TENSOR_TENSOR_MIX_H

#include "graph/split/splitting.h"
#include "schedule/planner/space/request.h"

/* A size of group and a splitting that a stage may have. */
typedef struct smp__tensor_option {
    smp_splitting splitting;
    int tensor;
    const smp_cluster *groups; /* of that size; NULL: single devices */
} smp__tensor_option;

enum { SMP__TENSOR_OPTIONS = 8, SMP__TENSOR_MIXES = 4 };

typedef struct smp__tensor_mix {
    int stages, ddp;
    const int *rank_begin;   /* [stages + 1], as of smp_search_request */
    const int32_t *stage;    /* [n_op] of the whole graph */
    smp_splitting splitting; /* with `fewer` */
    int least;               /* devices of the smallest group */
    double sample_us;        /* roughly: the slowest stage, and the pipeline's filling */
} smp__tensor_mix;

/* The most promising, one of each number of replicas, that are better than all stages with one
 * option by 3 %, or fit where those do not; at most SMP__TENSOR_MIXES, best first, in `arena`.
 *
 * Dynamic programming over the last stages first (as Piper, Tarnawski et al. 2021, over its
 * downsets): the least slowest stage, by where they begin, how many they are and how many devices
 * they have. Stages begin where little crosses between ops, at most at MOST_CUTS places. Memory is
 * what weights keep and what micro-batches in flight leave, of which 1F1B has one more for every
 * stage behind; a stage that does not fit so is taken to make all again. Stages that share a weight
 * have one option. `memory_share` of the memory is used. best_us: a sample of the best plan
 * so far, or INFINITY; where no pipeline without a wait is faster by as much, nothing is looked
 * for. O(cuts^2 * stages * devices * options) for each number of replicas that leaves at most
 * MOST_DEVICES devices to each. */
smp_status smp__tensor_mixes(const smp_search_request *base, const smp__tensor_option *option,
                             int n_option, double memory_share, double best_us, smp_arena *arena,
                             smp__tensor_mix out[SMP__TENSOR_MIXES], int *n);

/* Stages for what splitting puts between ops: pin, [n_op] of the split graph, has those of the
 * model's ops. Such an op lies where groups are as large as it is for: where `pin` says already,
 * else with the first that reads it, else with what it is made of. */
void smp_tensor_pin_between(const smp_graph *graph, const int *rank_begin, int ranks, int32_t *pin);

#endif

/* The partitioning problem, stated once.
 *
 * A pipeline is a partition of the operator graph into n_stage convex stages whose quotient graph
 * is acyclic, numbered so that every tensor flows from a stage to itself or a later one. The load
 * of a stage for one micro-batch is its forward and backward time plus (cluster.overlap: against,
 * the larger counts) what it is charged for the tensors that cross its border (message.h). Its
 * memory is weights, gradients and optimizer state once, plus its stash times the live
 * micro-batches that the schedule keeps there. Model inputs are read where they are used and never
 * cross a border. Every stage holds at least one op. Pinned ops lie in their stage, a group lies in
 * one stage.
 *
 * Replicas run the same stages on devices and links of their own, and wait for each other in every
 * step. In each of them a rank's load is the sum over the stages that it holds. The objective is
 * the load of the slowest rank of all replicas, under the memory limits.
 *
 * A stage that recomputes everything keeps only what it received, runs its forward pass once more
 * before the backward pass, and has the stash of one micro-batch alive then. Its load grows by its
 * forward time. Where there is a choice (SMP_RECOMPUTE_AUTO), a stage that does not fit otherwise
 * recomputes the share of its stash that it takes to fit, and pays for that by a curve of the whole
 * model (partition/problem/recompute_price.h): less than in proportion, since the cheap ops go
 * first. Which ops these are is decided later, by who knows the memory to the byte; then
 * `recomputes` says it. */
#ifndef SMP_PARTITION_PROBLEM_PROBLEM_H
#define SMP_PARTITION_PROBLEM_PROBLEM_H

#include "profile/costs.h"
#include "profile/replicas.h"

typedef struct smp_problem {
    const smp_graph *graph;
    const smp_costs *costs;
    const smp_cluster *cluster;
    int n_stage;                 /* pipeline * chunks */
    int pipeline;                /* ranks; stage s lies on rank stage_rank[s] */
    const int *stage_rank;       /* [n_stage] */
    const int *device;           /* [replicas * pipeline] cluster device of replica k, rank r at
                                    k * pipeline + r */
    double state_factor;         /* bytes kept for ever per byte of weight: 4 for AdamW in fp32 */
    double idle_factor;          /* ... of an idle weight (smp_param): 1 in fp32 */
    const double *live;          /* [n_stage] micro-batches whose stash is alive at the peak */
    const int64_t *memory_limit; /* [n_stage] bytes; the rank's memory shared out over its stages */
    bool tie_together;           /* ops that share a weight must share a stage */
    uint64_t seed;
    /* [n_op] or NULL. Stage of each op or -1, instead of the graph's pins. Ops with one label in
     * 0..n_op-1 share a stage, as those of a group do; -1: no label. */
    const int32_t *pin, *together;
    const smp_where *pin_where; /* [n_op] or NULL: where the pin stands if it is not the model's */
    smp_recompute recompute;
    const bool *recomputes; /* [n_op] or NULL: exactly these ops do; for evaluation alone */
    bool first_look;        /* solvers try the obvious and leave it at that */
    double deadline_s;      /* smp_work_s() at which solvers stop improving and proving; 0: never */
    int n_replica;          /* that count (profile/replicas.h); 0: one */
    const double *weight;   /* [pipeline] or NULL: times which a rank's compute counts, > 0 */
    bool until_deadline; /* proofs that are open take all the time there is, not a share of work */
    bool optional;       /* if no pipeline exists, nobody asks why */
} smp_problem;

/* The stage that an op is pinned to, or -1. */
static inline int32_t smp_problem_pin(const smp_problem *problem, int32_t op)
{
    return problem->pin ? problem->pin[op] : problem->graph->op[op].pin;
}

/* Where that stands: in the file that fixes the op, or in the model. pin_where: as in the
 * problem. */
static inline smp_where smp_pin_where(const smp_graph *graph, const smp_where *pin_where,
                                      int32_t op)
{
    return pin_where && pin_where[op].file ? pin_where[op] : smp_op_where(graph, &graph->op[op]);
}

/* Whether every stage computes its forward pass twice. */
static inline bool smp_problem_recomputes_all(const smp_problem *problem)
{
    return problem->graph->training && problem->recompute == SMP_RECOMPUTE_ALL;
}

/* Whether it is settled that an op's forward runs twice. */
static inline bool smp_problem_recomputes(const smp_problem *problem, int32_t op)
{
    return problem->recomputes ? problem->graph->training && problem->recomputes[op]
                               : smp_problem_recomputes_all(problem);
}

/* Whether ops share a weight. */
static inline bool smp_problem_has_ties(const smp_problem *problem)
{
    const smp_graph *graph = problem->graph;
    for (int32_t p = 0; p < graph->n_param; p++) {
        if (graph->param[p].use_end - graph->param[p].use_begin > 1)
            return true;
    }
    return false;
}

static inline int smp_problem_replicas(const smp_problem *problem)
{
    return problem->n_replica > 0 ? problem->n_replica : 1;
}

/* What the compute of a rank is multiplied with in a replica: see smp_device_slowdown, and
 * weight. */
static inline double smp_problem_slowdown(const smp_problem *problem, int replica, int rank)
{
    int device = problem->device[(int64_t)replica * problem->pipeline + rank];
    return smp_device_slowdown(problem->cluster, problem->graph->target.precision, device) *
           (problem->weight ? problem->weight[rank] : 1.0);
}

/* In the replica where it is most: see smp_replicas_slowest. */
static inline double smp_problem_rank_slowdown(const smp_problem *problem, int rank)
{
    return smp_replicas_slowest(problem->cluster, problem->graph->target.precision,
                                problem->pipeline, smp_problem_replicas(problem), problem->device,
                                rank) *
           (problem->weight ? problem->weight[rank] : 1.0);
}

static inline double smp_problem_stage_slowdown(const smp_problem *problem, int stage)
{
    return smp_problem_rank_slowdown(problem, problem->stage_rank[stage]);
}

typedef struct smp_stage_load {
    double forward_us; /* on the slowest device that it has in any replica */
    double backward_us;
    double forward_exchange_us, backward_exchange_us; /* of these, inside of the rank's group */
    double transfer_us;  /* charged, in the replica where they take longest */
    double recompute_us; /* forward time of what it recomputes; an estimate until that is decided */
    double load_us;      /* in the replica where it is largest, as the objective counts it */
    int64_t in_bytes;    /* activations received per micro-batch */
    int64_t out_bytes;   /* tensors sent, each once */
    int64_t weight_bytes;    /* a tied weight counts once per stage that holds it */
    int64_t stash_bytes;     /* of one micro-batch */
    int64_t recompute_bytes; /* of that, what is not kept but made again; 0 until that is decided */
    int64_t memory_bytes;    /* state_factor * weights + live * stash + buffers + largest workspace;
                             recomputing: live * in_bytes + stash instead of live * stash, or a
                             share of both */
    int32_t n_op;
    int32_t n_recompute; /* of them recompute; 0 until that is decided */
    bool recompute;      /* anything */
    int64_t idle_bytes;  /* of weight_bytes, what has neither gradients nor states (smp_param): as
                           much memory as it has bytes */
} smp_stage_load;

/* A legal assignment and its figures; 0 <= lower_bound_us <= bottleneck_us. */
typedef struct smp_partition {
    int n_stage;
    int32_t *stage;        /* [graph->n_op] */
    bool *recompute;       /* [graph->n_op] runs forward twice; all false until that is decided */
    smp_stage_load *load;  /* [n_stage] */
    double *rank_us;       /* [pipeline] load of the rank in the replica where it is slowest */
    double bottleneck_us;  /* the largest of them */
    double lower_bound_us; /* proven: no pipeline on these ranks has a smaller bottleneck */
    const char *bound;     /* what proves it: "fair share", "largest op", ...; static text */
    bool timed_out;        /* the deadline struck: more time might find or prove more */
    bool fits;             /* memory_bytes <= memory_limit on every stage */
    const char *solver;    /* registry name of what found it */
} smp_partition;

void smp_partition_destroy(smp_partition *partition); /* accepts NULL */

/* Loads, bottleneck and fit of an assignment; checks that it is legal (SMP_ERR_INPUT naming the
 * ops otherwise). lower_bound_us and solver are left alone. `stage` is copied. */
smp_status smp_partition_evaluate(const smp_problem *problem, const int32_t *stage,
                                  smp_partition **out);

/* Fair share of the total compute, the largest unit that cannot be split (an op, a group with all
 * that lies between its members) on the fastest device that may hold it, what pins force on one
 * rank, and pigeonhole bounds on the largest units. 0 if there is no pipeline at all. */
smp_status smp_partition_lower_bound(const smp_problem *problem, double *bound_us);

#endif

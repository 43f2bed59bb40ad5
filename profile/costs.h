/* The cost table that everything to the right plans with: for each op, in order of precedence, its
 * own `cost:`, the profile, or a roofline estimate from the device. */
#ifndef SMP_PROFILE_COSTS_H
#define SMP_PROFILE_COSTS_H

#include "profile/profile.h"

/* Bytes that a rank keeps for each element of a weight, all told: the weight itself, its
 * gradient when training, each of the optimizer's states, and in 16 bits the copy that kernels
 * read. The one place that knows. */
int64_t smp_weight_element_bytes(const smp_graph *graph, int optimizer_states);
/* Optimizer states that plans make room for: AdamW's, whatever a run then uses. */
enum { SMP_PLANNED_STATES = 2 };
static inline int smp_planned_states(bool training)
{
    return training ? SMP_PLANNED_STATES : 0;
}

typedef struct smp_costs {
    int64_t microbatch_size;
    int32_t n_op;
    const smp_op_cost *op;        /* [n_op], per micro-batch, on device 0 of the cluster */
    double optimizer_bytes_per_s; /* weight bytes updated per second */
    const char *source; /* where times come from, for people: "measured", "estimated from ..." */
    double error;       /* band of a step that they predict, as in smp_efficiency; 0: not known */
    const int64_t
        *tensor_bytes; /* [n_tensor] in place of what smp_costs_tensor_bytes finds, or NULL */
    /* [n_op] of exchanges of the backward, and what of them is counted as hidden and so no part of
     * `op` (profile/overlap_costs.h); NULL: nothing is. */
    const double *exchange_us, *hidden_us;
    smp_arena *arena;
} smp_costs;

/* Weight bytes that a core of the host updates in a second, for a GPU whose states are there: an
 * estimate. */
double smp_host_update_rate(smp_target target);

/* What the backward of an op takes, by what its model says or else by its shapes, on a device; for
 * what no plan hangs on but how times are shared out. */
smp_status smp_backward_estimate(const smp_graph *graph, int32_t op, int64_t batch,
                                 const smp_device_spec *device, double *us);

/* For the graph's target. profile may be NULL, else it was measured on the same backend in the same
 * precision; its times are scaled linearly if microbatch_size differs. Of a split graph it may be
 * that of the whole. Devices of a group exchange over the cluster's intra_node link, and take turns
 * on their cores (group_slowdown). Backward times are
 * 0 for an inference model. Stash and output bytes follow from shapes and smp_op_needs (stash:
 * every input, output and aux that some backward needs, each tensor charged once, to its producer;
 * model inputs are not charged). */
smp_status smp_costs_build(const smp_graph *graph, const smp_cluster *cluster,
                           const smp_profile *profile, int64_t microbatch_size, smp_costs **out);
void smp_costs_destroy(smp_costs *costs);

/* For a split graph: once in a step, the sum over the devices of a group of so many elements of
 * what a use adds to a weight's gradient, of which each has a summand (smp_op.summands). No part of
 * any op's cost. */
double smp_costs_summands_us(const smp_graph *graph, const smp_cluster *cluster, int64_t elements);

/* Bytes of a tensor that an op makes, for a micro-batch: its output_bytes; of several outputs
 * shapes say what each has of them. */
static inline int64_t smp_costs_tensor_bytes(const smp_costs *costs, const smp_graph *graph,
                                             int32_t tensor)
{
    int32_t producer = graph->tensor[tensor].producer;
    if (costs->tensor_bytes)
        return costs->tensor_bytes[tensor];
    if (graph->op[producer].n_out == 1)
        return costs->op[producer].output_bytes;
    return smp_tensor_bytes(graph, tensor, costs->microbatch_size);
}

/* How many times slower than device 0 at its full speed a device is: the ratio of the rates that
 * large products reach in the precision, or of the peaks in fp32 where either device has none, over
 * its speed. */
double smp_device_slowdown(const smp_cluster *cluster, smp_precision precision, int device);

/* Arithmetic of a sample in matrix products, forward and, in training, what runs of backward: the
 * model's, without what is computed again (Chowdhery et al. 2022, appendix B). O(ops). */
double smp_model_flops(const smp_graph *graph, int64_t microbatch_size);

#endif

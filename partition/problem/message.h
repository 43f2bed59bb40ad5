/* What messages cost, and what the bottleneck is charged for them: the one place that says.
 *
 * The flow. For each micro-batch, in each replica, every transfer of a flow (flow.h) between stages
 * on different ranks is one message; between stages of one rank nothing moves. It goes over the
 * link of the two ranks' devices and takes smp__message_us. A pair of ranks has a link of its own
 * in each direction (full duplex): messages of one direction go one after the other, those of other
 * pairs and of the other direction at the same time; replicas that send the same message through an
 * adapter that a node shares take turns. With cluster.overlap false a message also occupies sender
 * and receiver, each for all of its time. The simulator, the list scheduler and all that is said of
 * steps count so.
 *
 * The charge, as published: a tensor costs each stage that reads it elsewhere, and once the stage
 * that makes it, by the slowest link that it takes there; in training, if it has a gradient, that
 * as much again. The flow differs: it sends a tensor to each of its readers and their gradients to
 * each other (relay), and on a full-duplex link both directions go at once. Neither is the larger
 * one everywhere. So loads, the bottleneck and bounds on it are figures of the partitioning
 * problem, from which nothing follows for a step. */
#ifndef SMP_PARTITION_PROBLEM_MESSAGE_H
#define SMP_PARTITION_PROBLEM_MESSAGE_H

#include "partition/problem/problem.h"

/* Links as a stage border sees them. */
typedef enum smp__link {
    SMP__LINK_SAME, /* both stages lie on one rank: free */
    SMP__LINK_INTRA,
    SMP__LINK_INTER,
    SMP__N_LINK
} smp__link;

/* Class of the link between the devices of two pipeline ranks of a replica. */
smp__link smp__link_between(const smp_problem *problem, int replica, int rank_a, int rank_b);
/* The class between nodes if any replica has it there. */
smp__link smp__farthest_link(const smp_problem *problem, int rank_a, int rank_b);

/* Bytes over a link of a class; none over SAME. */
double smp__link_us(const smp_problem *problem, smp__link link, int64_t bytes);

/* A message between two devices. */
static inline double smp__message_us(const smp_cluster *cluster, int device_a, int device_b,
                                     int64_t bytes)
{
    return smp_link_us(smp_cluster_link(cluster, device_a, device_b), bytes);
}

/* What a tensor is charged over a link of a class: there, and back with the gradient. */
double smp__charge_us(const smp_problem *problem, smp__link link, int32_t tensor);

/* way_ns: [n_tensor], such that with this many bytes and links of a nanosecond per byte no stage is
 * ever charged more than the messages of a micro-batch take of its rank (cluster.overlap false).
 * *returning: a gradient goes back from every stage that reads a tensor. At least two ranks.
 * O(tensors + edges). */
smp_status smp__least_messages(const smp_problem *problem, smp_arena *arena, int64_t *way_ns,
                               bool *returning);

/* Load of a stage from its compute, recomputation included, and its charges. */
static inline double smp__load_us(const smp_cluster *cluster, double compute_us, double charge_us)
{
    if (!cluster->overlap)
        return compute_us + charge_us;
    return compute_us > charge_us ? compute_us : charge_us;
}

#endif

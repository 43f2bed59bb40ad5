/* What sums and gathers over replicas take. */
#ifndef SMP_SCHEDULE_SIMULATE_SIMULATE_RINGS_H
#define SMP_SCHEDULE_SIMULATE_SIMULATE_RINGS_H

#include "schedule/simulate/simulate.h"

/* Replicas that meet: `size` of them, `stride` apart. */
typedef struct smp__ring {
    int stride, size;
} smp__ring;

smp__ring smp__ring_of_all(const smp_simulation_input *input);
smp__ring smp__ring_of_group(const smp_simulation_input *input); /* a shard group */
smp__ring smp__ring_across(const smp_simulation_input *input);   /* the same part of all groups */

/* One message on the slowest link of such rings of a rank. O(ddp). */
double smp__ring_message_us(const smp_simulation_input *input, int rank, smp__ring of,
                            int64_t bytes);
/* `turns` times around, each a message of a part for every other member: 1 scatters sums or
 * gathers, 2 does both. With adapters that the devices of a node share, all members exchange their
 * parts at once, and messages between nodes wait for each other. In two hops where the plan has
 * them. */
double smp__ring_turns_us(const smp_simulation_input *input, int rank, smp__ring of, int turns,
                          int64_t bytes);
/* The same of gradients in fp32, of which the plan may send half of the bytes; on cores no less
 * than its traffic takes. */
double smp__ring_sum_us(const smp_simulation_input *input, int rank, smp__ring of, int turns,
                        int64_t bytes);

/* Do the cores that compute move the data? On one host, where they are what is planned for. */
bool smp__cores_move(const smp_cluster *cluster);
/* A sum over all replicas of a rank. */
double smp__sim_ring_us(const smp_simulation_input *input, int rank, int64_t bytes);
/* What gradients go through at first: the ring of the shard group, or of all. */
double smp__sim_first_ring_us(const smp_simulation_input *input, int rank, int64_t bytes);

#endif

/* What the optimizer's update takes. */
#ifndef SMP_SCHEDULE_SIMULATE_UPDATE_PRICE_H
#define SMP_SCHEDULE_SIMULATE_UPDATE_PRICE_H

#include "profile/device/cluster.h"
#include "schedule/rules/shard.h"

/* Microseconds that it takes for each byte of a rank's weights in fp32, of which the rank
 * updates its part. bytes_per_s: weights that the device updates in a second; <= 0: free.
 *
 * Where a GPU's states lie in host memory, gradients and weights come down in pieces, while the
 * host updates the piece before and the weights of the one before that go up: the longest of the
 * three counts. It goes on beside the next step (smp_updates_beside). A CPU's memory is the
 * host's. */
double smp_update_us_per_byte(const smp_cluster *cluster, smp_target target, smp_sharding sharding,
                              double bytes_per_s);
/* The same of weights that lie there too, in a job that has such (smp_memory_host_weights): only
 * gradients come down, and copies in 16 bits go up. */
double smp_host_update_us_per_byte(const smp_cluster *cluster, smp_target target,
                                   smp_sharding sharding);

#endif

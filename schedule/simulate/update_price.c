/* The update on the device or by the host; see the header. */
#include "schedule/simulate/update_price.h"

#include <math.h>

#include "profile/costs.h"

/* For each byte of weights so many come down, and no more go up. */
static double by_host_us(const smp_cluster *cluster, smp_target target, double down)
{
    const double link = cluster->host.bytes_per_s;
    return 1e6 * fmax(1.0 / smp_host_update_rate(target), link > 0.0 ? down / link : 0.0);
}

double smp_update_us_per_byte(const smp_cluster *cluster, smp_target target, smp_sharding sharding,
                              double bytes_per_s)
{
    double us = bytes_per_s > 0.0 ? 1e6 / bytes_per_s : 0.0;
    if (sharding.offload_states && smp_backend_of(target)->own_memory)
        us = by_host_us(cluster, target, 2.0);
    return sharding.shard > 1 ? us / sharding.shard : us;
}

double smp_host_update_us_per_byte(const smp_cluster *cluster, smp_target target,
                                   smp_sharding sharding)
{
    const double us = by_host_us(cluster, target, 1.0);
    return sharding.shard > 1 ? us / sharding.shard : us;
}

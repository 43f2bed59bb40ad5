/* The update on the device or by the host; see the header. */
#include "schedule/simulate/update_price.h"

#include <math.h>

#include "profile/costs.h"

double smp_update_us_per_byte(const smp_cluster *cluster, smp_target target, smp_sharding sharding,
                              double bytes_per_s)
{
    const double link = cluster->host.bytes_per_s;
    double us = bytes_per_s > 0.0 ? 1e6 / bytes_per_s : 0.0;
    if (sharding.offload_states && target.backend == SMP_BACKEND_CUDA)
        us = 1e6 * fmax(1.0 / smp_host_update_rate(target), link > 0.0 ? 2.0 / link : 0.0);
    return sharding.shard > 1 ? us / sharding.shard : us;
}

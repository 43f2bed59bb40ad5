/* The cluster reader. A cluster that it takes makes no time of an op or a message infinite. */
#include "tests/fuzz/fuzz.h"

#include "profile/costs.h"

static void use(const smp_cluster *cluster)
{
    smp_costs *costs = NULL;
    const int last = smp_cluster_devices(cluster) - 1;
    FUZZ_REQUIRE(isfinite(smp_link_us(smp_cluster_link(cluster, 0, last), INT64_C(1) << 60)));
    FUZZ_REQUIRE(isfinite(smp_link_us(&cluster->intra_node, 1)));
    FUZZ_REQUIRE(smp_cluster_core_of(cluster, last) >= -1);
    for (int p = 0; p < SMP_N_PRECISION; p++) {
        double slowdown = smp_device_slowdown(cluster, (smp_precision)p, last);
        FUZZ_REQUIRE(isfinite(slowdown) && slowdown > 0.0);
    }
    if (!fuzz_taken(smp_costs_build(fuzz_model(), cluster, NULL, 1 << 20, &costs)))
        return;
    for (int32_t i = 0; i < costs->n_op; i++)
        FUZZ_REQUIRE(isfinite(costs->op[i].forward_us) && isfinite(costs->op[i].backward_us));
    smp_costs_destroy(costs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    smp_cluster *cluster = NULL;
    if (fuzz_taken(smp_cluster_read(fuzz_file(data, size), &cluster)))
        use(cluster);
    smp_cluster_destroy(cluster);
    return 0;
}

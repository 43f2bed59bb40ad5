/* The profile reader. What it takes is written as a file that is read as the same again, and gives
 * finite costs at every size of micro-batch. */
#include "tests/fuzz/fuzz.h"

#include "profile/costs.h"

static void cost(const smp_profile *profile, const smp_cluster *cluster, int64_t batch)
{
    smp_costs *costs = NULL;
    if (!fuzz_taken(smp_costs_build(fuzz_model(), cluster, profile, batch, &costs)))
        return;
    for (int32_t i = 0; i < costs->n_op; i++)
        FUZZ_REQUIRE(isfinite(costs->op[i].forward_us) && isfinite(costs->op[i].backward_us));
    smp_costs_destroy(costs);
}

static void use(const smp_profile *profile)
{
    smp_cluster *cluster = NULL;
    smp_target target = smp_profile_target(profile);
    if (!fuzz_taken(smp_cluster_default(target, profile, 2, &cluster)))
        return;
    FUZZ_REQUIRE(isfinite(smp_link_us(&cluster->intra_node, INT64_C(1) << 60)));
    if (smp_target_equal(target, fuzz_model()->target)) {
        cost(profile, cluster, 1);
        cost(profile, cluster, 1 << 20);
    }
    smp_cluster_destroy(cluster);
}

static void write_and_read(const smp_profile *profile)
{
    smp_text first = {0}, again = {0};
    smp_profile *back = NULL;
    FUZZ_REQUIRE(smp_profile_format(profile, &first) == SMP_OK);
    FUZZ_REQUIRE(smp_profile_read(fuzz_file(first.data, first.length), fuzz_model(), &back) ==
                 SMP_OK);
    FUZZ_REQUIRE(smp_profile_format(back, &again) == SMP_OK);
    FUZZ_REQUIRE(strcmp(first.data, again.data) == 0);
    smp_profile_destroy(back);
    smp_text_free(&first);
    smp_text_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    smp_profile *profile = NULL;
    if (fuzz_taken(smp_profile_read(fuzz_file(data, size), fuzz_model(), &profile))) {
        use(profile);
        write_and_read(profile);
    }
    smp_profile_destroy(profile);
    return 0;
}

/* Shard degrees and what is sharded; see the header. */
#include "schedule/rules/shard.h"

#include <string.h>

static const char *const names[] = {"optimizer", "gradients", "weights"};

const char *smp_shard_what_name(smp_shard_what what)
{
    return names[what];
}

smp_status smp_shard_what_read(const char *text, smp_shard_what *what)
{
    for (int i = 0; i <= SMP_SHARD_WEIGHTS; i++)
        if (strcmp(text, names[i]) == 0) {
            *what = (smp_shard_what)i;
            return SMP_OK;
        }
    return smp_fail(SMP_ERR_INPUT, "got '%s', expected optimizer, gradients or weights", text);
}

smp_status smp_shard_check(int shard, int ddp)
{
    if (shard < 1 || ddp % shard != 0)
        return smp_fail(SMP_ERR_INPUT, "shard: got %d, expected a divisor of the %d replicas (ddp)",
                        shard, ddp);
    return SMP_OK;
}

static bool is_power_of_two(int n)
{
    return (n & (n - 1)) == 0;
}

bool smp_shard_is_node(int shard, int ddp)
{
    return shard <= 1 || shard == ddp || is_power_of_two(shard);
}

smp_status smp_hops_check(smp_sharding sharding, int ddp)
{
    const int near = sharding.node_replicas;
    if (near == 0)
        return SMP_OK;
    if (near < 2 || near >= ddp || ddp % near != 0 || !is_power_of_two(near))
        return smp_fail(SMP_ERR_INPUT,
                        "node_replicas: got %d, expected a power of two that divides the %d "
                        "replicas (ddp), and is less",
                        near, ddp);
    if (!smp_shard_is_node(sharding.shard, ddp))
        return smp_fail(SMP_ERR_INPUT,
                        "node_replicas: got %d and groups of %d shards, expected groups of a power "
                        "of two or of all %d replicas (ddp)",
                        near, sharding.shard, ddp);
    return SMP_OK;
}

smp_sharding smp_sharding_keep(smp_sharding asked, smp_sharding kept)
{
    smp_sharding both = asked.shard == 0 ? kept : asked;
    both.bucket_bytes =
        asked.bucket_bytes == SMP_BUCKET_AUTO ? kept.bucket_bytes : asked.bucket_bytes;
    both.node_replicas =
        asked.node_replicas == SMP_HOPS_AUTO ? kept.node_replicas : asked.node_replicas;
    both.gradient_wire =
        asked.gradient_wire == SMP_DEFAULT ? kept.gradient_wire : asked.gradient_wire;
    both.offload_states = kept.offload_states;
    both.prefetch = asked.prefetch == SMP_PREFETCH_AUTO ? kept.prefetch : asked.prefetch;
    return both;
}

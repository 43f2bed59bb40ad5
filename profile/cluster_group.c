/* A cluster whose devices are groups of another one's. */
#include "profile/cluster.h"

#include <math.h>
#include <string.h>

/* The slowest and smallest of a group's devices. */
static smp_device_spec least_of(const smp_device_spec *device, int size)
{
    smp_device_spec least = device[0];
    for (int i = 1; i < size; i++) {
        least.memory_bytes = device[i].memory_bytes < least.memory_bytes ? device[i].memory_bytes
                                                                         : least.memory_bytes;
        least.flops_fp32 = fmin(least.flops_fp32, device[i].flops_fp32);
        least.flops_tf32 = fmin(least.flops_tf32, device[i].flops_tf32);
        least.flops_bf16 = fmin(least.flops_bf16, device[i].flops_bf16);
        least.bytes_per_s = fmin(least.bytes_per_s, device[i].bytes_per_s);
    }
    return least;
}

/* A group's devices compute at the same time: on their cores, or one after the other. */
static void set_cores(const smp_cluster *from, int size, smp_cluster *out)
{
    const int cores = from->cores_per_node;
    out->group_slowdown = 1;
    if (cores == 0)
        return;
    out->cores_per_node = cores >= size ? cores / size : 1;
    if (cores < size)
        out->group_slowdown = (double)size / cores;
}

smp_status smp_cluster_group(const smp_cluster *from, int size, smp_cluster **out)
{
    if (size < 1 || from->devices_per_node % size != 0)
        return smp_fail(
            SMP_ERR_INPUT,
            "cluster '%s' has %d devices per node, which are no groups of %d (--tensor)",
            from->name, from->devices_per_node, size);
    smp_arena *arena = smp_arena_create();
    smp_cluster *cluster = arena ? SMP_ARENA_NEW(arena, smp_cluster, 1) : NULL;
    const int n = smp_cluster_devices(from) / size;
    smp_device_spec *device = cluster ? SMP_ARENA_NEW(arena, smp_device_spec, (size_t)n) : NULL;
    if (!device) {
        smp_arena_destroy(arena);
        return SMP_ERR_NO_MEMORY;
    }
    for (int d = 0; d < n; d++)
        device[d] = least_of(&from->device[d * size], size);
    *cluster = *from;
    cluster->devices_per_node = from->devices_per_node / size;
    cluster->device = device;
    cluster->of = from;
    cluster->group = size;
    cluster->arena = arena;
    set_cores(from, size, cluster);
    *out = cluster;
    return SMP_OK;
}

/* A cluster whose devices are groups of another one's. What a group's devices do at the same time,
 * they do on what they share: cores in turns, adapters in parts. */
#include "profile/device/cluster.h"

#include <math.h>
#include <string.h>

/* The rate of tf32, so that what one device leaves open does not decide for all. */
static double tf32_of(const smp_device_spec *device)
{
    return smp_device_matrix_flops(device, SMP_PRECISION_TF32);
}

static double fp16_of(const smp_device_spec *device)
{
    return smp_device_matrix_flops(device, SMP_PRECISION_FP16);
}

static double fp8_of(const smp_device_spec *device)
{
    return smp_device_matrix_flops(device, SMP_PRECISION_FP8);
}

/* The slowest and smallest of a group's devices. */
static smp_device_spec least_of(const smp_device_spec *device, int size)
{
    smp_device_spec least = device[0];
    for (int i = 1; i < size; i++) {
        if (device[i].memory_bytes < least.memory_bytes)
            least.memory_bytes = device[i].memory_bytes;
        if (device[i].flops_tf32 != least.flops_tf32)
            least.flops_tf32 = fmin(tf32_of(&least), tf32_of(&device[i]));
        if (device[i].flops_fp16 != least.flops_fp16)
            least.flops_fp16 = fmin(fp16_of(&least), fp16_of(&device[i]));
        if (device[i].flops_fp8 != least.flops_fp8)
            least.flops_fp8 = fmin(fp8_of(&least), fp8_of(&device[i]));
        if (smp_device_reached_flops(&device[i], SMP_PRECISION_BF16) <
            smp_device_reached_flops(&least, SMP_PRECISION_BF16))
            least.efficiency = device[i].efficiency;
        least.flops_fp32 = fmin(least.flops_fp32, device[i].flops_fp32);
        least.flops_bf16 = fmin(least.flops_bf16, device[i].flops_bf16);
        least.bytes_per_s = fmin(least.bytes_per_s, device[i].bytes_per_s);
        least.speed = fmin(smp_device_speed(&least), smp_device_speed(&device[i]));
    }
    return least;
}

/* Devices are dealt out to cores in turn (smp_cluster_core_of), and an op of a group takes as long
 * as its slowest device: that whose core most of the group are on. */
static void set_cores(const smp_cluster *from, int size, smp_cluster *out)
{
    const int cores = from->cores_per_node;
    out->group_slowdown = 1;
    if (cores == 0)
        return;
    out->cores_per_node = cores >= size ? cores / size : 1;
    if (cores < size)
        out->group_slowdown = (size + cores - 1) / cores;
}

/* A link through which so many send at once, as one of them finds it. */
static smp_status share_link(smp_link_spec *link, int among, smp_arena *arena)
{
    const smp_link_spec whole = *link;
    int64_t *bytes = SMP_ARENA_NEW(arena, int64_t, (size_t)whole.n_point);
    double *us = SMP_ARENA_NEW(arena, double, (size_t)whole.n_point);
    if (!bytes || !us)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < whole.n_point; i++) {
        bytes[i] = whole.point_bytes[i];
        us[i] = smp_link_us(&whole, bytes[i] > INT64_MAX / among ? INT64_MAX : among * bytes[i]);
    }
    link->bytes_per_s /= among;
    link->point_bytes = bytes;
    link->point_us = us;
    return SMP_OK;
}

/* Messages of a group leave its node at the same time: each device of it needs an adapter. */
static smp_status set_adapters(const smp_cluster *from, int size, smp_cluster *out)
{
    const int adapters = from->adapters_per_node;
    if (adapters == 0)
        return SMP_OK;
    out->adapters_per_node = adapters >= size ? adapters / size : 1;
    return adapters < size
               ? share_link(&out->inter_node, (size + adapters - 1) / adapters, out->arena)
               : SMP_OK;
}

/* What one of `size` devices, `near` of them on its node, takes on average to tell each other one
 * something. A link that was measured has no such mean: then all are as far as the farthest. */
static smp_link_spec mean_link(const smp_link_spec *inside, const smp_link_spec *outside, int near,
                               int size)
{
    const double share = (near - 1.0) / (size - 1.0);
    smp_link_spec mean = *outside;
    if (inside->n_point > 0 || outside->n_point > 0)
        return mean;
    mean.latency_us = share * inside->latency_us + (1 - share) * outside->latency_us;
    mean.bytes_per_s = 1 / (share / inside->bytes_per_s + (1 - share) / outside->bytes_per_s);
    return mean;
}

/* A group of several nodes is a node of its own. */
static smp_status fill(const smp_cluster *from, int size, smp_cluster *out)
{
    const int n = smp_cluster_devices(from) / size, per_node = from->devices_per_node;
    const bool wide = size > per_node;
    smp_device_spec *device = SMP_ARENA_NEW(out->arena, smp_device_spec, (size_t)n);
    if (!device)
        return SMP_ERR_NO_MEMORY;
    for (int d = 0; d < n; d++)
        device[d] = least_of(&from->device[(int64_t)d * size], size);
    out->nodes = wide ? n : from->nodes;
    out->devices_per_node = wide ? 1 : per_node / size;
    out->device = device;
    set_cores(from, wide ? per_node : size, out);
    SMP_TRY(set_adapters(from, wide ? per_node : size, out));
    if (wide)
        out->intra_node = mean_link(&from->intra_node, &out->inter_node, per_node, size);
    return SMP_OK;
}

/* Of one group: of devices `first` and so on. */
static smp_status fill_group(const smp_cluster *from, int first, int size, smp_device_spec *device)
{
    const int per_node = from->devices_per_node;
    if (first + size > smp_cluster_devices(from))
        return smp_fail(SMP_ERR_INPUT, "cluster '%s' has %d devices, %d are needed", from->name,
                        smp_cluster_devices(from), first + size);
    if (first / per_node != (first + size - 1) / per_node)
        return smp_fail(SMP_ERR_INPUT,
                        "cluster '%s' has %d devices per node: a group of %d from device %d on "
                        "lies on two nodes",
                        from->name, per_node, size, first);
    device[first] = least_of(&from->device[first], size);
    return SMP_OK;
}

static smp_status fill_ranks(const smp_cluster *from, const int *begin, int ranks, int replicas,
                             smp_cluster *out)
{
    const size_t n = (size_t)smp_cluster_devices(from);
    smp_device_spec *device = SMP_ARENA_NEW(out->arena, smp_device_spec, n);
    int most = 1;
    if (!device)
        return SMP_ERR_NO_MEMORY;
    memcpy(device, from->device, n * sizeof *device);
    for (int k = 0; k < replicas; k++)
        for (int r = 0; r < ranks; r++) {
            const int size = begin[r + 1] - begin[r];
            SMP_TRY(fill_group(from, k * begin[ranks] + begin[r], size, device));
            most = size > most ? size : most;
        }
    out->device = device;
    out->group = most;
    set_cores(from, most, out);
    return set_adapters(from, most, out);
}

/* A copy, to be filled. */
static smp_status begin_groups(const smp_cluster *from, int size, smp_cluster **out)
{
    smp_arena *arena = smp_arena_create();
    smp_cluster *cluster = arena ? SMP_ARENA_NEW(arena, smp_cluster, 1) : NULL;
    if (!cluster) {
        smp_arena_destroy(arena);
        return SMP_ERR_NO_MEMORY;
    }
    *cluster = *from;
    cluster->arena = arena;
    cluster->of = from;
    cluster->group = size;
    *out = cluster;
    return SMP_OK;
}

static smp_status end_groups(smp_status status, smp_cluster *made, smp_cluster **out)
{
    if (status == SMP_OK)
        *out = made;
    else
        smp_arena_destroy(made->arena);
    return status;
}

bool smp_cluster_groups_fit(const smp_cluster *from, int size)
{
    const int per_node = from->devices_per_node;
    return size > 0 &&
           (per_node % size == 0 || (size % per_node == 0 && from->nodes % (size / per_node) == 0));
}

smp_status smp_cluster_group(const smp_cluster *from, int size, smp_cluster **out)
{
    smp_cluster *made;
    if (!smp_cluster_groups_fit(from, size))
        return smp_fail(SMP_ERR_INPUT,
                        "cluster '%s' has %d nodes of %d devices, which are no groups of %d "
                        "(--tensor)",
                        from->name, from->nodes, from->devices_per_node, size);
    SMP_TRY(begin_groups(from, size, &made));
    return end_groups(fill(from, size, made), made, out);
}

smp_status smp_cluster_group_ranks(const smp_cluster *from, const int *begin, int ranks,
                                   int replicas, smp_cluster **out)
{
    smp_cluster *made;
    SMP_TRY(begin_groups(from, 0, &made));
    return end_groups(fill_ranks(from, begin, ranks, replicas, made), made, out);
}

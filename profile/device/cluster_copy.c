/* Copies of clusters in memory of another object, such as a plan, that is freed whole. */
#include "profile/device/cluster.h"

#include <string.h>

static smp_status copy_link(smp_arena *arena, const smp_link_spec *from, smp_link_spec *to)
{
    size_t n = from->n_point > 0 ? (size_t)from->n_point : 0;
    int64_t *bytes = SMP_ARENA_NEW(arena, int64_t, n);
    double *us = SMP_ARENA_NEW(arena, double, n);
    if (!bytes || !us)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < n; i++) {
        bytes[i] = from->point_bytes[i];
        us[i] = from->point_us[i];
    }
    *to = *from;
    to->point_bytes = bytes;
    to->point_us = us;
    return SMP_OK;
}

smp_status smp_cluster_copy(const smp_cluster *from, smp_arena *arena, const smp_cluster **out)
{
    size_t n = (size_t)smp_cluster_devices(from);
    smp_cluster *to = SMP_ARENA_NEW(arena, smp_cluster, 1);
    smp_device_spec *device = SMP_ARENA_NEW(arena, smp_device_spec, n);
    if (!to || !device)
        return SMP_ERR_NO_MEMORY;
    *to = *from;
    to->arena = NULL;
    to->device = device;
    if (!(to->name = smp_arena_strdup(arena, from->name)))
        return SMP_ERR_NO_MEMORY;
    for (size_t d = 0; d < n; d++) {
        bool same = d > 0 && strcmp(from->device[d].name, from->device[d - 1].name) == 0;
        device[d] = from->device[d];
        device[d].name = same ? device[d - 1].name : smp_arena_strdup(arena, from->device[d].name);
        if (!device[d].name)
            return SMP_ERR_NO_MEMORY;
        if (d > 0 && from->device[d].efficiency == from->device[d - 1].efficiency)
            device[d].efficiency = device[d - 1].efficiency;
        else if (device[d].efficiency)
            SMP_TRY(smp_efficiency_copy(from->device[d].efficiency, arena, &device[d].efficiency));
    }
    SMP_TRY(copy_link(arena, &from->intra_node, &to->intra_node));
    SMP_TRY(copy_link(arena, &from->inter_node, &to->inter_node));
    SMP_TRY(copy_link(arena, &from->host, &to->host));
    if (from->of)
        SMP_TRY(smp_cluster_copy(from->of, arena, &to->of));
    *out = to;
    return SMP_OK;
}

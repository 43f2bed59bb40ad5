/* The cluster that a plan's prediction assumed, in the plan file. Devices stand there as runs of
 * equal ones: a uniform cluster of any size is one line. Files without `devices:` say the memory
 * alone; then all devices are alike. It is the machine's own also where groups of its devices
 * compute every op together; in memory it is then those groups, which know it. Linear in the file
 * and in the number of devices. */
#include "schedule/plan/plan_field.h"

/* One run of equal devices from *next on. */
static smp_status read_run(const smp_yaml_node *map, smp_arena *arena, smp_device_spec *device,
                           int n, int *next)
{
    static const char *const keys[] = {"count",       "name",       "memory",     "flops_fp32",
                                       "flops_tf32",  "flops_bf16", "flops_fp16", "flops_fp8",
                                       "bytes_per_s", "efficiency", "speed"};
    const char *what = "cluster: device";
    smp_device_spec spec = {0};
    int count;
    SMP_TRY(smp_yaml_map(map, what));
    SMP_TRY(smp_yaml_known_keys(map, what, keys, SMP__COUNT(keys)));
    SMP_TRY(smp__field_int(map, what, "count", 1, n - *next, &count));
    SMP_TRY(smp__field_text(map, what, "name", arena, &spec.name));
    SMP_TRY(smp__field_int64(map, what, "memory", 0, SMP_MAX_BYTES, &spec.memory_bytes));
    SMP_TRY(smp__field_rate(map, what, "flops_fp32", false, &spec.flops_fp32));
    if (smp_yaml_get(map, "flops_tf32"))
        SMP_TRY(smp__field_rate(map, what, "flops_tf32", true, &spec.flops_tf32));
    SMP_TRY(smp__field_rate(map, what, "flops_bf16", true, &spec.flops_bf16));
    if (smp_yaml_get(map, "flops_fp16"))
        SMP_TRY(smp__field_rate(map, what, "flops_fp16", true, &spec.flops_fp16));
    if (smp_yaml_get(map, "flops_fp8"))
        SMP_TRY(smp__field_rate(map, what, "flops_fp8", true, &spec.flops_fp8));
    SMP_TRY(smp__field_rate(map, what, "bytes_per_s", false, &spec.bytes_per_s));
    if (smp_yaml_get(map, "speed"))
        SMP_TRY(smp_device_speed_read(map, what, &spec.speed));
    if (smp_yaml_get(map, "efficiency"))
        SMP_TRY(smp_efficiency_read(smp_yaml_get(map, "efficiency"), arena, &spec.efficiency));
    while (count-- > 0)
        device[(*next)++] = spec;
    return SMP_OK;
}

static smp_status read_devices(const smp_yaml_node *map, smp_arena *arena, smp_cluster *cluster,
                               int64_t memory)
{
    int n = smp_cluster_devices(cluster), next = 0;
    const smp_yaml_node *list;
    smp_device_spec *device = SMP_ARENA_NEW(arena, smp_device_spec, (size_t)n);
    if (!device)
        return SMP_ERR_NO_MEMORY;
    cluster->device = device;
    if (!smp_yaml_get(map, "devices")) {
        for (int d = 0; d < n; d++)
            device[d] = (smp_device_spec){
                .name = cluster->name, .memory_bytes = memory, .flops_fp32 = 1, .bytes_per_s = 1};
        return SMP_OK;
    }
    SMP_TRY(smp__field_list(map, "cluster", "devices", &list));
    for (int i = 0; i < smp_yaml_list_size(list); i++) {
        if (next == n)
            return smp_fail_at(smp_yaml_where(smp_yaml_list_at(list, i)),
                               "cluster: devices: got more than the %d of the cluster", n);
        SMP_TRY(read_run(smp_yaml_list_at(list, i), arena, device, n, &next));
    }
    if (next < n)
        return smp_fail_at(smp_yaml_where(list), "cluster: devices: got %d, expected %d", next, n);
    return SMP_OK;
}

/* The plan's own copy of the groups: all that it owns is in one arena. */
static smp_status group(const smp_yaml_node *map, const smp_cluster *cluster, int tensor,
                        smp_arena *arena, const smp_cluster **out)
{
    smp_cluster *groups;
    if (!smp_cluster_groups_fit(cluster, tensor))
        return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "devices_per_node")),
                           "cluster: devices_per_node: got %d, expected a multiple of the %d that "
                           "compute every op together (`tensor`), or nodes that are one group",
                           cluster->devices_per_node, tensor);
    SMP_TRY(smp_cluster_group(cluster, tensor, &groups));
    smp_status status = smp_cluster_copy(groups, arena, out);
    smp_cluster_destroy(groups);
    return status;
}

smp_status smp__plan_read_cluster(const smp_yaml_node *top, int devices, int tensor,
                                  smp_arena *arena, const smp_cluster **out,
                                  double *optimizer_bytes_per_s)
{
    static const char *const keys[] = {"name",
                                       "nodes",
                                       "devices_per_node",
                                       "memory",
                                       "intra_node",
                                       "cores_per_node",
                                       "overlap",
                                       "inter_node",
                                       "optimizer_bytes_per_s",
                                       "devices",
                                       "core_switch_us",
                                       "adapters_per_node",
                                       "host",
                                       "scatter",
                                       "host_memory",
                                       "keep_bytes_per_s",
                                       "launch"};
    const smp_yaml_node *map, *overlap;
    int64_t memory;
    if (!smp_yaml_get(top, "cluster"))
        return SMP_OK;
    smp_cluster *cluster = SMP_ARENA_NEW(arena, smp_cluster, 1);
    if (!cluster)
        return SMP_ERR_NO_MEMORY;
    const char *what = "cluster";
    SMP_TRY(smp__field_map(top, "plan", what, keys, SMP__COUNT(keys), &map));
    SMP_TRY(smp__field_text(map, what, "name", arena, &cluster->name));
    SMP_TRY(smp__field_int(map, what, "nodes", 1, SMP__MAX_DEVICES, &cluster->nodes));
    SMP_TRY(smp__field_int(map, what, "devices_per_node", 1, SMP__MAX_DEVICES,
                           &cluster->devices_per_node));
    SMP_TRY(
        smp__field_int(map, what, "cores_per_node", 0, SMP__MAX_CORES, &cluster->cores_per_node));
    if (smp_yaml_get(map, "adapters_per_node"))
        SMP_TRY(smp__field_int(map, what, "adapters_per_node", 1, SMP__MAX_DEVICES,
                               &cluster->adapters_per_node));
    SMP_TRY(smp_core_switch_read(map, what, &cluster->core_switch_us));
    SMP_TRY(smp_scatter_read(map, what, &cluster->scatter));
    SMP_TRY(smp_launch_costs_read(map, what, &cluster->launch));
    if (smp_yaml_get(map, "keep_bytes_per_s"))
        SMP_TRY(smp__field_rate(map, what, "keep_bytes_per_s", false, &cluster->keep_bytes_per_s));
    if (smp_yaml_get(map, "host_memory"))
        SMP_TRY(smp__field_bytes(map, what, "host_memory", &cluster->host_memory_bytes));
    SMP_TRY(smp__field_int64(map, what, "memory", 0, SMP_MAX_BYTES, &memory));
    SMP_TRY(smp__field(map, what, "overlap", &overlap));
    SMP_TRY(smp_yaml_bool(overlap, "cluster: overlap", &cluster->overlap));
    SMP_TRY(smp__field_rate(map, what, "optimizer_bytes_per_s", true, optimizer_bytes_per_s));
    SMP_TRY(smp_link_read(map, what, "intra_node", false, arena, &cluster->intra_node));
    SMP_TRY(smp_link_read(map, what, "inter_node", false, arena, &cluster->inter_node));
    if (smp_yaml_get(map, "host"))
        SMP_TRY(smp_link_read(map, what, "host", false, arena, &cluster->host));
    int64_t on_hand = (int64_t)cluster->nodes * cluster->devices_per_node;
    if (on_hand < devices || on_hand > SMP__MAX_DEVICES)
        return smp_fail_at(smp_yaml_where(smp_yaml_get(map, "nodes")),
                           "cluster: got %lld devices, expected %d (the plan's) to %d",
                           (long long)on_hand, devices, SMP__MAX_DEVICES);
    SMP_TRY(read_devices(map, arena, cluster, memory));
    if (tensor > 1)
        return group(map, cluster, tensor, arena, out);
    *out = cluster;
    return SMP_OK;
}

/* Cluster files, and the links between devices.
 *
 * A file describes nodes * devices_per_node devices, either alike (`device` is a map) or one by one
 * (`device` is a list: one entry per device, or per device of a node and then the same on every
 * node). A link that no pair of devices can use may be left out. Linear in the file and the number
 * of devices. */
#include "profile/device/cluster.h"

#include <stdio.h>
#include <string.h>

#include "graph/yaml/yaml_field.h"
#include "profile/device/device_spec.h"

enum { MAX_NODES = 65536, MAX_DEVICES_PER_NODE = 4096, MAX_DEVICES = 1000000, MAX_CORES = 65536 };
enum { MAX_POINTS = 1000 };

static smp_status read_bandwidth(const smp_yaml_node *map, const char *what, const char *value,
                                 double *out)
{
    const smp_yaml_node *node;
    SMP_TRY(smp__field(map, what, "bandwidth", &node));
    return smp_yaml_bytes_per_s(node, value, out);
}

static smp_status read_count(const smp_yaml_node *map, const char *key, bool must, int min, int max,
                             int *out)
{
    return must || smp_yaml_get(map, key) ? smp__field_int(map, "cluster", key, min, max, out)
                                          : SMP_OK;
}

static smp_status read_devices(const smp_yaml_node *top, smp_cluster *cluster)
{
    const int n = smp_cluster_devices(cluster);
    const smp_yaml_node *node;
    smp_device_spec *device = SMP_ARENA_NEW(cluster->arena, smp_device_spec, (size_t)n);
    int given = 1;
    if (!device)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp__field(top, "cluster", "device", &node));
    if (smp_yaml_kind_of(node) == SMP_YAML_LIST) {
        given = smp_yaml_list_size(node);
        if (given != n && given != cluster->devices_per_node)
            return smp_fail_at(
                smp_yaml_where(node),
                "device: got a list of %d, expected one entry per device (%d) or per "
                "device of a node (%d)",
                given, n, cluster->devices_per_node);
        for (int i = 0; i < given; i++)
            SMP_TRY(smp__device_read(smp_yaml_list_at(node, i), cluster->arena, &device[i]));
    } else {
        SMP_TRY(smp__device_read(node, cluster->arena, &device[0]));
    }
    for (int i = given; i < n; i++)
        device[i] = device[i - given];
    cluster->device = device;
    return SMP_OK;
}

static smp_status read_points(const smp_yaml_node *link, const char *what, bool must,
                              smp_arena *arena, smp_link_spec *out)
{
    static const char *const keys[] = {"bytes", "us"};
    const smp_yaml_node *points;
    if (!must && !smp_yaml_get(link, "points"))
        return SMP_OK;
    SMP_TRY(smp__field_list(link, what, "points", &points));
    int n = smp_yaml_list_size(points);
    if (n > MAX_POINTS)
        return smp_fail_at(smp_yaml_where(points), "points: got %d, expected at most %d", n,
                           MAX_POINTS);
    int64_t *bytes = SMP_ARENA_NEW(arena, int64_t, (size_t)n);
    double *us = SMP_ARENA_NEW(arena, double, (size_t)n);
    if (!bytes || !us)
        return SMP_ERR_NO_MEMORY;
    for (int i = 0; i < n; i++) {
        const smp_yaml_node *point = smp_yaml_list_at(points, i);
        SMP_TRY(smp_yaml_map(point, "point"));
        SMP_TRY(smp_yaml_known_keys(point, "point", keys, SMP__COUNT(keys)));
        SMP_TRY(smp__field_bytes(point, "point", "bytes", &bytes[i]));
        const smp_yaml_node *node = smp_yaml_get(point, "bytes");
        if (i > 0 && bytes[i] <= bytes[i - 1])
            return smp_fail_at(smp_yaml_where(node),
                               "point: bytes: got '%s', expected more than in the point before",
                               smp_yaml_text(node));
        SMP_TRY(smp__field_us(point, "point", "us", &us[i]));
    }
    out->n_point = n;
    out->point_bytes = bytes;
    out->point_us = us;
    return SMP_OK;
}

/* As people write it, or as a profile has it. */
static smp_status read_link(const smp_yaml_node *links, const char *key, smp_arena *arena,
                            smp_link_spec *link)
{
    static const char *const keys[] = {"bandwidth", "latency_us", "points"};
    const smp_yaml_node *node = smp_yaml_get(links, key);
    char what[32], value[64];
    snprintf(what, sizeof what, "links: %s", key);
    SMP_TRY(smp_yaml_map(node, what));
    if (smp_yaml_get(node, "bytes_per_s"))
        return smp_link_read(links, "links", key, false, arena, link);
    SMP_TRY(smp_yaml_known_keys(node, what, keys, SMP__COUNT(keys)));
    snprintf(value, sizeof value, "%s: bandwidth", what);
    SMP_TRY(read_bandwidth(node, what, value, &link->bytes_per_s));
    SMP_TRY(smp__field_us(node, what, "latency_us", &link->latency_us));
    return read_points(node, what, false, arena, link);
}

/* A link that is needed must be there; one that no pair of devices uses takes the other's
 * numbers. */
static smp_status read_links(const smp_yaml_node *top, smp_cluster *cluster)
{
    static const char *const keys[] = {"intra_node", "inter_node", "host"};
    const smp_yaml_node *links = smp_yaml_get(top, "links");
    const smp_yaml_node *intra = NULL, *inter = NULL, *host = NULL;
    const smp_link_spec self = {.bytes_per_s = cluster->device[0].bytes_per_s};
    if (!links && smp_cluster_devices(cluster) > 1)
        SMP_TRY(smp__field(top, "cluster", "links", &links));
    if (links) {
        SMP_TRY(smp_yaml_map(links, "links"));
        SMP_TRY(smp_yaml_known_keys(links, "links", keys, SMP__COUNT(keys)));
        intra = smp_yaml_get(links, "intra_node");
        inter = smp_yaml_get(links, "inter_node");
        host = smp_yaml_get(links, "host");
        if (cluster->devices_per_node > 1)
            SMP_TRY(smp__field(links, "links", "intra_node", &intra));
        if (cluster->nodes > 1)
            SMP_TRY(smp__field(links, "links", "inter_node", &inter));
    }
    cluster->intra_node = self;
    if (intra)
        SMP_TRY(read_link(links, "intra_node", cluster->arena, &cluster->intra_node));
    if (inter)
        SMP_TRY(read_link(links, "inter_node", cluster->arena, &cluster->inter_node));
    if (host)
        SMP_TRY(read_link(links, "host", cluster->arena, &cluster->host));
    if (!inter)
        cluster->inter_node = cluster->intra_node;
    if (!intra)
        cluster->intra_node = cluster->inter_node;
    return SMP_OK;
}

static smp_status read_cluster(const smp_yaml *yaml, smp_cluster *cluster)
{
    static const char *const keys[] = {"smp",
                                       "name",
                                       "nodes",
                                       "devices_per_node",
                                       "device",
                                       "links",
                                       "overlap",
                                       "cores_per_node",
                                       "core_switch_us",
                                       "adapters_per_node",
                                       "scatter",
                                       "host_memory",
                                       "keep_bytes_per_s",
                                       "launch"};
    const smp_yaml_node *top, *node;
    const char *name = "cluster";
    SMP_TRY(smp_yaml_document(yaml, "cluster", keys, SMP__COUNT(keys), &top));
    node = smp_yaml_get(top, "name");
    if (node)
        SMP_TRY(smp_yaml_string(node, "name", &name));
    cluster->name = smp_arena_strdup(cluster->arena, name);
    if (!cluster->name)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(read_count(top, "nodes", true, 1, MAX_NODES, &cluster->nodes));
    SMP_TRY(read_count(top, "devices_per_node", true, 1, MAX_DEVICES_PER_NODE,
                       &cluster->devices_per_node));
    if ((int64_t)cluster->nodes * cluster->devices_per_node > MAX_DEVICES)
        return smp_fail_at(smp_yaml_where(smp_yaml_get(top, "nodes")),
                           "nodes: got %d nodes of %d devices, expected at most %d devices",
                           cluster->nodes, cluster->devices_per_node, MAX_DEVICES);
    SMP_TRY(read_count(top, "cores_per_node", false, 0, MAX_CORES, &cluster->cores_per_node));
    SMP_TRY(read_count(top, "adapters_per_node", false, 0, MAX_CORES, &cluster->adapters_per_node));
    SMP_TRY(smp_core_switch_read(top, "cluster", &cluster->core_switch_us));
    SMP_TRY(smp_scatter_read(top, "cluster", &cluster->scatter));
    SMP_TRY(smp_launch_costs_read(top, "cluster", &cluster->launch));
    node = smp_yaml_get(top, "keep_bytes_per_s");
    if (node)
        SMP_TRY(smp_yaml_bytes_per_s(node, "keep_bytes_per_s", &cluster->keep_bytes_per_s));
    node = smp_yaml_get(top, "host_memory");
    if (node)
        SMP_TRY(smp_yaml_bytes(node, "host_memory", &cluster->host_memory_bytes));
    SMP_TRY(read_devices(top, cluster));
    SMP_TRY(read_links(top, cluster));
    cluster->overlap = true;
    node = smp_yaml_get(top, "overlap");
    return node ? smp_yaml_bool(node, "overlap", &cluster->overlap) : SMP_OK;
}

smp_status smp_cluster_read(const char *path, smp_cluster **out)
{
    smp_yaml *yaml = NULL;
    SMP_TRY(smp_yaml_read(path, &yaml));
    smp_arena *arena = smp_arena_create();
    smp_cluster *cluster = arena ? SMP_ARENA_NEW(arena, smp_cluster, 1) : NULL;
    if (cluster)
        cluster->arena = arena;
    smp_status status = cluster ? read_cluster(yaml, cluster) : SMP_ERR_NO_MEMORY;
    smp_yaml_destroy(yaml);
    if (status != SMP_OK) {
        smp_arena_destroy(arena);
        return status;
    }
    *out = cluster;
    return SMP_OK;
}

void smp_cluster_destroy(smp_cluster *cluster)
{
    if (cluster)
        smp_arena_destroy(cluster->arena);
}

smp_status smp_link_read(const smp_yaml_node *map, const char *what, const char *key, bool measured,
                         smp_arena *arena, smp_link_spec *out)
{
    static const char *const keys[] = {"latency_us", "bytes_per_s", "points"};
    const smp_yaml_node *link;
    SMP_TRY(smp__field_map(map, what, key, keys, SMP__COUNT(keys), &link));
    SMP_TRY(smp__field_us(link, key, "latency_us", &out->latency_us));
    SMP_TRY(smp__field_rate(link, key, "bytes_per_s", false, &out->bytes_per_s));
    return read_points(link, key, measured, arena, out);
}

smp_status smp_core_switch_read(const smp_yaml_node *map, const char *what, double *us)
{
    *us = SMP_DEFAULT_CORE_SWITCH_US;
    return smp_yaml_get(map, "core_switch_us") ? smp__field_us(map, what, "core_switch_us", us)
                                               : SMP_OK;
}

smp_status smp_scatter_read(const smp_yaml_node *map, const char *what, double *scatter)
{
    *scatter = 0.0;
    return smp_yaml_get(map, "scatter") ? smp__field_double(map, what, "scatter", 0, 1, scatter)
                                        : SMP_OK;
}

const char *smp_link_name(smp_link_kind kind)
{
    static const char *const name[] = {"intra_node", "inter_node", "host"};
    return name[kind];
}

int smp_cluster_core_of(const smp_cluster *cluster, int device)
{
    if (cluster->cores_per_node <= 0)
        return -1;
    int node = device / cluster->devices_per_node, local = device % cluster->devices_per_node;
    return node * cluster->cores_per_node + local % cluster->cores_per_node;
}

double smp_device_matrix_flops(const smp_device_spec *device, smp_precision precision)
{
    if (precision == SMP_PRECISION_FP16 && device->flops_fp16 > 0)
        return device->flops_fp16;
    if (precision == SMP_PRECISION_FP8 && device->flops_fp8 > 0)
        return device->flops_fp8;
    if (smp_precision_is_half(precision))
        return device->flops_bf16;
    if (precision == SMP_PRECISION_TF32 && device->flops_tf32 > 0)
        return device->flops_tf32;
    if (precision == SMP_PRECISION_TF32 && device->flops_bf16 > 0)
        return 0.5 * device->flops_bf16;
    return device->flops_fp32;
}

int smp_cluster_devices(const smp_cluster *cluster)
{
    return cluster->nodes * cluster->devices_per_node;
}

const smp_link_spec *smp_cluster_link(const smp_cluster *cluster, int a, int b)
{
    const bool same_node = a / cluster->devices_per_node == b / cluster->devices_per_node;
    return same_node ? &cluster->intra_node : &cluster->inter_node;
}

/* Below the first point a message takes as long as the smallest one; beyond the last it goes on at
 * the slope of the last segment. */
static double curve_us(const smp_link_spec *link, int64_t bytes)
{
    const int64_t *x = link->point_bytes;
    const double *y = link->point_us;
    const int last = link->n_point - 1;
    int low = 0, high = last;
    if (bytes <= x[0])
        return y[0];
    if (last == 0)
        return y[0] + (double)(bytes - x[0]) / link->bytes_per_s * 1e6;
    if (bytes >= x[last]) {
        const double slope = (y[last] - y[last - 1]) / (double)(x[last] - x[last - 1]);
        return y[last] + (slope > 0 ? slope : 0) * (double)(bytes - x[last]);
    }
    while (high - low > 1) { /* x[low] <= bytes < x[high] */
        const int middle = low + (high - low) / 2;
        if (x[middle] <= bytes)
            low = middle;
        else
            high = middle;
    }
    return y[low] + (y[high] - y[low]) * ((double)(bytes - x[low]) / (double)(x[high] - x[low]));
}

double smp_link_us(const smp_link_spec *link, int64_t bytes)
{
    if (link->n_point > 0)
        return curve_us(link, bytes);
    return link->latency_us + (double)bytes / link->bytes_per_s * 1e6;
}

smp_status smp_cluster_set_speeds(smp_cluster *cluster, const double *speed, int n)
{
    const int all = smp_cluster_devices(cluster);
    smp_device_spec *device = SMP_ARENA_NEW(cluster->arena, smp_device_spec, (size_t)all);
    if (!device)
        return SMP_ERR_NO_MEMORY;
    if (n > all)
        return smp_fail(SMP_ERR_INPUT, "speeds of %d devices, cluster '%s' has %d", n,
                        cluster->name, all);
    memcpy(device, cluster->device, (size_t)all * sizeof *device);
    for (int d = 0; d < all; d++)
        device[d].speed = 1.0;
    for (int d = 0; speed && d < n; d++) {
        if (!(speed[d] >= SMP_LEAST_SPEED && speed[d] <= 1.0))
            return smp_fail(SMP_ERR_INPUT, "speed of device %d: got %g, expected %g to 1", d,
                            speed[d], SMP_LEAST_SPEED);
        device[d].speed = speed[d];
    }
    cluster->device = device;
    return SMP_OK;
}

smp_status smp_cluster_set_link(smp_cluster *cluster, smp_link_kind kind, const smp_link_spec *link)
{
    smp_link_spec *const of[] = {&cluster->intra_node, &cluster->inter_node, &cluster->host};
    const size_t n = link->n_point > 0 ? (size_t)link->n_point : 0;
    int64_t *bytes = SMP_ARENA_NEW(cluster->arena, int64_t, n);
    double *us = SMP_ARENA_NEW(cluster->arena, double, n);
    if (!bytes || !us)
        return SMP_ERR_NO_MEMORY;
    if (n) {
        memcpy(bytes, link->point_bytes, n * sizeof *bytes);
        memcpy(us, link->point_us, n * sizeof *us);
    }
    *of[kind] = *link;
    of[kind]->n_point = (int)n;
    of[kind]->point_bytes = bytes;
    of[kind]->point_us = us;
    return SMP_OK;
}

/* Devices, their memory and the links between them: cluster files and this machine. */
#ifndef SMP_PROFILE_CLUSTER_H
#define SMP_PROFILE_CLUSTER_H

#include <stdbool.h>

#include "graph/base/arena.h"
#include "graph/model/target.h"
#include "profile/device/efficiency.h"
#include "profile/device/launch_costs.h"

typedef struct smp_device_spec {
    const char *name;
    int64_t memory_bytes;
    double flops_fp32; /* per second */
    double flops_tf32; /* of matrix products, as bf16; 0: not given */
    double flops_bf16;
    double flops_fp16;                /* 0: not given */
    double flops_fp8;                 /* 0: not given, or it has none */
    double bytes_per_s;               /* memory bandwidth */
    const smp_efficiency *efficiency; /* NULL: it is not described (smp_device_efficiency) */
    double speed; /* share of what the figures above, or a profile, say that it does; 0: all */
} smp_device_spec;
#define SMP_LEAST_SPEED 0.001

static inline double smp_device_speed(const smp_device_spec *device)
{
    return device->speed > 0 ? device->speed : 1;
}

static inline const smp_efficiency *smp_device_efficiency(const smp_device_spec *device)
{
    return device->efficiency ? device->efficiency : &smp_efficiency_ideal;
}

/* What a plan asks of a device: memory and arithmetic. */
static inline bool smp_devices_alike(const smp_device_spec *a, const smp_device_spec *b)
{
    return a->memory_bytes == b->memory_bytes && a->flops_fp32 == b->flops_fp32 &&
           a->flops_tf32 == b->flops_tf32 && a->flops_bf16 == b->flops_bf16 &&
           a->flops_fp16 == b->flops_fp16 && a->flops_fp8 == b->flops_fp8 &&
           smp_device_speed(a) == smp_device_speed(b) &&
           smp_efficiency_alike(smp_device_efficiency(a), smp_device_efficiency(b));
}

/* A transfer of b bytes takes latency_us + b / bytes_per_s; where it was measured, a piecewise
 * linear curve through the points instead. */
typedef struct smp_link_spec {
    double latency_us;
    double bytes_per_s;
    int n_point;                /* 0: formula */
    const int64_t *point_bytes; /* increasing */
    const double *point_us;
} smp_link_spec;

typedef enum smp_link_kind {
    SMP_LINK_INTRA_NODE,
    SMP_LINK_INTER_NODE,
    SMP_LINK_HOST, /* of a device to its host's memory; the others are between ranks */
    SMP_LINK_KINDS
} smp_link_kind;

const char *smp_link_name(smp_link_kind kind); /* its key in files: "intra_node" */

/* Where nothing says what it costs that a rank gets a core from another one: half of a waiting
 * rank's sleep (50 us), and a second-level cache of 1 MiB refilled at 20 GB/s. An estimate. */
#define SMP_DEFAULT_CORE_SWITCH_US 75.0

/* Memory bandwidth of a core of a server of the 2020s: an order of magnitude. */
#define SMP_CORE_BYTES_PER_S 10e9

typedef struct smp_cluster {
    const char *name;
    int nodes;
    int devices_per_node;
    const smp_device_spec *device; /* [nodes * devices_per_node] */
    smp_link_spec intra_node;
    smp_link_spec inter_node;
    smp_link_spec host;    /* of each device and direction to the memory of its host; bytes_per_s 0:
                              not given, nothing can travel there */
    bool overlap;          /* transfers run beside compute */
    int cores_per_node;    /* ranks of a node that compute at the same time share this many
                                   cores (`cores_per_node:`); 0: every device computes by itself */
    int adapters_per_node; /* to other nodes, which its devices share; 0: each has its own */
    double core_switch_us; /* what it costs that a rank gets a core from another one */
    double keep_bytes_per_s; /* of a state that a core of a host hashes and writes to its memory in
                                a second of its time; 0: not measured */
    smp_launch_costs launch; /* of kernels, by the host of a device */
    int64_t host_memory_bytes; /* of a node, for all its ranks; 0: not known */
    double scatter; /* of an action's times: standard deviation over mean; 0: not known */
    const struct smp_cluster *of; /* whose devices these are groups of (smp_cluster_group); NULL */
    int group;                    /* ... so many each; 0 without it */
    double group_slowdown; /* what ops take longer as a group has fewer cores than devices, 1:
                                     it has not; 0 without it */
    smp_arena *arena;
} smp_cluster;

/* The link at `key` of a map that messages call `what`, as profiles and plans have it: latency_us,
 * bytes_per_s, and points, which `measured` ones must have. */
struct smp_yaml_node;
smp_status smp_link_read(const struct smp_yaml_node *map, const char *what, const char *key,
                         bool measured, smp_arena *arena, smp_link_spec *out);

/* `core_switch_us` of a cluster in a file, or the default. */
smp_status smp_core_switch_read(const struct smp_yaml_node *map, const char *what, double *us);
/* `scatter` of a cluster or a profile in a file; left out: 0. */
smp_status smp_scatter_read(const struct smp_yaml_node *map, const char *what, double *scatter);

/* `speed` of a device in a file, which is there. */
smp_status smp_device_speed_read(const struct smp_yaml_node *map, const char *what, double *speed);

/* Errors: SMP_ERR_INPUT with file:line:column. Freed with smp_cluster_destroy. */
smp_status smp_cluster_read(const char *path, smp_cluster **out);
/* `devices` CPU devices of this machine: its memory shared out evenly, its cores shared. Bandwidth
 * and arithmetic are estimates until a profile replaces them. devices >= 1. */
smp_status smp_cluster_local(int devices, smp_cluster **out);
void smp_cluster_destroy(smp_cluster *cluster);

/* Arithmetic per second of matrix products in a precision; all else is done at flops_fp32. tf32 not
 * given is half of bf16, or fp32 where that is not given either; fp16 not given is bf16. 0: that is
 * not given. */
double smp_device_matrix_flops(const smp_device_spec *device, smp_precision precision);
/* What of that large products reach. */
static inline double smp_device_reached_flops(const smp_device_spec *device,
                                              smp_precision precision)
{
    return smp_device_matrix_flops(device, precision) * smp_device_efficiency(device)->products;
}
/* Bytes of memory that an op moves in a second. */
static inline double smp_device_moved_per_s(const smp_device_spec *device)
{
    return device->bytes_per_s * smp_device_efficiency(device)->memory;
}

int smp_cluster_devices(const smp_cluster *cluster);
/* The core that a device computes on, counted over all nodes: the devices of a node are dealt out
 * to its cores_per_node cores in turn. -1 if every device computes by itself. */
int smp_cluster_core_of(const smp_cluster *cluster, int device);
/* The link between two devices (intra_node if they share a node). */
const smp_link_spec *smp_cluster_link(const smp_cluster *cluster, int a, int b);
double smp_link_us(const smp_link_spec *link, int64_t bytes);
/* Are the devices of a node groups of so many, or those of several nodes one? */
bool smp_cluster_groups_fit(const smp_cluster *from, int size);
/* Groups of `size` neighbours that compute every op together as the devices of a cluster: as fast
 * and with as much memory as the slowest and the smallest of each group. Links are those that one
 * device of a group finds while the others use theirs: what devices of a group tell each other goes
 * over intra_node, in groups of whole nodes over the mean of the links to all others; to other
 * nodes they share adapters, as they share cores (group_slowdown) where there are fewer than
 * devices in a group. `from` has to outlive *out. SMP_ERR_INPUT: the devices cannot be put into
 * such groups. */
smp_status smp_cluster_group(const smp_cluster *from, int size, smp_cluster **out);
/* The same for groups that are not all as large: rank r of each replica has devices begin[r] to
 * begin[r + 1] - 1 of the begin[ranks] that a replica has, one replica after the other. The number
 * of its first device stands for a group, other numbers for nothing; `group` is the largest, and
 * what groups share is shared as if all were as large. SMP_ERR_INPUT: a group would lie on two
 * nodes. */
smp_status smp_cluster_group_ranks(const smp_cluster *from, const int *begin, int ranks,
                                   int replicas, smp_cluster **out);
/* With all that it points to, `of` too, in `arena`. */
smp_status smp_cluster_copy(const smp_cluster *from, smp_arena *arena, const smp_cluster **out);
/* Sets the speed of the first n devices; NULL: all of them run at their full speed.
 * SMP_ERR_INPUT: a speed is not SMP_LEAST_SPEED to 1, or there are fewer devices. */
smp_status smp_cluster_set_speeds(smp_cluster *cluster, const double *speed, int n);
/* Replaces a link by a measured curve (copied into the cluster). */
smp_status smp_cluster_set_link(smp_cluster *cluster, smp_link_kind kind,
                                const smp_link_spec *link);

#endif

/* Replicas compared as vectors: their devices' slowdowns, and which of their ranks share a node. */
#include "profile/replicas.h"

#include "profile/costs.h"

typedef struct comparison {
    const smp_cluster *cluster;
    const int *device;
    int pipeline;
    const double *slowdown; /* [ddp * pipeline] */
    bool far_is_slower;
    int *node; /* [nodes] scratch */
} comparison;

static bool far_is_slower_at(const smp_cluster *cluster, int64_t bytes)
{
    return smp_link_us(&cluster->inter_node, bytes) >= smp_link_us(&cluster->intra_node, bytes);
}

/* Whatever the size: curves are straight between their points. */
static bool far_is_slower(const smp_cluster *cluster)
{
    const smp_link_spec *links[] = {&cluster->intra_node, &cluster->inter_node};
    bool slower = far_is_slower_at(cluster, 0) && far_is_slower_at(cluster, INT64_MAX / 2);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < links[i]->n_point; k++)
            slower = slower && far_is_slower_at(cluster, links[i]->point_bytes[k]);
    return slower;
}

/* Whether ranks that share a node in replica a do so in b: a's nodes map to b's. */
static bool splits_nodes(const comparison *c, int a, int b)
{
    const int *from = &c->device[(int64_t)a * c->pipeline];
    const int *to = &c->device[(int64_t)b * c->pipeline];
    int per_node = c->cluster->devices_per_node;
    for (int r = 0; r < c->pipeline; r++)
        c->node[from[r] / per_node] = -1;
    for (int r = 0; r < c->pipeline; r++) {
        int *node = &c->node[from[r] / per_node];
        if (*node >= 0 && *node != to[r] / per_node)
            return false;
        *node = to[r] / per_node;
    }
    return true;
}

static bool at_least_as_slow(const comparison *c, int a, int b)
{
    const double *x = &c->slowdown[(int64_t)a * c->pipeline];
    const double *y = &c->slowdown[(int64_t)b * c->pipeline];
    for (int r = 0; r < c->pipeline; r++)
        if (x[r] < y[r])
            return false;
    return splits_nodes(c, a, b) && (c->far_is_slower || splits_nodes(c, b, a));
}

static void keep_replica(const comparison *c, int replica, int *kept, int *n_kept)
{
    int n = 0;
    for (int i = 0; i < *n_kept; i++)
        if (at_least_as_slow(c, kept[i], replica))
            return;
    for (int i = 0; i < *n_kept; i++)
        if (!at_least_as_slow(c, replica, kept[i]))
            kept[n++] = kept[i];
    kept[n++] = replica;
    *n_kept = n;
}

smp_status smp_replicas_that_count(const smp_cluster *cluster, smp_precision precision,
                                   int pipeline, int ddp, const int *device, int *kept, int *n_kept)
{
    smp_arena *scratch = smp_arena_create();
    size_t n = (size_t)pipeline * (size_t)ddp;
    double *slowdown = scratch ? SMP_ARENA_NEW(scratch, double, n) : NULL;
    int *node = scratch ? SMP_ARENA_NEW(scratch, int, (size_t)cluster->nodes) : NULL;
    if (!slowdown || !node) {
        smp_arena_destroy(scratch);
        return SMP_ERR_NO_MEMORY;
    }
    comparison c = {cluster, device, pipeline, slowdown, far_is_slower(cluster), node};
    for (size_t i = 0; i < n; i++)
        slowdown[i] = smp_device_slowdown(cluster, precision, device[i]);
    *n_kept = 0;
    for (int d = 0; d < ddp; d++)
        keep_replica(&c, d, kept, n_kept);
    smp_arena_destroy(scratch);
    return SMP_OK;
}

double smp_replicas_slowest(const smp_cluster *cluster, smp_precision precision, int pipeline,
                            int n, const int *device, int rank)
{
    double most = 0.0;
    for (int d = 0; d < n; d++) {
        double slowdown =
            smp_device_slowdown(cluster, precision, device[(int64_t)d * pipeline + rank]);
        most = slowdown > most ? slowdown : most;
    }
    return most;
}

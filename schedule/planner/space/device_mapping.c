/* Which device serves which rank: the placements, and what follows from them for all configurations
 * of one pipeline. Linear in devices; kept, since clusters may have many. */
#include <math.h>
#include <string.h>

#include "profile/replicas.h"
#include "schedule/memory/communicators.h"
#include "schedule/planner/space/configs.h"

smp_status smp__mapping_count(smp__mapping *mapping, const smp_search_request *request,
                              smp_arena *arena)
{
    size_t p = (size_t)mapping->pipeline;
    int *kept = SMP_ARENA_NEW(arena, int, (size_t)mapping->ddp);
    if (!kept)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp_replicas_that_count(request->cluster, request->graph->target.precision,
                                    mapping->pipeline, mapping->ddp, mapping->device, kept,
                                    &mapping->n_replica));
    mapping->counting = SMP_ARENA_NEW(arena, int, (size_t)mapping->n_replica *p);
    if (!mapping->counting)
        return SMP_ERR_NO_MEMORY;
    for (int k = 0; k < mapping->n_replica; k++)
        memcpy(&mapping->counting[(size_t)k * p], &mapping->device[(size_t)kept[k] * p],
               p * sizeof *mapping->counting);
    return SMP_OK;
}

static void measure_speed(smp__mapping *mapping, const smp_search_request *request)
{
    int p = mapping->pipeline;
    smp_precision precision = request->graph->target.precision;
    for (int k = 0; k < mapping->n_replica; k++) {
        double fastest = INFINITY;
        for (int r = 0; r < p; r++)
            fastest = fmin(fastest, smp_device_slowdown(request->cluster, precision,
                                                        mapping->counting[k * p + r]));
        mapping->fastest = fmax(mapping->fastest, fastest);
    }
    for (int r = 0; r < p; r++) {
        double slowest = smp_replicas_slowest(request->cluster, precision, p, mapping->n_replica,
                                              mapping->counting, r);
        mapping->most = fmax(mapping->most, slowest);
        mapping->speed += 1.0 / slowest;
    }
}

/* True if all replicas of some rank share a node: its reduction may stay inside. */
static bool some_ring_inside(const smp__mapping *mapping, const smp_cluster *cluster)
{
    for (int r = 0; r < mapping->pipeline; r++) {
        bool inside = true;
        int node = mapping->device[r] / cluster->devices_per_node;
        for (int d = 1; d < mapping->ddp && inside; d++)
            inside = mapping->device[d * mapping->pipeline + r] / cluster->devices_per_node == node;
        if (inside)
            return true;
    }
    return false;
}

/* Whatever the ring, a rank sends 2(d-1)/d of its bytes; if all rings cross nodes, over a link
 * between nodes. Measured links have no rate to count with. */
static double least_ring_us(const smp__mapping *mapping, const smp_cluster *cluster)
{
    const smp_link_spec *inner = &cluster->intra_node, *outer = &cluster->inter_node;
    double bytes_per_s = outer->bytes_per_s;
    if (mapping->ddp == 1)
        return 0.0;
    bool inside = some_ring_inside(mapping, cluster);
    if ((inside && inner->n_point > 0) || (cluster->nodes > 1 && outer->n_point > 0))
        return 0.0;
    if (inside && (cluster->nodes == 1 || inner->bytes_per_s > bytes_per_s))
        bytes_per_s = inner->bytes_per_s;
    double d = mapping->ddp;
    return bytes_per_s > 0.0 ? 2.0 * (d - 1.0) / d * 1e6 / bytes_per_s : 0.0;
}

int64_t smp__communicator_bytes(const smp_search_request *request, int pipeline, int ddp,
                                smp_sharding sharding)
{
    const smp_graph *graph = request->graph;
    const int neighbours = pipeline > 2 ? 2 : pipeline - 1;
    const int tied = pipeline > 1 && graph->n_use > graph->n_param;
    const int near = sharding.node_replicas > 1 ? sharding.node_replicas : 1;
    const int tensor = request->splitting.devices > 1 ? request->splitting.devices : 1;
    if (!smp_backend_of(graph->target)->own_memory)
        return 0;
    return smp_communicator_bytes(
        &(smp_communicators){.lanes = graph->training ? 2 * (neighbours + tied) : neighbours,
                             .replicas = ddp,
                             .shard = sharding.shard > 1 ? sharding.shard : 1,
                             .near = near,
                             .far = near > 1 ? smp_hops_size(sharding, ddp) / near : 1,
                             .tensor = tensor,
                             .node = request->cluster->devices_per_node * tensor});
}

int64_t smp__memory_of_rank(const smp_search_request *request, const int *device, int pipeline,
                            int ddp, smp_sharding sharding, int rank)
{
    const int64_t beside = smp__communicator_bytes(request, pipeline, ddp, sharding);
    int64_t least = INT64_MAX;
    if (request->options.memory_bytes > 0)
        return request->options.memory_bytes;
    for (int d = 0; d < ddp; d++) {
        const int64_t bytes = request->cluster->device[device[d * pipeline + rank]].memory_bytes;
        least = bytes < least ? bytes : least;
    }
    return least > beside ? least - beside : 0;
}

static smp_status fill_mapping(smp__mapping *mapping, const smp_search_request *request,
                               const int *listed, smp_arena *arena)
{
    const smp_cluster *cluster = request->cluster;
    int p = mapping->pipeline;
    for (int d = 0; d < mapping->ddp; d++) {
        for (int r = 0; r < p; r++)
            mapping->device[d * p + r] =
                smp_placement_device(mapping->placement, listed, p, mapping->ddp, d, r);
    }
    SMP_TRY(smp__mapping_count(mapping, request, arena));
    measure_speed(mapping, request);
    for (int r = 0; r < p; r++) {
        mapping->memory[r] =
            smp__memory_of_rank(request, mapping->device, p, mapping->ddp, request->sharding, r);
        mapping->memory_all = smp__add_bytes(mapping->memory_all, mapping->memory[r]);
    }
    const bool buckets = request->sharding.bucket_bytes > 0 ||
                         (request->sharding.bucket_bytes < 0 && smp_buckets_help(cluster));
    const bool hops = request->sharding.node_replicas > 0 ||
                      (cluster->nodes > 1 && request->sharding.node_replicas != 0);
    mapping->ring_us = buckets || hops ? 0.0 : least_ring_us(mapping, cluster);
    if (smp_wire_is_bf16(request->sharding))
        mapping->ring_us /= 2;
    return SMP_OK;
}

smp_status smp__mapping_get(smp__configs *configs, int pipeline, smp_placement placement,
                            const int *listed, const smp__mapping **out)
{
    size_t devices = (size_t)configs->request->options.devices, p = (size_t)pipeline;
    for (smp__mapping *known = configs->mapping; known; known = known->next) {
        if (known->pipeline == pipeline && known->placement == placement &&
            (placement != SMP_PLACEMENT_LISTED ||
             memcmp(known->device, listed, devices * sizeof *listed) == 0)) {
            *out = known;
            return SMP_OK;
        }
    }
    smp__mapping *mapping = SMP_ARENA_NEW(configs->arena, smp__mapping, 1);
    if (!mapping)
        return SMP_ERR_NO_MEMORY;
    *mapping = (smp__mapping){.pipeline = pipeline,
                              .ddp = configs->request->options.devices / pipeline,
                              .replicas = smp__planner_replicas(
                                  configs->planner, configs->request->options.devices / pipeline),
                              .placement = placement,
                              .device = SMP_ARENA_NEW(configs->arena, int, devices),
                              .memory = SMP_ARENA_NEW(configs->arena, int64_t, p),
                              .next = configs->mapping};
    if (!mapping->device || !mapping->memory)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(fill_mapping(mapping, configs->request, listed, configs->arena));
    configs->mapping = mapping;
    *out = mapping;
    return SMP_OK;
}

bool smp__mapping_alike(const smp__mapping *a, const smp__mapping *b, const smp_cluster *cluster)
{
    if (a->pipeline == 1 || a->ddp == 1)
        return true; /* both placements count devices in the same order */
    int devices = a->pipeline * a->ddp;
    if (devices > cluster->devices_per_node && cluster->devices_per_node > 1)
        return false; /* links differ: some are within nodes */
    for (int i = 0; i < devices; i++) {
        if (!smp_devices_alike(&cluster->device[a->device[i]], &cluster->device[b->device[i]]))
            return false;
    }
    return true;
}

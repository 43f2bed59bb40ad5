/* The probe on a rank: the optimizer, the addition of gradients, and what all ranks do together.
 * Operators: exec/probe/probe_op.c; links: exec/probe/probe_link.c and probe_host.c; shared cores:
 * exec/probe/probe_core.c; memory and clock: exec/probe/probe_pool.c. */
#include "exec/probe/probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exec/optimizer/optimizer.h"
#include "exec/probe/probe_core.h"
#include "exec/probe/probe_host.h"
#include "exec/probe/probe_link.h"
#include "exec/probe/probe_op.h"
#include "graph/base/clock.h"
#include "graph/base/random.h"

enum {
    ID_BYTES = 64,
    SMALLEST = 256, /* bytes apart, at least, are two buffers */
    FEW_KERNELS = 8,
    MANY_KERNELS = 256,
    GRAPHS = 4,
    LAUNCH_SAMPLES = 7
};

#define VALUE_SCALE 0.05f
#define MEMORY_SHARE 0.9 /* of a device's free memory: the rest is left to its driver */

typedef struct rank_probe {
    smp__probe_state state; /* first: what the caller holds */
    smp__probe_links links;
    smp__probe_host host;
    char name[SMP_DEVICE_NAME_BYTES];
} rank_probe;

/* Includes clearing the gradient for the next step. */
static smp_status time_optimizer(void *context, int64_t elements, int repeat, double *us)
{
    smp__probe_state *p = context;
    const smp_optimizer *optimizer = smp_optimizers()[0]; /* the default: what profiles are of */
    const smp_optimizer_options options = smp_optimizer_default();
    const smp_update_settings settings = smp_update_settings_of(&options);
    const int64_t bytes = elements * (int64_t)sizeof(float);
    int64_t offset[5], total = 0;
    for (int i = 0; i < 5; i++)
        if (!smp__probe_place(&total, bytes, &offset[i]))
            return smp_fail(SMP_ERR_INPUT, "optimizer: %lld elements", (long long)elements);
    SMP_TRY(smp__probe_pool(p, total));
    SMP_TRY(smp__probe_fill(p, p->pool + offset[0], SMP_F32, bytes, VALUE_SCALE));
    SMP_TRY(smp__probe_fill(p, p->pool + offset[1], SMP_F32, bytes, VALUE_SCALE));
    SMP_TRY(p->device->zero(p->device_context, p->pool + offset[2], total - offset[2]));
    smp_update update = {.weight = (float *)(p->pool + offset[0]),
                         .grad = (float *)(p->pool + offset[1]),
                         .state = {(float *)(p->pool + offset[2]), (float *)(p->pool + offset[3])},
                         .elements = elements,
                         .grad_scale = 1,
                         .lr = 1e-3f,
                         .settings = &settings};
    update.half = smp_precision_dtype(p->precision);
    if (smp_dtype_is_half(update.half))
        update.weight16 = p->pool + offset[4];
    SMP_TRY(smp__probe_idle(p));
    SMP_TRY(smp__probe_clock_start(p));
    for (int i = 0; i < repeat; i++) {
        update.step = i + 1;
        SMP_TRY(p->device->update(p->device_context, optimizer, &update));
        SMP_TRY(p->device->zero(p->device_context, p->pool + offset[1], bytes));
    }
    SMP_TRY(smp__probe_clock_stop(p, us));
    *us /= repeat;
    return SMP_OK;
}

static smp_status time_reduce(void *context, int64_t elements, int repeat, double *us)
{
    smp__probe_state *p = context;
    const smp_dtype dtype = smp_precision_dtype(p->precision);
    const int64_t bytes = elements * smp_dtype_bytes(dtype);
    int64_t offset[2], total = 0;
    for (int i = 0; i < 2; i++)
        if (!smp__probe_place(&total, bytes, &offset[i]))
            return smp_fail(SMP_ERR_INPUT, "reduce: %lld elements", (long long)elements);
    SMP_TRY(smp__probe_pool(p, total));
    for (int i = 0; i < 2; i++)
        SMP_TRY(smp__probe_fill(p, p->pool + offset[i], dtype, bytes, VALUE_SCALE));
    SMP_TRY(smp__probe_idle(p));
    SMP_TRY(smp__probe_clock_start(p));
    for (int i = 0; i < repeat; i++)
        SMP_TRY(p->device->add(p->device_context, dtype, p->pool + offset[0], p->pool + offset[1],
                               elements));
    SMP_TRY(smp__probe_clock_stop(p, us));
    *us /= repeat;
    return SMP_OK;
}

static smp_status time_link(void *context, smp_link_kind kind, int64_t bytes, int repeat,
                            double *us, double *spent_us)
{
    rank_probe *r = context;
    if (kind == SMP_LINK_HOST)
        return smp__probe_host_time(&r->state, &r->host, bytes, repeat, us, spent_us);
    return smp__probe_links_time(&r->state, &r->links, kind, bytes, repeat, us, spent_us);
}

static smp_status time_core_switch(void *context, int turns, double *us)
{
    const smp__probe_state *p = context;
    return smp__probe_core_switch(p->parallel ? p->comm.node_rank : 0, turns, us);
}

static smp_status time_keeping(void *context, double *bytes_per_s)
{
    (void)context;
    return smp__probe_keeping(bytes_per_s);
}

/* The smallest kernel that there is, so many times. */
static smp_status launch_kernels(smp__probe_state *p, int n)
{
    for (int i = 0; i < n; i++)
        SMP_TRY(p->device->add(p->device_context, SMP_F32, p->pool, p->pool + SMALLEST, 1));
    return SMP_OK;
}

/* What the host takes to enqueue so many kernels, or to replay `work` so often, each time: the
 * least of some samples, which anything but the host's own work makes longer. The queue of a
 * device has room for them. */
static smp_status time_enqueue(smp__probe_state *p, void *work, int n, double *least_us)
{
    for (int sample = 0; sample <= LAUNCH_SAMPLES; sample++) {
        SMP_TRY(smp__probe_idle(p));
        const double begin_s = smp_clock_s();
        if (!work)
            SMP_TRY(launch_kernels(p, n));
        for (int i = 0; work && i < n; i++)
            SMP_TRY(p->device->replay(p->device_context, work));
        const double us = 1e6 * (smp_clock_s() - begin_s) / n;
        if (sample <= 1 || us < *least_us) /* the first one loads the kernel */
            *least_us = us;
    }
    return smp__probe_idle(p);
}

/* Of a graph of so many kernels; *us stays what it is if the device has no graphs. */
static smp_status time_graph(smp__probe_state *p, int kernels, double *us)
{
    void *work = NULL;
    int launches = 0;
    if (p->device->capture(p->device_context) != SMP_OK)
        return SMP_OK;
    smp_status status = launch_kernels(p, kernels);
    if (p->device->captured(p->device_context, &work, &launches) != SMP_OK || !work)
        return status;
    if (status == SMP_OK)
        status = time_enqueue(p, work, GRAPHS, us);
    if (status == SMP_OK)
        p->device->forget(work);
    return status;
}

static smp_status time_launches(void *context, smp_launch_costs *costs)
{
    smp__probe_state *p = context;
    double kernel_us = 0, few_us = 0, many_us = 0;
    *costs = (smp_launch_costs){0};
    SMP_TRY(smp__probe_pool(p, 2 * SMALLEST));
    SMP_TRY(p->device->zero(p->device_context, p->pool, 2 * SMALLEST));
    SMP_TRY(time_enqueue(p, NULL, MANY_KERNELS, &kernel_us));
    SMP_TRY(time_graph(p, FEW_KERNELS, &few_us));
    SMP_TRY(time_graph(p, MANY_KERNELS, &many_us));
    if (few_us <= 0 || many_us <= 0)
        return SMP_OK;
    costs->kernel_us = kernel_us;
    costs->graph_kernel_us = fmax(0, (many_us - few_us) / (MANY_KERNELS - FEW_KERNELS));
    costs->graph_us = fmax(0, few_us - FEW_KERNELS * costs->graph_kernel_us);
    return SMP_OK;
}

/* What is missing of what was free, besides the pool. */
static smp_status measure_libraries(void *context, int64_t *bytes)
{
    const smp__probe_state *p = context;
    int64_t available = 0;
    SMP_TRY(p->device->available(p->device_context, &available));
    const int64_t taken = p->probe.memory_bytes - available - p->pool_bytes;
    *bytes = taken > 0 ? taken : 0;
    return SMP_OK;
}

static smp_status list_products(void *context, smp_arena *arena, smp_gemm_choices *out)
{
    const smp__probe_state *p = context;
    return smp_gemms_choices(p->device->products(p->device_context), p->probe.device, arena, out);
}

static smp_status sync_ranks(void *context, smp_status status)
{
    smp__probe_state *p = context;
    return smp__comm_agree(&p->comm, status);
}

static smp_status share_bytes(void *context, void *data, int64_t bytes)
{
    smp__probe_state *p = context;
    return smp__comm_share(&p->comm, data, bytes, 0);
}

static smp_status make_pattern(smp__probe_state *p)
{
    p->pattern = malloc(SMP__PATTERN_FLOATS * sizeof *p->pattern);
    if (!p->pattern)
        return smp_fail_memory(SMP__PATTERN_FLOATS * sizeof *p->pattern);
    for (int i = 0; i < SMP__PATTERN_FLOATS; i += 4) {
        const smp_random4 random = smp_random_philox(1, (uint64_t)i, 0);
        for (int k = 0; k < 4; k++)
            p->pattern[i + k] = 2 * smp_random_uniform(random.v[k]) - 1;
    }
    return SMP_OK;
}

/* How many ranks of this node compute on the device that this rank computes on, and whether a
 * lower one does. */
static smp_status count_sharers(smp__probe_state *p, int ranks, int *sharers, bool *follows)
{
    char own[ID_BYTES] = "";
    void *all;
    p->device->identity(p->device_context, own);
    SMP_TRY(smp__comm_gather_node(&p->comm, own, ID_BYTES, &all));
    *sharers = 0;
    *follows = false;
    for (int i = 0; i < ranks; i++) {
        const bool same = memcmp(own, (char *)all + (size_t)i * ID_BYTES, ID_BYTES) == 0;
        *sharers += same;
        *follows |= same && i < p->comm.node_rank;
    }
    free(all);
    return SMP_OK;
}

/* The memory of a node, or of its GPU, is shared by the ranks there. */
static smp_status find_memory(rank_probe *r, int ranks)
{
    smp__probe_state *p = &r->state;
    int64_t available = 0;
    int sharers = 1;
    if (p->device->host_memory) {
        smp_cluster *machine;
        SMP_TRY(smp_cluster_local(ranks, &machine));
        p->memory_limit = machine->device[0].memory_bytes;
        smp_cluster_destroy(machine);
        return SMP_OK;
    }
    if (p->parallel)
        SMP_TRY(count_sharers(p, ranks, &sharers, &r->host.idles));
    SMP_TRY(p->device->available(p->device_context, &available));
    p->probe.memory_bytes = available;
    p->alone = sharers == 1;
    p->memory_limit = (int64_t)(MEMORY_SHARE * (double)available / sharers);
    return SMP_OK;
}

static smp_status open_device(smp__probe_state *p, const smp_target *target, int rank)
{
    const smp_device_options options = {.precision = target->precision,
                                        .node_rank = rank,
                                        .stamps = SMP__PROBE_STAMPS,
                                        .host_copies = SMP_COPY_DIRECTIONS};
    SMP_TRY(smp_target_check(*target));
    p->precision = target->precision;
    p->device = smp_device_find(smp_backend_name(target->backend));
    if (!p->device)
        return smp_fail(SMP_ERR_INPUT, "device '%s': this library was built without it",
                        smp_backend_name(target->backend));
    SMP_TRY(p->device->open(&options, &p->device_context));
    if (p->device->host_memory)
        return SMP_OK;
    return p->device->reserve_host(p->device_context, SMP__STAGING_BYTES, &p->staging);
}

static void fill_table(rank_probe *r)
{
    smp__probe_state *p = &r->state;
    p->probe = (smp_probe){.context = r,
                           .fuses = true,
                           .device = r->name,
                           .memory_bytes = p->probe.memory_bytes,
                           .open = smp__probe_open,
                           .time = smp__probe_time,
                           .close = smp__probe_close,
                           .has_link[SMP_LINK_HOST] = true,
                           .time_link = time_link,
                           .time_optimizer = time_optimizer,
                           .time_reduce = time_reduce,
                           .time_keeping = time_keeping};
    if (p->device->host_memory)
        p->probe.time_core_switch = time_core_switch;
    else if (p->alone)
        p->probe.library_bytes = measure_libraries;
    if (p->device->products)
        p->probe.products = list_products;
    if (p->device->capture)
        p->probe.time_launches = time_launches;
    if (p->parallel) {
        p->probe.sync = sync_ranks;
        p->probe.share = share_bytes;
        for (int kind = 0; kind < SMP__RANK_LINKS; kind++)
            p->probe.has_link[kind] = r->links.pair[kind].first >= 0;
    }
}

/* What may fail on one rank alone. */
static smp_status start_rank(rank_probe *r, const smp_target *target)
{
    smp__probe_state *p = &r->state;
    int ranks = p->parallel ? p->comm.node_size : 1;
    smp_status status = open_device(p, target, p->parallel ? p->comm.node_rank : 0);
    if (p->parallel)
        status = smp__comm_agree(&p->comm, status);
    if (status == SMP_OK)
        status = find_memory(r, ranks);
    return status == SMP_OK ? make_pattern(p) : status;
}

static smp_status start(rank_probe *r, const smp_target *target)
{
    smp__probe_state *p = &r->state;
    int initialised = 0, finalised = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    if (initialised && !finalised) {
        p->parallel = true; /* what is open when it fails is closed */
        SMP_TRY(smp__comm_open(&p->comm, (smp_comm_limits){0}));
        smp__comm_take_core(&p->comm);
    }
    smp_status status = start_rank(r, target);
    if (p->parallel)
        status = smp__comm_agree(&p->comm, status);
    if (status == SMP_OK && p->parallel)
        status = smp__probe_links_open(p, &r->links);
    if (status != SMP_OK)
        return status;
    smp_device_profile_name(p->device, p->device_context, r->name);
    fill_table(r);
    return SMP_OK;
}

smp_status smp_probe_create(const smp_target *target, const char *offload_to, smp_probe **out)
{
    rank_probe *r = calloc(1, sizeof *r);
    if (!r)
        return smp_fail_memory(sizeof *r);
    r->host.folder = offload_to;
    smp_status status = start(r, target);
    if (status == SMP_OK)
        *out = &r->state.probe;
    else
        smp_probe_destroy(&r->state.probe);
    return status;
}

void smp_probe_destroy(smp_probe *probe)
{
    rank_probe *r = (rank_probe *)probe;
    if (!r)
        return;
    smp__probe_state *p = &r->state;
    if (p->comm.failed) { /* messages in flight may still read and write all that it has */
        smp__comm_close(&p->comm);
        return;
    }
    smp__probe_links_close(&r->links);
    smp__probe_host_close(&r->host);
    if (p->pool)
        p->device->release(p->device_context, p->pool, p->pool_bytes);
    if (p->staging)
        p->device->release_host(p->device_context, p->staging);
    if (p->device)
        p->device->close(p->device_context);
    if (p->parallel)
        smp__comm_close(&p->comm);
    free(p->pattern);
    free(r);
}

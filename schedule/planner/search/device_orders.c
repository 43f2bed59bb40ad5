/* Orders of devices that neither placement has, found with the best configuration of each pipeline;
 * in small graphs on few devices the best of them then with every configuration. */
#include <math.h>
#include <string.h>

#include "graph/base/clock.h"
#include "schedule/planner/search/search_state.h"

/* Orders of devices that are tried: all of few, else as many as take about as long in any graph. */
enum { ALL_ORDERS = 720, MOST_ORDERS = 120, LEAST_ORDERS = 8, ORDER_WORK = 100000 /* ops */ };
enum {
    FEW_DEVICES = 6,   /* of which all orders are tried, */
    JOINT_ORDERS = 24, /* so many with all configurations of a small graph; all of fewer devices */
    EQUAL_DEVICES = 8, /* and alike, which fill their nodes: more are not */
    MOST_DEVICES = 64
};
#define ORDER_SHARE 0.5 /* of the time */

/* A search for the order of devices, by one configuration. */
typedef struct ordering {
    smp__search *s;
    int32_t index;       /* of the best so far, */
    smp_candidate *best; /* and what became of it; NULL: not simulated */
    double limit_s;
} ordering;

/* Whether a listed placement is no worse than the best before it. */
static smp_status judge_order(ordering *o, const int *listed, bool *better)
{
    smp__search *s = o->s;
    const smp_search_request *request = s->configs.request;
    if (smp_work_past(o->limit_s))
        return SMP_OK;
    SMP_TRY(smp__configs_add_order(&s->configs, o->index, listed));
    int32_t index = s->configs.n - 1, n = s->n;
    smp__config *config = &s->configs.config[index];
    config->alone = true;
    if (request->options.optimize == SMP_OPTIMIZE_SPEED && s->n_least > 0 &&
        smp__config_least_us_of_any(&s->configs, config) >= s->least[0]) {
        config->standing = SMP__TOO_SLOW;
        return SMP_OK;
    }
    SMP_TRY(smp__search_try(s, index));
    smp_candidate *candidate = s->n > n ? s->entry[n].candidate : NULL;
    *better = candidate && !smp__candidate_improves(request, candidate, o->best);
    if (*better) {
        o->index = index;
        o->best = candidate;
    }
    return SMP_OK;
}

/* Orders while they are tried. Two are alike if one has, place by place, the same kinds of devices
 * as the other and neighbours on one node where the other has: nodes are as good as each other. */
typedef struct orders {
    const smp_cluster *cluster;
    int n, pipeline, most, n_seen;
    int *order, *trial; /* [n] the best, the one that is made */
    int *seen;          /* [most + 3][n] one row for each unlike order, and one to make it in */
    ordering *by;
} orders;

static bool same_device(const smp_cluster *cluster, int a, int b)
{
    return smp_devices_alike(&cluster->device[a], &cluster->device[b]);
}

/* Devices that differ, or a pipeline that cannot take up its nodes evenly, or few devices on nodes
 * of several: what skips stages may then stay inside a node. */
static bool orders_differ(const smp_search_request *request, int pipeline)
{
    const smp_cluster *cluster = request->cluster;
    int per_node = cluster->devices_per_node;
    if (request->placement != SMP_PLACEMENT_AUTO || pipeline == 1 ||
        request->options.devices > MOST_DEVICES)
        return false;
    for (int d = 1; d < request->options.devices; d++)
        if (!same_device(cluster, 0, d))
            return true;
    if (request->options.devices <= per_node || per_node == 1)
        return false;
    return (pipeline % per_node != 0 && per_node % pipeline != 0) ||
           request->options.devices <= EQUAL_DEVICES;
}

/* Whether no order like this one was seen; from now on it was. */
static bool is_new(orders *o, const int *order)
{
    int n = o->n, per_node = o->cluster->devices_per_node;
    int *row = &o->seen[o->n_seen * n];
    for (int i = 0; i < n; i++) {
        int kind = 0, first = 0;
        while (!same_device(o->cluster, kind, order[i]))
            kind++;
        while (order[first] / per_node != order[i] / per_node)
            first++;
        row[i] = kind * n + first;
    }
    for (int k = 0; k < o->n_seen; k++)
        if (memcmp(&o->seen[k * n], row, (size_t)n * sizeof *row) == 0)
            return false;
    o->n_seen++;
    return true;
}

static void swap_places(int *order, int a, int b)
{
    int kept = order[a];
    order[a] = order[b];
    order[b] = kept;
}

static smp_status try_order(orders *o, bool *better)
{
    *better = false;
    if (o->n_seen < o->most + 2 && is_new(o, o->trial))
        SMP_TRY(judge_order(o->by, o->trial, better));
    if (*better)
        memcpy(o->order, o->trial, (size_t)o->n * sizeof *o->order);
    return SMP_OK;
}

/* All orders of the places from `i` on; replicas stand by their first devices. */
static smp_status try_all_orders(orders *o, int i)
{
    bool better;
    if (i == o->n)
        return try_order(o, &better);
    for (int k = i; k < o->n; k++) {
        swap_places(o->trial, i, k);
        if (i % o->pipeline != 0 || i == 0 || o->trial[i] > o->trial[i - o->pipeline])
            SMP_TRY(try_all_orders(o, i + 1));
        swap_places(o->trial, i, k);
    }
    return SMP_OK;
}

static smp_status try_exchanges(orders *o)
{
    for (bool helps = true; helps;) {
        helps = false;
        for (int a = 0; a < o->n; a++) {
            for (int b = a + 1; b < o->n; b++) {
                bool better;
                swap_places(o->trial, a, b);
                SMP_TRY(try_order(o, &better));
                helps |= better;
                if (!better)
                    swap_places(o->trial, a, b);
            }
        }
    }
    return SMP_OK;
}

/* Tries orders of devices in the place of `order` [devices], which stays the best: all of few
 * devices, else exchanges of two until none helps, `most` at most; none that is another one's like
 * by the kinds and nodes of its devices. Nothing is tried where all orders are alike. */
static smp_status try_orders(const smp__configs *configs, int pipeline, int most, ordering *by,
                             int *order)
{
    const smp_search_request *request = configs->request;
    size_t n = (size_t)request->options.devices;
    if (!orders_differ(request, pipeline))
        return SMP_OK;
    orders o = {.cluster = request->cluster,
                .n = request->options.devices,
                .pipeline = pipeline,
                .most = most,
                .order = order,
                .trial = SMP_ARENA_NEW(configs->arena, int, n),
                .seen = SMP_ARENA_NEW(configs->arena, int, ((size_t)most + 3) * n),
                .by = by};
    if (!o.trial || !o.seen)
        return SMP_ERR_NO_MEMORY;
    for (int placement = SMP_PLACEMENT_CLUSTER; placement <= SMP_PLACEMENT_SPREAD; placement++) {
        for (int i = 0; i < o.n; i++) /* looked at before */
            o.trial[i] = smp_placement_device((smp_placement)placement, NULL, pipeline,
                                              o.n / pipeline, i / pipeline, i % pipeline);
        is_new(&o, o.trial);
    }
    memcpy(o.trial, order, n * sizeof *order);
    return o.n <= FEW_DEVICES ? try_all_orders(&o, 0) : try_exchanges(&o);
}

/* The best of a pipeline, or where none was simulated the most promising. */
static ordering best_of_pipeline(smp__search *s, int pipeline, double limit_s)
{
    ordering o = {.s = s, .index = -1, .limit_s = limit_s};
    double time = INFINITY;
    for (int32_t i = 0; i < s->n; i++) {
        smp_candidate *c = s->entry[i].candidate;
        bool other = o.best && (c->fits != o.best->fits ? !c->fits
                                : c->fits               ? s->entry[i].time >= time
                                                        : c->room_bytes <= o.best->room_bytes);
        if (c->pipeline != pipeline || other)
            continue;
        o.index = s->entry[i].index;
        o.best = c;
        time = s->entry[i].time;
    }
    for (int32_t i = 0; i < s->configs.n && o.index < 0; i++)
        if (s->configs.config[i].mapping->pipeline == pipeline)
            o.index = i;
    return o;
}

/* All that there is for an order but the configuration that it was found with. */
static smp_status list_others(smp__search *s, int32_t index)
{
    smp__configs *configs = &s->configs;
    int32_t first = configs->n;
    SMP_TRY(smp__configs_list_mapping(configs, configs->config[index].mapping));
    SMP_TRY(smp__search_estimate(configs, first));
    smp__config *tried = &configs->config[index];
    tried->alone = false;
    for (int32_t i = first; i < configs->n; i++) {
        smp__config *config = &configs->config[i];
        if (config->chunks == tried->chunks && config->schedule == tried->schedule &&
            config->microbatches == tried->microbatches && config->active == tried->active &&
            config->lag == tried->lag &&
            smp__compare_shardings(config->sharding, tried->sharding) == 0) {
            config->standing = SMP__UNNEEDED;
            config->binds = tried->binds; /* those that it is the `wholer` one of ask */
        }
    }
    return SMP_OK;
}

/* Other orders of devices than the two placements, for each pipeline: first with its best
 * configuration, then with all in the order that was best for that. Of orders that are as good the
 * later one is gone on from. */
smp_status smp__search_orders(smp__search *s)
{
    smp__configs *configs = &s->configs;
    const smp_search_request *request = configs->request;
    int most = ORDER_WORK / request->graph->n_op;
    most = most < LEAST_ORDERS ? LEAST_ORDERS : most > MOST_ORDERS ? MOST_ORDERS : most;
    if (request->options.devices <= FEW_DEVICES)
        most = ALL_ORDERS;
    const double limit_s = smp__budget_share(&configs->planner->budget, ORDER_SHARE);
    for (int p = 1; p <= request->options.devices; p++) {
        ordering o = best_of_pipeline(s, p, limit_s);
        if (o.index < 0)
            continue;
        const smp__mapping *mapping = configs->config[o.index].mapping;
        size_t bytes = (size_t)request->options.devices * sizeof *mapping->device;
        int32_t n_before = configs->n;
        int *order = SMP_ARENA_NEW(configs->arena, int, (size_t)request->options.devices);
        if (!order)
            return SMP_ERR_NO_MEMORY;
        memcpy(order, mapping->device, bytes);
        SMP_TRY(try_orders(configs, mapping->pipeline, most, &o, order));
        if (o.index >= n_before)
            SMP_TRY(list_others(s, o.index));
    }
    return SMP_OK;
}

/* The most promising order that was looked at with one configuration alone, those that were not
 * simulated last; -1: none is left. */
static int32_t best_alone(const smp__search *s, int32_t first, int32_t last)
{
    int32_t best = -1;
    for (int32_t i = 0; i < s->n; i++) {
        const smp__entry *entry = &s->entry[i];
        if (entry->index >= first && (best < 0 || entry->time < s->entry[best].time) &&
            s->configs.config[entry->index].alone)
            best = i;
    }
    if (best >= 0)
        return s->entry[best].index;
    while (first < last && !s->configs.config[first].alone)
        first++;
    return first < last ? first : -1;
}

smp_status smp__search_orders_jointly(smp__search *s, int32_t first)
{
    const int32_t last = s->configs.n;
    const smp_search_request *request = s->configs.request;
    const int most = request->options.devices < FEW_DEVICES ? ALL_ORDERS : JOINT_ORDERS;
    if (!smp__looks_at_all(request) || request->options.devices > FEW_DEVICES)
        return SMP_OK;
    for (int k = 0; k < most; k++) {
        const int32_t index = best_alone(s, first, last);
        if (index < 0)
            return SMP_OK;
        SMP_TRY(list_others(s, index));
    }
    return SMP_OK;
}

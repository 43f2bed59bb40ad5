/* Configurations that join a search while it runs.
 *
 * Bounds on live micro-batches join where they may help. A rule that takes one keeps its distance
 * from the next rank by it: with a lower bound every rank runs less far ahead, and waits longer;
 * that orders of unequal stages gain by it where memory does not bind happens, by 1 % or so.
 * So below the bound that it has of its own the next one is looked at only while memory binds, and
 * where that does not, nothing is added but the highest bound, which costs memory and may save
 * time. When memory is minimised that is the bound of 1. Where it binds the rule's own bound, fewer
 * micro-batches that wait for W come first, half as many each time: a late rank then keeps less,
 * and none runs less far ahead. In small graphs lower bounds are looked at with fewer of them too,
 * and when memory is minimised the lowest is, with 1 that waits and with none.
 *
 * Orders of devices are those of unequal ones that neither placement has. */
#include <math.h>
#include <string.h>

#include "graph/base/clock.h"
#include "schedule/planner/search_state.h"

/* Orders of devices that are tried: all of few, else as many as take about as long in any graph. */
enum { MOST_ORDERS = 120, LEAST_ORDERS = 8, ORDER_WORK = 100000 /* ops */ };
enum { EVERY_BOUND = 8 }; /* on live micro-batches; of higher ones three in four */
#define ORDER_SHARE 0.5   /* of the time */

/* Of as many micro-batches as one likes; the first rank keeps the most. */
static int bound_of(const smp__configs *configs, const smp__config *config, int active)
{
    smp_schedule_shape shape =
        smp__planner_shape(configs->planner, config->mapping->pipeline, config->chunks,
                           8 * config->mapping->pipeline, active);
    return (int)ceil(smp__live_microbatches(config->schedule, &shape, 0));
}

/* The highest bound that makes a difference, if it is above what the rule has of its own; 0:
 * none. */
static int most_bound(const smp__configs *configs, const smp__config *config)
{
    int most = bound_of(configs, config, INT32_MAX);
    return most > bound_of(configs, config, 0) ? most : 0;
}

/* The next below that of a configuration whose problem was made: down to what the rule has of its
 * own, or from there to 1; 0: none. */
static int next_bound(const smp__configs *configs, const smp__config *config)
{
    int n_stage = config->mapping->pipeline * config->chunks;
    int own = bound_of(configs, config, 0), now = config->active > 0 ? config->active : own;
    double most = 0.0;
    for (int s = 0; s < n_stage; s++)
        most = fmax(most, config->live[s]);
    int next = most < now ? (int)ceil(most) : now; /* of fewer micro-batches */
    next -= next <= EVERY_BOUND ? 1 : next / 4;
    return next <= own && now > own ? 0 : next;
}

/* Half as many micro-batches that wait for W as it has, or one where the least memory is asked for,
 * after one whole backwards; 0: there are no fewer, or the rule takes no such bound. */
static int next_lag(const smp__configs *configs, const smp__config *config)
{
    const smp_schedule_shape shape = smp__config_shape(configs, config);
    const int most = config->schedule->most_lag ? config->schedule->most_lag(&shape) : 0;
    const int now = config->lag > 0 && config->lag < most ? config->lag : most;
    if (most == 0 || config->lag == SMP_LAG_WHOLE)
        return 0;
    if (now == 1)
        return SMP_LAG_WHOLE;
    return configs->request->optimize == SMP_OPTIMIZE_MEMORY ? 1 : now / 2;
}

/* Whether fewer that wait for W are looked at beside a bound on live micro-batches: the request's,
 * in small graphs any, and where the least memory is asked for the lowest there is. */
static bool lags_matter(const smp_search_request *request, int active)
{
    if (request->weight_lag != 0)
        return false;
    if (request->optimize == SMP_OPTIMIZE_MEMORY)
        return active == 1 || request->active_microbatches > 0;
    return active == request->active_microbatches || request->graph->n_op <= SMP__SMALL_OPS;
}

smp_status smp__search_add_bounds(smp__search *s, int32_t index, bool binds)
{
    smp__configs *configs = &s->configs;
    const smp_search_request *request = configs->request;
    const smp__config *config = &configs->config[index];
    const int lag = next_lag(configs, config);
    if (lag != 0 && binds && lags_matter(request, config->active))
        SMP_TRY(smp__configs_add_bound(configs, index, config->active, lag));
    config = &configs->config[index];
    if (!config->schedule->tries_active || request->active_microbatches > 0 ||
        config->lag != request->weight_lag)
        return SMP_OK;
    if (config->smallest != index && configs->config[config->smallest].misses)
        return SMP_OK; /* not even the fewest micro-batches fit */
    bool own = config->active == 0, for_memory = request->optimize == SMP_OPTIMIZE_MEMORY;
    int most = own && !for_memory ? most_bound(configs, config) : 0;
    int next = binds && (own || !for_memory) ? next_bound(configs, config) : 0;
    if (most > 0)
        SMP_TRY(smp__configs_add_bound(configs, index, most, request->weight_lag));
    return next > 0
               ? smp__configs_add_bound(configs, index, for_memory ? 1 : next, request->weight_lag)
               : SMP_OK;
}

/* A search for the order of devices, by one configuration. */
typedef struct ordering {
    smp__search *s;
    int32_t index;       /* of the best so far, */
    smp_candidate *best; /* and what became of it; NULL: not simulated */
    double limit_s;
} ordering;

static smp_status judge_order(void *context, const int *listed, bool *better)
{
    ordering *o = context;
    smp__search *s = o->s;
    const smp_search_request *request = s->configs.request;
    if (smp_clock_past(o->limit_s))
        return SMP_OK;
    SMP_TRY(smp__configs_add_order(&s->configs, o->index, listed));
    int32_t index = s->configs.n - 1, n = s->n;
    smp__config *config = &s->configs.config[index];
    if (request->optimize == SMP_OPTIMIZE_SPEED && s->n_least > 0 &&
        smp__config_least_us_of_any(&s->configs, config) >= s->least[0]) {
        config->outcome = SMP__TOO_SLOW;
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
    const smp__config *tried = &configs->config[index];
    for (int32_t i = first; i < configs->n; i++) {
        smp__config *config = &configs->config[i];
        if (config->chunks == tried->chunks && config->schedule == tried->schedule &&
            config->microbatches == tried->microbatches && config->active == tried->active &&
            config->lag == tried->lag &&
            smp__compare_shardings(config->sharding, tried->sharding) == 0) {
            config->outcome = SMP__UNNEEDED;
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
    double now_s = smp_clock_s(), limit_s = request->deadline_s;
    bool few = request->devices <= SMP__FEW_DEVICES;
    int most = few ? MOST_ORDERS : ORDER_WORK / request->graph->n_op;
    most = most < LEAST_ORDERS ? LEAST_ORDERS : most > MOST_ORDERS ? MOST_ORDERS : most;
    if (limit_s > now_s)
        limit_s = now_s + ORDER_SHARE * (limit_s - now_s);
    for (int p = 1; p <= request->devices; p++) {
        ordering o = best_of_pipeline(s, p, limit_s);
        if (o.index < 0)
            continue;
        const smp__mapping *mapping = configs->config[o.index].mapping;
        size_t bytes = (size_t)request->devices * sizeof *mapping->device;
        int32_t n_before = configs->n;
        int *order = SMP_ARENA_NEW(configs->arena, int, (size_t)request->devices);
        if (!order)
            return SMP_ERR_NO_MEMORY;
        memcpy(order, mapping->device, bytes);
        SMP_TRY(smp__orders_try(configs, mapping->pipeline, most, judge_order, &o, order));
        if (o.index >= n_before)
            SMP_TRY(list_others(s, o.index));
    }
    return SMP_OK;
}

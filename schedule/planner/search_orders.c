/* Orders of devices in a search: those of unequal devices that neither placement has. */
#include <math.h>
#include <string.h>

#include "graph/base/clock.h"
#include "schedule/planner/search_state.h"

/* Orders of devices that are tried: all of few, else as many as take about as long in any graph. */
enum { MOST_ORDERS = 120, LEAST_ORDERS = 8, ORDER_WORK = 100000 /* ops */ };
#define ORDER_SHARE 0.5 /* of the time */

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
            smp__compare_shardings(config->sharding, tried->sharding) == 0)
            config->outcome = SMP__UNNEEDED;
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

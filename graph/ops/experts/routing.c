/* Routing of tokens to experts: top-k (Shazeer et al. 2017), capacity by position (Lepikhin et
 * al., "GShard", 2020), gates over the chosen (Jiang et al., "Mixtral", 2024) or over all experts
 * (Fedus et al., "Switch", 2021). Every sample by itself, so that it does not depend on how a batch
 * is cut. O(tokens * experts * top_k). */
#include "graph/ops/experts/routing.h"

#include <math.h>
#include <string.h>

#include "graph/math/vector.h"

/* chosen: softmax of the chosen logits; all: of all. */
static const char *const gate_kinds[] = {"chosen", "all", NULL};

const smp_attr_desc smp__routing_attrs[] = {
    [SMP__TOP_K] = {"top_k", SMP_ATTR_INT, false, 2, 1, INT32_MAX, NULL},
    [SMP__CAPACITY] = {"capacity", SMP_ATTR_FLOAT, false, 1.25, 0, 1e6, NULL},
    [SMP__GATES] = {"gates", SMP_ATTR_CHOICE, false, 0, 0, 1, gate_kinds},
    [SMP__ROUTED_BY] = {"devices", SMP_ATTR_INT, false, 1, 1, SMP__MOST_DEVICES, NULL},
    [SMP__ROUTED_AXIS] = {"axis", SMP_ATTR_INT, false, 0, 0, SMP_MAX_DIMS - 1, NULL},
    [SMP__ROUTED_BLOCKS] = {"blocks", SMP_ATTR_INT, false, 1, 1, 2, NULL}, /* of the tokens */
    {0},
};

/* Places of an expert in a sample of so many tokens. */
static int64_t capacity_of(const smp_attr_value *attr, int64_t tokens, int64_t experts)
{
    const double factor = attr[SMP__CAPACITY].f;
    const double places = factor * (double)attr[SMP__TOP_K].i * (double)tokens / (double)experts;
    const int64_t capacity = factor > 0 && places < (double)tokens ? (int64_t)ceil(places) : tokens;
    return capacity < 1 ? 1 : capacity;
}

/* parts: devices that have some of the tokens; shares: of the experts. */
static smp__routing routing(const smp_graph *graph, const smp_attr_value *attr,
                            const smp_shape *logits, int64_t parts, int64_t shares)
{
    const int64_t tokens = logits->dim[0], experts = logits->dim[1], own = experts / shares;
    return (smp__routing){.tokens = tokens,
                          .experts = experts,
                          .top_k = attr[SMP__TOP_K].i,
                          .capacity = capacity_of(attr, parts * tokens, experts),
                          .first = shares > 1 ? graph->device * own : 0,
                          .own = own,
                          .all = attr[SMP__GATES].i == 1};
}

smp__routing smp__routing_of(const smp_graph *graph, const smp_op *op, const smp_shape *logits)
{
    const bool shared = op->attr[SMP__ROUTED_AXIS].i == 0;
    return routing(graph, op->attr, logits, 1, shared ? op->attr[SMP__ROUTED_BY].i : 1);
}

smp__routing smp__routing_by_tokens(const smp_graph *graph, const smp_op *op,
                                    const smp_shape *logits)
{
    const int64_t devices = op->attr[SMP__ROUTED_BY].i;
    return routing(graph, op->attr, logits, devices, devices);
}

smp_status smp__infer_routing(const smp_infer *infer, bool by_tokens, smp__routing *out)
{
    static const smp_graph alone = {0};
    const int64_t top_k = infer->attr[SMP__TOP_K].i;
    SMP_TRY(smp_infer_float(infer, 1));
    SMP_TRY(smp_infer_dims(infer, 1, 2, 2));
    const smp_tensor *logits = infer->in[1];
    if (top_k > logits->shape.dim[1])
        return smp_infer_fail(infer, "top_k: %lld of the %lld experts of '%s'", (long long)top_k,
                              (long long)logits->shape.dim[1], logits->name);
    if (by_tokens && logits->shape.dim[0] % infer->attr[SMP__ROUTED_BLOCKS].i != 0)
        return smp_infer_fail(infer, "'%s' has %lld rows, expected a multiple of %lld",
                              logits->name, (long long)logits->shape.dim[0],
                              (long long)infer->attr[SMP__ROUTED_BLOCKS].i);
    *out = by_tokens ? smp__routing_by_tokens(&alone, infer->op, &logits->shape)
                     : smp__routing_of(&alone, infer->op, &logits->shape);
    return SMP_OK;
}

int64_t smp__route_bytes(const smp__routing *r)
{
    const int64_t choices = r->tokens * r->top_k;
    return (3 * choices + 2 * r->experts) * (int64_t)sizeof(float);
}

smp__route smp__route_at(const smp__routing *r, void *workspace)
{
    const int64_t choices = r->tokens * r->top_k;
    smp__route route = {.expert = workspace};
    route.slot = route.expert + choices;
    route.used = route.slot + choices;
    route.gate = (float *)(route.used + r->experts);
    route.share = route.gate + choices;
    return route;
}

int64_t smp__device_route_bytes(const smp__routing *r, int64_t batch, bool gates)
{
    const int64_t choices = r->tokens * r->top_k;
    return batch * ((gates ? 4 : 2) * choices + r->own * r->capacity + r->experts) *
           (int64_t)sizeof(float);
}

smp__device_route smp__device_route_at(const smp__routing *r, int64_t batch, bool gates,
                                       void *workspace)
{
    const int64_t choices = batch * r->tokens * r->top_k;
    smp__device_route route = {.expert = workspace};
    route.slot = route.expert + choices;
    route.choice = route.slot + choices;
    route.used = route.choice + batch * r->own * r->capacity;
    if (gates) {
        route.gate = (float *)(route.used + batch * r->experts);
        route.dgate = route.gate + choices;
    }
    return route;
}

/* The largest logit of those not yet chosen. */
static int32_t next_best(const float *logits, int64_t experts, const int32_t *chosen, int64_t n)
{
    int32_t best = -1;
    for (int32_t e = 0; e < experts; e++) {
        bool taken = false;
        for (int64_t k = 0; k < n; k++)
            taken |= chosen[k] == e;
        if (!taken && (best < 0 || logits[e] > logits[best]))
            best = e;
    }
    return best;
}

/* Softmax over all experts. */
static void shares_of(const smp__routing *r, const float *logits, float *share)
{
    float sum = smp__exp_row(share, logits, smp__max(logits, r->experts), r->experts);
    smp__scale(share, 1 / sum, r->experts);
}

static void choose(const smp__routing *r, const float *logits, bool gates, smp__route *route,
                   int64_t token)
{
    int32_t *expert = route->expert + token * r->top_k;
    float *gate = route->gate + token * r->top_k;
    for (int64_t k = 0; k < r->top_k; k++)
        expert[k] = next_best(logits, r->experts, expert, k);
    if (!gates)
        return;
    if (r->all)
        shares_of(r, logits, route->share);
    for (int64_t k = 0; k < r->top_k; k++)
        gate[k] = r->all ? route->share[expert[k]] : logits[expert[k]];
    if (!r->all)
        smp__scale(gate, 1 / smp__exp_row(gate, gate, gate[0], r->top_k), r->top_k);
}

double smp__route_flops(const smp__routing *r, bool gates, int64_t batch)
{
    const double rows = (double)(r->tokens * r->top_k), shares = (double)(r->tokens * r->experts);
    return (double)batch *
           (rows * (double)r->experts + (gates ? 20 * (r->all ? shares : rows) : 0));
}

void smp__route_choose(const smp__routing *r, const float *logits, bool gates, smp__route *route)
{
    for (int64_t t = 0; t < r->tokens; t++)
        choose(r, logits + t * r->experts, gates, route, t);
}

void smp__route_sample(const smp__routing *r, const float *logits, bool gates, smp__route *route)
{
    smp__route_choose(r, logits, gates, route);
    memset(route->used, 0, (size_t)r->experts * sizeof *route->used);
    for (int64_t k = 0; k < r->top_k; k++)
        for (int64_t t = 0; t < r->tokens; t++) {
            const int64_t i = t * r->top_k + k;
            int32_t *used = &route->used[route->expert[i]];
            route->slot[i] = *used < r->capacity ? (*used)++ : -1;
        }
}

void smp__route_gradient(const smp__routing *r, const float *logits, const smp__route *route,
                         int64_t token, const float *dgate, float *dlogits)
{
    const int32_t *expert = route->expert + token * r->top_k;
    const float *gate = route->gate + token * r->top_k;
    float mean = 0;
    for (int64_t k = 0; k < r->top_k; k++)
        mean += gate[k] * dgate[k];
    memset(dlogits, 0, (size_t)r->experts * sizeof *dlogits);
    if (r->all) {
        shares_of(r, logits, route->share);
        for (int64_t e = 0; e < r->experts; e++)
            dlogits[e] = -route->share[e] * mean;
    }
    for (int64_t k = 0; k < r->top_k; k++)
        dlogits[expert[k]] += gate[k] * (r->all ? dgate[k] : dgate[k] - mean);
}

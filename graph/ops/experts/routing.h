/* A mixture's routing, which expert_dispatch and expert_combine each make of the same logits. */
#ifndef SMP_GRAPH_OPS_ROUTING_H
#define SMP_GRAPH_OPS_ROUTING_H

#include "graph/ops/collective/collective.h"

/* Inputs of all that route: the rows of tokens or of experts, and the logits. */
enum { SMP__ROUTED, SMP__ROUTER };
/* Attributes that both have, in this order. */
enum {
    SMP__TOP_K,
    SMP__CAPACITY,
    SMP__GATES,
    SMP__ROUTED_BY,
    SMP__ROUTED_AXIS,
    SMP__ROUTED_BLOCKS
};
extern const smp_attr_desc smp__routing_attrs[];
/* The attributes of load_balance. */
enum { SMP__BALANCE_TOP_K, SMP__BALANCE_COEFFICIENT, SMP__BALANCE_DEVICES, SMP__BALANCE_AXIS };
enum { SMP__MOST_TOP_K = 64 }; /* where gates have gradients */

/* Sizes. Of several devices that share the experts (axis 0) each has `own` from `first` on. */
typedef struct smp__routing {
    int64_t tokens; /* on this device */
    int64_t experts, top_k, capacity;
    int64_t first, own;
    bool all; /* gates are shares of all experts */
} smp__routing;

/* logits: [tokens, experts]. */
smp__routing smp__routing_of(const smp_graph *graph, const smp_op *op, const smp_shape *logits);
static inline smp__routing smp__experts_routing(const smp_graph *graph, const smp_op *op)
{
    return smp__routing_of(graph, op, &smp__in(graph, op, SMP__ROUTER)->shape);
}
/* The same where every device has a part of the tokens, too, [tokens, experts] of the logits. */
smp__routing smp__routing_by_tokens(const smp_graph *graph, const smp_op *op,
                                    const smp_shape *logits);
/* Checks them and fills *out. */
smp_status smp__infer_routing(const smp_infer *infer, bool by_tokens, smp__routing *out);

/* Where the tokens of one sample go: choice k of token t is expert[t * top_k + k], at place
 * slot[..] of it (-1: it was full), with weight gate[..]. */
typedef struct smp__route {
    int32_t *expert, *slot, *used; /* used: [experts] */
    float *gate, *share;           /* share: [experts], of the token at hand */
} smp__route;

/* What expert_dispatch and expert_combine expect and make; by_tokens: the kinds that they become
 * where the tokens are split. */
smp_status smp__infer_dispatch(smp_infer *infer, bool by_tokens);
smp_status smp__infer_combine(smp_infer *infer, bool by_tokens);

int64_t smp__route_bytes(const smp__routing *r);
/* Lays it into a workspace of so many bytes. */
smp__route smp__route_at(const smp__routing *r, void *workspace);
/* The top_k experts of the largest logits, of equal ones the first. Without `gates` there are
 * none. */
void smp__route_choose(const smp__routing *r, const float *logits, bool gates, smp__route *route);
/* Places too: to first choices by rising token, then to second ones, and so on. */
void smp__route_sample(const smp__routing *r, const float *logits, bool gates, smp__route *route);
/* Arithmetic of that for so many samples. */
double smp__route_flops(const smp__routing *r, bool gates, int64_t batch);
/* dlogits (overwritten) of a token, from the gradients of its gates. */
void smp__route_gradient(const smp__routing *r, const float *logits, const smp__route *route,
                         int64_t token, const float *dgate, float *dlogits);

/* The same of all samples of a micro-batch, on a GPU: arrays over choices [batch][tokens][top_k];
 * over rows [batch][own][capacity] of which choice has the place, -1: nobody; and over experts
 * [batch][experts] how many places are taken. */
typedef struct smp__device_route {
    int32_t *expert, *slot, *choice, *used;
    float *gate, *dgate; /* NULL where no gates are wanted */
} smp__device_route;

int64_t smp__device_route_bytes(const smp__routing *r, int64_t batch, bool gates);
smp__device_route smp__device_route_at(const smp__routing *r, int64_t batch, bool gates,
                                       void *workspace);

/* Where a choice's row lies among those of this device, or -1. */
static inline int64_t smp__route_row(const smp__routing *r, const smp__route *route, int64_t i)
{
    const int64_t expert = route->expert[i] - r->first;
    if (route->slot[i] < 0 || expert < 0 || expert >= r->own)
        return -1;
    return expert * r->capacity + route->slot[i];
}

#endif

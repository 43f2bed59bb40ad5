/* A mixture of experts. Where each choice of a token goes is a matrix of zeroes and ones over
 * [choices, experts, places], which dispatches by a product and combines by another, with gates.
 * Choices stand in the order in which places are given away: all first ones, then all second
 * ones. */
#include "graph/export/export_table.h"

#include <inttypes.h>

#include "graph/ops/experts/routing.h"

/* 0, 1, .. n - 1 as int64 or floats. */
static const char *rising(smp__node_out *x, int64_t n, bool whole)
{
    void *fill;
    const char *key = smp__node_text_of(x, "%s to %" PRId64, whole ? "experts" : "places", n);
    const char *name = smp__node_table(x, key, (smp_shape){1, {n}}, whole, &fill);
    for (int64_t i = 0; fill && i < n; i++) {
        if (whole)
            ((int64_t *)fill)[i] = i;
        else
            ((float *)fill)[i] = (float)i;
    }
    return name;
}

static const char *cast(smp__node_out *x, const char *value, int type)
{
    const char *out = SMP__NODE(x, "Cast", value);
    smp__node_int(x, "to", type);
    return out;
}

/* The top_k experts of each token: values and numbers, [batch, tokens, top_k]. */
static void choose(smp__node_out *x, const smp__routing *r, const char *out[2])
{
    const char *in[] = {smp__node_in(x, 1), SMP__LIST(x, r->top_k), NULL};
    smp__node_node_many(x, "TopK", in, 2, out);
    smp__node_int(x, "axis", 2);
}

/* [batch, top_k, tokens, experts * places]: 1 where that choice of that token lies. */
static const char *places_of(smp__node_out *x, const smp__routing *r, const char *number)
{
    const int64_t choices = r->top_k * r->tokens;
    const char *ordered = SMP__PERMUTE(x, number, 0, 2, 1);
    const char *chosen =
        SMP__NODE(x, "Equal", SMP__RESHAPE(x, ordered, choices, 1), rising(x, r->experts, true));
    const char *axis = SMP__NODE(x, "Squeeze", SMP__LIST(x, 1));
    const char *before =
        SMP__NODE(x, "CumSum", cast(x, chosen, ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT), axis);
    smp__node_int(x, "exclusive", 1);
    const char *place = SMP__NODE(x, "Equal", SMP__RESHAPE(x, before, choices, r->experts, 1),
                                  rising(x, r->capacity, false));
    const char *both = SMP__NODE(x, "And", place, SMP__RESHAPE(x, chosen, choices, r->experts, 1));
    return SMP__RESHAPE(x, cast(x, both, ONNX__TENSOR_PROTO__DATA_TYPE__FLOAT), r->top_k, r->tokens,
                        r->experts * r->capacity);
}

/* [batch, tokens, experts * places]: of all choices. */
static const char *over_choices(smp__node_out *x, const char *places)
{
    const char *out = SMP__NODE(x, "ReduceSum", places, SMP__LIST(x, 1));
    smp__node_int(x, "keepdims", 0);
    return out;
}

void smp__export_expert_dispatch(smp__node_out *x)
{
    const smp__routing r = smp__routing_of(x->model, x->op, smp__node_in_shape(x, 1));
    const char *choice[2];
    choose(x, &r, choice);
    const char *places = over_choices(x, places_of(x, &r, choice[1]));
    const char *rows = SMP__NODE(x, "MatMul", SMP__PERMUTE(x, places, 0, 2, 1), smp__node_in(x, 0));
    smp__node_is(x, smp__node_reshape(x, rows, smp__node_out_shape(x)));
}

/* The softmax over the chosen logits, or these experts' shares of the one over all. */
static const char *gates_of(smp__node_out *x, const smp__routing *r, const char *const choice[2])
{
    const char *shares = SMP__NODE(x, "Softmax", r->all ? smp__node_in(x, 1) : choice[0]);
    smp__node_int(x, "axis", -1);
    if (!r->all)
        return shares;
    shares = SMP__NODE(x, "GatherElements", shares, choice[1]);
    smp__node_int(x, "axis", 2);
    return shares;
}

void smp__export_expert_combine(smp__node_out *x)
{
    const smp__routing r = smp__routing_of(x->model, x->op, smp__node_in_shape(x, 1));
    const int64_t d = smp__node_out_shape(x)->dim[1];
    const char *choice[2];
    choose(x, &r, choice);
    const char *gates = SMP__PERMUTE(x, gates_of(x, &r, choice), 0, 2, 1);
    const char *weighted = SMP__NODE(x, "Mul", places_of(x, &r, choice[1]),
                                     SMP__RESHAPE(x, gates, r.top_k, r.tokens, 1));
    const char *rows = SMP__RESHAPE(x, smp__node_in(x, 0), r.experts * r.capacity, d);
    smp__node_is(x, SMP__NODE(x, "MatMul", over_choices(x, weighted), rows));
}

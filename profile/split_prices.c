/* Prices of choices from the pieces of split graphs (smp_graph_split_op, smp_graph_split_move):
 * every distinct op and tensor is made in each way once, and costs there what smp_costs_build would
 * say. So there is one definition of what is exchanged, that of the operators. */
#include "profile/split_prices.h"

#include <math.h>
#include <string.h>

#include "graph/base/clock.h"
#include "graph/base/text.h"
#include "profile/distinct.h"
#include "profile/estimate.h"
#include "profile/op_cost.h"

/* Ways as small numbers: whole, shared, parts, then each dimension in each number of blocks. */
enum { WAY_SPLIT = 3, N_WAY = WAY_SPLIT + SMP_SPLIT_BLOCKS * SMP_MAX_DIMS };

/* What an op costs under a choice. */
typedef struct op_price {
    smp_split_choice choice;
    double us;              /* forward and backward, sums and updates, per micro-batch */
    double weight_elements; /* on a device, a part of those with several uses */
    double stash_bytes;     /* likewise, of what others keep too */
    bool pieces;            /* a product that exchanges beside itself */
} op_price;

typedef struct move_price {
    double us, weight_elements;
} move_price;

struct smp_split_prices {
    smp_split_costs costs;
    int32_t *begin; /* [n_op + 1] into price */
    op_price *price;
    const move_price **move; /* [tensors][N_WAY][N_WAY], NULL: not moved; alike ones share them */
    double element_bytes;
    double us_per_weight_byte, us_per_stash_byte;
    bool avoid_pieces;
    smp_arena *arena;
};

/* As much work to price a choice as to cost so many ops. */
#define PRICE_WORK 4

/* Far above what any graph takes, and far from where a sum loses what its terms differ in. */
#define AVOIDED_US 1e12

/* While prices are made. */
typedef struct maker {
    smp_split_prices *prices;
    const smp_graph *graph;
    const smp_cluster *groups;
    smp__costing costing;
    int64_t microbatches;
    int32_t *n_keeper; /* [tensors] ops whose backward reads it, its own among them */
    smp__distinct distinct;
    smp_arena *scratch;
} maker;

static int way_of(smp_spread spread)
{
    static const int ways[] = {[SMP_WHOLE] = 0, [SMP_SHARED] = 1, [SMP_PARTS] = 2};
    return spread.way == SMP_SPLIT ? WAY_SPLIT + SMP_SPLIT_BLOCKS * spread.dim + spread.blocks - 1
                                   : ways[spread.way];
}

static double price_op(void *context, int32_t op, smp_split_choice choice)
{
    const smp_split_prices *p = context;
    for (int32_t i = p->begin[op]; i < p->begin[op + 1]; i++) {
        const op_price *price = &p->price[i];
        if (memcmp(&price->choice, &choice, sizeof choice) == 0)
            return price->us + (price->pieces && p->avoid_pieces ? AVOIDED_US : 0) +
                   p->us_per_weight_byte * p->element_bytes * price->weight_elements +
                   p->us_per_stash_byte * price->stash_bytes;
    }
    return INFINITY;
}

static double price_move(void *context, int32_t tensor, smp_spread from, smp_spread to)
{
    const smp_split_prices *p = context;
    const move_price *move = p->move[tensor];
    if (!move)
        return INFINITY;
    move += way_of(from) * N_WAY + way_of(to);
    return move->us + p->us_per_weight_byte * p->element_bytes * move->weight_elements;
}

static const void *move_like(void *context, int32_t tensor)
{
    const smp_split_prices *p = context;
    return p->move[tensor] ? (const void *)p->move[tensor] : p; /* those that cannot move */
}

/* What of op o's backward reads its inputs (mask), and its outputs; g: of the op alone. */
static void keeps_of(const maker *m, const smp_graph *g, int32_t o, uint32_t *in, uint32_t *out,
                     double *aux_bytes)
{
    const smp_op *op = &g->op[0];
    const int64_t batch = m->costing.microbatch_size;
    smp_op_needs needs;
    const bool input =
        smp__runs_backward_input(g, op) && !smp_op_passes_dout(m->graph, &m->graph->op[o]);
    const bool weight = smp__runs_backward_weight(g, op);
    smp_op_needs_get(g, op, batch, &needs);
    *in = (input ? smp_op_fused_reads(m->graph, o, needs.input_grad_in) : 0) |
          (weight ? needs.weight_grad_in : 0);
    *out = input ? needs.input_grad_out : 0;
    const bool aux = (input && needs.input_grad_aux) || (weight && needs.weight_grad_aux);
    *aux_bytes = aux && !needs.aux_of_backward ? (double)needs.aux_bytes * (double)batch : 0;
}

/* A model's inputs are not kept, but for what is made of them. */
static bool is_kept(const smp_graph *graph, int32_t tensor, smp_spread spread)
{
    return graph->tensor[tensor].producer >= 0 || spread.way != SMP_WHOLE;
}

static void count_keepers(maker *m, const smp_graph *g, int32_t o)
{
    const smp_op *op = &g->op[0], *from = &m->graph->op[o];
    uint32_t in, out;
    double aux_bytes;
    keeps_of(m, g, o, &in, &out, &aux_bytes);
    for (int32_t i = 0; i < op->n_in && i < 32; i++)
        m->n_keeper[from->in[i]] += in >> i & 1;
    for (int32_t k = 0; k < op->n_out; k++)
        m->n_keeper[from->out + k] += out >> k & 1;
}

static double stash_of(const maker *m, const smp_graph *g, int32_t o, smp_split_choice choice)
{
    const smp_op *op = &g->op[0], *from = &m->graph->op[o];
    const int64_t batch = m->costing.microbatch_size;
    uint32_t in, out;
    double bytes;
    keeps_of(m, g, o, &in, &out, &bytes);
    for (int32_t i = 0; i < op->n_in && i < 32; i++)
        if (in >> i & 1 && is_kept(m->graph, from->in[i], smp_split_in(m->graph, o, choice, i)))
            bytes +=
                (double)smp_tensor_bytes(g, op->in[i], batch) / fmax(m->n_keeper[from->in[i]], 1);
    for (int32_t k = 0; k < op->n_out; k++)
        if (out >> k & 1)
            bytes += (double)smp_tensor_bytes(g, op->out + k, batch) /
                     fmax(m->n_keeper[from->out + k], 1);
    return bytes;
}

/* An op of a piece has these weights of the whole graph: memory and the optimizer's updates,
 * divided among uses, and sums. */
static void add_weights(const maker *m, const smp_graph *g, const smp_op *op, const int32_t *param,
                        double *elements, double *us)
{
    for (int32_t p = 0; p < op->n_param; p++) {
        const smp_param *whole = &m->graph->param[param[p]];
        const int64_t n = g->param[op->param[p]].elements;
        const double own = (double)n / (whole->use_end - whole->use_begin);
        *elements += own;
        if (m->graph->training)
            *us +=
                4e6 * own / smp__optimizer_rate(&m->costing, g->target) / (double)m->microbatches;
        if (op->summands >> p & 1 && smp__runs_backward_weight(g, op))
            *us += smp_costs_summands_us(g, m->groups, n) / (double)m->microbatches;
    }
}

/* g: of the op alone; whole: the same of an op of its class, all of which is on the device. */
static smp_status set_price(maker *m, const smp_graph *g, const smp_graph *whole, int32_t o,
                            smp_split_choice choice, op_price *price)
{
    const smp__op_origin origin = {whole, 0, o};
    smp_op_cost cost = {0};
    SMP_TRY(smp__estimate_bytes(g, m->costing.microbatch_size, &cost));
    SMP_TRY(smp__op_cost(&m->costing, g, 0, origin, &cost));
    const double moved_per_s = smp_device_moved_per_s(&m->costing.device);
    *price = (op_price){.choice = choice, .us = cost.forward_us + cost.backward_us};
    if (!m->costing.profile && smp__is_fused_second(m->graph, &m->graph->op[o]))
        price->us += m->costing.slowdown * 1e6 *
                         (double)smp__fused_second_bytes(g, g->op, m->costing.microbatch_size) /
                         moved_per_s -
                     cost.forward_us;
    if (!m->costing.profile && smp__is_fused_backward(m->graph, &m->graph->op[o]))
        price->us += m->costing.slowdown *
                         smp__fused_backward_us(g, g->op, m->costing.microbatch_size, moved_per_s) -
                     cost.backward_input_us;
    smp_op_work work;
    smp_op_work_get(g, g->op, m->costing.microbatch_size, &work);
    price->pieces = g->op->n_param > 0 && work.forward_exchange.beside > 0;
    price->stash_bytes = m->graph->training ? stash_of(m, g, o, choice) : 0;
    add_weights(m, g, g->op, m->graph->op[o].param, &price->weight_elements, &price->us);
    return SMP_OK;
}

/* Ops that one piece stands for: of one class. One whose cost the model says stands alone. */
typedef struct alike {
    const int32_t *op;
    int32_t n;
} alike;

static smp_status price_choice(maker *m, alike ops, smp_split_choice choice, const smp_graph *whole)
{
    smp_graph *piece;
    SMP_TRY(smp_graph_split_op(m->graph, m->groups->group, ops.op[0], choice, &piece));
    smp_status status = SMP_OK;
    for (int32_t i = 0; i < ops.n && status == SMP_OK; i++) {
        const int32_t o = ops.op[i];
        for (int32_t k = m->prices->begin[o]; k < m->prices->begin[o + 1]; k++)
            if (memcmp(&m->prices->price[k].choice, &choice, sizeof choice) == 0)
                status = set_price(m, piece, whole, o, choice, &m->prices->price[k]);
    }
    smp_graph_destroy(piece);
    return status;
}

static smp_status make_whole(const maker *m, alike ops, smp_graph **out)
{
    const smp_split_choice whole = {-1, 0, 1};
    return smp_graph_split_op(m->graph, m->groups->group, ops.op[0], whole, out);
}

static smp_status price_alike(maker *m, alike ops)
{
    smp_split_choice choice[SMP_SPLIT_CHOICES];
    smp_graph *whole;
    const int n = smp_split_choices(m->graph, ops.op[0], m->groups->group, choice);
    SMP_TRY(make_whole(m, ops, &whole));
    m->prices->element_bytes =
        (double)smp_weight_element_bytes(whole, smp_planned_states(whole->training));
    smp_status status = SMP_OK;
    for (int k = 0; k < n && status == SMP_OK; k++)
        status = price_choice(m, ops, choice[k], whole);
    smp_graph_destroy(whole);
    return status;
}

static smp_status count_alike(maker *m, alike ops)
{
    smp_graph *whole;
    SMP_TRY(make_whole(m, ops, &whole));
    for (int32_t i = 0; i < ops.n; i++)
        count_keepers(m, whole, ops.op[i]);
    smp_graph_destroy(whole);
    return SMP_OK;
}

/* order: ops by class. */
static smp_status for_alike(maker *m, const int32_t *order, smp_status (*call)(maker *m, alike ops))
{
    const int32_t *class_of = m->distinct.class_of;
    for (int32_t i = 0, end; i < m->graph->n_op; i = end) {
        const bool alone = m->graph->op[order[i]].cost != NULL;
        for (end = i + 1; end < m->graph->n_op && !alone; end++)
            if (class_of[order[end]] != class_of[order[i]] || m->graph->op[order[end]].cost)
                break;
        SMP_TRY(call(m, (alike){&order[i], end - i}));
    }
    return SMP_OK;
}

static smp_status order_ops(const maker *m, int32_t **out)
{
    const size_t n = (size_t)m->graph->n_op;
    int32_t *order = SMP_ARENA_NEW(m->scratch, int32_t, n);
    int32_t *begin = SMP_ARENA_NEW(m->scratch, int32_t, (size_t)m->distinct.n + 1);
    if (!order || !begin)
        return SMP_ERR_NO_MEMORY;
    for (size_t o = 0; o < n; o++)
        begin[m->distinct.class_of[o] + 1]++;
    for (int32_t c = 0; c < m->distinct.n; c++)
        begin[c + 1] += begin[c];
    for (size_t o = 0; o < n; o++)
        order[begin[m->distinct.class_of[o]]++] = (int32_t)o;
    *out = order;
    return SMP_OK;
}

static smp_status price_ops(maker *m)
{
    smp_split_prices *p = m->prices;
    const smp_graph *graph = m->graph;
    smp_split_choice choice[SMP_SPLIT_CHOICES];
    int32_t *order;
    int64_t n = 0;
    for (int32_t o = 0; o < graph->n_op; o++)
        n += smp_split_choices(graph, o, m->groups->group, choice);
    smp_work_count(SMP_WORK_COST, PRICE_WORK * (double)n);
    if (n > INT32_MAX)
        return smp_fail(SMP_ERR_INPUT, "%s: %lld choices, expected at most %d", graph->path,
                        (long long)n, INT32_MAX);
    p->begin = SMP_ARENA_NEW(p->arena, int32_t, (size_t)graph->n_op + 1);
    p->price = SMP_ARENA_NEW(p->arena, op_price, (size_t)n);
    m->n_keeper = SMP_ARENA_NEW(m->scratch, int32_t, (size_t)graph->n_tensor);
    if (!p->begin || !p->price || !m->n_keeper)
        return SMP_ERR_NO_MEMORY;
    for (int32_t o = 0; o < graph->n_op; o++) {
        const int n_own = smp_split_choices(graph, o, m->groups->group, choice);
        p->begin[o + 1] = p->begin[o] + n_own;
        for (int k = 0; k < n_own; k++)
            p->price[p->begin[o] + k] = (op_price){.choice = choice[k], .us = INFINITY};
    }
    SMP_TRY(smp__distinct_ops(graph, m->scratch, &m->distinct));
    SMP_TRY(order_ops(m, &order));
    SMP_TRY(for_alike(m, order, count_alike));
    return for_alike(m, order, price_alike);
}

/* False: no tensor of the shape lies so. */
static bool spread_at(int way, const smp_shape *shape, int devices, smp_spread *out)
{
    static const uint8_t ways[] = {SMP_WHOLE, SMP_SHARED, SMP_PARTS};
    if (way < WAY_SPLIT) {
        *out = (smp_spread){ways[way], 0, 1};
        return true;
    }
    *out = (smp_spread){SMP_SPLIT, (int8_t)((way - WAY_SPLIT) / SMP_SPLIT_BLOCKS),
                        (int8_t)((way - WAY_SPLIT) % SMP_SPLIT_BLOCKS + 1)};
    return out->dim < shape->n_dim && shape->dim[out->dim] % ((int64_t)out->blocks * devices) == 0;
}

/* The dimension of the bias that a tensor lacks where it is made as parts of a sum, or -1. */
static int bias_dim_of(const maker *m, int32_t tensor)
{
    const int32_t o = m->graph->tensor[tensor].producer;
    int bias_dim = -1;
    if (o < 0)
        return -1;
    for (int32_t k = m->prices->begin[o]; k < m->prices->begin[o + 1]; k++) {
        const smp_split_choice choice = m->prices->price[k].choice;
        if (smp_split_out(m->graph, o, choice).way != SMP_PARTS)
            continue;
        for (int32_t i = 0; i < m->graph->op[o].n_param && bias_dim < 0; i++)
            smp_split_param(m->graph, o, choice, i, &bias_dim);
    }
    return bias_dim;
}

static smp_status price_piece(maker *m, const smp_graph *g, move_price *price)
{
    smp_op_cost cost[2] = {0};
    SMP_TRY(smp__estimate_bytes(g, m->costing.microbatch_size, cost));
    *price = (move_price){0};
    for (int32_t i = 0; i < g->n_op; i++) {
        SMP_TRY(smp__op_cost(&m->costing, g, i, (smp__op_origin){NULL, -1, -1}, &cost[i]));
        price->us += cost[i].forward_us + cost[i].backward_us;
        int32_t number[SMP_OP_MAX_PARAM];
        for (int32_t p = 0; p < g->op[i].n_param; p++)
            number[p] = g->param[g->op[i].param[p]].number;
        add_weights(m, g, &g->op[i], number, &price->weight_elements, &price->us);
    }
    return SMP_OK;
}

/* Those that smp_graph_split makes by one conversion. */
static bool is_direct(smp_spread from, int bias_dim, smp_spread to)
{
    if (from.way == SMP_SHARED || to.way == SMP_PARTS || way_of(from) == way_of(to))
        return false;
    return from.way == SMP_WHOLE || !smp_split_whole_first(from, bias_dim, false, to);
}

static smp_status price_moves(maker *m, int32_t tensor, move_price *price)
{
    const smp_shape *shape = &m->graph->tensor[tensor].shape;
    const int devices = m->groups->group, lacking = bias_dim_of(m, tensor);
    smp_spread from, to;
    for (int k = 0; k < N_WAY * N_WAY; k++) {
        price[k] = (move_price){.us = INFINITY};
        if (!spread_at(k / N_WAY, shape, devices, &from) ||
            !spread_at(k % N_WAY, shape, devices, &to))
            continue;
        const int bias_dim = from.way == SMP_PARTS ? lacking : -1;
        smp_graph *piece;
        if (!is_direct(from, bias_dim, to))
            continue;
        SMP_TRY(smp_graph_split_move(m->graph, devices, tensor, from, bias_dim, to, &piece));
        const smp_status status = price_piece(m, piece, &price[k]);
        smp_graph_destroy(piece);
        SMP_TRY(status);
    }
    return SMP_OK;
}

/* Tensors with equal keys cost the same. */
static smp_status tensor_key(const maker *m, int32_t tensor, smp_text *key)
{
    const smp_tensor *t = &m->graph->tensor[tensor];
    const int bias_dim = bias_dim_of(m, tensor);
    key->length = 0;
    smp_text_append(key, "%d%d%d", t->batched, t->needs_grad, bias_dim);
    for (int d = 0; d < t->shape.n_dim; d++)
        smp_text_append(key, ",%lld", (long long)t->shape.dim[d]);
    if (bias_dim >= 0) {
        const smp_op *op = &m->graph->op[t->producer];
        const smp_param *bias = &m->graph->param[op->param[op->n_param - 1]];
        smp_text_append(key, "|%d", bias->use_end - bias->use_begin);
    }
    return key->failed ? smp_fail_memory(key->capacity) : SMP_OK;
}

static smp_status price_tensor(maker *m, int32_t tensor, smp_map *map, smp_text *key)
{
    int64_t found;
    SMP_TRY(tensor_key(m, tensor, key));
    if (smp_map_get(map, key->data, &found)) {
        m->prices->move[tensor] = m->prices->move[found];
        return SMP_OK;
    }
    char *kept = smp_arena_strdup(m->scratch, key->data);
    move_price *price = SMP_ARENA_NEW(m->prices->arena, move_price, N_WAY * N_WAY);
    if (!kept || !price)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(price_moves(m, tensor, price));
    m->prices->move[tensor] = price;
    return smp_map_set(map, kept, tensor);
}

static smp_status price_tensors(maker *m)
{
    const smp_graph *graph = m->graph;
    smp_text key = {0};
    smp_map *map = smp_map_create();
    smp_status status = map ? SMP_OK : SMP_ERR_NO_MEMORY;
    m->prices->move = SMP_ARENA_NEW(m->prices->arena, const move_price *, (size_t)graph->n_tensor);
    if (!m->prices->move)
        status = SMP_ERR_NO_MEMORY;
    for (int32_t t = 0; t < graph->n_tensor && status == SMP_OK; t++)
        if (graph->tensor[t].known && smp_dtype_is_float(graph->tensor[t].dtype))
            status = price_tensor(m, t, map, &key);
    smp_text_free(&key);
    smp_map_destroy(map);
    return status;
}

static smp_status check_profile(const smp_graph *graph, const smp_profile *profile)
{
    if (!profile)
        return SMP_OK;
    if (profile->fingerprint != graph->fingerprint || profile->n_op != graph->n_op)
        return smp_fail(SMP_ERR_INPUT,
                        "profile: was taken from another model than '%s', or from "
                        "one that is split",
                        graph->name);
    return smp_profile_check_target(profile, graph->target);
}

smp_status smp_split_prices_make(const smp_graph *graph, const smp_cluster *groups,
                                 const smp_profile *profile, int64_t microbatch_size,
                                 int64_t microbatches, smp_split_prices **out)
{
    SMP_TRY(check_profile(graph, profile));
    maker m = {.graph = graph,
               .groups = groups,
               .costing = smp__costing_open(groups, profile, profile != NULL, microbatch_size),
               .microbatches = microbatches};
    smp_arena *arena = smp_arena_create();
    smp_split_prices *prices = arena ? SMP_ARENA_NEW(arena, smp_split_prices, 1) : NULL;
    m.scratch = smp_arena_create();
    smp_status status = prices && m.scratch ? SMP_OK : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK) {
        *prices = (smp_split_prices){
            .costs = {prices, price_op, price_move, move_like, AVOIDED_US / 2}, .arena = arena};
        m.prices = prices;
        status = price_ops(&m);
    }
    if (status == SMP_OK)
        status = price_tensors(&m);
    smp_arena_destroy(m.scratch);
    if (status == SMP_OK)
        *out = prices;
    else
        smp_arena_destroy(arena);
    return status;
}

void smp_split_prices_destroy(smp_split_prices *prices)
{
    if (prices)
        smp_arena_destroy(prices->arena);
}

void smp_split_prices_weigh(smp_split_prices *prices, double us_per_weight_byte,
                            double us_per_stash_byte)
{
    prices->us_per_weight_byte = us_per_weight_byte;
    prices->us_per_stash_byte = us_per_stash_byte;
}

void smp_split_prices_avoid_pieces(smp_split_prices *prices, bool avoid)
{
    prices->avoid_pieces = avoid;
}

const smp_split_costs *smp_split_prices_costs(const smp_split_prices *prices)
{
    return &prices->costs;
}

/* The choice of the least time: dynamic programming over the ops, states in a hash table. A step
 * that was made before, by an equal op from equal states, is not made again: in a network of equal
 * layers all but the first few. For that, times of states count from the least of them, and what
 * differs by rounding is equal. */
#include "graph/split/split_choose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/arena.h"
#include "graph/base/clock.h"
#include "graph/base/random.h"
#include "graph/base/text.h"

/* States of a step, and of all unlike ones. With four times as many a U-Net and a Mask R-CNN, whose
 * tensors live long, find 0.2 and 0.3 % less time, in four times as long. */
enum { LEAST_STATES = 1 << 8, MOST_STATES = 1 << 10, MOST_STEPS = 1 << 14 };

/* Equal ops before an op that it is compared with: of a layer several may be equal, each after
 * states of its own. */
enum { MOST_ALIKE = 16 };

/* Times that differ by this share of the longest, which rounding and what fades away of a network's
 * beginning stay below, are equal. */
#define ROUNDING 1e-9

/* Ways as bits: whole, shared, parts, the zigzag of dimension 0, then a dimension in one block or
 * in three. */
enum { BIT_WHOLE, BIT_SHARED, BIT_PARTS, BIT_ZIGZAG, BIT_SPLIT };
enum { N_WAY = BIT_SPLIT + 2 * SMP_MAX_DIMS };

/* What a state says of a tensor: its own way, the dimension of a bias that it lacks (+ 1), all ways
 * that are there (bits). Of a weight: 1 + the way of its part. 0: nothing. */
typedef uint32_t item;

enum { OWN_BITS = 4, BIAS_BITS = 3, THERE_SHIFT = OWN_BITS + BIAS_BITS };

typedef struct step { /* how a state came to be */
    int32_t before;
    smp_split_choice choice;
} step;

typedef struct states {
    item *items; /* [n][width] */
    double *us;
    step *from;
    size_t n, capacity;
} states;

/* A tensor that an op reads or writes. */
typedef struct place {
    int32_t slot;     /* -1: nobody reads it, */
    bool last, loss;  /* or nobody after this op; it is the loss */
    const void *like; /* tensors with one cost the same to move; NULL: no other */
} place;

/* An op with one of its choices. */
typedef struct way {
    smp_split_choice choice;
    double us;
    smp_spread *in; /* [n_in] */
    item *part;     /* [n_param] of the weights with several uses */
    item out;       /* what its outputs are at first */
} way;

/* All that a step depends on but for the states before it. */
typedef struct recipe {
    const smp_op *op;
    int n_way;
    place *in, *out;     /* [n_in], [n_out] */
    int32_t *param_slot; /* [n_param] */
    way *way;
    uint64_t hash;
} recipe;

/* A step, for those after it. */
typedef struct done {
    recipe recipe;
    const states *after; /* us from the least of them, */
    double least_us;     /* which is that much above the least before */
    int32_t alike;       /* the last op before with this hash; -1: none */
} done;

typedef struct chooser {
    const smp_graph *graph;
    const smp_split_costs *costs;
    int devices;
    size_t width;         /* items of a state */
    int32_t *tensor_slot; /* [tensors], -1: none now */
    int32_t *param_slot;  /* [weights] with several uses, else -1 */
    int32_t *last_reader; /* [tensors] */
    size_t most;          /* states of a step */
    bool exact;
    item *next; /* [width] */
    done *done; /* [n_op] */
    smp_arena *arena;
    states made;     /* by the step at work */
    uint32_t *table; /* of them; 1 + index */
    size_t table_mask;
} chooser;

static int way_of(smp_spread spread)
{
    switch (spread.way) {
    case SMP_WHOLE:
        return BIT_WHOLE;
    case SMP_SHARED:
        return BIT_SHARED;
    case SMP_PARTS:
        return BIT_PARTS;
    default:
        return spread.blocks == 2 ? BIT_ZIGZAG : BIT_SPLIT + 2 * spread.dim + (spread.blocks > 1);
    }
}

static smp_spread spread_of(int way)
{
    static const uint8_t ways[] = {SMP_WHOLE, SMP_SHARED, SMP_PARTS};
    if (way < BIT_ZIGZAG)
        return (smp_spread){ways[way], 0, 1};
    if (way == BIT_ZIGZAG)
        return (smp_spread){SMP_SPLIT, 0, 2};
    int rest = way - BIT_SPLIT;
    return (smp_spread){SMP_SPLIT, (int8_t)(rest / 2), (int8_t)(rest % 2 ? SMP_SPLIT_BLOCKS : 1)};
}

/* Brings a tensor into a way, as smp_graph_split does; adds what that costs. */
static double reach(const chooser *c, int32_t tensor, item *state, smp_spread wanted)
{
    const uint32_t there = *state >> THERE_SHIFT;
    const int own = (int)(*state & ((1u << OWN_BITS) - 1)), way = way_of(wanted);
    const int bias_dim = (int)(*state >> OWN_BITS & ((1u << BIAS_BITS) - 1)) - 1;
    const bool has_whole = there >> BIT_WHOLE & 1;
    const smp_spread whole = {SMP_WHOLE, 0, 1};
    double us = 0;
    if (there >> way & 1)
        return 0;
    if (way == BIT_PARTS)
        return INFINITY;
    if (smp_split_whole_first(spread_of(own), bias_dim, has_whole, wanted)) {
        us += c->costs->move_us(c->costs->context, tensor, spread_of(own), whole);
        us += c->costs->move_us(c->costs->context, tensor, whole, wanted);
        *state |= 1u << (THERE_SHIFT + BIT_WHOLE);
    } else {
        us += c->costs->move_us(c->costs->context, tensor, has_whole ? whole : spread_of(own),
                                wanted);
    }
    *state |= 1u << (THERE_SHIFT + way);
    return us;
}

/* False: another use of a weight has another part of it. */
static bool take_params(const recipe *r, const way *w, item *items)
{
    for (int32_t p = 0; p < r->op->n_param; p++) {
        const int32_t slot = r->param_slot[p];
        if (slot < 0)
            continue;
        if (items[slot] != 0 && items[slot] != w->part[p])
            return false;
        items[slot] = w->part[p];
    }
    return true;
}

static double read_inputs(const chooser *c, const recipe *r, const way *w, item *items)
{
    double us = 0;
    for (int32_t i = 0; i < r->op->n_in; i++)
        us += reach(c, r->op->in[i], &items[r->in[i].slot], w->in[i]);
    for (int32_t i = 0; i < r->op->n_in; i++)
        if (r->in[i].last)
            items[r->in[i].slot] = 0;
    return us;
}

static double write_outputs(const chooser *c, const recipe *r, const way *w, item *items)
{
    double us = 0;
    for (int32_t k = 0; k < r->op->n_out; k++) {
        item state = w->out;
        if (r->out[k].slot >= 0)
            items[r->out[k].slot] = state;
        else if (!r->out[k].loss) /* what nobody reads is whole */
            us += reach(c, r->op->out + k, &state, (smp_spread){SMP_WHOLE, 0, 1});
    }
    return us;
}

static bool grow(states *s, size_t width)
{
    size_t capacity = s->capacity ? 2 * s->capacity : 64;
    item *items = realloc(s->items, capacity * width * sizeof *items);
    if (items)
        s->items = items;
    double *us = realloc(s->us, capacity * sizeof *us);
    if (us)
        s->us = us;
    step *from = realloc(s->from, capacity * sizeof *from);
    if (from)
        s->from = from;
    if (!items || !us || !from)
        return false;
    s->capacity = capacity;
    return true;
}

static bool rehash(chooser *c)
{
    const states *s = &c->made;
    size_t size = c->table ? 2 * (c->table_mask + 1) : 256;
    uint32_t *table = calloc(size, sizeof *table);
    if (!table)
        return false;
    free(c->table);
    c->table = table;
    c->table_mask = size - 1;
    for (size_t i = 0; i < s->n; i++) {
        size_t at = smp_hash(1, s->items + i * c->width, c->width * sizeof(item)) & c->table_mask;
        while (table[at])
            at = (at + 1) & c->table_mask;
        table[at] = (uint32_t)i + 1;
    }
    return true;
}

/* Enters c->next unless an equal state is cheaper. */
static smp_status enter_state(chooser *c, double us, step from)
{
    states *s = &c->made;
    const size_t bytes = c->width * sizeof(item);
    if (!c->table || 2 * s->n >= c->table_mask)
        if (!rehash(c))
            return smp_fail_memory(4 * s->n * sizeof *c->table);
    size_t at = smp_hash(1, c->next, bytes) & c->table_mask;
    while (c->table[at] && memcmp(s->items + (c->table[at] - 1) * c->width, c->next, bytes) != 0)
        at = (at + 1) & c->table_mask;
    if (c->table[at]) {
        size_t i = c->table[at] - 1;
        if (us < s->us[i]) {
            s->us[i] = us;
            s->from[i] = from;
        }
        return SMP_OK;
    }
    if (s->n == s->capacity && !grow(s, c->width))
        return smp_fail_memory(2 * s->capacity * (bytes + sizeof *s->us));
    memcpy(s->items + s->n * c->width, c->next, bytes);
    s->us[s->n] = us;
    s->from[s->n] = from;
    c->table[at] = (uint32_t)++s->n;
    return SMP_OK;
}

static const void *likeness(const chooser *c, int32_t tensor)
{
    return c->costs->move_like ? c->costs->move_like(c->costs->context, tensor) : NULL;
}

static smp_status fill_way(const chooser *c, int32_t o, smp_split_choice choice, way *w)
{
    const smp_op *op = &c->graph->op[o];
    const int out = way_of(smp_split_out(c->graph, o, choice));
    int bias_dim = -1;
    w->choice = choice;
    w->us = c->costs->op_us(c->costs->context, o, choice);
    w->in = SMP_ARENA_NEW(c->arena, smp_spread, (size_t)op->n_in + 1);
    w->part = SMP_ARENA_NEW(c->arena, item, (size_t)op->n_param + 1);
    if (!w->in || !w->part)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < op->n_in; i++)
        w->in[i] = smp_split_in(c->graph, o, choice, i);
    for (int32_t p = 0; p < op->n_param; p++) {
        int lacking = -1;
        const smp_spread spread = smp_split_param(c->graph, o, choice, p, &lacking);
        w->part[p] = 1 + (item)(spread.way == SMP_SPLIT ? way_of(spread) : BIT_WHOLE);
        bias_dim = bias_dim < 0 ? lacking : bias_dim;
    }
    w->out = (item)out | (item)(bias_dim + 1) << OWN_BITS;
    if (bias_dim < 0)
        w->out |= 1u << (THERE_SHIFT + out);
    return SMP_OK;
}

static uint64_t hash_of(const recipe *r)
{
    uint64_t hash = smp_hash((uint64_t)r->n_way, r->in, (size_t)r->op->n_in * sizeof *r->in);
    hash = smp_hash(hash, r->out, (size_t)r->op->n_out * sizeof *r->out);
    for (int k = 0; k < r->n_way; k++)
        hash = smp_hash(hash, &r->way[k].us, sizeof r->way[k].us);
    return hash;
}

static smp_status fill_recipe(const chooser *c, int32_t o, bool fixed, smp_split_choice only,
                              recipe *r)
{
    const smp_op *op = &c->graph->op[o];
    smp_split_choice choices[SMP_SPLIT_CHOICES] = {only};
    r->op = op;
    r->n_way = fixed ? smp_split_allows(c->graph, o, only, c->devices)
                     : smp_split_choices(c->graph, o, c->devices, choices);
    r->in = SMP_ARENA_NEW(c->arena, place, (size_t)op->n_in + 1);
    r->out = SMP_ARENA_NEW(c->arena, place, (size_t)op->n_out);
    r->param_slot = SMP_ARENA_NEW(c->arena, int32_t, (size_t)op->n_param + 1);
    r->way = SMP_ARENA_NEW(c->arena, way, (size_t)r->n_way + 1);
    if (!r->in || !r->out || !r->param_slot || !r->way)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < op->n_in; i++) {
        r->in[i].slot = c->tensor_slot[op->in[i]];
        r->in[i].last = c->last_reader[op->in[i]] == o;
        r->in[i].like = likeness(c, op->in[i]);
    }
    for (int32_t k = 0; k < op->n_out; k++) {
        r->out[k].slot = c->last_reader[op->out + k] >= 0 ? c->tensor_slot[op->out + k] : -1;
        r->out[k].loss = op->out + k == c->graph->loss;
        r->out[k].like = likeness(c, op->out + k);
    }
    for (int32_t p = 0; p < op->n_param; p++)
        r->param_slot[p] = c->param_slot[op->param[p]];
    smp_work_count(SMP_WORK_COST, r->n_way);
    for (int k = 0; k < r->n_way; k++)
        SMP_TRY(fill_way(c, o, choices[k], &r->way[k]));
    r->hash = hash_of(r);
    return SMP_OK;
}

static bool same_places(const place *a, const place *b, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (a[i].slot != b[i].slot || a[i].last != b[i].last || a[i].loss != b[i].loss ||
            a[i].like != b[i].like || !a[i].like)
            return false;
    return true;
}

static bool same_ways(const recipe *a, const recipe *b, int k)
{
    const way *x = &a->way[k], *y = &b->way[k];
    if (memcmp(&x->choice, &y->choice, sizeof x->choice) != 0 || x->us != y->us || x->out != y->out)
        return false;
    for (int32_t p = 0; p < a->op->n_param; p++)
        if (a->param_slot[p] != b->param_slot[p] || x->part[p] != y->part[p])
            return false;
    for (int32_t i = 0; i < a->op->n_in; i++)
        if (x->in[i].way != y->in[i].way || x->in[i].dim != y->in[i].dim ||
            x->in[i].blocks != y->in[i].blocks)
            return false;
    return true;
}

static bool same_recipes(const recipe *a, const recipe *b)
{
    if (a->hash != b->hash || a->n_way != b->n_way || a->op->n_in != b->op->n_in ||
        a->op->n_out != b->op->n_out || a->op->n_param != b->op->n_param ||
        !same_places(a->in, b->in, a->op->n_in) || !same_places(a->out, b->out, a->op->n_out))
        return false;
    for (int k = 0; k < a->n_way; k++)
        if (!same_ways(a, b, k))
            return false;
    return true;
}

static bool same_states(const chooser *c, const states *a, const states *b)
{
    const double far_us = c->costs->far_us > 0.0 ? c->costs->far_us : INFINITY;
    double most_us = 0.0;
    if (a == b)
        return true;
    if (a->n != b->n || memcmp(a->items, b->items, a->n * c->width * sizeof(item)) != 0)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (a->us[i] < far_us)
            most_us = fmax(most_us, a->us[i]);
    for (size_t i = 0; i < a->n; i++)
        if (fabs(a->us[i] - b->us[i]) > ROUNDING * (a->us[i] < far_us ? most_us : a->us[i]))
            return false;
    return true;
}

/* All states after op o, in c->made. */
static smp_status advance(chooser *c, int32_t o, const states *before)
{
    const recipe *r = &c->done[o].recipe;
    c->made.n = 0;
    for (int k = 0; k < r->n_way; k++) {
        const way *w = &r->way[k];
        smp_work_count(SMP_WORK_STATE, (double)before->n);
        for (size_t i = 0; i < before->n; i++) {
            memcpy(c->next, before->items + i * c->width, c->width * sizeof(item));
            if (!take_params(r, w, c->next))
                continue;
            double us = before->us[i] + w->us + read_inputs(c, r, w, c->next);
            us += write_outputs(c, r, w, c->next);
            if (us < INFINITY)
                SMP_TRY(enter_state(c, us, (step){(int32_t)i, w->choice}));
        }
    }
    if (c->made.n == 0)
        return smp_fail_at(smp_op_where(c->graph, r->op),
                           "op '%s': no way of splitting it goes with those that are fixed",
                           r->op->name);
    return SMP_OK;
}

static int by_us(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Only the cheapest go on. */
static smp_status cut(chooser *c, states *s)
{
    size_t kept = 0;
    if (s->n <= c->most)
        return SMP_OK;
    double *sorted = malloc(s->n * sizeof *sorted);
    if (!sorted)
        return smp_fail_memory(s->n * sizeof *sorted);
    memcpy(sorted, s->us, s->n * sizeof *sorted);
    qsort(sorted, s->n, sizeof *sorted, by_us);
    const double most = sorted[c->most - 1];
    free(sorted);
    for (size_t i = 0; i < s->n && kept < c->most; i++)
        if (s->us[i] <= most) {
            memmove(s->items + kept * c->width, s->items + i * c->width, c->width * sizeof(item));
            s->us[kept] = s->us[i];
            s->from[kept++] = s->from[i];
        }
    s->n = kept;
    c->exact = false;
    return SMP_OK;
}

/* Places in a state: a tensor has one from its op to its last reader, a weight with several uses
 * throughout. */
static smp_status assign_slots(chooser *c)
{
    const smp_graph *g = c->graph;
    int32_t *unused = SMP_ARENA_NEW(c->arena, int32_t, (size_t)(g->n_tensor + g->n_param + 1));
    size_t n_unused = 0;
    c->tensor_slot = SMP_ARENA_NEW(c->arena, int32_t, (size_t)g->n_tensor);
    c->last_reader = SMP_ARENA_NEW(c->arena, int32_t, (size_t)g->n_tensor);
    c->param_slot = SMP_ARENA_NEW(c->arena, int32_t, (size_t)g->n_param + 1);
    if (!unused || !c->tensor_slot || !c->last_reader || !c->param_slot)
        return SMP_ERR_NO_MEMORY;
    for (int32_t p = 0; p < g->n_param; p++)
        c->param_slot[p] =
            g->param[p].use_end - g->param[p].use_begin > 1 ? (int32_t)c->width++ : -1;
    for (int32_t t = 0; t < g->n_tensor; t++) {
        int64_t end = g->consumer_begin[t + 1];
        c->last_reader[t] = end > g->consumer_begin[t] ? g->consumer[end - 1].op : -1;
    }
    for (int32_t t = 0; t < g->n_input; t++)
        c->tensor_slot[t] = c->last_reader[t] >= 0 ? (int32_t)c->width++ : -1;
    for (int32_t o = 0; o < g->n_op; o++) {
        const smp_op *op = &g->op[o];
        for (int32_t t = op->out; t < op->out + op->n_out; t++)
            c->tensor_slot[t] = c->last_reader[t] < 0 ? -1
                                : n_unused > 0        ? unused[--n_unused]
                                                      : (int32_t)c->width++;
        for (int32_t i = 0; i < op->n_in; i++) {
            bool seen = false; /* the same tensor twice */
            for (int32_t k = 0; k < i; k++)
                seen |= op->in[k] == op->in[i];
            if (!seen && c->last_reader[op->in[i]] == o)
                unused[n_unused++] = c->tensor_slot[op->in[i]];
        }
    }
    c->next = SMP_ARENA_NEW(c->arena, item, c->width + 1);
    return c->next ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static smp_status first_state(chooser *c)
{
    c->made.n = 0;
    memset(c->next, 0, c->width * sizeof(item));
    for (int32_t t = 0; t < c->graph->n_input; t++)
        if (c->tensor_slot[t] >= 0)
            c->next[c->tensor_slot[t]] = BIT_WHOLE | 1u << (THERE_SHIFT + BIT_WHOLE);
    return enter_state(c, 0, (step){-1, {-1, 0, 1}});
}

static void forget_table(chooser *c)
{
    free(c->table);
    c->table = NULL;
}

/* A copy of c->made that stays, with times from the least of them. */
static smp_status keep_states(chooser *c, const states **out, double *least_us)
{
    const states *made = &c->made;
    const size_t n_item = made->n * c->width;
    states *kept = SMP_ARENA_NEW(c->arena, states, 1);
    item *items = SMP_ARENA_NEW(c->arena, item, n_item + 1);
    double *us = SMP_ARENA_NEW(c->arena, double, made->n);
    step *from = SMP_ARENA_NEW(c->arena, step, made->n);
    if (!kept || !items || !us || !from)
        return SMP_ERR_NO_MEMORY;
    *least_us = INFINITY;
    for (size_t i = 0; i < made->n; i++)
        *least_us = fmin(*least_us, made->us[i]);
    for (size_t i = 0; i < made->n; i++)
        us[i] = made->us[i] - *least_us;
    memcpy(items, made->items, n_item * sizeof *items);
    memcpy(from, made->from, made->n * sizeof *from);
    *kept = (states){items, us, from, made->n, made->n};
    *out = kept;
    return SMP_OK;
}

/* Op o after those before it; `first`: the states before op 0. */
static smp_status make_step(chooser *c, int32_t o, const states *first)
{
    done *now = &c->done[o];
    const states *before = o > 0 ? now[-1].after : first;
    int32_t k = now->alike;
    for (int i = 0; k >= 0 && i < MOST_ALIKE; i++, k = c->done[k].alike)
        if (same_states(c, before, k > 0 ? c->done[k - 1].after : first) &&
            same_recipes(&now->recipe, &c->done[k].recipe)) {
            now->after = c->done[k].after;
            now->least_us = c->done[k].least_us;
            return SMP_OK;
        }
    forget_table(c);
    SMP_TRY(advance(c, o, before));
    SMP_TRY(cut(c, &c->made));
    return keep_states(c, &now->after, &now->least_us);
}

/* The last op before each whose recipe has the same hash; and how many states a step may have. */
static smp_status find_alike(chooser *c)
{
    size_t size = 1, n_unlike = 0;
    while (size < 2 * (size_t)c->graph->n_op + 1)
        size *= 2;
    int32_t *last = SMP_ARENA_NEW(c->arena, int32_t, size);
    if (!last)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < size; i++)
        last[i] = -1;
    for (int32_t o = 0; o < c->graph->n_op; o++) {
        const uint64_t hash = c->done[o].recipe.hash;
        size_t at = hash & (size - 1);
        while (last[at] >= 0 && c->done[last[at]].recipe.hash != hash)
            at = (at + 1) & (size - 1);
        n_unlike += last[at] < 0;
        c->done[o].alike = last[at];
        last[at] = o;
    }
    const size_t most = MOST_STEPS / n_unlike;
    c->most = most > MOST_STATES ? MOST_STATES : most < LEAST_STATES ? LEAST_STATES : most;
    return SMP_OK;
}

static smp_status choose_states(chooser *c, const bool *fixed, smp_split_choice *choice, double *us)
{
    const int32_t n = c->graph->n_op;
    const states *first;
    c->done = SMP_ARENA_NEW(c->arena, done, (size_t)n);
    if (!c->done)
        return SMP_ERR_NO_MEMORY;
    for (int32_t o = 0; o < n; o++)
        SMP_TRY(fill_recipe(c, o, fixed && fixed[o], choice[o], &c->done[o].recipe));
    SMP_TRY(find_alike(c));
    SMP_TRY(first_state(c));
    SMP_TRY(keep_states(c, &first, us));
    for (int32_t o = 0; o < n; o++) {
        SMP_TRY(make_step(c, o, first));
        *us += c->done[o].least_us;
    }
    size_t at = 0;
    while (c->done[n - 1].after->us[at] > 0.0) /* the least is 0 */
        at++;
    for (int32_t o = n - 1; o >= 0; o--) {
        const step *from = &c->done[o].after->from[at];
        choice[o] = from->choice;
        at = (size_t)from->before;
    }
    return SMP_OK;
}

static void free_states(states *s)
{
    free(s->items);
    free(s->us);
    free(s->from);
}

smp_status smp_split_choose(const smp_graph *graph, int devices, const smp_split_costs *costs,
                            const bool *fixed, smp_split_choice *choice, double *us, bool *exact)
{
    chooser c = {.graph = graph, .costs = costs, .devices = devices, .exact = true};
    c.arena = smp_arena_create();
    smp_status status = c.arena ? assign_slots(&c) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        status = choose_states(&c, fixed, choice, us);
    *exact = c.exact;
    forget_table(&c);
    free_states(&c.made);
    smp_arena_destroy(c.arena);
    return status;
}

/* The choice of the least time: dynamic programming over the ops, states in a hash table. */
#include "graph/base/clock.h"
#include "graph/split/split_choose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/arena.h"
#include "graph/base/random.h"
#include "graph/base/text.h"

/* With 16 times as many states a U-Net and a mixture of experts, whose tensors live long, find 0.02
 * and 0.3 % less time, in 16 times as long. */
enum { MOST_STATES = 1 << 10, MOST_STEPS = 1 << 26 /* states of all steps */ };

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
    item *next;      /* [width] */
    uint32_t *table; /* of the states of this step; 1 + index */
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

static double read_inputs(const chooser *c, int32_t o, smp_split_choice choice, item *items)
{
    const smp_op *op = &c->graph->op[o];
    double us = 0;
    for (int32_t i = 0; i < op->n_in; i++)
        us += reach(c, op->in[i], &items[c->tensor_slot[op->in[i]]],
                    smp_split_in(c->graph, o, choice, i));
    return us;
}

/* False: another use of a weight has another part of it. */
static bool take_params(const chooser *c, int32_t o, smp_split_choice choice, item *items)
{
    const smp_op *op = &c->graph->op[o];
    for (int32_t p = 0; p < op->n_param; p++) {
        const int32_t slot = c->param_slot[op->param[p]];
        smp_spread spread = smp_split_param(c->graph, o, choice, p, NULL);
        if (slot < 0)
            continue;
        const item part = 1 + (item)(spread.way == SMP_SPLIT ? way_of(spread) : BIT_WHOLE);
        if (items[slot] != 0 && items[slot] != part)
            return false;
        items[slot] = part;
    }
    return true;
}

static double write_outputs(const chooser *c, int32_t o, smp_split_choice choice, item *items)
{
    const smp_op *op = &c->graph->op[o];
    const int way = way_of(smp_split_out(c->graph, o, choice));
    int bias_dim = -1;
    double us = 0;
    for (int32_t p = 0; p < op->n_param && bias_dim < 0; p++)
        smp_split_param(c->graph, o, choice, p, &bias_dim);
    for (int32_t t = op->out; t < op->out + op->n_out; t++) {
        item state = (item)way | (item)(bias_dim + 1) << OWN_BITS;
        if (bias_dim < 0)
            state |= 1u << (THERE_SHIFT + way);
        if (c->last_reader[t] < 0 && t != c->graph->loss) /* what nobody reads is whole */
            us += reach(c, t, &state, (smp_spread){SMP_WHOLE, 0, 1});
        if (c->last_reader[t] >= 0)
            items[c->tensor_slot[t]] = state;
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

static bool rehash(chooser *c, const states *s)
{
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
static smp_status enter_state(chooser *c, states *s, double us, step from)
{
    const size_t bytes = c->width * sizeof(item);
    if (!c->table || 2 * s->n >= c->table_mask)
        if (!rehash(c, s))
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

/* All states after op o. */
static smp_status advance(chooser *c, int32_t o, const states *before, bool fixed,
                          smp_split_choice only, states *after)
{
    const smp_op *op = &c->graph->op[o];
    smp_split_choice choices[SMP_SPLIT_CHOICES] = {only};
    int n = fixed ? smp_split_allows(c->graph, o, only, c->devices)
                  : smp_split_choices(c->graph, o, c->devices, choices);
    for (int k = 0; k < n; k++) {
        double op_us = c->costs->op_us(c->costs->context, o, choices[k]);
        smp_work_count(SMP_WORK_STATE, (double)before->n);
        for (size_t i = 0; i < before->n; i++) {
            memcpy(c->next, before->items + i * c->width, c->width * sizeof(item));
            if (!take_params(c, o, choices[k], c->next))
                continue;
            double us = before->us[i] + op_us + read_inputs(c, o, choices[k], c->next);
            for (int32_t in = 0; in < op->n_in; in++)
                if (c->last_reader[op->in[in]] == o)
                    c->next[c->tensor_slot[op->in[in]]] = 0;
            us += write_outputs(c, o, choices[k], c->next);
            if (us < INFINITY)
                SMP_TRY(enter_state(c, after, us, (step){(int32_t)i, choices[k]}));
        }
    }
    if (after->n == 0)
        return smp_fail_at(smp_op_where(c->graph, op),
                           "op '%s': no way of splitting it goes with those that are fixed",
                           op->name);
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
static smp_status assign_slots(chooser *c, smp_arena *scratch)
{
    const smp_graph *g = c->graph;
    int32_t *unused = SMP_ARENA_NEW(scratch, int32_t, (size_t)(g->n_tensor + g->n_param + 1));
    size_t n_unused = 0;
    c->tensor_slot = SMP_ARENA_NEW(scratch, int32_t, (size_t)g->n_tensor);
    c->last_reader = SMP_ARENA_NEW(scratch, int32_t, (size_t)g->n_tensor);
    c->param_slot = SMP_ARENA_NEW(scratch, int32_t, (size_t)g->n_param + 1);
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
    c->next = SMP_ARENA_NEW(scratch, item, c->width + 1);
    return c->next ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static smp_status first_state(chooser *c, states *s)
{
    memset(c->next, 0, c->width * sizeof(item));
    for (int32_t t = 0; t < c->graph->n_input; t++)
        if (c->tensor_slot[t] >= 0)
            c->next[c->tensor_slot[t]] = BIT_WHOLE | 1u << (THERE_SHIFT + BIT_WHOLE);
    return enter_state(c, s, 0, (step){-1, {-1, 0, 1}});
}

static void forget_table(chooser *c)
{
    free(c->table);
    c->table = NULL;
}

/* steps: [n_op], what each step's states came from; the caller frees them. */
static smp_status choose_states(chooser *c, const bool *fixed, smp_split_choice *choice,
                                step **steps, states *now, states *next, double *us)
{
    SMP_TRY(first_state(c, now));
    for (int32_t o = 0; o < c->graph->n_op; o++) {
        forget_table(c);
        next->n = 0;
        SMP_TRY(advance(c, o, now, fixed && fixed[o], choice[o], next));
        SMP_TRY(cut(c, next));
        steps[o] = malloc(next->n * sizeof **steps);
        if (!steps[o])
            return smp_fail_memory(next->n * sizeof **steps);
        memcpy(steps[o], next->from, next->n * sizeof **steps);
        states swap = *now;
        *now = *next;
        *next = swap;
    }
    size_t best = 0;
    for (size_t i = 1; i < now->n; i++)
        if (now->us[i] < now->us[best])
            best = i;
    *us = now->us[best];
    for (int32_t o = c->graph->n_op - 1, at = (int32_t)best; o >= 0; o--) {
        choice[o] = steps[o][at].choice;
        at = steps[o][at].before;
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
    states now = {0}, next = {0};
    const size_t n = (size_t)graph->n_op;
    c.most = MOST_STEPS / n < MOST_STATES ? MOST_STEPS / n + 1 : MOST_STATES;
    step **steps = calloc(n, sizeof *steps);
    smp_arena *scratch = smp_arena_create();
    smp_status status = steps ? SMP_OK : smp_fail_memory(n * sizeof *steps);
    if (!scratch)
        status = SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        status = assign_slots(&c, scratch);
    if (status == SMP_OK)
        status = choose_states(&c, fixed, choice, steps, &now, &next, us);
    *exact = c.exact;
    forget_table(&c);
    for (size_t o = 0; steps && o < n; o++)
        free(steps[o]);
    free(steps);
    free_states(&now);
    free_states(&next);
    smp_arena_destroy(scratch);
    return status;
}

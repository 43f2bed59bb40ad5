/* From the fastest splitting to the one that needs least memory: the choice at several prices of
 * memory. A splitting that is best under a limit of memory is best at some price, or lies between
 * two that are (Lagrange); which of them fits, and at which number of stages, the planner says. So
 * it does of products in pieces, whose rivals may be hidden behind weight gradients: no price of an
 * op knows what stands beside it in a stage. */
#include "schedule/tensor/tensor_choice.h"

#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"
#include "graph/model/op.h"
#include "graph/split/split_choose.h"
#include "graph/split/split_text.h"
#include "profile/split_prices.h"
#include "schedule/plan/op_pattern.h"
#include "schedule/plan/split_patterns.h"

/* Micro-batches that sums of a step are spread over where nothing says how many there are. */
enum { USUAL_MICROBATCHES = 8 };

/* Bits are the same for one number of gradient blocks, so that number counts, and not how many of
 * them a replica has. */
static int step_microbatches(const smp_search_request *r)
{
    return r->options.gradient_blocks > 0 ? r->options.gradient_blocks
           : r->options.microbatches > 0  ? r->options.microbatches
                                          : USUAL_MICROBATCHES;
}

typedef struct chooser {
    const smp_search_request *request;
    const smp_graph *graph;
    int tensor;
    const smp_splitting *named; /* of the fixed entries, by op */
    smp_arena *arena;
    smp_split_choice *choice; /* [n_op], and where it stays so: */
    bool *fixed;
    double deadline_s;
} chooser;

/* Ops that an entry leaves whole, and no other one splits, stay whole. */
static smp_status fix_whole(chooser *c, const smp_split_entry *entry)
{
    smp_op_match match = smp_op_match_begin(c->graph, entry->op);
    int64_t work = 0;
    SMP_TRY(smp_op_match_allowed(&match, entry->where, &work));
    for (int32_t op; (op = smp_op_match_next(c->graph, &match)) >= 0;)
        c->fixed[op] = true;
    return SMP_OK;
}

static smp_status fix(chooser *c, const smp_split_entry *entry, int32_t n)
{
    for (int32_t o = 0; o < c->graph->n_op; o++)
        c->choice[o] = (smp_split_choice){-1, 0, 1};
    for (int32_t i = 0; i < n; i++)
        if (strcmp(entry[i].as, "whole") == 0)
            SMP_TRY(fix_whole(c, &entry[i]));
    for (int32_t i = 0; i < c->named->n_entry; i++) {
        const smp_split_entry *named = &c->named->entry[i];
        const int32_t o = smp_graph_find_op(c->graph, named->op);
        SMP_TRY(smp_split_parse(c->graph, o, c->tensor, named->as, &c->choice[o]));
        c->fixed[o] = true;
    }
    return SMP_OK;
}

static bool same_entries(const smp_splitting *a, const smp_splitting *b)
{
    if (a->n_entry != b->n_entry)
        return false;
    for (int32_t i = 0; i < a->n_entry; i++)
        if (strcmp(a->entry[i].op, b->entry[i].op) != 0 ||
            strcmp(a->entry[i].as, b->entry[i].as) != 0)
            return false;
    return true;
}

/* Does it exchange in the calls of what it becomes, with weights? */
static bool is_in_pieces(const smp_op *op, smp_split_choice choice)
{
    return choice.rule >= 0 && op->n_param > 0 && op->kind->split[choice.rule].kind;
}

static int32_t count_pieces(const chooser *c)
{
    int32_t n = 0;
    for (int32_t o = 0; o < c->graph->n_op; o++)
        n += is_in_pieces(&c->graph->op[o], c->choice[o]);
    return n;
}

static smp_status add_choice(chooser *c, double memory_price, bool exact,
                             smp__tensor_choice out[SMP__TENSOR_CHOICES], int *n)
{
    smp__tensor_choice *next = &out[*n];
    *next = (smp__tensor_choice){
        .memory_price = memory_price, .exact = exact, .n_pieces = count_pieces(c)};
    SMP_TRY(smp_splitting_make(c->graph, c->tensor, c->choice, c->arena, &next->splitting));
    for (int i = 0; i < *n; i++)
        if (same_entries(&out[i].splitting, &next->splitting))
            return SMP_OK;
    ++*n;
    return SMP_OK;
}

/* What a micro-batch takes, all ops whole, for a byte of a device's memory; of processes that share
 * their cores, for one of their host's, however many they are. */
static double price_of_byte(const chooser *c, const smp_cluster *groups,
                            const smp_split_costs *costs)
{
    double us = 0;
    int64_t bytes = c->request->options.memory_bytes;
    for (int32_t o = 0; o < c->graph->n_op; o++)
        us += costs->op_us(costs->context, o, (smp_split_choice){-1, 0, 1});
    for (int d = 0; d < smp_cluster_devices(groups) && c->request->options.memory_bytes == 0; d++)
        if (d == 0 || groups->device[d].memory_bytes < bytes)
            bytes = groups->device[d].memory_bytes;
    const int processes = groups->cores_per_node > 0 ? groups->of->devices_per_node : 1;
    return bytes > 0 ? us / ((double)bytes * processes) : 0;
}

static smp_status choose_at_prices(chooser *c, const smp_cluster *groups, smp_split_prices *prices,
                                   smp__tensor_choice out[SMP__TENSOR_CHOICES], int *n)
{
    /* what is right most often where groups are needed first; the smallest last */
    static const double price[SMP__TENSOR_PRICES] = {0.05, 0.5, 0, 160};
    const smp_split_costs *costs = smp_split_prices_costs(prices);
    const double byte_us = price_of_byte(c, groups, costs);
    for (int i = 0; i < SMP__TENSOR_CHOICES; i++) {
        const double times = price[i / 2];
        double us;
        bool exact;
        if (*n > 0 && smp_work_past(c->deadline_s))
            break;
        if (i % 2 == 1 && count_pieces(c) == 0)
            continue; /* none to avoid */
        smp_split_prices_weigh(prices, times * byte_us, times * byte_us);
        smp_split_prices_avoid_pieces(prices, i % 2);
        SMP_TRY(smp_split_choose(c->graph, c->tensor, costs, c->fixed, c->choice, &us, &exact));
        SMP_TRY(add_choice(c, times, exact, out, n));
    }
    return SMP_OK;
}

static smp_status choose(chooser *c, const smp_cluster *groups, bool only_fixed,
                         smp__tensor_choice out[SMP__TENSOR_CHOICES], int *n)
{
    const smp_search_request *r = c->request;
    smp_split_prices *prices;
    if (only_fixed)
        return add_choice(c, 0, true, out, n);
    SMP_TRY(smp_split_prices_make(c->graph, groups, r->profile, r->options.microbatch_size,
                                  step_microbatches(r), &prices));
    smp_status status = choose_at_prices(c, groups, prices, out, n);
    smp_split_prices_destroy(prices);
    return status;
}

smp_status smp__tensor_choices(const smp_search_request *request, const smp_cluster *groups,
                               int tensor, const smp_split_entry *fixed, int32_t n_fixed,
                               bool only_fixed, double deadline_s, smp_arena *arena,
                               smp__tensor_choice out[SMP__TENSOR_CHOICES], int *n)
{
    const smp_splitting asked = {.devices = tensor, .n_entry = n_fixed, .entry = fixed};
    smp_splitting named;
    const size_t n_op = (size_t)request->graph->n_op;
    SMP_TRY(smp_splitting_resolve(&asked, request->graph, arena, &named));
    chooser c = {.request = request,
                 .graph = request->graph,
                 .tensor = tensor,
                 .named = &named,
                 .arena = arena,
                 .deadline_s = deadline_s,
                 .choice = calloc(n_op, sizeof *c.choice),
                 .fixed = calloc(n_op, sizeof *c.fixed)};
    *n = 0;
    smp_status status =
        c.choice && c.fixed ? SMP_OK : smp_fail_memory(n_op * (sizeof *c.choice + sizeof *c.fixed));
    if (status == SMP_OK)
        status = fix(&c, fixed, n_fixed);
    if (status == SMP_OK)
        status = choose(&c, groups, only_fixed, out, n);
    free(c.choice);
    free(c.fixed);
    return status;
}

/* A lower bound on the step, of three parts for every rank r, the largest of all taken:
 *  - r cannot begin before the first micro-batch arrives; then it has all its work to do;
 *  - until the first gradient can be back at r, it can only run forwards, and no more of them than
 *    its memory holds; all other work comes after;
 *  - all forwards and input gradients of r come before the last input gradient that it sends, which
 *    then has the ranks before it to pass.
 * O(transfers + stages log stages). */
#include <float.h>
#include <stdlib.h>

#include "schedule/auto/list_model.h"

typedef struct bound {
    const smp__list *list;
    double *head_us; /* [n_stage] earliest start of a forward */
    double *back_us; /* earliest start of a backward, or of its first half */
    double *out_us;  /* least time from the end of the last one to the end of the step */
} bound;

static double maximum(double a, double b)
{
    return a > b ? a : b;
}

/* The part of a backward that other stages wait for. */
static double passed_us(const smp__list *l, int stage)
{
    return l->cost_us[SMP_ACTION_I][stage];
}

static double rest_us(const smp__list *l, int stage)
{
    return l->cost_us[SMP_ACTION_B][stage] - passed_us(l, stage);
}

static double tail_us(const smp__list *l, int rank)
{
    return l->input->tail_us ? l->input->tail_us[rank] : 0.0;
}

static double transfer_us(const smp__list *l, int32_t transfer)
{
    const smp_transfer *t = &l->crossing.flow->transfer[transfer];
    return smp__crossing_is_message(&l->crossing, t) ? l->input->transfer_us[transfer] : 0.0;
}

static void find_paths(bound *b)
{
    const smp__list *l = b->list;
    const smp_flow *flow = l->crossing.flow;
    for (int s = 0; s < l->n_stage; s++)
        for (int32_t i = flow->in_begin[s]; i < flow->in_begin[s + 1]; i++) {
            const smp_transfer *t = &flow->transfer[flow->in_list[i]];
            if (t->kind == SMP_TRANSFER_F)
                b->head_us[s] = maximum(b->head_us[s], b->head_us[t->from_stage] +
                                                           l->cost_us[SMP_ACTION_F][t->from_stage] +
                                                           transfer_us(l, flow->in_list[i]));
        }
    for (int s = l->n_stage - 1; s >= 0; s--) {
        b->back_us[s] = b->head_us[s] + l->cost_us[SMP_ACTION_F][s];
        for (int32_t i = flow->in_begin[s]; i < flow->in_begin[s + 1]; i++) {
            const smp_transfer *t = &flow->transfer[flow->in_list[i]];
            if (t->kind == SMP_TRANSFER_B)
                b->back_us[s] =
                    maximum(b->back_us[s], b->back_us[t->from_stage] + passed_us(l, t->from_stage) +
                                               transfer_us(l, flow->in_list[i]));
        }
    }
    for (int s = 0; s < l->n_stage; s++) {
        b->out_us[s] = rest_us(l, s) + tail_us(l, l->crossing.rank_of[s]);
        for (int32_t i = flow->out_begin[s]; i < flow->out_begin[s + 1]; i++) {
            const smp_transfer *t = &flow->transfer[flow->out_list[i]];
            if (t->kind == SMP_TRANSFER_B)
                b->out_us[s] =
                    maximum(b->out_us[s], transfer_us(l, flow->out_list[i]) +
                                              passed_us(l, t->to_stage) + b->out_us[t->to_stage]);
        }
    }
}

typedef struct item {
    double us, bytes;
} item;

static int by_density(const void *a, const void *b)
{
    const item *x = a, *y = b;
    double left = x->us * y->bytes, right = y->us * x->bytes;
    return left > right ? -1 : left < right;
}

/* Most forward time whose stashes a rank can hold at once: the linear relaxation of a knapsack. */
static double held_us(const smp__list *l, int rank, item *items)
{
    double total_us = 0.0, m = l->microbatches;
    for (int c = 0; c < l->chunks; c++) {
        int stage = smp__list_stage(l, rank, c);
        items[c] = (item){m * l->cost_us[SMP_ACTION_F][stage], m * l->input->stash_bytes[stage]};
        total_us += items[c].us;
    }
    if (!l->input->limit_bytes)
        return total_us;
    double left = l->input->limit_bytes[rank], us = 0.0;
    qsort(items, (size_t)l->chunks, sizeof *items, by_density);
    for (int c = 0; c < l->chunks && left > 0.0; c++) {
        double share = items[c].bytes > left ? left / items[c].bytes : 1.0;
        us += share * items[c].us;
        left -= items[c].bytes;
    }
    /* Stashes of nothing cost nothing, wherever they stand in the order. */
    for (int c = 0; c < l->chunks; c++)
        us += items[c].bytes <= 0.0 ? items[c].us : 0.0;
    return us < total_us ? us : total_us;
}

static double rank_bound(const bound *b, int rank, item *items)
{
    const smp__list *l = b->list;
    double head_us = DBL_MAX, back_us = DBL_MAX, out_us = DBL_MAX, passed = 0.0, rest = 0.0;
    for (int c = 0; c < l->chunks; c++) {
        int stage = smp__list_stage(l, rank, c);
        head_us = b->head_us[stage] < head_us ? b->head_us[stage] : head_us;
        back_us = b->back_us[stage] < back_us ? b->back_us[stage] : back_us;
        out_us = b->out_us[stage] < out_us ? b->out_us[stage] : out_us;
        passed += l->microbatches * (l->cost_us[SMP_ACTION_F][stage] + passed_us(l, stage));
        rest += l->microbatches * rest_us(l, stage);
    }
    double ahead_us = held_us(l, rank, items);
    if (ahead_us > back_us - head_us)
        ahead_us = back_us - head_us;
    double begin_us = back_us - ahead_us; /* as if all work followed it without a gap */
    return maximum(begin_us + passed + rest + tail_us(l, rank), begin_us + passed + out_us);
}

smp_status smp__list_bound(const smp__list *list, double *bound_us)
{
    size_t n_stage = (size_t)list->n_stage;
    bound b = {.list = list,
               .head_us = SMP_ARENA_NEW(list->arena, double, n_stage),
               .back_us = SMP_ARENA_NEW(list->arena, double, n_stage),
               .out_us = SMP_ARENA_NEW(list->arena, double, n_stage)};
    item *items = SMP_ARENA_NEW(list->arena, item, (size_t)list->chunks);
    if (!b.head_us || !b.back_us || !b.out_us || !items)
        return SMP_ERR_NO_MEMORY;
    find_paths(&b);
    *bound_us = 0.0;
    for (int rank = 0; rank < list->n_rank; rank++)
        *bound_us = maximum(*bound_us, rank_bound(&b, rank, items));
    return SMP_OK;
}

/* Every splitting that is worth it, planned: first all of them shortly, then the best. */
#include "schedule/tensor/tensor_plan.h"

#include <math.h>
#include <string.h>

#include "graph/base/clock.h"
#include "schedule/plan/split_patterns.h"
#include "schedule/planner/search/search_state.h"
#include "profile/overlap_costs.h"
#include "schedule/tensor/tensor_choice.h"
#include "schedule/tensor/tensor_mix.h"
#include "schedule/verify/verify.h"

enum { MOST_TRIED = 64 };

#define LIST_SHARE 0.3  /* of the work, to list splittings, */
#define GUESS_SHARE 0.2 /* of the rest to estimate what they come to, */
#define FIRST_SHARE 0.5 /* to look at all, */
#define TURN_SHARE 0.35 /* and of what is left of that for the next */
#define MIX_SHARE 0.3   /* of the rest, for stages that differ */
#define MIX_BUBBLE 0.05 /* of a plan's ranks that wait: with less there is too little to gain */
#define MIX_GAIN 1.03   /* that these must have, since who reads a plan finds others simpler */
#define LIST_OP_S 12e-6 /* work to list the splittings of an op into groups of one size */
#define AS_GOOD 1.01    /* what is preferred is as good as what is faster by less */

/* A splitting with what it takes to plan it. */
typedef struct candidate {
    smp_splitting splitting; /* devices 1: none */
    int tensor;
    smp_cluster *groups;
    const int *rank_begin;      /* groups differ; NULL: all are alike */
    const int *device;          /* ... the first of each, */
    const smp__tensor_mix *mix; /* ... and the stages, where nobody has said them */
    int64_t size;               /* samples of a micro-batch */
} candidate;

typedef struct search {
    const smp_search_request *base;
    const smp_tensor_request *how;
    const char *model_path;
    smp_arena *arena;
    candidate candidate[MOST_TRIED];
    smp_cluster *groups[MOST_TRIED]; /* owned */
    double estimate[MOST_TRIED];     /* what the best plan will come to, roughly */
    int turn[MOST_TRIED];            /* candidates, the most promising first */
    int n, n_groups;
    bool thorough;           /* trials are not brief: nothing fitted in those that were */
    double best_s;           /* work that the best so far took */
    int largest_left_out;    /* size that the work is too little for; 0: none */
    int smallest;            /* what needs least memory: the largest group, its last splitting */
    smp_tensor_tried *tried; /* [n] */
} search;

static int64_t asked(int number)
{
    return number > 0 ? number : 1;
}

/* A multiple of so many: those that share states are asked for, too. */
static int64_t asked_replicas(const smp_search_request *base)
{
    return asked(base->options.ddp > 0 ? base->options.ddp : base->options.shard);
}

/* Can groups of so many devices be formed, and as many stages and replicas as asked for of them? */
static bool suits(const smp_search_request *base, int tensor)
{
    return base->options.devices % tensor == 0 && smp_cluster_groups_fit(base->cluster, tensor) &&
           base->options.devices / tensor % (asked(base->options.stages) * asked_replicas(base)) ==
               0;
}

/* Why not. */
static smp_status fail_tensor(const smp_search_request *base, int tensor)
{
    const int node = base->cluster->devices_per_node;
    if (!smp_cluster_groups_fit(base->cluster, tensor))
        return smp_fail(SMP_ERR_INPUT,
                        "tensor: got %d, expected a divisor of the %d devices of a node, or a "
                        "multiple that divides those of all nodes",
                        tensor, node);
    if (base->options.devices % tensor != 0)
        return smp_fail(SMP_ERR_INPUT, "tensor: got %d, expected a divisor of the %d devices",
                        tensor, base->options.devices);
    return smp_fail(SMP_ERR_INPUT,
                    "tensor: %d devices are %d groups of %d, which cannot hold %lld stages x %lld "
                    "replicas",
                    base->options.devices, base->options.devices / tensor, tensor,
                    (long long)asked(base->options.stages), (long long)asked_replicas(base));
}

/* deadline_s: by when no more splittings are listed. */
static smp_status add_tensor(search *s, int tensor, double deadline_s)
{
    smp__tensor_choice choice[SMP__TENSOR_CHOICES];
    smp_cluster *groups = NULL;
    int n = 0;
    if (tensor == 1) {
        s->candidate[s->n++] = (candidate){
            .splitting = {.devices = 1}, .tensor = 1, .size = s->base->options.microbatch_size};
        return SMP_OK;
    }
    SMP_TRY(smp_cluster_group(s->base->cluster, tensor, &groups));
    s->groups[s->n_groups++] = groups;
    SMP_TRY(smp__tensor_choices(s->base, groups, tensor, s->how->fixed, s->how->n_fixed,
                                s->how->only_fixed, deadline_s, s->arena, choice, &n));
    const smp_tensor_overlap asked = s->how->overlap;
    for (int i = 0; i < n && s->n < MOST_TRIED; i++) {
        if (s->how->tensor == 0 && choice[i].splitting.n_entry == 0)
            continue; /* every device of a group would compute all */
        choice[i].splitting.overlap = asked == SMP_TENSOR_OVERLAP_AUTO
                                          ? s->base->graph->training && smp_group_overlaps(groups)
                                          : asked == SMP_TENSOR_OVERLAP_YES;
        s->tried[s->n].memory_price = choice[i].memory_price;
        s->tried[s->n].exact = choice[i].exact;
        s->tried[s->n].n_pieces = choice[i].n_pieces;
        s->candidate[s->n++] = (candidate){.splitting = choice[i].splitting,
                                           .tensor = tensor,
                                           .groups = groups,
                                           .size = s->base->options.microbatch_size};
    }
    if (s->smallest == 0 && s->n > 0)
        s->smallest = s->n - 1;
    return SMP_OK;
}

/* Groups that differ, of a candidate whose splitting is set. */
static smp_status set_ranks(search *s, const int *begin, int ranks, int replicas, candidate *c)
{
    int *device = SMP_ARENA_NEW(s->arena, int, (size_t)ranks *(size_t)replicas);
    if (!device)
        return SMP_ERR_NO_MEMORY;
    smp_first_devices(begin, ranks, replicas, device);
    SMP_TRY(smp_cluster_group_ranks(s->base->cluster, begin, ranks, replicas, &c->groups));
    s->groups[s->n_groups++] = c->groups;
    c->rank_begin = begin;
    c->device = device;
    return SMP_OK;
}

/* What is said of groups that differ is one candidate. */
static smp_status add_ranks(search *s)
{
    const smp_splitting said = {.devices = s->how->tensor,
                                .n_entry = s->how->n_fixed,
                                .entry = s->how->fixed,
                                .overlap = s->how->overlap == SMP_TENSOR_OVERLAP_YES,
                                .n_fewer = s->how->n_fewer,
                                .fewer = s->how->fewer};
    candidate c = {.tensor = said.devices, .size = s->base->options.microbatch_size};
    SMP_TRY(set_ranks(s, s->how->rank_begin, s->base->options.stages, s->base->options.ddp, &c));
    SMP_TRY(smp_splitting_resolve(&said, s->base->graph, s->arena, &c.splitting));
    s->candidate[s->n++] = c;
    return SMP_OK;
}

/* Whether the work until then suffices to list the splittings into groups of one size. */
static bool affords(const smp_search_request *base, int tensor, double end_s)
{
    return tensor == 1 || end_s <= 0.0 || smp_work_s() + LIST_OP_S * base->graph->n_op < end_s;
}

/* Powers of two, up to a node; where single devices are a choice, as many sizes as the work allows
 * for. */
static smp_status list_candidates(search *s)
{
    const smp_search_request *base = s->base;
    if (s->how->rank_begin)
        return add_ranks(s);
    if (s->how->tensor > 1 && !suits(base, s->how->tensor))
        return fail_tensor(base, s->how->tensor);
    if (s->how->tensor > 0) /* of single devices the planner says what is wrong */
        return add_tensor(s, s->how->tensor, base->deadline_s);
    const double begin_s = smp_work_s(), limit_s = base->deadline_s;
    const bool needed = !suits(base, 1);
    int largest = 1;
    while (2 * largest <= base->cluster->devices_per_node)
        largest *= 2;
    for (int tensor = largest; tensor >= 1; tensor /= 2) {
        const double share = LIST_SHARE * (1.0 - 0.5 * tensor / largest);
        const double end_s = limit_s > 0.0 ? begin_s + share * (limit_s - begin_s) : 0.0;
        if (!suits(base, tensor))
            continue;
        if (needed || affords(base, tensor, end_s))
            SMP_TRY(add_tensor(s, tensor, end_s));
        else if (s->largest_left_out == 0)
            s->largest_left_out = tensor;
    }
    return s->n > 0 ? SMP_OK : add_tensor(s, 1, limit_s); /* the planner says what is wrong */
}

/* The graph of a candidate; NULL: the base's own. */
static smp_status open_graph(const search *s, const candidate *c, smp_graph **graph)
{
    *graph = NULL;
    return c->tensor == 1 ? SMP_OK : smp_splitting_split(&c->splitting, 0, s->base->graph, graph);
}

/* The stages of a mix, as those of the ops of its graph. */
static smp_status pin_stages(const search *s, const smp__tensor_mix *mix, smp_search_request *out)
{
    int32_t *pin = SMP_ARENA_NEW(s->arena, int32_t, (size_t)out->graph->n_op);
    if (!pin)
        return SMP_ERR_NO_MEMORY;
    for (int32_t o = 0; o < out->graph->n_op; o++) {
        const int32_t whole = smp_graph_find_op(s->base->graph, out->graph->op[o].name);
        pin[o] = whole < 0 ? -1 : mix->stage[whole];
    }
    smp_tensor_pin_between(out->graph, mix->rank_begin, mix->stages, pin);
    out->pin = pin;
    return SMP_OK;
}

static smp_status set_request(const search *s, const candidate *c, const smp_graph *graph,
                              smp_search_request *out)
{
    *out = *s->base;
    out->graph = graph ? graph : s->base->graph;
    out->cluster = c->groups ? c->groups : s->base->cluster;
    out->options.devices = s->base->options.devices / c->tensor;
    if (c->mix) {
        out->options.stages = c->mix->stages;
        out->options.ddp = c->mix->ddp;
        out->options.chunks = 1;
    }
    if (c->rank_begin) {
        out->options.devices = out->options.stages * out->options.ddp;
        out->rank_begin = c->rank_begin;
        out->placement = SMP_PLACEMENT_LISTED;
        out->device = c->device;
    }
    out->options.microbatch_size = c->size;
    out->splitting = c->splitting;
    if (s->how->adapt)
        SMP_TRY(s->how->adapt(s->how->context, out));
    return c->mix ? pin_stages(s, c->mix, out) : SMP_OK;
}

/* Smaller groups, then more products in pieces, then what keeps less; < 0: `a` is preferred. What
 * hardly makes a difference, such as how many replicas and stages there are, must not decide on a
 * splitting, and thereby on bits. */
static double preference(const smp_tensor_tried *a, const smp_tensor_tried *b)
{
    return a->tensor != b->tensor               ? a->tensor - b->tensor
           : a->n_pieces != b->n_pieces         ? b->n_pieces - a->n_pieces
           : a->memory_price != b->memory_price ? b->memory_price - a->memory_price
                                                : (double)(a->microbatch_size - b->microbatch_size);
}

/* What is minimised. */
static double value_of(const search *s, const smp_tensor_tried *tried)
{
    return s->base->options.optimize == SMP_OPTIMIZE_MEMORY ? (double)tried->peak_bytes
                                                            : tried->sample_us;
}

/* The least so far of all groups as large. */
static double least_value(const search *s, int tensor)
{
    double least = INFINITY;
    for (int i = 0; i < s->n; i++)
        if (s->tried[i].fits && s->tried[i].tensor == tensor)
            least = fmin(least, value_of(s, &s->tried[i]));
    return least;
}

/* What a plan of `a` has to be below to be better than the best. */
static double to_beat(const search *s, const smp_tensor_tried *a, const smp_tensor_tried *best)
{
    const double order = preference(a, best), value = value_of(s, best);
    if (a->least > 0 && best->least == 0)
        return value / MIX_GAIN;
    if (a->tensor != best->tensor && s->base->options.optimize == SMP_OPTIMIZE_MEMORY)
        return value;
    if (order < 0)
        return AS_GOOD * (a->tensor == best->tensor ? least_value(s, a->tensor) : value);
    return order > 0 ? value / AS_GOOD : value;
}

/* best: NULL if nothing fits so far. */
static bool better(const search *s, const smp_tensor_tried *a, const smp_tensor_tried *best)
{
    if (!a->fits || !best || !best->fits)
        return a->fits;
    return value_of(s, a) < to_beat(s, a, best);
}

static int64_t highest_peak(const smp_plan *plan)
{
    int64_t peak = 0;
    for (int r = 0; r < plan->pipeline; r++)
        peak = plan->predicted.peak_bytes[r] > peak ? plan->predicted.peak_bytes[r] : peak;
    return peak;
}

/* The most promising candidate without a turn, of one size of group or any (0); -1: none. */
static int most_promising(const search *s, int tensor, const bool *has_turn)
{
    int best = -1;
    for (int i = 0; i < s->n; i++)
        if (!has_turn[i] && (tensor == 0 || s->candidate[i].tensor == tensor) &&
            (best < 0 || s->estimate[i] < s->estimate[best]))
            best = i;
    return best;
}

/* No candidate before has groups as large. */
static bool is_first_of_size(const search *s, int i)
{
    for (int k = 0; k < i; k++)
        if (s->candidate[k].tensor == s->candidate[i].tensor)
            return false;
    return true;
}

/* Where not all may have their turn, first the most promising of each size of group, since what
 * estimates leave out differs most between those; then the others. */
static void order_turns(search *s)
{
    bool has_turn[MOST_TRIED] = {false};
    int first[MOST_TRIED], n_first = 0, n = 0;
    for (int i = 0; i < s->n; i++)
        if (is_first_of_size(s, i))
            first[n_first++] = most_promising(s, s->candidate[i].tensor, has_turn);
    for (int k = 0; k < n_first; k++) {
        int at = n++;
        for (; at > 0 && s->estimate[first[k]] < s->estimate[s->turn[at - 1]]; at--)
            s->turn[at] = s->turn[at - 1];
        s->turn[at] = first[k];
        has_turn[first[k]] = true;
    }
    while (n < s->n) {
        s->turn[n] = most_promising(s, 0, has_turn);
        has_turn[s->turn[n++]] = true;
    }
}

static smp_status estimate(search *s, int i)
{
    smp_graph *graph;
    smp_search_request request;
    SMP_TRY(open_graph(s, &s->candidate[i], &graph));
    smp_status status = set_request(s, &s->candidate[i], graph, &request);
    if (status == SMP_OK)
        status = smp__plan_estimate(&request, &s->estimate[i]);
    smp_graph_destroy(graph);
    return status;
}

/* First one of each size of group; what the work does not suffice for keeps its place behind. */
static smp_status estimate_all(search *s, double end_s)
{
    for (int i = 0; i < s->n; i++)
        s->estimate[i] = INFINITY;
    for (int others = 0; others < 2; others++)
        for (int i = 0; i < s->n; i++)
            if (is_first_of_size(s, i) != others && !(i > 0 && smp_work_past(end_s)))
                SMP_TRY(estimate(s, i));
    return SMP_OK;
}

/* The most promising splitting of each size of group, with larger micro-batches. */
static smp_status add_sizes(search *s, double end_s)
{
    const bool no_turn[MOST_TRIED] = {false};
    int best[MOST_TRIED], n = 0;
    for (int i = 0; i < s->n; i++)
        if (is_first_of_size(s, i))
            best[n++] = most_promising(s, s->candidate[i].tensor, no_turn);
    for (int k = 0; k < n; k++)
        for (int64_t size = 2; size <= SMP_TENSOR_MOST_SIZE && s->n < MOST_TRIED; size *= 2) {
            if (s->base->options.global_batch % size != 0 || smp_work_past(end_s))
                continue;
            const int i = s->n++;
            s->candidate[i] = s->candidate[best[k]];
            s->candidate[i].size = size;
            s->tried[i] = s->tried[best[k]];
            SMP_TRY(estimate(s, i));
        }
    return SMP_OK;
}

/* All candidates, in turns; as listed where there is no limit. */
static smp_status set_turns(search *s)
{
    const bool limited = s->base->deadline_s > 0.0;
    SMP_TRY(list_candidates(s));
    const double now_s = smp_work_s();
    const double end_s = limited ? now_s + GUESS_SHARE * (s->base->deadline_s - now_s) : 0.0;
    if (s->how->any_size || (limited && s->n > 1))
        SMP_TRY(estimate_all(s, end_s));
    if (s->how->any_size)
        SMP_TRY(add_sizes(s, end_s));
    for (int i = 0; i < s->n; i++)
        s->turn[i] = i;
    if (limited && s->n > 1)
        order_turns(s);
    return SMP_OK;
}

/* How hard to try: to compare, in full, and where nothing fits to say what would. */
typedef enum effort { TRY, PLAN, ADVISE } effort;

/* best: the one to beat, in a trial. */
typedef struct task {
    int candidate, best;
    effort effort;
    double deadline_s;
} task;

static smp_status make_plan(search *s, const smp_search_request *request, const task *t,
                            smp_planner_result *result)
{
    const smp__trial trial = {
        .faster_op = -1,
        .patient = t->best < 0,
        .brief = !s->thorough,
        .most = t->best < 0 ? 0.0 : to_beat(s, &s->tried[t->candidate], &s->tried[t->best]),
        .left_out = &s->tried[t->candidate].slower};
    bool found = false;
    if (t->effort != TRY)
        return smp_plan_make(request, s->model_path, result);
    SMP_TRY(smp__plan_try(request, &trial, result, &found));
    return found ? SMP_OK : SMP_ERR_NO_FIT;
}

static smp_status plan_candidate(search *s, const task *t, smp_tensor_result *out)
{
    const int i = t->candidate;
    const candidate *c = &s->candidate[i];
    smp_tensor_tried *tried = &s->tried[i];
    smp_graph *graph;
    smp_search_request request;
    smp_planner_result result = {0};
    SMP_TRY(open_graph(s, c, &graph));
    smp_status status = set_request(s, c, graph, &request);
    request.deadline_s = t->deadline_s;
    request.advise = t->effort == ADVISE && s->base->advise && !c->rank_begin;
    if (status == SMP_OK)
        status = make_plan(s, &request, t, &result);
    tried->tensor = c->tensor;
    tried->n_split = c->splitting.n_entry;
    if (status != SMP_OK) {
        smp_graph_destroy(graph);
        return status;
    }
    tried->fits = true;
    tried->sample_us = smp_plan_sample_us(&request, result.plan);
    tried->peak_bytes = highest_peak(result.plan);
    out->result = result;
    out->request = request;
    out->graph = graph;
    out->cluster = c->groups;
    return SMP_OK;
}

/* Where what is put off takes too much memory, nothing is. */
static smp_status plan_fitting(search *s, const task *t, smp_tensor_result *out)
{
    smp_splitting *splitting = &s->candidate[t->candidate].splitting;
    smp_status status = plan_candidate(s, t, out);
    if (status != SMP_ERR_NO_FIT || !splitting->overlap ||
        s->how->overlap != SMP_TENSOR_OVERLAP_AUTO)
        return status;
    splitting->overlap = false;
    return plan_candidate(s, t, out);
}

static void drop_plan(smp_tensor_result *result)
{
    smp_planner_result_destroy(&result->result);
    smp_graph_destroy(result->graph);
    result->graph = NULL;
}

/* One more, which becomes the best if it is better. */
static smp_status try_one(search *s, int i, double deadline_s, int *best, smp_tensor_result *out)
{
    smp_tensor_result made = {0};
    const task t = {i, *best, TRY, deadline_s};
    const double begin_s = smp_work_s();
    s->tried[i].looked_at = true;
    smp_status status = plan_fitting(s, &t, &made);
    if (status != SMP_OK && status != SMP_ERR_NO_FIT)
        return status;
    if (status == SMP_ERR_NO_FIT && *best >= 0 && smp_work_past(deadline_s))
        s->tried[i].looked_at = s->tried[i].slower; /* more work might find what fits */
    if (status == SMP_OK && better(s, &s->tried[i], *best < 0 ? NULL : &s->tried[*best])) {
        drop_plan(out);
        *out = made;
        *best = i;
        s->best_s = smp_work_s() - begin_s;
    } else if (status == SMP_OK) {
        drop_plan(&made);
    }
    return SMP_OK;
}

/* All of them while the first part of the work lasts, or all of it where nothing fits so far: until
 * something fits, then what may still be better, as bounds say. *best: which, -1 if nothing fits;
 * its plan is in *out. */
static smp_status try_all(search *s, int *best, smp_tensor_result *out)
{
    const double begin_s = smp_work_s(), limit_s = s->base->deadline_s;
    const double end_s = limit_s > 0.0 ? begin_s + FIRST_SHARE * (limit_s - begin_s) : 0.0;
    *best = -1;
    for (int k = 0; k < s->n; k++) {
        const int i = s->turn[k];
        s->tried[i].tensor = s->candidate[i].tensor;
        s->tried[i].n_split = s->candidate[i].splitting.n_entry;
        s->tried[i].microbatch_size = s->candidate[i].size;
        if (k > 0 && smp_work_past(*best >= 0 ? end_s : limit_s))
            continue;
        const double now_s = smp_work_s();
        SMP_TRY(try_one(s, i, end_s > 0.0 ? now_s + TURN_SHARE * fmax(end_s - now_s, 0.0) : 0.0,
                        best, out));
    }
    return SMP_OK;
}

/* The two most promising splittings of each size, also of those that not all stages can have; in
 * places behind the candidates, which they do not join. */
static smp_status list_options(search *s, double end_s,
                               smp__tensor_option option[SMP__TENSOR_OPTIONS], int *n)
{
    const int n_candidate = s->n, smallest = s->smallest;
    *n = 0;
    for (int tensor = 1; tensor <= s->base->cluster->devices_per_node; tensor *= 2) {
        bool has_turn[MOST_TRIED] = {false};
        if (most_promising(s, tensor, has_turn) < 0 &&
            s->base->cluster->devices_per_node % tensor == 0 && affords(s->base, tensor, end_s))
            SMP_TRY(add_tensor(s, tensor, end_s));
        for (int k = 0; k < 2 && *n < SMP__TENSOR_OPTIONS; k++) {
            const int i = most_promising(s, tensor, has_turn);
            if (i < 0)
                break;
            has_turn[i] = true;
            option[(*n)++] =
                (smp__tensor_option){s->candidate[i].splitting, tensor, s->candidate[i].groups};
        }
    }
    s->n = n_candidate;
    s->smallest = smallest;
    return SMP_OK;
}

static smp_status try_mix(search *s, const smp__tensor_mix *mix, int64_t size, double deadline_s,
                          int *best, smp_tensor_result *out)
{
    const int i = s->n;
    candidate *c = &s->candidate[i];
    if (i == MOST_TRIED || s->n_groups == MOST_TRIED)
        return SMP_OK;
    *c = (candidate){
        .splitting = mix->splitting, .tensor = mix->splitting.devices, .size = size, .mix = mix};
    SMP_TRY(set_ranks(s, mix->rank_begin, mix->stages, mix->ddp, c));
    s->tried[i] = (smp_tensor_tried){.tensor = c->tensor,
                                     .least = mix->least,
                                     .n_split = mix->splitting.n_entry,
                                     .microbatch_size = c->size};
    s->turn[i] = i;
    s->n++;
    smp_status status = try_one(s, i, deadline_s, best, out);
    return status == SMP_ERR_INPUT ? SMP_OK : status; /* splittings that do not go together */
}

/* The best, if its stages differ, with larger micro-batches. */
static smp_status try_mix_sizes(search *s, double end_s, int *best, smp_tensor_result *out)
{
    const smp__tensor_mix *mix = *best >= 0 ? s->candidate[*best].mix : NULL;
    for (int64_t size = mix ? 2 * s->candidate[*best].size : 0;
         mix && s->how->any_size && size <= SMP_TENSOR_MOST_SIZE && !smp_work_past(end_s);
         size *= 2)
        if (s->base->options.global_batch % smp__least_batch_of(s->base, size, mix->ddp).samples ==
            0)
            SMP_TRY(try_mix(s, mix, size, end_s, best, out));
    return SMP_OK;
}

/* What alone may fit is looked at even if no work is left. */
static bool goes_on(int best, double end_s)
{
    return best < 0 || !smp_work_past(end_s);
}

/* Pipelines whose stages differ, where these promise more. What is found by costs alone may need
 * more memory than there is: then what would be found with less. */
static smp_status try_mixes(search *s, int *best, smp_tensor_result *out)
{
    static const double memory_share[] = {0.97, 0.9, 0.8};
    enum { SHARES = sizeof memory_share / sizeof memory_share[0] };
    const double begin_s = smp_work_s(), limit_s = s->base->deadline_s;
    const double end_s = limit_s > 0.0 ? begin_s + MIX_SHARE * (limit_s - begin_s) : 0.0;
    smp__tensor_option option[SMP__TENSOR_OPTIONS];
    smp_search_request base = *s->base;
    int n_option;
    double best_us = INFINITY;
    if (*best >= 0 && out->result.plan->predicted.bubble < MIX_BUBBLE)
        return SMP_OK;
    if (*best >= 0) {
        base.options.microbatch_size = s->candidate[*best].size;
        best_us = s->tried[*best].sample_us;
    }
    SMP_TRY(list_options(s, end_s, option, &n_option));
    for (int k = 0; k < SHARES && goes_on(*best, end_s); k++) {
        int n;
        bool fits = false;
        smp__tensor_mix *mix = SMP_ARENA_NEW(s->arena, smp__tensor_mix, SMP__TENSOR_MIXES);
        if (!mix)
            return SMP_ERR_NO_MEMORY;
        SMP_TRY(smp__tensor_mixes(&base, option, n_option, memory_share[k], best_us, s->arena, mix,
                                  &n));
        for (int i = 0; i < n && goes_on(*best, end_s); i++) {
            SMP_TRY(try_mix(s, &mix[i], base.options.microbatch_size, end_s, best, out));
            fits |= s->tried[s->n - 1].fits || s->tried[s->n - 1].slower;
        }
        if (fits || n == 0)
            break;
    }
    return try_mix_sizes(s, end_s, best, out);
}

/* A plan that was made to be compared is to be used after all. */
static smp_status take_trial(const search *s, smp_tensor_result *out)
{
    smp_plan *plan = out->result.plan;
    plan->model_path = smp_arena_strdup(plan->arena, s->model_path);
    if (!plan->model_path)
        return SMP_ERR_NO_MEMORY;
    return smp_fail_context(smp_verify(plan, out->request.graph), "the plan just made");
}

/* In full, with the rest of the time; what there was before stays if that was better. */
static smp_status improve(search *s, int best, smp_tensor_result *out)
{
    smp_tensor_result made = {0};
    const smp_tensor_tried before = s->tried[best];
    const task t = {best, -1, PLAN, s->base->deadline_s};
    smp_status status = plan_fitting(s, &t, &made);
    if (status == SMP_ERR_NO_FIT)
        return take_trial(s, out);
    SMP_TRY(status);
    if (better(s, &before, &s->tried[best])) {
        drop_plan(&made);
        s->tried[best] = before;
        return take_trial(s, out);
    }
    drop_plan(out);
    *out = made;
    return SMP_OK;
}

/* Does the work that is left make the best so far once more, at least? */
static bool has_time_again(const search *s)
{
    const double limit_s = s->base->deadline_s;
    return limit_s <= 0.0 || limit_s - smp_work_s() > s->best_s;
}

/* May stages have groups of their own sizes? */
static bool mixes(const search *s)
{
    const smp_search_request *r = s->base;
    bool may = s->how->mix && s->how->tensor == 0 && r->options.stages == 0 &&
               r->options.chunks <= 1 && r->options.devices > 2 &&
               r->cluster->devices_per_node > 1 && r->placement == SMP_PLACEMENT_AUTO &&
               r->options.optimize == SMP_OPTIMIZE_SPEED;
    for (int d = 1; may && d < smp_cluster_devices(r->cluster); d++)
        may = smp_devices_alike(&r->cluster->device[0], &r->cluster->device[d]);
    for (int32_t o = 0; may && o < r->graph->n_op; o++)
        may = r->graph->op[o].pin < 0;
    return may;
}

static smp_status search_all(search *s, smp_tensor_result *out)
{
    int best;
    task t = {0, -1, ADVISE, s->base->deadline_s};
    SMP_TRY(set_turns(s));
    if (s->n == 1 && !mixes(s))
        return plan_fitting(s, &t, out);
    SMP_TRY(try_all(s, &best, out));
    if (mixes(s))
        SMP_TRY(try_mixes(s, &best, out));
    s->thorough = best < 0 && smp__looks_at_all(s->base);
    if (s->thorough) /* another partition may fit */
        SMP_TRY(try_all(s, &best, out));
    if (best >= 0)
        return has_time_again(s) ? improve(s, best, out) : take_trial(s, out);
    t.candidate = s->smallest; /* what the largest group would need, with its smallest splitting */
    return plan_fitting(s, &t, out);
}

/* The request's arrays are then those of the graph that was taken. */
static smp_status search_splittings(search *s, smp_tensor_result *out)
{
    SMP_TRY(search_all(s, out));
    return s->how->adapt ? s->how->adapt(s->how->context, &out->request) : SMP_OK;
}

smp_status smp_tensor_plan(const smp_search_request *base, const smp_tensor_request *how,
                           const char *model_path, smp_tensor_result *out)
{
    search s = {.base = base, .how = how, .model_path = model_path, .arena = smp_arena_create()};
    smp_tensor_result result = {0};
    smp_status status = SMP_ERR_NO_MEMORY;
    if (s.arena)
        s.tried = SMP_ARENA_NEW(s.arena, smp_tensor_tried, MOST_TRIED);
    if (s.tried)
        status = search_splittings(&s, &result);
    for (int i = 0; i < s.n_groups; i++)
        if (status != SMP_OK || s.groups[i] != result.cluster)
            smp_cluster_destroy(s.groups[i]);
    result.arena = s.arena;
    result.tried = s.tried;
    result.n_tried = s.n;
    result.largest_left_out = s.largest_left_out;
    if (status == SMP_OK) {
        *out = result;
        return SMP_OK;
    }
    drop_plan(&result);
    smp_arena_destroy(s.arena);
    return status;
}

void smp_tensor_result_destroy(smp_tensor_result *result)
{
    drop_plan(result);
    smp_cluster_destroy(result->cluster);
    smp_arena_destroy(result->arena);
    *result = (smp_tensor_result){0};
}

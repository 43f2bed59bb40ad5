/* The fastest pipeline as a shortest chain of downsets, in the minimax sense.
 *
 * A stage's load depends on nothing but its two borders: f[k + 1][B] is the least over A of
 * max(f[k][A], load of stage k from A to B). Candidates for each border come from the target
 * (exact_levels.c). The search works from both ends towards each other, at each step where fewer
 * pairs remain, and drops what it cannot reach; the last stage joins the two halves, and every
 * pipeline found lowers the target.
 *
 * The loads of all stages that begin at A are found in one walk over the downsets above A: with
 * X(S) the transfers of all nets that cross S, a stage from A to B receives the nets of A that have
 * a reader in B, and sends X(B) - X(A) plus those nets of A of which all readers lie in B. So only
 * nets that cross A change along the walk. Time O(pairs * degree), memory O(downsets). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "partition/problem/evaluate.h"
#include "partition/prove/exact_levels.h"

#define STRICTLY (1.0 - 1e-12) /* what counts as faster */

/* A walk over the stages that begin at one downset. */
typedef struct walk {
    smp__exact_state *state;
    int k; /* stage */
    int32_t source;
    const uint64_t *source_set;
    const double *in_us, *out_us; /* [n_net] */
    const smp__level *target;     /* members that may end the stage */
    double value;                 /* forward: of the source */
    double limit_us;              /* loads of interest are below */
    double work_us, transfer_us;  /* of the source: what loads are counted from */
    int32_t n_stack;
} walk;

/* What the walk knows of a downset once it gets there. */
typedef struct found_stage {
    int32_t downset;
    int32_t slot;
} found_stage;

/* For everything below a target of stage k: the least that a stage with such an end pays for
 * compute and for what crosses its end, whatever it begins with. */
static void find_targets(smp__exact_state *state, int k)
{
    const smp__window *window = state->window;
    const smp__level *level = &state->level[k + 1];
    memset(state->slot, -1, (size_t)state->pool.n * sizeof *state->slot);
    for (int32_t d = 0; d < state->pool.n; d++)
        state->least[d][0] = state->least[d][1] = INFINITY;
    for (int32_t i = 0; i < level->n; i++) {
        const smp__downset *at = &state->pool.at[level->member[i]];
        double *least = state->least[level->member[i]];
        double cross_us = at->cross_us[window->out_cost[k]];
        state->slot[level->member[i]] = i;
        least[0] = window->slowdown[k] * at->work_us + (window->overlap ? 0.0 : cross_us);
        least[1] = window->overlap ? cross_us : 0.0;
    }
    for (int32_t i = level->n_region - 1; i >= 0; i--) {
        const smp__downset *at = &state->pool.at[level->region[i]];
        double *least = state->least[level->region[i]];
        for (int64_t step = at->step_begin; step < at->step_begin + at->n_step; step++) {
            int32_t to = state->pool.step[step].to;
            if (to < 0)
                continue;
            least[0] = fmin(least[0], state->least[to][0]);
            least[1] = fmin(least[1], state->least[to][1]);
        }
    }
    smp__exact_charge(state, state->pool.n / 2 + 2 * (int64_t)level->n_region);
}

static bool set_walk(smp__exact_state *state, int k, walk *w)
{
    const smp__window *window = state->window;
    const smp__level *level = &state->level[k];
    *w = (walk){.state = state,
                .k = k,
                .in_us = window->cost_us[window->in_cost[k]],
                .out_us = window->cost_us[window->out_cost[k]],
                .target = &state->level[k + 1]};
    find_targets(state, k);
    state->n_near = 0;
    for (int32_t net = 0; net < state->units->n_net; net++) {
        if (!smp__set_has(level->possible, state->units->net_unit[net]))
            continue;
        bool ends = true;
        for (int64_t c = state->units->net_begin[net]; c < state->units->net_begin[net + 1]; c++)
            ends &= smp__set_has(level->certain, state->units->net_consumer[c]);
        if (!ends)
            state->near[state->n_near++] = net;
    }
    return smp__exact_charge(state, state->pool.n / 4 + state->units->n_net);
}

static void use_net(const walk *w, int32_t d, int32_t net, bool first, bool last)
{
    smp__exact_state *state = w->state;
    double bytes = (double)state->units->net_bytes[net];
    state->moved_us[d][0] += first ? w->in_us[net] : 0.0;
    state->moved_us[d][1] += last ? w->out_us[net] : 0.0;
    if (state->kept) {
        state->kept[d][0] += first ? bytes : 0.0;
        state->kept[d][1] += last ? bytes : 0.0;
    }
}

/* What a unit weighs that the sums of the pool do not know. `set`: the downset before it is added;
 * NULL: one of many that are added at once. */
static void keep_unit(const walk *w, int32_t d, int32_t unit, const uint64_t *set)
{
    smp__exact_state *state = w->state;
    const smp__units *units = state->units;
    if (!state->kept)
        return;
    state->kept[d][3] = fmax(state->kept[d][3], (double)units->workspace_bytes[unit]);
    for (int64_t h = units->hold_begin[unit]; h < units->hold_begin[unit + 1]; h++) {
        int32_t share = units->hold_share[h];
        bool held = !set && state->share_mark[share] == state->stamp;
        for (int64_t i = units->share_begin[share]; set && i < units->share_begin[share + 1]; i++) {
            int32_t other = units->share_unit[i];
            held |= smp__set_has(set, other) && !smp__set_has(w->source_set, other);
        }
        state->kept[d][2] += held ? 0.0 : (double)units->share_bytes[share];
        if (!set)
            state->share_mark[share] = state->stamp;
    }
}

/* Whether a stage that contains d may still be fast enough. What it has received, and sent on of
 * the nets that it did not make, will not become less. */
static bool may_grow(const walk *w, int32_t d)
{
    const smp__exact_state *state = w->state;
    const double *least = state->least[d];
    double moved_us = state->moved_us[d][0] + state->moved_us[d][1] - w->transfer_us;
    if (!state->window->overlap)
        return least[0] - w->work_us + moved_us < w->limit_us;
    return fmax(least[0] - w->work_us, least[1] + moved_us) < w->limit_us;
}

/* The smallest downset above the source that contains what every target does. */
static int32_t start_walk(walk *w, int32_t source)
{
    smp__exact_state *state = w->state;
    const smp__units *units = state->units;
    uint64_t *set = state->pool.set;
    w->source = source;
    w->source_set = smp__downset_bits(&state->pool, source);
    w->work_us = state->pool.at[source].work_us * state->window->slowdown[w->k];
    w->transfer_us = state->pool.at[source].cross_us[state->window->out_cost[w->k]];
    for (int32_t i = 0; i < state->pool.words; i++)
        set[i] = w->source_set[i] | w->target->certain[i];
    int32_t d = smp__downsets_find(&state->pool, set);
    if (d < 0)
        return -1;
    state->stamp++;
    memset(state->moved_us[d], 0, sizeof state->moved_us[d]);
    if (state->kept)
        memset(state->kept[d], 0, sizeof state->kept[d]);
    for (int32_t i = 0; i < state->n_near; i++) {
        int32_t net = state->near[i];
        if (!smp__net_crosses(units, w->source_set, net))
            continue;
        state->net_mark[net] = state->stamp;
        bool read = false, ends = true;
        for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
            int32_t unit = units->net_consumer[c];
            read |= smp__set_has(set, unit) && !smp__set_has(w->source_set, unit);
            ends &= smp__set_has(set, unit);
        }
        use_net(w, d, net, read, ends);
    }
    for (int32_t i = 0; state->kept && i < state->pool.words; i++) {
        for (uint64_t rest = set[i] & ~w->source_set[i]; rest; rest &= rest - 1)
            keep_unit(w, d, 64 * i + __builtin_ctzll(rest), NULL);
    }
    smp__exact_charge(state, 8 + state->n_near / 4 + state->pool.words / 4);
    return d;
}

/* Downset `to` is `from` and one unit more. */
static void take_step(const walk *w, int32_t from, const smp__step *step)
{
    smp__exact_state *state = w->state;
    const smp__units *units = state->units;
    int32_t to = step->to;
    const uint64_t *set = smp__downset_bits(&state->pool, from);
    memcpy(state->moved_us[to], state->moved_us[from], sizeof state->moved_us[to]);
    if (state->kept)
        memcpy(state->kept[to], state->kept[from], sizeof state->kept[to]);
    for (int64_t e = units->in_begin[step->unit]; e < units->in_begin[step->unit + 1]; e++) {
        int32_t net = units->in_net[e];
        if (state->net_mark[net] != state->stamp)
            continue;
        bool first = true, last = true;
        for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
            int32_t reader = units->net_consumer[c];
            if (reader == step->unit)
                continue;
            if (!smp__set_has(set, reader))
                last = false;
            else if (!smp__set_has(w->source_set, reader))
                first = false;
        }
        use_net(w, to, net, first, last);
    }
    keep_unit(w, to, step->unit, set);
}

/* Load of the stage from the source to d; INFINITY if it does not fit. */
static double load_of(const walk *w, int32_t d)
{
    const smp__exact_state *state = w->state;
    if (d == w->source)
        return 0.0;
    const smp__downset *begin = &state->pool.at[w->source], *end = &state->pool.at[d];
    double slowdown = state->window->slowdown[w->k];
    int out_cost = state->window->out_cost[w->k];
    double work_us = (end->work_us - begin->work_us) * slowdown;
    double out_us = end->cross_us[out_cost] - begin->cross_us[out_cost] + state->moved_us[d][1];
    if (state->kept) {
        const smp_problem *problem = state->window->problem;
        double share, limit = smp__memory_limit(problem, w->k);
        smp__holdings held = {.weight = end->weight_bytes - begin->weight_bytes + state->kept[d][2],
                              .stash = end->stash_bytes - begin->stash_bytes,
                              .workspace = state->kept[d][3],
                              .in = state->kept[d][0],
                              .out = end->cross_bytes - begin->cross_bytes + state->kept[d][1]};
        if (ceil(smp__stage_memory(problem, w->k, &held, limit, &share)) > limit)
            return INFINITY;
        work_us += smp__recompute_part(problem, &state->units->price, share) *
                   (end->forward_us - begin->forward_us) * slowdown;
    }
    double transfer_us = state->moved_us[d][0] + fmax(out_us, 0.0);
    return smp__load_us(state->window->problem->cluster, work_us, transfer_us);
}

/* Walks over all stages that begin at the source; `visit` is told of those below w->limit_us,
 * which it may lower. */
static bool walk_from(walk *w, int32_t source, void (*visit)(walk *, const found_stage *, void *),
                      void *context)
{
    smp__exact_state *state = w->state;
    w->source = source;
    if (state->window->may_be_empty && state->slot[source] >= 0)
        visit(w, &(found_stage){source, state->slot[source]}, context);
    int32_t first = start_walk(w, source);
    if (first < 0)
        return smp__exact_charge(state, 0);
    state->mark[first] = state->stamp;
    state->stack[0] = first;
    w->n_stack = may_grow(w, first) ? 1 : 0;
    int64_t seen = 1;
    while (w->n_stack > 0) {
        int32_t d = state->stack[--w->n_stack];
        found_stage found = {d, state->slot[d]};
        if (found.slot >= 0 && d != source)
            visit(w, &found, context);
        if (!may_grow(w, d)) /* the limit may have become lower */
            continue;
        const smp__downset *at = &state->pool.at[d];
        for (const smp__step *step = &state->pool.step[at->step_begin], *end = step + at->n_step;
             step < end; step++) {
            if (step->to < 0 || state->mark[step->to] == state->stamp ||
                state->least[step->to][0] == INFINITY)
                continue;
            state->mark[step->to] = state->stamp;
            seen++;
            take_step(w, d, step);
            if (may_grow(w, step->to))
                state->stack[w->n_stack++] = step->to;
        }
    }
    return smp__exact_charge(state, 3 * seen);
}

/* Forward: the best way to reach each member of the next level. */
static void visit_forward(walk *w, const found_stage *found, void *context)
{
    (void)context;
    smp__level *level = &w->state->level[w->k + 1];
    if (level->value[found->slot] <= w->value)
        return;
    double value = fmax(w->value, load_of(w, found->downset));
    if (value < w->limit_us && value < level->value[found->slot]) {
        level->value[found->slot] = value;
        level->link[found->slot] = w->source;
    }
}

/* Backward: the best way on from the source. */
typedef struct way_on {
    double value;
    int32_t link;
} way_on;

static void visit_backward(walk *w, const found_stage *found, void *context)
{
    way_on *best = context;
    double behind = w->target->value[found->slot];
    if (behind >= w->limit_us)
        return;
    double value = fmax(behind, load_of(w, found->downset));
    if (value < w->limit_us) {
        *best = (way_on){value, found->downset};
        w->limit_us = value;
    }
}

/* The last pair of levels: both sides are known. */
static void visit_join(walk *w, const found_stage *found, void *context)
{
    (void)context;
    smp__exact_state *state = w->state;
    double behind = w->target->value[found->slot];
    if (behind >= w->limit_us)
        return;
    double value = fmax(fmax(w->value, behind), load_of(w, found->downset));
    if (value < w->limit_us) {
        state->best_us = value;
        state->join_from = w->source;
        state->join_to = found->downset;
        state->cut_us = w->limit_us = value * STRICTLY;
    }
}

static bool go_forward(smp__exact_state *state, int k)
{
    walk w;
    const smp__level *level = &state->level[k];
    if (!set_walk(state, k, &w))
        return false;
    for (int32_t i = 0; i < level->n; i++) {
        w.value = level->value[i];
        w.limit_us = state->cut_us;
        if (!walk_from(&w, level->member[i], visit_forward, NULL))
            return false;
    }
    smp__level_keep_reached(state, &state->level[k + 1]);
    return true;
}

static bool go_backward(smp__exact_state *state, int k)
{
    walk w;
    smp__level *level = &state->level[k];
    if (!set_walk(state, k, &w))
        return false;
    for (int32_t i = 0; i < level->n; i++) {
        way_on best = {INFINITY, -1};
        w.limit_us = state->cut_us;
        if (!walk_from(&w, level->member[i], visit_backward, &best))
            return false;
        level->value[i] = best.value;
        level->link[i] = best.link;
    }
    smp__level_keep_reached(state, level);
    return true;
}

static bool join(smp__exact_state *state, int k)
{
    walk w;
    const smp__level *level = &state->level[k];
    if (!set_walk(state, k, &w))
        return false;
    for (int32_t i = 0; i < level->n; i++) {
        w.value = level->value[i];
        w.limit_us = state->cut_us;
        if (w.value < w.limit_us && !walk_from(&w, level->member[i], visit_join, NULL))
            return false;
    }
    return true;
}

/* False: gave up. */
static bool search_chain(smp__exact_state *state)
{
    int first = 0, last = state->window->n_stage;
    state->level[first].value[0] = state->level[last].value[0] = 0.0;
    for (;;) {
        smp__levels_tighten(state, first, last);
        if (!smp__exact_charge(state, 0))
            return false;
        for (int k = first; k <= last; k++) {
            if (state->level[k].n == 0)
                return true;
        }
        if (last - first == 1) {
            state->join_stage = first;
            return join(state, first);
        }
        double forward = (double)state->level[first].n * state->level[first + 1].n;
        double backward = (double)state->level[last].n * state->level[last - 1].n;
        if (forward <= backward ? !go_forward(state, first) : !go_backward(state, last - 1))
            return false;
        if (forward <= backward)
            first++;
        else
            last--;
    }
}

static int32_t follow(const smp__level *level, int32_t d)
{
    for (int32_t i = 0; i < level->n; i++) {
        if (level->member[i] == d)
            return level->link[i];
    }
    return -1;
}

/* A unit's stage is the number of borders before it. */
static void read_chain(const smp__exact_state *state, int32_t *unit_stage)
{
    memset(unit_stage, 0, (size_t)state->units->n * sizeof *unit_stage);
    for (int way = 0; way < 2; way++) {
        int32_t d = way == 0 ? state->join_from : state->join_to;
        int k = way == 0 ? state->join_stage : state->join_stage + 1;
        for (; k > 0 && k < state->window->n_stage; k += way == 0 ? -1 : 1) {
            const uint64_t *set = smp__downset_bits(&state->pool, d);
            for (int32_t u = 0; u < state->units->n; u++)
                unit_stage[u] += !smp__set_has(set, u);
            d = follow(&state->level[k], d);
        }
    }
}

/* What does not depend on how many downsets there are. */
static smp_status prepare(smp__exact_state *state, const smp__exact_limits *limits)
{
    int K = state->window->n_stage;
    size_t n_net = (size_t)state->units->n_net, n_share = (size_t)state->units->n_share;
    state->max_member_bytes = limits->bytes / 4;
    SMP_TRY(smp__downsets_init(&state->pool, state->window, limits->bytes / 2, state->arena));
    size_t words = (size_t)state->pool.words;
    state->level = SMP_ARENA_NEW(state->arena, smp__level, (size_t)K + 1);
    state->net_mark = SMP_ARENA_NEW(state->arena, int32_t, n_net);
    state->share_mark = SMP_ARENA_NEW(state->arena, int32_t, n_share);
    state->near = SMP_ARENA_NEW(state->arena, int32_t, n_net);
    uint64_t *sets = SMP_ARENA_NEW(state->arena, uint64_t, 2 * words * ((size_t)K + 1));
    if (!state->level || !state->net_mark || !state->share_mark || !state->near || !sets)
        return SMP_ERR_NO_MEMORY;
    for (int k = 0; k <= K; k++) {
        state->level[k].certain = sets + 2 * words * (size_t)k;
        state->level[k].possible = state->level[k].certain + words;
    }
    return SMP_OK;
}

static smp_status prepare_walks(smp__exact_state *state)
{
    size_t n = (size_t)state->pool.n;
    state->mark = SMP_ARENA_NEW(state->arena, int32_t, n);
    state->slot = SMP_ARENA_NEW(state->arena, int32_t, n);
    state->least = smp_arena_alloc(state->arena, n, sizeof *state->least);
    state->stack = SMP_ARENA_NEW(state->arena, int32_t, n);
    state->moved_us = smp_arena_alloc(state->arena, n, sizeof *state->moved_us);
    if (state->units->memory_binds)
        state->kept = smp_arena_alloc(state->arena, n, sizeof *state->kept);
    return state->mark && state->slot && state->least && state->stack && state->moved_us &&
                   (state->kept || !state->units->memory_binds)
               ? SMP_OK
               : SMP_ERR_NO_MEMORY;
}

static bool all_levels(const smp__exact_state *state)
{
    for (int k = 0; k <= state->window->n_stage; k++) {
        if (state->level[k].n == 0)
            return false;
    }
    return true;
}

smp_status smp__exact_search(const smp__window *window, double target_us,
                             const smp__exact_limits *limits, int64_t *work,
                             smp__exact_answer *answer, double *best_us, int32_t *unit_stage)
{
    smp__exact_state state = {.window = window,
                              .units = window->units,
                              .cut_us = target_us * STRICTLY,
                              .work = *work,
                              .next_check = *work,
                              .deadline_s = limits->deadline_s,
                              .best_us = INFINITY,
                              .arena = smp_arena_create()};
    smp_status status = state.arena ? prepare(&state, limits) : SMP_ERR_NO_MEMORY;
    if (status != SMP_OK)
        goto done;
    status = smp__levels_list(&state);
    if (state.pool.starved) /* a plan does not depend on how much memory was left */
        status = SMP_ERR_NO_MEMORY;
    if (status == SMP_OK && !state.limited && !state.late && all_levels(&state)) {
        status = prepare_walks(&state);
        if (status == SMP_OK)
            search_chain(&state);
    }
    if (status != SMP_OK)
        goto done;
    if (state.limited || state.late)
        *answer = state.late ? SMP__EXACT_LATE : SMP__EXACT_LIMIT;
    else
        *answer = isfinite(state.best_us) ? SMP__EXACT_FOUND : SMP__EXACT_NONE;
    if (*answer == SMP__EXACT_FOUND) {
        *best_us = state.best_us;
        read_chain(&state, unit_stage);
    }
    *work = state.work > 0 ? state.work : 0;
done:
    if (state.level)
        smp__levels_free(&state);
    smp__downsets_clear(&state.pool);
    smp_arena_destroy(state.arena);
    return status;
}

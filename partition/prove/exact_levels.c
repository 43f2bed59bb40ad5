/* Candidates are listed from the smallest downset that a border may be, one unit at a time. Those
 * that are too small to be the border stay in the pool: walks lead through them. */
#include "partition/prove/exact_levels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"

enum {
    MAX_ROUNDS = 24,
    CLOCK_WORK = 1 << 16, /* between two looks at the clock */
    MEMBER_BYTES = 3 * sizeof(int32_t) + 2 * sizeof(double)
};

bool smp__exact_charge(smp__exact_state *state, int64_t work)
{
    state->work -= work;
    smp_work_count(SMP_WORK_PROOF, (double)work);
    if (state->work < 0)
        state->limited = true;
    if (state->work < state->next_check) {
        state->next_check = state->work - CLOCK_WORK;
        if (smp_work_past(state->deadline_s))
            state->late = true;
    }
    return !state->limited && !state->late;
}

static bool push(smp__exact_state *state, smp__level *level, int32_t d)
{
    if (level->n == level->capacity) {
        int32_t capacity = level->capacity + level->capacity / 2 + 64;
        state->member_bytes += (size_t)(capacity - level->capacity) * MEMBER_BYTES;
        const bool allowed = state->member_bytes <= state->max_member_bytes;
        int32_t *grown = allowed ? realloc(level->member, (size_t)capacity * sizeof *grown) : NULL;
        if (!grown) {
            state->limited = true;
            if (allowed) {
                smp_fail_memory((size_t)capacity * sizeof *grown);
                state->pool.starved = true;
            }
            return false;
        }
        level->member = grown;
        level->capacity = capacity;
    }
    level->member[level->n++] = d;
    return true;
}

/* Sets of a level as the window has them. False: no downset lies between them. */
static bool bound_level(smp__exact_state *state, int k)
{
    const smp__window *window = state->window;
    smp__level *level = &state->level[k];
    memset(level->certain, 0, (size_t)state->pool.words * sizeof *level->certain);
    memset(level->possible, 0, (size_t)state->pool.words * sizeof *level->possible);
    for (int32_t u = 0; u < state->units->n; u++) {
        bool before = k == window->n_stage || (k > 0 && smp__window_before(window, k, u));
        bool behind = k == 0 || (k < window->n_stage && smp__window_behind(window, k, u));
        if (before && behind)
            return false;
        if (before)
            smp__set_insert(level->certain, u);
        if (!behind)
            smp__set_insert(level->possible, u);
    }
    return window->bottom_us[k] <= window->top_us[k];
}

static bool is_candidate(const smp__exact_state *state, int k, const smp__downset *downset)
{
    const smp__window *window = state->window;
    if (downset->work_us < window->bottom_us[k])
        return false;
    return window->may_be_empty ||
           (downset->size >= k && state->units->n - downset->size >= window->n_stage - k);
}

/* Everything that the window leaves to border k and what lies below it, breadth first. */
static void list_region(smp__exact_state *state, int k)
{
    smp__downsets *pool = &state->pool;
    smp__level *level = &state->level[k];
    double top_us = state->window->top_us[k];
    int32_t first = smp__downsets_add(pool, level->certain);
    if (first < 0)
        state->limited = true;
    if (first < 0 || pool->at[first].work_us > top_us || !push(state, level, first))
        return;
    pool->at[first].listed = k + 1;
    for (int32_t head = 0; head < level->n; head++) {
        int32_t d = level->member[head];
        int64_t begin = pool->at[d].step_begin, end = begin + pool->at[d].n_step;
        double room_us = top_us - pool->at[d].work_us;
        if (!smp__exact_charge(state, 4 + (end - begin) * (2 + pool->words / 16)))
            return;
        for (int64_t i = begin; i < end; i++) {
            int32_t unit = pool->step[i].unit;
            if (!smp__set_has(level->possible, unit) || state->window->work_us[unit] > room_us)
                continue;
            int32_t to = pool->step[i].to >= 0 ? pool->step[i].to : smp__downsets_step(pool, d, i);
            if (to < 0) {
                state->limited = true;
                return;
            }
            if (pool->at[to].listed == k + 1)
                continue;
            pool->at[to].listed = k + 1;
            if (!push(state, level, to))
                return;
        }
    }
}

static smp_status list_level(smp__exact_state *state, int k)
{
    smp__level *level = &state->level[k];
    if (bound_level(state, k))
        list_region(state, k);
    int32_t n = 0;
    level->region = level->member;
    level->n_region = level->n;
    level->member = malloc(((size_t)level->n + 1) * sizeof *level->member);
    for (int32_t i = 0; level->member && i < level->n_region; i++) {
        if (is_candidate(state, k, &state->pool.at[level->region[i]]))
            level->member[n++] = level->region[i];
    }
    level->n = n;
    level->value = malloc(((size_t)n + 1) * sizeof *level->value);
    level->link = malloc(((size_t)n + 1) * sizeof *level->link);
    level->both_us = calloc((size_t)n + 1, sizeof *level->both_us);
    if (!level->member || !level->value || !level->link || !level->both_us)
        return smp_fail_memory((size_t)n * MEMBER_BYTES);
    for (int32_t i = 0; i < n; i++) {
        level->value[i] = INFINITY;
        level->link[i] = -1;
    }
    return SMP_OK;
}

smp_status smp__levels_list(smp__exact_state *state)
{
    for (int k = 0; k <= state->window->n_stage; k++) {
        SMP_TRY(list_level(state, k));
        if (state->limited || state->late || state->level[k].n == 0)
            return SMP_OK;
    }
    return SMP_OK;
}

void smp__levels_free(smp__exact_state *state)
{
    for (int k = 0; k <= state->window->n_stage; k++) {
        free(state->level[k].member);
        free(state->level[k].region);
        free(state->level[k].value);
        free(state->level[k].link);
        free(state->level[k].both_us);
    }
}

/* Sets of a level as its members have them. */
static void sharpen(smp__exact_state *state, smp__level *level)
{
    int32_t words = state->pool.words;
    for (int32_t i = 0; i < level->n; i++) {
        const uint64_t *set = smp__downset_bits(&state->pool, level->member[i]);
        for (int32_t w = 0; w < words; w++) {
            level->certain[w] = i ? level->certain[w] & set[w] : set[w];
            level->possible[w] = i ? level->possible[w] | set[w] : set[w];
        }
    }
    smp__exact_charge(state, (int64_t)level->n * (1 + words / 16));
}

/* Whether a net may cross a border of this level: its producer may be enclosed, and not all its
 * readers surely are. */
static bool may_cross(const smp__units *units, const smp__level *level, int32_t net)
{
    if (!smp__set_has(level->possible, units->net_unit[net]))
        return false;
    for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
        if (!smp__set_has(level->certain, units->net_consumer[c]))
            return true;
    }
    return false;
}

/* Transfers of stage k that `level` pays at its border although the net does not end there. */
static void find_both(smp__exact_state *state, int k, const smp__level *before, smp__level *level)
{
    const smp__window *window = state->window;
    const smp__units *units = state->units;
    const double *in_us = window->cost_us[window->in_cost[k]];
    const double *out_us = window->cost_us[window->out_cost[k]];
    memset(level->both_us, 0, (size_t)level->n * sizeof *level->both_us);
    for (int32_t net = 0; net < units->n_net; net++) {
        if (!may_cross(units, before, net) || !may_cross(units, level, net))
            continue;
        for (int32_t i = 0; i < level->n; i++) {
            if (smp__net_crosses(units, smp__downset_bits(&state->pool, level->member[i]), net))
                level->both_us[i] += in_us[net] + out_us[net];
        }
        smp__exact_charge(state, level->n);
    }
}

static void keep_state(smp__level *level, int32_t *n, int32_t i)
{
    level->member[*n] = level->member[i];
    level->value[*n] = level->value[i];
    level->link[*n] = level->link[i];
    level->both_us[*n] = level->both_us[i];
    (*n)++;
}

/* The two sides of the inequality above; with overlap once for compute and once for transfers. */
typedef struct weights {
    double work, transfer;
} weights;

static double end_of(const smp__exact_state *state, int k, const smp__level *level, int32_t i,
                     weights by)
{
    const smp__downset *at = &state->pool.at[level->member[i]];
    return by.work * state->window->slowdown[k] * at->work_us +
           by.transfer * (at->cross_us[state->window->out_cost[k]] - level->both_us[i]);
}

static double begin_of(const smp__exact_state *state, int k, const smp__level *level, int32_t i,
                       weights by)
{
    const smp__downset *at = &state->pool.at[level->member[i]];
    return by.work * state->window->slowdown[k] * at->work_us -
           by.transfer * at->cross_us[state->window->in_cost[k]];
}

/* Whether a stage k between the two levels rules out members of either. */
static bool tighten_stage(smp__exact_state *state, int k, weights by)
{
    smp__level *before = &state->level[k], *behind = &state->level[k + 1];
    int32_t n_before = 0, n_behind = 0;
    double best_begin = -INFINITY, best_end = INFINITY;
    for (int32_t i = 0; i < before->n; i++)
        best_begin = fmax(best_begin, begin_of(state, k, before, i, by));
    for (int32_t i = 0; i < behind->n; i++) {
        double end = end_of(state, k, behind, i, by);
        if (end - best_begin >= state->cut_us)
            continue;
        best_end = fmin(best_end, end);
        keep_state(behind, &n_behind, i);
    }
    for (int32_t i = 0; i < before->n; i++) {
        if (best_end - begin_of(state, k, before, i, by) < state->cut_us)
            keep_state(before, &n_before, i);
    }
    bool changed = n_before < before->n || n_behind < behind->n;
    smp__exact_charge(state, (before->n + behind->n) / 4);
    before->n = n_before;
    behind->n = n_behind;
    return changed;
}

static bool tighten_once(smp__exact_state *state, int first, int last)
{
    bool changed = false;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = first; i < last; i++) {
            int k = pass == 0 ? i : last - 1 - (i - first);
            if (state->window->overlap) {
                changed |= tighten_stage(state, k, (weights){1.0, 0.0});
                changed |= tighten_stage(state, k, (weights){0.0, 1.0});
            } else {
                changed |= tighten_stage(state, k, (weights){1.0, 1.0});
            }
        }
    }
    return changed;
}

static int64_t count_members(const smp__exact_state *state, int first, int last)
{
    int64_t n = 0;
    for (int k = first; k <= last; k++)
        n += state->level[k].n;
    return n;
}

void smp__levels_tighten(smp__exact_state *state, int first, int last)
{
    for (int64_t n = count_members(state, first, last), old = INT64_MAX; n < old - old / 16;) {
        for (int k = first; k <= last; k++)
            sharpen(state, &state->level[k]);
        for (int k = first; k < last; k++)
            find_both(state, k, &state->level[k], &state->level[k + 1]);
        for (int round = 0; round < MAX_ROUNDS && tighten_once(state, first, last); round++)
            ;
        old = n;
        n = count_members(state, first, last);
    }
    for (int k = first; k <= last; k++)
        sharpen(state, &state->level[k]);
}

void smp__level_keep_reached(smp__exact_state *state, smp__level *level)
{
    int32_t n = 0;
    for (int32_t i = 0; i < level->n; i++) {
        if (level->value[i] < state->cut_us)
            keep_state(level, &n, i);
    }
    level->n = n;
}

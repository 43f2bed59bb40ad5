/* From units to an assembly line, and its least cycle time from both sides.
 *
 * Bounds are destructive (Klein and Scholl, "Computing lower bounds by destructive improvement",
 * EJOR 1999): a cycle time that no assignment keeps is below the least one. Targets halve what is
 * between the bound and the best assignment: first downwards, to find, then upwards, to refute.
 * What gave up is tried again with more effort: from the front, from the back, and without the
 * order, which refutes what is a matter of times alone.
 *
 * What a unit without compute orders its neighbours still keep; it lies with the last of its
 * predecessors, where it costs nothing. A station may be empty here: where units are as many as
 * stages, parts of others fill it and no station gets slower. */
#include "partition/prove/line.h"

#include <math.h>
#include <string.h>

#include "graph/base/divisor.h"

enum { FRONT, BACK, LOOSE, WAYS };

enum {
    MAX_UNITS = 2048,
    FIRST_LOADS = 16, /* of a state, doubled from round to round, */
    MOST_LOADS = 4096,
    ALL_EVERY = 3, /* rounds: then all loads */
    DIVES = 4,     /* from the first station to the last, of the first search */
    LOAD_WORK = 40,
    FINE_BITS = 45 /* of the total, where times are no multiples of a nanosecond */
};

#define NANOSECOND 1e-3

typedef struct line_problem {
    const smp__window *window;
    int n_station;        /* more than tasks are of no use */
    smp__line line[WAYS]; /* from the front, from the back, without order */
    smp__line_search *search[WAYS];
    int32_t *task;           /* [units->n] of each unit, or -1 */
    int32_t *station, *best; /* [line.n] */
    double quantum_us;
    double rounded_us; /* the quantum that times were rounded to */
    int64_t low, high; /* least cycle time not refuted; best found, or that at hand */
    int64_t loose;     /* some assignment keeps this cycle time if order does not matter */
    bool found, late;
    int64_t work;
    smp_arena *arena;
} line_problem;

static uint64_t *row(uint64_t *sets, const smp__line *line, int32_t i)
{
    return sets + (size_t)i * (size_t)line->words;
}

static bool includes(const uint64_t *set, const uint64_t *part, int32_t words)
{
    for (int32_t w = 0; w < words; w++) {
        if (part[w] & ~set[w])
            return false;
    }
    return true;
}

static void find_next(smp__line *line, int32_t i)
{
    uint64_t *next = row(line->next, line, i);
    const uint64_t *behind = row(line->behind, line, i);
    memcpy(next, behind, (size_t)line->words * sizeof *next);
    for (int32_t j = 0; j < line->n; j++) {
        if (!smp__set_has(behind, j))
            continue;
        for (int32_t w = 0; w < line->words; w++)
            next[w] &= ~row(line->behind, line, j)[w];
    }
}

static void find_beating(smp__line *line, int32_t i)
{
    const uint64_t *behind = row(line->behind, line, i);
    for (int32_t j = 0; j < line->n && line->time[j] >= line->time[i]; j++) {
        const uint64_t *other = row(line->behind, line, j);
        if (j == i || !includes(other, behind, line->words))
            continue;
        bool equal = line->time[j] == line->time[i] && includes(behind, other, line->words);
        if (!equal || j < i)
            smp__set_insert(row(line->beating, line, i), j);
    }
}

smp_status smp__line_complete(smp__line *line, smp_arena *arena)
{
    size_t cells = (size_t)line->n * (size_t)line->words;
    line->next = SMP_ARENA_NEW(arena, uint64_t, cells);
    line->beating = SMP_ARENA_NEW(arena, uint64_t, cells);
    if (!line->next || !line->beating)
        return SMP_ERR_NO_MEMORY;
    line->total = 0;
    line->unordered = true;
    for (int32_t i = 0; i < line->n; i++) {
        line->total += line->time[i];
        for (int32_t w = 0; w < line->words; w++)
            line->unordered &= row(line->behind, line, i)[w] == 0;
        find_next(line, i);
        find_beating(line, i);
    }
    return SMP_OK;
}

bool smp__line_applies(const smp__window *window)
{
    const smp__units *units = window->units;
    double moved_us = 0.0;
    if (units->n > MAX_UNITS || units->has_pin || units->memory_binds || window->n_stage < 2 ||
        window->n_stage != window->problem->pipeline || window->total_us <= 0.0)
        return false;
    for (int s = 1; s < window->n_stage; s++) {
        if (window->slowdown[s] != window->slowdown[0])
            return false;
    }
    for (int32_t net = 0; net < units->n_net; net++)
        moved_us += fmax(units->net_us[SMP__LINK_INTRA][net], units->net_us[SMP__LINK_INTER][net]);
    return moved_us * window->n_stage <=
           SMP__LINE_NEGLIGIBLE * window->total_us * window->slowdown[0];
}

/* Nanoseconds, or where times are none, fractions of the total, rounded down: a bound on what is
 * rounded down bounds the rest. */
static int64_t in_quanta(double us, double quantum_us)
{
    return (int64_t)floor(us / quantum_us + (quantum_us == NANOSECOND ? 0.5 : 0.0));
}

static double choose_quantum(const smp__window *window, double slowdown)
{
    double total_us = window->total_us * slowdown;
    bool whole = total_us < NANOSECOND * (double)((int64_t)1 << FINE_BITS);
    for (int32_t u = 0; u < window->units->n && whole; u++) {
        double ns = window->work_us[u] * slowdown / NANOSECOND;
        whole = fabs(ns - floor(ns + 0.5)) <= 1e-4;
    }
    return whole ? NANOSECOND : total_us / (double)((int64_t)1 << FINE_BITS);
}

/* Everything before each unit, as a set of units. */
static uint64_t *close_order(const smp__units *units, smp_arena *arena)
{
    size_t words = ((size_t)units->n + 63) / 64;
    uint64_t *before = SMP_ARENA_NEW(arena, uint64_t, words * (size_t)units->n);
    for (int32_t u = 0; before && u < units->n; u++) {
        uint64_t *set = before + (size_t)u * words;
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
            int32_t from = units->net_unit[units->in_net[e]];
            for (size_t w = 0; w < words; w++)
                set[w] |= before[(size_t)from * words + w];
            smp__set_insert(set, from);
        }
    }
    return before;
}

/* Tasks by falling time. unit: [line.n] */
static void number_tasks(line_problem *p, const int64_t *time, int32_t *unit)
{
    int32_t n = p->window->units->n, count = 0;
    for (int32_t u = 0; u < n; u++) {
        int32_t at = count;
        if (time[u] == 0)
            continue;
        for (; at > 0 && time[unit[at - 1]] < time[u]; at--)
            unit[at] = unit[at - 1];
        unit[at] = u;
        count++;
    }
    for (int32_t i = 0; i < count; i++)
        p->task[unit[i]] = i;
    p->line[FRONT].n = count;
    p->line[FRONT].words = (count + 63) / 64;
}

static void order_tasks(line_problem *p, const uint64_t *before, const int32_t *unit)
{
    size_t words = ((size_t)p->window->units->n + 63) / 64;
    for (int32_t i = 0; i < p->line[FRONT].n; i++) {
        for (int32_t j = 0; j < p->line[FRONT].n; j++) {
            if (!smp__set_has(before + (size_t)unit[i] * words, unit[j]))
                continue;
            smp__set_insert(row(p->line[FRONT].before, &p->line[FRONT], i), j);
            smp__set_insert(row(p->line[FRONT].behind, &p->line[FRONT], j), i);
        }
    }
}

/* Whole times without what divides them all. */
static void reduce(line_problem *p)
{
    int64_t divisor = 0;
    for (int32_t i = 0; i < p->line[FRONT].n; i++)
        divisor = smp_common_divisor(p->line[FRONT].time[i], divisor);
    for (int32_t i = 0; i < p->line[FRONT].n; i++)
        p->line[FRONT].time[i] /= divisor;
    p->rounded_us = p->quantum_us;
    p->quantum_us *= (double)divisor;
}

static smp_status build(line_problem *p)
{
    const smp__window *window = p->window;
    const smp__units *units = window->units;
    size_t n = (size_t)units->n;
    double slowdown = window->slowdown[0];
    int64_t *time = SMP_ARENA_NEW(p->arena, int64_t, n);
    int32_t *unit = SMP_ARENA_NEW(p->arena, int32_t, n);
    uint64_t *before = close_order(units, p->arena);
    p->task = SMP_ARENA_NEW(p->arena, int32_t, n);
    if (!time || !unit || !before || !p->task)
        return SMP_ERR_NO_MEMORY;
    p->quantum_us = choose_quantum(window, slowdown);
    for (int32_t u = 0; u < units->n; u++) {
        time[u] = in_quanta(window->work_us[u] * slowdown, p->quantum_us);
        p->task[u] = -1;
    }
    number_tasks(p, time, unit);
    size_t n_task = (size_t)p->line[FRONT].n, cells = n_task * (size_t)p->line[FRONT].words;
    p->line[FRONT].time = SMP_ARENA_NEW(p->arena, int64_t, n_task);
    p->line[FRONT].before = SMP_ARENA_NEW(p->arena, uint64_t, cells);
    p->line[FRONT].behind = SMP_ARENA_NEW(p->arena, uint64_t, cells);
    p->station = SMP_ARENA_NEW(p->arena, int32_t, n_task);
    p->best = SMP_ARENA_NEW(p->arena, int32_t, n_task);
    if (!p->line[FRONT].time || !p->line[FRONT].before || !p->line[FRONT].behind || !p->station ||
        !p->best)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < p->line[FRONT].n; i++)
        p->line[FRONT].time[i] = time[unit[i]];
    order_tasks(p, before, unit);
    reduce(p);
    p->line[BACK] = p->line[LOOSE] = p->line[FRONT];
    p->line[BACK].before = p->line[FRONT].behind;
    p->line[BACK].behind = p->line[FRONT].before;
    p->line[LOOSE].before = p->line[LOOSE].behind = SMP_ARENA_NEW(p->arena, uint64_t, cells);
    if (!p->line[LOOSE].before)
        return SMP_ERR_NO_MEMORY;
    for (int way = 0; way < WAYS; way++)
        SMP_TRY(smp__line_complete(&p->line[way], p->arena));
    return SMP_OK;
}

/* Takes an assignment over: its slowest station is the best cycle time. */
static void take_stations(line_problem *p, bool mirrored)
{
    int K = p->n_station;
    int64_t slowest = 0;
    for (int32_t i = 0; i < p->line[FRONT].n; i++)
        p->best[i] = mirrored ? K - 1 - p->station[i] : p->station[i];
    for (int k = 0; k < K; k++) {
        int64_t sum = 0;
        for (int32_t i = 0; i < p->line[FRONT].n; i++)
            sum += p->best[i] == k ? p->line[FRONT].time[i] : 0;
        slowest = sum > slowest ? sum : slowest;
    }
    p->high = slowest;
    p->found = true;
}

/* One way. What keeps a cycle time without order is nothing found, only nothing to refute so. */
static smp_status try_way(line_problem *p, int way, int64_t cycle, int round,
                          smp__line_answer *answer)
{
    const smp__line *line = &p->line[way];
    bool all = round % ALL_EVERY == ALL_EVERY - 1;
    int step = round / ALL_EVERY < 12 ? round / ALL_EVERY : 12;
    int64_t loads = FIRST_LOADS << step < MOST_LOADS ? FIRST_LOADS << step : MOST_LOADS;
    int64_t state_work = LOAD_WORK * FIRST_LOADS + 4 * (int64_t)line->n;
    smp__line_effort effort = {.work = (DIVES * p->n_station * state_work) << 2 * step,
                               .max_loads = all ? INT32_MAX : (int32_t)loads,
                               .way = round};
    if (effort.work > p->work)
        effort.work = p->work;
    SMP_TRY(smp__line_search_run(p->search[way], cycle, &effort, &p->work, p->station, answer));
    if (smp__line_search_is_late(p->search[way])) {
        p->late = true;
        p->work = 0;
    }
    if (*answer == SMP__LINE_FOUND && way != LOOSE)
        take_stations(p, way == BACK);
    if (*answer == SMP__LINE_FOUND && way == LOOSE) {
        p->loose = cycle;
        *answer = SMP__LINE_LIMIT;
    }
    return SMP_OK;
}

static smp_status try_cycle(line_problem *p, int64_t cycle, int round, smp__line_answer *answer)
{
    *answer = SMP__LINE_LIMIT;
    for (int way = 0; way < WAYS && *answer == SMP__LINE_LIMIT && p->work > 0; way++) {
        if (way == FRONT || (!p->line[FRONT].unordered && (way == BACK || cycle < p->loose)))
            SMP_TRY(try_way(p, way, cycle, round, answer));
    }
    if (*answer == SMP__LINE_NONE)
        p->low = cycle + 1;
    return SMP_OK;
}

/* Downwards while something is found, then upwards while something is refuted. */
static smp_status search_round(line_problem *p, int round)
{
    smp__line_answer answer;
    int64_t gave_up = INT64_MAX; /* the least */
    for (int64_t low = p->low; low < p->high && p->work > 0;) {
        int64_t cycle = low + (p->high - low) / 2;
        SMP_TRY(try_cycle(p, cycle, round, &answer));
        if (answer == SMP__LINE_LIMIT && cycle < gave_up)
            gave_up = cycle;
        if (answer != SMP__LINE_FOUND)
            low = cycle + 1;
    }
    for (int64_t high = gave_up < p->high ? gave_up : p->high; p->low < high && p->work > 0;) {
        int64_t cycle = p->low + (high - p->low) / 2;
        SMP_TRY(try_cycle(p, cycle, round, &answer));
        if (answer != SMP__LINE_NONE)
            high = cycle;
    }
    return SMP_OK;
}

/* Units without compute lie with the last of their predecessors; empty stages get parts of
 * others. */
static smp_status spread(const line_problem *p, int32_t *unit_stage)
{
    const smp__units *units = p->window->units;
    int K = p->window->n_stage, n_cut = 0;
    int32_t *order = SMP_ARENA_NEW(p->arena, int32_t, (size_t)units->n);
    if (!order)
        return SMP_ERR_NO_MEMORY;
    for (int32_t u = 0; u < units->n; u++) {
        unit_stage[u] = p->task[u] >= 0 ? p->best[p->task[u]] : 0;
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1] && p->task[u] < 0; e++) {
            int32_t from = units->net_unit[units->in_net[e]];
            if (unit_stage[from] > unit_stage[u])
                unit_stage[u] = unit_stage[from];
        }
    }
    for (int k = 0, n = 0; k < K; k++) {
        int first = n;
        for (int32_t u = 0; u < units->n; u++) {
            if (unit_stage[u] == k)
                order[n++] = u;
        }
        n_cut += n > first;
    }
    int stage = 0, spare = K - n_cut; /* stages that hold nothing */
    for (int32_t i = 0, last = unit_stage[order[0]]; i < units->n; i++) {
        int32_t k = unit_stage[order[i]];
        if (i > 0 && (k != last || spare > 0)) {
            spare -= k == last;
            stage++;
        }
        last = k;
        unit_stage[order[i]] = stage;
    }
    return SMP_OK;
}

static smp_status search(line_problem *p, const smp__exact_limits *limits)
{
    for (int way = 0; way < WAYS; way++)
        SMP_TRY(smp__line_search_create(&p->line[way], p->n_station, limits->bytes / WAYS,
                                        limits->deadline_s, &p->search[way]));
    for (int round = 0; p->low < p->high && p->work > 0; round++)
        SMP_TRY(search_round(p, round));
    return SMP_OK;
}

smp_status smp__line_prove(const smp__window *window, double lower_us, double upper_us,
                           const smp__exact_limits *limits, int64_t *work, int32_t *unit_stage,
                           smp__line_result *result)
{
    line_problem p = {.window = window, .work = *work, .arena = smp_arena_create()};
    *result = (smp__line_result){.lower_us = lower_us, .best_us = INFINITY};
    smp_status status = p.arena ? build(&p) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK && p.line[FRONT].n > 0) {
        p.n_station = p.line[FRONT].n < window->n_stage ? p.line[FRONT].n : window->n_stage;
        /* Times were rounded: so far they may add up to less than they are. */
        double rounded_us = p.rounded_us * p.line[FRONT].n;
        p.low = (int64_t)ceil(fmax(lower_us - rounded_us, 0.0) / p.quantum_us * (1.0 - 1e-12));
        p.loose = INT64_MAX;
        p.high = (int64_t)floor(upper_us / p.quantum_us * (1.0 + 1e-12));
        status = search(&p, limits);
        double low_us = (double)p.low * p.quantum_us;
        result->lower_us = fmin(fmax(lower_us, low_us), upper_us);
        result->late = p.late;
        if (status == SMP_OK && p.found) {
            result->best_us = (double)p.high * p.quantum_us;
            status = spread(&p, unit_stage);
        }
        *work = p.work;
    }
    for (int way = 0; way < WAYS; way++)
        smp__line_search_destroy(p.search[way]);
    smp_arena_destroy(p.arena);
    return status;
}

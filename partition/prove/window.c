/* Sums over all predecessors (successors) of each unit: bitsets, a block of columns at a time, that
 * are added up a byte at a time through tables of partial sums. */
#include "partition/prove/window.h"

#include <math.h>
#include <string.h>

enum {
    MAX_EXACT = 24000, /* units; above, the heaviest path stands for all predecessors */
    BLOCK_WORDS = 16,  /* 1024 columns */
    BLOCK_BYTES = BLOCK_WORDS * 8
};

#define ROOM 1e-9 /* of the total compute: far more than rounding, far less than any op */

static void fill_table(const smp__window *window, int32_t first, double (*table)[256])
{
    for (int byte = 0; byte < BLOCK_BYTES; byte++) {
        table[byte][0] = 0.0;
        for (int bit = 0; bit < 8; bit++) {
            int32_t unit = first + 8 * byte + bit;
            double work = unit < window->units->n ? window->work_us[unit] : 0.0;
            for (int value = 0; value < 1 << bit; value++)
                table[byte][(1 << bit) + value] = table[byte][value] + work;
        }
    }
}

static double add_up(const uint64_t *set, double (*table)[256])
{
    double sum = 0.0;
    for (int w = 0; w < BLOCK_WORDS; w++) {
        for (int byte = 0; byte < 8; byte++)
            sum += table[8 * w + byte][set[w] >> (8 * byte) & 255];
    }
    return sum;
}

static void mark_self(uint64_t *set, int32_t unit, int32_t first)
{
    if (unit >= first && unit < first + 64 * BLOCK_WORDS)
        set[(unit - first) / 64] |= (uint64_t)1 << (unit - first) % 64;
}

static void unite(uint64_t *set, const uint64_t *other)
{
    for (int w = 0; w < BLOCK_WORDS; w++)
        set[w] |= other[w];
}

/* Units are numbered topologically: predecessors come first. */
static smp_status sum_exactly(smp__window *window)
{
    const smp__units *units = window->units;
    smp_arena *scratch = smp_arena_create();
    uint64_t(*set)[BLOCK_WORDS] =
        scratch ? smp_arena_alloc(scratch, (size_t)units->n, sizeof *set) : NULL;
    double(*table)[256] = scratch ? smp_arena_alloc(scratch, BLOCK_BYTES, sizeof *table) : NULL;
    if (!set || !table) {
        smp_arena_destroy(scratch);
        return SMP_ERR_NO_MEMORY;
    }
    for (int32_t first = 0; first < units->n; first += 64 * BLOCK_WORDS) {
        fill_table(window, first, table);
        memset(set, 0, (size_t)units->n * sizeof *set);
        for (int32_t u = first; u < units->n; u++) {
            mark_self(set[u], u, first);
            for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++)
                unite(set[u], set[units->net_unit[units->in_net[e]]]);
            window->before_us[u] += add_up(set[u], table);
        }
        int32_t last = units->n - first < 64 * BLOCK_WORDS ? units->n - first : 64 * BLOCK_WORDS;
        memset(set, 0, (size_t)units->n * sizeof *set);
        for (int32_t u = first + last - 1; u >= 0; u--) {
            mark_self(set[u], u, first);
            window->after_us[u] += add_up(set[u], table);
            for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++)
                unite(set[units->net_unit[units->in_net[e]]], set[u]);
        }
    }
    smp_arena_destroy(scratch);
    return SMP_OK;
}

static void sum_paths(smp__window *window)
{
    const smp__units *units = window->units;
    for (int32_t u = 0; u < units->n; u++) {
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++)
            window->before_us[u] =
                fmax(window->before_us[u], window->before_us[units->net_unit[units->in_net[e]]]);
        window->before_us[u] += window->work_us[u];
    }
    for (int32_t u = units->n - 1; u >= 0; u--) {
        window->after_us[u] += window->work_us[u];
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
            int32_t from = units->net_unit[units->in_net[e]];
            window->after_us[from] = fmax(window->after_us[from], window->after_us[u]);
        }
    }
}

/* 0: all links that a stage may use inside a node, 1: between nodes, 2: the cheaper of both. */
static int cost_between(const smp_problem *problem, int stage, int first, int last)
{
    bool used[SMP__N_LINK] = {false};
    for (int k = 0; k < smp_problem_replicas(problem); k++)
        for (int other = first; other < last; other++)
            used[smp__link_between(problem, k, problem->stage_rank[stage],
                                   problem->stage_rank[other])] = true;
    if (used[SMP__LINK_INTRA] && used[SMP__LINK_INTER])
        return 2;
    return used[SMP__LINK_INTER] ? 1 : 0;
}

/* Moves the classes in use to the front. */
static void choose_costs(smp__window *window)
{
    const smp__units *units = window->units;
    int K = window->n_stage;
    bool used[SMP__N_COST] = {false};
    for (int s = 0; s < K; s++) {
        window->in_cost[s] = cost_between(window->problem, s, 0, s);
        window->out_cost[s] = cost_between(window->problem, s, s + 1, K);
        if (s > 0)
            used[window->in_cost[s]] = true;
        if (s < K - 1)
            used[window->out_cost[s]] = true;
    }
    window->exact_links = used[0] + used[1] + used[2] <= 1 && !used[2];
    window->n_cost = window->exact_links ? 1 : SMP__N_COST;
    bool inter = used[1] || used[2], intra = used[0] || used[2] || !inter;
    for (int32_t net = 0; net < units->n_net; net++) {
        double near_us = units->net_us[SMP__LINK_INTRA][net];
        double far_us = units->net_us[SMP__LINK_INTER][net];
        double least = fmin(intra ? near_us : INFINITY, inter ? far_us : INFINITY);
        window->cost_us[0][net] = window->exact_links ? least : near_us;
        window->cost_us[1][net] = far_us;
        window->cost_us[2][net] = window->least_us[net] = least;
    }
    for (int s = 0; s < K && window->exact_links; s++)
        window->in_cost[s] = window->out_cost[s] = 0;
}

static smp_status allocate(smp__window *window, smp_arena *arena)
{
    size_t n = (size_t)window->units->n, n_net = (size_t)window->units->n_net;
    size_t K = (size_t)window->n_stage;
    bool ok = true;
    double **per_unit[] = {&window->work_us, &window->before_us, &window->after_us};
    for (int i = 0; i < 3; i++)
        ok &= (*per_unit[i] = SMP_ARENA_NEW(arena, double, n)) != NULL;
    double **per_border[] = {&window->slowdown,  &window->speed,  &window->slow_head,
                             &window->slow_tail, &window->top_us, &window->bottom_us};
    for (int i = 0; i < 6; i++)
        ok &= (*per_border[i] = SMP_ARENA_NEW(arena, double, K + 1)) != NULL;
    for (int c = 0; c < SMP__N_COST; c++)
        ok &= (window->cost_us[c] = SMP_ARENA_NEW(arena, double, n_net)) != NULL;
    window->least_us = SMP_ARENA_NEW(arena, double, n_net);
    window->in_cost = SMP_ARENA_NEW(arena, int, K);
    window->out_cost = SMP_ARENA_NEW(arena, int, K);
    return ok && window->least_us && window->in_cost && window->out_cost ? SMP_OK
                                                                         : SMP_ERR_NO_MEMORY;
}

smp_status smp__window_init(smp__window *window, const smp_problem *problem,
                            const smp__units *units, smp_arena *arena)
{
    *window = (smp__window){.problem = problem,
                            .units = units,
                            .n_stage = problem->n_stage,
                            .overlap = problem->cluster->overlap};
    SMP_TRY(allocate(window, arena));
    for (int32_t u = 0; u < units->n; u++) {
        window->work_us[u] = smp__unit_work_us(problem, units, u);
        window->total_us += window->work_us[u];
    }
    int K = window->n_stage;
    window->slow_head[0] = window->slow_tail[K] = INFINITY;
    for (int s = 0; s < K; s++) {
        window->slowdown[s] = smp_problem_stage_slowdown(problem, s);
        window->speed[s + 1] = window->speed[s] + 1.0 / window->slowdown[s];
        window->slow_head[s + 1] = fmin(window->slow_head[s], 1.0 / window->slowdown[s]);
    }
    for (int s = K - 1; s >= 0; s--)
        window->slow_tail[s] = fmin(window->slow_tail[s + 1], 1.0 / window->slowdown[s]);
    choose_costs(window);
    if (units->n > MAX_EXACT) {
        sum_paths(window);
        return SMP_OK;
    }
    return sum_exactly(window);
}

void smp__window_set(smp__window *window, double target_us)
{
    int K = window->n_stage;
    double room = ROOM * window->total_us;
    for (int k = 0; k <= K; k++) {
        window->top_us[k] = fmin(target_us * window->speed[k] + room, window->total_us + room);
        window->bottom_us[k] = fmax(
            window->total_us - target_us * (window->speed[K] - window->speed[k]) - room, -room);
    }
    window->top_us[0] = room;
    window->bottom_us[K] = window->total_us - room;
}

/* Downsets in a hash table, found by the sum (exclusive or) of random words of their units. A new
 * one takes over its neighbour's numbers, adjusted by the one unit between them, in O(degree +
 * steps + n / 64). */
#include "partition/prove/downset.h"

#include <stdlib.h>
#include <string.h>

#include "graph/base/random.h"
#include "graph/base/clock.h"

static uint64_t word_of(int32_t unit)
{
    return smp_random_mix((uint64_t)unit * 2 + 1);
}

/* Distinct neighbours of each unit; reading marks them once. */
static smp_status list_neighbours(smp__downsets *pool, smp_arena *arena)
{
    const smp__units *units = pool->units;
    size_t n = (size_t)units->n;
    int32_t *seen = SMP_ARENA_NEW(arena, int32_t, n); /* unit + 1 */
    pool->pred_begin = SMP_ARENA_NEW(arena, int64_t, n + 1);
    pool->pred = SMP_ARENA_NEW(arena, int32_t, (size_t)units->in_begin[units->n]);
    pool->successor_begin = SMP_ARENA_NEW(arena, int64_t, n + 2);
    pool->successor = SMP_ARENA_NEW(arena, int32_t, (size_t)units->in_begin[units->n]);
    if (!seen || !pool->pred_begin || !pool->pred || !pool->successor_begin || !pool->successor)
        return SMP_ERR_NO_MEMORY;
    int64_t edges = 0;
    for (int32_t u = 0; u < units->n; u++) {
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
            int32_t from = units->net_unit[units->in_net[e]];
            if (seen[from] == u + 1)
                continue;
            seen[from] = u + 1;
            pool->pred[edges++] = from;
            pool->successor_begin[from + 2]++;
        }
        pool->pred_begin[u + 1] = edges;
    }
    for (int32_t u = 0; u < units->n; u++)
        pool->successor_begin[u + 2] += pool->successor_begin[u + 1];
    for (int32_t u = 0; u < units->n; u++) {
        for (int64_t e = pool->pred_begin[u]; e < pool->pred_begin[u + 1]; e++)
            pool->successor[pool->successor_begin[pool->pred[e] + 1]++] = u;
    }
    return SMP_OK;
}

smp_status smp__downsets_init(smp__downsets *pool, const smp__window *window, size_t max_bytes,
                              smp_arena *arena)
{
    *pool = (smp__downsets){.window = window,
                            .units = window->units,
                            .words = (window->units->n + 63) / 64,
                            .max_bytes = max_bytes};
    pool->ready = SMP_ARENA_NEW(arena, int32_t, (size_t)pool->units->n);
    pool->set = SMP_ARENA_NEW(arena, uint64_t, (size_t)pool->words);
    if (!pool->ready || !pool->set)
        return SMP_ERR_NO_MEMORY;
    return list_neighbours(pool, arena);
}

void smp__downsets_clear(smp__downsets *pool)
{
    free(pool->bits);
    free(pool->at);
    free(pool->step);
    free(pool->table);
    pool->bits = NULL;
    pool->at = NULL;
    pool->step = NULL;
    pool->table = NULL;
    pool->n = 0;
    pool->n_step = 0;
    pool->capacity = pool->step_capacity = pool->table_size = 0;
}

static size_t bytes_of(const smp__downsets *pool, size_t capacity, size_t steps, size_t table)
{
    size_t each = sizeof *pool->at + (size_t)pool->words * sizeof *pool->bits;
    return capacity * each + steps * sizeof *pool->step + table * sizeof *pool->table;
}

static bool resize(smp__downsets *pool, void *data, size_t count, size_t size)
{
    void *old;
    memcpy(&old, data, sizeof old);
    void *grown = realloc(old, count * size);
    if (!grown) {
        smp_fail_memory(count * size);
        pool->starved = true;
        return false;
    }
    memcpy(data, &grown, sizeof grown);
    return true;
}

static void enter_set(smp__downsets *pool, int32_t d)
{
    size_t mask = pool->table_size - 1;
    size_t slot = pool->at[d].hash & mask;
    while (pool->table[slot] >= 0)
        slot = (slot + 1) & mask;
    pool->table[slot] = d;
}

/* Room for one more downset with up to `steps` steps. False: the pool is full, or starved. */
static bool make_room(smp__downsets *pool, int32_t steps)
{
    size_t n = (size_t)pool->n, need = (size_t)pool->n_step + (size_t)steps;
    size_t capacity = pool->capacity, step_capacity = pool->step_capacity;
    size_t table_size = pool->table_size;
    if (n + 1 > capacity)
        capacity = capacity + capacity / 2 + 256;
    if (need > step_capacity)
        step_capacity = need + need / 2 + 1024;
    if (2 * (n + 1) > table_size)
        table_size = table_size ? 2 * table_size : 1024;
    if (n >= INT32_MAX / 2 || bytes_of(pool, capacity, step_capacity, table_size) > pool->max_bytes)
        return false;
    if (capacity > pool->capacity) {
        if (!resize(pool, &pool->at, capacity, sizeof *pool->at) ||
            !resize(pool, &pool->bits, capacity * (size_t)pool->words, sizeof *pool->bits))
            return false;
        pool->capacity = capacity;
    }
    if (step_capacity > pool->step_capacity) {
        if (!resize(pool, &pool->step, step_capacity, sizeof *pool->step))
            return false;
        pool->step_capacity = step_capacity;
    }
    if (table_size > pool->table_size) {
        if (!resize(pool, &pool->table, table_size, sizeof *pool->table))
            return false;
        pool->table_size = table_size;
        memset(pool->table, -1, table_size * sizeof *pool->table);
        for (int32_t d = 0; d < pool->n; d++)
            enter_set(pool, d);
    }
    return true;
}

static int32_t look_up(const smp__downsets *pool, const uint64_t *set, uint64_t hash)
{
    if (!pool->table_size)
        return -1;
    size_t mask = pool->table_size - 1;
    for (size_t slot = hash & mask; pool->table[slot] >= 0; slot = (slot + 1) & mask) {
        int32_t d = pool->table[slot];
        if (pool->at[d].hash == hash &&
            memcmp(smp__downset_bits(pool, d), set, (size_t)pool->words * sizeof *set) == 0)
            return d;
    }
    return -1;
}

static uint64_t hash_of(const smp__downsets *pool, const uint64_t *set)
{
    uint64_t hash = 0;
    for (int32_t w = 0; w < pool->words; w++) {
        for (uint64_t rest = set[w]; rest; rest &= rest - 1)
            hash ^= word_of(64 * w + __builtin_ctzll(rest));
    }
    return hash;
}

int32_t smp__downsets_find(const smp__downsets *pool, const uint64_t *set)
{
    return look_up(pool, set, hash_of(pool, set));
}

static int32_t store(smp__downsets *pool, const uint64_t *set, const smp__downset *what,
                     int32_t n_ready)
{
    if (!make_room(pool, n_ready))
        return -1;
    int32_t d = pool->n++;
    memcpy(pool->bits + (size_t)d * (size_t)pool->words, set, (size_t)pool->words * sizeof *set);
    pool->at[d] = *what;
    pool->at[d].listed = 0;
    pool->at[d].step_begin = pool->n_step;
    pool->at[d].n_step = n_ready;
    for (int32_t i = 0; i < n_ready; i++)
        pool->step[pool->n_step++] = (smp__step){pool->ready[i], -1};
    enter_set(pool, d);
    pool->work += (uint64_t)n_ready + 4;
    smp_work_count(SMP_WORK_PROOF, 3.0 * (n_ready + 4));
    return d;
}

static bool is_ready(const smp__downsets *pool, const uint64_t *set, int32_t unit)
{
    for (int64_t e = pool->pred_begin[unit]; e < pool->pred_begin[unit + 1]; e++) {
        if (!smp__set_has(set, pool->pred[e]))
            return false;
    }
    return true;
}

static void add_unit(const smp__units *units, const smp__window *window, smp__downset *what,
                     int32_t unit)
{
    what->work_us += window->work_us[unit];
    what->forward_us += units->forward_us[unit];
    what->weight_bytes += (double)units->weight_bytes[unit];
    what->stash_bytes += (double)units->stash_bytes[unit];
    what->size++;
}

static void add_net(const smp__units *units, const smp__window *window, smp__downset *what,
                    int32_t net, double sign)
{
    for (int c = 0; c < window->n_cost; c++)
        what->cross_us[c] += sign * window->cost_us[c][net];
    what->cross_bytes += sign * (double)units->net_bytes[net];
}

int32_t smp__downsets_add(smp__downsets *pool, const uint64_t *set)
{
    const smp__units *units = pool->units;
    smp__downset what = {.hash = hash_of(pool, set)};
    int32_t n_ready = 0, found = look_up(pool, set, what.hash);
    if (found >= 0)
        return found;
    for (int32_t u = 0; u < units->n; u++) {
        if (smp__set_has(set, u))
            add_unit(units, pool->window, &what, u);
        else if (is_ready(pool, set, u))
            pool->ready[n_ready++] = u;
    }
    for (int32_t net = 0; net < units->n_net; net++) {
        if (smp__net_crosses(units, set, net))
            add_net(units, pool->window, &what, net, 1.0);
    }
    pool->work += (uint64_t)units->n;
    return store(pool, set, &what, n_ready);
}

static bool contains_consumers(const smp__units *units, const uint64_t *set, int32_t net)
{
    for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
        if (!smp__set_has(set, units->net_consumer[c]))
            return false;
    }
    return true;
}

int32_t smp__downsets_step(smp__downsets *pool, int32_t d, int64_t i)
{
    const smp__units *units = pool->units;
    int32_t unit = pool->step[i].unit, n_ready = 0;
    uint64_t *set = pool->set;
    smp__downset what = pool->at[d];
    memcpy(set, smp__downset_bits(pool, d), (size_t)pool->words * sizeof *set);
    smp__set_insert(set, unit);
    what.hash ^= word_of(unit);
    pool->work++;
    int32_t found = look_up(pool, set, what.hash);
    if (found < 0) {
        add_unit(units, pool->window, &what, unit);
        for (int64_t e = units->out_begin[unit]; e < units->out_begin[unit + 1]; e++)
            add_net(units, pool->window, &what, units->out_net[e], 1.0);
        for (int64_t e = units->in_begin[unit]; e < units->in_begin[unit + 1]; e++) {
            if (contains_consumers(units, set, units->in_net[e]))
                add_net(units, pool->window, &what, units->in_net[e], -1.0);
        }
        for (int32_t s = 0; s < what.n_step; s++) {
            if (pool->step[what.step_begin + s].unit != unit)
                pool->ready[n_ready++] = pool->step[what.step_begin + s].unit;
        }
        for (int64_t e = pool->successor_begin[unit]; e < pool->successor_begin[unit + 1]; e++) {
            if (is_ready(pool, set, pool->successor[e]))
                pool->ready[n_ready++] = pool->successor[e];
        }
        found = store(pool, set, &what, n_ready);
    }
    if (found >= 0)
        pool->step[i].to = found;
    return found;
}

/* Topological orders. Depth-first orders follow Tarjan 1976 (reverse postorder), without recursion;
 * the others are Kahn's algorithm with different queues. */
#include "partition/problem/order.h"

#include <stdlib.h>
#include <string.h>

#include "graph/base/heap.h"
#include "graph/base/random.h"

/* Priority of a unit under a seed, in [0, 1); by index without one. */
static double priority(const smp__units *units, uint64_t seed, int32_t unit)
{
    if (seed == 0)
        return (double)unit / units->n;
    return (double)(smp_random_mix(seed ^ ((uint64_t)unit << 20)) >> 11) * 0x1p-53;
}

static int32_t *count_inputs(const smp__units *units, smp_arena *scratch)
{
    int32_t *wait = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n);
    for (int32_t u = 0; wait && u < units->n; u++)
        wait[u] = (int32_t)(units->in_begin[u + 1] - units->in_begin[u]);
    return wait;
}

/* Kahn's algorithm; ready units leave in the order of key. */
static smp_status kahn(const smp__units *units, const double *key, smp_arena *scratch,
                       int32_t *order)
{
    int32_t *wait = count_inputs(units, scratch);
    smp_heap heap;
    SMP_TRY(smp_heap_init(&heap, scratch, units->n));
    if (!wait)
        return SMP_ERR_NO_MEMORY;
    for (int32_t u = 0; u < units->n; u++) {
        if (wait[u] == 0)
            smp_heap_set(&heap, u, key[u]);
    }
    for (int32_t n = 0; heap.n > 0; n++) {
        int32_t u = order[n] = smp_heap_pop(&heap);
        for (int64_t o = units->out_begin[u]; o < units->out_begin[u + 1]; o++) {
            int32_t net = units->out_net[o];
            for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
                int32_t v = units->net_consumer[c];
                if (--wait[v] == 0)
                    smp_heap_set(&heap, v, key[v]);
            }
        }
    }
    return SMP_OK;
}

/* Neighbours of every unit as CSR, each list sorted by falling priority where a seed is given. */
typedef struct neighbours {
    int64_t *begin;
    int32_t *unit;
} neighbours;

typedef struct ranked {
    double key;
    int32_t unit;
} ranked;

static int compare_ranked(const void *left, const void *right)
{
    const ranked *a = left, *b = right;
    return a->key != b->key ? (a->key > b->key) - (a->key < b->key) : a->unit - b->unit;
}

/* space: [n] */
static void sort_by_priority(const smp__units *units, uint64_t seed, int32_t *list, int64_t n,
                             ranked *space)
{
    if (n < 2)
        return;
    for (int64_t i = 0; i < n; i++)
        space[i] = (ranked){priority(units, seed, list[i]), list[i]};
    qsort(space, (size_t)n, sizeof *space, compare_ranked);
    for (int64_t i = 0; i < n; i++)
        list[i] = space[i].unit;
}

static smp_status list_neighbours(const smp__units *units, bool forward, uint64_t seed,
                                  smp_arena *scratch, neighbours *out)
{
    int64_t n_edge = units->in_begin[units->n];
    ranked *space = SMP_ARENA_NEW(scratch, ranked, (size_t)n_edge);
    out->begin = SMP_ARENA_NEW(scratch, int64_t, (size_t)units->n + 1);
    out->unit = SMP_ARENA_NEW(scratch, int32_t, (size_t)n_edge);
    if (!space || !out->begin || !out->unit)
        return SMP_ERR_NO_MEMORY;
    int64_t n = 0;
    for (int32_t u = 0; u < units->n; u++) {
        if (forward) {
            for (int64_t o = units->out_begin[u]; o < units->out_begin[u + 1]; o++) {
                int32_t net = units->out_net[o];
                for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++)
                    out->unit[n++] = units->net_consumer[c];
            }
        } else {
            for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++)
                out->unit[n++] = units->net_unit[units->in_net[e]];
        }
        out->begin[u + 1] = n;
        sort_by_priority(units, seed, out->unit + out->begin[u], n - out->begin[u], space);
    }
    return SMP_OK;
}

/* Sources or sinks by priority. */
static int32_t list_roots(const smp__units *units, bool forward, uint64_t seed, ranked *space,
                          int32_t *root)
{
    const int64_t *begin = forward ? units->in_begin : units->out_begin;
    int32_t n = 0;
    for (int32_t u = 0; u < units->n; u++) {
        if (begin[u] == begin[u + 1])
            root[n++] = u;
    }
    if (seed != 0)
        sort_by_priority(units, seed, root, n, space);
    return n;
}

/* Postorder of a depth-first search over predecessors is an order; over successors it is one when
 * read backwards. Roots and children are tried in the order of priority (forward: reversed, so that
 * the first comes first in the end). */
static smp_status depth_first(const smp__units *units, bool forward, uint64_t seed,
                              smp_arena *scratch, int32_t *order)
{
    neighbours next;
    SMP_TRY(list_neighbours(units, forward, seed, scratch, &next));
    size_t n = (size_t)units->n;
    int32_t *root = SMP_ARENA_NEW(scratch, int32_t, n);
    int32_t *path = SMP_ARENA_NEW(scratch, int32_t, n);
    int64_t *at = SMP_ARENA_NEW(scratch, int64_t, n);
    bool *seen = SMP_ARENA_NEW(scratch, bool, n);
    ranked *space = SMP_ARENA_NEW(scratch, ranked, n);
    if (!root || !path || !at || !seen || !space)
        return SMP_ERR_NO_MEMORY;
    for (int32_t u = 0; u < units->n; u++)
        at[u] = forward ? next.begin[u + 1] : next.begin[u];
    int32_t n_root = list_roots(units, forward, seed, space, root), done = 0;
    for (int32_t i = 0; i < n_root; i++) {
        int32_t depth = 0;
        path[depth++] = root[forward ? n_root - 1 - i : i];
        seen[path[0]] = true;
        while (depth > 0) {
            int32_t u = path[depth - 1];
            bool more = forward ? at[u] > next.begin[u] : at[u] < next.begin[u + 1];
            if (!more) {
                depth--;
                order[forward ? units->n - 1 - done : done] = u;
                done++;
                continue;
            }
            int32_t v = next.unit[forward ? --at[u] : at[u]++];
            if (!seen[v]) {
                seen[v] = true;
                path[depth++] = v;
            }
        }
    }
    return SMP_OK;
}

/* Kahn's algorithm with first in, first out. */
static smp_status breadth_first(const smp__units *units, uint64_t seed, smp_arena *scratch,
                                int32_t *order)
{
    double *level = SMP_ARENA_NEW(scratch, double, (size_t)units->n);
    if (!level)
        return SMP_ERR_NO_MEMORY;
    for (int32_t u = 0; u < units->n; u++) {
        level[u] = 0.0;
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
            double from = level[units->net_unit[units->in_net[e]]];
            if (from + 1.0 > level[u])
                level[u] = from + 1.0;
        }
    }
    for (int32_t u = 0; u < units->n; u++)
        level[u] += priority(units, seed, u);
    return kahn(units, level, scratch, order);
}

/* Running the unit makes this many more bytes alive: its outputs, less the inputs it reads last. */
static double growth(const smp__units *units, const int32_t *rest, int32_t u)
{
    double bytes = 0.0;
    for (int64_t o = units->out_begin[u]; o < units->out_begin[u + 1]; o++)
        bytes += (double)units->net_bytes[units->out_net[o]];
    for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
        if (rest[units->in_net[e]] == 1)
            bytes -= (double)units->net_bytes[units->in_net[e]];
    }
    return bytes;
}

/* A unit's growth falls when it becomes the last reader of a net; rest_sum finds that reader. */
static smp_status narrow(const smp__units *units, uint64_t seed, smp_arena *scratch, int32_t *order)
{
    int32_t *wait = count_inputs(units, scratch);
    int32_t *rest = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n_net);
    int64_t *rest_sum = SMP_ARENA_NEW(scratch, int64_t, (size_t)units->n_net);
    smp_heap heap;
    SMP_TRY(smp_heap_init(&heap, scratch, units->n));
    if (!wait || !rest || !rest_sum)
        return SMP_ERR_NO_MEMORY;
    for (int32_t net = 0; net < units->n_net; net++) {
        rest[net] = (int32_t)(units->net_begin[net + 1] - units->net_begin[net]);
        for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++)
            rest_sum[net] += units->net_consumer[c];
    }
    for (int32_t u = 0; u < units->n; u++) {
        if (wait[u] == 0)
            smp_heap_set(&heap, u, growth(units, rest, u) + priority(units, seed, u));
    }
    for (int32_t n = 0; heap.n > 0; n++) {
        int32_t u = order[n] = smp_heap_pop(&heap);
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
            int32_t net = units->in_net[e];
            rest_sum[net] -= u;
            int32_t last = (int32_t)rest_sum[net];
            if (--rest[net] == 1 && wait[last] == 0)
                smp_heap_set(&heap, last, growth(units, rest, last) + priority(units, seed, last));
        }
        for (int64_t o = units->out_begin[u]; o < units->out_begin[u + 1]; o++) {
            int32_t net = units->out_net[o];
            for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
                int32_t v = units->net_consumer[c];
                if (--wait[v] == 0)
                    smp_heap_set(&heap, v, growth(units, rest, v) + priority(units, seed, v));
            }
        }
    }
    return SMP_OK;
}

static smp_status at_random(const smp__units *units, uint64_t seed, smp_arena *scratch,
                            int32_t *order)
{
    double *key = SMP_ARENA_NEW(scratch, double, (size_t)units->n);
    if (!key)
        return SMP_ERR_NO_MEMORY;
    for (int32_t u = 0; u < units->n; u++)
        key[u] = priority(units, seed, u);
    return kahn(units, key, scratch, order);
}

smp_status smp__order_make(const smp__units *units, smp__order_kind kind, uint64_t seed,
                           int32_t *order)
{
    smp_arena *scratch = smp_arena_create();
    if (!scratch)
        return SMP_ERR_NO_MEMORY;
    smp_status status = SMP_OK;
    if (kind == SMP__ORDER_FORWARD || kind == SMP__ORDER_DEMAND) {
        status = depth_first(units, kind == SMP__ORDER_FORWARD, seed, scratch, order);
    } else if (kind == SMP__ORDER_LEVELS) {
        status = breadth_first(units, seed, scratch, order);
    } else if (kind == SMP__ORDER_NARROW) {
        status = narrow(units, seed, scratch, order);
    } else if (kind == SMP__ORDER_RANDOM) {
        status = at_random(units, seed, scratch, order);
    } else {
        for (int32_t u = 0; u < units->n; u++)
            order[u] = u;
    }
    smp_arena_destroy(scratch);
    return status;
}

smp_status smp__order_by_key(const smp__units *units, const double *key, int32_t *order)
{
    smp_arena *scratch = smp_arena_create();
    smp_status status = scratch ? kahn(units, key, scratch, order) : SMP_ERR_NO_MEMORY;
    smp_arena_destroy(scratch);
    return status;
}

smp_status smp__order_by_stage(const smp__units *units, int n_stage, const int32_t *stage,
                               int32_t *order)
{
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_arena *scratch = smp_arena_create();
    if (!scratch)
        return status;
    int32_t *begin = SMP_ARENA_NEW(scratch, int32_t, (size_t)n_stage + 2);
    int32_t *copy = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n);
    if (begin && copy) {
        memcpy(copy, order, (size_t)units->n * sizeof *copy);
        for (int32_t u = 0; u < units->n; u++)
            begin[stage[u] + 2]++;
        for (int k = 0; k < n_stage; k++)
            begin[k + 2] += begin[k + 1];
        for (int32_t i = 0; i < units->n; i++)
            order[begin[stage[copy[i]] + 1]++] = copy[i];
        status = SMP_OK;
    }
    smp_arena_destroy(scratch);
    return status;
}

smp_status smp__order_clamp(const smp__units *units, int n_stage, const int32_t *lo,
                            const int32_t *hi, double shift, int32_t *order)
{
    smp_arena *scratch = smp_arena_create();
    int32_t *stage = scratch ? SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n) : NULL;
    if (!stage) {
        smp_arena_destroy(scratch);
        return SMP_ERR_NO_MEMORY;
    }
    double total = 0.0, before = 0.0;
    for (int32_t u = 0; u < units->n; u++)
        total += units->compute_us[u];
    for (int32_t i = 0; i < units->n; i++) {
        int32_t u = order[i];
        double share = total > 0.0 ? before / total : (double)i / units->n;
        double k = share * n_stage + shift;
        stage[u] = k < lo[u] ? lo[u] : k >= hi[u] ? hi[u] : (int32_t)k;
        before += units->compute_us[u];
    }
    smp_status status = smp__order_by_stage(units, n_stage, stage, order);
    smp_arena_destroy(scratch);
    return status;
}

bool smp__order_is_unique(const smp__units *units)
{
    for (int32_t u = 1; u < units->n; u++) {
        bool follows = false;
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1] && !follows; e++)
            follows = units->net_unit[units->in_net[e]] == u - 1;
        if (!follows)
            return false;
    }
    return true;
}

/* Loads under single moves. A net is charged to every stage that reads it, over the link from its
 * producer's stage, and to the producer's stage over the slowest of these links; so for each net
 * the stages that read it are kept with the number of readers. A move changes the sums of the
 * stages at both ends, and of those that share a net with the unit. Transfers and loads are kept
 * for every replica. */
#include "partition/solve/moves.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_CLASSES = 64,
    MAX_TABLE = 1 << 26 /* entries of a table of stages by something */
};

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Distinct workspaces; beyond MAX_CLASSES neighbours are joined, and count as the larger. */
static smp_status sort_workspaces(smp__moves *m, smp_arena *arena)
{
    const smp__units *units = m->units;
    size_t n = (size_t)units->n;
    m->class_of = SMP_ARENA_NEW(arena, int32_t, n);
    double *value = SMP_ARENA_NEW(arena, double, n);
    if (!m->class_of || !value)
        return SMP_ERR_NO_MEMORY;
    for (size_t u = 0; u < n; u++)
        value[u] = (double)units->workspace_bytes[u];
    qsort(value, n, sizeof *value, by_value);
    size_t n_value = 0;
    for (size_t i = 0; i < n; i++) {
        if (n_value == 0 || value[i] > value[n_value - 1])
            value[n_value++] = value[i];
    }
    size_t join = (n_value + MAX_CLASSES - 1) / MAX_CLASSES;
    m->class_bytes = value;
    for (size_t i = 0; i < n_value; i += join)
        value[m->n_class++] = value[i + join <= n_value ? i + join - 1 : n_value - 1];
    for (size_t u = 0; u < n; u++) {
        int32_t lo = 0, hi = m->n_class - 1;
        while (lo < hi) {
            int32_t mid = lo + (hi - lo) / 2;
            if (value[mid] < (double)units->workspace_bytes[u])
                lo = mid + 1;
            else
                hi = mid;
        }
        m->class_of[u] = lo;
    }
    return SMP_OK;
}

static smp_status describe_stages(smp__moves *m, smp_arena *arena)
{
    const smp_problem *problem = m->problem;
    size_t n = (size_t)m->n_stage * (size_t)m->n_replica;
    m->node = SMP_ARENA_NEW(arena, int32_t, n);
    m->slowdown = SMP_ARENA_NEW(arena, double, n);
    if (!m->node || !m->slowdown)
        return SMP_ERR_NO_MEMORY;
    for (int k = 0; k < m->n_replica; k++) {
        const int *device = &problem->device[(int64_t)k * problem->pipeline];
        for (int s = 0; s < m->n_stage; s++) {
            int rank = problem->stage_rank[s];
            m->slowdown[s * m->n_replica + k] = smp_problem_slowdown(problem, k, rank);
            m->node[k * m->n_stage + s] = device[rank] / problem->cluster->devices_per_node;
        }
    }
    return SMP_OK;
}

static smp_status make_tables(smp__moves *m, smp_arena *arena)
{
    const smp__units *units = m->units;
    size_t n_stage = (size_t)m->n_stage;
    if (units->memory_binds) {
        if ((int64_t)units->n_share * m->n_stage > MAX_TABLE)
            return smp_fail_memory((size_t)units->n_share * n_stage * sizeof *m->holders);
        SMP_TRY(sort_workspaces(m, arena));
        m->holders = SMP_ARENA_NEW(arena, int32_t, (size_t)units->n_share * n_stage);
        m->in_class = SMP_ARENA_NEW(arena, int32_t, (size_t)m->n_class * n_stage);
        if (!m->holders || !m->in_class)
            return SMP_ERR_NO_MEMORY;
    }
    return describe_stages(m, arena);
}

static smp_status make_lists(smp__moves *m, smp_arena *arena)
{
    const smp__units *units = m->units;
    size_t n = (size_t)units->n, n_net = (size_t)units->n_net;
    m->reader_begin = SMP_ARENA_NEW(arena, int64_t, n_net + 1);
    m->n_reader = SMP_ARENA_NEW(arena, int32_t, n_net);
    if (!m->reader_begin || !m->n_reader)
        return SMP_ERR_NO_MEMORY;
    for (size_t net = 0; net < n_net; net++) {
        int64_t most = units->net_begin[net + 1] - units->net_begin[net];
        m->reader_begin[net + 1] = m->reader_begin[net] + (most < m->n_stage ? most : m->n_stage);
    }
    m->reader = SMP_ARENA_NEW(arena, smp__readers, (size_t)m->reader_begin[n_net]);
    if (!m->reader)
        return SMP_ERR_NO_MEMORY;
    for (int d = 0; d < SMP__N_DIRECTION; d++) {
        m->bound[d] = SMP_ARENA_NEW(arena, int32_t, n);
        m->next[d] = SMP_ARENA_NEW(arena, int32_t, n);
        m->previous[d] = SMP_ARENA_NEW(arena, int32_t, n);
        m->head[d] = SMP_ARENA_NEW(arena, int32_t, (size_t)m->n_stage);
        if (!m->bound[d] || !m->next[d] || !m->previous[d] || !m->head[d])
            return SMP_ERR_NO_MEMORY;
    }
    return SMP_OK;
}

smp_status smp__moves_init(smp__moves *moves, const smp_problem *problem, const smp__units *units,
                           smp_arena *arena)
{
    size_t n_stage = (size_t)problem->n_stage, n_replica = (size_t)smp_problem_replicas(problem);
    *moves = (smp__moves){.problem = problem,
                          .units = units,
                          .n_stage = problem->n_stage,
                          .n_replica = (int)n_replica,
                          .scale_us = 1.0};
    moves->stage = SMP_ARENA_NEW(arena, int32_t, (size_t)units->n);
    moves->sum = SMP_ARENA_NEW(arena, smp__stage_sum, n_stage);
    moves->transfer_us = SMP_ARENA_NEW(arena, double, n_stage *n_replica);
    moves->load_us = SMP_ARENA_NEW(arena, double, n_stage *n_replica);
    moves->excess = SMP_ARENA_NEW(arena, double, n_stage);
    moves->rank_us = SMP_ARENA_NEW(arena, double, (size_t)problem->pipeline *n_replica);
    moves->sending = SMP_ARENA_NEW(arena, int, n_replica);
    moves->touched = SMP_ARENA_NEW(arena, bool, n_stage);
    moves->touch_list = SMP_ARENA_NEW(arena, int32_t, n_stage);
    if (!moves->stage || !moves->sum || !moves->transfer_us || !moves->load_us || !moves->excess ||
        !moves->rank_us || !moves->sending || !moves->touched || !moves->touch_list)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(make_tables(moves, arena));
    return make_lists(moves, arena);
}

static void touch(smp__moves *m, int32_t s)
{
    if (m->touched[s])
        return;
    m->touched[s] = true;
    m->touch_list[m->n_touch++] = s;
}

/* As smp__link_between. */
static int link_of(const smp__moves *m, int replica, int32_t from, int32_t to)
{
    const int *rank = m->problem->stage_rank;
    const int32_t *node = &m->node[(int64_t)replica * m->n_stage];
    if (rank[from] == rank[to])
        return SMP__LINK_SAME;
    return node[from] == node[to] ? SMP__LINK_INTRA : SMP__LINK_INTER;
}

/* Charges (sign 1) or uncharges (-1) one stage of a replica for a net that it reads or sends over
 * `link`. Bytes are the same in all replicas. */
static void charge(smp__moves *m, int replica, int32_t s, int32_t net, int link, bool sends,
                   double sign)
{
    if (link == SMP__LINK_SAME)
        return;
    m->transfer_us[s * m->n_replica + replica] += sign * m->units->net_us[link][net];
    if (replica == 0 && m->units->memory_binds) {
        double bytes = sign * (double)m->units->net_bytes[net];
        if (sends)
            m->sum[s].held.out += bytes;
        else
            m->sum[s].held.in += bytes;
    }
    touch(m, s);
}

/* Stage s for a net of stage `from` that it reads. */
static void charge_reader(smp__moves *m, int32_t s, int32_t net, int32_t from, double sign)
{
    for (int k = 0; k < m->n_replica; k++)
        charge(m, k, s, net, link_of(m, k, from, s), false, sign);
}

/* The link of a replica that the producer's stage is charged for. */
static int sending_link(const smp__moves *m, int replica, int32_t net, int32_t from)
{
    const smp__readers *reader = m->reader + m->reader_begin[net];
    int slowest = SMP__LINK_SAME;
    double most_us = -1.0;
    for (int32_t i = 0; i < m->n_reader[net]; i++) {
        int link = link_of(m, replica, from, reader[i].stage);
        if (link != SMP__LINK_SAME && m->units->net_us[link][net] > most_us) {
            slowest = link;
            most_us = m->units->net_us[link][net];
        }
    }
    return slowest;
}

/* Stage `from` for a net that it produces. */
static void charge_sender(smp__moves *m, int32_t net, int32_t from, double sign)
{
    for (int k = 0; k < m->n_replica; k++)
        charge(m, k, from, net, sending_link(m, k, net, from), true, sign);
}

/* All of a net, produced in stage `from`. */
static void charge_net(smp__moves *m, int32_t net, int32_t from, double sign)
{
    const smp__readers *reader = m->reader + m->reader_begin[net];
    for (int32_t i = 0; i < m->n_reader[net]; i++)
        charge_reader(m, reader[i].stage, net, from, sign);
    charge_sender(m, net, from, sign);
    m->work += (m->n_reader[net] + 1) * m->n_replica;
}

/* True if stage s reads the net from now on and did not before. */
static bool add_reader(smp__moves *m, int32_t net, int32_t s)
{
    smp__readers *reader = m->reader + m->reader_begin[net];
    int32_t i = 0, n = m->n_reader[net];
    while (i < n && reader[i].stage != s)
        i++;
    if (i == n) {
        reader[i] = (smp__readers){s, 1};
        m->n_reader[net]++;
        return true;
    }
    reader[i].count++;
    return false;
}

/* True if stage s does not read the net any more. */
static bool remove_reader(smp__moves *m, int32_t net, int32_t s)
{
    smp__readers *reader = m->reader + m->reader_begin[net];
    int32_t i = 0;
    while (reader[i].stage != s)
        i++;
    if (--reader[i].count > 0)
        return false;
    reader[i] = reader[--m->n_reader[net]];
    return true;
}

/* A reader of the net moves. */
static void move_reader(smp__moves *m, int32_t net, int32_t from, int32_t to)
{
    int32_t home = m->stage[m->units->net_unit[net]];
    for (int k = 0; k < m->n_replica; k++)
        m->sending[k] = sending_link(m, k, net, home);
    bool left = remove_reader(m, net, from);
    bool came = add_reader(m, net, to);
    if (left)
        charge_reader(m, from, net, home, -1.0);
    if (came)
        charge_reader(m, to, net, home, 1.0);
    m->work += (m->n_reader[net] + 1) * m->n_replica;
    if (!left && !came)
        return;
    for (int k = 0; k < m->n_replica; k++) {
        int after = sending_link(m, k, net, home);
        if (after == m->sending[k])
            continue;
        charge(m, k, home, net, m->sending[k], true, -1.0);
        charge(m, k, home, net, after, true, 1.0);
    }
}

static void count_unit(smp__moves *m, int32_t u, int32_t s, int sign)
{
    const smp__units *units = m->units;
    smp__stage_sum *sum = &m->sum[s];
    sum->compute_us += sign * units->compute_us[u];
    sum->forward_us += sign * units->forward_us[u];
    sum->n_unit += sign;
    touch(m, s);
    if (!units->memory_binds)
        return;
    sum->held.weight += sign * (double)units->weight_bytes[u];
    sum->held.stash += sign * (double)units->stash_bytes[u];
    for (int64_t h = units->hold_begin[u]; h < units->hold_begin[u + 1]; h++) {
        int32_t share = units->hold_share[h];
        int32_t *holders = &m->holders[(int64_t)share * m->n_stage + s];
        if (*holders == (sign > 0 ? 0 : 1))
            sum->held.weight += sign * (double)units->share_bytes[share];
        *holders += sign;
    }
    m->in_class[(int64_t)s * m->n_class + m->class_of[u]] += sign;
}

static void refresh(smp__moves *m, int32_t s)
{
    const smp_problem *problem = m->problem;
    smp__stage_sum *sum = &m->sum[s];
    double again = smp_problem_recomputes_all(problem) ? 1.0 : 0.0;
    m->excess[s] = 0.0;
    if (m->units->memory_binds) {
        const int32_t *in_class = m->in_class + (int64_t)s * m->n_class;
        int32_t largest = m->n_class - 1;
        while (largest > 0 && in_class[largest] == 0)
            largest--;
        sum->held.workspace = sum->n_unit > 0 ? m->class_bytes[largest] : 0.0;
        double share, limit = smp__memory_limit(problem, s);
        double bytes = smp__stage_memory(problem, s, &sum->held, limit, &share);
        again += smp__recompute_part(problem, &m->units->price, share);
        if (bytes > limit)
            m->excess[s] = bytes / fmax(limit, 0.5) - 1.0;
    }
    double compute_us = sum->compute_us + again * sum->forward_us;
    for (int i = s * m->n_replica; i < (s + 1) * m->n_replica; i++) {
        double us = compute_us * m->slowdown[i];
        m->load_us[i] = smp__load_us(problem->cluster, us, m->transfer_us[i]);
    }
}

static void refresh_touched(smp__moves *m)
{
    for (int i = 0; i < m->n_touch; i++) {
        refresh(m, m->touch_list[i]);
        m->touched[m->touch_list[i]] = false;
    }
    m->n_touch = 0;
}

static void list_add(smp__moves *m, smp__direction d, int32_t u, int32_t s)
{
    int32_t first = m->head[d][s];
    m->next[d][u] = first;
    m->previous[d][u] = -1;
    if (first >= 0)
        m->previous[d][first] = u;
    m->head[d][s] = u;
}

static void list_remove(smp__moves *m, smp__direction d, int32_t u, int32_t s)
{
    int32_t next = m->next[d][u], previous = m->previous[d][u];
    if (next >= 0)
        m->previous[d][next] = previous;
    if (previous >= 0)
        m->next[d][previous] = next;
    else
        m->head[d][s] = next;
}

/* A connection within the stage of u comes (1) or goes (-1). */
static void hold_back(smp__moves *m, smp__direction d, int32_t u, int sign)
{
    int32_t before = m->bound[d][u];
    m->bound[d][u] += sign;
    if (before == 0)
        list_remove(m, d, u, m->stage[u]);
    else if (m->bound[d][u] == 0)
        list_add(m, d, u, m->stage[u]);
}

/* Connections of u with its stage; u itself is in no list. */
static void connect(smp__moves *m, int32_t u, int sign)
{
    const smp__units *units = m->units;
    int32_t s = m->stage[u];
    for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
        int32_t from = units->net_unit[units->in_net[e]];
        if (m->stage[from] != s)
            continue;
        hold_back(m, SMP__LATER, from, sign);
        m->bound[SMP__EARLIER][u] += sign;
    }
    for (int64_t o = units->out_begin[u]; o < units->out_begin[u + 1]; o++) {
        int32_t net = units->out_net[o];
        m->work += units->net_begin[net + 1] - units->net_begin[net];
        for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
            int32_t to = units->net_consumer[c];
            if (m->stage[to] != s)
                continue;
            hold_back(m, SMP__EARLIER, to, sign);
            m->bound[SMP__LATER][u] += sign;
        }
    }
}

void smp__moves_load(smp__moves *m, const int32_t *stage)
{
    const smp__units *units = m->units;
    size_t n = (size_t)units->n, n_stage = (size_t)m->n_stage;
    if (stage != m->stage)
        memcpy(m->stage, stage, n * sizeof *stage);
    memset(m->sum, 0, n_stage * sizeof *m->sum);
    memset(m->transfer_us, 0, n_stage * (size_t)m->n_replica * sizeof *m->transfer_us);
    memset(m->n_reader, 0, (size_t)units->n_net * sizeof *m->n_reader);
    if (units->memory_binds) {
        memset(m->holders, 0, (size_t)units->n_share * n_stage * sizeof *m->holders);
        memset(m->in_class, 0, (size_t)m->n_class * n_stage * sizeof *m->in_class);
    }
    for (int d = 0; d < SMP__N_DIRECTION; d++) {
        memset(m->bound[d], 0, n * sizeof *m->bound[d]);
        for (size_t s = 0; s < n_stage; s++)
            m->head[d][s] = -1;
    }
    for (int32_t u = 0; u < units->n; u++)
        count_unit(m, u, stage[u], 1);
    for (int32_t net = 0; net < units->n_net; net++) {
        int32_t from = units->net_unit[net];
        for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
            int32_t to = units->net_consumer[c];
            add_reader(m, net, stage[to]);
            m->bound[SMP__LATER][from] += stage[to] == stage[from];
            m->bound[SMP__EARLIER][to] += stage[to] == stage[from];
        }
        charge_net(m, net, stage[from], 1.0);
    }
    for (int d = 0; d < SMP__N_DIRECTION; d++) {
        for (int32_t u = units->n - 1; u >= 0; u--) {
            if (m->bound[d][u] == 0)
                list_add(m, (smp__direction)d, u, stage[u]);
        }
    }
    for (int32_t s = 0; s < m->n_stage; s++)
        touch(m, s);
    refresh_touched(m);
    m->work += units->n + units->n_net;
}

void smp__moves_range(const smp__moves *m, int32_t unit, int32_t *lo, int32_t *hi)
{
    const smp__units *units = m->units;
    int32_t least = units->lo[unit], most = units->hi[unit];
    for (int64_t e = units->in_begin[unit]; e < units->in_begin[unit + 1]; e++) {
        int32_t from = m->stage[units->net_unit[units->in_net[e]]];
        least = from > least ? from : least;
    }
    for (int64_t o = units->out_begin[unit]; o < units->out_begin[unit + 1]; o++) {
        int32_t net = units->out_net[o];
        const smp__readers *reader = m->reader + m->reader_begin[net];
        for (int32_t i = 0; i < m->n_reader[net]; i++)
            most = reader[i].stage < most ? reader[i].stage : most;
    }
    *lo = least;
    *hi = most;
}

void smp__moves_apply(smp__moves *m, int32_t unit, int32_t to)
{
    const smp__units *units = m->units;
    int32_t from = m->stage[unit];
    for (int d = 0; d < SMP__N_DIRECTION; d++) {
        if (m->bound[d][unit] == 0)
            list_remove(m, (smp__direction)d, unit, from);
    }
    connect(m, unit, -1);
    count_unit(m, unit, from, -1);
    for (int64_t e = units->in_begin[unit]; e < units->in_begin[unit + 1]; e++)
        move_reader(m, units->in_net[e], from, to);
    for (int64_t o = units->out_begin[unit]; o < units->out_begin[unit + 1]; o++)
        charge_net(m, units->out_net[o], from, -1.0);
    m->stage[unit] = to;
    for (int64_t o = units->out_begin[unit]; o < units->out_begin[unit + 1]; o++)
        charge_net(m, units->out_net[o], to, 1.0);
    count_unit(m, unit, to, 1);
    connect(m, unit, 1);
    for (int d = 0; d < SMP__N_DIRECTION; d++) {
        if (m->bound[d][unit] == 0)
            list_add(m, (smp__direction)d, unit, to);
    }
    refresh_touched(m);
    m->work += units->in_begin[unit + 1] - units->in_begin[unit] + 8;
}

static double most_of(const double *us, int n)
{
    double most = us[0];
    for (int i = 1; i < n; i++)
        most = us[i] > most ? us[i] : most;
    return most;
}

smp__worth smp__moves_worth(smp__moves *m)
{
    const smp_problem *problem = m->problem;
    smp__worth worth = {0};
    int n = m->n_replica;
    memset(m->rank_us, 0, (size_t)problem->pipeline * (size_t)n * sizeof *m->rank_us);
    for (int s = 0; s < m->n_stage; s++) {
        for (int k = 0; k < n; k++)
            m->rank_us[problem->stage_rank[s] * n + k] += m->load_us[s * n + k];
        worth.total_us += most_of(&m->load_us[s * n], n);
        worth.n_empty += m->sum[s].n_unit == 0;
        if (m->excess[s] > worth.excess) {
            worth.excess = m->excess[s];
            worth.worst_stage = s;
        }
    }
    for (int r = 0; r < problem->pipeline; r++) {
        double rank_us = most_of(&m->rank_us[r * n], n), share = rank_us / m->scale_us;
        worth.skew += share * share * share;
        if (rank_us > worth.bottleneck_us) {
            worth.bottleneck_us = rank_us;
            worth.worst_rank = r;
        }
    }
    m->work += (m->n_stage + problem->pipeline) * n;
    return worth;
}

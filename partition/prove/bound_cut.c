/* Lower bounds that know about transfers, by minimum cuts.
 *
 * For a target, the window of a border leaves some units free; a minimum cut among them (a net pays
 * once however many readers it has; predecessors of what is before the border are before it) is the
 * least that must cross there. The cuts of different borders must not charge a net twice: each flow
 * takes the capacity it uses away from the next, so that the flows through a net sum up to at most
 * its cost. A net that crosses any border is paid at least twice, sent and received; so all loads
 * together are at least the compute and twice the flows, and the loads before (after) a border at
 * least the flows there and before (after), twice those that cannot reach across the border. That
 * narrows the windows, and cuts between narrower windows are larger. */
#include "partition/prove/bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"

enum {
    MAX_FREE = 60000, /* units between the two sides of a border */
    MAX_ROUNDS = 4,   /* of narrowing */
    MAX_STEPS = 9,    /* of bisection */
    SOURCE = 0,
    SINK = 1
};

#define WORTH 0.02 /* of the transfers: what a further round has to bring */

struct smp__cuts {
    smp__window *window;
    const smp__units *units;
    smp__network network;
    double *room_us;   /* [n_net] of the cost of each net, not used by a flow yet */
    int32_t *edge;     /* [n_net] of the current flow, or -1 */
    int32_t *edge_net; /* [n_net] nets with an edge */
    int32_t n_edge_net;
    int32_t *node;         /* [n] of the free units */
    smp__side *side;       /* [n] for the current border */
    int32_t *first, *last; /* [n_net] borders that a net may cross; first > last: none */
    double *value_us;      /* [K + 1] of the flow at each border */
    double *before_us; /* [(K + 1)^2] of border j, what it shares with nets that reach border i */
    double *behind_us;
    smp_arena *arena;
};

smp_status smp__cuts_create(smp__window *window, smp__cuts **out)
{
    smp_arena *arena = smp_arena_create();
    smp__cuts *cuts = arena ? SMP_ARENA_NEW(arena, smp__cuts, 1) : NULL;
    if (!cuts)
        goto fail;
    size_t n = (size_t)window->units->n, n_net = (size_t)window->units->n_net;
    size_t K = (size_t)window->n_stage + 1;
    cuts->window = window;
    cuts->units = window->units;
    cuts->arena = arena;
    cuts->room_us = SMP_ARENA_NEW(arena, double, n_net);
    cuts->edge = SMP_ARENA_NEW(arena, int32_t, n_net);
    cuts->edge_net = SMP_ARENA_NEW(arena, int32_t, n_net);
    cuts->node = SMP_ARENA_NEW(arena, int32_t, n);
    cuts->side = SMP_ARENA_NEW(arena, smp__side, n);
    cuts->first = SMP_ARENA_NEW(arena, int32_t, n_net);
    cuts->last = SMP_ARENA_NEW(arena, int32_t, n_net);
    cuts->value_us = SMP_ARENA_NEW(arena, double, K);
    cuts->before_us = SMP_ARENA_NEW(arena, double, K *K);
    cuts->behind_us = SMP_ARENA_NEW(arena, double, K *K);
    if (!cuts->room_us || !cuts->edge || !cuts->edge_net || !cuts->node || !cuts->side ||
        !cuts->first || !cuts->last || !cuts->value_us || !cuts->before_us || !cuts->behind_us ||
        smp__network_init(&cuts->network, (int32_t)(n + n_net + 2)) != SMP_OK)
        goto fail;
    *out = cuts;
    return SMP_OK;
fail:
    smp_arena_destroy(arena);
    return SMP_ERR_NO_MEMORY;
}

void smp__cuts_destroy(smp__cuts *cuts)
{
    if (!cuts)
        return;
    smp__network_free(&cuts->network);
    smp_arena_destroy(cuts->arena);
}

/* Whether a net may cross the border that cuts->side is for. */
static bool may_cross(const smp__cuts *cuts, int32_t net)
{
    const smp__units *units = cuts->units;
    if (cuts->side[units->net_unit[net]] == SMP__SIDE_BEHIND)
        return false;
    for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
        if (cuts->side[units->net_consumer[c]] != SMP__SIDE_BEFORE)
            return true;
    }
    return false;
}

/* Number of free units at a border. */
static int32_t find_sides(smp__cuts *cuts, int border)
{
    int32_t n_free = 0;
    for (int32_t u = 0; u < cuts->units->n; u++) {
        cuts->side[u] = smp__window_side(cuts->window, border, u);
        if (cuts->side[u] == SMP__SIDE_FREE)
            cuts->node[u] = SINK + 1 + n_free++;
    }
    return n_free;
}

static int32_t node_of(const smp__cuts *cuts, int32_t unit)
{
    return cuts->side[unit] == SMP__SIDE_FREE     ? cuts->node[unit]
           : cuts->side[unit] == SMP__SIDE_BEFORE ? SOURCE
                                                  : SINK;
}

/* A net is an edge from its producer to its only reader, or to a node that all readers follow
 * without bound; readers lead back to the producer without bound. Readers that are surely before
 * the border do not matter; one that is surely after it is all that does. *n_node grows. */
static smp_status add_net(smp__cuts *cuts, int32_t net, int32_t *n_node)
{
    const smp__units *units = cuts->units;
    const double unbounded = SMP__UNBOUNDED;
    int32_t from = node_of(cuts, units->net_unit[net]), n_free = 0, reader = SINK;
    bool behind = false;
    for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
        int32_t unit = units->net_consumer[c];
        behind |= cuts->side[unit] == SMP__SIDE_BEHIND;
        if (cuts->side[unit] == SMP__SIDE_FREE) {
            reader = cuts->node[unit];
            n_free++;
        }
    }
    if (n_free == 0 && !behind)
        return SMP_OK;
    cuts->edge_net[cuts->n_edge_net++] = net;
    bool back = from != SOURCE;
    if (n_free == 1 && !behind)
        return smp__network_add(&cuts->network, from, reader, cuts->room_us[net],
                                back ? unbounded : 0.0, &cuts->edge[net]);
    int32_t to = behind ? SINK : (*n_node)++;
    if (to >= cuts->network.n_node) {
        cuts->network.n_node = to + 1;
        cuts->network.first[to] = -1;
    }
    SMP_TRY(smp__network_add(&cuts->network, from, to, cuts->room_us[net], 0.0, &cuts->edge[net]));
    for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
        int32_t unit = units->net_consumer[c];
        if (cuts->side[unit] != SMP__SIDE_FREE)
            continue;
        if (!behind)
            SMP_TRY(smp__network_add(&cuts->network, to, cuts->node[unit], unbounded, 0.0, NULL));
        if (back)
            SMP_TRY(smp__network_add(&cuts->network, cuts->node[unit], from, unbounded, 0.0, NULL));
    }
    return SMP_OK;
}

/* Takes what the flow uses from the nets, and notes which borders it shares them with. */
static void use_flow(smp__cuts *cuts, int border)
{
    size_t K = (size_t)cuts->window->n_stage + 1;
    double *before = cuts->before_us + (size_t)border * K;
    double *behind = cuts->behind_us + (size_t)border * K;
    for (int32_t i = 0; i < cuts->n_edge_net; i++) {
        int32_t net = cuts->edge_net[i];
        double used = cuts->room_us[net] - cuts->network.edge[cuts->edge[net]].room;
        if (used <= 0.0)
            continue;
        cuts->room_us[net] = fmax(cuts->room_us[net] - used, 0.0);
        behind[cuts->last[net]] += used;
        before[cuts->first[net]] += used;
    }
}

static smp_status cut_border(smp__cuts *cuts, int border, int64_t *work)
{
    const smp__units *units = cuts->units;
    int32_t n_free = find_sides(cuts, border), n_node = SINK + 1 + n_free;
    cuts->value_us[border] = 0.0;
    *work -= units->n / 4;
    if (n_free > MAX_FREE || *work <= 0)
        return SMP_OK;
    smp__network_reset(&cuts->network, n_node);
    cuts->n_edge_net = 0;
    for (int32_t net = 0; net < units->n_net; net++) {
        if (cuts->first[net] <= border && border <= cuts->last[net])
            SMP_TRY(add_net(cuts, net, &n_node));
    }
    *work -= units->n_net / 4;
    cuts->value_us[border] = smp__network_run(&cuts->network, SOURCE, SINK, work);
    use_flow(cuts, border);
    return SMP_OK;
}

/* The borders that each net may cross. */
static void find_ranges(smp__cuts *cuts)
{
    for (int32_t net = 0; net < cuts->units->n_net; net++) {
        cuts->first[net] = cuts->window->n_stage;
        cuts->last[net] = 0;
    }
    for (int border = 1; border < cuts->window->n_stage; border++) {
        find_sides(cuts, border);
        for (int32_t net = 0; net < cuts->units->n_net; net++) {
            if (!may_cross(cuts, net))
                continue;
            if (border < cuts->first[net])
                cuts->first[net] = border;
            cuts->last[net] = border;
        }
    }
}

static smp_status cut_all(smp__cuts *cuts, smp__cut_limits *limits)
{
    int K = cuts->window->n_stage;
    size_t cells = ((size_t)K + 1) * ((size_t)K + 1);
    memset(cuts->before_us, 0, cells * sizeof *cuts->before_us);
    memset(cuts->behind_us, 0, cells * sizeof *cuts->behind_us);
    memcpy(cuts->room_us, cuts->window->least_us,
           (size_t)cuts->units->n_net * sizeof *cuts->room_us);
    find_ranges(cuts);
    limits->work -= (int64_t)(K - 1) * (cuts->units->n + 2 * cuts->units->n_net) / 4;
    for (int border = 1; border < K; border++) {
        if (smp_work_past(limits->deadline_s))
            limits->work = 0;
        SMP_TRY(cut_border(cuts, border, &limits->work));
    }
    return SMP_OK;
}

/* Transfers that the stages before a border pay at least: its flow once; flows further before
 * twice, but once where a net may reach this border as well. */
static double paid_before(const smp__cuts *cuts, int border)
{
    size_t K = (size_t)cuts->window->n_stage + 1;
    double sum = cuts->value_us[border];
    for (int j = 1; j < border; j++) {
        double shared = 0.0;
        for (size_t last = (size_t)border; last < K; last++)
            shared += cuts->behind_us[(size_t)j * K + last];
        sum += fmax(cuts->value_us[j], 2.0 * cuts->value_us[j] - shared);
    }
    return sum;
}

static double paid_behind(const smp__cuts *cuts, int border)
{
    size_t K = (size_t)cuts->window->n_stage + 1;
    double sum = cuts->value_us[border];
    for (int j = border + 1; j < cuts->window->n_stage; j++) {
        double shared = 0.0;
        for (int first = 0; first <= border; first++)
            shared += cuts->before_us[(size_t)j * K + (size_t)first];
        sum += fmax(cuts->value_us[j], 2.0 * cuts->value_us[j] - shared);
    }
    return sum;
}

/* What a target leaves for transfers beside compute, and what they are at least. */
static bool is_refuted(const smp__cuts *cuts, double target_us, double *paid_us)
{
    const smp__window *window = cuts->window;
    int K = window->n_stage;
    double room = 1e-9 * fmax(window->total_us, target_us);
    *paid_us = 0.0;
    for (int border = 1; border < K; border++)
        *paid_us += 2.0 * cuts->value_us[border];
    if (window->overlap)
        return *paid_us > K * target_us + room;
    return window->total_us + window->slow_head[K] * *paid_us > target_us * window->speed[K] + room;
}

/* False: a window is empty. */
static bool narrow_windows(smp__cuts *cuts, double target_us)
{
    smp__window *window = cuts->window;
    int K = window->n_stage;
    double room = 1e-9 * window->total_us;
    for (int border = 1; border < K; border++) {
        double before = paid_before(cuts, border), behind = paid_behind(cuts, border);
        if (window->overlap) {
            double limit = 1e-9 * target_us;
            if (before > border * target_us + limit || behind > (K - border) * target_us + limit)
                return false;
            continue;
        }
        double top = target_us * window->speed[border] - window->slow_head[border] * before + room;
        double bottom = window->total_us - target_us * (window->speed[K] - window->speed[border]) +
                        window->slow_tail[border] * behind - room;
        window->top_us[border] = fmin(window->top_us[border], top);
        window->bottom_us[border] = fmax(window->bottom_us[border], bottom);
        if (window->bottom_us[border] > window->top_us[border])
            return false;
    }
    return true;
}

smp_status smp__cuts_narrow(smp__cuts *cuts, double target_us, smp__cut_limits *limits,
                            bool *refuted)
{
    smp__window *window = cuts->window;
    double paid_us = 0.0;
    smp__window_set(window, target_us);
    *refuted = false;
    for (int border = 1; border < window->n_stage && !*refuted; border++)
        *refuted = window->bottom_us[border] > window->top_us[border];
    for (int round = 0; round < MAX_ROUNDS && !*refuted && limits->work > 0; round++) {
        double before_us = paid_us;
        SMP_TRY(cut_all(cuts, limits));
        *refuted = is_refuted(cuts, target_us, &paid_us) || !narrow_windows(cuts, target_us);
        if (paid_us <= before_us * (1.0 + WORTH))
            break;
    }
    return SMP_OK;
}

smp_status smp__bound_by_cuts(smp__cuts *cuts, double low_us, double high_us,
                              smp__cut_limits *limits, double *bound_us)
{
    *bound_us = low_us;
    for (int step = 0; step < MAX_STEPS && limits->work > 0; step++) {
        double target_us = 0.5 * (*bound_us + high_us);
        bool refuted;
        SMP_TRY(smp__cuts_narrow(cuts, target_us, limits, &refuted));
        if (refuted)
            *bound_us = target_us;
        else
            high_us = target_us;
    }
    return SMP_OK;
}

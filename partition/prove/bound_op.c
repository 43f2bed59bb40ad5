/* The least load of a stage that holds a given unit: over all sets S with the unit, compute of S
 * plus the nets that lead into or out of S, once each. That is a minimum cut between the unit and a
 * sink to which every unit leads with its compute; a net is cut if it has units on both sides (as
 * in Lawler, "Cutsets and partitions of hypergraphs", Networks 1973). Connected, legal or not,
 * every stage is such a set. */
#include "partition/prove/bound.h"

#include <math.h>
#include <stdlib.h>

#include "graph/base/clock.h"

enum {
    MAX_FLOWS = 12, /* units looked at: those that might pay most */
    MAX_SIZE = 20000
};

typedef struct op_cuts {
    const smp__window *window;
    smp__network network;
    double scale;    /* of compute and of transfers: with overlap their mean is below the larger */
    double *most_us; /* [n] load of a stage with the unit alone */
} op_cuts;

/* The fastest rank that may hold the unit. */
static double slowdown_of(const smp__window *window, int32_t unit)
{
    double slowdown = INFINITY;
    for (int32_t s = window->units->lo[unit]; s <= window->units->hi[unit]; s++)
        slowdown = fmin(slowdown, window->slowdown[s]);
    return slowdown;
}

static void load_alone(op_cuts *cuts)
{
    const smp__units *units = cuts->window->units;
    for (int32_t u = 0; u < units->n; u++)
        cuts->most_us[u] = cuts->window->work_us[u] * slowdown_of(cuts->window, u);
    for (int32_t net = 0; net < units->n_net; net++) {
        cuts->most_us[units->net_unit[net]] += cuts->window->least_us[net];
        for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++)
            cuts->most_us[units->net_consumer[c]] += cuts->window->least_us[net];
    }
    for (int32_t u = 0; u < units->n; u++)
        cuts->most_us[u] *= cuts->scale;
}

/* Nodes: units, the sink, then two for each net with several readers. */
static smp_status add_nets(op_cuts *cuts, int32_t *n_node)
{
    const smp__units *units = cuts->window->units;
    const double unbounded = SMP__UNBOUNDED;
    for (int32_t net = 0; net < units->n_net; net++) {
        int64_t begin = units->net_begin[net], end = units->net_begin[net + 1];
        double us = cuts->scale * cuts->window->least_us[net];
        int32_t from = units->net_unit[net];
        if (us <= 0.0)
            continue;
        if (end - begin == 1) {
            SMP_TRY(
                smp__network_add(&cuts->network, from, units->net_consumer[begin], us, us, NULL));
            continue;
        }
        int32_t in = (*n_node)++, out = (*n_node)++;
        SMP_TRY(smp__network_add(&cuts->network, in, out, us, 0.0, NULL));
        for (int64_t c = begin - 1; c < end; c++) {
            int32_t unit = c < begin ? from : units->net_consumer[c];
            SMP_TRY(smp__network_add(&cuts->network, unit, in, unbounded, 0.0, NULL));
            SMP_TRY(smp__network_add(&cuts->network, out, unit, unbounded, 0.0, NULL));
        }
    }
    return SMP_OK;
}

static smp_status cut_unit(op_cuts *cuts, int32_t unit, int64_t *work, double *load_us)
{
    const smp__units *units = cuts->window->units;
    int32_t sink = units->n, n_node = units->n + 1;
    double slowdown = cuts->scale * slowdown_of(cuts->window, unit);
    smp__network_reset(&cuts->network, units->n + 1 + 2 * units->n_net);
    SMP_TRY(add_nets(cuts, &n_node));
    for (int32_t u = 0; u < units->n; u++) {
        if (u != unit)
            SMP_TRY(smp__network_add(&cuts->network, u, sink, slowdown * cuts->window->work_us[u],
                                     0.0, NULL));
    }
    cuts->network.n_node = n_node;
    *work -= cuts->network.n_edge / 2;
    *load_us =
        slowdown * cuts->window->work_us[unit] + smp__network_run(&cuts->network, unit, sink, work);
    return SMP_OK;
}

smp_status smp__bound_by_op_cuts(const smp__window *window, double known_us,
                                 smp__cut_limits *limits, double *bound_us)
{
    const smp__units *units = window->units;
    *bound_us = known_us;
    if (units->n > MAX_SIZE || window->n_stage < 2)
        return SMP_OK;
    op_cuts cuts = {.window = window, .scale = window->overlap ? 0.5 : 1.0};
    smp_arena *arena = smp_arena_create();
    smp_status status = arena ? smp__network_init(&cuts.network, units->n + 1 + 2 * units->n_net)
                              : SMP_ERR_NO_MEMORY;
    cuts.most_us = arena ? SMP_ARENA_NEW(arena, double, (size_t)units->n) : NULL;
    if (status == SMP_OK && !cuts.most_us)
        status = SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        load_alone(&cuts);
    for (int i = 0; i < MAX_FLOWS && status == SMP_OK && limits->work > 0; i++) {
        int32_t unit = 0;
        double load_us = 0.0;
        for (int32_t u = 1; u < units->n; u++) {
            if (cuts.most_us[u] > cuts.most_us[unit])
                unit = u;
        }
        if (cuts.most_us[unit] <= *bound_us || smp_work_past(limits->deadline_s))
            break;
        cuts.most_us[unit] = 0.0;
        status = cut_unit(&cuts, unit, &limits->work, &load_us);
        if (status == SMP_OK)
            *bound_us = fmax(*bound_us, load_us);
    }
    smp__network_free(&cuts.network);
    smp_arena_destroy(arena);
    return status;
}

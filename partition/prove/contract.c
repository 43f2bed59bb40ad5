/* Units without compute, joined to a neighbour. Let all links be alike, memory not bind, and no
 * pins stand.
 *
 * To the unit before: let f compute nothing and read one net t alone, made by P. Moved into P's
 * stage, what it makes is charged there, and t no longer where f was; its readers receive as
 * before. Nothing is lost if f makes nothing that is charged; nor if all readers of t are such
 * units, what they make is charged no more than t in all, and all move: P's stage paid for t if one
 * of them lay elsewhere, and a stage with readers of what they make either held one of them, and
 * received t, or receives what it did before.
 *
 * To the unit after: let f make one net u with one reader C, and what f reads be charged no more
 * than u in all. Moved into C's stage it takes along what it reads, and u is sent no more.
 *
 * A stage may be left without a unit by this: what is searched then has at most n_stage stages. No
 * unit moves both ways; units that move to one that moves go along, and pay no more for that. */
#include "partition/prove/contract.h"

#include "graph/base/sets.h"

typedef struct joining {
    const smp__units *units;
    const double *charge_us; /* [n_net] */
    int32_t *parent;         /* [n] sets of units */
    bool *moves;             /* [n] */
    bool joined;             /* some */
} joining;

static bool is_free(const joining *j, int32_t unit)
{
    return j->units->compute_us[unit] == 0.0 && j->units->forward_us[unit] == 0.0;
}

static double made_us(const joining *j, int32_t unit)
{
    double sum = 0.0;
    for (int64_t e = j->units->out_begin[unit]; e < j->units->out_begin[unit + 1]; e++)
        sum += j->charge_us[j->units->out_net[e]];
    return sum;
}

static double read_us(const joining *j, int32_t unit)
{
    double sum = 0.0;
    for (int64_t e = j->units->in_begin[unit]; e < j->units->in_begin[unit + 1]; e++)
        sum += j->charge_us[j->units->in_net[e]];
    return sum;
}

static void move_unit(joining *j, int32_t unit, int32_t to)
{
    smp_set_join(j->parent, unit, to);
    j->moves[unit] = j->joined = true;
}

/* Free, and reads nothing but this net. */
static bool follows(const joining *j, int32_t unit)
{
    return is_free(j, unit) && j->units->in_begin[unit + 1] - j->units->in_begin[unit] == 1;
}

static void join_readers(joining *j, int32_t net)
{
    const smp__units *units = j->units;
    double sum = 0.0;
    bool all = true;
    for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
        all = all && follows(j, units->net_consumer[c]);
        sum += made_us(j, units->net_consumer[c]);
    }
    all = all && sum <= j->charge_us[net];
    for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++) {
        int32_t reader = units->net_consumer[c];
        if (all || (follows(j, reader) && made_us(j, reader) == 0.0))
            move_unit(j, reader, units->net_unit[net]);
    }
}

static void join_maker(joining *j, int32_t net)
{
    const smp__units *units = j->units;
    int32_t maker = units->net_unit[net];
    if (j->moves[maker] || !is_free(j, maker) ||
        units->out_begin[maker + 1] - units->out_begin[maker] != 1 ||
        units->net_begin[net + 1] - units->net_begin[net] != 1)
        return;
    if (read_us(j, maker) <= j->charge_us[net])
        move_unit(j, maker, units->net_consumer[units->net_begin[net]]);
}

/* Every rank reaches every other one by links of one class. */
static bool find_link(const smp_problem *problem, smp__link *link)
{
    *link = SMP__LINK_SAME;
    for (int k = 0; k < smp_problem_replicas(problem); k++)
        for (int a = 0; a < problem->pipeline; a++)
            for (int b = 0; b < a; b++) {
                smp__link here = smp__link_between(problem, k, a, b);
                if (*link != SMP__LINK_SAME && here != *link)
                    return false;
                *link = here;
            }
    return *link != SMP__LINK_SAME;
}

smp_status smp__contract(const smp_problem *problem, const smp__units *units, smp_arena *arena,
                         int32_t **label)
{
    smp__link link;
    size_t n = (size_t)units->n, n_op = (size_t)problem->graph->n_op;
    *label = NULL;
    if (problem->n_stage != problem->pipeline || units->has_pin || units->memory_binds ||
        !find_link(problem, &link))
        return SMP_OK;
    joining j = {.units = units,
                 .charge_us = units->net_us[link],
                 .parent = SMP_ARENA_NEW(arena, int32_t, n),
                 .moves = SMP_ARENA_NEW(arena, bool, n)};
    int32_t *found = SMP_ARENA_NEW(arena, int32_t, n_op);
    if (!j.parent || !j.moves || !found)
        return SMP_ERR_NO_MEMORY;
    for (int32_t u = 0; u < units->n; u++)
        j.parent[u] = u;
    for (int32_t net = 0; net < units->n_net; net++)
        join_readers(&j, net);
    for (int32_t net = 0; net < units->n_net; net++)
        join_maker(&j, net);
    for (size_t op = 0; op < n_op; op++)
        found[op] = smp_set_find(j.parent, units->unit_of_op[op]);
    if (j.joined)
        *label = found;
    return SMP_OK;
}

/* What moves between hosts; see the header. What a host has follows from the plan of the
 * incarnation that completed a state last (exec/save/kept_parts.h), what it lacks from the plan
 * that is weighed. */
#include "tools/elastic/moves/state_moves.h"

#include <stdlib.h>

static smp_status find_parts(const smp__places *p, const smp_plan *plan, const smp_graph *graph,
                             int states, bool keeps, smp__kept_part *part)
{
    const int ranks = smp_plan_processes(plan);
    int *machine = calloc((size_t)ranks, sizeof *machine);
    if (!machine)
        return smp_fail_memory((size_t)ranks * sizeof *machine);
    for (int rank = 0, place = 0, left = p->ranks[0]; rank < ranks; rank++, left--) {
        if (left == 0)
            left = p->ranks[++place];
        machine[rank] = place;
    }
    const smp_status status =
        smp__kept_parts(plan, graph, states, keeps, 0, machine, p->n_used, part);
    free(machine);
    return status;
}

static const smp__spans none;

/* What the host of a place has now. */
static const smp__spans *held_by(const smp__moves *moves, const smp__places *p, int place)
{
    const int host = p->host[place];
    return host < moves->n_held ? &moves->held[host] : &none;
}

/* Bytes that a host lacks in each place. needed: [n] hosts that are not to be idle. */
static smp_status fill_bytes(const smp__moves *moves, const smp__places *p,
                             const smp__kept_part *part, const bool *needed, int64_t *bytes)
{
    smp__spans lacks = {0};
    smp_status status = SMP_OK;
    int64_t most = 0;
    for (int at = 0; at < p->n_used; at++)
        for (int h = 0; h < p->n && status == SMP_OK; h++) {
            int64_t *own = &bytes[at * p->n + h];
            *own = -1;
            if (p->slots[at] != p->slots[h] || (at == 0) != (h == 0))
                continue;
            status = smp__spans_without(&part[at].reads, held_by(moves, p, h), &lacks);
            *own = smp__spans_bytes(&lacks);
            most = *own > most ? *own : most;
        }
    for (int at = p->n_used; at < p->n; at++)
        for (int h = 0; h < p->n; h++)
            bytes[at * p->n + h] = p->slots[at] != p->slots[h] || h == 0 ? -1
                                   : needed[h]                           ? most + 1
                                                                         : 0;
    smp__spans_free(&lacks);
    return status;
}

/* An idle host has what none that is used has, so that the state would be lost: *found, and it is
 * needed. */
static smp_status find_needed(const smp__moves *moves, const smp__places *p, const int *host_of,
                              bool *needed, bool *found)
{
    smp__spans used = {0}, lacks = {0};
    smp_status status = SMP_OK;
    for (int at = 0; at < p->n_used; at++) {
        const smp__spans *held = held_by(moves, p, host_of[at]);
        for (int32_t i = 0; i < held->n && status == SMP_OK; i++)
            status = smp__spans_add(&used, held->at[i].begin, held->at[i].end);
    }
    smp__spans_join(&used);
    *found = false;
    for (int at = p->n_used; at < p->n && !*found && status == SMP_OK; at++) {
        status = smp__spans_without(held_by(moves, p, host_of[at]), &used, &lacks);
        *found = lacks.n > 0 && !needed[host_of[at]];
        needed[host_of[at]] |= *found;
    }
    smp__spans_free(&used);
    smp__spans_free(&lacks);
    return status;
}

static smp_status assign(const smp__moves *moves, const smp__places *p, double bytes_per_s,
                         smp__move *m)
{
    const size_t size = (size_t)p->n * (size_t)p->n * sizeof(int64_t);
    int64_t *bytes = malloc(size), most = 0;
    bool needed[SMP__MOVE_HOSTS] = {false}, again = true;
    smp_status status = bytes ? SMP_OK : smp_fail_memory(size);
    while (again && status == SMP_OK) { /* each time one more is needed */
        status = fill_bytes(moves, p, m->part, needed, bytes);
        if (status == SMP_OK)
            status = smp__move_assign(bytes, p->n, m->host_of);
        if (status == SMP_OK)
            status = find_needed(moves, p, m->host_of, needed, &again);
    }
    for (int at = 0; at < p->n_used && status == SMP_OK; at++) {
        const int64_t own = bytes[at * p->n + m->host_of[at]];
        most = own > most ? own : most;
        m->bytes += own;
    }
    m->s = bytes_per_s > 0.0 ? (double)most / bytes_per_s : 0.0;
    free(bytes);
    return status;
}

smp_status smp__moves_weigh(const smp__moves *moves, const smp__places *p, const smp_plan *plan,
                            const smp_graph *graph, int states, bool keeps, smp__move *out)
{
    const double bytes_per_s = plan->cluster ? plan->cluster->inter_node.bytes_per_s : 0.0;
    for (int at = 0; at < p->n; at++)
        out->host_of[at] = at;
    out->part = calloc((size_t)p->n_used, sizeof *out->part);
    if (!out->part)
        return smp_fail_memory((size_t)p->n_used * sizeof *out->part);
    SMP_TRY(find_parts(p, plan, graph, states, keeps, out->part));
    return moves->held ? assign(moves, p, bytes_per_s, out) : SMP_OK;
}

void smp__move_free(const smp__places *p, smp__move *move)
{
    if (move->part)
        smp__kept_parts_free(move->part, p->n_used);
    free(move->part);
    move->part = NULL;
}

smp_status smp__moves_take(smp__moves *moves, const smp__places *p, smp__move *move)
{
    moves->host = calloc((size_t)p->n_used, sizeof *moves->host);
    if (!moves->host)
        return smp_fail_memory((size_t)p->n_used * sizeof *moves->host);
    for (int at = 0; at < p->n_used; at++)
        moves->host[at] = p->host[move->host_of[at]];
    moves->part = move->part;
    moves->n_part = p->n_used;
    move->part = NULL;
    return SMP_OK;
}

static void forget_parts(smp__moves *moves)
{
    if (moves->part)
        smp__kept_parts_free(moves->part, moves->n_part);
    free(moves->part);
    free(moves->host);
    moves->part = NULL;
    moves->host = NULL;
    moves->n_part = 0;
}

static void forget_held(smp__moves *moves)
{
    for (int i = 0; i < moves->n_held; i++)
        smp__spans_free(&moves->held[i]);
    free(moves->held);
    moves->held = NULL;
    moves->n_held = 0;
}

/* Parts become what hosts have. */
static void hold_parts(smp__moves *moves)
{
    int most = -1;
    for (int i = 0; i < moves->n_part; i++)
        most = moves->host[i] > most ? moves->host[i] : most;
    forget_held(moves);
    moves->held = calloc((size_t)most + 1, sizeof *moves->held);
    moves->n_held = moves->held ? most + 1 : 0;
    for (int i = 0; i < moves->n_part && moves->held; i++) {
        moves->held[moves->host[i]] = moves->part[i].keeps;
        moves->part[i].keeps = (smp__spans){0};
    }
}

void smp__moves_lose(smp__moves *moves, int host)
{
    if (host < moves->n_held)
        smp__spans_free(&moves->held[host]);
}

void smp__moves_end(smp__moves *moves, bool kept, bool in_memory)
{
    const bool other = kept && moves->launched; /* state than before */
    if (!in_memory || (other && moves->n_part == 0))
        forget_held(moves);
    else if (other)
        hold_parts(moves);
    forget_parts(moves);
    moves->launched = false;
}

void smp__moves_free(smp__moves *moves)
{
    forget_held(moves);
    forget_parts(moves);
}

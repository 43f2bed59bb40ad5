/* Parts to pieces and back; see the header. Elements of a part keep their order in the whole, so
 * what a part has of a window is one slice of the part: it is sent as it lies, and only who has the
 * window knows its runs. */
#include "exec/save/regroup.h"

#include <stdlib.h>
#include <string.h>

#include "exec/checkpoint/checkpoint_file.h"
#include "exec/state/device_wait.h"
#include "exec/parts/weight_runs.h"

/* Two sides of an exchange: this rank's part and everybody's windows, this rank's window and
 * everybody's parts. */
enum { PARTS, PIECES };

static const smp_param *param_of(const smp *s, int32_t index)
{
    return &s->graph->param[s->memory->param[index].param];
}

bool smp__is_split(const smp *s, int32_t index)
{
    return param_of(s, index)->part.spread.way == SMP_SPLIT;
}

static int members(const smp *s)
{
    return s->comm->tensor_size * s->comm->shard_size;
}

static int own_member(const smp *s)
{
    return s->comm->shard_rank * s->comm->tensor_size + s->comm->tensor_rank;
}

static int units(const smp *s, smp__copies copies)
{
    return members(s) * copies.count;
}

smp__range smp__deal(int64_t elements, int64_t unit, int n)
{
    const int64_t pieces = smp__checkpoint_pieces(elements);
    const int64_t begin = pieces * unit / n * SMP_PIECE_ELEMENTS,
                  end = pieces * (unit + 1) / n * SMP_PIECE_ELEMENTS;
    return begin < end ? (smp__range){begin, end < elements ? end : elements} : (smp__range){0, 0};
}

/* The few pieces of small weights fall to the ranks in turn. */
static smp__range dealt(const smp *s, int32_t index, smp__copies copies, int member)
{
    const int n = units(s, copies);
    const int64_t unit = (copies.index * members(s) + member + (int64_t)index) % n;
    return smp__deal(smp__runs_whole(param_of(s, index)), unit, n);
}

smp__range smp__dealt_range(const smp *s, int32_t index, smp__copies copies)
{
    return dealt(s, index, copies, own_member(s));
}

int64_t smp__regroup_rounds(const smp__regroup *r, int32_t index)
{
    const int64_t pieces = smp__checkpoint_pieces(smp__runs_whole(param_of(r->s, index)));
    const int n = units(r->s, r->copies);
    const int64_t most = (pieces + n - 1) / n * SMP_PIECE_ELEMENTS; /* of a rank */
    return (most + SMP__WINDOW_ELEMENTS - 1) / SMP__WINDOW_ELEMENTS;
}

static smp__range window_of(const smp__regroup *r, int32_t index, int64_t round, int member)
{
    const smp__range range = dealt(r->s, index, r->copies, member);
    const int64_t begin = range.begin + round * SMP__WINDOW_ELEMENTS;
    const int64_t end = begin + SMP__WINDOW_ELEMENTS;
    return begin < range.end ? (smp__range){begin, end < range.end ? end : range.end}
                             : (smp__range){0, 0};
}

smp__range smp__regroup_window(const smp__regroup *r, int32_t index, int64_t round)
{
    return window_of(r, index, round, own_member(r->s));
}

static smp__runs runs_of(const smp__regroup *r, int32_t index, int member)
{
    smp__runs runs = smp__runs_of(param_of(r->s, index));
    runs.index = member % r->s->comm->tensor_size;
    return runs;
}

/* What stands in a window of the part of a member. A save takes everybody's own range; a load gives
 * values to all that have them. */
static smp__range slice(const smp__regroup *r, int32_t index, int k, int member, smp__range window)
{
    const smp *s = r->s;
    const int at = member / s->comm->tensor_size;
    const smp__range part =
        !r->collects && k == 0 ? smp__held_range_of(s, index, at) : smp__range_of(s, index, at);
    const smp__runs runs = runs_of(r, index, member);
    const int64_t begin = smp__runs_before(runs, window.begin),
                  end = smp__runs_before(runs, window.end);
    const smp__range both = {begin > part.begin ? begin : part.begin,
                             end < part.end ? end : part.end};
    return both.begin < both.end ? both : (smp__range){0, 0};
}

/* Fills in count and at; elements of each side. */
static void plan_round(smp__regroup *r, int32_t index, int k, int64_t round, int64_t total[2])
{
    const int own = own_member(r->s);
    const smp__range window = window_of(r, index, round, own);
    total[PARTS] = total[PIECES] = 0;
    for (int member = 0; member < members(r->s); member++) {
        const smp__range there = window_of(r, index, round, member);
        const smp__range in[2] = {slice(r, index, k, own, there),
                                  slice(r, index, k, member, window)};
        for (int side = PARTS; side <= PIECES; side++) {
            r->count[side][member] = (int)(in[side].end - in[side].begin);
            r->at[side][member] = (int)total[side];
            total[side] += r->count[side][member];
        }
    }
}

/* What the largest round takes; all states are alike. */
static void find_most(smp__regroup *r, int64_t most[2])
{
    int64_t total[2];
    for (int32_t i = 0; i < r->s->memory->n_param; i++)
        for (int k = 0; k <= 1 && smp__is_split(r->s, i); k++)
            for (int64_t round = 0; round < smp__regroup_rounds(r, i); round++) {
                plan_round(r, i, k, round, total);
                for (int side = PARTS; side <= PIECES; side++)
                    most[side] = total[side] > most[side] ? total[side] : most[side];
            }
}

smp_status smp__regroup_open(smp *s, smp__copies copies, bool collects, smp__regroup *r)
{
    int64_t most[2] = {0, 0};
    const size_t n = (size_t)members(s);
    *r = (smp__regroup){.s = s, .copies = copies, .collects = collects};
    for (int side = PARTS; side <= PIECES; side++) {
        r->count[side] = malloc(n * sizeof(int));
        r->at[side] = malloc(n * sizeof(int));
        if (!r->count[side] || !r->at[side])
            return smp_fail_memory(n * sizeof(int));
    }
    find_most(r, most);
    for (int side = PARTS; side <= PIECES; side++)
        if (!(r->buffer[side] = malloc((size_t)most[side] * sizeof(float) + 1)))
            return smp_fail_memory((size_t)most[side] * sizeof(float));
    return SMP_OK;
}

void smp__regroup_close(smp__regroup *r)
{
    if (!r->s || r->s->comm->failed) /* MPI may still use it */
        return;
    for (int side = PARTS; side <= PIECES; side++) {
        free(r->count[side]);
        free(r->at[side]);
        free(r->buffer[side]);
    }
}

static smp_status exchange(smp__regroup *r, int from, int to)
{
    smp_comm *comm = r->s->comm;
    return smp__comm_finish(comm,
                            MPI_Ialltoallv(r->buffer[from], r->count[from], r->at[from], MPI_FLOAT,
                                           r->buffer[to], r->count[to], r->at[to], MPI_FLOAT,
                                           comm->copy, &comm->collective),
                            "the other parts of a weight");
}

/* This rank's part to or from its buffer. */
static void copy_part(smp__regroup *r, int32_t index, int k, int64_t round, bool out)
{
    smp *s = r->s;
    for (int member = 0; member < members(s) && r->status == SMP_OK; member++) {
        const smp__range window = window_of(r, index, round, member);
        const int64_t first = slice(r, index, k, own_member(s), window).begin;
        const int64_t bytes = r->count[PARTS][member] * (int64_t)sizeof(float);
        float *buffer = r->buffer[PARTS] + r->at[PARTS][member];
        if (bytes == 0)
            continue;
        if (k > 0 && smp__is_idle(s, index)) {
            if (out)
                memset(buffer, 0, (size_t)bytes);
            continue;
        }
        r->status = out ? smp__saved_out(s, index, k, first, r->count[PARTS][member], buffer)
                        : smp__saved_in(s, index, k, first, r->count[PARTS][member], buffer);
    }
}

smp_status smp__regroup_collect(smp__regroup *r, int32_t index, int k, int64_t round, float *window)
{
    int64_t total[2];
    const smp__range own = smp__regroup_window(r, index, round);
    plan_round(r, index, k, round, total);
    copy_part(r, index, k, round, true);
    SMP_TRY(exchange(r, PARTS, PIECES));
    for (int member = 0; member < members(r->s); member++)
        smp__runs_put(runs_of(r, index, member), r->buffer[PIECES] + r->at[PIECES][member],
                      slice(r, index, k, member, own).begin, r->count[PIECES][member], window,
                      own.begin);
    return SMP_OK;
}

smp_status smp__regroup_spread(smp__regroup *r, int32_t index, int k, int64_t round,
                               const float *window)
{
    int64_t total[2];
    const smp__range own = smp__regroup_window(r, index, round);
    plan_round(r, index, k, round, total);
    for (int member = 0; member < members(r->s); member++)
        smp__runs_take(runs_of(r, index, member), r->buffer[PIECES] + r->at[PIECES][member],
                       slice(r, index, k, member, own).begin, r->count[PIECES][member], window,
                       own.begin);
    SMP_TRY(exchange(r, PIECES, PARTS));
    copy_part(r, index, k, round, false);
    return SMP_OK;
}

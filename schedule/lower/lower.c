/* Lowering (see lower.h): walks the compute actions in the order of the unit-time simulation and
 * gives every message its place.
 *
 * A direct message (to the neighbouring stage) waits, pending, from the end of the action that
 * made it. It is placed in both programs at once, at the latest moment that delays nobody: before
 * its sender's next compute action or its receiver's use of it, whichever comes first. So a `>`
 * stands right after what it sends, and a `<` as near to its use as the rendezvous allows. Of two
 * messages that meet on a rank the one made earlier goes first, and of those made at the same time
 * forwards before backwards and the one further down its way first: without that, a send would
 * stand after a receive that comes later. O(n log n) for n actions. */
#include "schedule/lower/lower.h"

#include <stdlib.h>

#include "graph/base/clock.h"

#include "schedule/lower/offload_actions.h"
#include "schedule/lower/shard_actions.h"
#include "schedule/lower/unit_time.h"

/* The send of a rank's last compute action. */
typedef struct pending {
    bool exists;
    bool reduce; /* R.c follows */
    smp_transfer_kind kind;
    int microbatch, stage;
    int64_t ready;
} pending;

typedef struct lowering {
    const smp__crossing *crossing;
    int microbatches;
    bool training;
    smp_program *program; /* [n_rank] */
    pending *pending;     /* [n_rank] */
    int *trail;           /* [n_rank] ranks whose pending sends go first */
    int *accumulated;     /* [n_stage] weight gradients done so far */
} lowering;

/* A total order: a stage has one pending message at most. */
static bool goes_before(const pending *a, const pending *b)
{
    if (a->ready != b->ready)
        return a->ready < b->ready;
    if (a->kind != b->kind)
        return a->kind == SMP_TRANSFER_F;
    return a->kind == SMP_TRANSFER_F ? a->stage > b->stage : a->stage < b->stage;
}

static smp_status push_reduce(lowering *l, int stage)
{
    const smp__crossing *crossing = l->crossing;
    return smp_program_push(&l->program[crossing->rank_of[stage]], SMP_ACTION_REDUCE, -1,
                            crossing->chunk_of[stage]);
}

static int receiver_of(const lowering *l, const pending *message)
{
    return l->crossing->rank_of[smp__crossing_next(message->kind, message->stage)];
}

/* Appends one direct message to both programs. */
static smp_status place(lowering *l, int sender)
{
    const smp__crossing *crossing = l->crossing;
    pending message = l->pending[sender];
    l->pending[sender].exists = false;
    int receiver = receiver_of(l, &message);
    int to_stage = smp__crossing_next(message.kind, message.stage);
    SMP_TRY(smp_program_push(&l->program[sender], smp__crossing_send(message.kind),
                             message.microbatch, crossing->chunk_of[message.stage]));
    SMP_TRY(smp_program_push(&l->program[receiver], smp__crossing_receive(message.kind),
                             message.microbatch, crossing->chunk_of[to_stage]));
    return message.reduce ? push_reduce(l, message.stage) : SMP_OK;
}

/* Places the pending message of `sender`, before it those that go first on the ranks it meets. Each
 * step of the trail goes to an earlier message, so the trail ends. */
static smp_status place_in_order(lowering *l, int sender)
{
    int length = 0;
    for (int rank = sender;;) {
        l->trail[length++] = rank;
        int receiver = receiver_of(l, &l->pending[rank]);
        const pending *met = &l->pending[receiver];
        if (!met->exists || !goes_before(met, &l->pending[rank]))
            break;
        rank = receiver;
    }
    while (length > 0)
        SMP_TRY(place(l, l->trail[--length]));
    return SMP_OK;
}

/* All that must stand before a compute action: its receive, and the rank's pending send. */
static smp_status before_compute(lowering *l, const smp__timed *t, int stage)
{
    const smp__crossing *crossing = l->crossing;
    smp_transfer_kind kind = smp__crossing_kind(t->action.kind);
    bool receives = t->action.kind != SMP_ACTION_W && crossing->receives[kind][stage];
    int source;
    if (receives && smp__crossing_source(crossing, kind, stage, &source)) {
        int sender = crossing->rank_of[source];
        const pending *message = &l->pending[sender];
        /* No longer pending: the sender went on, and the `<` was placed then. */
        if (message->exists && message->kind == kind && message->stage == source &&
            message->microbatch == t->action.microbatch)
            SMP_TRY(place_in_order(l, sender));
        receives = false;
    }
    if (l->pending[t->rank].exists)
        SMP_TRY(place_in_order(l, t->rank));
    if (receives) /* only from stages further away, all of which have sent long ago */
        SMP_TRY(smp_program_push(&l->program[t->rank], smp__crossing_receive(kind),
                                 t->action.microbatch, t->action.chunk));
    return SMP_OK;
}

static smp_status after_compute(lowering *l, const smp__timed *t, int stage)
{
    const smp__crossing *crossing = l->crossing;
    smp_transfer_kind kind = smp__crossing_kind(t->action.kind);
    bool accumulates = t->action.kind == SMP_ACTION_B || t->action.kind == SMP_ACTION_W;
    bool reduce = accumulates && ++l->accumulated[stage] == l->microbatches;
    if (t->action.kind != SMP_ACTION_W && crossing->direct[kind][stage]) {
        l->pending[t->rank] = (pending){.exists = true,
                                        .reduce = reduce,
                                        .kind = kind,
                                        .microbatch = t->action.microbatch,
                                        .stage = stage,
                                        .ready = t->end};
        return SMP_OK;
    }
    if (t->action.kind != SMP_ACTION_W && crossing->sends[kind][stage])
        SMP_TRY(smp_program_push(&l->program[t->rank], smp__crossing_send(kind),
                                 t->action.microbatch, t->action.chunk));
    return reduce ? push_reduce(l, stage) : SMP_OK;
}

static smp_status emit(lowering *l, const smp__timed *timed, int64_t n)
{
    const smp__crossing *crossing = l->crossing;
    for (int64_t i = 0; i < n; i++) {
        const smp__timed *t = &timed[i];
        int stage = crossing->stage_of[(int64_t)t->rank * crossing->chunks + t->action.chunk];
        SMP_TRY(before_compute(l, t, stage));
        SMP_TRY(smp_program_push(&l->program[t->rank], t->action.kind, t->action.microbatch,
                                 t->action.chunk));
        SMP_TRY(after_compute(l, t, stage));
    }
    for (int rank = 0; rank < crossing->n_rank; rank++) {
        if (l->pending[rank].exists)
            SMP_TRY(place_in_order(l, rank));
        if (l->training)
            SMP_TRY(smp_program_push(&l->program[rank], SMP_ACTION_OPTIMIZE, -1, -1));
    }
    return SMP_OK;
}

static smp_status check_shape(const smp_schedule_kind *kind, const smp_schedule_shape *shape)
{
    if (shape->pipeline < 1 || shape->chunks < 1 || shape->microbatches < 1)
        return smp_fail(SMP_ERR_INPUT,
                        "schedule %s: pipeline %d, chunks %d, micro-batches %d: expected at least "
                        "1 of each",
                        kind->name, shape->pipeline, shape->chunks, shape->microbatches);
    return smp_schedule_check(kind, shape);
}

static smp_status allocate(const smp_schedule_shape *shape, smp_arena *arena, lowering *l)
{
    size_t n_rank = (size_t)shape->pipeline;
    l->program = SMP_ARENA_NEW(arena, smp_program, n_rank);
    l->pending = SMP_ARENA_NEW(arena, pending, n_rank);
    l->trail = SMP_ARENA_NEW(arena, int, n_rank);
    l->accumulated = SMP_ARENA_NEW(arena, int, (size_t)l->crossing->flow->n_stage);
    return l->program && l->pending && l->trail && l->accumulated ? SMP_OK : SMP_ERR_NO_MEMORY;
}

/* Those that change nothing in the order of the others. */
static smp_status add_actions(const smp_schedule_shape *shape, const smp__crossing *crossing,
                              int rank, smp_program *program)
{
    SMP_TRY(
        smp_offload_actions(shape, &crossing->stage_of[(int64_t)rank * shape->chunks], program));
    return smp_shard_actions(shape, program);
}

smp_status smp_lower_orders(const smp_schedule_shape *shape, const int *stage_rank,
                            const smp_flow *flow, const smp_program *orders, smp_program *programs)
{
    smp_arena *arena = smp_arena_create();
    if (!arena)
        return SMP_ERR_NO_MEMORY;
    smp__crossing crossing;
    lowering l = {
        .crossing = &crossing, .microbatches = shape->microbatches, .training = shape->training};
    smp__timed *timed = NULL;
    int64_t n = 0;
    smp_status status =
        smp__crossing_build(arena, flow, stage_rank, shape->pipeline, shape->chunks, &crossing);
    if (status == SMP_OK)
        status = allocate(shape, arena, &l);
    if (status == SMP_OK)
        status = smp__unit_time(&crossing, shape->microbatches, orders, &timed, &n);
    if (status == SMP_OK)
        status = emit(&l, timed, n);
    smp_work_count(SMP_WORK_LOWER, (double)n);
    for (int rank = 0; rank < shape->pipeline && status == SMP_OK; rank++)
        status = add_actions(shape, &crossing, rank, &l.program[rank]);
    for (int rank = 0; l.program && rank < shape->pipeline; rank++) {
        if (status == SMP_OK)
            programs[rank] = l.program[rank];
        else
            smp_program_free(&l.program[rank]);
    }
    free(timed);
    smp_arena_destroy(arena);
    return status;
}

smp_status smp_lower(const smp_schedule_kind *kind, const smp_schedule_shape *shape,
                     const smp_flow *flow, smp_program *programs)
{
    SMP_TRY(check_shape(kind, shape));
    smp_arena *arena = smp_arena_create();
    if (!arena)
        return SMP_ERR_NO_MEMORY;
    int *stage_rank = SMP_ARENA_NEW(arena, int, (size_t)flow->n_stage);
    smp_program *orders = SMP_ARENA_NEW(arena, smp_program, (size_t)shape->pipeline);
    smp_status status = stage_rank && orders ? SMP_OK : SMP_ERR_NO_MEMORY;
    for (int stage = 0; status == SMP_OK && stage < flow->n_stage; stage++)
        stage_rank[stage] = smp_schedule_stage_rank(kind, shape, stage);
    for (int rank = 0; status == SMP_OK && rank < shape->pipeline; rank++)
        status = kind->order(shape, rank, &orders[rank]);
    if (status == SMP_OK)
        status = smp_lower_orders(shape, stage_rank, flow, orders, programs);
    for (int rank = 0; orders && rank < shape->pipeline; rank++)
        smp_program_free(&orders[rank]);
    smp_arena_destroy(arena);
    return status;
}

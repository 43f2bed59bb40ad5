/* Along the sends of a channel the positions of their receives must rise: walks every program once
 * and remembers the last receive of each channel. */
#include "schedule/verify/verify_channels.h"

typedef struct tracker {
    const smp__crossing *crossing;
    const smp_program *program;
    const smp__positions *position;
    int microbatches;
    int64_t *last_direct; /* [n_rank] receive of the last message to this rank, -1: none yet */
    int64_t *last_jump;   /* [n_transfer] */
    int rank;             /* whose sends are followed */
    int64_t at;
} tracker;

/* The send's receive at a stage comes next in its channel: false if it stands before the last. */
static bool follows(tracker *t, int stage, int mb, smp_transfer_kind kind, int64_t *last,
                    smp__overtaking *out)
{
    smp_action_kind receive = smp__crossing_receive(kind);
    int64_t at = t->position[(int64_t)stage * t->microbatches + mb].at[receive];
    if (at < *last) {
        *out = (smp__overtaking){.sender = t->rank,
                                 .receiver = t->crossing->rank_of[stage],
                                 .send_at = t->at,
                                 .receive_at = at,
                                 .blocked_at = *last};
        return false;
    }
    *last = at;
    return true;
}

static bool check_send(tracker *t, const smp_action *a, smp__overtaking *out)
{
    const smp__crossing *crossing = t->crossing;
    smp_transfer_kind kind = smp__crossing_kind(a->kind);
    int stage = crossing->stage_of[(int64_t)t->rank * crossing->chunks + a->chunk];
    if (crossing->direct[kind][stage]) {
        int to = smp__crossing_next(kind, stage);
        int64_t *last = &t->last_direct[crossing->rank_of[to]];
        if (!follows(t, to, a->microbatch, kind, last, out))
            return false;
    }
    if (!crossing->jumps[kind][stage])
        return true;
    const smp_flow *flow = crossing->flow;
    for (int32_t i = flow->out_begin[stage]; i < flow->out_begin[stage + 1]; i++) {
        const smp_transfer *transfer = &flow->transfer[flow->out_list[i]];
        if (transfer->kind == kind && smp__crossing_is_message(crossing, transfer) &&
            !smp__crossing_is_direct(transfer) &&
            !follows(t, transfer->to_stage, a->microbatch, kind, &t->last_jump[flow->out_list[i]],
                     out))
            return false;
    }
    return true;
}

static bool check_rank(tracker *t, int rank, smp__overtaking *out)
{
    const smp_program *program = &t->program[rank];
    t->rank = rank;
    for (int i = 0; i < t->crossing->n_rank; i++)
        t->last_direct[i] = -1;
    for (t->at = 0; t->at < program->n; t->at++) {
        const smp_action *a = &program->action[t->at];
        bool send = a->kind == SMP_ACTION_SEND_F || a->kind == SMP_ACTION_SEND_B;
        if (send && !check_send(t, a, out))
            return false;
    }
    return true;
}

smp_status smp__channels_check(const smp__crossing *crossing, const smp_program *program,
                               const smp__positions *position, int microbatches, bool *found,
                               smp__overtaking *out)
{
    smp_arena *arena = smp_arena_create();
    if (!arena)
        return SMP_ERR_NO_MEMORY;
    size_t n_transfer = (size_t)crossing->flow->n_transfer;
    tracker t = {.crossing = crossing,
                 .program = program,
                 .position = position,
                 .microbatches = microbatches,
                 .last_direct = SMP_ARENA_NEW(arena, int64_t, (size_t)crossing->n_rank),
                 .last_jump = SMP_ARENA_NEW(arena, int64_t, n_transfer)};
    smp_status status = t.last_direct && t.last_jump ? SMP_OK : SMP_ERR_NO_MEMORY;
    for (size_t i = 0; status == SMP_OK && i < n_transfer; i++)
        t.last_jump[i] = -1;
    *found = false;
    for (int rank = 0; status == SMP_OK && !*found && rank < crossing->n_rank; rank++)
        *found = !check_rank(&t, rank, out);
    smp_arena_destroy(arena);
    return status;
}

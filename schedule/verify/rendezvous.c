/* Token passing: every rank runs until it waits for another rank to reach a position, and goes on
 * when that rank gets there. What a rank has reached only grows, so the fixpoint does not depend
 * on the order of the visits. */
#include "schedule/verify/rendezvous.h"

/* What a rank waits for: that `rank` reaches action `at`. */
typedef struct need {
    int rank;
    int64_t at;
} need;

typedef struct meeting {
    const smp__crossing *crossing;
    const smp_program *program;
    const smp__positions *position;
    int microbatches;
    int64_t *reached; /* [n_rank] the action a rank stands at */
    need *waits;      /* [n_rank] rank -1: does not wait */
    int *first;       /* [n_rank] list of the ranks that wait for this one, -1 ends */
    int *next;        /* [n_rank] */
    int *ready;       /* [n_rank] stack of ranks to run */
    int n_ready;
} meeting;

static bool is_reached(const meeting *m, int stage, int mb, smp_action_kind kind, need *missing)
{
    int rank = m->crossing->rank_of[stage];
    int64_t at = m->position[(int64_t)stage * m->microbatches + mb].at[kind];
    if (m->reached[rank] >= at)
        return true;
    *missing = (need){rank, at};
    return false;
}

/* Have all messages of a kind that reach the stage been sent? */
static bool all_sent(const meeting *m, smp_transfer_kind kind, int stage, int mb, need *missing)
{
    const smp_flow *flow = m->crossing->flow;
    for (int32_t i = flow->in_begin[stage]; i < flow->in_begin[stage + 1]; i++) {
        const smp_transfer *t = &flow->transfer[flow->in_list[i]];
        if (t->kind == kind && smp__crossing_is_message(m->crossing, t) &&
            !is_reached(m, t->from_stage, mb, smp__crossing_send(kind), missing))
            return false;
    }
    return true;
}

/* Have the receivers of the stage's messages that jump got there? */
static bool all_jumps_met(const meeting *m, smp_transfer_kind kind, int stage, int mb,
                          need *missing)
{
    const smp_flow *flow = m->crossing->flow;
    if (!m->crossing->jumps[kind][stage])
        return true;
    for (int32_t i = flow->out_begin[stage]; i < flow->out_begin[stage + 1]; i++) {
        const smp_transfer *t = &flow->transfer[flow->out_list[i]];
        if (t->kind == kind && smp__crossing_is_message(m->crossing, t) &&
            !smp__crossing_is_direct(t) &&
            !is_reached(m, t->to_stage, mb, smp__crossing_receive(kind), missing))
            return false;
    }
    return true;
}

/* The waits before O, or at the end of a program without: what jumps and was not waited for. The
 * last micro-batch first: when that has arrived the others mostly have, so few tries are needed.
 */
static bool all_sends_met(const meeting *m, int rank, bool training, need *missing)
{
    smp_transfer_kind kind = training ? SMP_TRANSFER_B : SMP_TRANSFER_F;
    for (int chunk = 0; chunk < m->crossing->chunks; chunk++) {
        int stage = m->crossing->stage_of[(int64_t)rank * m->crossing->chunks + chunk];
        for (int mb = m->microbatches - 1; m->crossing->jumps[kind][stage] && mb >= 0; mb--)
            if (!all_jumps_met(m, kind, stage, mb, missing))
                return false;
    }
    return true;
}

static bool can_pass(const meeting *m, int rank, const smp_action *a, need *missing)
{
    if (a->kind == SMP_ACTION_OPTIMIZE)
        return all_sends_met(m, rank, true, missing);
    if (!smp_action_has_microbatch(a->kind))
        return true; /* others of its kind have the same program */
    int stage = m->crossing->stage_of[(int64_t)rank * m->crossing->chunks + a->chunk];
    switch (a->kind) {
    case SMP_ACTION_B:
    case SMP_ACTION_I:
        return all_jumps_met(m, SMP_TRANSFER_F, stage, a->microbatch, missing);
    case SMP_ACTION_SEND_F:
        return !m->crossing->direct[SMP_TRANSFER_F][stage] ||
               is_reached(m, stage + 1, a->microbatch, SMP_ACTION_RECV_F, missing);
    case SMP_ACTION_SEND_B:
        return !m->crossing->direct[SMP_TRANSFER_B][stage] ||
               is_reached(m, stage - 1, a->microbatch, SMP_ACTION_RECV_B, missing);
    case SMP_ACTION_RECV_F:
        return all_sent(m, SMP_TRANSFER_F, stage, a->microbatch, missing);
    case SMP_ACTION_RECV_B:
        return all_sent(m, SMP_TRANSFER_B, stage, a->microbatch, missing);
    default:
        return true;
    }
}

static void wait_for(meeting *m, int rank, need missing)
{
    m->waits[rank] = missing;
    m->next[rank] = m->first[missing.rank];
    m->first[missing.rank] = rank;
}

/* Moves the waiters of `rank` that may go on to the ready stack. */
static void wake(meeting *m, int rank)
{
    int waiter = m->first[rank];
    m->first[rank] = -1;
    while (waiter >= 0) {
        int next = m->next[waiter];
        if (m->waits[waiter].at <= m->reached[rank]) {
            m->waits[waiter].rank = -1;
            m->ready[m->n_ready++] = waiter;
        } else {
            m->next[waiter] = m->first[rank];
            m->first[rank] = waiter;
        }
        waiter = next;
    }
}

static void run_rank(meeting *m, int rank)
{
    const smp_program *program = &m->program[rank];
    bool training = program->n > 0 && program->action[program->n - 1].kind == SMP_ACTION_OPTIMIZE;
    need missing;
    for (; m->reached[rank] < program->n; m->reached[rank]++) {
        if (m->first[rank] >= 0)
            wake(m, rank);
        if (!can_pass(m, rank, &program->action[m->reached[rank]], &missing)) {
            wait_for(m, rank, missing);
            return;
        }
    }
    wake(m, rank);
    if (!training && !all_sends_met(m, rank, false, &missing))
        wait_for(m, rank, missing);
}

static void describe(const meeting *m, int rank, smp_text *text)
{
    const smp_program *program = &m->program[rank];
    int64_t at = m->reached[rank];
    smp_text_append(text, "rank %d at ", rank);
    if (at < program->n) {
        smp_text_append(text, "action %lld ", (long long)at + 1);
        smp_action_format(&program->action[at], text);
    } else {
        smp_text_append(text, "its end");
    }
    const need *waits = &m->waits[rank];
    smp_text_append(text, " waits until rank %d reaches action %lld ", waits->rank,
                    (long long)waits->at + 1);
    smp_action_format(&m->program[waits->rank].action[waits->at], text);
}

/* Every waiting rank waits for one that waits too (a rank that ended has reached everything), so
 * following them from any one leads into a circle. */
static smp_status fail_deadlock(const meeting *m, int rank)
{
    enum { SHOWN = 6 };
    for (int i = 0; i < m->crossing->n_rank; i++)
        rank = m->waits[rank].rank;
    smp_text text = {0};
    int member = rank, shown = 0;
    do {
        smp_text_append(&text, "%s", shown ? "; " : "");
        describe(m, member, &text);
        member = m->waits[member].rank;
    } while (member != rank && ++shown < SHOWN);
    smp_status status = smp_fail(SMP_ERR_INPUT, "the programs deadlock: %s%s",
                                 text.data ? text.data : "", member != rank ? "; ..." : "");
    smp_text_free(&text);
    return status;
}

smp_status smp__rendezvous_check(const smp__crossing *crossing, const smp_program *program,
                                 const smp__positions *position, int microbatches)
{
    smp_arena *arena = smp_arena_create();
    if (!arena)
        return SMP_ERR_NO_MEMORY;
    size_t n = (size_t)crossing->n_rank;
    meeting m = {crossing,
                 program,
                 position,
                 microbatches,
                 SMP_ARENA_NEW(arena, int64_t, n),
                 SMP_ARENA_NEW(arena, need, n),
                 SMP_ARENA_NEW(arena, int, n),
                 SMP_ARENA_NEW(arena, int, n),
                 SMP_ARENA_NEW(arena, int, n),
                 0};
    smp_status status = SMP_OK;
    if (!m.reached || !m.waits || !m.first || !m.next || !m.ready) {
        status = SMP_ERR_NO_MEMORY;
        goto done;
    }
    for (int rank = crossing->n_rank - 1; rank >= 0; rank--) {
        m.waits[rank].rank = -1;
        m.first[rank] = -1;
        m.ready[m.n_ready++] = rank;
    }
    while (m.n_ready > 0)
        run_rank(&m, m.ready[--m.n_ready]);
    for (int rank = 0; status == SMP_OK && rank < crossing->n_rank; rank++)
        if (m.waits[rank].rank >= 0)
            status = fail_deadlock(&m, rank);
done:
    smp_arena_destroy(arena);
    return status;
}

/* All single edits of small plans: any action removed, duplicated, moved, swapped with any other,
 * or renamed to any other. The verifier must say what a slow checker says that shares nothing with
 * it: it looks every rule up by linear search and decides progress by looking for a cycle in the
 * graph of what waits for what. */
#include "tests/schedule/made_plan.h"

enum { MAX_RANKS = 3, MAX_ACTIONS = 96 };

/* ---- the slow checker */

typedef struct slow {
    const smp_plan *plan;
    const smp_flow *flow;
    int mark[MAX_RANKS][MAX_ACTIONS + 2]; /* 0: new, 1: on the path, 2: done */
} slow;

static int rank_of(const slow *s, int stage)
{
    return s->plan->stage[stage].rank;
}

static int chunk_of(const slow *s, int stage)
{
    int chunk = 0;
    for (int other = 0; other < stage; other++)
        chunk += rank_of(s, other) == rank_of(s, stage);
    return chunk;
}

/* Position of an action; -1: not there, -2: more than once. */
static int find(const slow *s, int stage, smp_action_kind kind, int mb)
{
    const smp_program *p = &s->plan->program[rank_of(s, stage)];
    int at = -1;
    for (int i = 0; i < p->n; i++)
        if (p->action[i].kind == kind && p->action[i].microbatch == mb &&
            p->action[i].chunk == chunk_of(s, stage))
            at = at == -1 ? i : -2;
    return at;
}

static bool is_message(const slow *s, const smp_transfer *t)
{
    return rank_of(s, t->from_stage) != rank_of(s, t->to_stage);
}

static bool is_direct(const smp_transfer *t)
{
    return t->to_stage == t->from_stage + (t->kind == SMP_TRANSFER_F ? 1 : -1);
}

static bool has_message(const slow *s, int stage, smp_transfer_kind kind, bool out)
{
    for (int32_t i = 0; i < s->flow->n_transfer; i++) {
        const smp_transfer *t = &s->flow->transfer[i];
        if (t->kind == kind && is_message(s, t) && (out ? t->from_stage : t->to_stage) == stage)
            return true;
    }
    return false;
}

/* The whole backward or its first half. */
static int backward(const slow *s, int stage, int mb)
{
    int whole = find(s, stage, SMP_ACTION_B, mb);
    return whole >= 0 ? whole : find(s, stage, SMP_ACTION_I, mb);
}

static int last_half(const slow *s, int stage, int mb)
{
    int whole = find(s, stage, SMP_ACTION_B, mb);
    return whole >= 0 ? whole : find(s, stage, SMP_ACTION_W, mb);
}

static const smp_action_kind sends[2] = {SMP_ACTION_SEND_F, SMP_ACTION_SEND_B};
static const smp_action_kind receives[2] = {SMP_ACTION_RECV_F, SMP_ACTION_RECV_B};

/* Exactly the actions that must be there; the count of them is added. */
static bool pair_is_complete(const slow *s, int stage, int mb, int *count)
{
    bool training = s->plan->training;
    bool whole = find(s, stage, SMP_ACTION_B, mb) >= 0;
    bool split = find(s, stage, SMP_ACTION_I, mb) >= 0 && find(s, stage, SMP_ACTION_W, mb) >= 0;
    if (find(s, stage, SMP_ACTION_F, mb) < 0 || whole + split != training)
        return false;
    *count += 1 + whole + 2 * split;
    for (int kind = 0; kind < 2; kind++) {
        bool out = has_message(s, stage, kind, true), in = has_message(s, stage, kind, false);
        if ((out && find(s, stage, sends[kind], mb) < 0) ||
            (in && find(s, stage, receives[kind], mb) < 0))
            return false;
        *count += out + in;
    }
    return true;
}

static bool is_complete(const slow *s)
{
    int count = 0, expected = 0;
    for (int stage = 0; stage < s->flow->n_stage; stage++) {
        for (int mb = 0; mb < s->plan->microbatches; mb++)
            if (!pair_is_complete(s, stage, mb, &count))
                return false;
        if (s->plan->training && find(s, stage, SMP_ACTION_REDUCE, -1) < 0)
            return false;
        count += s->plan->training;
    }
    for (int rank = 0; rank < s->plan->pipeline; rank++) {
        const smp_program *p = &s->plan->program[rank];
        if (s->plan->training && (p->n == 0 || p->action[p->n - 1].kind != SMP_ACTION_OPTIMIZE))
            return false;
        count += s->plan->training;
        expected += (int)p->n;
    }
    return count == expected; /* nothing else, in particular nothing twice */
}

static bool pair_in_order(const slow *s, int stage, int mb)
{
    int forward = find(s, stage, SMP_ACTION_F, mb), back = backward(s, stage, mb);
    bool training = s->plan->training;
    for (int32_t i = 0; i < s->flow->n_transfer; i++) {
        const smp_transfer *t = &s->flow->transfer[i];
        if (t->to_stage != stage || is_message(s, t))
            continue;
        if (t->kind == SMP_TRANSFER_F ? find(s, t->from_stage, SMP_ACTION_F, mb) > forward
                                      : backward(s, t->from_stage, mb) > back)
            return false;
    }
    for (int kind = 0; kind < 2; kind++) {
        int made = kind == SMP_TRANSFER_F ? forward : back;
        int send = find(s, stage, sends[kind], mb), receive = find(s, stage, receives[kind], mb);
        if ((send >= 0 && send < made) || receive > made)
            return false;
    }
    if (!training)
        return true;
    int last = last_half(s, stage, mb);
    return forward < back && back <= last && last < find(s, stage, SMP_ACTION_REDUCE, -1) &&
           (mb == 0 || last_half(s, stage, mb - 1) < last);
}

/* What is sent earlier on a channel is received earlier. Two messages between neighbouring stages
 * share one if their ranks are the same, others if they are of one transfer. */
static bool channels_in_order(const slow *s)
{
    const smp_flow *f = s->flow;
    for (int32_t i = 0; i < f->n_transfer; i++)
        for (int32_t k = 0; k < f->n_transfer; k++) {
            const smp_transfer *a = &f->transfer[i], *b = &f->transfer[k];
            if (!is_message(s, a) || !is_message(s, b) ||
                rank_of(s, a->from_stage) != rank_of(s, b->from_stage) ||
                rank_of(s, a->to_stage) != rank_of(s, b->to_stage) ||
                !(i == k || (is_direct(a) && is_direct(b))))
                continue;
            for (int m = 0; m < s->plan->microbatches; m++)
                for (int n = 0; n < s->plan->microbatches; n++)
                    if (find(s, a->from_stage, sends[a->kind], m) <
                            find(s, b->from_stage, sends[b->kind], n) &&
                        find(s, a->to_stage, receives[a->kind], m) >
                            find(s, b->to_stage, receives[b->kind], n))
                        return false;
        }
    return true;
}

static bool ends(slow *s, int rank, int at);

/* To leave action `at`, other ranks must have come to theirs. */
static bool may_leave(slow *s, int rank, int at)
{
    const smp_program *p = &s->plan->program[rank];
    smp_action_kind here = at < p->n ? p->action[at].kind : SMP_ACTION_OPTIMIZE;
    for (int32_t i = 0; i < s->flow->n_transfer; i++)
        for (int mb = 0; mb < s->plan->microbatches; mb++) {
            const smp_transfer *t = &s->flow->transfer[i];
            if (!is_message(s, t))
                continue;
            int send = find(s, t->from_stage, sends[t->kind], mb);
            int receive = find(s, t->to_stage, receives[t->kind], mb);
            bool from_here = rank_of(s, t->from_stage) == rank;
            bool waits;
            if (is_direct(t))
                waits = from_here && send == at;
            else if (t->kind == SMP_TRANSFER_F && s->plan->training)
                waits = from_here && backward(s, t->from_stage, mb) == at;
            else /* at O or at the end */
                waits = from_here && here == SMP_ACTION_OPTIMIZE;
            if (waits && !ends(s, rank_of(s, t->to_stage), receive - 1))
                return false;
            if (rank_of(s, t->to_stage) == rank && receive == at &&
                !ends(s, rank_of(s, t->from_stage), send - 1))
                return false;
        }
    return true;
}

/* Can the rank leave action `at`? Only if it left the one before, and without going round in a
 * circle. */
static bool ends(slow *s, int rank, int at)
{
    if (at < 0 || s->mark[rank][at] == 2)
        return true;
    if (s->mark[rank][at] == 1)
        return false;
    s->mark[rank][at] = 1;
    if (!ends(s, rank, at - 1) || !may_leave(s, rank, at))
        return false;
    s->mark[rank][at] = 2;
    return true;
}

static bool slow_accepts(const smp_plan *plan, const smp_flow *flow)
{
    slow s = {.plan = plan, .flow = flow};
    if (!is_complete(&s))
        return false;
    for (int stage = 0; stage < flow->n_stage; stage++)
        for (int mb = 0; mb < plan->microbatches; mb++)
            if (!pair_in_order(&s, stage, mb))
                return false;
    if (!channels_in_order(&s))
        return false;
    for (int rank = 0; rank < plan->pipeline; rank++) {
        assert_true(plan->program[rank].n <= MAX_ACTIONS);
        if (!ends(&s, rank, (int)plan->program[rank].n))
            return false;
    }
    return true;
}

/* ---- the edits */

typedef struct tally {
    long accepted, rejected;
} tally;

static void compare(const made_plan *made, int rank, const char *edit, tally *t)
{
    bool expected = slow_accepts(&made->plan, made->flow);
    smp_status status = smp_verify_programs(&made->plan, made->flow);
    smp_text text = {0};
    if (status != (expected ? SMP_OK : SMP_ERR_INPUT)) {
        smp_program_format(&made->program[rank], &text);
        fail_msg("%s, %s on rank %d: status %d (%s), expected %s:\n%s", made->plan.schedule, edit,
                 rank, status, status ? smp_last_error() : "", expected ? "accepted" : "rejected",
                 text.data);
    }
    /* Every refusal names a rank; deadlocks name several. */
    if (status && !strstr(smp_last_error(), "rank "))
        fail_msg("%s", smp_last_error());
    ++*(expected ? &t->accepted : &t->rejected);
}

static void insert(smp_program *p, int64_t at, smp_action action)
{
    assert_int_equal(smp_program_push(p, SMP_ACTION_F, 0, 0), SMP_OK);
    memmove(&p->action[at + 1], &p->action[at], (size_t)(p->n - 1 - at) * sizeof action);
    p->action[at] = action;
}

static void take_out(smp_program *p, int64_t at)
{
    memmove(&p->action[at], &p->action[at + 1], (size_t)(p->n - at - 1) * sizeof *p->action);
    p->n--;
}

static void remove_and_duplicate(made_plan *made, int rank, tally *t)
{
    smp_program *p = &made->program[rank];
    for (int64_t i = 0; i < p->n; i++) {
        smp_action saved = p->action[i];
        take_out(p, i);
        compare(made, rank, "removed", t);
        insert(p, i, saved);
        for (int64_t to = 0; to <= p->n; to++) {
            insert(p, to, saved);
            compare(made, rank, "duplicated", t);
            take_out(p, to);
        }
    }
}

static void swap_and_move(made_plan *made, int rank, tally *t)
{
    smp_program *p = &made->program[rank];
    for (int64_t i = 0; i < p->n; i++)
        for (int64_t k = 0; k < p->n; k++) {
            smp_action saved = p->action[i];
            if (k > i) {
                p->action[i] = p->action[k];
                p->action[k] = saved;
                compare(made, rank, "swapped", t);
                p->action[k] = p->action[i];
                p->action[i] = saved;
            }
            take_out(p, i);
            insert(p, k, saved);
            compare(made, rank, "moved", t);
            take_out(p, k);
            insert(p, i, saved);
        }
}

static void rename_each(made_plan *made, int rank, tally *t)
{
    smp_program *p = &made->program[rank];
    for (int64_t i = 0; i < p->n; i++) {
        smp_action saved = p->action[i];
        for (int kind = 0; kind <= SMP_ACTION_OPTIMIZE; kind++)
            for (int mb = 0; mb <= made->plan.microbatches; mb++)
                for (int chunk = 0; chunk <= made->plan.chunks; chunk++) {
                    bool reduce = kind == SMP_ACTION_REDUCE, last = kind == SMP_ACTION_OPTIMIZE;
                    p->action[i] = (smp_action){kind, reduce || last ? -1 : mb, last ? -1 : chunk};
                    compare(made, rank, "renamed", t);
                }
        p->action[i] = saved;
    }
}

static void all_edits(made_plan *made, tally *t)
{
    assert_true(slow_accepts(&made->plan, made->flow));
    for (int rank = 0; rank < made->plan.pipeline; rank++) {
        remove_and_duplicate(made, rank, t);
        swap_and_move(made, rank, t);
        rename_each(made, rank, t);
    }
    assert_int_equal(smp_verify_programs(&made->plan, made->flow), SMP_OK); /* all undone */
}

static bool skips(int reader, int producer)
{
    return producer == reader - 1 || (reader == 3 && producer == 0);
}

/* Stage 0 sends nothing to its neighbour: what jumps has a message of its own. */
static bool bridge(int reader, int producer)
{
    return reader == 3 ? producer == 0 || producer == 2 : reader == 2 && producer == 1;
}

static void test_verify_every_edit(void **state)
{
    (void)state;
    const struct {
        int pipeline, chunks, microbatches;
        bool training;
        made_edges reads;
    } size[] = {{2, 1, 3, true, made_chain}, {3, 1, 2, true, made_chain},
                {2, 2, 2, true, skips},      {2, 2, 2, false, skips},
                {1, 2, 2, true, made_chain}, {3, 1, 3, false, made_chain},
                {2, 2, 2, true, bridge},     {2, 2, 3, false, bridge}};
    for (int i = 0; smp_schedules()[i]; i++)
        for (size_t k = 0; k < sizeof size / sizeof size[0]; k++) {
            const smp_schedule_kind *kind = smp_schedules()[i];
            smp_schedule_shape shape = {size[k].pipeline,
                                        size[k].chunks,
                                        size[k].microbatches,
                                        size[k].training,
                                        0,
                                        0,
                                        {.shard = 1},
                                        {0}};
            if (smp_schedule_check(kind, &shape))
                continue;
            made_plan made;
            tally t = {0};
            made_plan_create(&made, kind->name, shape.pipeline, shape.chunks, shape.microbatches,
                             shape.training, size[k].reads);
            all_edits(&made, &t);
            if (t.rejected < 10 * t.accepted)
                fail_msg("%s: %ld of %ld edits accepted", kind->name, t.accepted,
                         t.accepted + t.rejected);
            made_plan_free(&made);
        }
}

static void rejects(const char *const program[2], const char *words)
{
    made_plan made;
    made_plan_stages(&made, "zero-bubble", 2, 2, 2, true, made_chain);
    for (int rank = 0; rank < 2; rank++)
        made_plan_write(&made, rank, program[rank]);
    assert_false(slow_accepts(&made.plan, made.flow));
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_ERR_INPUT);
    if (!strstr(smp_last_error(), words))
        fail_msg("got '%s', expected '%s'", smp_last_error(), words);
    made_plan_free(&made);
}

/* Stages 0 and 3 on rank 0, 1 and 2 on rank 1. */
static void test_verify_overtaking(void **state)
{
    (void)state;
    const char *const overtaken[2] = {
        "F0.0 >F0.0 F1.0 >F1.0 <F0.1 F0.1 <F1.1 F1.1 B0.1 >B0.1 B1.1 >B1.1 <B0.0 B0.0 <B1.0 B1.0 "
        "R.0 R.1 O",
        "<F1.0 F1.0 <F0.0 F0.0 F0.1 >F0.1 F1.1 >F1.1 <B0.1 B0.1 <B1.1 B1.1 B0.0 >B0.0 B1.0 >B1.0 "
        "R.0 R.1 O"};
    rejects(overtaken,
            "rank 0, action 4 (>F1.0): it overtakes: rank 1 takes it at action 1 (<F1.0), "
            "before action 3 (<F0.0)");
    const char *const weights[2] = {
        "F0.0 >F0.0 F1.0 >F1.0 <F0.1 F0.1 <F1.1 F1.1 I0.1 >B0.1 I1.1 >B1.1 W1.1 W0.1 <B0.0 B0.0 "
        "<B1.0 B1.0 R.0 R.1 O",
        overtaken[1]};
    rejects(weights, "rank 0, action 13 (W1.1): weight gradients are added in micro-batch order");
    const char *const early[2] = {
        "F0.0 >F0.0 F1.0 >F1.0 <F0.1 F0.1 <F1.1 F1.1 I0.1 >B0.1 I1.1 >B1.1 W0.1 R.1 W1.1 <B0.0 "
        "B0.0 <B1.0 B1.0 R.0 O",
        overtaken[1]};
    rejects(early, "rank 0, action 14 (R.1): the chunk's backwards are not done");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verify_every_edit),
        cmocka_unit_test(test_verify_overtaking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

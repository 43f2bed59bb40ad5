/* A foreign schedule run: every rank does its actions in order, each as soon as what it waits for
 * is done. What a rank has reached only grows, so the order of visits decides nothing: either all
 * programs end, or some ranks wait for each other whatever the timing. */
#include <math.h>
#include <stdlib.h>

#include "schedule/foreign/foreign_index.h"

/* What an action waits for: that another one is done; position -1: nothing. */
typedef struct need {
    int rank;
    int32_t position;
} need;

typedef struct running {
    const smp_foreign *foreign;
    const smp_foreign_times *times;
    smp__foreign_index index;
    int32_t *reached;                       /* [n_rank] the next action */
    double **done_us;                       /* [n_rank][n] */
    double *now_us;                         /* [n_rank] */
    int32_t *first_backward, *last_forward; /* [n_rank] */
    smp_foreign_load *load;
    int *waiting, *next, *ready; /* [n_rank] lists of ranks that wait for one, and who may go on */
    int n_ready;
} running;

static need no_need(void)
{
    return (need){.rank = -1, .position = -1};
}

static need need_of(const running *x, smp_foreign_kind kind, int32_t stage, int32_t m)
{
    return (need){x->foreign->stage_rank[stage], smp__foreign_at(&x->index, kind, stage, m)};
}

/* The neighbour's part that an action needs, in the same rank or in one whose messages are not
 * written down; or the message. */
static void need_neighbour(const running *x, const smp_foreign_action *a, bool forward, need *out)
{
    const int32_t from = a->stage + (forward ? -1 : 1), m = a->microbatch;
    const int *rank = x->foreign->stage_rank;
    smp_foreign_kind made = SMP_FOREIGN_F;
    if (from < 0 || from >= x->foreign->n_stage)
        return;
    if (x->foreign->communicates && rank[from] != rank[a->stage]) {
        out[0] = need_of(x, forward ? SMP_FOREIGN_RECV_F : SMP_FOREIGN_RECV_B, a->stage, m);
        out[1] = need_of(x, forward ? SMP_FOREIGN_SEND_F : SMP_FOREIGN_SEND_B, from, m);
        return;
    }
    if (!forward)
        (void)smp__foreign_backward(&x->index, from, m, &made);
    out[0] = need_of(x, made, from, m);
}

/* All that an action waits for: at most 3. */
static void needs_of(const running *x, const smp_foreign_action *a, need out[3])
{
    smp_foreign_kind made;
    out[0] = out[1] = out[2] = no_need();
    switch (a->kind) {
    case SMP_FOREIGN_F:
        need_neighbour(x, a, true, out);
        return;
    case SMP_FOREIGN_B:
    case SMP_FOREIGN_I:
        need_neighbour(x, a, false, out);
        out[2] = need_of(x, SMP_FOREIGN_F, a->stage, a->microbatch);
        return;
    case SMP_FOREIGN_W:
        out[0] = need_of(x, SMP_FOREIGN_I, a->stage, a->microbatch);
        return;
    case SMP_FOREIGN_SEND_F:
        out[0] = need_of(x, SMP_FOREIGN_F, a->stage, a->microbatch);
        return;
    case SMP_FOREIGN_SEND_B:
        (void)smp__foreign_backward(&x->index, a->stage, a->microbatch, &made);
        out[0] = need_of(x, made, a->stage, a->microbatch);
        return;
    case SMP_FOREIGN_WAIT_F:
        out[0] = need_of(x, SMP_FOREIGN_SEND_F, a->stage, a->microbatch);
        if (a->stage + 1 < x->foreign->n_stage)
            out[1] = need_of(x, SMP_FOREIGN_RECV_F, a->stage + 1, a->microbatch);
        return;
    case SMP_FOREIGN_WAIT_B:
        out[0] = need_of(x, SMP_FOREIGN_SEND_B, a->stage, a->microbatch);
        if (a->stage > 0)
            out[1] = need_of(x, SMP_FOREIGN_RECV_B, a->stage - 1, a->microbatch);
        return;
    default:
        return;
    }
}

static double duration(const running *x, const smp_foreign_action *a)
{
    const smp_foreign_times *t = x->times;
    switch (a->kind) {
    case SMP_FOREIGN_F:
        return t->forward_us[a->stage];
    case SMP_FOREIGN_B:
        return t->backward_us[a->stage];
    case SMP_FOREIGN_I:
        return t->backward_input_us[a->stage];
    case SMP_FOREIGN_W:
        return t->backward_us[a->stage] - t->backward_input_us[a->stage];
    default:
        return 0;
    }
}

static void add_idle(running *x, int r, int32_t at, double us)
{
    smp_foreign_load *load = &x->load[r];
    if (us <= 0)
        return;
    if (at <= x->first_backward[r])
        load->warmup_us += us;
    else if (at > x->last_forward[r])
        load->drain_us += us;
    else
        load->wait_us += us;
}

/* Behind the actions of a rank that begin together at `at`: those of one cell, where messages are
 * not written down. PyTorch begins them when all have what they need, and sends when all are
 * done. */
static int32_t end_of_cell(const running *x, int r, int32_t at)
{
    const smp_foreign_rank *rank = &x->foreign->rank[r];
    int32_t end = at + 1;
    while (!x->foreign->communicates && !x->foreign->layers && end < rank->n &&
           rank->action[end].cell == rank->action[at].cell)
        end++;
    return end;
}

/* Is there all that actions at .. end - 1 of a rank need of others? *start_us becomes when. */
static bool is_ready(const running *x, int r, int32_t at, int32_t end, double *start_us,
                     need *missing)
{
    need needs[3];
    for (int32_t i = at; i < end; i++) {
        needs_of(x, &x->foreign->rank[r].action[i], needs);
        for (int k = 0; k < 3; k++) {
            const need *n = &needs[k];
            if (n->position < 0 || (n->rank == r && n->position >= at && n->position < i))
                continue;
            if (x->reached[n->rank] <= n->position) {
                *missing = *n;
                return false;
            }
            *start_us = fmax(*start_us, x->done_us[n->rank][n->position]);
        }
    }
    return true;
}

/* Does the next actions of a rank, or says what it waits for. */
static bool step(running *x, int r, need *missing)
{
    const int32_t at = x->reached[r], end = end_of_cell(x, r, at);
    double start = x->now_us[r];
    if (!is_ready(x, r, at, end, &start, missing))
        return false;
    add_idle(x, r, at, start - x->now_us[r]);
    x->now_us[r] = start;
    for (int32_t i = at; i < end; i++) {
        const double us = duration(x, &x->foreign->rank[r].action[i]);
        x->now_us[r] += us;
        x->load[r].busy_us += us;
    }
    for (int32_t i = at; i < end; i++)
        x->done_us[r][i] = x->now_us[r];
    x->reached[r] = end;
    return true;
}

static void wake(running *x, int r)
{
    for (int waiter = x->waiting[r]; waiter >= 0; waiter = x->next[waiter])
        x->ready[x->n_ready++] = waiter;
    x->waiting[r] = -1;
}

static void run_rank(running *x, int r)
{
    need missing;
    const int32_t before = x->reached[r];
    while (x->reached[r] < x->foreign->rank[r].n) {
        if (step(x, r, &missing))
            continue;
        if (missing.rank == r) /* itself, later: for ever */
            break;
        x->next[r] = x->waiting[missing.rank];
        x->waiting[missing.rank] = r;
        break;
    }
    if (x->reached[r] > before)
        wake(x, r);
}

/* The action of a stuck rank that cannot be done, and what it waits for. */
static const smp_foreign_action *stuck_at(const running *x, int r, need *missing)
{
    double start = 0;
    const int32_t at = x->reached[r], end = end_of_cell(x, r, at);
    int32_t i = at;
    while (is_ready(x, r, at, i + 1, &start, missing) && i + 1 < end)
        i++;
    return &x->foreign->rank[r].action[i];
}

/* Along what each rank waits for, from one that is stuck, until a rank comes a second time. */
static int into_cycle(const running *x, int stuck, bool *seen)
{
    int rank = stuck;
    need missing;
    while (!seen[rank]) {
        seen[rank] = true;
        (void)stuck_at(x, rank, &missing);
        rank = missing.rank;
    }
    return rank;
}

static smp_status find_cycle(const running *x, int stuck, smp_findings *findings, smp_arena *arena)
{
    const smp_foreign *foreign = x->foreign;
    char waits[64], wanted[64];
    smp_text text = {0};
    bool *seen = SMP_ARENA_NEW(arena, bool, (size_t)foreign->n_rank);
    if (!seen)
        return SMP_ERR_NO_MEMORY;
    const int first = into_cycle(x, stuck, seen);
    smp_where where = {0};
    int rank = first;
    do {
        need missing;
        const smp_foreign_action *a = stuck_at(x, rank, &missing);
        const smp_foreign_action *b = &foreign->rank[missing.rank].action[missing.position];
        if (!text.data)
            where = (smp_where){foreign->file, rank + 1, a->cell + 1};
        smp_text_append(
            &text, "%srank %d stands at %s (cell %d) and waits for %s (cell %d of rank %d)",
            text.data ? "; " : "", rank, smp_foreign_action_text(waits, sizeof waits, a),
            (int)a->cell + 1, smp_foreign_action_text(wanted, sizeof wanted, b), (int)b->cell + 1,
            missing.rank);
        rank = missing.rank;
    } while (rank != first);
    smp_status status = text.failed ? SMP_ERR_NO_MEMORY
                                    : SMP__FIND(findings, ILLEGAL, "deadlock", where,
                                                "it never ends: %s", text.data);
    smp_text_free(&text);
    return status;
}

static smp_status set_up(running *x, smp_arena *arena)
{
    const smp_foreign *f = x->foreign;
    size_t n = (size_t)f->n_rank;
    x->reached = SMP_ARENA_NEW(arena, int32_t, n);
    x->done_us = SMP_ARENA_NEW(arena, double *, n);
    x->now_us = SMP_ARENA_NEW(arena, double, n);
    x->first_backward = SMP_ARENA_NEW(arena, int32_t, n);
    x->last_forward = SMP_ARENA_NEW(arena, int32_t, n);
    x->waiting = SMP_ARENA_NEW(arena, int, n);
    x->next = SMP_ARENA_NEW(arena, int, n);
    x->ready = SMP_ARENA_NEW(arena, int, n);
    if (!x->reached || !x->done_us || !x->now_us || !x->first_backward || !x->last_forward ||
        !x->waiting || !x->next || !x->ready)
        return SMP_ERR_NO_MEMORY;
    for (int r = 0; r < f->n_rank; r++) {
        x->done_us[r] = SMP_ARENA_NEW(arena, double, (size_t)f->rank[r].n + 1);
        if (!x->done_us[r])
            return SMP_ERR_NO_MEMORY;
        x->waiting[r] = -1;
        x->ready[x->n_ready++] = r;
        x->first_backward[r] = f->rank[r].n;
        x->last_forward[r] = -1;
        for (int32_t i = f->rank[r].n - 1; i >= 0; i--) {
            const smp_foreign_kind kind = f->rank[r].action[i].kind;
            if (kind == SMP_FOREIGN_B || kind == SMP_FOREIGN_I)
                x->first_backward[r] = i;
            if (kind == SMP_FOREIGN_F && x->last_forward[r] < 0)
                x->last_forward[r] = i;
        }
    }
    return SMP_OK;
}

/* Forwards that are kept: until B, or W. */
static int count_live(const smp_foreign_rank *rank)
{
    int live = 0, most = 0;
    for (int32_t i = 0; i < rank->n; i++) {
        const smp_foreign_kind kind = rank->action[i].kind;
        live += kind == SMP_FOREIGN_F;
        live -= kind == SMP_FOREIGN_B || kind == SMP_FOREIGN_W;
        most = live > most ? live : most;
    }
    return most;
}

smp_status smp_foreign_simulate(const smp_foreign *foreign, const smp_foreign_times *times,
                                smp_findings *findings, smp_arena *arena, smp_foreign_run *out)
{
    running x = {.foreign = foreign, .times = times};
    *out = (smp_foreign_run){.finishes = true};
    out->rank = x.load = SMP_ARENA_NEW(arena, smp_foreign_load, (size_t)foreign->n_rank);
    if (!out->rank)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp__foreign_index_build(foreign, arena, NULL, &x.index));
    SMP_TRY(set_up(&x, arena));
    while (x.n_ready > 0)
        run_rank(&x, x.ready[--x.n_ready]);
    for (int r = 0; r < foreign->n_rank; r++) {
        out->step_us = fmax(out->step_us, x.now_us[r]);
        x.load[r].live = count_live(&foreign->rank[r]);
        if (x.reached[r] < foreign->rank[r].n && out->finishes) {
            out->finishes = false;
            SMP_TRY(find_cycle(&x, r, findings, arena));
        }
    }
    for (int r = 0; r < foreign->n_rank; r++) {
        x.load[r].drain_us += out->step_us - x.now_us[r];
        x.load[r].idle_us = out->step_us - x.load[r].busy_us;
    }
    return SMP_OK;
}

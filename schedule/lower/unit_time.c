/* Unit-time simulation: each rank runs its order as far as it can; a rank that waits is tried again
 * when a neighbouring stage's rank got on. The times are those of a data-flow graph, so they do not
 * depend on the order of the visits. */
#include "schedule/lower/unit_time.h"

#include <stdlib.h>

typedef struct clockwork {
    const smp__crossing *crossing;
    const smp_program *orders;
    int microbatches;
    int64_t *forward_end;  /* [n_stage * microbatches], 0: not done */
    int64_t *backward_end; /* of B or I */
    int64_t *now;          /* [n_rank] */
    int64_t *next;         /* [n_rank] action */
    int *queue;            /* ring of ranks to visit, [n_rank] */
    bool *queued;
    int head, waiting;
    int64_t *begin;    /* [n_rank] of its actions in `timed` */
    smp__timed *timed; /* rank by rank, in order */
    int64_t n;
} clockwork;

static int64_t duration(smp_action_kind kind)
{
    return kind == SMP_ACTION_B ? 2 : 1;
}

static void visit_later(clockwork *c, int rank)
{
    if (c->queued[rank])
        return;
    c->queued[rank] = true;
    c->queue[(c->head + c->waiting++) % c->crossing->n_rank] = rank;
}

static int64_t *done_at(clockwork *c, int64_t *end, int stage, int mb)
{
    return &end[(int64_t)stage * c->microbatches + mb];
}

/* Latest end of what the action waits for, or -1 if one of them is not done. */
static int64_t ready_at(clockwork *c, const smp_action *a, int stage)
{
    int64_t *before[2] = {NULL, NULL};
    if (a->kind == SMP_ACTION_F) {
        if (stage > 0)
            before[0] = done_at(c, c->forward_end, stage - 1, a->microbatch);
    } else if (a->kind == SMP_ACTION_W) {
        before[0] = done_at(c, c->backward_end, stage, a->microbatch);
    } else {
        before[0] = done_at(c, c->forward_end, stage, a->microbatch);
        if (stage + 1 < c->crossing->flow->n_stage)
            before[1] = done_at(c, c->backward_end, stage + 1, a->microbatch);
    }
    int64_t latest = 0;
    for (int i = 0; i < 2; i++) {
        if (before[i] && *before[i] == 0)
            return -1;
        if (before[i] && *before[i] > latest)
            latest = *before[i];
    }
    return latest;
}

static void finish(clockwork *c, const smp_action *a, int stage, int64_t end)
{
    if (a->kind == SMP_ACTION_F)
        *done_at(c, c->forward_end, stage, a->microbatch) = end;
    else if (a->kind != SMP_ACTION_W)
        *done_at(c, c->backward_end, stage, a->microbatch) = end;
    if (stage > 0)
        visit_later(c, c->crossing->rank_of[stage - 1]);
    if (stage + 1 < c->crossing->flow->n_stage)
        visit_later(c, c->crossing->rank_of[stage + 1]);
}

static void run_rank(clockwork *c, int rank)
{
    const smp_program *order = &c->orders[rank];
    for (; c->next[rank] < order->n; c->next[rank]++) {
        const smp_action *a = &order->action[c->next[rank]];
        int stage = c->crossing->stage_of[(int64_t)rank * c->crossing->chunks + a->chunk];
        int64_t start = ready_at(c, a, stage);
        if (start < 0)
            return;
        if (start < c->now[rank])
            start = c->now[rank];
        c->now[rank] = start + duration(a->kind);
        c->timed[c->begin[rank] + c->next[rank]] =
            (smp__timed){.start = start, .end = c->now[rank], .rank = rank, .action = *a};
        c->n++;
        finish(c, a, stage, c->now[rank]);
    }
}

static smp_status check_orders(const smp__crossing *crossing, int microbatches,
                               const smp_program *orders, int64_t *n)
{
    *n = 0;
    for (int rank = 0; rank < crossing->n_rank; rank++) {
        *n += orders[rank].n;
        for (int64_t i = 0; i < orders[rank].n; i++) {
            const smp_action *a = &orders[rank].action[i];
            if (!smp_action_is_compute(a->kind) || a->microbatch < 0 ||
                a->microbatch >= microbatches || a->chunk < 0 || a->chunk >= crossing->chunks)
                return smp_fail(SMP_ERR_INPUT,
                                "the order of rank %d: action %lld is no compute action of %d "
                                "micro-batches and %d chunks",
                                rank, (long long)i + 1, microbatches, crossing->chunks);
        }
    }
    return SMP_OK;
}

static smp_status allocate(clockwork *c, smp_arena *arena, int64_t n)
{
    size_t n_rank = (size_t)c->crossing->n_rank;
    size_t pairs = (size_t)c->crossing->flow->n_stage * (size_t)c->microbatches;
    c->forward_end = SMP_ARENA_NEW(arena, int64_t, pairs);
    c->backward_end = SMP_ARENA_NEW(arena, int64_t, pairs);
    c->now = SMP_ARENA_NEW(arena, int64_t, n_rank);
    c->next = SMP_ARENA_NEW(arena, int64_t, n_rank);
    c->begin = SMP_ARENA_NEW(arena, int64_t, n_rank);
    c->queue = SMP_ARENA_NEW(arena, int, n_rank);
    c->queued = SMP_ARENA_NEW(arena, bool, n_rank);
    if (!c->forward_end || !c->backward_end || !c->now || !c->next || !c->begin || !c->queue ||
        !c->queued)
        return SMP_ERR_NO_MEMORY;
    for (size_t rank = 1; rank < n_rank; rank++)
        c->begin[rank] = c->begin[rank - 1] + c->orders[rank - 1].n;
    c->timed = malloc(((size_t)n + 1) * sizeof *c->timed);
    if (!c->timed)
        return smp_fail_memory((size_t)n * sizeof *c->timed);
    return SMP_OK;
}

/* By (start, rank), malloc'ed: a counting sort of what stands there rank by rank. Starts are whole
 * numbers below those of a rank that does everything. */
static smp_status sort_timed(const clockwork *c, smp_arena *arena, smp__timed **out)
{
    int64_t last = 0;
    for (int64_t i = 0; i < c->n; i++)
        last = c->timed[i].start > last ? c->timed[i].start : last;
    int64_t *at = SMP_ARENA_NEW(arena, int64_t, (size_t)last + 2);
    smp__timed *sorted = malloc(((size_t)c->n + 1) * sizeof *sorted);
    if (!at || !sorted) {
        free(sorted);
        return smp_fail_memory((size_t)c->n * sizeof *sorted);
    }
    for (int64_t i = 0; i < c->n; i++)
        at[c->timed[i].start + 1]++;
    for (int64_t start = 0; start < last; start++)
        at[start + 1] += at[start];
    for (int64_t i = 0; i < c->n; i++)
        sorted[at[c->timed[i].start]++] = c->timed[i];
    *out = sorted;
    return SMP_OK;
}

static smp_status fail_deadlock(const clockwork *c)
{
    int rank = 0;
    while (c->next[rank] == c->orders[rank].n)
        rank++;
    smp_text text = {0};
    smp_action_format(&c->orders[rank].action[c->next[rank]], &text);
    smp_status status = smp_fail(SMP_ERR_FAILED, "the compute orders deadlock: rank %d waits at %s",
                                 rank, text.data ? text.data : "an action");
    smp_text_free(&text);
    return status;
}

smp_status smp__unit_time(const smp__crossing *crossing, int microbatches,
                          const smp_program *orders, smp__timed **timed, int64_t *n)
{
    clockwork c = {.crossing = crossing, .orders = orders, .microbatches = microbatches};
    int64_t total;
    SMP_TRY(check_orders(crossing, microbatches, orders, &total));
    smp_arena *arena = smp_arena_create();
    smp_status status = arena ? allocate(&c, arena, total) : SMP_ERR_NO_MEMORY;
    if (status != SMP_OK)
        goto done;
    for (int rank = 0; rank < crossing->n_rank; rank++)
        visit_later(&c, rank);
    while (c.waiting > 0) {
        int rank = c.queue[c.head];
        c.head = (c.head + 1) % crossing->n_rank;
        c.waiting--;
        c.queued[rank] = false;
        run_rank(&c, rank);
    }
    if (c.n < total) {
        status = fail_deadlock(&c);
        goto done;
    }
    status = sort_timed(&c, arena, timed);
    *n = c.n;
done:
    free(c.timed);
    smp_arena_destroy(arena);
    return status;
}

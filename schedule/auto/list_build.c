/* List scheduling in time order: of all ranks the one that can begin something first commits it,
 * which fixes when its messages arrive and so what other ranks can begin. A forward is begun only
 * if its stash fits and the oldest micro-batch on the way keeps room for the rank's chunks it has
 * yet to pass; that one can then always go on to the loss and back, so the order does not get
 * stuck. */
#include <float.h>

#include "graph/base/clock.h"
#include "graph/base/heap.h"
#include "schedule/auto/list_model.h"

typedef struct builder {
    smp__list *list;
    const smp__list_policy *policy;
    smp__word *word;
    smp_heap heap;       /* ranks by when they can begin their choice */
    smp__letter *choice; /* [n_rank] */
    double *bytes;       /* [n_rank] stashes alive */
    int *flight;         /* [n_rank] pairs between F and I */
} builder;

/* What a rank could do next. */
typedef struct option {
    double start_us; /* DBL_MAX: nothing */
    smp__letter letter;
} option;

static smp__list_count *count_of(const smp__list *l, int rank, int chunk)
{
    return &l->count[(int64_t)rank * l->chunks + chunk];
}

/* May the rank begin a forward of the chunk's next micro-batch? */
static bool has_room(const builder *b, int rank, int chunk)
{
    const smp__list *l = b->list;
    if (!l->input->limit_bytes)
        return true;
    int oldest = count_of(l, rank, l->chunks - 1)->forward;
    double bytes = b->bytes[rank] + l->input->stash_bytes[smp__list_stage(l, rank, chunk)];
    if (count_of(l, rank, chunk)->forward > oldest)
        for (int c = 0; c < l->chunks; c++)
            if (count_of(l, rank, c)->forward <= oldest)
                bytes += l->input->stash_bytes[smp__list_stage(l, rank, c)];
    return bytes <= l->input->limit_bytes[rank];
}

static bool may_run_ahead(const builder *b, int rank)
{
    if (b->policy->ahead == 0)
        return true;
    int behind = b->list->n_stage - 1 - smp__list_stage(b->list, rank, 0);
    return b->flight[rank] <= (int64_t)behind * b->policy->ahead / 2;
}

static void consider(const builder *b, int rank, int chunk, smp_action_kind kind, double ready_us,
                     option *best)
{
    double now_us = b->list->now_us[rank];
    double start_us = ready_us > now_us ? ready_us : now_us;
    if (start_us < best->start_us)
        *best = (option){start_us, smp__letter_of(chunk, kind)};
}

/* The best forward, and whether one waits for room only. */
static option best_forward(const builder *b, int rank, bool *blocked)
{
    const smp__list *l = b->list;
    option best = {DBL_MAX, 0};
    *blocked = false;
    for (int i = 0; i < l->chunks; i++) {
        int chunk = b->policy->deep_first ? l->chunks - 1 - i : i;
        int mb = count_of(l, rank, chunk)->forward;
        double ready_us =
            mb < l->microbatches
                ? smp__list_ready_us(l, SMP_TRANSFER_F, smp__list_stage(l, rank, chunk), mb)
                : -1.0;
        if (ready_us < 0.0)
            continue;
        if (!has_room(b, rank, chunk))
            *blocked = true;
        else if (may_run_ahead(b, rank))
            consider(b, rank, chunk, SMP_ACTION_F, ready_us, &best);
    }
    return best;
}

static option best_backward(const builder *b, int rank)
{
    const smp__list *l = b->list;
    option best = {DBL_MAX, 0};
    for (int chunk = 0; chunk < l->chunks; chunk++) {
        const smp__list_count *count = count_of(l, rank, chunk);
        int stage = smp__list_stage(l, rank, chunk);
        if (count->input == count->forward)
            continue;
        double ready_us = smp__list_ready_us(l, SMP_TRANSFER_B, stage, count->input);
        if (ready_us >= 0.0)
            consider(b, rank, chunk, SMP_ACTION_I, ready_us, &best);
    }
    return best;
}

static bool any_weight(const smp__list *l, int rank, int *chunk)
{
    for (*chunk = l->chunks - 1; *chunk >= 0; --*chunk)
        if (count_of(l, rank, *chunk)->weight < count_of(l, rank, *chunk)->input)
            return true;
    return false;
}

/* Chooses the rank's next letter and puts it into the heap. */
static void choose_next(builder *b, int rank)
{
    const smp__list *l = b->list;
    bool blocked;
    int chunk;
    option forward = best_forward(b, rank, &blocked), best = best_backward(b, rank);
    double now_us = l->now_us[rank];
    if (forward.start_us < best.start_us ||
        (forward.start_us == best.start_us && b->policy->forward_first))
        best = forward;
    if (any_weight(l, rank, &chunk)) {
        double weight_us = l->cost_us[SMP_ACTION_W][smp__list_stage(l, rank, chunk)];
        bool idle = best.start_us > now_us;
        bool fits = best.start_us == DBL_MAX || now_us + weight_us <= best.start_us;
        if (b->policy->weight == SMP__WEIGHT_AT_ONCE || (blocked && idle) ||
            (idle && (fits || b->policy->weight == SMP__WEIGHT_FILLS)))
            best = (option){now_us, smp__letter_of(chunk, SMP_ACTION_W)};
    }
    smp_heap_remove(&b->heap, rank);
    b->choice[rank] = best.letter;
    if (best.start_us < DBL_MAX)
        smp_heap_set(&b->heap, rank, best.start_us);
}

static void choose_next_of_neighbours(builder *b, smp_transfer_kind kind, int stage)
{
    const smp__list *l = b->list;
    int next = smp__crossing_next(kind, stage);
    if (next >= 0 && next < l->n_stage)
        choose_next(b, l->crossing.rank_of[next]);
    smp__list_span out = l->out[kind][stage];
    for (int32_t i = out.begin; i < out.end; i++)
        choose_next(b, l->message[i].to_rank);
}

static void commit(builder *b, int rank, double start_us)
{
    smp__list *l = b->list;
    smp__letter letter = b->choice[rank];
    smp_action_kind kind = smp__letter_kind(letter);
    int chunk = smp__letter_chunk(letter), stage = smp__list_stage(l, rank, chunk);
    smp__list_count *count = count_of(l, rank, chunk);
    b->word[rank].letter[b->word[rank].n++] = letter;
    l->now_us[rank] = start_us + l->cost_us[kind][stage];
    if (kind == SMP_ACTION_F) {
        b->bytes[rank] += l->input->stash_bytes[stage];
        b->flight[rank]++;
    }
    if (kind == SMP_ACTION_W) {
        b->bytes[rank] -= l->input->stash_bytes[stage];
        count->weight++;
    }
    if (kind != SMP_ACTION_W) {
        smp_transfer_kind moves = smp__crossing_kind(kind);
        int mb = kind == SMP_ACTION_F ? count->forward++ : count->input++;
        b->flight[rank] -= kind != SMP_ACTION_F;
        l->made_at[smp__list_made(l, moves, stage, mb)] = 0;
        smp__list_send(l, moves, stage, mb, l->now_us[rank]);
        choose_next_of_neighbours(b, moves, stage);
    }
    choose_next(b, rank);
}

static smp_status prepare(builder *b, smp_arena *arena)
{
    size_t n_rank = (size_t)b->list->n_rank;
    b->choice = SMP_ARENA_NEW(arena, smp__letter, n_rank);
    b->bytes = SMP_ARENA_NEW(arena, double, n_rank);
    b->flight = SMP_ARENA_NEW(arena, int, n_rank);
    if (!b->choice || !b->bytes || !b->flight)
        return SMP_ERR_NO_MEMORY;
    return smp_heap_init(&b->heap, arena, b->list->n_rank);
}

smp_status smp__list_build(smp__list *list, const smp__list_policy *policy, smp__word *word,
                           bool *done)
{
    builder b = {.list = list, .policy = policy, .word = word};
    smp_arena *arena = smp_arena_create();
    smp_status status = arena ? prepare(&b, arena) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK) {
        smp__list_reset(list);
        for (int rank = 0; rank < list->n_rank; rank++) {
            word[rank].n = 0;
            smp_work_count(SMP_WORK_LOWER, list->longest);
            choose_next(&b, rank);
        }
        while (b.heap.n > 0) {
            int rank = smp_heap_pop(&b.heap);
            commit(&b, rank, b.heap.key[rank]);
        }
        *done = true;
        for (int rank = 0; *done && rank < list->n_rank; rank++)
            *done = smp__word_is_legal(list, rank, &word[rank]);
    }
    smp_arena_destroy(arena);
    return status;
}

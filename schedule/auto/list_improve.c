/* Improvement of an order: late acceptance hill climbing (Burke and Bykov, 2017). The longest chain
 * of actions that wait for each other without a gap fixes the time of a step; only where two of
 * its actions follow each other on one rank can another order be faster (van Laarhoven et al.,
 * 1992). A move takes one of such two a few places earlier or later. It is kept if the time is no
 * longer than it is now, or than it was some moves ago: that leads across plateaus. Deterministic:
 * choices are a hash of the number of the move. */
#include <string.h>

#include "graph/base/clock.h"
#include "graph/base/random.h"
#include "schedule/auto/list_model.h"

enum { HISTORY = 40, FAR = 12 };

typedef struct climber {
    smp__list *list;
    smp__word *word; /* current */
    smp__word *best;
    double step_us, best_us;
    double history_us[HISTORY];
    int64_t *critical; /* places that wait for the place before them on their rank */
    int64_t n_critical;
    uint64_t random;
} climber;

static uint64_t draw(climber *c, uint64_t n)
{
    return smp_random_mix(c->random++) % n;
}

static int last_rank(const smp__list *l)
{
    int last = 0;
    double last_us = -1.0;
    for (int rank = 0; rank < l->n_rank; rank++) {
        double us = l->now_us[rank] + (l->input->tail_us ? l->input->tail_us[rank] : 0.0);
        if (us > last_us) {
            last_us = us;
            last = rank;
        }
    }
    return last;
}

/* Where the message was made that an action waited for; -1: it waited for none. */
static int64_t producer_of(const smp__list *l, int rank, int64_t place, smp__letter letter)
{
    smp_action_kind action = smp__letter_kind(letter);
    smp_transfer_kind kind = smp__crossing_kind(action);
    int stage = smp__list_stage(l, rank, smp__letter_chunk(letter)), mb = l->mb_at[place];
    smp__list_span in = l->in[kind][stage];
    int64_t made = -1;
    double latest_us = -1.0;
    if (action == SMP_ACTION_W)
        return -1;
    for (int32_t i = in.begin; i < in.end; i++) {
        const smp_transfer *t = &l->crossing.flow->transfer[l->incoming[i]];
        double us = l->arrival_us[(int64_t)l->incoming[i] * l->microbatches + mb];
        if (us > latest_us) {
            latest_us = us;
            made = l->made_at[smp__list_made(l, kind, t->from_stage, mb)];
        }
    }
    return made;
}

/* Follows the chain from the end of the step back to its beginning. */
static void trace(climber *c)
{
    const smp__list *l = c->list;
    int rank = last_rank(l);
    int64_t place = (int64_t)rank * l->longest + c->word[rank].n - 1;
    c->n_critical = 0;
    while (place >= 0 && l->start_us[place] > 0.0) {
        rank = (int)(place / l->longest);
        int position = (int)(place % l->longest);
        if (position > 0 && l->start_us[place] <= l->end_us[place - 1]) {
            c->critical[c->n_critical++] = place--;
        } else {
            int64_t made = producer_of(l, rank, place, c->word[rank].letter[position]);
            if (made < 0 || l->end_us[made] > l->start_us[place])
                break;
            place = made;
        }
    }
}

/* The letter at `from` comes to stand at `to`. */
static void move_letter(smp__word *word, int from, int to)
{
    smp__letter letter = word->letter[from];
    if (from < to)
        memmove(&word->letter[from], &word->letter[from + 1], (size_t)(to - from) * sizeof letter);
    else
        memmove(&word->letter[to + 1], &word->letter[to], (size_t)(from - to) * sizeof letter);
    word->letter[to] = letter;
}

/* A move near a critical place: the later action earlier, or the one before it later. */
static void draw_move(climber *c, int *rank, int *from, int *to)
{
    const smp__list *l = c->list;
    int64_t place = c->critical[draw(c, (uint64_t)c->n_critical)];
    int position = (int)(place % l->longest);
    int distance = draw(c, 2) ? 1 : 1 + (int)draw(c, FAR);
    *rank = (int)(place / l->longest);
    if (draw(c, 2)) {
        *from = position;
        *to = position - distance > 0 ? position - distance : 0;
    } else {
        int last = c->word[*rank].n - 1;
        *from = position - 1;
        *to = position - 1 + distance < last ? position - 1 + distance : last;
    }
}

/* The current order is timed and kept. */
static void keep_order(climber *c)
{
    c->step_us = c->list->step_us;
    trace(c);
    if (c->step_us < c->best_us) {
        c->best_us = c->step_us;
        smp__words_copy(c->list, c->word, c->best);
    }
}

static void try_move(climber *c, int64_t number)
{
    int rank, from, to;
    draw_move(c, &rank, &from, &to);
    smp__word *word = &c->word[rank];
    double *late_us = &c->history_us[number % HISTORY];
    if (word->letter[from] == word->letter[to])
        return;
    move_letter(word, from, to);
    if (smp__word_is_legal(c->list, rank, word) && smp__list_evaluate(c->list, c->word) &&
        (c->list->step_us <= c->step_us || c->list->step_us <= *late_us))
        keep_order(c);
    else
        move_letter(word, to, from);
    *late_us = c->step_us;
}

smp_status smp__list_improve(smp__list *list, smp__word *word, int64_t budget, double *step_us)
{
    climber c = {.list = list, .word = word, .random = 1};
    c.critical = SMP_ARENA_NEW(list->arena, int64_t, (size_t)list->n_rank * (size_t)list->longest);
    if (!c.critical)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp__words_create(list, &c.best));
    smp__words_copy(list, word, c.best);
    if (!smp__list_evaluate(list, word))
        return smp_fail(SMP_ERR_FAILED, "an order to be improved deadlocks");
    c.best_us = list->step_us;
    keep_order(&c);
    for (int i = 0; i < HISTORY; i++)
        c.history_us[i] = c.step_us;
    for (int64_t i = 0; i < budget && c.n_critical > 0; i++) {
        if (i % 64 == 0 && smp_work_past(list->input->deadline_s))
            break;
        try_move(&c, i);
    }
    smp__words_copy(list, c.best, word);
    *step_us = c.best_us;
    return SMP_OK;
}

/* The pair I, W of one micro-batch at a position. `after` counts I without W before it. */
static bool is_pair(const smp__word *word, int position, int behind)
{
    if (position + 1 >= word->n || behind > 0)
        return false;
    smp__letter first = word->letter[position];
    return smp__letter_kind(first) == SMP_ACTION_I &&
           word->letter[position + 1] == smp__letter_of(smp__letter_chunk(first), SMP_ACTION_W);
}

/* Makes B of every pair of one chunk on a rank; the number of pairs. */
static int merge_chunk(smp__word *word, int chunk)
{
    int n = 0, merged = 0, behind = 0;
    for (int i = 0; i < word->n; i++) {
        smp__letter letter = word->letter[i];
        bool own = smp__letter_chunk(letter) == chunk;
        if (own && is_pair(word, i, behind)) {
            word->letter[n++] = smp__letter_of(chunk, SMP_ACTION_B);
            merged++;
            i++;
            continue;
        }
        if (own)
            behind += (smp__letter_kind(letter) == SMP_ACTION_I) -
                      (smp__letter_kind(letter) == SMP_ACTION_W);
        word->letter[n++] = letter;
    }
    word->n = n;
    return merged;
}

static void merge_all(const smp__list *list, smp__word *word)
{
    for (int rank = 0; rank < list->n_rank; rank++)
        for (int chunk = 0; chunk < list->chunks; chunk++)
            merge_chunk(&word[rank], chunk);
}

smp_status smp__list_merge(smp__list *list, smp__word *word, int64_t budget, double *step_us)
{
    smp__word *saved;
    SMP_TRY(smp__words_create(list, &saved));
    smp__words_copy(list, word, saved);
    merge_all(list, word);
    if (smp__list_evaluate(list, word) && list->step_us <= *step_us)
        return SMP_OK;
    smp__words_copy(list, saved, word);
    for (int rank = 0; rank < list->n_rank; rank++)
        for (int chunk = 0; chunk < list->chunks && budget-- > 0; chunk++) {
            size_t bytes = (size_t)word[rank].n * sizeof(smp__letter);
            saved[rank].n = word[rank].n;
            memcpy(saved[rank].letter, word[rank].letter, bytes);
            if (merge_chunk(&word[rank], chunk) == 0 ||
                (smp__list_evaluate(list, word) && list->step_us <= *step_us))
                continue;
            word[rank].n = saved[rank].n;
            memcpy(word[rank].letter, saved[rank].letter, bytes);
        }
    return SMP_OK;
}

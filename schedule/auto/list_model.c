/* See list_model.h. Timing is token passing: a rank runs until an input has not been sent yet and
 * is tried again when a rank it hears from got on. A link carries what one rank sends to another,
 * in the order of that rank, so times do not depend on the order of the visits. */
#include "schedule/auto/list_model.h"

#include <stdlib.h>
#include <string.h>

#include "graph/base/clock.h"

static void fill_stage(smp__list *l, int stage, const int32_t *link_of, int32_t *n_out,
                       int32_t *n_in)
{
    const smp_flow *flow = l->crossing.flow;
    for (int kind = 0; kind < 2; kind++) {
        l->out[kind][stage].begin = *n_out;
        for (int32_t i = flow->out_begin[stage]; i < flow->out_begin[stage + 1]; i++) {
            const smp_transfer *t = &flow->transfer[flow->out_list[i]];
            if ((int)t->kind != kind || !smp__crossing_is_message(&l->crossing, t))
                continue;
            l->message[(*n_out)++] =
                (smp__list_message){.transfer = flow->out_list[i],
                                    .link = link_of[flow->out_list[i]],
                                    .to_rank = l->crossing.rank_of[t->to_stage],
                                    .us = l->input->transfer_us[flow->out_list[i]]};
        }
        l->out[kind][stage].end = *n_out;
        l->in[kind][stage].begin = *n_in;
        for (int32_t i = flow->in_begin[stage]; i < flow->in_begin[stage + 1]; i++) {
            const smp_transfer *t = &flow->transfer[flow->in_list[i]];
            if ((int)t->kind == kind && smp__crossing_is_message(&l->crossing, t))
                l->incoming[(*n_in)++] = flow->in_list[i];
        }
        l->in[kind][stage].end = *n_in;
    }
}

static smp_status build_messages(smp__list *l)
{
    size_t n_transfer = (size_t)l->crossing.flow->n_transfer, n_stage = (size_t)l->n_stage;
    int32_t *link_of;
    int32_t n_out = 0, n_in = 0;
    SMP_TRY(smp__crossing_links(&l->crossing, l->arena, &link_of, &l->n_link));
    l->message = SMP_ARENA_NEW(l->arena, smp__list_message, n_transfer);
    l->incoming = SMP_ARENA_NEW(l->arena, int32_t, n_transfer);
    for (int kind = 0; kind < 2; kind++) {
        l->out[kind] = SMP_ARENA_NEW(l->arena, smp__list_span, n_stage);
        l->in[kind] = SMP_ARENA_NEW(l->arena, smp__list_span, n_stage);
        if (!l->out[kind] || !l->in[kind])
            return SMP_ERR_NO_MEMORY;
    }
    if (!l->message || !l->incoming)
        return SMP_ERR_NO_MEMORY;
    for (int stage = 0; stage < l->n_stage; stage++)
        fill_stage(l, stage, link_of, &n_out, &n_in);
    return SMP_OK;
}

static smp_status build_costs(smp__list *l)
{
    for (int kind = 0; kind < SMP__LETTER_KINDS; kind++)
        if (!(l->cost_us[kind] = SMP_ARENA_NEW(l->arena, double, (size_t)l->n_stage)))
            return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < l->n_stage; s++) {
        l->cost_us[SMP_ACTION_F][s] = l->input->forward_us[s];
        l->cost_us[SMP_ACTION_I][s] = l->input->input_us[s];
        l->cost_us[SMP_ACTION_W][s] = l->input->weight_us[s];
        l->cost_us[SMP_ACTION_B][s] = l->input->input_us[s] + l->input->weight_us[s];
    }
    return SMP_OK;
}

static smp_status allocate_times(smp__list *l)
{
    size_t pairs = (size_t)l->n_stage * (size_t)l->microbatches, n_rank = (size_t)l->n_rank;
    size_t places = n_rank * (size_t)l->longest;
    l->arrival_us = SMP_ARENA_NEW(l->arena, double,
                                  (size_t)l->crossing.flow->n_transfer *(size_t)l->microbatches);
    l->link_us = SMP_ARENA_NEW(l->arena, double, (size_t)l->n_link);
    l->made_at = SMP_ARENA_NEW(l->arena, int64_t, 2 * pairs);
    l->start_us = SMP_ARENA_NEW(l->arena, double, places);
    l->end_us = SMP_ARENA_NEW(l->arena, double, places);
    l->mb_at = SMP_ARENA_NEW(l->arena, int32_t, places);
    l->now_us = SMP_ARENA_NEW(l->arena, double, n_rank);
    l->next = SMP_ARENA_NEW(l->arena, int, n_rank);
    l->count = SMP_ARENA_NEW(l->arena, smp__list_count, n_rank * (size_t)l->chunks);
    l->queue = SMP_ARENA_NEW(l->arena, int, n_rank);
    l->queued = SMP_ARENA_NEW(l->arena, bool, n_rank);
    return l->arrival_us && l->link_us && l->made_at && l->start_us && l->end_us && l->mb_at &&
                   l->now_us && l->next && l->count && l->queue && l->queued
               ? SMP_OK
               : SMP_ERR_NO_MEMORY;
}

smp_status smp__list_open(const smp_list_input *input, smp__list *list)
{
    *list = (smp__list){.input = input,
                        .n_rank = input->pipeline,
                        .chunks = input->chunks,
                        .microbatches = input->microbatches,
                        .n_stage = input->flow->n_stage,
                        .longest = 3 * input->chunks * input->microbatches,
                        .arena = smp_arena_create()};
    smp_status status = list->arena
                            ? smp__crossing_build(list->arena, input->flow, input->stage_rank,
                                                  input->pipeline, input->chunks, &list->crossing)
                            : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        status = build_costs(list);
    if (status == SMP_OK)
        status = build_messages(list);
    if (status == SMP_OK)
        status = allocate_times(list);
    return status;
}

void smp__list_close(smp__list *list)
{
    smp_arena_destroy(list->arena);
}

smp_status smp__words_create(const smp__list *list, smp__word **out)
{
    smp__word *word = SMP_ARENA_NEW(list->arena, smp__word, (size_t)list->n_rank);
    if (!word)
        return SMP_ERR_NO_MEMORY;
    for (int rank = 0; rank < list->n_rank; rank++)
        if (!(word[rank].letter = SMP_ARENA_NEW(list->arena, smp__letter, (size_t)list->longest)))
            return SMP_ERR_NO_MEMORY;
    *out = word;
    return SMP_OK;
}

void smp__words_copy(const smp__list *list, const smp__word *from, smp__word *to)
{
    for (int rank = 0; rank < list->n_rank; rank++) {
        to[rank].n = from[rank].n;
        memcpy(to[rank].letter, from[rank].letter, (size_t)from[rank].n * sizeof(smp__letter));
    }
}

/* Adds a letter to the counts; false if what it needs on its rank is not done. */
static bool count_letter(smp__list_count *c, smp_action_kind kind)
{
    if (kind == SMP_ACTION_F) {
        c->forward++;
    } else if (kind == SMP_ACTION_W) {
        c->weight++;
    } else {
        /* A whole backward adds weight gradients too: all earlier ones must be there. */
        if (kind == SMP_ACTION_B && c->weight++ != c->input)
            return false;
        c->input++;
    }
    return c->weight <= c->input && c->input <= c->forward;
}

bool smp__word_is_legal(const smp__list *list, int rank, const smp__word *word)
{
    enum { FEW = 64 };
    smp__list_count few[FEW] = {{0}}, *count = few;
    double bytes = 0.0, limit = list->input->limit_bytes ? list->input->limit_bytes[rank] : 0.0;
    bool legal = true;
    if (list->chunks > FEW && !(count = calloc((size_t)list->chunks, sizeof *count)))
        return false;
    for (int i = 0; legal && i < word->n; i++) {
        int chunk = smp__letter_chunk(word->letter[i]);
        smp_action_kind kind = smp__letter_kind(word->letter[i]);
        double stash = list->input->stash_bytes[smp__list_stage(list, rank, chunk)];
        legal = count_letter(&count[chunk], kind);
        if (kind == SMP_ACTION_F)
            bytes += stash;
        if (list->input->limit_bytes && bytes > limit * (1.0 + 1e-12))
            legal = false;
        if (kind == SMP_ACTION_B || kind == SMP_ACTION_W)
            bytes -= stash;
    }
    for (int c = 0; legal && c < list->chunks; c++)
        legal = count[c].weight == list->microbatches && count[c].forward == list->microbatches;
    if (count != few)
        free(count);
    return legal;
}

void smp__list_reset(smp__list *list)
{
    size_t arrivals = (size_t)list->crossing.flow->n_transfer * (size_t)list->microbatches;
    size_t pairs = 2 * (size_t)list->n_stage * (size_t)list->microbatches;
    for (size_t i = 0; i < arrivals; i++)
        list->arrival_us[i] = -1.0;
    for (size_t i = 0; i < pairs; i++)
        list->made_at[i] = -1;
    for (int i = 0; i < list->n_link; i++)
        list->link_us[i] = 0.0;
    for (int rank = 0; rank < list->n_rank; rank++) {
        list->now_us[rank] = 0.0;
        list->next[rank] = 0;
    }
    memset(list->count, 0, (size_t)list->n_rank * (size_t)list->chunks * sizeof *list->count);
    list->step_us = 0.0;
}

double smp__list_ready_us(const smp__list *list, smp_transfer_kind kind, int stage, int mb)
{
    double ready_us = 0.0;
    /* The lowering lets every stage wait for its neighbour, whether or not data comes from it. */
    int before = kind == SMP_TRANSFER_F ? stage - 1 : stage + 1;
    if (before >= 0 && before < list->n_stage &&
        list->made_at[smp__list_made(list, kind, before, mb)] < 0)
        return -1.0;
    smp__list_span in = list->in[kind][stage];
    for (int32_t i = in.begin; i < in.end; i++) {
        double us = list->arrival_us[(int64_t)list->incoming[i] * list->microbatches + mb];
        if (us < 0.0)
            return -1.0;
        if (us > ready_us)
            ready_us = us;
    }
    return ready_us;
}

void smp__list_send(smp__list *list, smp_transfer_kind kind, int stage, int mb, double end_us)
{
    smp__list_span out = list->out[kind][stage];
    for (int32_t i = out.begin; i < out.end; i++) {
        const smp__list_message *m = &list->message[i];
        double *link_us = &list->link_us[m->link];
        *link_us = (*link_us > end_us ? *link_us : end_us) + m->us;
        list->arrival_us[(int64_t)m->transfer * list->microbatches + mb] = *link_us;
    }
}

typedef struct timing {
    smp__list *list;
    const smp__word *word;
    int head, waiting;
    int64_t left;
} timing;

static void visit_later(timing *t, int rank)
{
    smp__list *l = t->list;
    if (l->queued[rank])
        return;
    l->queued[rank] = true;
    int at = t->head + t->waiting++;
    l->queue[at < l->n_rank ? at : at - l->n_rank] = rank;
}

static void wake_neighbours(timing *t, smp_transfer_kind kind, int stage)
{
    smp__list *l = t->list;
    int next = smp__crossing_next(kind, stage);
    if (next >= 0 && next < l->n_stage)
        visit_later(t, l->crossing.rank_of[next]);
    smp__list_span out = l->out[kind][stage];
    for (int32_t i = out.begin; i < out.end; i++)
        visit_later(t, l->message[i].to_rank);
}

/* The rank's next action, if its inputs have been sent. */
static bool run_letter(timing *t, int rank)
{
    smp__list *l = t->list;
    int position = l->next[rank];
    smp__letter letter = t->word[rank].letter[position];
    smp_action_kind action = smp__letter_kind(letter);
    int chunk = smp__letter_chunk(letter), stage = smp__list_stage(l, rank, chunk);
    smp__list_count *count = &l->count[(int64_t)rank * l->chunks + chunk];
    smp_transfer_kind kind = smp__crossing_kind(action);
    int mb = action == SMP_ACTION_F ? count->forward : count->input;
    double start_us = l->now_us[rank];
    if (action != SMP_ACTION_W) {
        double ready_us = smp__list_ready_us(l, kind, stage, mb);
        if (ready_us < 0.0)
            return false;
        if (ready_us > start_us)
            start_us = ready_us;
    }
    int64_t place = (int64_t)rank * l->longest + position;
    l->start_us[place] = start_us;
    l->mb_at[place] = mb;
    l->end_us[place] = l->now_us[rank] = start_us + l->cost_us[action][stage];
    l->next[rank]++;
    t->left--;
    if (action == SMP_ACTION_W)
        return true;
    *(action == SMP_ACTION_F ? &count->forward : &count->input) += 1;
    l->made_at[smp__list_made(l, kind, stage, mb)] = place;
    smp__list_send(l, kind, stage, mb, l->now_us[rank]);
    wake_neighbours(t, kind, stage);
    return true;
}

bool smp__list_evaluate(smp__list *list, const smp__word *word)
{
    timing t = {.list = list, .word = word};
    smp__list_reset(list);
    for (int rank = 0; rank < list->n_rank; rank++) {
        t.left += word[rank].n;
        smp_work_count(SMP_WORK_LETTER, word[rank].n);
        visit_later(&t, rank);
    }
    while (t.waiting > 0) {
        int rank = list->queue[t.head];
        t.head = t.head + 1 < list->n_rank ? t.head + 1 : 0;
        t.waiting--;
        list->queued[rank] = false;
        while (list->next[rank] < word[rank].n && run_letter(&t, rank))
            ;
    }
    for (int rank = 0; rank < list->n_rank; rank++) {
        double end_us =
            list->now_us[rank] + (list->input->tail_us ? list->input->tail_us[rank] : 0.0);
        if (end_us > list->step_us)
            list->step_us = end_us;
    }
    return t.left == 0;
}

/* What is missing, twice or out of place in a foreign schedule. Linear in actions. */
#include <stdlib.h>
#include <string.h>

#include "schedule/foreign/foreign_index.h"

enum { MOST = 20 }; /* findings of one kind: a schedule that lacks one row lacks everything */

typedef struct checker {
    const smp_foreign *foreign;
    smp__foreign_index index;
    smp_findings *findings;
    smp_arena *arena;
} checker;

static smp_where where_of(const smp_foreign *foreign, int rank, const smp_foreign_action *a)
{
    /* Layouts have no row to point to. */
    return foreign->layers ? (smp_where){0} : (smp_where){foreign->file, rank + 1, a->cell + 1};
}

static smp_status put_action(const smp_foreign *foreign, int rank, const smp_foreign_action *a,
                             const char *what, smp_findings *findings)
{
    char text[64];
    if (!findings || findings->n >= MOST)
        return SMP_OK;
    return SMP__FIND(findings, ILLEGAL, "action", where_of(foreign, rank, a), "rank %d: %s %s",
                     rank, smp_foreign_action_text(text, sizeof text, a), what);
}

static smp_status enter_action(smp__foreign_index *index, int rank, int32_t position,
                               smp_findings *findings)
{
    const smp_foreign *foreign = index->foreign;
    const smp_foreign_action *a = &foreign->rank[rank].action[position];
    if (a->stage >= foreign->n_stage)
        return put_action(foreign, rank, a, "is of a stage that nobody computes", findings);
    if (a->microbatch >= foreign->microbatches)
        return put_action(foreign, rank, a, "is of a micro-batch that nobody computes", findings);
    if (foreign->stage_rank[a->stage] != rank)
        return put_action(foreign, rank, a, "is of a stage that lies on another rank", findings);
    if (a->kind >= SMP_FOREIGN_PER_MICROBATCH)
        return SMP_OK;
    int32_t *at = &index->at[(int64_t)a->stage * foreign->microbatches + a->microbatch][a->kind];
    if (*at >= 0)
        return put_action(foreign, rank, a, "stands there twice", findings);
    *at = position;
    return SMP_OK;
}

smp_status smp__foreign_index_build(const smp_foreign *foreign, smp_arena *arena,
                                    smp_findings *findings, smp__foreign_index *out)
{
    size_t n = (size_t)foreign->n_stage * (size_t)foreign->microbatches;
    *out = (smp__foreign_index){.foreign = foreign};
    out->at = smp_arena_alloc_aligned(arena, n, sizeof *out->at, sizeof(int32_t));
    if (!out->at)
        return SMP_ERR_NO_MEMORY;
    memset(out->at, 0xff, n * sizeof *out->at);
    for (int r = 0; r < foreign->n_rank; r++)
        for (int32_t i = 0; i < foreign->rank[r].n; i++)
            SMP_TRY(enter_action(out, r, i, findings));
    return SMP_OK;
}

static smp_status lack(const checker *c, smp_foreign_kind kind, int s, int m, const char *why)
{
    char text[64];
    const smp_foreign_action a = {.kind = kind, .stage = s, .microbatch = m};
    if (c->findings->n >= MOST)
        return SMP_OK;
    return SMP__FIND(c->findings, ILLEGAL, "missing", (smp_where){0}, "%s is missing%s",
                     smp_foreign_action_text(text, sizeof text, &a), why);
}

static bool has(const checker *c, smp_foreign_kind kind, int s, int m)
{
    return smp__foreign_at(&c->index, kind, s, m) >= 0;
}

static smp_status check_compute(const checker *c, int s, int m)
{
    const bool whole = has(c, SMP_FOREIGN_B, s, m);
    const bool input = has(c, SMP_FOREIGN_I, s, m), weight = has(c, SMP_FOREIGN_W, s, m);
    if (!has(c, SMP_FOREIGN_F, s, m))
        return lack(c, SMP_FOREIGN_F, s, m, "");
    if (whole && (input || weight))
        return lack(c, SMP_FOREIGN_B, s, m, ", or its halves: it has both");
    if (!c->foreign->training || whole || (input && weight))
        return SMP_OK;
    if (!input && !weight)
        return lack(c, SMP_FOREIGN_B, s, m, "");
    return lack(c, input ? SMP_FOREIGN_W : SMP_FOREIGN_I, s, m, "");
}

/* Messages between the ranks of neighbouring stages. */
static smp_status check_message(const checker *c, smp_foreign_kind send, int from, int to, int m)
{
    const smp_foreign_kind receive =
        send == SMP_FOREIGN_SEND_F ? SMP_FOREIGN_RECV_F : SMP_FOREIGN_RECV_B;
    const int *rank = c->foreign->stage_rank;
    if (rank[from] == rank[to])
        return SMP_OK;
    if (!has(c, send, from, m))
        return lack(c, send, from, m, "");
    return has(c, receive, to, m) ? SMP_OK : lack(c, receive, to, m, "");
}

static smp_status check_messages(const checker *c, int s, int m)
{
    if (!c->foreign->communicates || s + 1 == c->foreign->n_stage)
        return SMP_OK;
    SMP_TRY(check_message(c, SMP_FOREIGN_SEND_F, s, s + 1, m));
    return c->foreign->training ? check_message(c, SMP_FOREIGN_SEND_B, s + 1, s, m) : SMP_OK;
}

/* The next message between two ranks in a row of one of them, from *i on. */
static const smp_foreign_action *next_message(const smp_foreign *foreign, int row, int other,
                                              bool sends, int32_t *i)
{
    const smp_foreign_rank *rank = &foreign->rank[row];
    for (; *i < rank->n; ++*i) {
        const smp_foreign_action *a = &rank->action[*i];
        const bool f = a->kind == (sends ? SMP_FOREIGN_SEND_F : SMP_FOREIGN_RECV_F);
        const bool b = a->kind == (sends ? SMP_FOREIGN_SEND_B : SMP_FOREIGN_RECV_B);
        const int peer = a->stage + (f == sends ? 1 : -1);
        if ((f || b) && peer >= 0 && peer < foreign->n_stage && foreign->stage_rank[peer] == other)
            return &rank->action[(*i)++];
    }
    return NULL;
}

/* Messages from one rank to another are told apart by their order alone: the k-th that is received
 * is the k-th that was sent. */
static smp_status check_order(const checker *c, int from, int to)
{
    const smp_foreign *foreign = c->foreign;
    char got[64], sent_text[64];
    for (int32_t i = 0, k = 0;;) {
        const smp_foreign_action *sent = next_message(foreign, from, to, true, &i);
        const smp_foreign_action *taken = next_message(foreign, to, from, false, &k);
        if (!sent || !taken)
            return SMP_OK;
        const bool forward = sent->kind == SMP_FOREIGN_SEND_F;
        if ((taken->kind == SMP_FOREIGN_RECV_F) == forward &&
            taken->stage == sent->stage + (forward ? 1 : -1) &&
            taken->microbatch == sent->microbatch)
            continue;
        return SMP__FIND(c->findings, ILLEGAL, "order", where_of(foreign, to, taken),
                         "rank %d takes %s where rank %d has sent %s: messages between two ranks "
                         "are told apart by their order alone",
                         to, smp_foreign_action_text(got, sizeof got, taken), from,
                         smp_foreign_action_text(sent_text, sizeof sent_text, sent));
    }
}

static int compare_pairs(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Pairs of ranks with neighbouring stages, each once. */
static smp_status check_orders(const checker *c)
{
    const int *rank = c->foreign->stage_rank;
    size_t n = 0;
    if (!c->foreign->communicates)
        return SMP_OK;
    int64_t *pair = SMP_ARENA_NEW(c->arena, int64_t, (size_t)c->foreign->n_stage);
    if (!pair)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s + 1 < c->foreign->n_stage; s++) {
        const int low = rank[s] < rank[s + 1] ? rank[s] : rank[s + 1];
        const int high = rank[s] < rank[s + 1] ? rank[s + 1] : rank[s];
        if (low >= 0 && low != high)
            pair[n++] = (int64_t)low << 32 | high;
    }
    qsort(pair, n, sizeof *pair, compare_pairs);
    for (size_t i = 0; i < n; i++) {
        const int low = (int)(pair[i] >> 32), high = (int)(pair[i] & 0xffffffff);
        if (i > 0 && pair[i] == pair[i - 1])
            continue;
        SMP_TRY(check_order(c, low, high));
        SMP_TRY(check_order(c, high, low));
    }
    return SMP_OK;
}

/* A reduction stands after all gradients of its stage, and computing between UNSHARD and
 * RESHARD. */
static smp_status check_rank(const checker *c, int r)
{
    const smp_foreign *foreign = c->foreign;
    const smp_foreign_rank *rank = &foreign->rank[r];
    enum { UNKNOWN, SHARDED, WHOLE };
    unsigned char *state = SMP_ARENA_NEW(c->arena, unsigned char, (size_t)foreign->n_stage);
    bool *reduced = SMP_ARENA_NEW(c->arena, bool, (size_t)foreign->n_stage);
    if (!state || !reduced)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < rank->n; i++) /* of stages that are gathered at all */
        if (rank->action[i].kind == SMP_FOREIGN_UNSHARD && rank->action[i].stage < foreign->n_stage)
            state[rank->action[i].stage] = SHARDED;
    for (int32_t i = 0; i < rank->n; i++) {
        const smp_foreign_action *a = &rank->action[i];
        if (a->stage >= foreign->n_stage)
            continue;
        const bool adds = a->kind == SMP_FOREIGN_B || a->kind == SMP_FOREIGN_W;
        if (a->kind == SMP_FOREIGN_UNSHARD)
            state[a->stage] = WHOLE;
        else if (a->kind == SMP_FOREIGN_RESHARD && state[a->stage] == WHOLE)
            state[a->stage] = SHARDED;
        else if (a->kind == SMP_FOREIGN_REDUCE)
            reduced[a->stage] = true;
        else if (a->kind <= SMP_FOREIGN_W && state[a->stage] == SHARDED)
            SMP_TRY(
                put_action(foreign, r, a, "computes with weights that are in shards", c->findings));
        if (adds && reduced[a->stage])
            SMP_TRY(put_action(foreign, r, a, "adds to gradients that are reduced already",
                               c->findings));
    }
    return SMP_OK;
}

/* PyTorch keeps the losses in the order in which they are computed, and takes that of a micro-batch
 * by its number. */
static smp_status check_losses(const checker *c)
{
    const smp_foreign *foreign = c->foreign;
    const int last = foreign->n_stage - 1, r = foreign->stage_rank[last];
    int32_t expected = 0;
    for (int32_t i = 0; r >= 0 && foreign->training && i < foreign->rank[r].n; i++) {
        const smp_foreign_action *a = &foreign->rank[r].action[i];
        if (a->kind != SMP_FOREIGN_F || a->stage != last)
            continue;
        if (a->microbatch != expected++)
            return SMP__FIND(c->findings, ILLEGAL, "order", where_of(foreign, r, a),
                             "rank %d: %dF%d is not in the order of micro-batches: losses of the "
                             "last stage are told apart by their order alone",
                             r, (int)a->stage, (int)a->microbatch);
    }
    return SMP_OK;
}

static smp_status check_all(checker *c)
{
    const smp_foreign *foreign = c->foreign;
    SMP_TRY(smp__foreign_index_build(foreign, c->arena, c->findings, &c->index));
    for (int s = 0; s < foreign->n_stage; s++) {
        for (int m = 0; m < foreign->microbatches; m++) {
            SMP_TRY(check_compute(c, s, m));
            SMP_TRY(check_messages(c, s, m));
        }
    }
    SMP_TRY(check_orders(c));
    SMP_TRY(check_losses(c));
    for (int r = 0; r < foreign->n_rank; r++)
        SMP_TRY(check_rank(c, r));
    return SMP_OK;
}

smp_status smp_foreign_check(const smp_foreign *foreign, smp_findings *findings)
{
    checker c = {.foreign = foreign, .findings = findings, .arena = smp_arena_create()};
    if (!c.arena)
        return SMP_ERR_NO_MEMORY;
    smp_status status = check_all(&c);
    smp_arena_destroy(c.arena);
    return status;
}

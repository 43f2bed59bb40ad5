/* Reading a foreign schedule: which format it is, its actions, and what follows from them: stages,
 * micro-batches, which rank has which stage. */
#include "schedule/foreign/foreign.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/foreign/foreign_readers.h"

enum { MAX_FILE = 256 << 20 };

static const smp_foreign_reader *const readers[] = {
#define READER(id) &smp__foreign_##id,
    SMP_FOREIGN_LIST(READER)
#undef READER
        NULL};

const smp_foreign_reader *const *smp_foreign_readers(void)
{
    return readers;
}

static const smp_foreign_reader *find_reader(const char *text)
{
    for (int i = 0; readers[i]; i++)
        if (readers[i]->recognise(text))
            return readers[i];
    return NULL;
}

smp_status smp_foreign_is(const char *path, bool *is)
{
    char *text;
    size_t bytes;
    smp_status status = smp_file_read(path, MAX_FILE, &text, &bytes);
    *is = status == SMP_OK && find_reader(text) != NULL;
    if (status == SMP_OK)
        free(text);
    return status == SMP_ERR_INPUT ? SMP_OK : status;
}

smp_status smp__foreign_push(smp_foreign_rank *rank, smp_foreign_action action)
{
    SMP_TRY(smp_array_reserve(&rank->action, &rank->capacity, sizeof *rank->action,
                              (size_t)rank->n + 1));
    rank->action[rank->n++] = action;
    return SMP_OK;
}

smp_status smp__foreign_order_1f1b(smp_foreign *foreign)
{
    const smp_schedule_kind *kind = smp_schedule_find("interleaved");
    const smp_schedule_shape shape = {.pipeline = foreign->n_rank,
                                      .chunks = foreign->n_stage / foreign->n_rank,
                                      .microbatches = foreign->microbatches,
                                      .training = true};
    static const smp_foreign_kind kind_of[] = {SMP_FOREIGN_F, SMP_FOREIGN_B, SMP_FOREIGN_I,
                                               SMP_FOREIGN_W}; /* by compute action */
    /* a rank's order is gone through in groups of as many micro-batches as there are ranks */
    const int longest =
        foreign->microbatches > foreign->n_rank ? foreign->microbatches : foreign->n_rank;
    if (foreign->n_stage > SMP_FOREIGN_MAX_PAIRS / longest)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got %d stages on %d ranks and %d micro-batches, too many",
                        foreign->file, foreign->n_stage, foreign->n_rank, foreign->microbatches);
    foreign->rank = SMP_ARENA_NEW(foreign->arena, smp_foreign_rank, (size_t)foreign->n_rank);
    if (!foreign->rank)
        return SMP_ERR_NO_MEMORY;
    for (int r = 0; r < foreign->n_rank; r++) {
        smp_program order = {0};
        smp_status status = kind->order(&shape, r, &order);
        for (int64_t i = 0; i < order.n && status == SMP_OK; i++)
            status = smp__foreign_push(
                &foreign->rank[r],
                (smp_foreign_action){.kind = kind_of[order.action[i].kind],
                                     .stage = order.action[i].chunk * foreign->n_rank + r,
                                     .microbatch = order.action[i].microbatch,
                                     .cell = (int32_t)i});
        smp_program_free(&order);
        SMP_TRY(status);
    }
    return SMP_OK;
}

/* Stages and micro-batches are those that are computed. */
static smp_status count(smp_foreign *foreign)
{
    int stages = 0, microbatches = 0;
    for (int r = 0; r < foreign->n_rank; r++) {
        for (int32_t i = 0; i < foreign->rank[r].n; i++) {
            const smp_foreign_action *a = &foreign->rank[r].action[i];
            foreign->communicates |= a->kind >= SMP_FOREIGN_SEND_F && a->kind <= SMP_FOREIGN_WAIT_B;
            if (a->kind > SMP_FOREIGN_W)
                continue;
            foreign->training |= a->kind != SMP_FOREIGN_F;
            stages = a->stage >= stages ? a->stage + 1 : stages;
            microbatches = a->microbatch >= microbatches ? a->microbatch + 1 : microbatches;
        }
    }
    if (stages == 0)
        return smp_fail_at((smp_where){foreign->file, 1, 1},
                           "got no action, expected forwards such as 0F0");
    if (stages > SMP_FOREIGN_MAX_PAIRS / microbatches)
        return smp_fail(SMP_ERR_INPUT, "%s: got %d stages and %d micro-batches, too many",
                        foreign->file, stages, microbatches);
    foreign->n_stage = stages;
    foreign->microbatches = microbatches;
    return SMP_OK;
}

static smp_status place(smp_foreign *foreign)
{
    foreign->stage_rank = SMP_ARENA_NEW(foreign->arena, int, (size_t)foreign->n_stage);
    if (!foreign->stage_rank)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < foreign->n_stage; s++)
        foreign->stage_rank[s] = -1;
    for (int r = 0; r < foreign->n_rank; r++) {
        for (int32_t i = 0; i < foreign->rank[r].n; i++) {
            const smp_foreign_action *a = &foreign->rank[r].action[i];
            if (a->kind <= SMP_FOREIGN_W && foreign->stage_rank[a->stage] < 0)
                foreign->stage_rank[a->stage] = r;
        }
    }
    return SMP_OK;
}

static smp_status read_text(smp_foreign *foreign, const char *text, int ranks, int microbatches)
{
    const smp_foreign_reader *reader = find_reader(text);
    if (!reader)
        return smp_fail_at((smp_where){foreign->file, 1, 1},
                           "expected a schedule of torch.distributed.pipelining (0F0,0F1,...), a "
                           "layout of Megatron-LM (Et|tL) or DeepSpeed's parts ([0, 2, 4])");
    foreign->format = reader->name;
    SMP_TRY(reader->read(foreign, text, ranks, microbatches));
    SMP_TRY(count(foreign));
    return place(foreign);
}

smp_status smp_foreign_parse(const char *name, const char *text, int ranks, int microbatches,
                             smp_foreign **out)
{
    smp_arena *arena = smp_arena_create();
    smp_foreign *foreign = arena ? SMP_ARENA_NEW(arena, smp_foreign, 1) : NULL;
    if (!foreign) {
        smp_arena_destroy(arena);
        return SMP_ERR_NO_MEMORY;
    }
    foreign->arena = arena;
    foreign->file = smp_arena_strdup(arena, name);
    smp_status status =
        foreign->file ? read_text(foreign, text, ranks, microbatches) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        *out = foreign;
    else
        smp_foreign_destroy(foreign);
    return status;
}

smp_status smp_foreign_read(const char *path, int ranks, int microbatches, smp_foreign **out)
{
    char *text;
    size_t bytes;
    SMP_TRY(smp_file_read(path, MAX_FILE, &text, &bytes));
    smp_status status = smp_foreign_parse(path, text, ranks, microbatches, out);
    free(text);
    return status;
}

void smp_foreign_destroy(smp_foreign *foreign)
{
    if (!foreign)
        return;
    for (int r = 0; foreign->rank && r < foreign->n_rank; r++)
        free(foreign->rank[r].action);
    smp_arena_destroy(foreign->arena);
}

char *smp_foreign_action_text(char *buffer, size_t size, const smp_foreign_action *action)
{
    static const char *const names[] = {
#define NAME(id, name) name,
        SMP_FOREIGN_ACTION_LIST(NAME)
#undef NAME
    };
    if (action->microbatch < 0)
        snprintf(buffer, size, "%d%s", (int)action->stage, names[action->kind]);
    else
        snprintf(buffer, size, "%d%s%d", (int)action->stage, names[action->kind],
                 (int)action->microbatch);
    return buffer;
}

smp_status smp_foreign_orders(const smp_foreign *foreign, smp_program *orders, int *chunks)
{
    static const smp_action_kind kind_of[] = {SMP_ACTION_F, SMP_ACTION_B, SMP_ACTION_I,
                                              SMP_ACTION_W}; /* by foreign kind */
    int v = foreign->n_stage / foreign->n_rank;
    smp_arena *scratch = smp_arena_create();
    int *chunk = scratch ? SMP_ARENA_NEW(scratch, int, (size_t)foreign->n_stage) : NULL;
    int *held = scratch ? SMP_ARENA_NEW(scratch, int, (size_t)foreign->n_rank) : NULL;
    smp_status status = chunk && held ? SMP_OK : SMP_ERR_NO_MEMORY;
    for (int s = 0; s < foreign->n_stage && status == SMP_OK; s++)
        chunk[s] = held[foreign->stage_rank[s]]++;
    for (int r = 0; r < foreign->n_rank && status == SMP_OK; r++)
        if (held[r] != v || v * foreign->n_rank != foreign->n_stage)
            status = smp_fail(SMP_ERR_INPUT,
                              "%s: rank %d has %d stages of %d, expected as many on each rank",
                              foreign->file, r, held[r], foreign->n_stage);
    for (int r = 0; r < foreign->n_rank && status == SMP_OK; r++) {
        for (int32_t i = 0; i < foreign->rank[r].n && status == SMP_OK; i++) {
            const smp_foreign_action *a = &foreign->rank[r].action[i];
            if (a->kind <= SMP_FOREIGN_W)
                status =
                    smp_program_push(&orders[r], kind_of[a->kind], a->microbatch, chunk[a->stage]);
        }
    }
    smp_arena_destroy(scratch);
    *chunks = v;
    return status;
}

/* Gathers, drops and second hops; see the header. Linear in the program, but for the search of the
 * first use of each chunk. */
#include "schedule/lower/shard_actions.h"

#include <stdlib.h>

typedef struct run {
    int64_t begin, end; /* positions of its first and last compute action */
    int64_t next;       /* the chunk's next run; n_run: none */
    int32_t chunk;
    bool kept; /* has its weights from an earlier one */
} run;

typedef struct insertion {
    const smp_program *from;
    smp_program to;
    run *runs;
    int64_t n_run, next; /* the run whose begin comes next */
    int64_t ahead;       /* how many runs a gather is ahead of use */
    int64_t asked;       /* runs before this one have been gathered for */
    int32_t reduced;     /* chunk whose R has no A yet; -1: none */
} insertion;

static smp_status list_runs(insertion *in)
{
    in->runs = calloc((size_t)in->from->n + 1, sizeof *in->runs);
    if (!in->runs)
        return smp_fail_memory((size_t)in->from->n * sizeof *in->runs);
    for (int64_t i = 0; i < in->from->n; i++) {
        const smp_action *action = &in->from->action[i];
        if (!smp_action_is_compute(action->kind))
            continue;
        if (in->n_run == 0 || in->runs[in->n_run - 1].chunk != action->chunk)
            in->runs[in->n_run++] = (run){.begin = i, .chunk = action->chunk};
        in->runs[in->n_run - 1].end = i;
    }
    return SMP_OK;
}

/* Does the weight stay from the run to the chunk's next one? */
static bool stays(const insertion *in, int64_t r)
{
    return in->runs[r].next <= r + 1 + in->ahead && in->runs[r].next < in->n_run;
}

static smp_status link_runs(insertion *in, int chunks)
{
    int64_t *next = calloc((size_t)chunks, sizeof *next);
    if (!next)
        return smp_fail_memory((size_t)chunks * sizeof *next);
    for (int c = 0; c < chunks; c++)
        next[c] = in->n_run;
    for (int64_t r = in->n_run - 1; r >= 0; r--) {
        in->runs[r].next = next[in->runs[r].chunk];
        next[in->runs[r].chunk] = r;
        if (stays(in, r))
            in->runs[in->runs[r].next].kept = true;
    }
    free(next);
    return SMP_OK;
}

/* For all runs before `end`. */
static smp_status gather(insertion *in, int64_t end)
{
    for (; in->asked < end && in->asked < in->n_run; in->asked++)
        if (!in->runs[in->asked].kept)
            SMP_TRY(smp_program_push(&in->to, SMP_ACTION_GATHER, -1, in->runs[in->asked].chunk));
    return SMP_OK;
}

/* Weights that stay: once each, by first use. */
static smp_status gather_all(insertion *in)
{
    for (int64_t r = 0; r < in->n_run; r++) {
        bool seen = false;
        for (int64_t k = 0; k < in->to.n && !seen; k++)
            seen = in->to.action[k].chunk == in->runs[r].chunk;
        if (!seen)
            SMP_TRY(smp_program_push(&in->to, SMP_ACTION_GATHER, -1, in->runs[r].chunk));
    }
    return SMP_OK;
}

static smp_status before(insertion *in, bool weights, int64_t position)
{
    if (!weights || in->next >= in->n_run || in->runs[in->next].begin != position)
        return SMP_OK;
    return gather(in, ++in->next + in->ahead);
}

static smp_status after(insertion *in, bool weights, int64_t position)
{
    const int64_t r = in->next - 1;
    if (!weights || r < 0 || in->runs[r].end != position || stays(in, r))
        return SMP_OK;
    return smp_program_push(&in->to, SMP_ACTION_DROP, -1, in->runs[r].chunk);
}

/* The second hop of the chunk that was reduced last. */
static smp_status finish_reduction(insertion *in)
{
    const int32_t chunk = in->reduced;
    in->reduced = -1;
    return chunk < 0 ? SMP_OK : smp_program_push(&in->to, SMP_ACTION_ALL, -1, chunk);
}

static smp_status insert(insertion *in, bool weights, int chunks)
{
    SMP_TRY(list_runs(in));
    SMP_TRY(link_runs(in, chunks));
    if (!weights)
        SMP_TRY(gather_all(in));
    for (int64_t i = 0; i < in->from->n; i++) {
        const smp_action *action = &in->from->action[i];
        SMP_TRY(before(in, weights, i));
        if (action->kind == SMP_ACTION_REDUCE || action->kind == SMP_ACTION_OPTIMIZE)
            SMP_TRY(finish_reduction(in));
        SMP_TRY(smp_program_push(&in->to, action->kind, action->microbatch, action->chunk));
        if (action->kind == SMP_ACTION_REDUCE)
            in->reduced = action->chunk;
        SMP_TRY(after(in, weights, i));
    }
    return SMP_OK;
}

smp_status smp_shard_actions(const smp_schedule_shape *shape, smp_program *program)
{
    const bool weights = smp_shards(shape->sharding, SMP_SHARD_WEIGHTS, shape->training);
    if (!smp_shards(shape->sharding, SMP_SHARD_OPTIMIZER, shape->training) && !weights)
        return SMP_OK;
    insertion in = {.from = program, .ahead = shape->sharding.prefetch, .reduced = -1};
    smp_status status = insert(&in, weights, shape->chunks);
    free(in.runs);
    if (status == SMP_OK) {
        smp_program_free(program);
        *program = in.to;
    } else {
        smp_program_free(&in.to);
    }
    return status;
}

smp_status smp_shard_gathers(const smp_program *order, int chunks, int prefetch, int64_t *n)
{
    insertion in = {.from = order, .ahead = prefetch};
    smp_status status = list_runs(&in);
    if (status == SMP_OK)
        status = link_runs(&in, chunks);
    *n = 0;
    for (int64_t r = 0; status == SMP_OK && r < in.n_run; r++)
        *n += !in.runs[r].kept;
    free(in.runs);
    return status;
}

/* Memory of a rank: its host area. What is offloaded for good stands first, above it the blocks
 * that travel, each from the action that begins to store it to the backward that reads it again,
 * packed by smp_interval_pack. Also when stores must be complete, which decides how long a block
 * stays on the device. O(actions) and the packing. */
#include "schedule/lower/offload_actions.h"
#include "schedule/memory/bytes.h"
#include "schedule/memory/memory_build.h"

static int64_t away_bytes(const smp__memory_build *build, int chunk)
{
    return build->input->layout[chunk]->block_bytes[SMP_BLOCK_AWAY];
}

/* When a (chunk, micro-batch) is stored, is loaded, and is read by the backward. */
static smp_status scan(const smp__memory_build *build, smp__stash_copies *travel, int64_t *n_store)
{
    const smp_memory_input *input = build->input;
    for (int64_t i = 0; i < input->program->n; i++) {
        const smp_action *action = &input->program->action[i];
        if (!smp_action_has_microbatch(action->kind))
            continue;
        smp__stash_copies *t =
            &travel[(int64_t)action->chunk * input->microbatches + action->microbatch];
        const bool store = action->kind == SMP_ACTION_STORE;
        if (action->kind == SMP_ACTION_B || action->kind == SMP_ACTION_I)
            t->backward = i;
        if (!store && action->kind != SMP_ACTION_LOAD)
            continue;
        if (away_bytes(build, action->chunk) == 0)
            return smp_fail(SMP_ERR_INPUT,
                            "rank %d: action %lld is for chunk %d, of which nothing travels",
                            input->rank, (long long)i, (int)action->chunk);
        *(store ? &t->store : &t->load) = i;
        *n_store += store;
        if (store)
            t->stored_by = smp_offload_stored_by(input->program, i, input->horizon);
    }
    return SMP_OK;
}

/* Stored, complete before it is loaded, and loaded before it is read. */
static smp_status check(const smp__memory_build *build, const smp__stash_copies *t, int chunk,
                        int64_t mb)
{
    const int64_t n = build->input->program->n;
    if (t->store < 0 && t->load < 0)
        return SMP_OK;
    if (t->store >= 0 && t->stored_by < n && t->stored_by <= t->load && t->load < t->backward)
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "program of rank %d: micro-batch %lld of chunk %d is not stored, loaded and "
                    "read one after the other",
                    build->input->rank, (long long)mb, chunk);
}

static smp_status pack(smp__memory_build *build, const smp__stash_copies *travel, size_t n_store,
                       int64_t *at)
{
    const smp_memory_input *input = build->input;
    int64_t *bytes = SMP_ARENA_NEW(build->scratch, int64_t, n_store);
    int64_t *begin = SMP_ARENA_NEW(build->scratch, int64_t, n_store);
    int64_t *end = SMP_ARENA_NEW(build->scratch, int64_t, n_store);
    int64_t *offset = SMP_ARENA_NEW(build->scratch, int64_t, n_store);
    int64_t n = 0, total, bound;
    if (!bytes || !begin || !end || !offset)
        return SMP_ERR_NO_MEMORY;
    for (int c = 0; c < input->chunks; c++)
        for (int64_t m = 0; m < input->microbatches; m++) {
            const smp__stash_copies *t = &travel[(int64_t)c * input->microbatches + m];
            SMP_TRY(check(build, t, c, m));
            at[(int64_t)c * input->microbatches + m] = t->store >= 0 ? n : -1;
            if (t->store < 0)
                continue;
            bytes[n] = away_bytes(build, c);
            begin[n] = t->store;
            end[n++] = t->backward;
        }
    SMP_TRY(smp_interval_pack(n, bytes, begin, end, SMP_BUFFER_ALIGN, offset, &total, &bound));
    for (int64_t i = 0; i < (int64_t)input->chunks * input->microbatches; i++)
        if (at[i] >= 0)
            at[i] = build->host_top + offset[at[i]];
    build->rank->host_bytes = build->host_top;
    return smp__bytes_add(&build->rank->host_bytes, total);
}

/* A later store is complete later: the list has the order of the program. */
static smp_status list_stores(smp__memory_build *build, const smp__stash_copies *travel,
                              size_t n_store)
{
    const smp_memory_input *input = build->input;
    const int64_t n = input->program->n;
    int64_t *begin = SMP_ARENA_NEW(build->rank->arena, int64_t, (size_t)n + 2);
    smp_memory_store *stored = SMP_ARENA_NEW(build->rank->arena, smp_memory_store, n_store);
    size_t k = 0;
    if (!begin || !stored)
        return SMP_ERR_NO_MEMORY;
    for (int64_t i = 0; i < n; i++) {
        const smp_action *action = &input->program->action[i];
        if (action->kind != SMP_ACTION_STORE)
            continue;
        stored[k++] = (smp_memory_store){action->chunk, action->microbatch};
        begin[travel[(int64_t)action->chunk * input->microbatches + action->microbatch].stored_by +
              1]++;
    }
    for (int64_t i = 1; i <= n; i++)
        begin[i] += begin[i - 1];
    build->rank->stored_begin = begin;
    build->rank->stored = stored;
    return SMP_OK;
}

smp_status smp__memory_place_in_host(smp__memory_build *build, smp__stash_copies **out)
{
    const smp_memory_input *input = build->input;
    const size_t n_pair = (size_t)input->chunks * (size_t)input->microbatches;
    smp__stash_copies *travel = SMP_ARENA_NEW(build->scratch, smp__stash_copies, n_pair);
    int64_t *at = SMP_ARENA_NEW(build->rank->arena, int64_t, n_pair);
    int64_t n_store = 0;
    if (!travel || !at)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < n_pair; i++)
        travel[i] = (smp__stash_copies){-1, -1, -1, -1};
    SMP_TRY(scan(build, travel, &n_store));
    SMP_TRY(pack(build, travel, (size_t)n_store, at));
    build->rank->host_at = at;
    *out = travel;
    return list_stores(build, travel, (size_t)n_store);
}

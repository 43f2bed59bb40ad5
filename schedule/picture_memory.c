/* Bytes alive on a rank at each of its actions: the fixed part, and every stash block and border
 * buffer from the action that first writes it to the one that last reads it. Lifetimes are those
 * of the memory planner, whose posts and waits say when receives begin and sends end; the sum
 * never exceeds its lifetime bound. O(actions + buffers + messages) per rank. */
#include "schedule/memory.h"
#include "schedule/picture_model.h"

/* First and last position of a buffer; begin < 0: there is no buffer. */
typedef struct life {
    int64_t begin, end;
} life;

typedef struct rank_lives {
    const smp_picture *picture;
    const smp_memory_rank *memory;
    const smp_layout **layout; /* [chunks] */
    int rank;
    life *compute; /* [2][chunks * microbatches]: F (begin and end the same); first and last B */
    life *border;  /* [borders * microbatches] */
    smp_arena *arena;
} rank_lives;

static life *compute_of(const rank_lives *l, bool backward, int chunk, int64_t mb)
{
    const smp_plan *plan = l->picture->plan;
    return &l->compute[((backward ? plan->chunks : 0) + chunk) * (int64_t)plan->microbatches + mb];
}

static life *border_of(const rank_lives *l, int chunk, int32_t b, int64_t mb)
{
    return &l->border[(l->memory->border_begin[chunk] + (int64_t)b) *
                          l->picture->plan->microbatches +
                      mb];
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void find_computes(rank_lives *l)
{
    const smp_plan *plan = l->picture->plan;
    const smp_program *program = &plan->program[l->rank];
    for (int64_t i = 0; i < 2 * (int64_t)plan->chunks * plan->microbatches; i++)
        l->compute[i] = (life){-1, -1};
    for (int64_t i = 0; i < program->n; i++) {
        const smp_action *a = &program->action[i];
        if (!smp_action_is_compute(a->kind))
            continue;
        life *at = compute_of(l, a->kind != SMP_ACTION_F, a->chunk, a->microbatch);
        at->begin = at->begin < 0 ? i : at->begin;
        at->end = i;
    }
}

static int chunk_on(const rank_lives *l, int stage)
{
    const smp__crossing *crossing = &l->picture->crossing;
    return crossing->rank_of[stage] == l->rank ? crossing->chunk_of[stage] : -1;
}

static bool is_grad(smp_border_kind kind)
{
    return kind == SMP_BORDER_GRAD_IN || kind == SMP_BORDER_GRAD_OUT;
}

/* From what computes with it; messages widen it later. */
static life computed_life(const rank_lives *l, int chunk, const smp_border *border, int64_t mb)
{
    const life *forward = compute_of(l, false, chunk, mb), *back = compute_of(l, true, chunk, mb);
    if (is_grad(border->kind))
        return *back;
    return (life){forward->begin,
                  border->in_backward ? later(forward->end, back->end) : forward->end};
}

static void add_computed(rank_lives *l)
{
    const smp_plan *plan = l->picture->plan;
    for (int c = 0; c < plan->chunks; c++)
        for (int32_t b = 0; b < l->layout[c]->n_border; b++)
            for (int64_t mb = 0; mb < plan->microbatches; mb++) {
                const smp_border *border = &l->layout[c]->border[b];
                bool loss =
                    border->kind == SMP_BORDER_OUT && border->tensor == l->picture->graph->loss;
                *border_of(l, c, b, mb) = loss ? (life){-1, -1} : computed_life(l, c, border, mb);
            }
}

/* The border that holds what a transfer moves, at one of its ends. */
static life *border_of_message(const rank_lives *l, const smp_memory_message *message, bool sent)
{
    const smp_transfer *t = &l->picture->flow->transfer[message->transfer];
    bool forward = t->kind == SMP_TRANSFER_F;
    int chunk = chunk_on(l, sent ? t->from_stage : t->to_stage);
    smp_border_kind kind = sent      ? forward ? SMP_BORDER_OUT : SMP_BORDER_GRAD_OUT
                           : forward ? SMP_BORDER_IN
                                     : SMP_BORDER_GRAD_IN;
    int32_t key = sent && forward ? t->tensor : message->transfer;
    int32_t b = chunk < 0 ? -1 : smp_layout_border(l->layout[chunk], kind, key);
    return b < 0 ? NULL : border_of(l, chunk, b, message->microbatch);
}

/* Receives are written from where they are posted; sends are read until they are waited for. */
static void add_messages(rank_lives *l)
{
    const smp_memory_rank *memory = l->memory;
    int64_t n = l->picture->plan->program[l->rank].n;
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = memory->post_begin[i]; k < memory->post_begin[i + 1]; k++) {
            life *at = border_of_message(l, &memory->post[k], false);
            if (at && at->begin > i)
                at->begin = i;
        }
    for (int64_t i = 0; i <= n; i++)
        for (int64_t k = memory->wait_begin[i]; k < memory->wait_begin[i + 1]; k++) {
            life *at = border_of_message(l, &memory->wait[k], true);
            if (at && at->begin >= 0)
                at->end = later(at->end, i - 1);
        }
}

/* What another chunk of this rank reads is kept until then, and is not there twice. */
static void share_borders(rank_lives *l)
{
    const smp_plan *plan = l->picture->plan;
    for (int c = 0; c < plan->chunks; c++)
        for (int32_t b = 0; b < l->layout[c]->n_border; b++) {
            const smp_border *border = &l->layout[c]->border[b];
            if (border->kind != SMP_BORDER_IN && border->kind != SMP_BORDER_GRAD_IN)
                continue;
            int from = chunk_on(l, l->picture->flow->transfer[border->transfer].from_stage);
            bool grad = is_grad(border->kind);
            int32_t made = from < 0 ? -1
                                    : smp_layout_border(l->layout[from],
                                                        grad ? SMP_BORDER_GRAD_OUT : SMP_BORDER_OUT,
                                                        grad ? border->transfer : border->tensor);
            for (int64_t mb = 0; made >= 0 && mb < plan->microbatches; mb++) {
                life *reader = border_of(l, c, b, mb), *maker = border_of(l, from, made, mb);
                if (maker->begin >= 0)
                    maker->end = later(maker->end, reader->end);
                *reader = (life){-1, -1};
            }
        }
}

/* change: [program n + 1] bytes that begin to live (less those that have ended) at each position. */
static void add_life(int64_t *change, int64_t n, life at, int64_t bytes)
{
    if (at.begin < 0)
        return;
    change[at.begin] += bytes;
    change[at.end < n ? (at.end < at.begin ? at.begin : at.end) + 1 : n] -= bytes;
}

static void add_lives(const rank_lives *l, int64_t *change)
{
    const smp_plan *plan = l->picture->plan;
    int64_t n = plan->program[l->rank].n;
    for (int c = 0; c < plan->chunks; c++) {
        for (int64_t mb = 0; mb < plan->microbatches; mb++) {
            const life *forward = compute_of(l, false, c, mb), *back = compute_of(l, true, c, mb);
            add_life(change, n, (life){forward->begin, later(forward->end, back->end)},
                     l->layout[c]->stash_bytes);
        }
        for (int32_t b = 0; b < l->layout[c]->n_border; b++)
            for (int64_t mb = 0; mb < plan->microbatches; mb++)
                add_life(change, n, *border_of(l, c, b, mb), l->layout[c]->border[b].bytes);
    }
}

/* Where what lives for ever ends: the lowest offset of what does not. */
static int64_t fixed_bytes(const rank_lives *l)
{
    const smp_plan *plan = l->picture->plan;
    int64_t fixed = l->memory->arena_bytes;
    for (int64_t i = 0; i < (int64_t)plan->chunks * plan->microbatches; i++)
        if (l->memory->stash[i] < fixed)
            fixed = l->memory->stash[i];
    for (int c = 0; c < plan->chunks; c++)
        for (int32_t b = 0; b < l->layout[c]->n_border; b++)
            for (int64_t mb = 0; mb < plan->microbatches; mb++) {
                int64_t offset =
                    l->memory
                        ->border[(l->memory->border_begin[c] + (int64_t)b) * plan->microbatches +
                                 mb];
                if (border_of(l, c, b, mb)->begin >= 0 && offset >= 0 && offset < fixed)
                    fixed = offset;
            }
    return fixed;
}

static int64_t limit_bytes(const smp_plan *plan, int rank)
{
    int64_t least = 0;
    for (int replica = 0; plan->cluster && plan->cluster->device && replica < plan->ddp;
         replica++) {
        int device = smp_plan_device(plan->placement, plan->pipeline, plan->ddp, replica, rank);
        if (device >= smp_cluster_devices(plan->cluster))
            continue;
        int64_t bytes = plan->cluster->device[device].memory_bytes;
        least = least == 0 || bytes < least ? bytes : least;
    }
    return least;
}

static smp_status fill_rank(smp_picture *picture, rank_lives *l)
{
    const smp_plan *plan = picture->plan;
    size_t n = (size_t)plan->program[l->rank].n, m = (size_t)plan->microbatches;
    smp__rank_memory *out = &picture->memory[l->rank];
    l->compute = SMP_ARENA_NEW(l->arena, life, 2 * (size_t)plan->chunks * m);
    l->border = SMP_ARENA_NEW(l->arena, life, (size_t)l->memory->border_begin[plan->chunks] * m);
    int64_t *change = SMP_ARENA_NEW(l->arena, int64_t, n + 2);
    if (!l->compute || !l->border || !change)
        return SMP_ERR_NO_MEMORY;
    find_computes(l);
    add_computed(l);
    add_messages(l);
    share_borders(l);
    add_lives(l, change);
    *out = (smp__rank_memory){.fixed_bytes = fixed_bytes(l),
                              .reserved_bytes = l->memory->arena_bytes,
                              .limit_bytes = limit_bytes(plan, l->rank)};
    out->alive_bytes = out->fixed_bytes;
    int64_t live = 0;
    for (size_t i = 0; i < n; i++) {
        live += change[i];
        picture->alive[l->rank][i] = out->fixed_bytes + live;
        out->alive_bytes = later(out->alive_bytes, picture->alive[l->rank][i]);
    }
    return SMP_OK;
}

static smp_status plan_rank(smp_picture *picture, rank_lives *l, smp_layout **built)
{
    const smp_plan *plan = picture->plan;
    smp_memory_rank *memory = NULL;
    for (int c = 0; c < plan->chunks; c++) {
        int stage = picture->crossing.stage_of[l->rank * plan->chunks + c];
        SMP_TRY(smp_layout_build(picture->graph, picture->flow, stage, plan->stage[stage].recompute,
                                 NULL, &built[c]));
        l->layout[c] = built[c];
    }
    SMP_TRY(smp_memory_plan_rank(plan, picture->graph, picture->flow, l->rank, NULL, l->layout,
                                 plan->training ? 2 : 0, &memory));
    l->memory = memory;
    smp_status status = fill_rank(picture, l);
    smp_memory_destroy(memory);
    return status;
}

static smp_status memory_of_rank(smp_picture *picture, int rank)
{
    const smp_plan *plan = picture->plan;
    rank_lives l = {.picture = picture, .rank = rank, .arena = smp_arena_create()};
    if (!l.arena)
        return SMP_ERR_NO_MEMORY;
    smp_layout **built = SMP_ARENA_NEW(l.arena, smp_layout *, (size_t)plan->chunks);
    l.layout = SMP_ARENA_NEW(l.arena, const smp_layout *, (size_t)plan->chunks);
    picture->alive[rank] = SMP_ARENA_NEW(picture->arena, int64_t, (size_t)plan->program[rank].n);
    bool room = built && l.layout && picture->alive[rank];
    smp_status status = room ? plan_rank(picture, &l, built) : SMP_ERR_NO_MEMORY;
    for (int c = 0; room && c < plan->chunks; c++)
        smp_layout_destroy(built[c]);
    smp_arena_destroy(l.arena);
    return status;
}

smp_status smp__picture_memory(smp_picture *picture)
{
    size_t n_rank = (size_t)picture->plan->pipeline;
    picture->memory = SMP_ARENA_NEW(picture->arena, smp__rank_memory, n_rank);
    picture->alive = SMP_ARENA_NEW(picture->arena, int64_t *, n_rank);
    if (!picture->memory || !picture->alive)
        return SMP_ERR_NO_MEMORY;
    for (int rank = 0; rank < picture->plan->pipeline; rank++)
        SMP_TRY(memory_of_rank(picture, rank));
    return SMP_OK;
}

/* Memory of a rank: stash blocks and border buffers, each from the position of the program at which
 * it is first written to the one at which it is last read, packed by smp_interval_pack. Also when
 * receives are posted and sends waited for, which decides how long borders live.
 *
 * O(actions + buffers + messages) and the packing. */
#include "schedule/memory/memory_build.h"

#include <stdlib.h>

#include "schedule/lower/crossing.h"
#include "schedule/memory/bytes.h"
#include "schedule/plan/gradient_blocks.h"

/* Positions in the program of what happens to one (chunk, micro-batch); -1: never. */
typedef struct pair_times {
    int64_t forward;
    int64_t backward, weight; /* B, or I and W */
    int64_t post_f, post_b;   /* receives of its inputs, of its gradients, posted */
    int64_t wait_f, wait_b;   /* its sends to the neighbouring stage are complete */
    int64_t late_f, late_b;   /* its sends that jump over stages are complete */
} pair_times;

typedef struct message_at {
    int64_t position;
    smp_memory_message message;
} message_at;

typedef struct message_list {
    message_at *item; /* malloc'ed */
    size_t n, capacity;
} message_list;

/* Buffers to be packed. */
typedef struct buffer_list {
    int64_t *bytes, *begin, *end, *offset; /* [capacity] */
    int64_t n;
} buffer_list;

typedef struct lives {
    smp__memory_build *build;
    const smp_memory_input *input;
    pair_times *pair;          /* [chunks * microbatches] */
    smp__stash_copies *travel; /* [chunks * microbatches] */
    message_list post, wait;
    buffer_list buffer;
    int64_t *stash[SMP_N_BLOCK]; /* [chunks * microbatches] buffer, or -1 */
    int32_t *begin;              /* [chunks + 1] first border of a chunk */
    int64_t *border;             /* [borders * microbatches] buffer, or -1 */
    int64_t *gather;             /* [program n] buffer of what G gathers, or -1 */
    int64_t *bucket;             /* [chunks] buffer of a bucket that lives, or -1 */
    int64_t *held;               /* [chunks] buffer of the last G without a D; -1 */
} lives;

static pair_times *pair_at(const lives *l, int chunk, int64_t microbatch)
{
    return &l->pair[(int64_t)chunk * l->input->microbatches + microbatch];
}

static bool is_local(const lives *l, int stage)
{
    return l->build->chunk_of_stage[stage] >= 0;
}

static smp_status check_action(const lives *l, int64_t position)
{
    const smp_action *action = &l->input->program->action[position];
    bool whole = !smp_action_has_microbatch(action->kind);
    if (!whole && (action->chunk < 0 || action->chunk >= l->input->chunks ||
                   action->microbatch < 0 || action->microbatch >= l->input->microbatches))
        return smp_fail(SMP_ERR_INPUT,
                        "rank %d: action %lld is for micro-batch %d of chunk %d, there are %d "
                        "micro-batches and %d chunks",
                        l->input->rank, (long long)position, (int)action->microbatch,
                        (int)action->chunk, l->input->microbatches, l->input->chunks);
    if (action->kind == SMP_ACTION_I && !l->input->layout[action->chunk]->split)
        return smp_fail(SMP_ERR_FAILED,
                        "rank %d: action %lld splits the backward of chunk %d, whose layout is for "
                        "whole ones: smp_layout_is_split says which it has to be for",
                        l->input->rank, (long long)position, (int)action->chunk);
    return SMP_OK;
}

static smp_status lacks(const lives *l, const char *what, int chunk, int64_t microbatch)
{
    return smp_fail(SMP_ERR_INPUT, "program of rank %d lacks %s%lld.%d", l->input->rank, what,
                    (long long)microbatch, chunk);
}

/* The messages of one send or receive action: every transfer of its kind to or from another rank.
 * Those that jump get the position `late`. */
static smp_status add_messages(lives *l, message_list *list, const smp_action *action,
                               int64_t position, int64_t late)
{
    const smp_flow *flow = l->input->flow;
    int stage = l->input->stage_of_chunk[action->chunk];
    bool send = action->kind == SMP_ACTION_SEND_F || action->kind == SMP_ACTION_SEND_B;
    bool forward = action->kind == SMP_ACTION_SEND_F || action->kind == SMP_ACTION_RECV_F;
    const int32_t *begin = send ? flow->out_begin : flow->in_begin;
    const int32_t *index = send ? flow->out_list : flow->in_list;
    for (int32_t i = begin[stage]; i < begin[stage + 1]; i++) {
        const smp_transfer *transfer = &flow->transfer[index[i]];
        if ((transfer->kind == SMP_TRANSFER_F) != forward ||
            is_local(l, send ? transfer->to_stage : transfer->from_stage))
            continue;
        SMP_TRY(smp_array_reserve(&list->item, &list->capacity, sizeof *list->item, list->n + 1));
        list->item[list->n++] =
            (message_at){smp__crossing_is_direct(transfer) ? position : late,
                         {.transfer = index[i], .microbatch = action->microbatch}};
    }
    return SMP_OK;
}

/* Going forward: computes, and receives, which are posted before the compute action before them. */
static smp_status scan_forward(lives *l)
{
    const smp_program *program = l->input->program;
    int64_t last_compute = 0;
    for (int64_t i = 0; i < program->n; i++) {
        const smp_action *action = &program->action[i];
        SMP_TRY(check_action(l, i));
        if (smp_action_is_compute(action->kind)) {
            pair_times *pair = pair_at(l, action->chunk, action->microbatch);
            if (action->kind == SMP_ACTION_F)
                pair->forward = i;
            if (action->kind == SMP_ACTION_B || action->kind == SMP_ACTION_I)
                pair->backward = i;
            if (action->kind == SMP_ACTION_B || action->kind == SMP_ACTION_W)
                pair->weight = i;
            last_compute = i;
        } else if (action->kind == SMP_ACTION_RECV_F || action->kind == SMP_ACTION_RECV_B) {
            pair_times *pair = pair_at(l, action->chunk, action->microbatch);
            *(action->kind == SMP_ACTION_RECV_F ? &pair->post_f : &pair->post_b) = last_compute;
            SMP_TRY(add_messages(l, &l->post, action, last_compute, last_compute));
        }
    }
    return SMP_OK;
}

/* Going back: sends. To a neighbouring stage they are waited for before the second compute action
 * after them, or before O, or at the end. Those that jump over stages: activations before this
 * stage's backward of the micro-batch, gradients before O; else at the end. */
static smp_status scan_backward(lives *l)
{
    const smp_program *program = l->input->program;
    int64_t next = program->n, second = program->n, last = program->n;
    for (int64_t i = program->n - 1; i >= 0; i--) {
        const smp_action *action = &program->action[i];
        if (action->kind == SMP_ACTION_OPTIMIZE) {
            next = second = last = i;
        } else if (smp_action_is_compute(action->kind)) {
            second = next;
            next = i;
        } else if (action->kind == SMP_ACTION_SEND_F) {
            pair_times *pair = pair_at(l, action->chunk, action->microbatch);
            pair->wait_f = second;
            pair->late_f = pair->backward > i ? pair->backward : last;
            SMP_TRY(add_messages(l, &l->wait, action, pair->wait_f, pair->late_f));
        } else if (action->kind == SMP_ACTION_SEND_B) {
            pair_times *pair = pair_at(l, action->chunk, action->microbatch);
            pair->wait_b = second;
            pair->late_b = last;
            SMP_TRY(add_messages(l, &l->wait, action, pair->wait_b, pair->late_b));
        }
    }
    return SMP_OK;
}

static int64_t add_buffer(lives *l, int64_t bytes, int64_t begin, int64_t end)
{
    buffer_list *list = &l->buffer;
    list->bytes[list->n] = bytes;
    list->begin[list->n] = begin;
    list->end[list->n] = end > begin ? end : begin;
    return list->n++;
}

static int64_t latest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The last action that reads a border in its stage. */
static int64_t last_read(const pair_times *pair, const smp_border *border)
{
    bool grad = border->kind == SMP_BORDER_GRAD_OUT || border->kind == SMP_BORDER_GRAD_IN;
    int64_t last = pair->forward;
    if (grad || border->in_backward)
        last = latest(last, pair->backward);
    return border->in_weight ? latest(last, pair->weight) : last;
}

unsigned smp__border_leaves(const smp_flow *flow, const int *chunk_of_stage, int stage,
                            const smp_border *border)
{
    unsigned leaves = 0;
    for (int32_t i = flow->out_begin[stage]; i < flow->out_begin[stage + 1]; i++) {
        const smp_transfer *t = &flow->transfer[flow->out_list[i]];
        bool same = border->kind == SMP_BORDER_OUT
                        ? t->kind == SMP_TRANSFER_F && t->tensor == border->tensor
                        : flow->out_list[i] == border->transfer;
        if (same && chunk_of_stage[t->to_stage] < 0)
            leaves |= smp__crossing_is_direct(t) ? SMP__LEAVES_DIRECT : SMP__LEAVES_JUMPING;
    }
    return leaves;
}

/* Makes the buffer of a border that this stage fills, or receives from another rank. */
static smp_status add_border(lives *l, int chunk, int64_t m, const smp_border *border,
                             unsigned leaves, int64_t *buffer)
{
    const pair_times *pair = pair_at(l, chunk, m);
    bool forward = border->kind == SMP_BORDER_OUT || border->kind == SMP_BORDER_IN;
    bool out = border->kind == SMP_BORDER_OUT || border->kind == SMP_BORDER_GRAD_OUT;
    if (!forward && pair->backward < 0)
        return SMP_OK; /* a step without backward */
    int64_t begin = forward ? pair->forward : pair->backward;
    int64_t end = last_read(pair, border);
    if (!out) {
        begin = forward ? pair->post_f : pair->post_b;
        if (begin < 0)
            return lacks(l, forward ? "<F" : "<B", chunk, m);
    }
    int64_t wait = forward ? pair->wait_f : pair->wait_b,
            late = forward ? pair->late_f : pair->late_b;
    if (leaves && wait < 0)
        return lacks(l, forward ? ">F" : ">B", chunk, m);
    if (leaves & SMP__LEAVES_DIRECT)
        end = latest(end, wait - 1);
    if (leaves & SMP__LEAVES_JUMPING)
        end = latest(end, late - 1);
    *buffer = add_buffer(l, border->bytes, begin, end);
    return SMP_OK;
}

static smp_status add_borders_of(lives *l, int chunk, int32_t b)
{
    const smp_memory_input *input = l->input;
    const smp_border *border = &input->layout[chunk]->border[b];
    int64_t *buffer = &l->border[(int64_t)(l->begin[chunk] + b) * input->microbatches];
    unsigned leaves = 0;
    if (border->kind == SMP_BORDER_OUT || border->kind == SMP_BORDER_GRAD_OUT)
        leaves = smp__border_leaves(input->flow, l->build->chunk_of_stage,
                                    input->stage_of_chunk[chunk], border);
    else if (is_local(l, input->flow->transfer[border->transfer].from_stage))
        return SMP_OK; /* shared with the chunk that makes it */
    for (int64_t m = 0; m < input->microbatches; m++)
        SMP_TRY(add_border(l, chunk, m, border, leaves, &buffer[m]));
    return SMP_OK;
}

/* What arrives from another chunk of this rank: the buffer of that chunk, kept until its use
 * here. */
static smp_status share_borders_of(lives *l, int chunk, int32_t b)
{
    const smp_memory_input *input = l->input;
    const smp_border *border = &input->layout[chunk]->border[b];
    bool grad = border->kind == SMP_BORDER_GRAD_IN;
    if (!grad && border->kind != SMP_BORDER_IN)
        return SMP_OK;
    int from = l->build->chunk_of_stage[input->flow->transfer[border->transfer].from_stage];
    if (from < 0)
        return SMP_OK;
    int32_t made =
        smp_layout_border(input->layout[from], grad ? SMP_BORDER_GRAD_OUT : SMP_BORDER_OUT,
                          grad ? border->transfer : border->tensor);
    if (made < 0)
        return smp_fail(SMP_ERR_FAILED, "stage %d has no border for tensor '%s'",
                        input->stage_of_chunk[from], input->graph->tensor[border->tensor].name);
    for (int64_t m = 0; m < input->microbatches; m++) {
        const pair_times *pair = pair_at(l, chunk, m);
        int64_t buffer = l->border[(int64_t)(l->begin[from] + made) * input->microbatches + m];
        l->border[(int64_t)(l->begin[chunk] + b) * input->microbatches + m] = buffer;
        if (buffer < 0)
            continue;
        l->buffer.end[buffer] = latest(l->buffer.end[buffer], last_read(pair, border));
    }
    return SMP_OK;
}

/* The stash blocks of one chunk and micro-batch; a step without backward has none of gradients.
 * What does not travel is one buffer, which never was away. */
static void add_blocks(lives *l, int chunk, int64_t m)
{
    const pair_times *pair = pair_at(l, chunk, m);
    const smp_layout *layout = l->input->layout[chunk];
    const int64_t at = (int64_t)chunk * l->input->microbatches + m;
    const smp__stash_copies *travel = &l->travel[at];
    const bool stays = travel->store < 0;
    const int64_t begin[SMP_N_BLOCK] = {pair->forward, pair->forward, pair->backward, pair->forward,
                                        stays ? pair->forward : travel->load};
    const int64_t end[SMP_N_BLOCK] = {pair->backward, pair->weight, pair->weight,
                                      travel->stored_by - 1,
                                      layout->back_in_weight ? pair->weight : pair->backward};
    for (int k = 0; k < SMP_N_BLOCK; k++)
        if (layout->block_bytes[k] > 0 && begin[k] >= 0 && (k != SMP_BLOCK_AWAY || !stays))
            l->stash[k][at] = add_buffer(l, layout->block_bytes[k], begin[k], end[k]);
    if (stays)
        l->stash[SMP_BLOCK_AWAY][at] = l->stash[SMP_BLOCK_BACK][at];
}

static smp_status add_buffers(lives *l)
{
    const smp_memory_input *input = l->input;
    for (int c = 0; c < input->chunks; c++) {
        for (int64_t m = 0; m < input->microbatches; m++) {
            if (pair_at(l, c, m)->forward < 0)
                return lacks(l, "F", c, m);
            add_blocks(l, c, m);
        }
        for (int32_t b = 0; b < input->layout[c]->n_border; b++)
            SMP_TRY(add_borders_of(l, c, b));
    }
    for (int c = 0; c < input->chunks; c++)
        for (int32_t b = 0; b < input->layout[c]->n_border; b++)
            SMP_TRY(share_borders_of(l, c, b));
    return SMP_OK;
}

/* The accumulators of weights with several uses are added up by O; until then sums over groups may
 * be under way whose terms do not fit in the gradients. */
static void keep_until(lives *l, int64_t optimize)
{
    const smp_memory_input *input = l->input;
    const bool terms =
        smp_gradient_most_nodes(input->blocks, input->ddp, input->sharding.shard) > 1;
    for (int c = 0; c < input->chunks; c++)
        if (l->bucket[c] >= 0 && (terms || l->build->rank->bucket[c].shared))
            l->buffer.end[l->bucket[c]] = optimize;
}

/* Weights from G to D; accumulators from the first that adds to them to A. */
static smp_status add_shards(lives *l)
{
    const smp_memory_input *input = l->input;
    const smp_memory_rank *rank = l->build->rank;
    const int64_t element = smp_precision_is_half(input->graph->target.precision) ? 6 : 4;
    for (int64_t i = 0; i < input->program->n; i++) {
        const smp_action *action = &input->program->action[i];
        const int c = action->chunk;
        if (action->kind == SMP_ACTION_GATHER && rank->part_weight) {
            l->gather[i] = add_buffer(l, element * rank->gathered_elements[c], i, i);
            l->held[c] = l->gather[i];
        } else if (action->kind == SMP_ACTION_DROP && l->held[c] >= 0) {
            l->buffer.end[l->held[c]] = i;
            l->held[c] = -1;
        } else if ((action->kind == SMP_ACTION_B || action->kind == SMP_ACTION_W) &&
                   rank->bucket[c].lives && l->bucket[c] < 0) {
            const int64_t copies = 1 + l->build->levels;
            l->bucket[c] = add_buffer(l, 4 * copies * rank->bucket[c].elements, i, i);
        } else if (action->kind == SMP_ACTION_ALL && l->bucket[c] >= 0) {
            l->buffer.end[l->bucket[c]] = i;
        } else if (action->kind == SMP_ACTION_OPTIMIZE) {
            keep_until(l, i);
        }
    }
    return SMP_OK;
}

static smp_status allocate(lives *l, size_t n_pair, size_t n_border)
{
    smp_arena *scratch = l->build->scratch;
    const size_t n_shard = (size_t)l->input->program->n; /* at most: gathers and buckets */
    size_t n = SMP_N_BLOCK * n_pair + n_border + n_shard;
    l->pair = SMP_ARENA_NEW(scratch, pair_times, n_pair);
    for (int k = 0; k < SMP_N_BLOCK; k++) {
        l->stash[k] = SMP_ARENA_NEW(l->build->rank->arena, int64_t, n_pair);
        if (!l->stash[k])
            return SMP_ERR_NO_MEMORY;
        for (size_t i = 0; i < n_pair; i++)
            l->stash[k][i] = -1;
    }
    l->border = SMP_ARENA_NEW(l->build->rank->arena, int64_t, n_border);
    l->buffer.bytes = SMP_ARENA_NEW(scratch, int64_t, n);
    l->buffer.begin = SMP_ARENA_NEW(scratch, int64_t, n);
    l->buffer.end = SMP_ARENA_NEW(scratch, int64_t, n);
    l->buffer.offset = SMP_ARENA_NEW(scratch, int64_t, n);
    l->gather = SMP_ARENA_NEW(l->build->rank->arena, int64_t, n_shard);
    l->bucket = SMP_ARENA_NEW(scratch, int64_t, (size_t)l->input->chunks);
    l->held = SMP_ARENA_NEW(scratch, int64_t, (size_t)l->input->chunks);
    if (!l->gather || !l->bucket || !l->held)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < n_shard; i++)
        l->gather[i] = -1;
    for (int c = 0; c < l->input->chunks; c++)
        l->bucket[c] = l->held[c] = -1;
    if (!l->pair || !l->border || !l->buffer.bytes || !l->buffer.begin || !l->buffer.end ||
        !l->buffer.offset)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < n_pair; i++)
        l->pair[i] = (pair_times){-1, -1, -1, -1, -1, -1, -1, -1, -1};
    for (size_t i = 0; i < n_border; i++)
        l->border[i] = -1;
    return SMP_OK;
}

/* Packs, then turns buffer numbers into offsets. */
static smp_status pack(lives *l, size_t n_pair)
{
    const smp_memory_input *input = l->input;
    smp_memory_rank *rank = l->build->rank;
    int64_t total, bound, top = l->build->top;
    SMP_TRY(smp_interval_pack(l->buffer.n, l->buffer.bytes, l->buffer.begin, l->buffer.end,
                              SMP_BUFFER_ALIGN, l->buffer.offset, &total, &bound));
    rank->arena_bytes = rank->bound_bytes = top;
    SMP_TRY(smp__bytes_add(&rank->arena_bytes, total));
    SMP_TRY(smp__bytes_add(&rank->bound_bytes, bound));
    for (int64_t i = 0; i < input->program->n; i++)
        if (l->gather[i] >= 0)
            l->gather[i] = top + l->buffer.offset[l->gather[i]];
    for (int c = 0; c < input->chunks; c++)
        if (l->bucket[c] >= 0) {
            smp_memory_bucket *bucket = &l->build->bucket[c];
            bucket->offset = top + l->buffer.offset[l->bucket[c]];
            bucket->level = bucket->offset + 4 * bucket->elements;
        }
    for (int k = 0; k < SMP_N_BLOCK; k++)
        for (size_t i = 0; i < n_pair; i++)
            if (l->stash[k][i] >= 0)
                l->stash[k][i] = top + l->buffer.offset[l->stash[k][i]];
    for (int c = 0; c < input->chunks; c++)
        for (int32_t b = 0; b < input->layout[c]->n_border; b++)
            for (int64_t m = 0; m < input->microbatches; m++) {
                int64_t *at = &l->border[(int64_t)(l->begin[c] + b) * input->microbatches + m];
                if (*at >= 0)
                    *at = top + l->buffer.offset[*at];
            }
    return SMP_OK;
}

/* Bytes alive at each action. */
static smp_status sum_alive(const lives *l)
{
    const buffer_list *list = &l->buffer;
    smp_memory_rank *rank = l->build->rank;
    int64_t n = l->input->program->n, sum = l->build->top;
    int64_t *alive = SMP_ARENA_NEW(rank->arena, int64_t, (size_t)n + 1);
    if (!alive)
        return SMP_ERR_NO_MEMORY;
    for (int64_t i = 0; i < list->n; i++) {
        alive[list->begin[i]] += smp__bytes_align(list->bytes[i]);
        alive[list->end[i] + 1] -= smp__bytes_align(list->bytes[i]);
    }
    for (int64_t i = 0; i < n; i++) {
        sum += alive[i];
        alive[i] = sum;
    }
    rank->fixed_bytes = l->build->top;
    rank->alive_bytes = alive;
    return SMP_OK;
}

/* CSR of messages by position, in the order of their actions. */
static smp_status list_messages(smp_arena *arena, const message_list *list, int64_t n_position,
                                bool reversed, const int64_t **begin_out,
                                const smp_memory_message **message_out)
{
    int64_t *begin = SMP_ARENA_NEW(arena, int64_t, (size_t)n_position + 2);
    smp_memory_message *message = SMP_ARENA_NEW(arena, smp_memory_message, list->n);
    if (!begin || !message)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < list->n; i++)
        begin[list->item[i].position + 2]++;
    for (int64_t i = 2; i <= n_position + 1; i++)
        begin[i] += begin[i - 1];
    for (size_t i = 0; i < list->n; i++) {
        const message_at *at = &list->item[reversed ? list->n - 1 - i : i];
        message[begin[at->position + 1]++] = at->message;
    }
    *begin_out = begin;
    *message_out = message;
    return SMP_OK;
}

static smp_status place_lives(lives *l)
{
    const smp_memory_input *input = l->input;
    smp_memory_rank *rank = l->build->rank;
    int64_t n_border = 0, n = input->program->n;
    l->begin = SMP_ARENA_NEW(rank->arena, int32_t, (size_t)input->chunks + 1);
    if (!l->begin)
        return SMP_ERR_NO_MEMORY;
    for (int c = 0; c < input->chunks; c++) {
        n_border += input->layout[c]->n_border;
        if (n_border > INT32_MAX)
            return smp_fail(SMP_ERR_INPUT, "rank %d: more than 2^31 borders", input->rank);
        l->begin[c + 1] = (int32_t)n_border;
    }
    size_t n_pair = (size_t)input->chunks * (size_t)input->microbatches;
    SMP_TRY(allocate(l, n_pair, (size_t)n_border * (size_t)input->microbatches));
    SMP_TRY(scan_forward(l));
    SMP_TRY(scan_backward(l));
    SMP_TRY(smp__memory_place_in_host(l->build, &l->travel));
    SMP_TRY(add_buffers(l));
    SMP_TRY(add_shards(l));
    SMP_TRY(pack(l, n_pair));
    SMP_TRY(sum_alive(l));
    for (int k = 0; k < SMP_N_BLOCK; k++)
        rank->stash[k] = l->stash[k];
    rank->border_begin = l->begin;
    rank->border = l->border;
    rank->gather = l->gather;
    SMP_TRY(list_messages(rank->arena, &l->post, n, false, &rank->post_begin, &rank->post));
    return list_messages(rank->arena, &l->wait, n + 1, true, &rank->wait_begin, &rank->wait);
}

smp_status smp__memory_place_lives(smp__memory_build *build)
{
    lives l = {.build = build, .input = build->input};
    smp_status status = place_lives(&l);
    free(l.post.item);
    free(l.wait.item);
    return status;
}

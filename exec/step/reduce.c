/* Reduction of weight gradients.
 *
 * Every use of a weight has its own accumulator. In it a block of micro-batches is folded; then it
 * is added to the sums of earlier blocks, in the tree of schedule/plan/gradient_blocks.h, which
 * goes on over the replicas: a bucket of a chunk's accumulators is reduced as soon as the chunk's
 * last backward has added to all of it, what is left behind that backward (R). After that a weight
 * with several uses gets their sum in op order, a fixed left fold, wherever the uses lie: ranks
 * that share a tied weight exchange their accumulators and each computes the same sum. An
 * accumulator of which every device that computes the op has a summand is added up over these, by
 * rising device, right before that.
 *
 * Sharded, sums are scattered over a group, so that a rank has those of its part, and these are
 * added over the groups (A). */
#include "exec/step/reduce.h"

#include <stdio.h>
#include <stdlib.h>

#include "exec/state/shards.h"
#include "exec/state/weights.h"
#include "exec/step/message_lanes.h"
#include "exec/step/messages.h"
#include "exec/group/op_group.h"
#include "exec/step/stepping.h"
#include "exec/step/sum_list.h"
#include "exec/step/reduce_state.h"
#include "schedule/memory/bytes.h"

static float *at(const smp *s, int64_t offset)
{
    return (float *)(s->buffers->arena + offset);
}

/* Is `rank` the pipeline rank of a stage that uses the weight? */
static bool rank_holds(const smp *s, int32_t param, int rank)
{
    const smp_param *p = &s->graph->param[param];
    for (int32_t use = p->use_begin; use < p->use_end; use++)
        if (s->work->stage_rank[s->work->stage_of_op[s->graph->use[use].op]] == rank)
            return true;
    return false;
}

/* One outgoing message per local use and other holder, one incoming per remote use. With `list`
 * NULL only counts. */
static int tie_messages(smp *s, smp__tie_message *list)
{
    int n = 0;
    for (int32_t i = 0; i < s->memory->n_use; i++) {
        const smp_memory_use *use = &s->memory->use[i];
        int32_t param = s->memory->param[use->param].param;
        int owner = s->work->stage_rank[use->stage];
        for (int peer = 0; peer < s->comm->pipeline_size; peer++) {
            bool incoming = use->chunk < 0 && peer == owner;
            bool outgoing =
                use->chunk >= 0 && peer != s->comm->pipeline_rank && rank_holds(s, param, peer);
            if (!incoming && !outgoing)
                continue;
            if (list)
                list[n] = (smp__tie_message){.use = use->use,
                                             .peer = peer,
                                             .chunk = use->chunk,
                                             .offset = smp_memory_use_at(s->memory, use)};
            n++;
        }
    }
    return n;
}

static int64_t use_bytes(const smp *s, int32_t use)
{
    return s->graph->param[s->graph->use[use].param].elements * (int64_t)sizeof(float);
}

smp_status smp__reduce_open(smp *s, const smp_sum_terms *terms[SMP_N_REACH])
{
    s->stepping->reducer = calloc(1, sizeof *s->stepping->reducer);
    if (!s->stepping->reducer)
        return smp_fail_memory(sizeof *s->stepping->reducer);
    for (int i = 0; i < SMP_N_REACH; i++)
        terms[i] = s->graph->training ? &s->stepping->reducer->terms[i] : NULL;
    return SMP_OK;
}

smp_status smp__reduce_ties(smp *s)
{
    struct smp__reducer *r = s->stepping->reducer;
    if (!s->graph->training)
        return SMP_OK;
    r->n_tie = tie_messages(s, NULL);
    r->tie = calloc((size_t)r->n_tie + 1, sizeof(*r->tie));
    if (!r->tie)
        return smp_fail_memory((size_t)r->n_tie * sizeof(*r->tie));
    tie_messages(s, r->tie);
    return SMP_OK;
}

static int program_blocks(const smp *s)
{
    return smp_gradient_share(s->plan->gradient_blocks, s->comm->ddp_size);
}

static int own_begin(const smp *s)
{
    return smp_gradient_begin(s->plan->gradient_blocks, s->comm->ddp_size, s->comm->replica);
}

/* Blocks of its own that the replica has added when its program has done so many. */
static int added_blocks(const smp *s, int done)
{
    const int end =
        smp_gradient_begin(s->plan->gradient_blocks, s->comm->ddp_size, s->comm->replica + 1);
    return done - (program_blocks(s) - (end - own_begin(s)));
}

/* Sums that wait for others before each of the own blocks. */
static smp_status count_waiting(smp *s)
{
    const int own = added_blocks(s, program_blocks(s)), first = own_begin(s);
    smp_gradient_node node[SMP_MAX_GRADIENT_NODES];
    s->stepping->reducer->waiting = calloc((size_t)own + 1, sizeof *s->stepping->reducer->waiting);
    if (!s->stepping->reducer->waiting)
        return smp_fail_memory((size_t)own * sizeof *s->stepping->reducer->waiting);
    for (int i = 0; i < own; i++) {
        const smp_gradient_node next = {first + i, first + i + 1};
        s->stepping->reducer->waiting[i + 1] = smp_gradient_append(
            s->plan->gradient_blocks, node, s->stepping->reducer->waiting[i], next);
    }
    return SMP_OK;
}

smp_status smp__reduce_terms(smp *s)
{
    const int blocks = s->plan->gradient_blocks, ddp = s->comm->ddp_size;
    const int shard = s->comm->shard_size, group = s->comm->replica / shard * shard;
    const smp_sum_members of[SMP_N_REACH] = {
        [SMP_REACH_ALL] = {.n = ddp, .each = 1},
        [SMP_REACH_GROUP] = {.n = shard, .first = group, .each = 1},
        [SMP_REACH_ACROSS] = {.n = ddp / shard, .each = shard},
    };
    if (!s->graph->training)
        return SMP_OK;
    SMP_TRY(count_waiting(s));
    for (int i = 0; i < SMP_N_REACH; i++)
        SMP_TRY(smp__sum_terms_make(&s->stepping->reducer->terms[i], blocks, ddp, of[i]));
    return SMP_OK;
}

/* The sum of what stands at `offset` of a chunk's accumulators: where sums of earlier blocks are
 * that are terms of their own. */
static smp_sum with_terms(const smp *s, smp_sum sum, int chunk, int64_t offset)
{
    const smp_memory_bucket *bucket = &s->memory->bucket[chunk];
    if (s->stepping->reducer->terms[sum.reach].width > 1) {
        sum.more = at(s, bucket->level) + offset;
        sum.stride = bucket->elements;
    }
    return sum;
}

static bool sends_bf16(const smp *s)
{
    return smp_wire_is_bf16(s->plan->sharding);
}

/* Without shards: the chunk's regions, then what else it has. */
static smp_status list_whole(smp *s, int chunk)
{
    const smp_memory_rank *memory = s->memory;
    const smp_sum all = {
        .reach = SMP_REACH_ALL, .add = true, .bf16 = sends_bf16(s), .gather = true};
    const int64_t elements = memory->bucket[chunk].elements;
    int64_t end = 0;
    if (s->comm->ddp_size == 1 || elements == 0)
        return SMP_OK;
    for (int32_t i = memory->chunk_region[chunk]; i < smp_memory_summed_end(memory, chunk); i++) {
        const smp_memory_region *region = &memory->region[i];
        const smp_sum sum = with_terms(s, all, chunk, region->in_chunk);
        SMP_TRY(smp__sum_list_add(s, &s->stepping->reducer->scatter[chunk], &sum, region->in_chunk,
                                  i, region->elements));
        end = region->in_chunk + region->elements;
    }
    if (end == elements)
        return SMP_OK;
    const smp_sum rest = with_terms(s, all, chunk, end);
    return smp__sum_list_add(s, &s->stepping->reducer->scatter[chunk], &rest, end, -1,
                             elements - end);
}

/* A region's accumulators at `offset` in the bucket: scattered, then added over the groups. */
static smp_status list_region(smp *s, int chunk, int32_t region, int64_t offset)
{
    const smp_memory_region *of = &s->memory->region[region];
    const int own = s->comm->shard_rank;
    const int64_t begin = of->cut[own], end = of->cut[own + 1];
    const smp_sum in_group = {
        .cut = of->cut, .reach = SMP_REACH_GROUP, .add = true, .bf16 = sends_bf16(s)};
    const smp_sum among = {
        .reach = SMP_REACH_ACROSS, .add = true, .bf16 = sends_bf16(s), .gather = true};
    const smp_sum scatter = with_terms(s, in_group, chunk, offset),
                  across = with_terms(s, among, chunk, offset + begin);
    SMP_TRY(
        smp__sum_list_add(s, &s->stepping->reducer->scatter[chunk], &scatter, offset, region, 0));
    if (s->comm->ddp_size == s->comm->shard_size)
        return SMP_OK;
    const bool moved = of->param < 0 && of->part_grad; /* to where it stays */
    const int64_t at =
        moved ? of->grad / 4 + of->at[own] : s->memory->bucket[chunk].offset / 4 + offset + begin;
    return smp__sum_list_add(s, &s->stepping->reducer->across[chunk], &across, at, region,
                             end - begin);
}

/* Every rank needs the whole sum of a weight that other stages hold too. */
static smp_status list_parts(smp *s, int chunk)
{
    const smp_memory_rank *memory = s->memory;
    const smp_sum all = {
        .reach = SMP_REACH_ALL, .add = true, .bf16 = sends_bf16(s), .gather = true};
    for (int32_t i = memory->chunk_region[chunk]; i < smp_memory_summed_end(memory, chunk); i++)
        SMP_TRY(list_region(s, chunk, i, memory->region[i].in_chunk));
    for (int32_t i = 0; i < memory->n_use; i++) {
        const smp_memory_use *use = &memory->use[i];
        const smp_memory_param *param = &memory->param[use->param];
        const smp_sum whole = with_terms(s, all, chunk, use->offset / 4);
        if (use->chunk != chunk || memory->region[param->region].param < 0)
            continue;
        if (param->elsewhere)
            SMP_TRY(smp__sum_list_add(s, &s->stepping->reducer->scatter[chunk], &whole,
                                      use->offset / 4, param->region,
                                      memory->region[param->region].elements));
        else
            SMP_TRY(list_region(s, chunk, param->region, use->offset / 4));
    }
    return SMP_OK;
}

static smp_status count_weights(smp *s)
{
    const size_t n = (size_t)s->memory->n_region;
    s->stepping->reducer->weights = calloc(2 * n, sizeof *s->stepping->reducer->weights);
    if (!s->stepping->reducer->weights)
        return smp_fail_memory(2 * n * sizeof *s->stepping->reducer->weights);
    s->stepping->reducer->left = s->stepping->reducer->weights + n;
    for (int32_t i = 0; i < s->memory->n_param; i++)
        s->stepping->reducer->weights[s->memory->param[i].region]++;
    for (size_t i = 0; i < n; i++) /* none is final before a step: kernels run once on zeroes */
        s->stepping->reducer->left[i] = s->stepping->reducer->weights[i] + 1;
    return SMP_OK;
}

static smp_status list_sums(smp *s)
{
    struct smp__reducer *r = s->stepping->reducer;
    SMP_TRY(count_weights(s));
    r->scatter = calloc((size_t)s->work->chunks, sizeof *r->scatter);
    r->across = calloc((size_t)s->work->chunks, sizeof *r->across);
    if (!r->scatter || !r->across)
        return smp_fail_memory((size_t)s->work->chunks * sizeof *r->scatter);
    for (int chunk = 0; chunk < s->work->chunks && s->graph->training; chunk++)
        SMP_TRY(s->comm->shard_size > 1 ? list_parts(s, chunk) : list_whole(s, chunk));
    return SMP_OK;
}

smp_status smp__reduce_build(smp *s)
{
    struct smp__reducer *r = s->stepping->reducer;
    SMP_TRY(list_sums(s));
    if (!s->graph->training)
        return SMP_OK;
    for (int i = 0; i < r->n_tie; i++) {
        smp__tie_message *tie = &r->tie[i];
        const smp_use *use = &s->graph->use[tie->use];
        tie->lane = smp__lane_of_tie(s, s->work->stage_of_op[use->op],
                                     tie->chunk < 0 ? s->comm->pipeline_rank : tie->peer);
        if (use_bytes(s, tie->use) > s->endpoint->transport->max_message_bytes)
            return smp_fail(SMP_ERR_FAILED,
                            "tied weight '%s' is too long for one message: keep its "
                            "ops in one stage (group)",
                            s->graph->param[use->param].name);
    }
    return SMP_OK;
}

void smp__reduce_free(smp *s)
{
    if (!s->stepping->reducer)
        return;
    smp__sum_lists_free(s->stepping->reducer->gather, s->work->chunks);
    smp__sum_lists_free(s->stepping->reducer->scatter, s->work->chunks);
    smp__sum_lists_free(s->stepping->reducer->across, s->work->chunks);
    free(s->stepping->reducer->tie);
    free(s->stepping->reducer->weights);
    free(s->stepping->reducer->waiting);
    for (int i = 0; i < SMP_N_REACH; i++)
        smp__sum_terms_free(&s->stepping->reducer->terms[i]);
    free(s->stepping->reducer);
}

static int64_t tie_tag(const smp *s, int32_t use)
{
    return (int64_t)s->work->flow->n_transfer * s->work->microbatches + use;
}

static smp_status post_ties(smp *s)
{
    for (int i = 0; i < s->stepping->reducer->n_tie; i++) {
        smp__tie_message *tie = &s->stepping->reducer->tie[i];
        if (tie->chunk < 0)
            SMP_TRY(s->endpoint->transport->receive(s->endpoint->context, tie->lane,
                                                    tie_tag(s, tie->use), at(s, tie->offset),
                                                    use_bytes(s, tie->use), &tie->request));
    }
    return SMP_OK;
}

smp_status smp__reduce_begin_step(smp *s)
{
    return s->endpoint->transport->on_device ? SMP_OK : post_ties(s);
}

/* Where every device of the group has a summand of what this use adds: their sum. */
static smp_status sum_devices(smp *s, int32_t use, float *values, int64_t n)
{
    const smp_use *u = &s->graph->use[use];
    const smp__op_group *g = s->stepping->tensor_group;
    if (!(s->graph->op[u->op].summands >> u->slot & 1))
        return SMP_OK;
    for (int64_t begin = 0; begin < n; begin += g->most) {
        const int64_t left = n - begin;
        SMP_TRY(
            g->group.all_reduce(g->group.context, values + begin, left < g->most ? left : g->most));
    }
    return SMP_OK;
}

/* The gradient is the sum of the accumulators of all uses, in op order: of the own part. */
static smp_status sum_uses(smp *s, int32_t index)
{
    const smp_param *p = &s->graph->param[s->memory->param[index].param];
    const smp__range own = smp__own_range(s, index);
    if (own.begin == own.end || p->idle)
        return SMP_OK;
    if (p->use_end - p->use_begin == 1) /* the accumulator is the gradient */
        return sum_devices(s, p->use_begin, smp__grad_at(s, index, own.begin), own.end - own.begin);
    float *grad = smp__grad_at(s, index, own.begin);
    bool first = true;
    for (int32_t i = 0; i < s->memory->n_use; i++) { /* rising use: op order */
        const smp_memory_use *use = &s->memory->use[i];
        if (use->param != index)
            continue;
        float *sum = at(s, smp_memory_use_at(s->memory, use)) + own.begin;
        SMP_TRY(sum_devices(s, use->use, sum, own.end - own.begin));
        if (first)
            SMP_TRY(s->device->copy(s->device_context, grad, sum,
                                    (own.end - own.begin) * (int64_t)sizeof(float)));
        else
            SMP_TRY(s->device->add(s->device_context, SMP_F32, grad, sum, own.end - own.begin));
        first = false;
    }
    return SMP_OK;
}

/* Accumulators that no backward writes to. In a step nothing but zeroes is added to them, but
 * others may have had their memory before, or an optimizer has left a direction there (LAMB). */
static smp_status zero_unused(smp *s, int chunk)
{
    for (int32_t i = 0; i < s->memory->n_use; i++) {
        const smp_memory_use *use = &s->memory->use[i];
        const int32_t op = s->graph->use[use->use].op;
        if (use->chunk == chunk &&
            !(s->work->flow->backward[op] && smp_op_has_trained(s->graph, &s->graph->op[op])))
            SMP_TRY(s->device->zero(s->device_context, at(s, smp_memory_use_at(s->memory, use)),
                                    use_bytes(s, use->use)));
    }
    return SMP_OK;
}

smp_status smp__reduce_begin_chunk(smp *s, int chunk, int microbatch)
{
    if (microbatch + 1 == s->work->microbatches) /* micro-batches are added in their order */
        for (int32_t i = s->memory->chunk_region[chunk]; i < s->memory->chunk_region[chunk + 1];
             i++)
            s->stepping->reducer->left[i] = s->stepping->reducer->weights[i];
    return microbatch == 0 ? zero_unused(s, chunk) : SMP_OK;
}

int smp__reduce_block_size(const smp *s)
{
    return s->work->microbatches / program_blocks(s);
}

/* The block of micro-batch `microbatch` is complete; one of padding alone is not kept. Level k
 * holds the k-th node of the tree that waits for others; what the block makes a pair with is added
 * to it, and it waits as the last one. After the last block what is left are the terms of the sum
 * over replicas, the last of them in the accumulators. Of the chunk's accumulators the elements
 * [begin, end). */
static smp_status add_block(smp *s, int chunk, int microbatch, int64_t begin, int64_t end)
{
    const smp_memory_bucket *bucket = &s->memory->bucket[chunk];
    const int size = smp__reduce_block_size(s), own = added_blocks(s, program_blocks(s));
    const int done = added_blocks(s, (microbatch + 1) / size);
    if (own == 1 || (microbatch + 1) % size != 0 || done == 0 || begin == end)
        return SMP_OK;
    const int last = s->stepping->reducer->waiting[done] - 1;
    float *sum = at(s, bucket->offset) + begin, *level = at(s, bucket->level) + begin;
    for (int k = s->stepping->reducer->waiting[done - 1] - 1; k >= last; k--)
        SMP_TRY(s->device->add(s->device_context, SMP_F32, sum, level + k * bucket->elements,
                               end - begin));
    if (done == own)
        return SMP_OK;
    return s->device->copy(s->device_context, level + last * bucket->elements, sum,
                           (end - begin) * (int64_t)sizeof(float));
}

smp_status smp__reduce_block(smp *s, int chunk, int microbatch)
{
    int64_t begin = 0; /* after the buckets that did so by themselves */
    if (s->stepping->reducer->scatter[chunk].started > 0) {
        const int32_t last =
            s->memory->chunk_region[chunk] + s->stepping->reducer->scatter[chunk].started - 1;
        begin = s->memory->region[last].in_chunk + s->memory->region[last].elements;
    }
    return add_block(s, chunk, microbatch, begin, s->memory->bucket[chunk].elements);
}

bool smp__reduce_may_start(const smp *s, int chunk, int microbatch)
{
    return s->comm->ddp_size > 1 && microbatch + 1 == s->work->microbatches &&
           smp_memory_summed_end(s->memory, chunk) - s->memory->chunk_region[chunk] != 1;
}

/* Buckets are asked for in their order, the same on all replicas. */
smp_status smp__reduce_weights(smp *s, int chunk, int microbatch, const smp_op *op)
{
    const int32_t first = s->memory->chunk_region[chunk];
    const int32_t end = smp_memory_summed_end(s->memory, chunk);
    smp__sum_list *list = &s->stepping->reducer->scatter[chunk];
    if (!smp__reduce_may_start(s, chunk, microbatch))
        return SMP_OK;
    for (int32_t k = 0; k < op->n_param; k++) {
        const int32_t i = s->memory->param[smp__job_find_param(s, op->param[k])].region;
        s->stepping->reducer->left[i] -= s->memory->region[i].param < 0;
    }
    for (int32_t i = first + list->started; i < end && s->stepping->reducer->left[i] == 0; i++) {
        const smp_memory_region *region = &s->memory->region[i];
        SMP_TRY(
            add_block(s, chunk, microbatch, region->in_chunk, region->in_chunk + region->elements));
        SMP_TRY(smp__sum_list_start(s, list, s->memory->bucket[chunk].offset, i + 1 - first));
    }
    return SMP_OK;
}

/* The chunk's accumulators are final: to the other holders of tied weights. */
static smp_status send_ties(smp *s, int chunk)
{
    for (int i = 0; i < s->stepping->reducer->n_tie; i++) {
        smp__tie_message *tie = &s->stepping->reducer->tie[i];
        if (tie->chunk == chunk)
            SMP_TRY(s->endpoint->transport->send(s->endpoint->context, tie->lane,
                                                 tie_tag(s, tie->use), at(s, tie->offset),
                                                 use_bytes(s, tie->use), &tie->request));
    }
    return SMP_OK;
}

smp_status smp__reduce_start(smp *s, int chunk)
{
    if (s->comm->ddp_size == 1)
        return send_ties(s, chunk);
    smp__sum_list *list = &s->stepping->reducer->scatter[chunk];
    SMP_TRY(smp__sum_list_start(s, list, s->memory->bucket[chunk].offset, list->n));
    smp__sum_list_record(s, list);
    return SMP_OK;
}

static const char others[] = "the gradients of the other replicas";

smp_status smp__reduce_across(smp *s, int chunk)
{
    const int own = s->comm->shard_rank;
    const float *accumulators = at(s, s->memory->bucket[chunk].offset);
    SMP_TRY(smp__sum_list_wait(s, &s->stepping->reducer->scatter[chunk], others));
    for (int32_t i = s->memory->chunk_region[chunk]; i < smp_memory_summed_end(s->memory, chunk);
         i++) {
        const smp_memory_region *region = &s->memory->region[i];
        const int64_t begin = region->cut[own], end = region->cut[own + 1];
        if (region->part_grad && end > begin)
            SMP_TRY(s->device->copy(s->device_context, at(s, region->grad) + region->at[own],
                                    accumulators + region->in_chunk + begin,
                                    (end - begin) * (int64_t)sizeof(float)));
    }
    SMP_TRY(smp__sum_list_start(s, &s->stepping->reducer->across[chunk], 0,
                                s->stepping->reducer->across[chunk].n));
    smp__sum_list_record(s, &s->stepping->reducer->across[chunk]);
    return SMP_OK;
}

smp_status smp__reduce_finish(smp *s)
{
    for (int chunk = 0; chunk < s->work->chunks && s->comm->ddp_size > 1; chunk++) {
        SMP_TRY(smp__sum_list_wait(s, &s->stepping->reducer->scatter[chunk], others));
        SMP_TRY(smp__sum_list_wait(s, &s->stepping->reducer->across[chunk], others));
        SMP_TRY(send_ties(s, chunk));
    }
    if (s->endpoint->transport
            ->on_device) /* a receive posted earlier would busy the device all step */
        SMP_TRY(post_ties(s));
    for (int i = 0; i < s->stepping->reducer->n_tie; i++)
        SMP_TRY(smp__messages_wait_tie(s, &s->stepping->reducer->tie[i]));
    for (int32_t i = 0; i < s->memory->n_param; i++)
        SMP_TRY(sum_uses(s, i));
    return SMP_OK;
}

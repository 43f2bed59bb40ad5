/* Memory of a rank: weights, gradients and optimizer states, region by region.
 *
 * The weights of a chunk that have one use each are in one region or more, as the plan's buckets
 * say (schedule/rules/shard.h), and their accumulators lie in the same order in those of the chunk:
 * one message takes a whole region. A weight with several uses is a region of its own, with an
 * accumulator per use and a separate sum, ((g0 + g1) + g2) in op order: exchanges may still read
 * accumulators while the sum is made. Regions are cut into parts, one for each replica of a shard
 * group; without sharding there is one part. */
#include "schedule/memory/memory_build.h"

#include <stdlib.h>

#include "profile/costs.h"
#include "schedule/memory/bytes.h"
#include "schedule/rules/offload.h"

static int stage_of_use(const smp_memory_input *input, int32_t use)
{
    return input->flow->stage_of_op[input->graph->use[use].op];
}

static int chunk_of_use(const smp__memory_build *build, int32_t use)
{
    return build->chunk_of_stage[stage_of_use(build->input, use)];
}

static const smp_param *graph_param(const smp__memory_build *build, int32_t index)
{
    return &build->input->graph->param[build->rank->param[index].param];
}

static int by_number(const void *left, const void *right)
{
    const int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    return (a > b) - (a < b);
}

/* The weights that ops of this rank read, one after the other, each once. */
static smp_status find_params(const smp__memory_build *build, int32_t **out, int32_t *n_out)
{
    const smp_memory_input *input = build->input;
    const smp_flow *flow = input->flow;
    int32_t n = 0, n_once = 0;
    for (int c = 0; c < input->chunks; c++)
        for (int32_t i = flow->op_begin[input->stage_of_chunk[c]];
             i < flow->op_begin[input->stage_of_chunk[c] + 1]; i++)
            n += input->graph->op[flow->op_list[i]].n_param;
    int32_t *list = SMP_ARENA_NEW(build->scratch, int32_t, (size_t)n);
    if (!list)
        return SMP_ERR_NO_MEMORY;
    n = 0;
    bool rising = true; /* as in most models */
    for (int c = 0; c < input->chunks; c++)
        for (int32_t i = flow->op_begin[input->stage_of_chunk[c]];
             i < flow->op_begin[input->stage_of_chunk[c] + 1]; i++) {
            const smp_op *op = &input->graph->op[flow->op_list[i]];
            for (int32_t k = 0; k < op->n_param; k++) {
                rising &= n == 0 || op->param[k] >= list[n - 1];
                list[n++] = op->param[k];
            }
        }
    if (!rising)
        qsort(list, (size_t)n, sizeof *list, by_number);
    for (int32_t i = 0; i < n; i++)
        if (i == 0 || list[i] != list[i - 1])
            list[n_once++] = list[i];
    *out = list;
    *n_out = n_once;
    return SMP_OK;
}

/* Weights that an op of this rank reads, by rising param. */
static smp_status list_params(smp__memory_build *build, smp_memory_param **out)
{
    const smp_graph *graph = build->input->graph;
    int32_t n_param = 0, n_use = 0, n_found;
    int32_t *found;
    SMP_TRY(find_params(build, &found, &n_found));
    smp_memory_param *list = SMP_ARENA_NEW(build->scratch, smp_memory_param, (size_t)n_found);
    if (!list)
        return SMP_ERR_NO_MEMORY;
    for (int32_t i = 0; i < n_found; i++) {
        const smp_param *param = &graph->param[found[i]];
        smp_memory_param own = {.param = found[i], .chunk = -1};
        for (int32_t use = param->use_begin; use < param->use_end; use++) {
            int chunk = chunk_of_use(build, use);
            own.owner |= use == param->use_begin && chunk >= 0;
            own.elsewhere |= chunk < 0;
            if (chunk >= 0 && (own.chunk < 0 || chunk < own.chunk))
                own.chunk = chunk;
        }
        if (own.chunk < 0)
            continue;
        list[n_param++] = own;
        n_use += param->idle ? 0 : param->use_end - param->use_begin;
    }
    smp_memory_param *param = SMP_ARENA_NEW(build->rank->arena, smp_memory_param, (size_t)n_param);
    if (!param)
        return SMP_ERR_NO_MEMORY;
    for (int32_t k = 0; k < n_param; k++)
        param[k] = list[k];
    build->rank->param = *out = param;
    build->rank->n_param = n_param;
    build->rank->n_use = graph->training ? n_use : 0;
    return SMP_OK;
}

static bool has_one_use(const smp__memory_build *build, int32_t index)
{
    const smp_param *param = graph_param(build, index);
    return param->use_end - param->use_begin == 1;
}

/* Elements: a weight and its copy in 16 bits both begin at multiples of 64 bytes. */
static int64_t alignment(const smp__memory_build *build)
{
    return SMP_BUFFER_ALIGN /
           smp_dtype_bytes(smp_precision_dtype(build->input->graph->target.precision));
}

/* Do all that use it on this rank read it in 16 bits alone? */
static bool is_in_host(const smp__memory_build *build, int32_t index)
{
    const smp_graph *graph = build->input->graph;
    if (!smp_memory_host_weights(graph, build->input->sharding))
        return false;
    const smp_param *param = graph_param(build, index);
    for (int32_t u = param->use_begin; u < param->use_end; u++)
        if (chunk_of_use(build, u) >= 0 && !smp_memory_use_is_in_host(graph, u))
            return false;
    return true;
}

/* Regions are of weights of one class, or of one weight with several uses. */
enum { FAR, NEAR, IDLE, N_CLASS };

static uint8_t class_of(const smp__memory_build *build, int32_t index)
{
    if (!has_one_use(build, index))
        return N_CLASS;
    return graph_param(build, index)->idle ? IDLE : is_in_host(build, index) ? FAR : NEAR;
}

/* The bucket of its chunk that each weight of a class with one use falls into, from the last weight
 * on; idle ones share one. n: how many a chunk has, bytes: 0; both are counted on. */
static void fill_class(const smp__memory_build *build, smp_memory_param *param,
                       const uint8_t *class_of_param, int kind, int32_t *n, int64_t *bytes)
{
    for (int32_t k = build->rank->n_param - 1; k >= 0; k--) {
        const int c = param[k].chunk;
        if (class_of_param[k] != kind)
            continue;
        if (kind != IDLE && smp_bucket_is_full(build->input->sharding, bytes[c])) {
            n[c]++;
            bytes[c] = 0;
        }
        bytes[c] += 4 * graph_param(build, k)->elements;
        param[k].region = n[c];
    }
    for (int c = 0; c < build->input->chunks; c++) {
        n[c] += bytes[c] > 0 || (kind == NEAR && n[c] == 0);
        bytes[c] = 0;
    }
}

static smp_status number_regions(smp__memory_build *build, smp_memory_param *param)
{
    smp_memory_rank *rank = build->rank;
    const int chunks = build->input->chunks;
    int32_t *begin = SMP_ARENA_NEW(rank->arena, int32_t, (size_t)chunks + 1);
    int64_t *bytes = SMP_ARENA_NEW(build->scratch, int64_t, (size_t)chunks);
    uint8_t *of = SMP_ARENA_NEW(build->scratch, uint8_t, (size_t)rank->n_param);
    if (!begin || !bytes || !of)
        return SMP_ERR_NO_MEMORY;
    for (int32_t k = 0; k < rank->n_param; k++)
        of[k] = class_of(build, k);
    for (int kind = 0; kind < N_CLASS; kind++)
        fill_class(build, param, of, kind, begin + 1, bytes);
    for (int c = 0; c < chunks; c++)
        begin[c + 1] += begin[c];
    rank->chunk_region = begin;
    rank->n_region = begin[chunks];
    for (int32_t k = 0; k < rank->n_param; k++)
        param[k].region =
            of[k] < N_CLASS ? begin[param[k].chunk] + param[k].region : rank->n_region++;
    return SMP_OK;
}

/* The buckets of the chunks, then one region per weight with several uses. */
static smp_status list_regions(smp__memory_build *build, smp_memory_param *param)
{
    smp_memory_rank *rank = build->rank;
    SMP_TRY(number_regions(build, param));
    build->region = SMP_ARENA_NEW(rank->arena, smp_memory_region, (size_t)rank->n_region);
    if (!build->region)
        return SMP_ERR_NO_MEMORY;
    rank->region = build->region;
    for (int c = 0; c < build->input->chunks; c++)
        for (int32_t i = rank->chunk_region[c]; i < rank->chunk_region[c + 1]; i++)
            build->region[i] = (smp_memory_region){.chunk = c, .param = -1};
    for (int32_t k = 0; k < rank->n_param; k++) {
        smp_memory_region *region = &build->region[param[k].region];
        const int64_t n = graph_param(build, k)->elements, unit = alignment(build);
        int64_t bytes = region->elements * 4;
        if (!has_one_use(build, k))
            *region = (smp_memory_region){.chunk = param[k].chunk, .param = k, .in_chunk = -1};
        region->idle = graph_param(build, k)->idle;
        region->in_host = is_in_host(build, k);
        param[k].at = region->elements;
        SMP_TRY(smp__bytes_add(&bytes, (n + unit - 1) / unit * unit * 4));
        region->elements = bytes / 4;
    }
    for (int32_t i = 1; i < rank->n_region; i++)
        if (build->region[i].param < 0 && build->region[i].chunk == build->region[i - 1].chunk)
            build->region[i].in_chunk =
                build->region[i - 1].in_chunk + build->region[i - 1].elements;
    return SMP_OK;
}

/* Weights by region, in a region rising: list[begin[i]] .. list[begin[i + 1] - 1]. */
typedef struct region_params {
    int32_t *begin, *list;
} region_params;

static smp_status sort_params(const smp__memory_build *build, region_params *by)
{
    const smp_memory_rank *rank = build->rank;
    int32_t *begin = SMP_ARENA_NEW(build->scratch, int32_t, (size_t)rank->n_region + 2);
    by->list = SMP_ARENA_NEW(build->scratch, int32_t, (size_t)rank->n_param);
    if (!begin || !by->list)
        return SMP_ERR_NO_MEMORY;
    for (int32_t k = 0; k < rank->n_param; k++)
        begin[rank->param[k].region + 2]++;
    for (int32_t i = 0; i < rank->n_region; i++)
        begin[i + 2] += begin[i + 1];
    for (int32_t k = 0; k < rank->n_param; k++)
        by->list[begin[rank->param[k].region + 1]++] = k;
    by->begin = begin;
    return SMP_OK;
}

/* The place at or after which a part may begin that lies nearest to `wanted`: where one of the
 * region's weights begins and, in it, whole pieces. */
static int64_t nearest_cut(const smp__memory_build *build, const region_params *by, int32_t region,
                           int64_t wanted)
{
    const int64_t end = build->region[region].elements;
    for (int32_t i = by->begin[region]; i < by->begin[region + 1]; i++) {
        const smp_memory_param *param = &build->rank->param[by->list[i]];
        const int64_t n = graph_param(build, by->list[i])->elements;
        const bool last = i + 1 == by->begin[region + 1];
        const int64_t next = last ? end : build->rank->param[by->list[i + 1]].at;
        if (wanted >= next)
            continue;
        int64_t pieces = (wanted - param->at + SMP_PIECE_ELEMENTS / 2) / SMP_PIECE_ELEMENTS;
        int64_t at = param->at + (pieces > 0 ? pieces * SMP_PIECE_ELEMENTS : 0);
        return at < param->at + n ? at : next;
    }
    return end;
}

/* Each region so that what every member has of the chunk's regions up to it is as even as can be:
 * held[p], of member p so far. */
static void cut_region(const smp__memory_build *build, const region_params *by, int32_t region,
                       int64_t *held, int64_t *cut)
{
    const int parts = build->input->sharding.shard;
    const int64_t elements = build->region[region].elements;
    int64_t all = elements, before = 0;
    for (int p = 0; p < parts; p++)
        all += held[p];
    cut[parts] = elements;
    for (int p = 1; p < parts; p++) {
        before += held[p - 1];
        const int64_t wanted = all / parts * p + all % parts * p / parts - before;
        cut[p] = wanted > 0 ? nearest_cut(build, by, region, wanted) : 0;
        cut[p] = cut[p] < cut[p - 1] ? cut[p - 1] : cut[p];
    }
}

static smp_status cut_regions(smp__memory_build *build)
{
    const int parts = build->input->sharding.shard;
    region_params by;
    int64_t *held = SMP_ARENA_NEW(build->scratch, int64_t, (size_t)parts);
    if (!held)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(sort_params(build, &by));
    for (int32_t i = 0; i < build->rank->n_region; i++) {
        smp_memory_region *region = &build->region[i];
        int64_t *cut = SMP_ARENA_NEW(build->rank->arena, int64_t, (size_t)parts + 1);
        int64_t *at = SMP_ARENA_NEW(build->rank->arena, int64_t, (size_t)parts);
        if (!cut || !at)
            return SMP_ERR_NO_MEMORY;
        for (int p = 0; p < parts && region->in_chunk <= 0; p++)
            held[p] = 0;
        cut_region(build, &by, i, held, cut);
        for (int p = 0; p < parts; p++) {
            at[p] = held[p];
            held[p] += cut[p + 1] - cut[p];
        }
        region->cut = cut;
        region->at = at;
    }
    return SMP_OK;
}

/* Regions that have an array. */
typedef enum kept { ALL, SUMMED /* not idle ones */, FAR_ONES } kept;

static bool keeps(const smp_memory_region *region, kept of)
{
    return of == ALL || (of == SUMMED ? !region->idle : region->in_host);
}

/* The room for the longest part that a member has of region i and, of a chunk, of all its regions
 * that are meant, the first ones; *next: the region after these. */
static int64_t part_elements(const smp__memory_build *build, int32_t i, kept of, int32_t *next)
{
    const int parts = build->input->sharding.shard;
    const smp_memory_rank *rank = build->rank;
    const bool chunk = rank->region[i].param < 0;
    *next = chunk ? rank->chunk_region[rank->region[i].chunk + 1] : i + 1;
    int32_t end = *next;
    while (end > i && !keeps(&rank->region[end - 1], of))
        end--;
    if (end == i)
        return 0;
    const smp_memory_region *last = &rank->region[end - 1];
    int64_t most = 0;
    for (int p = 0; p < parts; p++) {
        const int64_t elements = last->at[p] + last->cut[p + 1] - last->cut[p];
        most = elements > most ? elements : most;
    }
    return most;
}

/* The weights (state -1), or a state, of which each member has its part. */
static smp_status place_parts(smp__memory_build *build, kept of, int state, bool in_host)
{
    const int64_t element = state < 0 ? 4 : smp_target_state_bytes(build->input->graph->target);
    int32_t next;
    for (int32_t i = 0; i < build->rank->n_region; i = next) {
        int64_t *top = in_host ? &build->host_top : &build->top;
        const int64_t offset = *top;
        SMP_TRY(smp__bytes_add(top, element * part_elements(build, i, of, &next)));
        for (int32_t k = i; k < next; k++)
            if (keeps(&build->region[k], of))
                *(state < 0 ? &build->region[k].weight : &build->region[k].state[state]) = offset;
    }
    return SMP_OK;
}

/* The weights, their copies, then one state after the other. */
static smp_status place_weights(smp__memory_build *build)
{
    const smp_memory_input *input = build->input;
    const bool copies = smp_precision_is_half(input->graph->target.precision);
    const bool parts = smp_shards(input->sharding, SMP_SHARD_WEIGHTS, input->graph->training);
    const int32_t n = build->rank->n_region;
    smp_memory_region *region = build->region;
    build->rank->part_weight = parts;
    for (int32_t i = 0; i < n; i++) {
        region[i].weight16 = region[i].state[0] = region[i].state[1] = region[i].grad = -1;
        if (!parts && !region[i].in_host)
            SMP_TRY(smp__memory_place(build, 4 * region[i].elements, &region[i].weight));
    }
    SMP_TRY(place_parts(build, parts ? ALL : FAR_ONES, -1, !parts));
    for (int32_t i = 0; i < n && copies && !parts; i++)
        SMP_TRY(smp__memory_place(build, 2 * region[i].elements, &region[i].weight16));
    for (int state = 0; state < input->optimizer_states; state++)
        SMP_TRY(place_parts(build, SUMMED, state, input->sharding.offload_states));
    return SMP_OK;
}

/* The uses of the rank's weights: where they lie and which are its own. */
static smp_status list_uses(smp__memory_build *build, smp_memory_use **out)
{
    smp_memory_use *use =
        SMP_ARENA_NEW(build->rank->arena, smp_memory_use, (size_t)build->rank->n_use);
    if (!use)
        return SMP_ERR_NO_MEMORY;
    int32_t n = 0;
    for (int32_t k = 0; build->rank->n_use > 0 && k < build->rank->n_param; k++) {
        const smp_param *param = graph_param(build, k);
        for (int32_t u = param->use_begin; u < param->use_end && !param->idle; u++)
            use[n++] = (smp_memory_use){.use = u,
                                        .param = k,
                                        .stage = stage_of_use(build->input, u),
                                        .chunk = chunk_of_use(build, u),
                                        .offset = -1};
    }
    build->rank->use = *out = use;
    return SMP_OK;
}

/* Where the summed gradients of a chunk's regions are: in the accumulators, or in part. */
static smp_status place_grads(smp__memory_build *build, int chunk, int64_t accumulators)
{
    const int32_t *of = build->rank->chunk_region;
    int32_t next;
    int64_t part = -1;
    if (accumulators < 0)
        SMP_TRY(
            smp__memory_place(build, 4 * part_elements(build, of[chunk], SUMMED, &next), &part));
    for (int32_t i = of[chunk]; i < smp_memory_summed_end(build->rank, chunk); i++) {
        smp_memory_region *region = &build->region[i];
        region->part_grad = part >= 0;
        region->grad = part >= 0 ? part : accumulators + 4 * region->in_chunk;
    }
    return SMP_OK;
}

/* Accumulators of a chunk: of weights with one use each, in the order of their regions, then the
 * others; after them the sums of earlier blocks. */
static smp_status place_bucket(smp__memory_build *build, int chunk, smp_memory_use *use,
                               smp_memory_bucket *bucket)
{
    const smp_memory_input *input = build->input;
    const smp_memory_region *last = &build->region[smp_memory_summed_end(build->rank, chunk) - 1];
    int64_t nothing, bytes = 4 * (last->in_chunk + last->elements);
    const bool parts = smp_shards(input->sharding, SMP_SHARD_GRADIENTS, true);
    for (int32_t i = 0; i < build->rank->n_use; i++) {
        const smp_memory_param *param = &build->rank->param[use[i].param];
        if (use[i].chunk != chunk)
            continue;
        use[i].offset = 4 * (build->region[param->region].in_chunk + param->at);
        if (build->region[param->region].param < 0)
            continue;
        use[i].offset = bytes;
        bucket->shared = true;
        SMP_TRY(smp__bytes_add(&bytes, 4 * build->region[param->region].elements));
    }
    const int64_t unit = (int64_t)SMP_BUFFER_ALIGN * input->ddp; /* replicas have whole units */
    bytes = (bytes + unit - 1) / unit * unit;
    bucket->elements = bytes / 4;
    bucket->lives = parts; /* until its sums are made */
    if (parts)
        return place_grads(build, chunk, -1);
    bucket->offset = build->top;
    SMP_TRY(place_grads(build, chunk, build->top));
    bucket->level = build->top + bytes;
    for (int level = 0; level <= build->levels; level++)
        SMP_TRY(smp__memory_place(build, bytes, &nothing));
    return SMP_OK;
}

/* Accumulators chunk by chunk; buffers for those of other ranks; sums of weights with several. */
static smp_status place_gradients(smp__memory_build *build)
{
    const smp_memory_input *input = build->input;
    const bool sharded = input->sharding.shard > 1;
    smp_memory_use *use;
    SMP_TRY(list_uses(build, &use));
    for (int c = 0; c < input->chunks; c++) {
        build->bucket[c] = (smp_memory_bucket){.offset = -1};
        if (input->graph->training)
            SMP_TRY(place_bucket(build, c, use, &build->bucket[c]));
    }
    for (int32_t i = 0; i < build->rank->n_use; i++) {
        const smp_memory_region *region = &build->region[build->rank->param[use[i].param].region];
        if (use[i].chunk < 0)
            SMP_TRY(smp__memory_place(build, 4 * region->elements, &use[i].offset));
    }
    int32_t next, singles = build->rank->chunk_region[input->chunks];
    for (int32_t i = singles; input->graph->training && i < build->rank->n_region; i++) {
        smp_memory_region *region = &build->region[i];
        if (region->idle)
            continue;
        region->part_grad = sharded;
        const int64_t elements =
            sharded ? part_elements(build, i, SUMMED, &next) : region->elements;
        SMP_TRY(smp__memory_place(build, 4 * elements, &region->grad));
    }
    return SMP_OK;
}

/* What each chunk gathers: its own regions, then the single weights that its ops use. */
static smp_status list_gathered(smp__memory_build *build)
{
    const smp_memory_input *input = build->input;
    smp_memory_rank *rank = build->rank;
    int64_t *at =
        SMP_ARENA_NEW(rank->arena, int64_t, (size_t)input->chunks * (size_t)rank->n_region);
    int64_t *elements = SMP_ARENA_NEW(rank->arena, int64_t, (size_t)input->chunks);
    if (!at || !elements)
        return SMP_ERR_NO_MEMORY;
    for (int c = 0; c < input->chunks; c++) {
        int64_t *of = &at[(int64_t)c * rank->n_region];
        for (int32_t i = 0; i < rank->n_region; i++)
            of[i] = -1;
        for (int32_t i = rank->chunk_region[c]; i < rank->chunk_region[c + 1]; i++) {
            of[i] = elements[c];
            elements[c] += rank->region[i].elements;
        }
        for (int32_t k = 0; k < rank->n_param; k++) {
            const smp_param *param = graph_param(build, k);
            const int32_t region = rank->param[k].region;
            for (int32_t u = param->use_begin; u < param->use_end; u++)
                if (chunk_of_use(build, u) == c && of[region] < 0) {
                    of[region] = elements[c];
                    elements[c] += rank->region[region].elements;
                }
        }
    }
    rank->gathered = at;
    rank->gathered_elements = elements;
    return SMP_OK;
}

smp_status smp__memory_place_states(smp__memory_build *build)
{
    smp_memory_param *param;
    build->bucket =
        SMP_ARENA_NEW(build->rank->arena, smp_memory_bucket, (size_t)build->input->chunks);
    if (!build->bucket)
        return SMP_ERR_NO_MEMORY;
    build->rank->bucket = build->bucket;
    SMP_TRY(list_params(build, &param));
    SMP_TRY(list_regions(build, param));
    SMP_TRY(cut_regions(build));
    SMP_TRY(place_weights(build));
    SMP_TRY(list_gathered(build));
    return place_gradients(build);
}

bool smp_memory_host_weights(const smp_graph *graph, smp_sharding sharding)
{
    return smp_weights_in_host(sharding, graph->target, graph->training);
}

bool smp_memory_use_is_in_host(const smp_graph *graph, int32_t use)
{
    const smp_use *u = &graph->use[use];
    const uint32_t rounded = graph->op[u->op].kind->rounded;
    return !graph->param[u->param].idle && ((rounded | rounded >> SMP_OP_MAX_PARAM) >> u->slot & 1);
}

double smp_memory_idle_bytes(const smp_graph *graph, smp_sharding sharding)
{
    if (smp_shards(sharding, SMP_SHARD_WEIGHTS, graph->training))
        return sharding.shard > 1 ? 4.0 / sharding.shard : 4.0;
    return smp_precision_is_half(graph->target.precision) ? 6.0 : 4.0;
}

double smp_memory_state_bytes(const smp_graph *graph, smp_sharding sharding)
{
    const bool training = graph->training;
    const double part = sharding.shard > 1 ? 1.0 / sharding.shard : 1.0;
    const int element = sharding.offload_states ? 0 : smp_target_state_bytes(graph->target);
    double bytes = element * smp_planned_states(training) * part;
    if (training)
        bytes += smp_shards(sharding, SMP_SHARD_GRADIENTS, training) ? 4.0 * part : 4.0;
    return bytes + smp_memory_idle_bytes(graph, sharding);
}

double smp_memory_host_bytes(const smp_graph *graph, smp_sharding sharding)
{
    const double near = smp_memory_state_bytes(graph, sharding);
    return smp_memory_host_weights(graph, sharding) ? near - 4.0 : near;
}

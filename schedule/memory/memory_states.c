/* Memory of a rank: weights, gradients and optimizer states, region by region.
 *
 * The weights of a chunk that have one use each are one region, and their accumulators lie in the
 * same order in the bucket of the chunk: one message takes them all. A weight with several uses is
 * a region of its own, with an accumulator per use and a separate sum, ((g0 + g1) + g2) in op
 * order: exchanges may still read accumulators while the sum is made. Regions are cut into parts,
 * one for each replica of a shard group; without sharding there is one part. */
#include "schedule/memory/memory_build.h"

#include "profile/costs.h"
#include "schedule/memory/bytes.h"
#include "schedule/plan/gradient_blocks.h"

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

/* Weights that an op of this rank reads, by rising param. */
static smp_status list_params(smp__memory_build *build, smp_memory_param **out)
{
    const smp_graph *graph = build->input->graph;
    int32_t n_param = 0, n_use = 0;
    smp_memory_param *list =
        SMP_ARENA_NEW(build->scratch, smp_memory_param, (size_t)graph->n_param);
    if (!list)
        return SMP_ERR_NO_MEMORY;
    for (int32_t p = 0; p < graph->n_param; p++) {
        const smp_param *param = &graph->param[p];
        smp_memory_param own = {.param = p, .chunk = -1};
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
        n_use += param->use_end - param->use_begin;
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

/* Elements: a weight and its copy in bf16 both begin at multiples of 64 bytes. */
static int64_t alignment(const smp__memory_build *build)
{
    const bool bf16 = build->input->graph->target.precision == SMP_PRECISION_BF16;
    return SMP_BUFFER_ALIGN / (bf16 ? 2 : 4);
}

/* One region per chunk, then one per weight with several uses. */
static smp_status list_regions(smp__memory_build *build, smp_memory_param *param)
{
    smp_memory_rank *rank = build->rank;
    const int chunks = build->input->chunks;
    size_t most = (size_t)chunks + (size_t)rank->n_param;
    build->region = SMP_ARENA_NEW(rank->arena, smp_memory_region, most);
    if (!build->region)
        return SMP_ERR_NO_MEMORY;
    rank->region = build->region;
    rank->n_region = chunks;
    for (int c = 0; c < chunks; c++)
        build->region[c] = (smp_memory_region){.chunk = c, .param = -1};
    for (int32_t k = 0; k < rank->n_param; k++) {
        param[k].region = param[k].chunk;
        if (!has_one_use(build, k)) {
            param[k].region = rank->n_region++;
            build->region[param[k].region] =
                (smp_memory_region){.chunk = param[k].chunk, .param = k};
        }
        smp_memory_region *region = &build->region[param[k].region];
        const int64_t n = graph_param(build, k)->elements, unit = alignment(build);
        int64_t bytes = region->elements * 4;
        param[k].at = region->elements;
        SMP_TRY(smp__bytes_add(&bytes, (n + unit - 1) / unit * unit * 4));
        region->elements = bytes / 4;
    }
    return SMP_OK;
}

/* The place at or after which a part may begin that lies nearest to `wanted`: the region's weights
 * [first, last) and, in them, whole pieces. */
static int64_t nearest_cut(const smp__memory_build *build, int32_t region, int64_t wanted)
{
    const smp_memory_rank *rank = build->rank;
    int64_t best = build->region[region].elements;
    for (int32_t k = 0; k < rank->n_param; k++) {
        const smp_memory_param *param = &rank->param[k];
        const int64_t n = graph_param(build, k)->elements;
        if (param->region != region || wanted >= param->at + n + alignment(build))
            continue;
        int64_t pieces = (wanted - param->at + SMP_PIECE_ELEMENTS / 2) / SMP_PIECE_ELEMENTS;
        int64_t at = param->at + (pieces > 0 ? pieces * SMP_PIECE_ELEMENTS : 0);
        if (at < param->at + n)
            return at;
        /* behind this weight: where the next one begins */
        for (k++; k < rank->n_param; k++)
            if (rank->param[k].region == region)
                return rank->param[k].at;
        return best;
    }
    return best;
}

static smp_status cut_regions(smp__memory_build *build)
{
    const int parts = build->input->sharding.shard;
    for (int32_t i = 0; i < build->rank->n_region; i++) {
        smp_memory_region *region = &build->region[i];
        int64_t *cut = SMP_ARENA_NEW(build->rank->arena, int64_t, (size_t)parts + 1);
        if (!cut)
            return SMP_ERR_NO_MEMORY;
        cut[parts] = region->elements;
        for (int p = 1; p < parts; p++) {
            int64_t wanted = region->elements / parts * p + region->elements % parts * p / parts;
            cut[p] = nearest_cut(build, i, wanted);
            cut[p] = cut[p] < cut[p - 1] ? cut[p - 1] : cut[p];
        }
        for (int p = 0; p < parts; p++)
            if (cut[p + 1] - cut[p] > region->most)
                region->most = cut[p + 1] - cut[p];
        region->cut = cut;
    }
    return SMP_OK;
}

/* The weights, their copies, then one state after the other. */
static smp_status place_weights(smp__memory_build *build)
{
    const smp_memory_input *input = build->input;
    const bool bf16 = input->graph->target.precision == SMP_PRECISION_BF16;
    const bool parts = smp_shards(input->sharding, SMP_SHARD_WEIGHTS, input->graph->training);
    const int32_t n = build->rank->n_region;
    smp_memory_region *region = build->region;
    for (int32_t i = 0; i < n; i++) {
        region[i].weight16 = region[i].state[0] = region[i].state[1] = region[i].grad = -1;
        region[i].part_weight = parts;
        SMP_TRY(smp__memory_place(build, 4 * (parts ? region[i].most : region[i].elements),
                                  &region[i].weight));
    }
    for (int32_t i = 0; i < n && bf16 && !parts; i++)
        SMP_TRY(smp__memory_place(build, 2 * region[i].elements, &region[i].weight16));
    for (int state = 0; state < input->optimizer_states; state++)
        for (int32_t i = 0; i < n; i++)
            SMP_TRY(smp__memory_place(build, 4 * region[i].most, &region[i].state[state]));
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
        for (int32_t u = param->use_begin; u < param->use_end; u++)
            use[n++] = (smp_memory_use){.use = u,
                                        .param = k,
                                        .stage = stage_of_use(build->input, u),
                                        .chunk = chunk_of_use(build, u),
                                        .offset = -1};
    }
    build->rank->use = *out = use;
    return SMP_OK;
}

/* Accumulators of a chunk: of weights with one use each, in the order of their region, then the
 * others; behind them the sums of earlier blocks. */
static smp_status place_bucket(smp__memory_build *build, int chunk, smp_memory_use *use,
                               smp_memory_bucket *bucket)
{
    const smp_memory_input *input = build->input;
    const int levels = smp_gradient_levels(input->blocks);
    smp_memory_region *region = &build->region[chunk];
    int64_t nothing, bytes = 4 * region->elements;
    const bool parts = smp_shards(input->sharding, SMP_SHARD_GRADIENTS, true);
    for (int32_t i = 0; i < build->rank->n_use; i++) {
        const smp_memory_param *param = &build->rank->param[use[i].param];
        if (use[i].chunk != chunk)
            continue;
        use[i].offset = 4 * param->at;
        if (param->region == chunk)
            continue;
        use[i].offset = bytes;
        bucket->shared = true;
        SMP_TRY(smp__bytes_add(&bytes, 4 * build->region[param->region].elements));
    }
    const int64_t unit = (int64_t)SMP_BUFFER_ALIGN * input->ddp; /* replicas have whole units */
    bytes = (bytes + unit - 1) / unit * unit;
    bucket->elements = bytes / 4;
    bucket->lives = parts; /* until its sums are made */
    region->part_grad = parts;
    if (parts)
        return smp__memory_place(build, 4 * region->most, &region->grad);
    region->grad = bucket->offset = build->top;
    bucket->level = build->top + bytes;
    for (int level = 0; level <= levels; level++)
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
    for (int32_t i = input->chunks; input->graph->training && i < build->rank->n_region; i++) {
        smp_memory_region *region = &build->region[i];
        region->part_grad = sharded;
        SMP_TRY(smp__memory_place(build, 4 * (sharded ? region->most : region->elements),
                                  &region->grad));
    }
    return SMP_OK;
}

/* What each chunk gathers: its own region, then the single weights that its ops use. */
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
        of[c] = 0;
        elements[c] = rank->region[c].elements;
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

double smp_memory_state_bytes(const smp_graph *graph, smp_sharding sharding)
{
    const bool training = graph->training, bf16 = graph->target.precision == SMP_PRECISION_BF16;
    const double part = sharding.shard > 1 ? 1.0 / sharding.shard : 1.0;
    double bytes = 4.0 * smp_planned_states(training) * part;
    if (training)
        bytes += smp_shards(sharding, SMP_SHARD_GRADIENTS, training) ? 4.0 * part : 4.0;
    if (smp_shards(sharding, SMP_SHARD_WEIGHTS, training))
        return bytes + 4.0 * part;
    return bytes + 4.0 + (bf16 ? 2.0 : 0.0);
}

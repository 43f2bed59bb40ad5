/* Memory of ranks with sharded states, for random graphs, stages, rules and degrees: where regions
 * are cut, what lies in whose way at each action, and what lives for ever against the bytes for
 * each element that the planner counts. */
#include "tests/schedule/fixture.h"

#include "profile/costs.h"
#include "schedule/memory/bytes.h"
#include "schedule/lower/lower.h"
#include "schedule/plan/gradient_blocks.h"

enum { MOST_OPS = 40, MOST_STAGES = 9, MOST_RANKS = 3, MOST_LIVE = 512 };

typedef struct job {
    fixture_graph f;
    smp_schedule_shape shape;
    int stage_rank[MOST_STAGES], held[MOST_RANKS], rank_stage[MOST_RANKS][MOST_STAGES];
    int blocks, ddp;
    smp_flow *flow;
    smp_program program[MOST_RANKS];
    smp_layout *layout[MOST_STAGES];
} job;

/* Weights of up to six pieces, many of them small. */
static void make_large(fixture_graph *f, fixture_random *random)
{
    smp_param *param = (smp_param *)f->graph.param;
    for (int32_t p = 0; p < f->graph.n_param; p++)
        if (fixture_chance(random, 60))
            param[p].shape.dim[0] = param[p].elements =
                1 + fixture_below(random, 6 * SMP_PIECE_ELEMENTS);
}

static void open_job(job *j, uint64_t seed)
{
    fixture_random random = {seed * 977};
    const int shard = 2 + (int)fixture_below(&random, 3);
    *j = (job){.blocks = 1 + (int)fixture_below(&random, 3),
               .ddp = shard * (1 + (int)fixture_below(&random, 2))};
    j->shape = (smp_schedule_shape){
        .pipeline = 1 + (int)fixture_below(&random, MOST_RANKS),
        .chunks = 1 + (int)fixture_below(&random, 3),
        .training = fixture_chance(&random, 80),
        .sharding = {.shard = shard,
                     .what = (smp_shard_what)fixture_below(&random, SMP_SHARD_WEIGHTS + 1)}};
    j->shape.sharding.prefetch = (int)fixture_below(&random, 3);
    if (fixture_chance(&random, 60))
        j->shape.sharding.bucket_bytes = 4 * fixture_below(&random, 8 * SMP_PIECE_ELEMENTS);
    j->shape.microbatches = j->shape.pipeline * (1 + (int)fixture_below(&random, 3)) * j->blocks;
    const smp_schedule_kind *kind = fixture_schedule(&random, &j->shape);
    const int n_stage = j->shape.pipeline * j->shape.chunks;
    int32_t stage[MOST_OPS];
    fixture_graph_make(&j->f, seed, 2 * n_stage + (int32_t)fixture_below(&random, 20),
                       j->shape.training, 1 + (int)fixture_below(&random, 3));
    make_large(&j->f, &random);
    j->f.graph.target.precision =
        fixture_chance(&random, 30) ? SMP_PRECISION_BF16 : SMP_PRECISION_FP32;
    j->f.graph.target.bf16_states = fixture_chance(&random, 30);
    fixture_stages(&j->f.graph, &random, n_stage, stage);
    assert_int_equal(SMP_OK, smp_flow_build(&j->f.graph, stage, n_stage, 1, &j->flow));
    assert_int_equal(SMP_OK, smp_lower(kind, &j->shape, j->flow, j->program));
    for (int s = 0; s < n_stage; s++) {
        const int r = j->stage_rank[s] = smp_schedule_stage_rank(kind, &j->shape, s);
        const bool split = smp_layout_is_split(&j->program[r], j->held[r]);
        j->rank_stage[r][j->held[r]++] = s;
        assert_int_equal(
            SMP_OK, smp_layout_build(&j->f.graph, j->flow, s, split, NULL, NULL, &j->layout[s]));
    }
}

static void close_job(job *j)
{
    for (int s = 0; s < j->shape.pipeline * j->shape.chunks; s++)
        smp_layout_destroy(j->layout[s]);
    for (int r = 0; r < j->shape.pipeline; r++)
        smp_program_free(&j->program[r]);
    smp_flow_destroy(j->flow);
    fixture_graph_free(&j->f);
}

static smp_memory_rank *plan_rank(const job *j, int rank, smp_sharding sharding)
{
    const smp_layout *layout[MOST_STAGES];
    for (int c = 0; c < j->shape.chunks; c++)
        layout[c] = j->layout[j->rank_stage[rank][c]];
    smp_memory_rank *memory = NULL;
    assert_int_equal(SMP_OK,
                     smp_memory_plan(&(smp_memory_input){.graph = &j->f.graph,
                                                         .flow = j->flow,
                                                         .program = &j->program[rank],
                                                         .stage_of_chunk = j->rank_stage[rank],
                                                         .stage_rank = j->stage_rank,
                                                         .layout = layout,
                                                         .rank = rank,
                                                         .chunks = j->shape.chunks,
                                                         .microbatches = j->shape.microbatches,
                                                         .ddp = j->ddp,
                                                         .sharding = sharding,
                                                         .blocks = j->blocks * j->ddp,
                                                         .optimizer_states =
                                                             smp_planned_states(j->shape.training)},
                                     &memory));
    return memory;
}

/* Does a weight of the region begin there, or one of its whole pieces? */
static bool may_cut(const job *j, const smp_memory_rank *memory, int32_t region, int64_t at)
{
    for (int32_t k = 0; k < memory->n_param; k++) {
        const smp_memory_param *param = &memory->param[k];
        const int64_t inside = at - param->at;
        if (param->region == region && inside >= 0 && inside % SMP_PIECE_ELEMENTS == 0 &&
            inside < j->f.graph.param[param->param].elements)
            return true;
    }
    return at == memory->region[region].elements;
}

static void check_cuts(const job *j, const smp_memory_rank *memory)
{
    const int parts = j->shape.sharding.shard;
    int64_t held[8] = {0}, elements = 0; /* of the chunk so far: of each member, and all */
    int begins = 0;
    for (int32_t i = 0; i < memory->n_region; i++) {
        const smp_memory_region *region = &memory->region[i];
        assert_int_equal(region->cut[0], 0);
        assert_int_equal(region->cut[parts], region->elements);
        begins = region->param >= 0 || i == memory->chunk_region[region->chunk] ? 0 : begins;
        elements = region->elements + (begins > 0 ? elements : 0);
        for (int p = 0; p < parts; p++) {
            const int64_t part = region->cut[p + 1] - region->cut[p];
            assert_true(part >= 0 && may_cut(j, memory, i, region->cut[p]));
            assert_int_equal(region->at[p], begins > 0 ? held[p] : 0);
            held[p] = region->at[p] + part;
            assert_true(held[p] <=
                        elements / parts + 1 + 2 * (SMP_PIECE_ELEMENTS + SMP_BUFFER_ALIGN));
        }
        begins++;
    }
}

/* The weights of a chunk with one use, from the last on, in buckets that are full but for the
 * last one; side by side in memory. */
static void check_buckets(const job *j, const smp_memory_rank *memory)
{
    const int64_t limit = j->shape.sharding.bucket_bytes;
    for (int c = 0; c < j->shape.chunks; c++) {
        int32_t below = INT32_MAX; /* the lowest weight of the bucket before */
        int64_t at = 0;
        for (int32_t i = memory->chunk_region[c]; i < memory->chunk_region[c + 1]; i++) {
            int64_t bytes = 0, first = 0;
            int32_t lowest = below;
            for (int32_t k = memory->n_param - 1; k >= 0; k--)
                if (memory->param[k].region == i) {
                    assert_true(memory->param[k].param < below);
                    lowest = memory->param[k].param;
                    first = 4 * j->f.graph.param[lowest].elements;
                    bytes += first;
                }
            assert_int_equal(memory->region[i].in_chunk, at);
            assert_true(limit == 0 || bytes - first < limit); /* without its last it was not full */
            assert_true(i + 1 == memory->chunk_region[c + 1] || (limit > 0 && bytes >= limit));
            below = lowest;
            at += memory->region[i].elements;
        }
    }
}

typedef struct live_list {
    int64_t begin[MOST_LIVE], end[MOST_LIVE];
    int n;
} live_list;

static void add(live_list *list, int64_t begin, int64_t bytes)
{
    if (begin < 0 || bytes <= 0)
        return;
    assert_true(list->n < MOST_LIVE);
    list->begin[list->n] = begin;
    list->end[list->n++] = begin + bytes;
}

/* Of an action; -1: it is not there. */
static int64_t position(const smp_program *p, smp_action_kind kind, int mb, int chunk)
{
    for (int64_t i = 0; i < p->n; i++)
        if (p->action[i].kind == kind && p->action[i].microbatch == mb &&
            p->action[i].chunk == chunk)
            return i;
    return -1;
}

static int64_t first_of(int64_t a, int64_t b)
{
    return a >= 0 ? a : b;
}

static void add_gathered(const job *j, const smp_memory_rank *memory, int64_t at, live_list *list)
{
    const smp_program *p = &j->program[memory->rank];
    const int64_t element = j->f.graph.target.precision == SMP_PRECISION_BF16 ? 6 : 4;
    for (int c = 0; c < j->shape.chunks; c++) {
        int64_t held = -1;
        for (int64_t i = 0; i <= at; i++) {
            if (p->action[i].kind == SMP_ACTION_GATHER && p->action[i].chunk == c)
                held = i;
            if (p->action[i].kind == SMP_ACTION_DROP && p->action[i].chunk == c && i < at)
                held = -1;
        }
        if (held >= 0)
            add(list, memory->gather[held], element * memory->gathered_elements[c]);
    }
}

static void add_bucket(const job *j, const smp_memory_rank *memory, int chunk, int64_t at,
                       live_list *list)
{
    const smp_program *p = &j->program[memory->rank];
    const smp_memory_bucket *bucket = &memory->bucket[chunk];
    const int64_t begin =
        first_of(position(p, SMP_ACTION_B, 0, chunk), position(p, SMP_ACTION_W, 0, chunk));
    const int shard = j->shape.sharding.shard, all = j->blocks * j->ddp;
    const int levels = smp_gradient_levels(all, j->ddp, shard);
    const bool terms = smp_gradient_most_nodes(all, j->ddp, shard) > 1;
    const int64_t end = bucket->shared || terms ? position(p, SMP_ACTION_OPTIMIZE, -1, -1)
                                                : position(p, SMP_ACTION_ALL, -1, chunk);
    if (bucket->lives && begin >= 0 && begin <= at && at <= end)
        add(list, bucket->offset, 4 * bucket->elements * (1 + levels));
}

static void add_stash(const job *j, const smp_memory_rank *memory, int chunk, int mb, int64_t at,
                      live_list *list)
{
    const smp_program *p = &j->program[memory->rank];
    const int64_t forward = position(p, SMP_ACTION_F, mb, chunk);
    const int64_t back =
        first_of(position(p, SMP_ACTION_B, mb, chunk), position(p, SMP_ACTION_I, mb, chunk));
    const int64_t weight = first_of(position(p, SMP_ACTION_W, mb, chunk), back);
    const int64_t begin[] = {forward, forward, back}, end[] = {back, weight, weight};
    const smp_layout *layout = j->layout[j->rank_stage[memory->rank][chunk]];
    for (int k = SMP_BLOCK_INPUT; k <= SMP_BLOCK_GRAD; k++)
        if (begin[k] >= 0 && begin[k] <= at && at <= (end[k] > begin[k] ? end[k] : begin[k]))
            add(list, memory->stash[k][chunk * j->shape.microbatches + mb], layout->block_bytes[k]);
}

/* Of the action itself: what it reads and writes. */
static void add_borders(const job *j, const smp_memory_rank *memory, int64_t at, live_list *list)
{
    const smp_action *a = &j->program[memory->rank].action[at];
    if (!smp_action_is_compute(a->kind) || a->kind == SMP_ACTION_W)
        return;
    const smp_layout *layout = j->layout[j->rank_stage[memory->rank][a->chunk]];
    for (int32_t b = 0; b < layout->n_border; b++) {
        const smp_border *border = &layout->border[b];
        const bool forward = border->kind == SMP_BORDER_OUT || border->kind == SMP_BORDER_IN;
        if (forward == (a->kind == SMP_ACTION_F))
            add(list,
                memory
                    ->border[(int64_t)(memory->border_begin[a->chunk] + b) * j->shape.microbatches +
                             a->microbatch],
                border->bytes);
    }
}

static void check_places(const job *j, const smp_memory_rank *memory)
{
    for (int64_t at = 0; at < j->program[memory->rank].n; at++) {
        live_list list = {.n = 0};
        add_gathered(j, memory, at, &list);
        for (int c = 0; c < j->shape.chunks; c++) {
            add_bucket(j, memory, c, at, &list);
            for (int mb = 0; mb < j->shape.microbatches; mb++)
                add_stash(j, memory, c, mb, at, &list);
        }
        add_borders(j, memory, at, &list);
        for (int i = 0; i < list.n; i++) {
            assert_true(list.begin[i] >= memory->fixed_bytes && list.end[i] <= memory->arena_bytes);
            for (int k = 0; k < i; k++)
                assert_true(list.end[i] <= list.begin[k] || list.end[k] <= list.begin[i]);
        }
    }
}

/* What lives for ever less than in a rank without shards, against what is counted for an element.
 * Accumulators of other blocks, and those of weights with several uses, are not counted. */
static void check_saved(const job *j, const smp_memory_rank *memory)
{
    const smp_sharding none = {.shard = 1}, sharding = j->shape.sharding;
    smp_memory_rank *whole = plan_rank(j, memory->rank, none);
    int64_t elements = 0;
    for (int32_t i = 0; i < memory->n_region; i++)
        elements += memory->region[i].elements;
    const double counted = (smp_memory_state_bytes(&j->f.graph, none) -
                            smp_memory_state_bytes(&j->f.graph, sharding)) *
                           (double)elements;
    const double saved = (double)(whole->fixed_bytes - memory->fixed_bytes);
    const double padding = 16.0 * memory->n_region * (SMP_PIECE_ELEMENTS + 64.0 * j->ddp);
    if (smp_gradient_levels(j->blocks * j->ddp, j->ddp, sharding.shard) == 0 &&
        memory->n_region == memory->chunk_region[j->shape.chunks])
        assert_true(saved >= counted - padding && saved <= counted + padding);
    smp_memory_destroy(whole);
}

static void test_memory_of_shards(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        job j;
        open_job(&j, seed);
        for (int rank = 0; rank < j.shape.pipeline; rank++) {
            smp_memory_rank *memory = plan_rank(&j, rank, j.shape.sharding);
            check_cuts(&j, memory);
            check_buckets(&j, memory);
            check_places(&j, memory);
            check_saved(&j, memory);
            smp_memory_destroy(memory);
        }
        close_job(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_of_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

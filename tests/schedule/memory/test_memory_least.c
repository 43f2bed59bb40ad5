/* What ranks reserve at least, against the memory planner: random graphs of ops with kernels and
 * without, stages, rules and sets of what recomputes. */
#include "tests/case_count.h"
#include "tests/schedule/fixture.h"

#include "schedule/lower/lower.h"
#include "schedule/memory/memory_least.h"
#include "schedule/memory/recompute_choice.h"

enum { MOST_OPS = 24, MOST_STAGES = 6, MOST_RANKS = 3 };

static const smp_op_kind opaque_kind = {.name = "opaque", .min_in = 1, .max_in = 3};

typedef struct job {
    fixture_graph f;
    const smp_schedule_kind *kind;
    smp_schedule_shape shape;
    int stage_rank[MOST_STAGES], chunk[MOST_STAGES], rank_stage[MOST_RANKS][MOST_STAGES];
    int32_t stage[MOST_OPS];
    bool recompute[MOST_OPS], again[MOST_OPS];
    smp_flow *flow;
    smp_program program[MOST_RANKS];
} job;

/* Some ops without kernels, whose costs say what they keep. */
static void make_opaque(job *j, fixture_random *random, smp_op_cost_override *cost)
{
    smp_op *op = (smp_op *)j->f.graph.op;
    for (int32_t o = 0; o < j->f.graph.n_op; o++) {
        if (op[o].n_param > 0 || !fixture_chance(random, 30))
            continue;
        cost[o] = (smp_op_cost_override){.forward_us = 1.0,
                                         .backward_us = 1.0,
                                         .output_bytes = 64,
                                         .weight_bytes = fixture_below(random, 300),
                                         .stash_bytes = fixture_below(random, 1000)};
        op[o].kind = &opaque_kind;
        op[o].cost = &cost[o];
    }
}

static void open_job(job *j, uint64_t seed, smp_op_cost_override *cost)
{
    fixture_random random = {seed * 977};
    *j = (job){.shape = {.pipeline = 1 + (int)fixture_below(&random, MOST_RANKS),
                         .chunks = 1 + (int)fixture_below(&random, 2),
                         .training = true}};
    j->shape.microbatches = j->shape.pipeline * (1 + (int)fixture_below(&random, 4));
    j->kind = fixture_schedule(&random, &j->shape);
    int n_stage = j->shape.pipeline * j->shape.chunks, held[MOST_RANKS] = {0};
    fixture_graph_make(&j->f, seed, 2 * n_stage + (int32_t)fixture_below(&random, 12), true,
                       1 + (int)fixture_below(&random, 3));
    j->f.graph.target.backend = fixture_chance(&random, 30) ? SMP_BACKEND_CUDA : SMP_BACKEND_CPU;
    j->f.graph.target.precision =
        fixture_chance(&random, 30) ? SMP_PRECISION_BF16 : SMP_PRECISION_FP32;
    make_opaque(j, &random, cost);
    fixture_stages(&j->f.graph, &random, n_stage, j->stage);
    for (int s = 0; s < n_stage; s++) {
        int r = j->stage_rank[s] = smp_schedule_stage_rank(j->kind, &j->shape, s);
        j->chunk[s] = held[r];
        j->rank_stage[r][held[r]++] = s;
    }
    int percent = (int)fixture_below(&random, 3) * 40;
    for (int32_t o = 0; o < j->f.graph.n_op; o++)
        j->recompute[o] = fixture_chance(&random, percent);
    assert_int_equal(SMP_OK, smp_flow_build(&j->f.graph, j->stage, n_stage, 3, &j->flow));
    for (int s = 0; s < n_stage; s++)
        assert_int_equal(
            SMP_OK, smp_recompute_repeats(&j->f.graph, j->flow, s, j->recompute, NULL, j->again));
    assert_int_equal(SMP_OK, smp_lower(j->kind, &j->shape, j->flow, j->program));
}

static void close_job(job *j)
{
    for (int r = 0; r < j->shape.pipeline; r++)
        smp_program_free(&j->program[r]);
    smp_flow_destroy(j->flow);
    fixture_graph_free(&j->f);
}

static int64_t exact_bytes(const job *j, int rank)
{
    smp_layout *layout[MOST_STAGES];
    smp_memory_rank *memory;
    for (int c = 0; c < j->shape.chunks; c++)
        assert_int_equal(SMP_OK, smp_layout_measure(&j->f.graph, j->flow, j->rank_stage[rank][c],
                                                    smp_layout_is_split(&j->program[rank], c),
                                                    j->recompute, NULL, NULL, &layout[c]));
    const smp_memory_input input = {.graph = &j->f.graph,
                                    .flow = j->flow,
                                    .program = &j->program[rank],
                                    .stage_of_chunk = j->rank_stage[rank],
                                    .stage_rank = j->stage_rank,
                                    .layout = (const smp_layout *const *)layout,
                                    .rank = rank,
                                    .chunks = j->shape.chunks,
                                    .microbatches = j->shape.microbatches,
                                    .ddp = 1,
                                    .blocks = 1,
                                    .sharding = {.shard = 1},
                                    .optimizer_states = smp_planned_states(true)};
    assert_int_equal(SMP_OK, smp_memory_plan(&input, &memory));
    int64_t bytes = memory->arena_bytes;
    smp_memory_destroy(memory);
    for (int c = 0; c < j->shape.chunks; c++)
        smp_layout_destroy(layout[c]);
    return bytes;
}

/* What is claimed of a rank in these stages, with these ops made again. */
static int64_t least_bytes(const job *j, const smp__least_memory *least, int rank)
{
    int live[MOST_STAGES], late[MOST_STAGES];
    int64_t sum = 0;
    assert_int_equal(SMP_OK, smp_memory_live(j->kind, &j->shape, rank, live, late));
    for (int32_t o = 0; o < j->f.graph.n_op; o++) {
        int c = j->chunk[j->stage[o]];
        if (j->stage_rank[j->stage[o]] != rank)
            continue;
        sum += least->state_bytes[o] + late[c] * least->late_bytes[o];
        for (int64_t i = least->kept_begin[o]; i < least->kept_begin[o + 1]; i++) {
            const smp__kept *kept = &least->kept[i];
            bool again = j->again[kept->maker] && j->stage[kept->maker] == j->stage[o];
            sum += kept->bytes * ((again ? 0 : live[c]) + (kept->for_weight ? late[c] : 0));
        }
    }
    return sum;
}

static void check_shares(const job *j, const smp__least_memory *least)
{
    double share[MOST_OPS] = {0};
    for (int64_t i = 0; i < least->kept_begin[j->f.graph.n_op]; i++)
        share[least->kept[i].maker] += least->kept[i].share;
    for (int32_t o = 0; o < j->f.graph.n_op; o++)
        assert_true(share[o] <= 1.0);
}

static void test_memory_least_is_never_above_the_plan(void **state)
{
    (void)state;
    int n = case_count(3000), split = 0, again = 0;
    double part = 0.0, ranks = 0.0;
    for (int seed = 1; seed <= n; seed++) {
        job j;
        smp__least_memory least;
        smp_op_cost_override cost[MOST_OPS] = {{0}};
        open_job(&j, (uint64_t)seed, cost);
        smp_arena *arena = smp_arena_create();
        assert_int_equal(
            SMP_OK,
            smp_memory_least(&j.f.graph, 3, (smp_sharding){.shard = 1, .what = 0}, arena, &least));
        check_shares(&j, &least);
        for (int r = 0; r < j.shape.pipeline; r++) {
            int64_t exact = exact_bytes(&j, r), claimed = least_bytes(&j, &least, r);
            if (claimed > exact)
                fail_msg("seed %d, %s, rank %d of %d, %d chunks: %lld bytes claimed, %lld reserved",
                         seed, j.kind->name, r, j.shape.pipeline, j.shape.chunks,
                         (long long)claimed, (long long)exact);
            part += exact > 0 ? (double)claimed / (double)exact : 1.0; /* no op lies there */
            ranks += 1.0;
            split += smp_layout_is_split(&j.program[r], 0);
        }
        for (int32_t o = 0; o < j.f.graph.n_op; o++)
            again += j.again[o];
        smp_arena_destroy(arena);
        close_job(&j);
    }
    print_message("%.0f ranks, %d of them split, %.3f of what is reserved\n", ranks, split,
                  part / ranks);
    assert_true(split > n / 10 && again > n);
    assert_true(part > 0.4 * ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_least_is_never_above_the_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

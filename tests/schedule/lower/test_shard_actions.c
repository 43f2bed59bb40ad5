/* Gathers, drops and second hops: for random shapes, under every rule that can run them, programs
 * that verify, and those without shards but for G, D and A. Which weights are held when is counted
 * by walking the program. */
#include "tests/schedule/fixture.h"
#include "tests/schedule/made_plan.h"

enum { MAX_CHUNKS = 4 };

static bool is_shard(smp_action_kind kind)
{
    return kind == SMP_ACTION_GATHER || kind == SMP_ACTION_DROP || kind == SMP_ACTION_ALL;
}

static void assert_same_but_for_shards(const smp_program *with, const smp_program *without)
{
    int64_t k = 0;
    for (int64_t i = 0; i < with->n; i++) {
        const smp_action *a = &with->action[i];
        if (is_shard(a->kind))
            continue;
        assert_true(k < without->n);
        const smp_action *b = &without->action[k++];
        assert_true(a->kind == b->kind && a->microbatch == b->microbatch && a->chunk == b->chunk);
    }
    assert_int_equal(k, without->n);
}

/* Is the chunk that of a compute action's run or of one of the next `ahead`? */
static bool is_near(const smp_program *program, int64_t at, int ahead, int chunk)
{
    int32_t run = program->action[at].chunk;
    if (run == chunk)
        return true;
    for (int64_t i = at + 1; i < program->n && ahead > 0; i++)
        if (smp_action_is_compute(program->action[i].kind) && program->action[i].chunk != run) {
            run = program->action[i].chunk;
            ahead--;
            if (run == chunk)
                return true;
        }
    return false;
}

/* At every compute action the weights of its run and of the next `ahead` are held, and no others;
 * what is gathered was not dropped since the last one. */
static void assert_runs_are_held(const smp_program *program, int ahead)
{
    bool held[MAX_CHUNKS] = {false}, dropped[MAX_CHUNKS] = {false};
    for (int64_t i = 0; i < program->n; i++) {
        const smp_action *a = &program->action[i];
        assert_false(a->kind == SMP_ACTION_GATHER && dropped[a->chunk]);
        if (a->kind == SMP_ACTION_DROP)
            dropped[a->chunk] = true;
        if (smp_action_is_compute(a->kind))
            memset(dropped, 0, sizeof dropped);
        if (a->kind == SMP_ACTION_GATHER || a->kind == SMP_ACTION_DROP) {
            assert_int_equal(held[a->chunk], a->kind == SMP_ACTION_DROP);
            held[a->chunk] = !held[a->chunk];
        }
        for (int c = 0; smp_action_is_compute(a->kind) && c < MAX_CHUNKS; c++)
            assert_int_equal(held[c], is_near(program, i, ahead, c));
        assert_true(held[0] + held[1] + held[2] + held[3] <= ahead + 1);
    }
    for (int c = 0; c < MAX_CHUNKS; c++)
        assert_false(held[c]);
}

static int64_t first_use(const smp_program *program, int chunk)
{
    int64_t i = 0;
    while (!smp_action_is_compute(program->action[i].kind) || program->action[i].chunk != chunk)
        i++;
    return i;
}

/* All chunks at the beginning, in the order of their use, and never again. */
static void assert_gathered_once(const smp_program *program, int chunks)
{
    for (int64_t i = 0; i < program->n; i++) {
        const smp_action *a = &program->action[i];
        assert_int_equal(a->kind == SMP_ACTION_GATHER, i < chunks);
        assert_true(a->kind != SMP_ACTION_DROP);
        if (i > 0 && i < chunks)
            assert_true(first_use(program, program->action[i - 1].chunk) <
                        first_use(program, a->chunk));
    }
}

/* The A of each R stands directly before the next R, or O. */
static void assert_reduced_twice(const smp_program *program)
{
    int chunk = -1;
    for (int64_t i = 0; i < program->n; i++) {
        const smp_action *a = &program->action[i];
        const bool hop = a->kind == SMP_ACTION_REDUCE || a->kind == SMP_ACTION_OPTIMIZE;
        if (hop && chunk >= 0)
            assert_true(program->action[i - 1].kind == SMP_ACTION_ALL &&
                        program->action[i - 1].chunk == chunk);
        if (a->kind == SMP_ACTION_ALL)
            assert_true(i + 1 < program->n && (program->action[i + 1].kind == SMP_ACTION_REDUCE ||
                                               program->action[i + 1].kind == SMP_ACTION_OPTIMIZE));
        if (a->kind == SMP_ACTION_REDUCE)
            chunk = a->chunk;
    }
}

static void check_programs(const made_plan *without, const made_plan *with)
{
    const smp_plan *plan = &with->plan;
    const bool weights = smp_shards(plan->sharding, SMP_SHARD_WEIGHTS, plan->training);
    if (smp_verify_programs(plan, with->flow))
        fail_msg("%s p %d v %d m %d shard %d %s: %s", plan->schedule, plan->pipeline, plan->chunks,
                 plan->microbatches, plan->sharding.shard, smp_shard_what_name(plan->sharding.what),
                 smp_last_error());
    for (int rank = 0; rank < plan->pipeline; rank++) {
        const smp_program *program = &with->program[rank];
        assert_same_but_for_shards(program, &without->program[rank]);
        if (weights)
            assert_runs_are_held(program, plan->sharding.prefetch);
        else if (plan->training)
            assert_gathered_once(program, plan->chunks);
        else
            assert_int_equal(program->n, without->program[rank].n);
        if (plan->training)
            assert_reduced_twice(program);
    }
}

static void check_shape(const smp_schedule_kind *kind, const smp_schedule_shape *shape)
{
    made_plan without, with;
    made_plan_create(&without, kind->name, shape->pipeline, shape->chunks, shape->microbatches,
                     shape->training, made_skips);
    for (int shard = 2; shard <= 4; shard++)
        for (int what = 0; what <= SMP_SHARD_WEIGHTS; what++) {
            made_plan_stages(&with, kind->name, shape->pipeline, shape->chunks, shape->microbatches,
                             shape->training, made_skips);
            with.plan.ddp = shard;
            with.plan.sharding = (smp_sharding){
                .shard = shard, .what = (smp_shard_what)what, .prefetch = shape->sharding.prefetch};
            made_plan_lower(&with);
            check_programs(&without, &with);
            made_plan_free(&with);
        }
    made_plan_free(&without);
}

static void test_shard_actions_of_random_shapes(void **state)
{
    (void)state;
    fixture_random random = {1};
    int checked = 0;
    for (int trial = 0; trial < 80; trial++) {
        const smp_schedule_shape shape = {.pipeline = 1 + (int)fixture_below(&random, 4),
                                          .chunks = 1 + (int)fixture_below(&random, MAX_CHUNKS),
                                          .microbatches = 1 + (int)fixture_below(&random, 9),
                                          .training = fixture_chance(&random, 75),
                                          .sharding = {.prefetch = (int)fixture_below(&random, 4)}};
        for (int i = 0; smp_schedules()[i]; i++)
            if (smp_schedule_check(smp_schedules()[i], &shape) == SMP_OK) {
                check_shape(smp_schedules()[i], &shape);
                checked++;
            }
    }
    assert_true(checked >= 80);
}

static void assert_rank_0(const char *schedule, int chunks, int microbatches, bool training,
                          smp_shard_what what, int prefetch, const char *expected)
{
    made_plan made;
    made_plan_stages(&made, schedule, 1, chunks, microbatches, training, made_chain);
    made.plan.ddp = 2;
    made.plan.sharding = (smp_sharding){.shard = 2, .what = what, .prefetch = prefetch};
    made_plan_lower(&made);
    assert_program(&made.program[0], expected);
    made_plan_free(&made);
}

static void test_shard_actions_by_hand(void **state)
{
    (void)state;
    assert_rank_0("breadth-first", 2, 2, true, SMP_SHARD_GRADIENTS, 1,
                  "G.0 G.1 F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 R.1 B0.0 B1.0 A.1 R.0 A.0 O");
    assert_rank_0("breadth-first", 2, 2, true, SMP_SHARD_WEIGHTS, 1,
                  "G.0 G.1 F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 D.1 R.1 B0.0 B1.0 D.0 A.1 R.0 A.0 O");
    assert_rank_0("breadth-first", 3, 1, false, SMP_SHARD_WEIGHTS, 1,
                  "G.0 G.1 F0.0 D.0 G.2 F0.1 D.1 F0.2 D.2");
    assert_rank_0("breadth-first", 3, 1, false, SMP_SHARD_WEIGHTS, 0,
                  "G.0 F0.0 D.0 G.1 F0.1 D.1 G.2 F0.2 D.2");
    assert_rank_0("breadth-first", 3, 1, true, SMP_SHARD_WEIGHTS, 0,
                  "G.0 F0.0 D.0 G.1 F0.1 D.1 G.2 F0.2 B0.2 D.2 R.2 G.1 B0.1 D.1 A.2 R.1 G.0 B0.0 "
                  "D.0 A.1 R.0 A.0 O");
    assert_rank_0("breadth-first", 4, 1, false, SMP_SHARD_WEIGHTS, 2,
                  "G.0 G.1 G.2 F0.0 D.0 G.3 F0.1 D.1 F0.2 D.2 F0.3 D.3");
    assert_rank_0("breadth-first", 2, 1, false, SMP_SHARD_GRADIENTS, 1, "F0.0 F0.1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shard_actions_by_hand),
        cmocka_unit_test(test_shard_actions_of_random_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

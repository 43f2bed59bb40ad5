/* Lowering: exact programs of small pipelines, and for random graphs with skip connections between
 * any stages programs that always verify. */
#include "tests/schedule/fixture.h"
#include "tests/schedule/made_plan.h"

enum { MAX_OPS = 80 };

static void test_lower_chain(void **state)
{
    (void)state;
    made_plan made;
    made_plan_create(&made, "interleaved", 2, 1, 3, true, made_chain);
    /* Rank 1 takes F1.0 before it sends B0.0: rank 0 sends the one before it takes the other. */
    assert_program(&made.program[0], "F0.0 >F0.0 F1.0 >F1.0 <B0.0 B0.0 F2.0 >F2.0 <B1.0 B1.0 "
                                     "<B2.0 B2.0 R.0 O");
    assert_program(&made.program[1], "<F0.0 F0.0 B0.0 <F1.0 >B0.0 F1.0 B1.0 <F2.0 >B1.0 F2.0 B2.0 "
                                     ">B2.0 R.0 O");
    made_plan_free(&made);
    made_plan_create(&made, "simple", 2, 1, 2, false, made_chain);
    assert_program(&made.program[0], "F0.0 >F0.0 F1.0 >F1.0");
    assert_program(&made.program[1], "<F0.0 F0.0 <F1.0 F1.0");
    made_plan_free(&made);
}

static void test_lower_one_rank_needs_no_messages(void **state)
{
    (void)state;
    made_plan made;
    made_plan_create(&made, "interleaved", 1, 2, 2, true, made_chain);
    assert_program(&made.program[0], "F0.0 F0.1 B0.1 F1.0 B0.0 F1.1 B1.1 R.1 B1.0 R.0 O");
    made_plan_free(&made);
}

static bool only_first(int reader, int producer)
{
    return producer == 0 && reader > 0;
}

/* Stages 1 and 2 both read stage 0 and nothing else: one send for both, no message between them. */
static void test_lower_branches(void **state)
{
    (void)state;
    made_plan made;
    made_plan_create(&made, "simple", 3, 1, 1, false, only_first);
    assert_program(&made.program[0], "F0.0 >F0.0");
    assert_program(&made.program[1], "<F0.0 F0.0");
    assert_program(&made.program[2], "<F0.0 F0.0");
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_OK);
    made_plan_free(&made);
}

static bool skip_over_all(int reader, int producer)
{
    return producer == reader - 1 || producer == 0;
}

/* The output of stage 0 goes to every stage; with chunks, its last reader runs long after rank 0
 * must have gone on. */
static void test_lower_skips_around_the_ring(void **state)
{
    (void)state;
    for (int p = 1; p <= 4; p++)
        for (int v = 1; v <= 4; v++)
            for (int m = 1; m <= 9; m++)
                for (int i = 0; smp_schedules()[i]; i++) {
                    const smp_schedule_kind *kind = smp_schedules()[i];
                    smp_schedule_shape shape = {p, v, m, m % 2, 0, 0, {.shard = 1}, {0}};
                    if (smp_schedule_check(kind, &shape))
                        continue;
                    made_plan made;
                    made_plan_create(&made, kind->name, p, v, m, m % 2, skip_over_all);
                    if (smp_verify_programs(&made.plan, made.flow))
                        fail_msg("%s p %d v %d m %d: %s", kind->name, p, v, m, smp_last_error());
                    made_plan_free(&made);
                }
}

static int count_between(const smp_program *program, int64_t from, int64_t to)
{
    int computes = 0;
    for (int64_t i = from + 1; i < to; i++)
        computes += smp_action_is_compute(program->action[i].kind);
    return computes;
}

/* No compute action stands between what a `>` sends and the `>`. */
static void assert_sends_follow(const smp_program *program, int chunks, int microbatches)
{
    int64_t *at = calloc((size_t)(2 * chunks * microbatches), sizeof *at);
    assert_non_null(at);
    for (int64_t i = 0; i < program->n; i++) {
        const smp_action *a = &program->action[i];
        int64_t pair = (int64_t)a->chunk * microbatches + a->microbatch;
        if (smp_action_is_compute(a->kind) && a->kind != SMP_ACTION_W)
            at[2 * pair + (a->kind != SMP_ACTION_F)] = i;
        if (a->kind == SMP_ACTION_SEND_F || a->kind == SMP_ACTION_SEND_B)
            assert_int_equal(
                count_between(program, at[2 * pair + (a->kind == SMP_ACTION_SEND_B)], i), 0);
    }
    free(at);
}

static void assert_same_programs(const smp_program *a, const smp_program *b, int n)
{
    for (int r = 0; r < n; r++) {
        assert_int_equal(a[r].n, b[r].n);
        for (int64_t i = 0; i < a[r].n; i++) {
            assert_int_equal(a[r].action[i].kind, b[r].action[i].kind);
            assert_int_equal(a[r].action[i].microbatch, b[r].action[i].microbatch);
            assert_int_equal(a[r].action[i].chunk, b[r].action[i].chunk);
        }
    }
}

static void check_random(uint64_t seed)
{
    fixture_random random = {seed};
    int p = 1 + (int)fixture_below(&random, 6), v = 1 + (int)fixture_below(&random, 3);
    int m = 1 + (int)fixture_below(&random, 10), n_stage = p * v;
    smp_schedule_shape shape = {
        p,  v, m, fixture_chance(&random, 80), (int)fixture_below(&random, 2 * p), 0, {.shard = 1},
        {0}};
    const smp_schedule_kind *kind = fixture_schedule(&random, &shape);
    fixture_graph f;
    fixture_graph_make(&f, seed, 6 + (int32_t)fixture_below(&random, 60), shape.training,
                       1 + (int)(seed % 2) * 2);
    int32_t stage[MAX_OPS];
    fixture_stages(&f.graph, &random, n_stage, stage);
    smp_flow *flow;
    assert_int_equal(smp_flow_build(&f.graph, stage, n_stage, 1, &flow), SMP_OK);
    smp_program program[6] = {{0}}, again[6] = {{0}};
    smp_plan_stage stages[18] = {{0}};
    for (int s = 0; s < n_stage; s++)
        stages[s].rank = smp_schedule_stage_rank(kind, &shape, s);
    smp_plan plan = {.pipeline = p,
                     .ddp = 1,
                     .sharding = {.shard = 1},
                     .gradient_blocks = 1,
                     .chunks = v,
                     .microbatches = m,
                     .schedule = kind->name,
                     .training = shape.training,
                     .n_stage = n_stage,
                     .stage = stages,
                     .program = program};
    if (smp_lower(kind, &shape, flow, program) || smp_verify_programs(&plan, flow))
        fail_msg("seed %llu, %s p %d v %d m %d: %s", (unsigned long long)seed, kind->name, p, v, m,
                 smp_last_error());
    assert_int_equal(smp_lower(kind, &shape, flow, again), SMP_OK);
    assert_same_programs(program, again, p);
    for (int r = 0; r < p; r++) {
        assert_sends_follow(&program[r], v, m);
        smp_program_free(&program[r]);
        smp_program_free(&again[r]);
    }
    smp_flow_destroy(flow);
    fixture_graph_free(&f);
}

static void test_lower_random_graphs_verify(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 1500; seed++)
        check_random(seed);
}

/* Backward halves, on the last rank in another order than on the first. */
static smp_status split_order(const smp_schedule_shape *shape, int rank, smp_program *program)
{
    for (int mb = 0; mb < shape->microbatches; mb++)
        SMP_TRY(smp_program_push(program, SMP_ACTION_F, mb, 0));
    for (int mb = 0; mb < shape->microbatches; mb++) {
        SMP_TRY(smp_program_push(program, SMP_ACTION_I, mb, 0));
        if (rank > 0)
            SMP_TRY(smp_program_push(program, SMP_ACTION_W, mb, 0));
    }
    for (int mb = 0; rank == 0 && mb < shape->microbatches; mb++)
        SMP_TRY(smp_program_push(program, SMP_ACTION_W, mb, 0));
    return SMP_OK;
}

static void test_lower_split_backward(void **state)
{
    (void)state;
    const smp_schedule_kind split = {.name = "split", .order = split_order};
    made_plan made;
    made_plan_stages(&made, "simple", 2, 1, 2, true, made_chain);
    smp_schedule_shape shape = smp_plan_shape(&made.plan);
    assert_int_equal(smp_lower(&split, &shape, made.flow, made.program), SMP_OK);
    assert_program(&made.program[0], "F0.0 >F0.0 F1.0 >F1.0 <B0.0 I0.0 <B1.0 I1.0 W0.0 W1.0 R.0 O");
    assert_program(&made.program[1], "<F0.0 F0.0 <F1.0 F1.0 I0.0 >B0.0 W0.0 I1.0 >B1.0 W1.0 R.0 O");
    assert_int_equal(smp_verify_programs(&made.plan, made.flow), SMP_OK);
    made_plan_free(&made);
}

/* Rank 0 wants the gradient of micro-batch 0 before it has sent micro-batch 1, rank 1 has them the
 * other way around. */
static smp_status crossed_order(const smp_schedule_shape *shape, int rank, smp_program *program)
{
    (void)shape;
    SMP_TRY(smp_program_push(program, SMP_ACTION_F, 0, 0));
    SMP_TRY(smp_program_push(program, rank ? SMP_ACTION_F : SMP_ACTION_B, rank ? 1 : 0, 0));
    SMP_TRY(smp_program_push(program, rank ? SMP_ACTION_B : SMP_ACTION_F, rank ? 0 : 1, 0));
    return smp_program_push(program, SMP_ACTION_B, 1, 0);
}

static smp_status bad_chunk_order(const smp_schedule_shape *shape, int rank, smp_program *program)
{
    (void)rank;
    return smp_program_push(program, SMP_ACTION_F, 0, shape->chunks);
}

static void test_lower_refuses(void **state)
{
    (void)state;
    const smp_schedule_kind crossed = {.name = "crossed", .order = crossed_order};
    const smp_schedule_kind bad_chunk = {.name = "bad", .order = bad_chunk_order};
    made_plan made;
    made_plan_stages(&made, "simple", 2, 1, 2, true, made_chain);
    smp_schedule_shape shape = smp_plan_shape(&made.plan);
    assert_int_equal(smp_lower(&crossed, &shape, made.flow, made.program), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "rank 0 waits at B0.0"));
    assert_null(made.program[0].action);
    assert_int_equal(smp_lower(&bad_chunk, &shape, made.flow, made.program), SMP_ERR_INPUT);
    shape.chunks = 2;
    assert_int_equal(smp_lower(smp_schedule_find("simple"), &shape, made.flow, made.program),
                     SMP_ERR_INPUT);
    shape.chunks = 0;
    assert_int_equal(smp_lower(smp_schedule_find("simple"), &shape, made.flow, made.program),
                     SMP_ERR_INPUT);
    made_plan_free(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lower_chain),
        cmocka_unit_test(test_lower_one_rank_needs_no_messages),
        cmocka_unit_test(test_lower_branches),
        cmocka_unit_test(test_lower_skips_around_the_ring),
        cmocka_unit_test(test_lower_split_backward),
        cmocka_unit_test(test_lower_random_graphs_verify),
        cmocka_unit_test(test_lower_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Stores and loads: for random shapes, under every rule, programs that differ from those without by
 * S and L alone, and where these stand. */
#include "schedule/lower/offload_actions.h"
#include "tests/schedule/fixture.h"
#include "tests/schedule/made_plan.h"

static bool travels(smp_action_kind kind)
{
    return kind == SMP_ACTION_STORE || kind == SMP_ACTION_LOAD;
}

static int64_t find(const smp_program *program, smp_action_kind kind, const smp_action *of)
{
    for (int64_t i = 0; i < program->n; i++) {
        const smp_action *a = &program->action[i];
        if (a->kind == kind && a->chunk == of->chunk && a->microbatch == of->microbatch)
            return i;
    }
    return -1;
}

/* Compute actions in [from, to). */
static int64_t computes(const smp_program *program, int64_t from, int64_t to)
{
    int64_t n = 0;
    for (int64_t i = from; i < to; i++)
        n += smp_action_is_compute(program->action[i].kind);
    return n;
}

/* A pair whose backward is near stays; every other one is stored behind its forward and loaded
 * `horizon` compute actions ahead of its backward, after it has left. */
static void check_pair(const smp_program *program, int64_t f, int horizon, bool offloads)
{
    const smp_action *action = &program->action[f];
    int64_t b = find(program, SMP_ACTION_B, action);
    if (b < 0)
        b = find(program, SMP_ACTION_I, action);
    const int64_t store = find(program, SMP_ACTION_STORE, action);
    const int64_t load = find(program, SMP_ACTION_LOAD, action);
    if (!offloads || computes(program, f, b) < 2 * horizon + 2) {
        assert_true(store < 0 && load < 0);
        return;
    }
    assert_int_equal(store, f + 1);
    assert_int_equal(computes(program, load, b), horizon);
    assert_true(smp_action_is_compute(program->action[load + 1].kind));
    const int64_t stored = smp_offload_stored_by(program, store, horizon);
    assert_int_equal(computes(program, store, stored), horizon);
    assert_true(smp_action_is_compute(program->action[stored].kind));
    assert_true(stored < load);
}

static void check_program(const smp_program *with, const smp_program *without, int horizon,
                          const bool *chunk_offloads)
{
    int64_t k = 0;
    for (int64_t i = 0; i < with->n; i++) {
        const smp_action *a = &with->action[i];
        if (travels(a->kind))
            continue;
        const smp_action *b = &without->action[k++];
        assert_true(a->kind == b->kind && a->microbatch == b->microbatch && a->chunk == b->chunk);
        if (a->kind == SMP_ACTION_F)
            check_pair(with, i, horizon, chunk_offloads[a->chunk]);
    }
    assert_int_equal(k, without->n);
}

enum { MAX_CHUNKS = 3, MAX_RANKS = 4 };

static int check_shape(const smp_schedule_kind *kind, const smp_schedule_shape *shape,
                       fixture_random *random)
{
    made_plan made;
    smp_program program[MAX_RANKS] = {{0}};
    bool stage[MAX_RANKS * MAX_CHUNKS], of_chunk[MAX_CHUNKS];
    smp_schedule_shape offloads = *shape;
    int moved = 0;
    made_plan_create(&made, kind->name, shape->pipeline, shape->chunks, shape->microbatches,
                     shape->training, made_skips);
    for (int s = 0; s < shape->pipeline * shape->chunks; s++)
        stage[s] = fixture_chance(random, 70);
    offloads.offloading.stage = stage;
    assert_int_equal(smp_lower(kind, &offloads, made.flow, program), SMP_OK);
    for (int rank = 0; rank < shape->pipeline; rank++) {
        for (int c = 0; c < shape->chunks; c++)
            of_chunk[c] = shape->training && stage[smp_plan_stage_of(&made.plan, rank, c)];
        check_program(&program[rank], &made.program[rank], shape->offloading.horizon, of_chunk);
        moved += program[rank].n > made.program[rank].n;
        smp_program_free(&program[rank]);
    }
    made_plan_free(&made);
    return moved;
}

static void test_offload_actions_of_random_shapes(void **state)
{
    (void)state;
    fixture_random random = {1};
    int moved = 0;
    for (int trial = 0; trial < 120; trial++) {
        const smp_schedule_shape shape = {
            .pipeline = 1 + (int)fixture_below(&random, MAX_RANKS),
            .chunks = 1 + (int)fixture_below(&random, MAX_CHUNKS),
            .microbatches = 1 + (int)fixture_below(&random, 12),
            .training = fixture_chance(&random, 90),
            .offloading = {.horizon = 1 + (int)fixture_below(&random, 4)}};
        for (int i = 0; smp_schedules()[i]; i++)
            if (smp_schedule_check(smp_schedules()[i], &shape) == SMP_OK)
                moved += check_shape(smp_schedules()[i], &shape, &random);
    }
    assert_true(moved > 100);
}

static void assert_one_rank(const char *schedule, int microbatches, int horizon,
                            const char *expected)
{
    const bool stage[1] = {true};
    made_plan made;
    smp_program program;
    made_plan_create(&made, schedule, 1, 1, microbatches, true, made_chain);
    smp_schedule_shape shape = smp_plan_shape(&made.plan);
    shape.offloading = (smp_offloading){.horizon = horizon, .stage = stage};
    assert_int_equal(smp_lower(smp_schedule_find(schedule), &shape, made.flow, &program), SMP_OK);
    assert_program(&program, expected);
    smp_program_free(&program);
    made_plan_free(&made);
}

static void test_offload_actions_by_hand(void **state)
{
    (void)state;
    assert_one_rank("simple", 4, 1,
                    "F0.0 S0.0 F1.0 S1.0 F2.0 S2.0 L0.0 F3.0 S3.0 L1.0 B0.0 L2.0 B1.0 L3.0 "
                    "B2.0 B3.0 R.0 O");
    assert_one_rank("simple", 5, 2, "F0.0 F1.0 F2.0 F3.0 F4.0 B0.0 B1.0 B2.0 B3.0 B4.0 R.0 O");
    assert_one_rank("simple", 7, 3,
                    "F0.0 F1.0 F2.0 F3.0 F4.0 F5.0 F6.0 B0.0 B1.0 B2.0 B3.0 B4.0 B5.0 B6.0 R.0 "
                    "O");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offload_actions_by_hand),
        cmocka_unit_test(test_offload_actions_of_random_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

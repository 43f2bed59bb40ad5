/* Every registered schedule over a grid of ranks, chunks and micro-batches: complete, in the order
 * that keeps training bit-identical, free of deadlock, within the memory and the time that its
 * formulas promise. */
#include "made_plan.h"
#include "schedule/simulate.h"

enum { MAX_RANKS = 8, MAX_CHUNKS = 4, MAX_MICROBATCHES = 32 };

typedef void (*grid_check)(made_plan *made, const smp_schedule_kind *kind);

/* Flows of 1 to MAX_RANKS * MAX_CHUNKS stages in a chain are made once and lent to the plans. */
static void for_grid(bool training, grid_check check)
{
    for (int n_stage = 1; n_stage <= MAX_RANKS * MAX_CHUNKS; n_stage++)
        for (int p = 1; p <= MAX_RANKS; p++) {
            int v = n_stage / p;
            if (n_stage % p || v > MAX_CHUNKS)
                continue;
            made_plan made;
            made_plan_stages(&made, "simple", p, v, 1, training, made_chain);
            for (int i = 0; smp_schedules()[i]; i++)
                for (int m = 1; m <= MAX_MICROBATCHES; m++) {
                    made.plan.schedule = smp_schedules()[i]->name;
                    made.plan.microbatches = m;
                    smp_schedule_shape shape = smp_plan_shape(&made.plan);
                    for (int s = 0; s < n_stage; s++)
                        made.stage[s].rank = smp_schedule_stage_rank(smp_schedules()[i], &shape, s);
                    made_plan_lower(&made);
                    check(&made, smp_schedules()[i]);
                    for (int r = 0; r < p; r++)
                        smp_program_free(&made.program[r]);
                }
            made_plan_free(&made);
        }
}

static void check_verifies(made_plan *made, const smp_schedule_kind *kind)
{
    if (smp_verify_programs(&made->plan, made->flow))
        fail_msg("%s p %d v %d m %d: %s", kind->name, made->plan.pipeline, made->plan.chunks,
                 made->plan.microbatches, smp_last_error());
}

static void test_schedules_verify(void **state)
{
    (void)state;
    for_grid(true, check_verifies);
    for_grid(false, check_verifies);
}

/* Weight gradients of a chunk are added by rising micro-batch. */
static void check_order(made_plan *made, const smp_schedule_kind *kind)
{
    (void)kind;
    for (int r = 0; r < made->plan.pipeline; r++) {
        int next[MAX_CHUNKS] = {0};
        for (int64_t i = 0; i < made->program[r].n; i++) {
            const smp_action *a = &made->program[r].action[i];
            if (a->kind == SMP_ACTION_B || a->kind == SMP_ACTION_W)
                assert_int_equal(a->microbatch, next[a->chunk]++);
        }
        for (int c = 0; c < made->plan.chunks; c++)
            assert_int_equal(next[c], made->plan.microbatches);
    }
}

static void test_schedules_accumulate_in_order(void **state)
{
    (void)state;
    for_grid(true, check_order);
}

static int peak_live(const smp_program *program, bool training)
{
    int live = 0, peak = 0;
    for (int64_t i = 0; i < program->n; i++) {
        smp_action_kind kind = program->action[i].kind;
        live += kind == SMP_ACTION_F;
        peak = live > peak ? live : peak;
        live -= kind == SMP_ACTION_B || kind == SMP_ACTION_W || (!training && kind == SMP_ACTION_F);
    }
    return peak;
}

static void check_live(made_plan *made, const smp_schedule_kind *kind)
{
    smp_schedule_shape shape = smp_plan_shape(&made->plan);
    for (int r = 0; r < shape.pipeline; r++)
        if (peak_live(&made->program[r], shape.training) != kind->live(&shape, r))
            fail_msg("%s p %d v %d m %d rank %d: %d live, formula %d", kind->name, shape.pipeline,
                     shape.chunks, shape.microbatches, r,
                     peak_live(&made->program[r], shape.training), kind->live(&shape, r));
}

static void test_schedules_live(void **state)
{
    (void)state;
    for_grid(true, check_live);
    for_grid(false, check_live);
}

static const int devices[MAX_RANKS] = {0, 1, 2, 3, 4, 5, 6, 7};

static smp_simulation *simulate_unit(const made_plan *made)
{
    static const smp_device_spec device[MAX_RANKS];
    smp_cluster cluster = {.name = "free",
                           .nodes = 1,
                           .devices_per_node = MAX_RANKS,
                           .device = device,
                           .intra_node = {.bytes_per_s = 1e300},
                           .overlap = true};
    double forward[MAX_RANKS * MAX_CHUNKS], backward[MAX_RANKS * MAX_CHUNKS];
    int64_t weights[MAX_RANKS * MAX_CHUNKS] = {0};
    int rank[MAX_RANKS * MAX_CHUNKS];
    for (int s = 0; s < made->plan.n_stage; s++) {
        forward[s] = 1.0;
        backward[s] = 2.0;
        rank[s] = made->stage[s].rank;
    }
    smp_simulation *simulation;
    smp_simulation_input input = {.pipeline = made->plan.pipeline,
                                  .chunks = made->plan.chunks,
                                  .ddp = 1,
                                  .microbatches = made->plan.microbatches,
                                  .program = made->program,
                                  .stage_rank = rank,
                                  .forward_us = forward,
                                  .backward_us = backward,
                                  .weight_bytes = weights,
                                  .flow = made->flow,
                                  .graph = made->graph,
                                  .cluster = &cluster,
                                  .device = devices};
    if (smp_simulate(&input, &simulation))
        fail_msg("%s", smp_last_error());
    return simulation;
}

/* 3(mv + p-1) chunk-sized units when p divides m (or there are no chunks), and the idle share that
 * follows from it; never less. */
static void check_makespan(made_plan *made, const smp_schedule_kind *kind)
{
    int p = made->plan.pipeline, v = made->plan.chunks, m = made->plan.microbatches;
    smp_simulation *s = simulate_unit(made);
    double bound = 3.0 * (m * v + p - 1);
    bool simple = strcmp(kind->name, "simple") == 0;
    bool interleaved = strcmp(kind->name, "interleaved") == 0;
    bool exact = v == 1 || (interleaved && m % p == 0) || (simple && m >= p);
    if ((simple || interleaved) && exact) {
        if (s->step_us < bound - 1e-6 || s->step_us > bound + 1e-6)
            fail_msg("%s p %d v %d m %d: takes %g, formula %g", kind->name, p, v, m, s->step_us,
                     bound);
        double bubble = (p - 1.0) / (m * v + p - 1.0);
        assert_true(s->bubble > bubble - 1e-9 && s->bubble < bubble + 1e-9);
    }
    assert_true(s->step_us > 3.0 * m * v - 1e-6);
    smp_simulation_destroy(s);
}

static void test_schedules_makespan(void **state)
{
    (void)state;
    for_grid(true, check_makespan);
}

static void order_text(const char *name, smp_schedule_shape shape, int rank, const char *expected)
{
    smp_program program = {0};
    assert_int_equal(smp_schedule_find(name)->order(&shape, rank, &program), SMP_OK);
    assert_program(&program, expected);
    smp_program_free(&program);
}

static void test_schedules_orders(void **state)
{
    (void)state;
    order_text("simple", (smp_schedule_shape){2, 2, 2, true, 0, 0}, 0,
               "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0");
    order_text("interleaved", (smp_schedule_shape){4, 1, 5, true, 0, 0}, 1,
               "F0.0 F1.0 F2.0 B0.0 F3.0 B1.0 F4.0 B2.0 B3.0 B4.0");
    order_text("interleaved", (smp_schedule_shape){4, 1, 2, true, 0, 0}, 0, "F0.0 F1.0 B0.0 B1.0");
    order_text("interleaved", (smp_schedule_shape){2, 2, 4, true, 0, 0}, 1,
               "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
    order_text("interleaved", (smp_schedule_shape){2, 2, 3, true, 0, 0}, 1,
               "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 B1.0 F2.1 B2.1 B2.0");
    order_text("interleaved", (smp_schedule_shape){2, 2, 3, false, 0, 0}, 0,
               "F0.0 F1.0 F0.1 F1.1 F2.0 F2.1");
}

static void test_schedules_registry(void **state)
{
    (void)state;
    for (int i = 0; smp_schedules()[i]; i++) {
        const smp_schedule_kind *kind = smp_schedules()[i];
        assert_ptr_equal(smp_schedule_find(kind->name), kind);
        assert_true(kind->summary && kind->order && kind->live);
    }
    assert_null(smp_schedule_find("magic"));
    assert_null(smp_schedule_find(NULL));
    const smp_schedule_kind *simple = smp_schedule_find("simple");
    smp_schedule_shape shape = {3, 2, 4, true, 0, 0};
    assert_int_equal(smp_schedule_stage_rank(simple, &shape, 4), 1);
    assert_int_equal(smp_schedule_stage_of(simple, &shape, 1, 1), 4);
    assert_int_equal(smp_schedule_stage_of(simple, &shape, 1, 2), -1);
    assert_int_equal(smp_schedule_stage_of(simple, &shape, 3, 0), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules_registry),
        cmocka_unit_test(test_schedules_orders),
        cmocka_unit_test(test_schedules_verify),
        cmocka_unit_test(test_schedules_accumulate_in_order),
        cmocka_unit_test(test_schedules_live),
        cmocka_unit_test(test_schedules_makespan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

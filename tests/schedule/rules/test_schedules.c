/* Every registered schedule over a grid of ranks, chunks and micro-batches: complete, in the order
 * that keeps training bit-identical, free of deadlock, within the memory and the time that its
 * formulas promise. */
#include "tests/case_count.h"
#include "tests/schedule/rules/unit_simulation.h"

#include <math.h>

enum { MAX_RANKS = 8, MAX_CHUNKS = 4, MAX_MICROBATCHES = 32 };

typedef void (*grid_check)(made_plan *made, const smp_schedule_kind *kind,
                           const smp_schedule_shape *shape);

/* The chain's plan becomes one of this schedule, unless that cannot be, which the schedule must
 * explain. */
static void lend(made_plan *made, const smp_schedule_kind *kind, const smp_schedule_shape *shape,
                 grid_check check)
{
    if (smp_schedule_check(kind, shape)) {
        if (!strstr(smp_last_error(), kind->name) || !strstr(smp_last_error(), "expected"))
            fail_msg("%s refuses a shape, but does not name itself and what it expects: %s",
                     kind->name, smp_last_error());
        return;
    }
    made->plan.schedule = kind->name;
    made->plan.microbatches = shape->microbatches;
    for (int s = 0; s < made->plan.n_stage; s++)
        made->stage[s].rank = smp_schedule_stage_rank(kind, shape, s);
    if (smp_lower(kind, shape, made->flow, made->program))
        fail_msg("%s p %d v %d m %d active %d group %d: %s", kind->name, shape->pipeline,
                 shape->chunks, shape->microbatches, shape->active, shape->group, smp_last_error());
    check(made, kind, shape);
    for (int r = 0; r < shape->pipeline; r++)
        smp_program_free(&made->program[r]);
}

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
                    smp_schedule_shape shape = {p, v, m, training, 0, 0, {.shard = 1}, {0}};
                    lend(&made, smp_schedules()[i], &shape, check);
                }
            made_plan_free(&made);
        }
}

static void check_verifies(made_plan *made, const smp_schedule_kind *kind,
                           const smp_schedule_shape *shape)
{
    if (smp_verify_programs(&made->plan, made->flow))
        fail_msg("%s p %d v %d m %d active %d group %d: %s", kind->name, shape->pipeline,
                 shape->chunks, shape->microbatches, shape->active, shape->group, smp_last_error());
}

static void test_schedules_verify(void **state)
{
    (void)state;
    for_grid(true, check_verifies);
    for_grid(false, check_verifies);
}

/* Weight gradients of a chunk are added by rising micro-batch. */
static void check_order(made_plan *made, const smp_schedule_kind *kind,
                        const smp_schedule_shape *shape)
{
    bool good = true;
    for (int r = 0; r < made->plan.pipeline; r++) {
        int next[MAX_CHUNKS] = {0}, forward[MAX_CHUNKS] = {0};
        for (int64_t i = 0; i < made->program[r].n; i++) {
            const smp_action *a = &made->program[r].action[i];
            if (a->kind == SMP_ACTION_B || a->kind == SMP_ACTION_W)
                good &= a->microbatch == next[a->chunk]++;
            if (a->kind == SMP_ACTION_F)
                good &= a->microbatch == forward[a->chunk]++;
        }
        for (int c = 0; c < made->plan.chunks; c++)
            good &= next[c] == made->plan.microbatches;
    }
    if (!good)
        fail_msg("%s p %d v %d m %d active %d group %d: actions of a chunk are not in micro-batch "
                 "order",
                 kind->name, shape->pipeline, shape->chunks, shape->microbatches, shape->active,
                 shape->group);
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

static void check_live(made_plan *made, const smp_schedule_kind *kind,
                       const smp_schedule_shape *shape)
{
    for (int r = 0; r < shape->pipeline; r++) {
        int peak = peak_live(&made->program[r], shape->training);
        if (peak != kind->live(shape, r))
            fail_msg("%s p %d v %d m %d active %d group %d rank %d: %d live, formula %d",
                     kind->name, shape->pipeline, shape->chunks, shape->microbatches, shape->active,
                     shape->group, r, peak, kind->live(shape, r));
        if (kind->takes_active && shape->active > 0 && peak > shape->active * shape->chunks)
            fail_msg("%s p %d v %d m %d rank %d: %d live, bound %d", kind->name, shape->pipeline,
                     shape->chunks, shape->microbatches, r, peak, shape->active * shape->chunks);
    }
}

static void test_schedules_live(void **state)
{
    (void)state;
    for_grid(true, check_live);
    for_grid(false, check_live);
}

static void assert_takes(const smp_simulation *s, const smp_schedule_kind *kind,
                         const smp_schedule_shape *shape, double units)
{
    if (s->step_us < units - 1e-6 || s->step_us > units + 1e-6)
        fail_msg("%s p %d v %d m %d active %d: takes %g, formula %g", kind->name, shape->pipeline,
                 shape->chunks, shape->microbatches, shape->active, s->step_us, units);
}

/* In units of a chunk's forward. All work of the busiest rank, and the first rank's forward before
 * the last rank's, are a lower bound for everybody; where the literature has a formula, it
 * holds. */
static void check_makespan(made_plan *made, const smp_schedule_kind *kind,
                           const smp_schedule_shape *shape)
{
    int p = shape->pipeline, v = shape->chunks, m = shape->microbatches;
    smp_simulation *s = unit_simulation(made);
    bool exact = false;
    int rounds = 1, shortest = m;
    if (kind->takes_active && shape->active > 0 && shape->active < m) {
        rounds = (m + shape->active - 1) / shape->active;
        shortest = m - (rounds - 1) * shape->active;
    }
    if (strcmp(kind->name, "simple") == 0)
        exact = v == 1 || shortest >= p;
    else if (strcmp(kind->name, "interleaved") == 0)
        exact = v == 1 || (m % p == 0 && shape->group == 0);
    else if (strcmp(kind->name, "breadth-first") == 0)
        exact = m >= p;
    if (exact) {
        const double idle = (double)rounds * (p - 1); /* each fills and drains */
        assert_takes(s, kind, shape, 3.0 * (m * v + idle));
        double bubble = idle / (m * v + idle);
        assert_true(s->bubble > bubble - 1e-9 && s->bubble < bubble + 1e-9);
    }
    bool half_memory = (shape->active > 0 && shape->active < p) || shape->lag > 0;
    if (strcmp(kind->name, "zero-bubble") == 0 && v == 1 && m >= 2 * p && !half_memory)
        assert_takes(s, kind, shape, 3.0 * m + p - 1);
    if (strcmp(kind->name, "zero-bubble") == 0 && v == 2 && m >= 2 * p && !half_memory)
        assert_true(s->step_us <= 6.0 * m + 2 * p + 1e-6); /* a third of one chunk's 6 (p-1) */
    if (s->step_us < 3.0 * m * v + p - 1 - 1e-6)
        fail_msg("%s p %d v %d m %d: takes %g, less than its work", kind->name, p, v, m,
                 s->step_us);
    smp_simulation_destroy(s);
}

static void check_forward_makespan(made_plan *made, const smp_schedule_kind *kind,
                                   const smp_schedule_shape *shape)
{
    int p = shape->pipeline, v = shape->chunks, m = shape->microbatches;
    if (strcmp(kind->name, "forward") != 0)
        return;
    smp_simulation *s = unit_simulation(made);
    assert_takes(s, kind, shape, m >= p ? m * v + p - 1.0 : (v - 1.0) * p + m + p - 1.0);
    smp_simulation_destroy(s);
}

static void test_schedules_makespan(void **state)
{
    (void)state;
    for_grid(true, check_makespan);
    for_grid(false, check_forward_makespan);
}

static void check_all(made_plan *made, const smp_schedule_kind *kind,
                      const smp_schedule_shape *shape)
{
    check_verifies(made, kind, shape);
    check_order(made, kind, shape);
    check_live(made, kind, shape);
    check_makespan(made, kind, shape);
}

enum { ACTIVE, GROUP, LAG, N_OPTIONS };

/* Every schedule with many bounds or groups. */
static void for_options(int chunks, int kind_of_option)
{
    const int microbatches[] = {1, 2, 3, 5, 8, 13, 16, 17, 32};
    for (int p = 1; p <= MAX_RANKS; p++) {
        made_plan made;
        made_plan_stages(&made, "simple", p, chunks, 1, true, made_chain);
        for (size_t i = 0; i < sizeof microbatches / sizeof microbatches[0]; i += is_long() ? 1 : 2)
            for (int option = 1; option <= 2 * p + 2; option++) {
                smp_schedule_shape shape = {p, chunks, microbatches[i], true,
                                            0, 0,      {.shard = 1},    {0}};
                int *const options[N_OPTIONS] = {&shape.active, &shape.group, &shape.lag};
                *options[kind_of_option] = option;
                for (int k = 0; smp_schedules()[k]; k++)
                    lend(&made, smp_schedules()[k], &shape, check_all);
            }
        made_plan_free(&made);
    }
}

static void test_schedules_options(void **state)
{
    (void)state;
    for (int chunks = 1; chunks <= 3; chunks++)
        for (int option = 0; option < N_OPTIONS; option++)
            for_options(chunks, option);
}

/* Step of a rule in stages of these times, and what each rank keeps alive. */
static double timed_us(made_plan *made, const char *rule, int lag, const double *units, int *live)
{
    const smp_plan *plan = &made->plan;
    const smp_schedule_kind *kind = smp_schedule_find(rule);
    smp_schedule_shape shape = {plan->pipeline, 1,  plan->microbatches, true, 0, 0, {.shard = 1},
                                {.horizon = 0}, lag};
    assert_int_equal(smp_lower(kind, &shape, made->flow, made->program), SMP_OK);
    smp_simulation *s = timed_simulation(made, units);
    double step_us = s->step_us;
    smp_simulation_destroy(s);
    for (int r = 0; r < plan->pipeline; r++) {
        live[r] = peak_live(&made->program[r], true);
        smp_program_free(&made->program[r]);
    }
    return step_us;
}

/* With every W behind its I, zero-bubble keeps on every rank what 1F1B keeps there, and takes no
 * longer, whatever the stages are like; what it holds back besides is what it is given. */
static void test_schedules_split_lag(void **state)
{
    uint64_t seed = 1;
    int shorter = 0;
    (void)state;
    for (int p = 2; p <= MAX_RANKS; p++)
        for (int m = 1; m <= 3 * p; m += p - 1) {
            made_plan made;
            double units[MAX_RANKS];
            int base[MAX_RANKS], live[MAX_RANKS];
            made_plan_stages(&made, "simple", p, 1, m, true, made_chain);
            for (int s = 0; s < p; s++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                units[s] = 1.0 + (double)(seed >> 33) / (double)(1u << 31);
            }
            const double base_us = timed_us(&made, "interleaved", 0, units, base);
            for (int lag = 1; lag <= p; lag++) {
                const double us = timed_us(&made, "zero-bubble", lag, units, live);
                for (int r = 0; r < p; r++)
                    assert_true(live[r] <= base[r] + (r < lag - 1 ? r : lag - 1));
                if (lag == 1 && us > base_us + 1e-6)
                    fail_msg("p %d m %d: %g, 1F1B %g", p, m, us, base_us);
                shorter += lag == 1 && us < base_us - 1e-6;
            }
            made_plan_free(&made);
        }
    assert_true(shorter > 10);
}

/* The V-shaped family at its three named sizes, p micro-batches being 1F1B's. */
static void test_schedules_folded_memory(void **state)
{
    (void)state;
    const smp_schedule_kind *kind = smp_schedule_find("zero-bubble");
    for (int p = 4; p <= 64; p++) {
        const int active[] = {p, p / 2 + 2, p / 3 + 2};
        for (int i = 0; i < 3; i++)
            for (int r = 0; r < p; r++) {
                smp_schedule_shape shape = {p, 2, 8 * p, true, active[i], 0, {.shard = 1}, {0}};
                int pairs = kind->live(&shape, r);
                assert_true(pairs <= 2 * active[i]);
                /* what is given is made use of: no bound is missed by more than two pairs */
                if (i == 0)
                    assert_int_equal(pairs, 2 * p);
            }
    }
}

/* The step of zero-bubble with so many micro-batches alive, in units of a stage's forward. */
static double zero_bubble_us(made_plan *made, int active)
{
    const smp_plan *plan = &made->plan;
    const smp_schedule_kind *kind = smp_schedule_find("zero-bubble");
    smp_schedule_shape shape = {plan->pipeline, plan->chunks, plan->microbatches, true, active, 0,
                                {.shard = 1},   {0}};
    for (int s = 0; s < plan->n_stage; s++)
        made->stage[s].rank = smp_schedule_stage_rank(kind, &shape, s);
    assert_int_equal(smp_lower(kind, &shape, made->flow, made->program), SMP_OK);
    smp_simulation *s = unit_simulation(made);
    double step_us = s->step_us;
    smp_simulation_destroy(s);
    for (int r = 0; r < plan->pipeline; r++)
        smp_program_free(&made->program[r]);
    return step_us;
}

/* Less memory costs time, and never more than one micro-batch at a time would. */
static void test_schedules_memory_for_time(void **state)
{
    (void)state;
    for (int chunks = 1; chunks <= 2; chunks++) {
        made_plan made;
        made_plan_stages(&made, "simple", 8, chunks, 24, true, made_chain);
        double last = 1e300;
        for (int active = 1; active <= 8; active++) {
            double step_us = zero_bubble_us(&made, active);
            if (step_us > last + 1e-6)
                fail_msg("v %d active %d: %g after %g", chunks, active, step_us, last);
            last = step_us;
        }
        made_plan_free(&made);
    }
}

/* With less memory than V-Min takes: one micro-batch alone takes 12 p - 3, and they follow each
 * other at twice p over those that may be alive, rounded down, or more quickly. */
static void test_schedules_folded_minimum(void **state)
{
    (void)state;
    for (int p = 7; p <= 24; p++)
        for (int active = 1; active <= 3 && 3 * active < p; active++) {
            made_plan made;
            int period = p / active < 3 ? 6 : 2 * (p / active), most;
            made_plan_stages(&made, "simple", p, 2, 2 * p, true, made_chain);
            most = (2 * p - 1) * period + 12 * p - 3;
            double step_us = zero_bubble_us(&made, active);
            if (step_us > most + 1e-6)
                fail_msg("p %d active %d: %g, expected at most %d", p, active, step_us, most);
            made_plan_free(&made);
        }
}

/* With memory for fewer than p micro-batches the warm-up of the first rank takes all of it, and it
 * falls evenly to none at the last. */
static void test_schedules_split_warmup(void **state)
{
    (void)state;
    const smp_schedule_kind *kind = smp_schedule_find("zero-bubble");
    for (int p = 2; p <= 12; p++)
        for (int active = 1; active < p; active++)
            for (int r = 0; r < p; r++) {
                smp_schedule_shape shape = {p, 1, 3 * p, true, active, 0, {.shard = 1}, {0}};
                smp_program program = {0};
                int forwards = 0;
                assert_int_equal(kind->order(&shape, r, &program), SMP_OK);
                while (program.action[forwards].kind == SMP_ACTION_F)
                    forwards++;
                double ahead = (active - 1) * (double)(p - 1 - r) / (p - 1);
                assert_int_equal(forwards, 1 + (int)ceil(ahead - 1e-9));
                smp_program_free(&program);
            }
}

/* What the V-shaped family idles with the memory of its members, in sixths of a micro-batch's time.
 * The paper has none for V-ZB (p live micro-batches), about 3 p for V-Half ((p + 2) / 2) and 4 p
 * for V-Min ((p + 4) / 3), where 1F1B has 6 p. Here ranks end a skew of 2 p apart, and slots that
 * collide cost up to two; between the members lie the blocks 3,3,1,3 and 1,3,1,3. */
static void test_schedules_folded_lengths(void **state)
{
    (void)state;
    for (int p = 7; p <= 24; p++) {
        const double half[] = {1.5, 0}, min[] = {-3, -5, -5};
        const double few[] = {0, 1, 5}, some[] = {0, 2, 4};
        const struct {
            int active;
            double most;
        } members[] = {{p, 2 * p - 3},
                       {p - 1, (8 * p - 12 + few[p % 3]) / 3},
                       {(2 * p + 4) / 3, (10 * p - 15 + some[p % 3]) / 3},
                       {(p + 2) / 2, 3.5 * (p - 1) + half[p % 2]},
                       {(p + 4) / 3, 4 * p + min[p % 3]}};
        made_plan made;
        made_plan_stages(&made, "simple", p, 2, 4 * p, true, made_chain);
        for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
            double idle_us =
                zero_bubble_us(&made, members[i].active) - 6.0 * made.plan.microbatches;
            if (idle_us > members[i].most + 1e-6)
                fail_msg("p %d active %d: idles %g, expected at most %g", p, members[i].active,
                         idle_us, members[i].most);
        }
        made_plan_free(&made);
    }
}

static void refuses(const char *name, smp_schedule_shape shape, const char *words)
{
    const smp_schedule_kind *kind = smp_schedule_find(name);
    assert_int_equal(smp_schedule_check(kind, &shape), SMP_ERR_INPUT);
    if (!strstr(smp_last_error(), words))
        fail_msg("got '%s', expected '%s'", smp_last_error(), words);
}

static void test_schedules_say_what_can_be(void **state)
{
    (void)state;
    refuses("zero-bubble", (smp_schedule_shape){4, 3, 8, true, 0, 0, {.shard = 1}, {0}},
            "chunks 3, expected 1, or 2 in a V");
    refuses("zero-bubble", (smp_schedule_shape){4, 1, 8, true, -1, 0, {.shard = 1}, {0}},
            "expected at least 1");
    refuses("zero-bubble", (smp_schedule_shape){4, 1, 8, false, 0, 0, {.shard = 1}, {0}},
            "expected one of simple (gpipe), interleaved (1f1b), breadth-first");
    refuses("breadth-first", (smp_schedule_shape){4, 1, 8, true, 0, 0, {.shard = 1}, {0}},
            "expected 2 or more");
    refuses("forward", (smp_schedule_shape){4, 1, 8, true, 0, 0, {.shard = 1}, {0}},
            "expected one of simple (gpipe), ");
    smp_schedule_shape bounded = {4, 1, 8, true, 3, 0, {.shard = 1}, {0}};
    assert_int_equal(smp_schedule_check_active(smp_schedule_find("interleaved"), &bounded),
                     SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "use simple (gpipe), zero-bubble"));
    assert_int_equal(smp_schedule_check_active(smp_schedule_find("simple"), &bounded), SMP_OK);
    assert_int_equal(smp_schedule_check_active(smp_schedule_find("zero-bubble"), &bounded), SMP_OK);
    refuses("interleaved", (smp_schedule_shape){4, 2, 8, true, 0, 3, {.shard = 1}, {0}},
            "expected at least 4");
    smp_schedule_shape one_chunk = {4, 1, 8, true, 0, 3, {.shard = 1}, {0}};
    assert_int_equal(smp_schedule_check(smp_schedule_find("interleaved"), &one_chunk), SMP_OK);
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
    order_text("simple", (smp_schedule_shape){2, 2, 2, true, 0, 0, {.shard = 1}, {0}}, 0,
               "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0");
    order_text("interleaved", (smp_schedule_shape){4, 1, 5, true, 0, 0, {.shard = 1}, {0}}, 1,
               "F0.0 F1.0 F2.0 B0.0 F3.0 B1.0 F4.0 B2.0 B3.0 B4.0");
    order_text("interleaved", (smp_schedule_shape){4, 1, 2, true, 0, 0, {.shard = 1}, {0}}, 0,
               "F0.0 F1.0 B0.0 B1.0");
    order_text("interleaved", (smp_schedule_shape){2, 2, 4, true, 0, 0, {.shard = 1}, {0}}, 1,
               "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0");
    order_text("interleaved", (smp_schedule_shape){2, 2, 3, true, 0, 0, {.shard = 1}, {0}}, 1,
               "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 B1.0 F2.1 B2.1 B2.0");
    order_text("interleaved", (smp_schedule_shape){2, 2, 3, false, 0, 0, {.shard = 1}, {0}}, 0,
               "F0.0 F1.0 F0.1 F1.1 F2.0 F2.1");
    order_text("interleaved", (smp_schedule_shape){2, 2, 4, true, 0, 4, {.shard = 1}, {0}}, 1,
               "F0.0 F1.0 F2.0 F3.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 B0.0 B1.0 B2.0 B3.0");
    order_text("breadth-first", (smp_schedule_shape){2, 2, 3, true, 0, 0, {.shard = 1}, {0}}, 0,
               "F0.0 F1.0 F2.0 F0.1 F1.1 B0.1 F2.1 B1.1 B2.1 B0.0 B1.0 B2.0");
    order_text("zero-bubble", (smp_schedule_shape){3, 1, 4, true, 0, 0, {.shard = 1}, {0}},
               0, /* H1 */
               "F0.0 F1.0 F2.0 I0.0 W0.0 F3.0 I1.0 W1.0 I2.0 W2.0 I3.0 W3.0");
    order_text("zero-bubble", (smp_schedule_shape){3, 1, 4, true, 0, 0, {.shard = 1}, {0}}, 2,
               "F0.0 I0.0 F1.0 I1.0 F2.0 I2.0 W0.0 F3.0 I3.0 W1.0 W2.0 W3.0");
    order_text("zero-bubble", (smp_schedule_shape){3, 1, 6, true, 6, 0, {.shard = 1}, {0}},
               0, /* H2 */
               "F0.0 F1.0 F2.0 F3.0 F4.0 I0.0 W0.0 F5.0 I1.0 W1.0 I2.0 W2.0 I3.0 W3.0 I4.0 W4.0 "
               "I5.0 W5.0");
    order_text("forward", (smp_schedule_shape){2, 2, 5, false, 0, 0, {.shard = 1}, {0}}, 1,
               "F0.0 F1.0 F0.1 F1.1 F2.0 F3.0 F4.0 F2.1 F3.1 F4.1");
}

static void test_schedules_registry(void **state)
{
    (void)state;
    for (int i = 0; smp_schedules()[i]; i++) {
        const smp_schedule_kind *kind = smp_schedules()[i];
        smp_text names = {0};
        smp_schedule_put_names(&names);
        if (smp_schedule_find(kind->name) != kind || !kind->summary || !kind->order ||
            !kind->live ||
            (kind->alias && strcmp(smp_schedule_name(kind->alias), kind->name) != 0) ||
            !strstr(names.data, kind->name))
            fail_msg("%s: not found by its names, or lacks a part", kind->name);
        smp_text_free(&names);
    }
    assert_null(smp_schedule_find("magic"));
    assert_null(smp_schedule_find(NULL));
    assert_string_equal(smp_schedule_name("gpipe"), "simple");
    assert_string_equal(smp_schedule_name("1f1b"), "interleaved");
    assert_string_equal(smp_schedule_name("auto"), "searched");
    assert_string_equal(smp_schedule_name("searched"), "searched");
    assert_string_equal(smp_schedule_name("magic"), "magic");
    const smp_schedule_kind *simple = smp_schedule_find("simple");
    const smp_schedule_kind *zero = smp_schedule_find("zero-bubble");
    smp_schedule_shape shape = {3, 2, 4, true, 0, 0, {.shard = 1}, {0}};
    for (int s = 0; s < 6; s++)
        assert_int_equal(smp_schedule_stage_rank(zero, &shape, s), s < 3 ? s : 5 - s);
    assert_true(smp_schedule_find("auto") && smp_schedule_find("auto")->any_placement);
    assert_int_equal(smp_schedule_stage_rank(simple, &shape, 4), 1);
}

/* Without costs "auto" stands for the best rule that has its stages in turn. */
static void test_schedules_auto_without_costs(void **state)
{
    (void)state;
    static const struct {
        smp_schedule_shape shape;
        const char *rule;
    } cases[] = {{{4, 1, 8, true, 0, 0, {.shard = 1}, {0}}, "zero-bubble"},
                 {{4, 2, 8, true, 0, 0, {.shard = 1}, {0}}, "interleaved"},
                 {{4, 3, 8, true, 0, 0, {.shard = 1}, {0}}, "interleaved"},
                 {{4, 1, 8, false, 0, 0, {.shard = 1}, {0}}, "forward"},
                 {{4, 2, 8, false, 0, 0, {.shard = 1}, {0}}, "forward"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int rank = 0; rank < 4; rank++) {
            const smp_schedule_kind *rule = smp_schedule_find(cases[i].rule);
            smp_program program = {0};
            smp_text text = {0};
            assert_int_equal(smp_schedule_check(&smp__schedule_auto, &cases[i].shape), SMP_OK);
            assert_int_equal(rule->order(&cases[i].shape, rank, &program), SMP_OK);
            smp_program_format(&program, &text);
            smp_program_free(&program);
            assert_int_equal(smp__schedule_auto.order(&cases[i].shape, rank, &program), SMP_OK);
            assert_program(&program, text.data);
            smp_program_free(&program);
            smp_text_free(&text);
        }
    smp_schedule_shape none = {4, 2, 8, true, 0, 3, {.shard = 1}, {0}};
    refuses("auto", none, "schedule interleaved: groups of 3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules_registry),
        cmocka_unit_test(test_schedules_auto_without_costs),
        cmocka_unit_test(test_schedules_orders),
        cmocka_unit_test(test_schedules_verify),
        cmocka_unit_test(test_schedules_accumulate_in_order),
        cmocka_unit_test(test_schedules_live),
        cmocka_unit_test(test_schedules_makespan),
        cmocka_unit_test(test_schedules_options),
        cmocka_unit_test(test_schedules_split_lag),
        cmocka_unit_test(test_schedules_folded_memory),
        cmocka_unit_test(test_schedules_memory_for_time),
        cmocka_unit_test(test_schedules_folded_lengths),
        cmocka_unit_test(test_schedules_folded_minimum),
        cmocka_unit_test(test_schedules_split_warmup),
        cmocka_unit_test(test_schedules_say_what_can_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* All single edits of small plans of which stashes travel: any action removed, duplicated, swapped,
 * or renamed to an S or L. Expected is what the verifier says of the program without S and L
 * (test_verify_edits.c checks that), and of those what a checker says that follows each block:
 * where it is after every action, and whether it is whole. */
#include "tests/schedule/made_plan.h"
#include "tests/schedule/verify/program_edits.h"

static bool is_transfer(smp_action_kind kind)
{
    return kind == SMP_ACTION_STORE || kind == SMP_ACTION_LOAD;
}

/* A block: nowhere, made on the device, on its way to the host (or there), back. */
typedef enum where { NOWHERE, MADE, AWAY, BACK, READ } where;

/* Follows the block of one micro-batch of a chunk. `left`: compute actions until its store is
 * complete: the one before which that is so begins when it is -1. */
static bool block_is_right(const smp_program *p, int chunk, int mb, int horizon)
{
    where is = NOWHERE;
    int left = 0;
    for (int64_t i = 0; i < p->n; i++) {
        const smp_action *a = &p->action[i];
        left -= smp_action_is_compute(a->kind);
        if (a->chunk != chunk || a->microbatch != mb)
            continue;
        switch (a->kind) {
        case SMP_ACTION_F:
            is = MADE;
            break;
        case SMP_ACTION_STORE:
            if (is != MADE)
                return false;
            is = AWAY;
            left = horizon;
            break;
        case SMP_ACTION_LOAD:
            if (is != AWAY || left >= 0)
                return false;
            is = BACK;
            break;
        case SMP_ACTION_B:
        case SMP_ACTION_I:
            if (is == AWAY)
                return false;
            is = READ;
            break;
        default:
            break;
        }
    }
    return true;
}

static bool transfers_are_right(const smp_plan *plan, int rank)
{
    const smp_program *p = &plan->program[rank];
    for (int64_t i = 0; i < p->n; i++)
        if (is_transfer(p->action[i].kind) &&
            (p->action[i].chunk < 0 || p->action[i].chunk >= plan->chunks ||
             p->action[i].microbatch < 0 || p->action[i].microbatch >= plan->microbatches ||
             !plan->travels[smp_plan_stage_of(plan, rank, p->action[i].chunk)]))
            return false;
    for (int chunk = 0; chunk < plan->chunks; chunk++)
        for (int mb = 0; mb < plan->microbatches; mb++)
            if (!block_is_right(p, chunk, mb, plan->loading_horizon))
                return false;
    return p->action[p->n - 1].kind == SMP_ACTION_OPTIMIZE;
}

static bool expected_of(const made_plan *made)
{
    smp_program *without = calloc((size_t)made->plan.pipeline, sizeof *without);
    assert_non_null(without);
    smp_plan plan = made->plan;
    plan.program = without;
    plan.travels = NULL;
    bool right = true;
    for (int rank = 0; rank < plan.pipeline; rank++) {
        const smp_program *p = &made->program[rank];
        right = right && transfers_are_right(&made->plan, rank);
        for (int64_t i = 0; i < p->n; i++)
            if (!is_transfer(p->action[i].kind))
                assert_int_equal(smp_program_push(&without[rank], p->action[i].kind,
                                                  p->action[i].microbatch, p->action[i].chunk),
                                 SMP_OK);
    }
    right = right && smp_verify_programs(&plan, made->flow) == SMP_OK;
    for (int rank = 0; rank < plan.pipeline; rank++)
        smp_program_free(&without[rank]);
    free(without);
    return right;
}

static int64_t transfers;

static void edit_at(made_plan *made, int rank, int64_t i, tally *t)
{
    smp_program *p = &made->program[rank];
    const smp_action saved = p->action[i];
    edit_in_place(made, rank, i, t);
    for (int kind = SMP_ACTION_STORE; kind <= SMP_ACTION_LOAD; kind++)
        for (int chunk = 0; chunk <= made->plan.chunks; chunk++)
            for (int mb = 0; mb <= made->plan.microbatches; mb++) {
                p->action[i] = (smp_action){(smp_action_kind)kind, mb, chunk};
                compare(made, rank, "renamed", t);
            }
    p->action[i] = saved;
}

/* The stages of even number travel, or all. */
static void check_edits(const smp_schedule_kind *kind, int pipeline, int chunks, int microbatches,
                        int horizon, bool all)
{
    made_plan made;
    tally t = {0};
    bool travels[8];
    int64_t n = 0;
    made_plan_stages(&made, kind->name, pipeline, chunks, microbatches, true, made_skips);
    for (int s = 0; s < pipeline * chunks; s++)
        travels[s] = all || s % 2 == 0;
    made.plan.travels = travels;
    made.plan.loading_horizon = horizon;
    made_plan_lower(&made);
    assert_true(expected_of(&made));
    for (int rank = 0; rank < pipeline; rank++)
        for (int64_t i = 0; i < made.program[rank].n; i++) {
            n += made.program[rank].action[i].kind == SMP_ACTION_STORE;
            edit_at(&made, rank, i, &t);
        }
    transfers += n;
    assert_true(t.accepted > 0 && t.rejected > t.accepted);
    made_plan_free(&made);
}

static void test_verify_every_edit_of_transfers(void **state)
{
    (void)state;
    static const struct {
        int pipeline, chunks, microbatches, horizon;
        bool all;
    } size[] = {{2, 1, 3, 1, true}, {1, 2, 3, 1, false}, {2, 2, 2, 2, false}};
    for (int i = 0; smp_schedules()[i]; i++)
        for (size_t k = 0; k < sizeof size / sizeof size[0]; k++) {
            const smp_schedule_shape shape = {.pipeline = size[k].pipeline,
                                              .chunks = size[k].chunks,
                                              .microbatches = size[k].microbatches,
                                              .training = true};
            if (smp_schedule_check(smp_schedules()[i], &shape) == SMP_OK)
                check_edits(smp_schedules()[i], size[k].pipeline, size[k].chunks,
                            size[k].microbatches, size[k].horizon, size[k].all);
        }
    assert_true(transfers > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verify_every_edit_of_transfers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

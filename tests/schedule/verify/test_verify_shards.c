/* All single edits of small plans with sharded states: any action removed, duplicated, swapped, or
 * renamed to a G, D or A. Expected is what the verifier says of the program without G, D and A
 * (test_verify_edits.c checks that), and of those what a checker says that looks every rule up by
 * linear search. */
#include "tests/schedule/made_plan.h"
#include "tests/schedule/verify/program_edits.h"

static bool is_shard(smp_action_kind kind)
{
    return kind == SMP_ACTION_GATHER || kind == SMP_ACTION_DROP || kind == SMP_ACTION_ALL;
}

static int count(const smp_program *p, int64_t from, int64_t to, smp_action_kind kind, int chunk)
{
    int n = 0;
    for (int64_t i = from; i < to; i++)
        n += p->action[i].kind == kind && p->action[i].chunk == chunk;
    return n;
}

/* Between zero and one gather is open, and at compute actions one. */
static bool chunk_is_held(const smp_program *p, int chunk, bool weights)
{
    for (int64_t i = 0; i < p->n; i++) {
        const int open = count(p, 0, i + 1, SMP_ACTION_GATHER, chunk) -
                         count(p, 0, i + 1, SMP_ACTION_DROP, chunk);
        if (open < 0 || open > 1)
            return false;
        if (smp_action_is_compute(p->action[i].kind) && p->action[i].chunk == chunk && open == 0)
            return false;
    }
    const int drops = count(p, 0, p->n, SMP_ACTION_DROP, chunk);
    return drops == (weights ? count(p, 0, p->n, SMP_ACTION_GATHER, chunk) : 0);
}

/* One A after the R. */
static bool chunk_is_added(const smp_program *p, int chunk)
{
    int64_t reduce = 0;
    while (reduce < p->n &&
           !(p->action[reduce].kind == SMP_ACTION_REDUCE && p->action[reduce].chunk == chunk))
        reduce++;
    return count(p, 0, p->n, SMP_ACTION_ALL, chunk) == 1 &&
           count(p, reduce, p->n, SMP_ACTION_ALL, chunk) == 1;
}

static bool shards_are_right(const smp_plan *plan, const smp_program *p)
{
    const bool weights = smp_shards(plan->sharding, SMP_SHARD_WEIGHTS, plan->training);
    for (int64_t i = 0; i < p->n; i++)
        if (is_shard(p->action[i].kind) &&
            (p->action[i].chunk < 0 || p->action[i].chunk >= plan->chunks ||
             (p->action[i].kind == SMP_ACTION_ALL && !plan->training)))
            return false;
    for (int chunk = 0; chunk < plan->chunks; chunk++)
        if (!chunk_is_held(p, chunk, weights) || (plan->training && !chunk_is_added(p, chunk)))
            return false;
    return !plan->training || p->action[p->n - 1].kind == SMP_ACTION_OPTIMIZE;
}

static bool expected_of(const made_plan *made)
{
    smp_program *without = calloc((size_t)made->plan.pipeline, sizeof *without);
    assert_non_null(without);
    smp_plan plan = made->plan;
    plan.program = without;
    plan.sharding.shard = 1;
    bool right = true;
    for (int rank = 0; rank < plan.pipeline; rank++) {
        const smp_program *p = &made->program[rank];
        right = right && shards_are_right(&made->plan, p);
        for (int64_t i = 0; i < p->n; i++)
            if (!is_shard(p->action[i].kind))
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

static void edit_at(made_plan *made, int rank, int64_t i, tally *t)
{
    smp_program *p = &made->program[rank];
    const smp_action saved = p->action[i];
    edit_in_place(made, rank, i, t);
    for (int kind = 0; kind <= SMP_ACTION_OPTIMIZE; kind++)
        for (int chunk = 0; is_shard((smp_action_kind)kind) && chunk <= made->plan.chunks;
             chunk++) {
            p->action[i] = (smp_action){(smp_action_kind)kind, -1, chunk};
            compare(made, rank, "renamed", t);
        }
    p->action[i] = saved;
}

static void check_edits(const smp_schedule_kind *kind, const smp_schedule_shape *shape)
{
    made_plan made;
    tally t = {0};
    made_plan_stages(&made, kind->name, shape->pipeline, shape->chunks, shape->microbatches,
                     shape->training, made_skips);
    made.plan.ddp = shape->sharding.shard;
    made.plan.sharding = shape->sharding;
    made_plan_lower(&made);
    assert_true(expected_of(&made));
    for (int rank = 0; rank < shape->pipeline; rank++)
        for (int64_t i = 0; i < made.program[rank].n; i++)
            edit_at(&made, rank, i, &t);
    assert_true(t.accepted > 0 && t.rejected > t.accepted);
    made_plan_free(&made);
}

static void test_verify_every_edit_of_shards(void **state)
{
    (void)state;
    static const struct {
        int pipeline, chunks, microbatches;
        bool training;
    } size[] = {{2, 1, 2, true}, {1, 2, 2, true}, {2, 2, 2, true}, {2, 2, 2, false}};
    for (int i = 0; smp_schedules()[i]; i++)
        for (size_t k = 0; k < sizeof size / sizeof size[0]; k++)
            for (int what = 0; what <= SMP_SHARD_WEIGHTS; what++) {
                const smp_schedule_shape shape = {
                    .pipeline = size[k].pipeline,
                    .chunks = size[k].chunks,
                    .microbatches = size[k].microbatches,
                    .training = size[k].training,
                    .sharding = {.shard = 2, .what = (smp_shard_what)what}};
                if (smp_shards(shape.sharding, (smp_shard_what)what, shape.training) &&
                    smp_schedule_check(smp_schedules()[i], &shape) == SMP_OK)
                    check_edits(smp_schedules()[i], &shape);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verify_every_edit_of_shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

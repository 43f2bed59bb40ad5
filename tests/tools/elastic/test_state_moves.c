/* What moves between hosts for a plan, and plans that keep the stages of another one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/start/planning.h"
#include "tests/tools/scratch_folder.h"
#include "tools/elastic/elastic_job.h"

#define MODEL SMP_SOURCE_DIR "/examples/gpt-tiny.yaml"

static void must(smp_status status)
{
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
}

static smp__places places_of(const int *host, int n, int n_used)
{
    smp__places p = {.n = n, .n_used = n_used};
    for (int i = 0; i < n; i++) {
        p.host[i] = host[i];
        p.slots[i] = 1;
        p.ranks[i] = i < n_used;
    }
    return p;
}

static smp_plan *plan_of(int stages, int ddp, smp_graph **graph)
{
    static const char *const cut_at[] = {"h2.ln_1", "h1.ln_1,h3.ln_1"};
    smp_options options = smp_options_default();
    smp_plan *plan = NULL;
    char path[96];
    snprintf(path, sizeof path, "%s/plan.yaml", folder);
    options.model = MODEL;
    options.planning.devices = stages * ddp;
    options.planning.stages = stages;
    options.planning.ddp = ddp;
    options.planning.chunks = 1;
    options.planning.cut_at = cut_at;
    options.planning.n_cut_at = stages / 2;
    options.planning.global_batch = 8;
    options.planning.shard = 1;
    options.planning.placement = "cluster";
    options.planning.effort = SMP_EFFORT_QUICK;
    must(smp_plan_write(&options, path));
    must(smp_plan_read(path, &plan));
    must(smp_plan_open_model(plan, path, 0, graph));
    unlink(path);
    return plan;
}

/* Two replicas of two stages on four hosts; the second is lost, a fifth one takes its place, or
 * that of the fourth, which has the same stage. As the hosts come all would have to load. */
static void test_spare_host(void **state)
{
    smp__moves moves = {0};
    smp__move first = {0}, then = {0}, again = {0};
    const smp__places before = places_of((int[]){0, 1, 2, 3, 4}, 5, 4);
    const smp__places after = places_of((int[]){0, 2, 3, 4}, 4, 4);
    smp_graph *graph;
    smp_plan *plan = plan_of(2, 2, &graph);
    (void)state;
    must(smp__moves_weigh(&moves, &before, plan, graph, 2, false, &first));
    assert_true(first.bytes == 0 && first.s == 0.0); /* nothing is known: hosts stay */
    must(smp__moves_take(&moves, &before, &first));
    moves.launched = true;
    smp__moves_end(&moves, true, true);
    smp__moves_lose(&moves, 1);
    must(smp__moves_weigh(&moves, &after, plan, graph, 2, false, &then));
    assert_int_equal(then.host_of[0], 0);
    assert_int_equal(then.host_of[2], 1); /* the first stage of the other replica stays */
    int64_t as_they_come = 0;
    for (int at = 0; at < 4; at++) {
        smp__spans lacks = {0};
        must(smp__spans_without(&then.part[at].reads,
                                after.host[at] < moves.n_held ? &moves.held[after.host[at]]
                                                              : &(smp__spans){0},
                                &lacks));
        as_they_come += smp__spans_bytes(&lacks);
        smp__spans_free(&lacks);
    }
    if (then.bytes == 0 || as_they_come < 2 * then.bytes || then.s <= 0.0)
        fail_msg("%lld bytes, as they come %lld", (long long)then.bytes, (long long)as_they_come);
    /* ranks that completed no state change nothing, and an empty memory has nothing */
    must(smp__moves_take(&moves, &after, &then));
    moves.launched = true;
    smp__moves_end(&moves, false, true);
    must(smp__moves_weigh(&moves, &after, plan, graph, 2, false, &again));
    assert_int_equal(again.host_of[2], 1);
    smp__moves_end(&moves, false, false);
    assert_null(moves.held);
    smp__move_free(&before, &first);
    smp__move_free(&after, &then);
    smp__move_free(&after, &again);
    smp__moves_free(&moves);
    smp_plan_destroy(plan);
    smp_graph_destroy(graph);
}

/* Of a line of four hosts the second is lost, and two are to go on: the third, which alone has what
 * the second had, and not the fourth, which lacks nothing. */
static void test_idle_host(void **state)
{
    smp__moves moves = {0};
    smp__move first = {0}, then = {0};
    const smp__places before = places_of((int[]){0, 1, 2, 3}, 4, 4);
    const smp__places after = places_of((int[]){0, 3, 2}, 3, 2);
    smp_graph *graph[2];
    smp_plan *four = plan_of(4, 1, &graph[0]), *two = plan_of(2, 1, &graph[1]);
    (void)state;
    must(smp__moves_weigh(&moves, &before, four, graph[0], 2, false, &first));
    must(smp__moves_take(&moves, &before, &first));
    moves.launched = true;
    smp__moves_end(&moves, true, true);
    smp__moves_lose(&moves, 1);
    must(smp__moves_weigh(&moves, &after, two, graph[1], 2, false, &then));
    assert_int_equal(then.host_of[0], 0);
    assert_int_equal(then.host_of[1], 2);
    assert_true(then.bytes > 0);
    smp__move_free(&before, &first);
    smp__move_free(&after, &then);
    smp__moves_free(&moves);
    smp_plan_destroy(four);
    smp_plan_destroy(two);
    smp_graph_destroy(graph[0]);
    smp_graph_destroy(graph[1]);
}

static void make(smp__plans *plans, int devices, bool alike)
{
    int status;
    must(alike ? smp__plans_begin_alike(plans, devices) : smp__plans_begin(plans, devices, true));
    assert_int_equal(waitpid(plans->child, &status, 0), plans->child);
    must(smp__plans_end(plans, status));
}

/* Of four hosts with a device each the second is lost, and two are to go on. Where steps count the
 * fastest plan is taken, where moves do that with the same stages, on hosts that have them. */
static void check_choice(const smp__plans *plans, smp__elastic_options *options)
{
    for (int moves_count = 0; moves_count < 2; moves_count++) {
        smp__host host[4] = {{.name = "h1", .local = true}};
        smp__slot slot[4];
        int picked[4];
        char path[128], kept[96];
        smp__elastic_job job = {.options = options,
                                .plans = *plans,
                                .hosts = {.n = 4, .host = host},
                                .slots = {.n = 4, .most = 4, .slot = slot},
                                .picked = picked,
                                .keep = folder,
                                .lost_host = -1,
                                .n_marks = 9};
        options->horizon_s = moves_count ? 1e-9 : 1e9;
        snprintf(kept, sizeof kept, "%s/checkpoint-0000000009.smp", folder);
        must(smp_file_write(kept, "", 0));
        for (int i = 0; i < 4; i++)
            slot[i] = (smp__slot){.host = i, .at_hand = true, .present = true};
        must(smp__elastic_place(&job, 4, path, sizeof path));
        assert_true(job.moves.bytes == -1);
        job.moves.launched = true;
        job.lost_host = 1;
        host[1].lost = true;
        slot[1].present = false;
        must(smp__elastic_place(&job, 2, path, sizeof path));
        assert_int_equal(strstr(path, "-as-") != NULL, moves_count);
        assert_int_equal(job.moves.bytes == 0, moves_count);
        assert_int_equal(picked[0], 0);
        assert_true(!moves_count || picked[1] == 3);
        assert_true(job.moves.step_us == (moves_count ? plans->alike : plans->of)[2].step_us);
        assert_false(host[1].lost);
        /* two at once, which come back with nothing: both lack all that one has */
        slot[1].present = true;
        must(smp__elastic_place(&job, 4, path, sizeof path));
        job.moves.launched = true;
        must(smp__elastic_place(&job, 4, path, sizeof path));
        assert_true(job.moves.bytes == 0);
        host[1].lost = true;
        job.moves.launched = true;
        must(smp__elastic_place(&job, 4, path, sizeof path));
        const int64_t one = job.moves.bytes;
        job.moves.launched = true;
        must(smp__elastic_place(&job, 4, path, sizeof path));
        host[1].lost = host[2].lost = true;
        job.moves.launched = true;
        must(smp__elastic_place(&job, 4, path, sizeof path));
        assert_true(one > 0 && job.moves.bytes > one);
        smp__moves_free(&job.moves);
        unlink(kept);
    }
}

/* Of four devices two are used, and none of these is slow. */
static void check_slow_spare(const smp__plans *plans, const smp__elastic_options *options)
{
    smp__host host[4] = {{.name = "h1", .local = true}};
    smp__slot slot[4];
    int picked[2];
    char path[128];
    smp__elastic_job job = {.options = options,
                            .plans = *plans,
                            .hosts = {.n = 4, .host = host},
                            .slots = {.n = 4, .most = 2, .slot = slot},
                            .picked = picked,
                            .keep = folder,
                            .lost_host = -1};
    for (int i = 0; i < 4; i++)
        slot[i] = (smp__slot){.host = i, .at_hand = true, .present = true};
    slot[1].speed = 0.5;
    must(smp__elastic_place(&job, 2, path, sizeof path));
    assert_int_equal(picked[0], 0);
    assert_int_equal(picked[1], 2);
    smp__moves_free(&job.moves);
}

/* The plan that knows of a slow device lies in the folder, and goes by no other's name. */
static void check_uneven(smp__plans *plans, smp__elastic_options *options)
{
    static const smp__speeds none;
    static smp__speeds slow = {.n = 2, .speed = {1.0, 0.5}};
    const int uneven = smp__plans_uneven(plans), most = options->most;
    char path[128];
    smp__speeds_name(&slow);
    smp__plans_set_speeds(plans, &slow);
    assert_int_equal(plans->of[uneven].state, SMP__PLAN_UNKNOWN);
    make(plans, uneven, false);
    assert_int_equal(plans->of[uneven].state, SMP__PLAN_MADE);
    smp__plans_set_speeds(plans, &none);
    smp__plans_set_speeds(plans, &slow);
    assert_int_equal(plans->of[uneven].state, SMP__PLAN_MADE);
    options->most = 3; /* of a job that goes on with fewer: the first plan is for four */
    must(smp__plans_path(plans, smp__plans_uneven(plans), path, sizeof path));
    assert_non_null(strstr(path, "planned-for-2-1x50.yaml"));
    options->most = most;
    smp__plans_set_speeds(plans, &none);
}

/* Three devices need three stages to fit, and --cut-at of the first plan allows two. */
static void test_later_plans_are_cut_anywhere(void **state)
{
    smp__elastic_options options;
    smp__plans plans;
    char *argv[] = {"smp-run", "--elastic", MODEL,   "-n",       "1:4",   "--global-batch",
                    "8",       "--stages",  "2",     "--ddp",    "2",     "--cut-at",
                    "h2.ln_1", "--memory",  "11MiB", "--effort", "quick", "--checkpoint",
                    folder,    "--steps",   "3",     "--data",   MODEL,   NULL};
    (void)state;
    must(smp__elastic_options_read(sizeof argv / sizeof *argv - 1, argv, &options));
    must(smp__plans_open(&options, folder, false, &plans));
    make(&plans, 0, false);
    make(&plans, 3, false);
    if (plans.of[3].state != SMP__PLAN_MADE)
        fail_msg("%s", plans.of[3].why);
    smp__plans_close(&plans);
    must(smp__plans_open(&options, folder, false, &plans));
    smp__plans_close(&plans);
    smp__elastic_options_free(&options);
}

/* Nothing can be planned, which is not tried again and again. */
static void check_no_process(smp__plans *plans)
{
    struct rlimit was, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    few = was;
    few.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    const smp_status status = smp__plans_begin_alike(plans, 2);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_int_equal(status, SMP_ERR_FAILED);
    assert_int_equal(plans->alike[2].state, SMP__PLAN_NONE);
    plans->alike[2].state = SMP__PLAN_UNKNOWN;
}

/* The fastest plan for two devices is two replicas; another one has the two stages of the first. */
static void test_alike(void **state)
{
    smp__elastic_options options;
    smp__plans plans;
    char path[96],
        *argv[] = {"smp-run", "--elastic",         MODEL, "-n",       "1:4",   "--global-batch",
                   "8",       "--microbatch-size", "1",   "--effort", "quick", "--shard",
                   "1",       "--stages",          "2",   "--ddp",    "2",     "--checkpoint",
                   folder,    "--steps",           "3",   "--data",   MODEL,   NULL};
    (void)state;
    must(smp__elastic_options_read(sizeof argv / sizeof *argv - 1, argv, &options));
    must(smp__plans_open(&options, folder, false, &plans));
    make(&plans, 0, false);
    assert_true(smp__plans_find_alike(&plans, 2)); /* none is in use */
    must(smp__plans_path(&plans, 4, path, sizeof path));
    must(smp__plans_use(&plans, path));
    assert_true(smp__plans_find_alike(&plans, 4)); /* itself */
    assert_int_equal(plans.alike[4].state, SMP__PLAN_NONE);
    make(&plans, 2, false);
    assert_int_equal(plans.of[2].state, SMP__PLAN_MADE);
    assert_true(plans.of[2].cuts != plans.of[4].cuts);
    assert_false(smp__plans_find_alike(&plans, 2));
    check_no_process(&plans);
    make(&plans, 2, true);
    assert_int_equal(plans.alike[2].state, SMP__PLAN_MADE);
    assert_true(plans.alike[2].cuts == plans.of[4].cuts);
    assert_true(plans.alike[2].step_us >= plans.of[2].step_us);
    check_choice(&plans, &options);
    check_slow_spare(&plans, &options);
    check_uneven(&plans, &options);
    make(&plans, 3, false);
    assert_true(smp__plans_find_alike(&plans, 3)); /* half a replica */
    assert_int_equal(plans.alike[3].state, SMP__PLAN_NONE);
    /* what lies in the folder is found again, unless it has other stages */
    must(smp__plans_path(&plans, 2, path, sizeof path));
    must(smp__plans_use(&plans, path));
    assert_true(smp__plans_find_alike(&plans, 2));
    assert_int_equal(plans.alike[2].state, SMP__PLAN_NONE);
    must(smp__plans_path(&plans, 4, path, sizeof path));
    must(smp__plans_use(&plans, path));
    assert_true(smp__plans_find_alike(&plans, 2));
    assert_int_equal(plans.alike[2].state, SMP__PLAN_MADE);
    smp__plans_close(&plans);
    must(smp__plans_open(&options, folder, false, &plans)); /* another job: they go */
    smp__plans_close(&plans);
    smp__elastic_options_free(&options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spare_host), cmocka_unit_test(test_idle_host),
        cmocka_unit_test(test_alike), cmocka_unit_test(test_later_plans_are_cut_anywhere)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

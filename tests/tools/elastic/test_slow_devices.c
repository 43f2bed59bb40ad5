/* Devices that are slow: the speed that is noted, plans that know of it, when another plan pays. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "graph/base/clock.h"
#include "smp.h"
#include "tests/tools/scratch_folder.h"
#include "tools/elastic/elastic_job.h"

enum { DEVICES = 3, UNEVEN = DEVICES + 1 };

/* A job of three devices, of which nothing runs in fact. */
typedef struct made_job {
    smp__elastic_options options;
    smp__host host;
    smp_plan first;
    int picked[DEVICES];
    smp__elastic_job job;
} made_job;

static void job_open(made_job *m)
{
    smp__elastic_job *job = &m->job;
    memset(m, 0, sizeof *m);
    m->options = (smp__elastic_options){.least = 1, .most = DEVICES, .horizon_s = 600.0};
    smp_text_append(&m->options.planning, "model");
    m->host = (smp__host){
        .name = "h", .devices = DEVICES, .local = true, .listed = true, .state = SMP__HOST_UP};
    job->options = &m->options;
    job->folder = folder;
    job->events.file = job->lost_host = -1;
    job->hosts = (smp__hosts){.n = 1, .host = &m->host, .options = {.gpus = true}};
    assert_int_equal(smp__slots_open(folder, DEVICES, &job->hosts, &job->slots), SMP_OK);
    (void)smp__slots_look(&job->slots);
    assert_int_equal(smp__plans_open(&m->options, folder, false, &job->plans), SMP_OK);
    job->plans.first = &m->first;
    job->plans.of[3] = (smp__known_plan){.state = SMP__PLAN_MADE, .step_us = 100.0};
    job->plans.of[2] = (smp__known_plan){.state = SMP__PLAN_MADE, .step_us = 140.0};
    job->picked = m->picked;
    snprintf(job->record.job, sizeof job->record.job, "0123456789abcdef");
    job->record.incarnation = 1;
    job->cost_s = 5.0;
    job->life = SMP__LIFE_RUN;
    job->devices = DEVICES;
    smp__slots_pick(&job->slots, DEVICES, job->picked);
    job->moves.step_us = 100.0;
    smp__slow_begin(job, DEVICES);
    smp__slow_look(job);
}

static void events_begin(made_job *m)
{
    char path[300];
    snprintf(path, sizeof path, "%s/events", folder);
    assert_int_equal(smp__events_open(path, &m->job.events), SMP_OK);
}

/* What was told since is this. */
static void expect_events(made_job *m, const char *part)
{
    char path[300], *text = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/events", folder);
    smp__events_close(&m->job.events);
    assert_int_equal(smp_file_read(path, 4096, &text, &bytes), SMP_OK);
    if (!strstr(text, part))
        fail_msg("'%s' is not in '%s'", part, text);
    free(text);
    unlink(path);
}

static void job_close(made_job *m)
{
    char path[300];
    m->job.plans.first = NULL;
    smp__plans_close(&m->job.plans);
    smp__slots_close(&m->job.slots);
    smp_text_free(&m->job.why);
    smp_text_free(&m->options.planning);
    snprintf(path, sizeof path, "%s/elastic.yaml", folder);
    unlink(path);
}

static void test_slow_speed(void **state)
{
    (void)state;
    assert_true(fabs(smp__slow_speed(2.0, 0.0) - 0.5) < 1e-9);
    assert_true(fabs(smp__slow_speed(1.3, 0.0) - 0.75) < 1e-9);
    assert_true(fabs(smp__slow_speed(1e6, 0.0) - 0.05) < 1e-9);
    assert_true(smp__slow_speed(1.0, 0.5) == 0.0);
    assert_true(smp__slow_speed(1.8, 0.5) == 0.5); /* one step off: noise */
    assert_true(fabs(smp__slow_speed(1.7, 0.5) - 0.6) < 1e-9);
    assert_true(smp__slow_pause_s(1) == 600.0 && smp__slow_pause_s(3) == 2400.0);
    assert_true(smp__slow_pause_s(1000) == 32 * 600.0);
}

static void test_slow_speeds_are_named(void **state)
{
    static smp__speeds speeds = {.n = 6, .speed = {1, 1, 0.6, 1, 1, 0.05}};
    (void)state;
    smp__speeds_name(&speeds);
    assert_string_equal(speeds.name, "2x60-5x5");
    assert_true(smp__speeds_least(&speeds) == 0.05);
    speeds.n = SMP__ELASTIC_DEVICES;
    for (int i = 0; i < speeds.n; i++)
        speeds.speed[i] = 0.5;
    char name[2][SMP__SPEEDS_NAME];
    for (int k = 0; k < 2; k++) { /* too long a list: another one has another name */
        speeds.speed[300] -= 0.05;
        smp__speeds_name(&speeds);
        assert_int_equal(strncmp(speeds.name, "512-slow-", 9), 0);
        memcpy(name[k], speeds.name, sizeof name[k]);
    }
    assert_string_not_equal(name[0], name[1]);
    speeds.speed[300] += 1e-9; /* as two digits in a file tell it */
    smp__speeds_name(&speeds);
    assert_string_equal(speeds.name, name[1]);
}

/* What a plan that knows of a slow device says of a step is what it takes, and less than by the
 * plan for equal ones. */
static void test_slow_devices_are_planned_for(void **state)
{
    static smp__speeds equal = {.n = 2, .speed = {1, 1}}, slow = {.n = 2, .speed = {0.25, 1}};
    char path[2][300];
    double own_us, step_us[2], full_us;
    smp_options options = smp_options_default();
    smp_plan *plan = NULL;
    (void)state;
    options.model = SMP_SOURCE_DIR "/examples/gpt-tiny.yaml";
    options.planning.effort = SMP_EFFORT_QUICK;
    options.planning.devices = options.planning.stages = 2;
    options.planning.global_batch = 8;
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "%s/plan-%d.yaml", folder, i);
        options.planning.speed = i == 1 ? slow.speed : NULL;
        options.planning.n_speed = 2;
        assert_int_equal(smp_plan_write(&options, path[i]), SMP_OK);
        assert_int_equal(smp__speeds_step(path[i], &slow, &step_us[i]), SMP_OK);
    }
    assert_int_equal(smp_plan_read(path[1], &plan), SMP_OK);
    assert_true(plan->cluster->device[0].speed == 0.25);
    assert_true(smp_device_speed(&plan->cluster->device[1]) == 1.0);
    own_us = plan->predicted.step_us + plan->predicted.waits_us;
    assert_true(fabs(step_us[1] - own_us) < 1e-6 * own_us);
    assert_true(step_us[1] < 0.9 * step_us[0]);
    assert_int_equal(smp__speeds_step(path[1], &equal, &full_us), SMP_OK);
    assert_true(full_us < own_us); /* and once it has recovered */
    assert_int_equal(smp__speeds_step(path[0], &equal, &full_us), SMP_OK);
    assert_true(full_us < step_us[1]);
    equal.n = 1;
    assert_int_equal(smp__speeds_step(path[0], &equal, &full_us), SMP_ERR_INPUT);
    options.planning.speed = (const double[]){0.0, 1.0};
    assert_int_equal(smp_plan_write(&options, path[0]), SMP_ERR_INPUT);
    smp_plan_destroy(plan);
    unlink(path[0]);
    unlink(path[1]);
}

/* Of many devices most are slow, each at another speed. */
static void test_many_slow_devices_are_planned_for(void **state)
{
    static double speed[32];
    char path[300];
    smp_options options = smp_options_default();
    smp_plan *plan = NULL;
    (void)state;
    snprintf(path, sizeof path, "%s/plan.yaml", folder);
    for (int i = 0; i < 32; i++)
        speed[i] = i < 24 ? 0.05 * (1 + i % 19) : 1.0;
    options.model = SMP_SOURCE_DIR "/examples/gpt-tiny.yaml";
    options.planning.effort = SMP_EFFORT_QUICK;
    options.planning.devices = options.planning.n_speed = 32;
    options.planning.global_batch = 64;
    options.planning.speed = speed;
    assert_int_equal(smp_plan_write(&options, path), SMP_OK);
    assert_int_equal(smp_plan_read(path, &plan), SMP_OK);
    assert_int_equal(smp_plan_processes(plan), 32);
    smp_plan_destroy(plan);
    unlink(path);
}

/* A group of devices is as fast as its slowest. */
static void test_slow_devices_of_a_group(void **state)
{
    static smp__speeds slow = {.n = 4, .speed = {1, 1, 1, 0.5}},
                       other = {.n = 4, .speed = {1, 1, 0.5, 1}};
    char path[300];
    double own_us, slow_us, other_us;
    smp_options options = smp_options_default();
    smp_plan *plan = NULL;
    (void)state;
    snprintf(path, sizeof path, "%s/plan.yaml", folder);
    options.model = SMP_SOURCE_DIR "/examples/gpt-tiny.yaml";
    options.planning.effort = SMP_EFFORT_QUICK;
    options.planning.devices = 4;
    options.planning.stages = options.planning.tensor = 2;
    options.planning.global_batch = 4;
    options.planning.speed = slow.speed;
    options.planning.n_speed = 4;
    assert_int_equal(smp_plan_write(&options, path), SMP_OK);
    assert_int_equal(smp_plan_read(path, &plan), SMP_OK);
    own_us = plan->predicted.step_us + plan->predicted.waits_us;
    assert_int_equal(smp__speeds_step(path, &slow, &slow_us), SMP_OK);
    assert_int_equal(smp__speeds_step(path, &other, &other_us), SMP_OK);
    assert_true(fabs(slow_us - own_us) < 1e-6 * own_us && fabs(other_us - own_us) < 1e-6 * own_us);
    options.planning.fix = path; /* whose cluster is that of the plan */
    assert_int_equal(smp_plan_write(&options, path), SMP_ERR_INPUT);
    smp_plan_destroy(plan);
    unlink(path);
}

/* The fastest of three plans, once what was lost by the present one is what a change costs. */
static void test_slow_device_changes_the_plan(void **state)
{
    made_job m;
    smp__elastic_job *job = &m.job;
    (void)state;
    job_open(&m);
    assert_int_equal(smp__slow_wanted(job), 0);
    m.options.ignore_slow = true;
    smp__slow_tell(job, 1, 2.5);
    assert_true(job->slots.slot[1].speed == 0.0);
    m.options.ignore_slow = false;
    smp__slow_tell(job, 1, 2.5);
    assert_true(fabs(job->slots.slot[1].speed - 0.4) < 1e-9);
    smp__slow_look(job);
    assert_string_equal(job->plans.uneven.name, "1x40");
    assert_int_equal(smp__slow_wanted(job), UNEVEN);
    assert_int_equal(smp__slow_better(job), 0); /* not yet known */
    job->plans.of[UNEVEN] = (smp__known_plan){.state = SMP__PLAN_MADE, .step_us = 180.0};
    assert_int_equal(smp__slow_wanted(job), 0);
    assert_true(fabs(smp__slow_now_us(job) - 250.0) < 1e-6); /* no file to simulate */
    assert_int_equal(smp__slow_most(job), 2);
    assert_int_equal(smp__slow_better(job), 0); /* too early */
    job->slow.since_s = smp_clock_s() - 20.0;
    assert_int_equal(smp__slow_better(job), 2);
    assert_non_null(strstr(job->why.data, "device 1 runs at 0.40 of its usual speed"));
    assert_non_null(strstr(job->why.data, "without it"));
    job->plans.of[UNEVEN].step_us = 120.0;
    assert_int_equal(smp__slow_better(job), UNEVEN);
    job->slow.changes = 1; /* the next one has to be worth more */
    assert_int_equal(smp__slow_better(job), UNEVEN);
    job->slow.changes = 2;
    assert_int_equal(smp__slow_better(job), 0);
    job->slow.changes = 0;
    m.options.horizon_s = 9.0;
    assert_int_equal(smp__slow_better(job), 0);
    m.options.horizon_s = 600.0;
    m.options.least = DEVICES; /* none may be left out */
    job->plans.of[UNEVEN].step_us = 180.0;
    assert_int_equal(smp__slow_best(job, DEVICES), UNEVEN);
    job->plans.of[UNEVEN].step_us = 260.0;
    assert_int_equal(smp__slow_best(job, DEVICES), DEVICES);
    job_close(&m);
}

static void test_slow_device_recovers(void **state)
{
    made_job m;
    smp__elastic_job *job = &m.job;
    (void)state;
    job_open(&m);
    smp__slow_tell(job, 1, 2.5);
    smp__slow_tell(job, 1, 1.0); /* before it mattered */
    smp__slow_look(job);
    job->slow.since_s = smp_clock_s() - 1000.0;
    assert_int_equal(job->plans.uneven.n, 0);
    assert_int_equal(smp__slow_better(job), 0);
    smp__slow_tell(job, 1, 2.5);
    smp__slow_look(job);
    job->plans.of[UNEVEN] = (smp__known_plan){.state = SMP__PLAN_MADE, .step_us = 120.0};
    job->record.incarnation = 2;
    job->moves.step_us = 120.0;
    smp__slow_begin(job, UNEVEN); /* by a plan that knows of it */
    assert_true(smp__slow_now_us(job) == 120.0);
    job->n_marks = 29;
    smp__slow_look(job);
    assert_true(job->slots.slot[1].speed > 0.0);
    job->n_marks = 30; /* and nothing was told again */
    smp__slow_look(job);
    assert_true(job->slots.slot[1].speed == 0.0);
    job->slow.since_s = smp_clock_s() - 1000.0;
    assert_int_equal(smp__slow_better(job), DEVICES);
    assert_non_null(strstr(job->why.data, "usual speed again"));
    job_close(&m);
}

static void test_slow_device_is_tried_again(void **state)
{
    made_job m;
    smp__elastic_job *job = &m.job;
    smp__slot *slot;
    (void)state;
    job_open(&m);
    slot = &job->slots.slot[1];
    smp__slow_tell(job, 1, 2.5);
    job->devices = 2;
    smp__slots_pick(&job->slots, 2, job->picked);
    assert_int_equal(job->picked[1], 2);
    smp__slow_begin(job, 2);
    slot->slow_s = smp_clock_s() - 599.0;
    smp__slow_look(job);
    assert_true(slot->speed > 0.0);
    slot->slow_s -= 2.0;
    events_begin(&m);
    smp__slow_look(job);
    assert_true(slot->speed == 0.0);
    expect_events(&m, "\"event\": \"slow\", \"device\": 1, \"host\": \"h\", \"speed\": 1.00}");
    smp__slow_tell(job, 1, 1.0); /* of another device, which is not slow: nothing */
    slot->speed = 0.4;
    slot->times_slow = 3;
    slot->slow_s = smp_clock_s() - 239.0;
    job->life = SMP__LIFE_CHOOSE; /* ranks start anyway: a tenth of the pause is enough */
    smp__slow_look(job);
    assert_true(slot->speed > 0.0);
    slot->slow_s -= 2.0;
    smp__slow_look(job);
    assert_true(slot->speed == 0.0);
    job_close(&m);
}

static void test_slow_devices_are_recorded(void **state)
{
    made_job m;
    smp__elastic_job *job = &m.job;
    smp__record record;
    bool found = false;
    (void)state;
    job_open(&m);
    smp__slow_tell(job, 1, 2.5); /* writes it */
    job->slots.slot[1] = (smp__slot){.at_hand = true, .present = true, .index = 1};
    assert_int_equal(smp__record_read(folder, "model", &record, &job->slots, &found), SMP_OK);
    assert_true(found && fabs(job->slots.slot[1].speed - 0.4) < 1e-9);
    assert_int_equal(job->slots.slot[1].times_slow, 1);
    assert_true(job->slots.slot[1].slow_s > 0.0 && job->slots.slot[0].speed == 0.0);
    job_close(&m);
}

/* What was lost with a host may be on the slow one alone, if that had ranks. */
static void test_slow_device_stays_where_a_host_is_lost(void **state)
{
    made_job m;
    smp__elastic_job *job = &m.job;
    (void)state;
    job_open(&m);
    m.options.keep_every = 1;
    smp__slow_tell(job, 2, 2.5);
    assert_int_equal(smp__slow_most(job), 2);
    job->lost_host = 1;
    assert_int_equal(smp__slow_most(job), 3);
    job->devices = 2; /* it was left out already */
    assert_int_equal(smp__slow_most(job), 2);
    job_close(&m);
}

/* Ranks were to end for a slow device, and a host was lost meanwhile: a failure; or a device was
 * taken away, which they end for then. */
static void test_slow_end_is_told(void **state)
{
    static const char *const why[] = {"slow", "failure", "devices"};
    for (int i = 0; i < 3; i++) {
        made_job m;
        smp__elastic_job *job = &m.job;
        char part[32];
        (void)state;
        job_open(&m);
        events_begin(&m);
        job->reshapes = job->slow.ends = true;
        job->stalled = -1;
        job->life = SMP__LIFE_END;
        job->lost_host = i == 1 ? 0 : -1;
        smp__elastic_change(job); /* another device is at hand, that has no rank */
        assert_true(job->slow.ends);
        if (i == 2) {
            job->slots.slot[1].at_hand = false;
            smp__elastic_change(job);
        }
        smp__elastic_judge(job, 1);
        snprintf(part, sizeof part, "\"why\": \"%s\"", why[i]);
        expect_events(&m, part);
        job_close(&m);
    }
}

/* As of a start on many devices of hosts with long names. */
static void test_long_events_are_whole(void **state)
{
    static char members[20000];
    smp__events events;
    char path[300], *text = NULL;
    size_t bytes = 0;
    (void)state;
    memset(members, '1', sizeof members - 1);
    snprintf(path, sizeof path, "%s/events", folder);
    assert_int_equal(smp__events_open(path, &events), SMP_OK);
    smp__events_put(&events, "start", "\"slots\": [%s]", members);
    smp__events_close(&events);
    assert_int_equal(smp_file_read(path, 1 << 16, &text, &bytes), SMP_OK);
    assert_non_null(strstr(text, members));
    assert_non_null(strstr(text, "1]}\n"));
    free(text);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_speed),
        cmocka_unit_test(test_slow_speeds_are_named),
        cmocka_unit_test(test_slow_devices_are_planned_for),
        cmocka_unit_test(test_many_slow_devices_are_planned_for),
        cmocka_unit_test(test_slow_devices_of_a_group),
        cmocka_unit_test(test_slow_device_changes_the_plan),
        cmocka_unit_test(test_slow_device_recovers),
        cmocka_unit_test(test_slow_device_is_tried_again),
        cmocka_unit_test(test_slow_devices_are_recorded),
        cmocka_unit_test(test_slow_device_stays_where_a_host_is_lost),
        cmocka_unit_test(test_slow_end_is_told),
        cmocka_unit_test(test_long_events_are_whole),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

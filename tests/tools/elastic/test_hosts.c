/* The hosts of a job, whose agents are scripts: one that cannot get ready, one that does not
 * answer, one of another kind, one that is lost while a state is saved; and what the job makes
 * of a host that is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "graph/base/clock.h"
#include "tools/elastic/elastic_job.h"
#include "tools/run/training_loop.h"

static char folder[256], said[4096];

static void path_of(char path[400], const char *name)
{
    snprintf(path, 400, "%s/%s", folder, name);
}

static void write_file(const char *name, const char *text)
{
    char path[400];
    path_of(path, name);
    assert_int_equal(smp_file_write(path, text, strlen(text)), SMP_OK);
}

static void say(const char *format, ...)
{
    const size_t length = strlen(said);
    va_list values;
    va_start(values, format);
    vsnprintf(said + length, sizeof said - length, format, values);
    va_end(values);
}

/* Of an agent, when it has heard a line of that word; "hello": at its start. */
static void let_answer(const char *host, const char *word, const char *script)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", host, word);
    write_file(name, script);
}

/* Hosts, of which the first is this one; all greet, and get ready for ranks. */
static void open_hosts(const char *list, smp__hosts *out)
{
    static char program[400], file[400], agent[500];
    char text[1200];
    path_of(program, "agent");
    path_of(file, "hosts");
    snprintf(agent, sizeof agent, "/bin/sh %s/shell {host}", folder);
    snprintf(text, sizeof text,
             "#!/bin/sh\ncd '%s'\nhost=${HOST:-localhost}\nanswer() { if [ -f $host.$1 ]; then "
             ". ./$host.$1; else . ./all.$1; fi; }\nanswer hello\n"
             "while read -r word number rest; do\n[ -f all.$word ] && answer $word\ndone\n",
             folder);
    write_file("agent", text);
    assert_int_equal(chmod(program, 0700), 0);
    write_file("shell", "export HOST=$1\nexec /bin/sh -c \"$2\"\n");
    write_file("hosts", list);
    let_answer("all", "hello", "echo smp-agent 2 cores\n");
    let_answer("all", "watch", "echo ready $number 0\n");
    let_answer("all", "states", "echo states\n");
    let_answer("all", "put", "echo put 0\n");
    let_answer("all", "end", "exit 0\n");
    const smp__hosts_options options = {
        .file = file, .agent = agent, .program = program, .keep = "/none", .say = say};
    said[0] = '\0';
    assert_int_equal(smp__hosts_open(&options, out), SMP_OK);
}

/* Until the host is in that state. */
static void look_until(smp__hosts *h, int host, smp__host_state state)
{
    const double until_s = smp_clock_s() + 10.0;
    do {
        assert_true(smp_clock_s() < until_s);
        usleep(1000);
        smp__hosts_look(h, 0.001);
    } while (h->host[host].state != state);
}

/* Whether all are ready for ranks on the hosts that are used. */
static smp_status begin(smp__hosts *h, int64_t incarnation, bool *ready)
{
    const double until_s = smp_clock_s() + 10.0;
    smp_status status = smp__hosts_begin(h, incarnation, h->n);
    do {
        assert_true(smp_clock_s() < until_s);
        usleep(1000);
        smp__hosts_look(h, 0.001);
        if (status == SMP_OK)
            status = smp__hosts_ready(h, ready);
    } while (status == SMP_OK && !*ready && h->lost < 0);
    return status;
}

/* A host that cannot get ready is lost; without this one there is no job. */
static void test_hosts_not_ready(void **state)
{
    smp__hosts hosts;
    bool ready = true;
    (void)state;
    open_hosts("localhost slots=1\nh2 slots=1\n", &hosts);
    let_answer("h2", "watch", "echo failed $number no room\n");
    look_until(&hosts, 1, SMP__HOST_UP);
    hosts.host[0].used = hosts.host[1].used = true;
    assert_int_equal(begin(&hosts, 1, &ready), SMP_OK);
    assert_false(ready);
    assert_int_equal(hosts.lost, 1);
    assert_int_equal(hosts.host[1].state, SMP__HOST_DOWN);
    assert_true(hosts.host[1].lost && !hosts.host[0].lost);
    assert_true(hosts.host[1].again_s > smp_clock_s());
    assert_string_equal(said, "host h2 is lost: no room");
    hosts.host[1].used = false;
    assert_int_equal(begin(&hosts, 2, &ready), SMP_OK);
    assert_true(ready);
    let_answer("localhost", "watch", "echo failed $number no room\n");
    assert_int_equal(begin(&hosts, 3, &ready), SMP_ERR_FAILED);
    assert_string_equal(smp_last_error(), "host localhost: no room");
    smp__hosts_close(&hosts, true);
}

/* A host that does not answer is waited for before ranks are started first, not later. */
static void test_hosts_silent(void **state)
{
    smp__hosts hosts;
    bool ready;
    (void)state;
    let_answer("h2", "hello", "");
    let_answer("h3", "hello", "");
    open_hosts("localhost slots=1\nh2 slots=1\n", &hosts);
    look_until(&hosts, 0, SMP__HOST_UP);
    assert_false(smp__hosts_settled(&hosts));
    hosts.host[0].used = true;
    assert_int_equal(begin(&hosts, 1, &ready), SMP_OK);
    assert_true(ready);
    write_file("hosts", "localhost slots=1\nh2 slots=1\nh3 slots=1\n");
    smp__hosts_look(&hosts, 0.001);
    assert_int_equal(hosts.n, 3);
    assert_int_equal(hosts.host[2].state, SMP__HOST_STARTING);
    assert_true(smp__hosts_settled(&hosts));
    smp__hosts_close(&hosts, true);
}

/* One that is refused is told so, and left: nothing is read of it, nobody waits for it. */
static void test_hosts_refused(void **state)
{
    smp__hosts hosts;
    struct pollfd polls[6];
    (void)state;
    let_answer("h2", "hello", "echo smp-agent 2 others\necho beat\n");
    open_hosts("localhost slots=1\nh2 slots=1\n", &hosts);
    look_until(&hosts, 1, SMP__HOST_REFUSED);
    assert_string_equal(said, "host h2 is not used: it has others, this one cores");
    assert_int_equal(hosts.host[1].link.child.pid, 0);
    smp__hosts_put_polls(&hosts, polls);
    for (int i = 3; i < 6; i++)
        assert_int_equal(polls[i].fd, -1);
    smp__hosts_look(&hosts, 100.0);
    assert_int_equal(hosts.host[1].state, SMP__HOST_REFUSED);
    smp__hosts_close(&hosts, true);
}

static smp_status stop_third(void *of)
{
    return ++*(int *)of < 3 ? SMP_OK : smp_fail(SMP_ERR_INPUT, "signal 15 ends the wait");
}

/* A signal ends a wait for hosts, once. */
static void test_hosts_wait_ends(void **state)
{
    smp__hosts hosts;
    int64_t step;
    int calls = 0;
    (void)state;
    open_hosts("localhost slots=1\nh2 slots=1\n", &hosts);
    let_answer("h2", "states", "");
    look_until(&hosts, 1, SMP__HOST_UP);
    hosts.options.meanwhile = stop_third;
    hosts.options.of = &calls;
    assert_int_equal(smp__hosts_save(&hosts, folder, &step), SMP_ERR_INPUT);
    assert_int_equal(calls, 3);
    assert_int_equal(smp__hosts_remove(&hosts), SMP_ERR_INPUT);
    smp__hosts_close(&hosts, true);
}

/* A state of which a lost host has a part is not saved, and not taken for one that there is not. */
static void test_hosts_save_loses_one(void **state)
{
    smp__hosts hosts;
    int64_t step;
    char saved[400], name[420];
    (void)state;
    open_hosts("localhost slots=1\nh2 slots=1\n", &hosts);
    let_answer("localhost", "states",
               "echo state 00000000000000aa 1 7 3 0 10 1 0 1 0-5\necho states\n");
    let_answer("localhost", "put", "echo put 5\n");
    let_answer("h2", "states", "echo state 00000000000000aa 1 7 3 0 10 1 0 1 5-10\necho states\n");
    let_answer("h2", "put", "exit 1\n");
    look_until(&hosts, 1, SMP__HOST_UP);
    path_of(saved, "saved");
    assert_int_equal(mkdir(saved, 0700), 0);
    assert_int_equal(smp__hosts_save(&hosts, saved, &step), SMP_ERR_FAILED);
    assert_string_equal(smp_last_error(), "a host is lost that had a part of the state");
    assert_int_equal(step, 0);
    snprintf(name, sizeof name, "%s/checkpoint-0000000007.smp", saved);
    assert_int_equal(access(name, F_OK), -1);
    assert_int_equal(rmdir(saved), 0);
    /* Nothing is left that is later than what is saved. */
    let_answer("localhost", "states", "echo states\n");
    let_answer("h2", "states", "echo states\n");
    assert_int_equal(smp__hosts_save(&hosts, folder, &step), SMP_OK);
    assert_int_equal(step, 0);
    smp__hosts_close(&hosts, true);
}

/* A job of two hosts, h1 with five devices and h2 with three, that runs on all of them. */
static void make_job(smp__elastic_job *job, smp__host host[2])
{
    static smp__elastic_options options;
    static int picked[8];
    options.least = 1;
    options.most = 8;
    host[0] = (smp__host){.name = "h1", .devices = 5, .listed = true, .state = SMP__HOST_UP};
    host[1] = (smp__host){.name = "h2", .devices = 3, .listed = true, .state = SMP__HOST_UP};
    *job = (smp__elastic_job){.options = &options,
                              .events = {.file = -1},
                              .launcher = {.child = SMP__NO_CHILD, .told = {.rank = -1}},
                              .hosts = {.n = 2, .host = host, .lost = -1},
                              .plans = {.options = &options, .report = -1},
                              .life = SMP__LIFE_RUN,
                              .devices = 8,
                              .picked = picked,
                              .resumed = true,
                              .stalled = -1,
                              .failed_slot = -1,
                              .lost_host = -1};
    job->launcher.child.ended = true;
    assert_int_equal(smp__slots_open(folder, 8, &job->hosts, &job->slots), SMP_OK);
    assert_true(smp__slots_look(&job->slots));
    smp__slots_pick(&job->slots, 8, picked);
}

/* A host that is lost while ranks end for more devices is a failure, whatever they ended with. */
static void test_hosts_lost_while_reshaping(void **state)
{
    smp__elastic_job job;
    smp__host host[2];
    (void)state;
    make_job(&job, host);
    job.life = SMP__LIFE_END;
    job.recovers = job.reshapes = true;
    job.lost_host = 1;
    smp__elastic_judge(&job, SMP__EXIT_STOPPED);
    assert_int_equal(job.events.failures, 1);
    assert_int_equal(job.events.changes, 0);
    assert_int_equal(job.life, SMP__LIFE_CHOOSE);
    assert_string_equal(job.why.data, "host h2 was lost after step 0");
    smp_text_free(&job.why);
    smp__slots_close(&job.slots);
}

/* The plan for what is left without the host that has most devices is made ahead. */
static void test_hosts_plan_ahead(void **state)
{
    static char nowhere[5000]; /* too long a name: the search that is begun ends at once */
    smp__elastic_job job;
    smp__host host[2];
    smp__known_plan plans[9] = {0};
    smp_plan first = {0};
    (void)state;
    memset(nowhere, 'x', sizeof nowhere - 1);
    make_job(&job, host);
    job.plans.first = &first;
    job.plans.of = plans;
    job.plans.folder = nowhere;
    for (int n = 4; n <= 8; n++) /* with one less, two less, half of them */
        plans[n] = (smp__known_plan){.state = SMP__PLAN_MADE, .step_us = 100.0 / n};
    assert_int_equal(smp__elastic_look_ahead(&job), SMP_OK);
    assert_int_equal(job.plans.planned, 3);
    smp__plans_stop(&job.plans);
    smp__slots_close(&job.slots);
}

/* The lock of DIR: one that has gone is taken again, to one that another supervisor has got DIR is
 * left. */
static void test_hosts_ousted(void **state)
{
    static const char other[] = "SMP lock 1\nhost elsewhere\nboot b\nspace s\npid 7\nstart 7\n"
                                "job 0123456789abcdef\n";
    smp__elastic_job job;
    smp__host host[2];
    char path[400];
    (void)state;
    make_job(&job, host);
    job.folder = folder;
    job.signals = -1;
    path_of(path, ".elastic-lock");
    assert_int_equal(smp__elastic_take_folder(&job), SMP_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(smp__elastic_renew(&job), SMP_OK); /* it is not looked at yet */
    assert_int_equal(access(path, F_OK), -1);
    job.renewed_s = 1e-3;
    assert_int_equal(smp__elastic_renew(&job), SMP_OK);
    assert_int_equal(access(path, F_OK), 0);
    write_file(".elastic-lock", other);
    job.renewed_s = 1e-3;
    assert_int_equal(smp__elastic_renew(&job), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "process 7 on host elsewhere"));
    assert_true(job.ousted);
    assert_false(smp__elastic_write_record(&job));
    assert_int_equal(unlink(path), 0);
    smp__slots_close(&job.slots);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/smp-test-XXXXXX", P_tmpdir);
    signal(SIGPIPE, SIG_IGN);
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    static const char *const words[] = {"hello", "watch", "states", "put", "end"};
    static const char *const hosts[] = {"all", "localhost", "h2", "h3"};
    static const char *const others[] = {"agent", "shell", "hosts"};
    char path[400], name[64];
    (void)state;
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++)
        for (size_t k = 0; k < sizeof words / sizeof words[0]; k++) {
            snprintf(name, sizeof name, "%s.%s", hosts[i], words[k]);
            path_of(path, name);
            unlink(path);
        }
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        path_of(path, others[i]);
        unlink(path);
    }
    return rmdir(folder) != 0;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_hosts_##name, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        TEST(not_ready),  TEST(silent),         TEST(refused),
        TEST(wait_ends),  TEST(save_loses_one), TEST(lost_while_reshaping),
        TEST(plan_ahead), TEST(ousted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Which hosts a job has: files of hosts, and what batch systems say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "graph/base/text.h"
#include "tools/elastic/hosts/agent_command.h"
#include "tools/elastic/hosts/host_list.h"

static char folder[256], path[300];

static void write_text(const char *text)
{
    assert_int_equal(smp_file_write(path, text, strlen(text)), SMP_OK);
}

/* "a:2 b:1": the hosts, in their order. */
static void expect_hosts(smp__host_list *list, const char *which)
{
    smp_text got = {0};
    for (int i = 0; i < list->n; i++)
        smp_text_append(&got, "%s%s:%d", i > 0 ? " " : "", list->host[i].name,
                        list->host[i].devices);
    assert_string_equal(got.data ? got.data : "", which);
    smp_text_free(&got);
    smp__host_list_free(list);
}

static void expect_read(const char *text, const char *which)
{
    smp__host_list list;
    write_text(text);
    assert_int_equal(smp__host_list_read(path, &list), SMP_OK);
    expect_hosts(&list, which);
}

static void expect_refused(const char *text, const char *why)
{
    smp__host_list list;
    write_text(text);
    assert_int_equal(smp__host_list_read(path, &list), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), why));
    assert_int_equal(list.n, 0);
}

static void test_hosts_of_a_file(void **state)
{
    smp__host_list list;
    (void)state;
    expect_read("h1 slots=2\nh2\n", "h1:2 h2:1");
    expect_read("# all\n\n  h1\tslots=2 max_slots=4 # two\r\nh2.lan slots=3", "h1:2 h2.lan:3");
    expect_read("h1\nh1\nh2\nh1\n", "h1:3 h2:1");
    expect_read("10.0.0.1 slots=8\n", "10.0.0.1:8");
    expect_refused("", "no host is named");
    expect_refused("# nothing\n", "no host is named");
    expect_refused("h1\nh2 slots=0\n", ":2: got 'slots=0'");
    expect_refused("h1 slots=many\n", ":1: got 'slots=many'");
    expect_refused("h1 slots=9999\n", ":1: got 'slots=9999'");
    expect_refused("h1 2\n", ":1: got '2', expected slots=N");
    expect_refused("-oProxyCommand=evil\n", "expected the name of a host");
    expect_refused("h1;rm\n", "expected the name of a host");
    expect_refused("$(id) slots=1\n", "expected the name of a host");
    expect_refused("h1 slots=400\nh1 slots=400\n", "more than 512 devices");
    remove(path);
    assert_int_equal(smp__host_list_read(path, &list), SMP_ERR_INPUT);
}

/* A scontrol that says what the test wants. */
static void test_hosts_of_batch_systems(void **state)
{
    smp__host_list list;
    char search[4096];
    (void)state;
    unsetenv("SLURM_JOB_NODELIST");
    unsetenv("PBS_NODEFILE");
    assert_int_equal(smp__host_list_batch(false, &list), SMP_OK);
    assert_int_equal(list.n, 0);
    snprintf(path, sizeof path, "%s/scontrol", folder);
    write_text("#!/bin/sh\nprintf 'n1\\nn2\\nn3\\n'\n");
    chmod(path, 0755);
    snprintf(search, sizeof search, "%s:%s", folder, getenv("PATH"));
    setenv("PATH", search, 1);
    setenv("SLURM_JOB_NODELIST", "n[1-3]", 1);
    setenv("SLURM_JOB_CPUS_PER_NODE", "4(x2),2", 1);
    setenv("SLURM_GPUS_ON_NODE", "8", 1);
    unsetenv("SLURM_NTASKS");
    assert_int_equal(smp__host_list_batch(false, &list), SMP_OK);
    expect_hosts(&list, "n1:4 n2:4 n3:2");
    assert_int_equal(smp__host_list_batch(true, &list), SMP_OK);
    expect_hosts(&list, "n1:8 n2:8 n3:8");
    setenv("SLURM_NTASKS", "4", 1);
    setenv("SLURM_TASKS_PER_NODE", "2,1(x2)", 1);
    assert_int_equal(smp__host_list_batch(true, &list), SMP_OK);
    expect_hosts(&list, "n1:2 n2:1 n3:1");
    write_text("#!/bin/sh\nexit 1\n");
    assert_int_equal(smp__host_list_batch(true, &list), SMP_ERR_INPUT);
    unsetenv("SLURM_JOB_NODELIST");
    remove(path);
    snprintf(path, sizeof path, "%s/hosts", folder);
    write_text("p1\np1\np2\n");
    setenv("PBS_NODEFILE", path, 1);
    assert_int_equal(smp__host_list_batch(false, &list), SMP_OK);
    expect_hosts(&list, "p1:2 p2:1");
    unsetenv("PBS_NODEFILE");
}

static void test_host_that_is_this_one(void **state)
{
    char own[SMP__HOST_NAME] = "";
    (void)state;
    gethostname(own, sizeof own - 1);
    assert_true(smp__host_is_here("localhost") && smp__host_is_here(own));
    assert_true(smp__host_is_here("127.0.0.1"));
    assert_false(smp__host_is_here("192.0.2.1")); /* of documents, nobody's */
}

static void test_agent_template(void **state)
{
    char text[1024], shell[400];
    char *script = NULL;
    size_t bytes = 0;
    (void)state;
    assert_int_equal(smp__agent_template(NULL, text, sizeof text), SMP_OK);
    assert_non_null(strstr(text, "ssh "));
    assert_int_equal(smp__agent_template("ssh", text, sizeof text), SMP_ERR_INPUT);
    assert_int_equal(smp__agent_template("ssh {host}", text, 4), SMP_ERR_INPUT);
    assert_int_equal(smp__agent_template("run --on={host} it's", text, sizeof text), SMP_OK);
    snprintf(shell, sizeof shell, "%s/shell", folder);
    assert_int_equal(smp__agent_script(text, shell), SMP_OK);
    assert_int_equal(smp_file_read(shell, 4096, &script, &bytes), SMP_OK);
    assert_string_equal(script,
                        "host=$1\nshift\nexec 'run' '--on='\"$host\"'' 'it'\\''s' \"$*\"\n");
    free(script);
    remove(shell);
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/smp-test-XXXXXX", P_tmpdir);
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/hosts", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    remove(path);
    return rmdir(folder) != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts_of_a_file),
        cmocka_unit_test(test_hosts_of_batch_systems),
        cmocka_unit_test(test_host_that_is_this_one),
        cmocka_unit_test(test_agent_template),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

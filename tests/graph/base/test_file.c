/* graph/base/file.c: reading with a limit, writing that never leaves a part. */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "graph/base/text.h"

static char folder[64];
static char path[96];

static int set_up(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/smp-file-XXXXXX",
             base && strlen(base) < 40 ? base : "/var/tmp");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/a.yaml", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char name[512];
        snprintf(name, sizeof name, "%s/%s", folder, e->d_name);
        unlink(name);
    }
    if (dir)
        closedir(dir);
    return rmdir(folder);
}

static int count_files(void)
{
    int n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void expect_content(const char *name, const char *data, size_t bytes)
{
    char *got = NULL;
    size_t n = 0;
    assert_int_equal(smp_file_read(name, 1 << 20, &got, &n), SMP_OK);
    assert_int_equal(n, bytes);
    assert_memory_equal(got, data, bytes);
    assert_int_equal(got[n], '\0');
    free(got);
}

static void test_file_write_then_read(void **state)
{
    static char big[300000];
    (void)state;
    for (size_t i = 0; i < sizeof big; i++)
        big[i] = (char)(i * 7);
    assert_int_equal(smp_file_write(path, big, sizeof big), SMP_OK);
    expect_content(path, big, sizeof big);
    assert_int_equal(smp_file_write(path, "short", 5), SMP_OK);
    expect_content(path, "short", 5);
    assert_int_equal(smp_file_write(path, NULL, 0), SMP_OK);
    expect_content(path, "", 0);
    assert_int_equal(count_files(), 1); /* no temporary file is left */
}

static void test_file_write_keeps_links(void **state)
{
    char link_path[112];
    struct stat info;
    (void)state;
    snprintf(link_path, sizeof link_path, "%s/link", folder);
    assert_int_equal(smp_file_write(path, "old", 3), SMP_OK);
    assert_int_equal(symlink(path, link_path), 0);
    assert_int_equal(smp_file_write(link_path, "new", 3), SMP_OK);
    assert_int_equal(lstat(link_path, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    expect_content(path, "new", 3);
}

/* Nothing of a file is there before it is closed well, finished before or not. */
static void test_file_writer(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        const bool well = way % 2 != 0;
        smp_writer *w = NULL;
        assert_int_equal(smp_file_write(path, "old", 3), SMP_OK);
        assert_int_equal(smp_writer_open(path, &w), SMP_OK);
        assert_int_equal(smp_writer_add(w, "ab", 2), SMP_OK);
        assert_int_equal(smp_writer_add(w, "", 0), SMP_OK);
        assert_int_equal(smp_writer_add(w, "c\0d", 3), SMP_OK);
        if (way >= 2)
            assert_int_equal(smp_writer_finish(w), SMP_OK);
        expect_content(path, "old", 3);
        assert_int_equal(count_files(), 2);
        const smp_status end = well ? SMP_OK : smp_fail(SMP_ERR_INPUT, "not so");
        assert_int_equal(smp_writer_close(w, end), end);
        expect_content(path, well ? "abc\0d" : "old", well ? 5 : 3);
        assert_int_equal(count_files(), 1);
    }
}

/* A process that begins to write, and is killed then or, without that, waits. */
static pid_t start_writer(const char *target, bool dies)
{
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        smp_writer *w = NULL;
        if (smp_writer_open(target, &w) != SMP_OK || smp_writer_add(w, "part", 4) != SMP_OK ||
            write(ends[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    if (dies) {
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, NULL, 0), child);
    }
    return child;
}

/* What a writer left that was killed is removed by the next one of the same file, no others. */
static void test_file_writer_killed(void **state)
{
    (void)state;
    char other[128], theirs[128];
    snprintf(other, sizeof other, "%s/b.yaml", folder);
    snprintf(theirs, sizeof theirs, "%s.42.tmp", path); /* a name of somebody else */
    assert_int_equal(smp_file_write(theirs, "x", 1), SMP_OK);
    start_writer(path, true);
    start_writer(path, true); /* removes that of the first */
    start_writer(other, true);
    const pid_t alive = start_writer(path, false);
    assert_int_equal(count_files(), 3);
    assert_int_equal(smp_file_write(path, "whole", 5), SMP_OK);
    expect_content(path, "whole", 5);
    assert_int_equal(count_files(), 4);
    assert_int_equal(kill(alive, SIGKILL), 0);
    assert_int_equal(waitpid(alive, NULL, 0), alive);
    smp_writer_sweep(path);
    smp_writer_sweep(other);
    assert_int_equal(count_files(), 2);
}

static void test_file_write_failures(void **state)
{
    char name[128];
    (void)state;
    snprintf(name, sizeof name, "%s/none/a", folder);
    assert_int_equal(smp_file_write(name, "x", 1), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), name));
    assert_int_equal(smp_file_write(folder, "x", 1), SMP_ERR_FAILED);
    assert_int_equal(count_files(), 0);
    /* A device is written to, not replaced. */
    assert_int_equal(smp_file_write("/dev/null", "x", 1), SMP_OK);
    struct stat info;
    assert_int_equal(stat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
}

static void test_file_read_failures(void **state)
{
    char *data = NULL;
    size_t bytes = 0;
    (void)state;
    assert_int_equal(smp_file_read(path, 100, &data, &bytes), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "No such file"));
    assert_int_equal(smp_file_read(folder, 100, &data, &bytes), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "directory"));
    assert_int_equal(smp_file_write(path, "0123456789", 10), SMP_OK);
    assert_int_equal(smp_file_read(path, 9, &data, &bytes), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "limit"));
    assert_int_equal(smp_file_read("/dev/zero", 1 << 20, &data, &bytes), SMP_ERR_INPUT);
    assert_null(data);
    assert_int_equal(smp_file_read(path, 10, &data, &bytes), SMP_OK);
    assert_int_equal(bytes, 10);
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_file_write_then_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_file_write_keeps_links, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_file_writer, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_file_writer_killed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_file_write_failures, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_file_read_failures, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

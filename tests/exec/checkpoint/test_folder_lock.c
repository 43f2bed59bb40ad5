/* Whose a directory of checkpoints is: who gets it, who is refused and told why, and what becomes
 * of locks whose holders are gone. Holders are processes of the test, or text. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/checkpoint/folder_lock.h"
#include "graph/base/text.h"

static char folder[64], lock_path[80];
static int link_error; /* what the file system says to a second name of a file; 0: nothing */

int linkat(int from_directory, const char *from, int to_directory, const char *to, int flags)
{
    errno = link_error;
    return link_error != 0
               ? -1
               : (int)syscall(SYS_linkat, from_directory, from, to_directory, to, flags);
}

static int disturbed_writes; /* that are interrupted, or write a byte, by turns */

ssize_t write(int file, const void *bytes, size_t n)
{
    if (disturbed_writes > 0 && n > 1 && disturbed_writes-- % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    return syscall(SYS_write, file, bytes, disturbed_writes > 0 && n > 1 ? 1 : n);
}

static int set_up(void **state)
{
    (void)state;
    link_error = 0;
    disturbed_writes = 0;
    snprintf(folder, sizeof folder, "%s/smp-test-XXXXXX", P_tmpdir);
    if (!mkdtemp(folder))
        return -1;
    snprintf(lock_path, sizeof lock_path, "%s/.lock", folder);
    return 0;
}

/* Nothing stays but the lock of a holder that is gone. */
static int tear_down(void **state)
{
    (void)state;
    unlink(lock_path);
    return rmdir(folder);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
}

static smp__folder_lock *take(void)
{
    smp__folder_lock *lock = NULL;
    if (smp__folder_lock_take(folder, 0.0, &lock) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return lock;
}

static void expect_refused(const char *part)
{
    smp__folder_lock *lock = NULL;
    assert_int_equal(smp__folder_lock_take(folder, 0.0, &lock), SMP_ERR_INPUT);
    assert_null(lock);
    if (!strstr(smp_last_error(), part))
        fail_msg("'%s' is not in '%s'", part, smp_last_error());
}

static bool there(void)
{
    return access(lock_path, F_OK) == 0;
}

/* Seconds since it was renewed. */
static void set_age(double seconds)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec -= (time_t)seconds;
    const struct timespec times[2] = {now, now};
    assert_int_equal(utimensat(AT_FDCWD, lock_path, times, 0), 0);
}

/* A lock of this process in which the line `key` has another value. */
static void write_lock(const char *key, const char *value)
{
    char *text = NULL, changed[1024], line[32];
    size_t bytes;
    smp__folder_lock *lock = take();
    assert_int_equal(smp_file_read(lock_path, 1000, &text, &bytes), SMP_OK);
    smp__folder_lock_release(lock);
    snprintf(line, sizeof line, "\n%s ", key);
    const char *at = strstr(text, line);
    assert_non_null(at);
    at += strlen(line);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, value, strchr(at, '\n'));
    assert_int_equal(smp_file_write(lock_path, changed, strlen(changed)), SMP_OK);
    free(text);
}

/* A process that takes the directory and then waits to be killed. */
static pid_t start_holder(void)
{
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        smp__folder_lock *lock = NULL;
        const bool took = smp__folder_lock_take(folder, 0.0, &lock) == SMP_OK;
        if (!took || write(ends[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return child;
}

static void test_lock_taken_once(void **state)
{
    (void)state;
    char who[128];
    smp__folder_lock *lock = take();
    assert_int_equal(strlen(smp__folder_lock_id(lock)), 16);
    assert_true(smp__folder_lock_is_of(lock, folder));
    assert_false(smp__folder_lock_is_of(lock, "/") || smp__folder_lock_is_of(NULL, folder));
    assert_int_equal(smp__folder_lock_check(lock), SMP_OK);
    snprintf(who, sizeof who, ": another job saves there: process %ld on host ", (long)getpid());
    expect_refused(who);
    expect_refused(smp__folder_lock_id(lock));
    set_age(1000); /* a process that is suspended comes back */
    expect_refused(who);
    assert_int_equal(smp__folder_lock_check(lock), SMP_OK);
    smp__folder_lock_release(lock);
    assert_false(there());
    smp__folder_lock_release(NULL);
    smp__folder_lock_release(take());
    assert_int_equal(rmdir(folder), 0);
    expect_refused(".lock: cannot lock the checkpoint directory: No such file or directory");
    assert_int_equal(mkdir(folder, 0777), 0);
}

/* Killed: at once, whether its parent knows or not. */
static void test_lock_of_dead_process(void **state)
{
    (void)state;
    const pid_t child = start_holder();
    expect_refused("another job saves there");
    assert_int_equal(kill(child, SIGKILL), 0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    smp__folder_lock *lock = take(); /* it is a zombie */
    smp__folder_lock_release(lock);
    assert_int_equal(waitpid(child, NULL, 0), child);
    const pid_t second = start_holder();
    assert_int_equal(kill(second, SIGKILL), 0);
    assert_int_equal(waitpid(second, NULL, 0), second);
    assert_true(there());
    smp__folder_lock_release(take());
    write_lock("start", "1"); /* its number is another process's by now */
    smp__folder_lock_release(take());
}

/* One that is about to end is waited for. */
static void test_lock_patience(void **state)
{
    (void)state;
    smp__folder_lock *lock = NULL;
    const pid_t child = start_holder(), killer = fork();
    if (killer == 0) {
        for (int i = 0; i < 20; i++)
            nap();
        _exit(kill(child, SIGKILL));
    }
    assert_int_equal(smp__folder_lock_take(folder, 30.0, &lock), SMP_OK);
    smp__folder_lock_release(lock);
    assert_int_equal(waitpid(killer, NULL, 0), killer);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

/* What cannot be seen from here counts as long as it is renewed. */
static void test_lock_lease(void **state)
{
    (void)state;
    static const char *const others[][2] = {
        {"host", "elsewhere"}, {"boot", "0-1-2"}, {"space", "pid:[1]"}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        write_lock(others[i][0], others[i][1]);
        expect_refused("; should that be dead, its lock ends in 60 s; choose another directory");
        set_age(SMP__LOCK_LEASE_S - 10);
        expect_refused("ends in 10 s");
        set_age(SMP__LOCK_LEASE_S + 1);
        smp__folder_lock_release(take());
    }
    write_lock("host", "elsewhere");
    expect_refused(" on host elsewhere (job ");
}

/* Of what is no lock nothing is shown. */
static void test_lock_unreadable(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "secret", "SMP lock 1\nhost secret\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_int_equal(smp_file_write(lock_path, texts[i], strlen(texts[i])), SMP_OK);
        expect_refused("another job saves there: somebody holds .lock");
        assert_null(strstr(smp_last_error(), "secret"));
        set_age(SMP__LOCK_LEASE_S + 1);
        smp__folder_lock_release(take());
    }
    assert_int_equal(mkdir(lock_path, 0777), 0);
    expect_refused(".lock: cannot lock the checkpoint directory: Is a directory");
    assert_int_equal(rmdir(lock_path), 0);
    assert_int_equal(symlink("/dev/null", lock_path), 0);
    expect_refused(".lock: cannot lock the checkpoint directory: Too many levels of symbolic");
}

static void test_lock_renewed(void **state)
{
    (void)state;
    struct stat info;
    struct timespec now;
    smp__folder_lock *lock = take();
    smp__folder_lock_keep(lock, 0.02);
    set_age(1000);
    int i = 0;
    do {
        nap();
        assert_int_equal(stat(lock_path, &info), 0);
        clock_gettime(CLOCK_REALTIME, &now);
    } while (now.tv_sec - info.st_mtim.tv_sec > 100 && i++ < 1000);
    assert_true(i < 1000);
    smp__folder_lock_release(lock);
    lock = take();
    set_age(1000);
    assert_int_equal(smp__folder_lock_check(lock), SMP_OK); /* who saves renews it, too */
    assert_int_equal(stat(lock_path, &info), 0);
    assert_true(now.tv_sec - info.st_mtim.tv_sec < 100);
    smp__folder_lock_keep(lock, 1000.0); /* its end does not wait for the next time */
    smp__folder_lock_release(lock);
}

static void test_lock_lost(void **state)
{
    (void)state;
    smp__folder_lock *lock = take();
    char aside[128];
    snprintf(aside, sizeof aside, "%s.aside", lock_path);
    assert_int_equal(rename(lock_path, aside), 0);
    const pid_t child = fork();
    if (child == 0) { /* who took it by mistake puts it back */
        for (int i = 0; i < 10; i++)
            nap();
        _exit(rename(aside, lock_path));
    }
    assert_int_equal(smp__folder_lock_check(lock), SMP_OK);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(unlink(lock_path), 0);
    assert_int_equal(smp__folder_lock_check(lock), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), ".lock is no longer this job's (No such file"));
    smp__folder_lock *second = take();
    assert_int_equal(smp__folder_lock_check(lock), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "another job saves there by now: process "));
    assert_non_null(strstr(smp_last_error(), smp__folder_lock_id(second)));
    smp__folder_lock_drop(lock);
    smp__folder_lock_release(lock);
    assert_int_equal(smp__folder_lock_check(second), SMP_OK); /* it was not theirs to remove */
    smp__folder_lock_drop(second);
    assert_false(there());
    smp__folder_lock_release(second);
    smp__folder_lock_drop(NULL);
}

/* Takes when `go` closes; then says whether it has the lock, and waits. */
static pid_t start_taker(const int go[2], const int told[2], const int end[2])
{
    const pid_t child = fork();
    if (child != 0)
        return child;
    char byte;
    smp__folder_lock *lock = NULL;
    close(go[1]);
    close(end[1]);
    while (read(go[0], &byte, 1) > 0)
        ;
    const bool took = smp__folder_lock_take(folder, 0.0, &lock) == SMP_OK;
    if (write(told[1], took ? "y" : "n", 1) != 1 || read(end[0], &byte, 1) != 0)
        _exit(2);
    _exit(took && smp__folder_lock_check(lock) == SMP_OK); /* when all have tried */
}

/* Of many that find a lock whose holder is gone one gets it. */
static void test_lock_many_takers(void **state)
{
    (void)state;
    enum { TAKERS = 8, ROUNDS = 20 };
    write_lock("start", "1");
    for (int round = 0; round < ROUNDS; round++) {
        pid_t child[TAKERS];
        int go[2], told[2], end[2], winners = 0;
        char byte;
        assert_true(pipe(go) == 0 && pipe(told) == 0 && pipe(end) == 0);
        for (int i = 0; i < TAKERS; i++)
            child[i] = start_taker(go, told, end);
        close(go[1]);
        for (int i = 0; i < TAKERS; i++)
            assert_int_equal(read(told[0], &byte, 1), 1);
        close(end[1]);
        for (int i = 0; i < TAKERS; i++) {
            int how;
            assert_int_equal(waitpid(child[i], &how, 0), child[i]);
            assert_true(WIFEXITED(how) && WEXITSTATUS(how) < 2);
            winners += WEXITSTATUS(how);
        }
        assert_int_equal(winners, 1);
        assert_true(there()); /* of a holder that is gone again */
        close(go[0]);
        close(end[0]);
        close(told[0]);
        close(told[1]);
    }
}

/* Where files have one name each. */
static void test_lock_without_links(void **state)
{
    (void)state;
    link_error = EPERM;
    smp__folder_lock *lock = take();
    expect_refused("another job saves there: process ");
    assert_int_equal(smp__folder_lock_check(lock), SMP_OK);
    smp__folder_lock_release(lock);
    assert_false(there());
    link_error = EIO;
    expect_refused(".lock: cannot lock the checkpoint directory: Input/output error");
    assert_false(there());
}

/* What takers left that were killed, not what one has just written. */
static void test_lock_old_files(void **state)
{
    (void)state;
    char old[128], new[128];
    const struct timespec past[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    snprintf(old, sizeof old, "%s.0123456789abcdef", lock_path);
    snprintf(new, sizeof new, "%s.fedcba9876543210.old", lock_path);
    assert_int_equal(smp_file_write(old, "x", 1), SMP_OK);
    assert_int_equal(smp_file_write(new, "x", 1), SMP_OK);
    assert_int_equal(utimensat(AT_FDCWD, old, past, 0), 0);
    smp__folder_lock_release(take());
    assert_int_equal(access(old, F_OK), -1);
    assert_int_equal(unlink(new), 0);
}

/* The lock is whole: who comes next can read whose it is. */
static void test_lock_disturbed_writes(void **state)
{
    (void)state;
    disturbed_writes = 8;
    smp__folder_lock *lock = take();
    assert_int_equal(disturbed_writes, 0);
    expect_refused(smp__folder_lock_id(lock));
    smp__folder_lock_release(lock);
    assert_false(there());
}

/* Locks of different names do not know of each other; who does not get one learns when it may. */
static void test_lock_beside(void **state)
{
    static const char name[] = ".other";
    smp__folder_lock *own = take(), *other = NULL, *third = NULL;
    double left_s = 0.0;
    (void)state;
    assert_int_equal(smp__folder_lock_take_as(folder, name, 0.0, &left_s, &other), SMP_OK);
    assert_int_equal(smp__folder_lock_check(own), SMP_OK);
    assert_int_equal(smp__folder_lock_check(other), SMP_OK);
    assert_int_equal(smp__folder_lock_take_as(folder, name, 0.0, &left_s, &third), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "holds .other;"));
    assert_true(left_s == 0.0);
    smp__folder_lock_release(other);
    assert_true(there());
    smp__folder_lock_release(own);
    assert_false(there());
    write_lock("host", "elsewhere");
    set_age(20.0);
    assert_int_equal(smp__folder_lock_take_as(folder, SMP__SAVE_LOCK, 0.0, &left_s, &third),
                     SMP_ERR_INPUT);
    assert_true(left_s > 35.0 && left_s <= 41.0);
    assert_int_equal(smp__folder_lock_take_as("/absent", name, 0.0, &left_s, &third),
                     SMP_ERR_INPUT);
    assert_true(left_s == -1.0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(test_lock_##name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(taken_once), TEST(of_dead_process),  TEST(patience),
        TEST(lease),      TEST(unreadable),       TEST(renewed),
        TEST(lost),       TEST(many_takers),      TEST(without_links),
        TEST(old_files),  TEST(disturbed_writes), TEST(beside),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

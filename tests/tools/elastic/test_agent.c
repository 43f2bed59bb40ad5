/* The agent of a host, through its lines: it watches, ends orphans and nobody else, survives what
 * is no line of the language, tells of states of any number of parts, holds what is kept when it is
 * alone, and leaves when a later one comes. And the other side, which survives what no agent says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/checkpoint/heartbeat.h"
#include "graph/base/clock.h"
#include "tests/tools/scratch_folder.h"
#include "tools/elastic/hosts/agent.h"
#include "tools/elastic/hosts/agent_link.h"

static char keep[300];

/* An agent in a process of its own. */
typedef struct talk {
    pid_t pid;
    int to, from;
} talk;

static talk start_agent(const char *keep_for)
{
    int in[2], out[2];
    talk t = {0};
    assert_int_equal(pipe(in), 0);
    assert_int_equal(pipe(out), 0);
    t.pid = fork();
    assert_true(t.pid >= 0);
    if (t.pid == 0) {
        char *argv[] = {"smp-run", SMP__AGENT_WORD, keep, "0", (char *)(uintptr_t)keep_for, "cpu",
                        NULL};
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        close(in[1]);
        close(out[0]);
        _exit(smp__agent(6, argv));
    }
    close(in[0]);
    close(out[1]);
    t.to = in[1];
    t.from = out[0];
    return t;
}

static void say(const talk *t, const char *line)
{
    assert_int_equal(write(t->to, line, strlen(line)), (ssize_t)strlen(line));
}

/* The next line that begins so; others are passed over. */
static void expect_line(const talk *t, const char *begins, char line[SMP__AGENT_LINE])
{
    const double until_s = smp_clock_s() + 10.0;
    for (size_t n = 0; smp_clock_s() < until_s;) {
        if (read(t->from, line + n, 1) != 1)
            break;
        if (line[n] != '\n' && n < SMP__AGENT_LINE - 1) {
            n++;
            continue;
        }
        line[n] = '\0';
        n = 0;
        if (strncmp(line, begins, strlen(begins)) == 0)
            return;
    }
    fail_msg("no line '%s'", begins);
}

static void expect_end(const talk *t)
{
    int status = -1;
    assert_int_equal(waitpid(t->pid, &status, 0), t->pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(t->to);
    close(t->from);
}

static bool is_there(const char *suffix)
{
    char path[400];
    snprintf(path, sizeof path, "%s%s", keep, suffix);
    return access(path, F_OK) == 0;
}

/* A process that beats in a folder as rank 1 of 2, until it is killed. */
static pid_t start_rank_in(const char *where)
{
    const pid_t child = fork();
    if (child == 0) {
        smp__heartbeat *beat = NULL;
        for (int file = STDERR_FILENO + 1; file < 256; file++)
            close(file); /* ends of pipes, which the agent is to find closed */
        const int directory = open(where, O_RDONLY | O_DIRECTORY);
        if (smp__heartbeat_start(directory, 1, 2, &beat) != SMP_OK)
            _exit(1);
        smp__heartbeat_step(beat, 7, 0.1);
        for (;;)
            pause();
    }
    return child;
}

static pid_t start_rank(void)
{
    return start_rank_in(keep);
}

static bool lives(pid_t process)
{
    return waitpid(process, NULL, WNOHANG) == 0;
}

static void end(pid_t process)
{
    kill(process, SIGKILL);
    waitpid(process, NULL, 0);
}

static void test_agent_watches(void **state)
{
    char line[SMP__AGENT_LINE], expected[64];
    int status = 0;
    (void)state;
    assert_int_equal(mkdir(keep, 0700), 0);
    talk t = start_agent("60");
    expect_line(&t, SMP__AGENT_HELLO, line);
    assert_true(strlen(line) > strlen(SMP__AGENT_HELLO));
    say(&t, "watch 1 0\nwatch 1 -3\nwatch 1 99999999\nkill 5\nkill -1\nkill\nput 1\nput zz 1 "
            "a\n\n\x01\n");
    say(&t, "watch 4 2\n");
    expect_line(&t, "ready", line);
    assert_string_equal(line, "ready 4 0");
    assert_true(is_there("-mpi"));
    const pid_t rank = start_rank();
    snprintf(expected, sizeof expected, "rank 1 %d 1 7 ", (int)rank);
    expect_line(&t, expected, line);
    say(&t, "kill 1\n");
    snprintf(expected, sizeof expected, "rank 1 %d 0 7 ", (int)rank);
    expect_line(&t, expected, line);
    assert_int_equal(waitpid(rank, &status, 0), rank);
    assert_int_equal(WTERMSIG(status), SIGKILL);
    say(&t, "states\n");
    expect_line(&t, "states", line);
    say(&t, "put 1 1 nowhere/at/all\n");
    expect_line(&t, "failed 0", line);
    say(&t, "remove\n");
    expect_line(&t, "removed", line);
    assert_false(is_there(""));
    say(&t, "end\n");
    expect_end(&t);
    assert_false(is_there("-agent") || is_there("-mpi"));
}

static void test_agent_ends_orphans(void **state)
{
    char line[SMP__AGENT_LINE];
    int status = 0;
    (void)state;
    assert_int_equal(mkdir(keep, 0700), 0);
    talk t = start_agent("60");
    expect_line(&t, SMP__AGENT_HELLO, line);
    say(&t, "watch 1 2\n");
    expect_line(&t, "ready 1 ", line);
    const pid_t rank = start_rank();
    expect_line(&t, "rank 1 ", line);
    /* A later one comes: the first leaves, and what it watched is an orphan. */
    talk later = start_agent("0.1");
    expect_line(&later, SMP__AGENT_HELLO, line);
    assert_int_equal(waitpid(rank, &status, 0), rank);
    expect_end(&t);
    assert_true(is_there("") && is_there("-agent"));
    /* Alone, it kills its ranks, holds what is kept, and then removes it. */
    say(&later, "watch 2 2\n");
    expect_line(&later, "ready 2 ", line);
    const pid_t second = start_rank();
    expect_line(&later, "rank 1 ", line);
    close(later.to);
    assert_int_equal(waitpid(second, &status, 0), second);
    later.to = open("/dev/null", O_WRONLY);
    expect_end(&later);
    assert_false(is_there("") || is_there("-agent") || is_there("-mpi"));
}

/* What it says of ranks until it beats. */
static void expect_no_rank(const talk *t)
{
    char line[SMP__AGENT_LINE];
    expect_line(t, "beat", line); /* said before it looked */
    for (int i = 0; i < 3; i++) {
        expect_line(t, "", line);
        assert_string_equal(line, "beat");
    }
}

/* Beats in a folder that is a link, or that others may write to, name nobody. */
static void test_agent_spares_others(void **state)
{
    char line[SMP__AGENT_LINE], elsewhere[300], beat[320];
    (void)state;
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", folder);
    snprintf(beat, sizeof beat, "%s/" SMP__BEAT_NAME "1", elsewhere);
    assert_int_equal(mkdir(elsewhere, 0700), 0);
    const pid_t rank = start_rank_in(elsewhere);
    while (access(beat, F_OK) != 0)
        usleep(1000);
    for (int links = 0; links < 2; links++) {
        if (links) {
            assert_int_equal(symlink(elsewhere, keep), 0);
        } else {
            assert_int_equal(rename(elsewhere, keep), 0);
            assert_int_equal(chmod(keep, 0770), 0);
        }
        talk t = start_agent("60");
        expect_line(&t, SMP__AGENT_HELLO, line);
        say(&t, "watch 1 2\n");
        expect_line(&t, "ready 1 ", line);
        expect_no_rank(&t);
        assert_true(lives(rank));
        say(&t, "end\n");
        expect_end(&t);
        if (links) {
            assert_int_equal(remove(keep), 0);
        } else {
            assert_int_equal(chmod(keep, 0700), 0);
            assert_int_equal(rename(keep, elsewhere), 0);
        }
    }
    end(rank);
    assert_int_equal(remove(beat), 0);
    assert_int_equal(rmdir(elsewhere), 0);
}

/* Left alone it ends its own ranks; those of another job, which it does not watch, go on. */
static void test_agent_alone_spares_others(void **state)
{
    char line[SMP__AGENT_LINE];
    (void)state;
    assert_int_equal(mkdir(keep, 0700), 0);
    talk t = start_agent("0.1");
    expect_line(&t, SMP__AGENT_HELLO, line);
    const pid_t rank = start_rank();
    while (!is_there("/" SMP__BEAT_NAME "1"))
        usleep(1000);
    close(t.to);
    t.to = open("/dev/null", O_WRONLY);
    expect_end(&t);
    assert_true(lives(rank));
    end(rank);
    assert_false(is_there("") || is_there("-agent"));
}

/* An agent whose streams a link has. */
static smp__agent_link link_to(const talk *t)
{
    smp__agent_link link = SMP__NO_LINK;
    link.child.in = t->to;
    link.child.out = t->from;
    fcntl(t->from, F_SETFL, O_NONBLOCK);
    return link;
}

static void ignore_rank(void *of, const smp__told_rank *rank)
{
    (void)of;
    (void)rank;
}

/* A state of 100,000 parts, as of 1,000 weights with two moments on 33 ranks that are no
 * neighbours: 2.7 MB of text. */
static void test_agent_tells_many_parts(void **state)
{
    enum { PARTS = 100000 };
    char path[400];
    smp__kept_state kept = {.id = 7, .branch = 1, .step = 9, .bytes = INT64_C(1000000000000)};
    const double until_s = smp_clock_s() + 10.0;
    (void)state;
    for (int64_t i = 0; i < PARTS; i++)
        assert_int_equal(
            smp__spans_add(&kept.spans, 999000000000 + 16 * i, 999000000000 + 16 * i + 8), SMP_OK);
    assert_int_equal(mkdir(keep, 0700), 0);
    snprintf(path, sizeof path, "%s/ranges-0", keep);
    const int ranges = open(path, O_RDWR | O_CREAT, 0600);
    assert_int_equal(smp__kept_index_write(ranges, &kept, true, path), SMP_OK);
    close(ranges);
    snprintf(path, sizeof path, "%s/place-0", keep);
    const int place = open(path, O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(place, kept.bytes), 0);
    close(place);
    talk t = start_agent("60");
    smp__agent_link link = link_to(&t);
    smp__agent_link_say(&link, "states");
    while (!link.told_states && smp_clock_s() < until_s) {
        if (!smp__agent_link_hear(&link, ignore_rank, NULL))
            fail_msg("%s", link.why);
        usleep(1000);
    }
    assert_int_equal(link.n_states, 1);
    assert_true(smp__kept_same(&link.states[0], &kept));
    assert_int_equal(link.states[0].spans.n, PARTS);
    assert_memory_equal(link.states[0].spans.at, kept.spans.at, PARTS * sizeof(smp__span));
    smp__agent_link_say(&link, "remove");
    smp__agent_link_say(&link, "end");
    link.child.in = link.child.out = -1; /* the test's */
    smp__agent_link_leave(&link);
    fcntl(t.from, F_SETFL, 0);
    expect_end(&t);
    smp__kept_state_free(&kept);
    assert_false(is_there(""));
}

/* Where nothing can be put in order no ranks are asked for. */
static void test_agent_refuses(void **state)
{
    static const char *const suffix[] = {"-agent", "-mpi"};
    char line[SMP__AGENT_LINE], path[400];
    (void)state;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s%s", keep, suffix[i]);
        assert_int_equal(symlink("elsewhere", path), 0);
        talk t = start_agent("60");
        expect_line(&t, "failed 0 ", line);
        expect_end(&t);
        assert_int_equal(remove(path), 0);
    }
}

static void count_rank(void *of, const smp__told_rank *rank)
{
    *(int *)of += rank->rank >= 0;
}

/* What a shell prints is heard as what an agent says: whether it may go on, and how many ranks. */
static void expect_heard(const char *printed, bool right, int ranks)
{
    char command[512];
    int heard = 0;
    bool open = true;
    smp__agent_link link;
    snprintf(command, sizeof command, "printf '%s'; exec sleep 10", printed);
    char *argv[] = {"/bin/sh", "-c", command, NULL};
    assert_int_equal(smp__agent_link_open(argv, false, &link), SMP_OK);
    for (int i = 0; i < 200 && open && (i < 40 || heard < ranks); i++) {
        open = smp__agent_link_hear(&link, count_rank, &heard);
        usleep(2000);
    }
    assert_int_equal(open, right);
    assert_int_equal(heard, ranks);
    assert_true(right || link.why[0] != '\0');
    smp__agent_link_cut(&link);
}

static void test_link_survives(void **state)
{
    (void)state;
    expect_heard("smp-agent 2 a, b\\nrank 0 7 1 3 0\\nbeat\\nrank 999999999 1 1 1 nan\\n", true, 2);
    expect_heard("smp-agent 2 a\\nrank 0 7", true, 0); /* not a whole line */
    expect_heard("smp-agent 3 a\\n", false, 0);
    expect_heard("Welcome to the machine\\n", false, 0);
    expect_heard("smp-agent 2 a\\nrank x\\n", false, 0);
    expect_heard("smp-agent 2 a\\nstate 1 2\\n", false, 0);
    expect_heard("smp-agent 2 a\\nmore 0000000000000\\nstate 0aa 1 7 3 0 10 1 0 1 0-5\\nbeat\\n",
                 true, 0);
    expect_heard("smp-agent 2 a\\nmore 0000000000000\\nmore 0aa 1 7\\nstate\\nbeat\\n", false, 0);
    expect_heard("beat\\n", false, 0);
    expect_heard("\\000\\n", false, 0);
    expect_heard("failed 0 out of order\\n", true, 0);
}

static int set_up(void **state)
{
    if (make_folder(state) != 0)
        return -1;
    snprintf(keep, sizeof keep, "%s/keep", folder);
    signal(SIGPIPE, SIG_IGN);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agent_watches),
        cmocka_unit_test(test_agent_ends_orphans),
        cmocka_unit_test(test_agent_spares_others),
        cmocka_unit_test(test_agent_alone_spares_others),
        cmocka_unit_test(test_agent_tells_many_parts),
        cmocka_unit_test(test_agent_refuses),
        cmocka_unit_test(test_link_survives),
    };
    return cmocka_run_group_tests(tests, set_up, remove_folder);
}

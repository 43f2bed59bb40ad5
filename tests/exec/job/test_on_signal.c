/* The message of a rank that is ended from outside, also in the moment in which the handler
 * goes. */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/job/on_signal.h"
#include "exec/state/handle.h"

static bool signal_first; /* SIGTERM comes just before the handler is changed */

/* Stands in front of the C library's. */
int sigaction(int number, const struct sigaction *action, struct sigaction *old)
{
    int (*next)(int, const struct sigaction *, struct sigaction *);
    *(void **)&next = dlsym(RTLD_NEXT, "sigaction");
    if (signal_first && number == SIGTERM) {
        signal_first = false;
        raise(SIGTERM);
    }
    return next(number, action, old);
}

static void raise_in_step(smp *job)
{
    smp__on_signal(job, false);
    raise(SIGTERM);
}

static void raise_between_steps(smp *job)
{
    smp__place_doing(job->place, "saving a checkpoint");
    smp__on_signal(job, false);
    raise(SIGTERM);
}

static void raise_in_group(smp *job)
{
    smp of_group = *job;
    of_group.comm->tensor_size = 4;
    of_group.comm->tensor_rank = 3;
    smp__on_signal(&of_group, false);
    raise(SIGTERM);
}

static void raise_while_handler_goes(smp *job)
{
    smp__on_signal(job, false);
    signal_first = true;
    smp__on_signal(NULL, false);
}

static void raise_afterwards(smp *job)
{
    smp__on_signal(job, false);
    smp__on_signal(NULL, false);
    raise(SIGTERM);
}

/* A rank of this machine that has gone: a process that was there. */
static int gone_process(void)
{
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    return (int)child;
}

static void raise_to_save(smp *job, int number, int other)
{
    smp saving = *job;
    saving.comm->node_pid = (int[]){(int)getpid(), other};
    saving.comm->node_size = 2;
    smp__on_signal(&saving, true);
    raise(number);
    if (*smp__signal_asked() == number)
        _exit(42);
}

static void ask_to_end(smp *job)
{
    raise_to_save(job, SIGTERM, (int)getppid());
}

static void ask_after_a_death(smp *job)
{
    raise_to_save(job, SIGUSR1, gone_process());
}

static void end_after_a_death(smp *job)
{
    raise_to_save(job, SIGTERM, gone_process());
}

static void ask_before_there_is_a_job(smp *job)
{
    smp__on_signal(NULL, true);
    raise(SIGUSR1);
    smp__on_signal(job, true);
    if (*smp__signal_asked() == SIGUSR1)
        _exit(42);
}

enum { MARK = 0x5a };

static unsigned char small_stack[32 * 1024];

static void send_one(void)
{
    kill(getpid(), SIGUSR1);
}

static void send_on_small_stack(void)
{
    static ucontext_t back, there;
    memset(small_stack, MARK, sizeof small_stack);
    getcontext(&there);
    there.uc_stack = (stack_t){.ss_sp = small_stack, .ss_size = sizeof small_stack};
    there.uc_link = &back;
    makecontext(&there, send_one, 0);
    swapcontext(&back, &there);
}

/* What is below the stack pointer is not the handler's: see use_other_stack. */
static void ask_from_another_stack(smp *job)
{
    enum { CALL_BYTES = 1024 }; /* the kernel's frame alone has more */
    size_t untouched = 0;
    smp__on_signal(job, true);
    kill(getpid(), 0); /* the linker finds the call on this stack */
    send_on_small_stack();
    while (untouched < sizeof small_stack && small_stack[untouched] == MARK)
        untouched++;
    if (*smp__signal_asked() == SIGUSR1 && sizeof small_stack - untouched < CALL_BYTES)
        _exit(42);
}

/* How a process ends that does this, and what it says. */
static int end_of(void (*act)(smp *job), char *text, size_t size)
{
    int stage = 5, ends[2], status = 0;
    smp job = {.comm = &(smp_comm){.world_rank = 3, .replica = 1, .pipeline_rank = 2},
               .work = &(smp__work){.chunks = 1, .stage_of_chunk = &stage},
               .step = 41};
    assert_int_equal(smp__place_open(&job.place), SMP_OK);
    smp__place_action(job.place, &(smp_action){SMP_ACTION_B, .chunk = 0, .microbatch = 7});
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGSEGV, SIG_DFL); /* a sanitiser would handle it */
        act(&job);
        _exit(99);
    }
    close(ends[1]);
    ssize_t n = read(ends[0], text, size - 1);
    text[n > 0 ? n : 0] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    smp__place_close(job.place);
    return status;
}

static const char expected[] = "smp-run: the job was ended: rank 3 (replica 1, pipeline rank 2, "
                               "stage 5, micro-batch 7) was at action B of step 42\n";

static void test_on_signal_says_where_the_rank_was(void **state)
{
    char text[512];
    (void)state;
    int status = end_of(raise_in_step, text, sizeof(text));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_string_equal(text, expected);
}

static void test_on_signal_says_which_device_of_a_group(void **state)
{
    char text[512];
    (void)state;
    end_of(raise_in_group, text, sizeof(text));
    assert_string_equal(text, "smp-run: the job was ended: rank 3 (replica 1, pipeline rank 2, "
                              "device 3 of 4, stage 5, micro-batch 7) was at action B of step "
                              "42\n");
}

static void test_on_signal_knows_what_is_no_step(void **state)
{
    char text[512];
    (void)state;
    end_of(raise_between_steps, text, sizeof(text));
    assert_string_equal(text, "smp-run: the job was ended: rank 3 (replica 1, pipeline rank 2) was "
                              "saving a checkpoint after step 41\n");
}

static void test_on_signal_speaks_until_the_handler_is_gone(void **state)
{
    char text[512];
    (void)state;
    int status = end_of(raise_while_handler_goes, text, sizeof(text));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_string_equal(text, expected);
}

static void test_on_signal_gives_the_default_back(void **state)
{
    char text[512];
    (void)state;
    int status = end_of(raise_afterwards, text, sizeof(text));
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGTERM);
    assert_string_equal(text, "");
}

/* mpirun ends the survivors of a rank by SIGTERM. */
static void test_on_signal_asks_for_the_end_while_all_live(void **state)
{
    void (*const asks[])(smp * job) = {ask_to_end, ask_after_a_death, ask_before_there_is_a_job};
    char text[512];
    (void)state;
    for (int i = 0; i < 3; i++) {
        int status = end_of(asks[i], text, sizeof(text));
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 42);
        assert_string_equal(text, "");
    }
    int status = end_of(end_after_a_death, text, sizeof(text));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_string_equal(text, expected);
}

static void test_on_signal_writes_nothing_below_the_stack(void **state)
{
    char text[512]; /* a sanitiser's words on contexts */
    (void)state;
    int status = end_of(ask_from_another_stack, text, sizeof(text));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_on_signal_says_where_the_rank_was),
        cmocka_unit_test(test_on_signal_says_which_device_of_a_group),
        cmocka_unit_test(test_on_signal_knows_what_is_no_step),
        cmocka_unit_test(test_on_signal_speaks_until_the_handler_is_gone),
        cmocka_unit_test(test_on_signal_gives_the_default_back),
        cmocka_unit_test(test_on_signal_asks_for_the_end_while_all_live),
        cmocka_unit_test(test_on_signal_writes_nothing_below_the_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

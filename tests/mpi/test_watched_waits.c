/* Every wait of the control plane ends, names the rank that it waits for, and does not mistake a
 * late or suspended rank for one that hangs. A rank that hangs is played by one that leaves out a
 * collective. Run on four ranks. */
#include <mpi.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "exec/job/inspect_job.h"
#include "exec/state/weights.h"
#include "exec/transport/comm.h"
#include "exec/transport/mpi_lifetime.h"

enum { RANKS = 4, SILENT = 2, TEXT_BYTES = 200000 };

static int rank;

static void rest(double seconds)
{
    struct timespec time = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&time, NULL);
}

/* All ranks, with a limit: a rank that waits for ever fails the test. */
static void meet(void)
{
    int done = 0;
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (double end_s = smp_clock_s() + 15.0; !done && smp_clock_s() < end_s; rest(1e-3))
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (!done) {
        fprintf(stderr, "rank %d: the others do not come back\n", rank);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Says why before cmocka ends the rank. */
static void expect_status(smp_status status, smp_status expected)
{
    if (status != expected)
        fprintf(stderr, "rank %d: %s\n", rank, smp_last_error());
    assert_int_equal(status, expected);
}

/* Ranks whose own time-out ended the wait: the others were told. */
static void expect_one_speaker(const smp_comm *comm)
{
    int spoke = rank != SILENT && !comm->told, all = 0;
    MPI_Allreduce(&spoke, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    assert_int_equal(all, 1);
}

static void expect_silent_named(smp_status status)
{
    expect_status(status, SMP_ERR_PEER);
    if (!strstr(smp_last_error(), "; rank 2: no answer")) {
        fprintf(stderr, "rank %d: rank 2 alone is not named: %s\n", rank, smp_last_error());
        fail();
    }
}

static void test_end_of_step_names_the_hung_rank(void **state)
{
    double value = 1.0;
    smp_comm comm;
    (void)state;
    expect_status(smp__comm_open(&comm, (smp_comm_limits){0.5, 15, 15}), SMP_OK);
    if (rank != SILENT) {
        expect_silent_named(smp__comm_sum(&comm, &value, 1));
        const double begin_s = smp_clock_s(); /* who has failed waits for nobody any more */
        expect_status(smp__comm_finish_request(&comm, &comm.collective, "it again"), SMP_ERR_PEER);
        assert_true(smp_clock_s() - begin_s < 5.0);
    }
    meet();
    expect_one_speaker(&comm);
}

/* What was asked of this rank while it did not listen. */
static void forget_questions(void)
{
    char text[SMP_NOTICE_BYTES];
    for (int found = 1; found;) {
        MPI_Status from;
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, &from);
        if (found)
            MPI_Recv(text, sizeof(text), MPI_BYTE, from.MPI_SOURCE, from.MPI_TAG, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
    }
}

/* A rank that does not come at all ends the job, and is named, once. */
static void test_a_job_that_does_not_open_has_failed(void **state)
{
    smp_comm comm;
    MPI_Comm copy;
    MPI_Request request;
    (void)state;
    if (rank == SILENT) {
        rest(4.5);
        MPI_Comm_idup(MPI_COMM_WORLD, &copy, &request);
    } else {
        expect_silent_named(smp__comm_open(&comm, (smp_comm_limits){.start_s = 0.3}));
        assert_true(comm.failed);
        request = comm.collective; /* in flight still */
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    meet();
    expect_one_speaker(&comm);
    forget_questions();
    meet();
}

/* Outside of steps a rank that works is waited for, and no longer once it does not. */
static void test_progress_is_waited_for(void **state)
{
    enum { PIECES = 60 }; /* of 0.05 s */
    smp_comm comm;
    (void)state;
    expect_status(smp__comm_open(&comm, (smp_comm_limits){0.1, 1.0, 0.1}), SMP_OK);
    for (int i = 0; rank == SILENT && i < PIECES; i++) {
        rest(0.05);
        expect_status(smp__comm_answer(&comm), SMP_OK);
    }
    expect_status(smp__comm_agree(&comm, SMP_OK), SMP_OK);
    if (rank != SILENT)
        expect_silent_named(smp__comm_agree(&comm, SMP_OK));
    meet();
    expect_one_speaker(&comm);
}

/* A rank that waits elsewhere is not the one that hangs. */
static void test_who_waits_elsewhere_is_told_apart(void **state)
{
    double value = 1.0;
    smp_comm comm;
    (void)state;
    expect_status(smp__comm_open(&comm, (smp_comm_limits){0.5, 15, 15}), SMP_OK);
    comm.came += rank == 1 ? -1 : 0;
    smp_status status = rank == SILENT ? SMP_OK : smp__comm_sum(&comm, &value, 1);
    if (rank == 0 && !strstr(smp_last_error(), "; rank 2: no answer; rank 1: not there yet")) {
        fprintf(stderr, "rank 1 is not told apart: %s\n", smp_last_error());
        fail();
    }
    assert_int_equal(status, rank == SILENT ? SMP_OK : SMP_ERR_PEER);
    meet();
}

static void expect_agreed(smp_comm *comm, smp_status status, smp_status all, const char *message)
{
    expect_status(smp__comm_agree(comm, status), all);
    assert_string_equal(smp_last_error(), message);
}

/* Whose disk is full? What all of them read is no rank's own. */
static void test_agreed_failures_name_their_rank(void **state)
{
    smp_comm comm;
    smp_status status = SMP_OK;
    (void)state;
    expect_status(smp__comm_open(&comm, (smp_comm_limits){5, 150, 150}), SMP_OK);
    if (rank == SILENT)
        status = smp_fail(SMP_ERR_FAILED, "a full disk");
    expect_agreed(&comm, status, SMP_ERR_FAILED, "rank 2: a full disk");
    expect_agreed(&comm, SMP_ERR_FAILED, SMP_ERR_FAILED, "rank 2: a full disk");
    status = rank == 0 ? smp_fail(SMP_ERR_INPUT, "no such plan") : SMP_OK;
    expect_agreed(&comm, status, SMP_ERR_INPUT, "no such plan");
    smp__comm_close(&comm);
    meet();
}

static smp_status never(void *context, bool *done)
{
    (void)context;
    *done = false;
    return SMP_OK;
}

static void describe(const void *context, char *buffer, size_t size)
{
    (void)context;
    snprintf(buffer, size, "nothing");
}

/* Once all ranks are in the step the clock begins, but not before. When a rank leaves the sum the
 * silent one may have left it a while ago, so three time-outs must do for patience. */
static void test_patience_lasts_until_all_have_entered(void **state)
{
    double value = 1.0, begin_s;
    smp_comm comm;
    (void)state;
    expect_status(smp__comm_open(&comm, (smp_comm_limits){0.3, 9, 9}), SMP_OK);
    if (rank == SILENT)
        rest(1.2);
    smp__comm_enter(&comm);
    expect_status(smp__comm_sum(&comm, &value, 1), SMP_OK);
    assert_true(value == RANKS);
    if (rank == SILENT)
        rest(1.2);
    begin_s = smp_clock_s();
    smp__comm_enter(&comm);
    smp_status status = smp__comm_wait_until(&comm, &(smp_wait){0}, never, describe, NULL);
    expect_status(smp__comm_notify(&comm, status), SMP_ERR_PEER);
    double waited_s = smp_clock_s() - begin_s;
    if (rank != SILENT && (waited_s < 0.9 || waited_s > 1.2 + 0.3 + 4.0))
        fail_msg("gave up after %g s", waited_s);
    meet();
}

/* Half of the ranks hang from the first moment of a step, as a machine does that stands still. They
 * are in it, so nobody is patient with them. */
static void test_who_hangs_in_a_step_is_known_to_be_in_it(void **state)
{
    enum { HANGS_S = 8, LIMIT_S = 6 };
    smp_comm comm;
    (void)state;
    expect_status(smp__comm_open(&comm, (smp_comm_limits){0.3, 9, 9}), SMP_OK);
    double begin_s = smp_clock_s();
    smp__comm_enter(&comm);
    if (rank >= SILENT) {
        rest(HANGS_S);
    } else {
        smp_status status = smp__comm_wait_until(&comm, &(smp_wait){0}, never, describe, NULL);
        expect_status(smp__comm_notify(&comm, status), SMP_ERR_PEER);
        double waited_s = smp_clock_s() - begin_s;
        if (waited_s > LIMIT_S || !strstr(smp_last_error(), "; rank 2, 3: no answer"))
            fail_msg("gave up after %g s: %s", waited_s, smp_last_error());
    }
    meet();
}

/* ... and it is no longer than that, however often the others are asked meanwhile. */
static void test_patience_has_its_end(void **state)
{
    enum { HANGS_S = 9, LIMIT_S = 6 };
    smp_comm comm;
    (void)state;
    expect_status(smp__comm_open(&comm, (smp_comm_limits){0.05, 1.5, 1.5}), SMP_OK);
    double begin_s = smp_clock_s();
    if (rank == SILENT) {
        rest(HANGS_S);
    } else {
        smp__comm_enter(&comm);
        smp_status status = smp__comm_wait_until(&comm, &(smp_wait){0}, never, describe, NULL);
        expect_silent_named(smp__comm_notify(&comm, status));
        double waited_s = smp_clock_s() - begin_s;
        if (waited_s < 1.5 || waited_s > LIMIT_S)
            fail_msg("gave up after %g s", waited_s);
    }
    meet();
}

/* Is done after one and a half seconds, in most of which the process does not run. */
static smp_status suspend(void *context, bool *done)
{
    int *calls = context;
    ++*calls;
    if (*calls > 230 && *calls <= 232)
        rest(0.7);
    *done = *calls > 240;
    return SMP_OK;
}

static void test_suspended_time_does_not_count(void **state)
{
    smp_comm comm;
    int n_call = 0;
    (void)state;
    expect_status(smp__comm_open(&comm, (smp_comm_limits){1, 30, 30}), SMP_OK);
    smp_status status = smp__comm_wait_until(&comm, &(smp_wait){0}, suspend, describe, &n_call);
    expect_status(status, SMP_OK);
    smp__comm_close(&comm);
    meet();
}

/* What smp__comm_broadcast does on the other ranks, slowly: MPI takes the text long after rank 0
 * has given up. */
static void receive_late(smp_comm *comm, const char *expected)
{
    char *text = malloc(TEXT_BYTES);
    long long bytes = 0;
    int first = RANKS;
    MPI_Request request;
    assert_non_null(text);
    MPI_Ibcast(&bytes, 1, MPI_LONG_LONG, 0, comm->world, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    assert_int_equal(bytes, TEXT_BYTES);
    MPI_Iallreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, comm->world, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    rest(2.5);
    MPI_Ibcast(text, TEXT_BYTES, MPI_BYTE, 0, comm->world, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    assert_memory_equal(text, expected, TEXT_BYTES);
    free(text);
}

static void test_a_failed_broadcast_leaves_the_text_to_the_caller(void **state)
{
    char *text = malloc(TEXT_BYTES), *expected = malloc(TEXT_BYTES);
    size_t bytes = TEXT_BYTES;
    smp_comm comm;
    (void)state;
    assert_non_null(text);
    assert_non_null(expected);
    for (int i = 0; i < TEXT_BYTES; i++)
        text[i] = expected[i] = (char)('a' + i % 23);
    expect_status(smp__comm_open(&comm, (smp_comm_limits){0.03, 0.9, 0.9}), SMP_OK);
    if (rank == 0) {
        expect_status(smp__comm_broadcast(&comm, &text, &bytes), SMP_ERR_PEER);
        memset(text, '?', TEXT_BYTES); /* as whatever comes to lie there after free */
        MPI_Wait(&comm.collective, MPI_STATUS_IGNORE);
    } else {
        receive_late(&comm, expected);
    }
    free(text);
    free(expected);
    meet();
}

static smp_status get_weight(smp *s)
{
    static float values[128 * 1024];
    int64_t n = smp_weight_elements(s, 0);
    assert_true(n <= (int64_t)(sizeof(values) / sizeof(*values)));
    return smp_weight_get(s, smp_weight_name(s, 0), values, n);
}

static smp_status hash_weights(smp *s)
{
    uint64_t hash;
    return smp_weights_hash(s, &hash);
}

static smp_status write_trace(smp *s)
{
    return smp_trace_write(s, "/dev/null");
}

/* Calls between steps, and after how many agreements the silent rank hangs. */
static const struct {
    smp_status (*call)(smp *s);
    int agreements;
} calls[] = {
    {get_weight, 1},
    {hash_weights, 1},
    {write_trace, 2},
};

static void test_calls_between_steps_are_watched(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        smp *s = NULL;
        smp_options options = smp_options_default();
        options.model = SMP_SOURCE_DIR "/examples/mlp.yaml";
        options.planning.stages = RANKS; /* so that every collective is one of all ranks */
        options.planning.ddp = 1;
        options.planning.chunks = 1;
        options.planning.schedule = "1f1b";
        options.runtime.record_trace = 1;
        expect_status(smp_init(&s, &options), SMP_OK);
        s->comm->limit = (smp_comm_limits){0.05, 1.5, 1.5};
        if (rank == SILENT) {
            for (int k = 0; k < calls[i].agreements; k++)
                expect_status(smp__comm_agree(s->comm, SMP_OK), SMP_OK);
        } else {
            smp_status status = calls[i].call(s);
            expect_silent_named(status);
            smp_finalize(s);
        }
        meet();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_end_of_step_names_the_hung_rank),
        cmocka_unit_test(test_a_job_that_does_not_open_has_failed),
        cmocka_unit_test(test_progress_is_waited_for),
        cmocka_unit_test(test_who_waits_elsewhere_is_told_apart),
        cmocka_unit_test(test_agreed_failures_name_their_rank),
        cmocka_unit_test(test_patience_lasts_until_all_have_entered),
        cmocka_unit_test(test_who_hangs_in_a_step_is_known_to_be_in_it),
        cmocka_unit_test(test_patience_has_its_end),
        cmocka_unit_test(test_suspended_time_does_not_count),
        cmocka_unit_test(test_a_failed_broadcast_leaves_the_text_to_the_caller),
        cmocka_unit_test(test_calls_between_steps_are_watched),
    };
    setenv("CMOCKA_TEST_ABORT", "1",
           1); /* else the other ranks would wait for the one that failed */
    expect_status(smp__mpi_open(), SMP_OK);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    if (failures > 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}

/* The calls of a program over groups of ranks, beside what plain MPI says: every group of a job
 * with stages, replicas and tensor parallelism, arrays shorter and longer than a piece, calls that
 * do not match, a rank that fails and one that hangs. On 1, 2, 4 and 8 ranks; with the argument
 * `die` a rank dies while the others wait for it. */
#include <limits.h>
#include <time.h>

#include "tests/mpi/ranks.h"

static const char model[] =
    "smp: 1\n"
    "inputs: {x: {dtype: float32, shape: [8]}, y: {dtype: float32, shape: [8]}}\n"
    "ops:\n"
    "  - {op: linear, name: a, in: x, out: h, features: 16}\n"
    "  - {op: gelu, name: b, in: h, out: h}\n"
    "  - {op: linear, name: c, in: h, out: h, features: 16}\n"
    "  - {op: gelu, name: d, in: h, out: h}\n"
    "  - {op: linear, name: e, in: h, out: h, features: 8}\n"
    "  - {op: mse, name: loss, in: [h, y], out: loss}\n"
    "loss: loss\n";

enum { MOST = 8, LONG_BYTES = 3 * SMP_SHARE_BYTES + 5, LONG_VALUES = 100003 };

static const smp_group groups[] = {SMP_WORLD, SMP_PIPELINE, SMP_DDP, SMP_TENSOR};
enum { GROUPS = sizeof groups / sizeof *groups };

static smp *open_groups(void)
{
    const int tensor = world_size == 8 ? 2 : 1, stages = world_size > 1 ? 2 : 1;
    const int ddp = world_size / (tensor * stages);
    smp_options options =
        options_of(model_path(model),
                   (cut){.stages = stages, .ddp = ddp, .microbatches = 2, .batch = 2, .chunks = 1});
    options.planning.tensor = tensor;
    smp *job = open_job(&options);
    assert_int_equal(smp_size(job, SMP_TENSOR), tensor);
    assert_int_equal(smp_size(job, SMP_PIPELINE), stages);
    return job;
}

/* The world's ranks of this rank's group, by rising rank in it, as MPI knows them: those that agree
 * in the other two numbers. */
static int members_of(const smp *job, smp_group group, int *member)
{
    int own[GROUPS], all[MOST][GROUPS];
    for (int g = 0; g < GROUPS; g++)
        own[g] = smp_rank(job, groups[g]);
    MPI_Allgather(own, GROUPS, MPI_INT, all, GROUPS, MPI_INT, MPI_COMM_WORLD);
    int n = 0;
    for (int rank = 0; rank < world_size; rank++) {
        bool in = true;
        for (int g = 1; g < GROUPS; g++)
            in = in && (group == SMP_WORLD || group == groups[g] || all[rank][g] == own[g]);
        if (!in)
            continue;
        assert_int_equal(all[rank][group], n);
        member[n++] = rank;
    }
    assert_int_equal(n, smp_size(job, group));
    return n;
}

static unsigned char byte_of(int rank, int64_t i)
{
    return (unsigned char)(31 * rank + 7 * i + i / 251);
}

static void test_arrays_reach_the_group(void **state)
{
    static const int64_t lengths[] = {0, 1, 1000, LONG_BYTES};
    unsigned char *own = malloc(LONG_BYTES), *all = malloc((size_t)world_size * LONG_BYTES);
    smp *job = open_groups();
    (void)state;
    assert_non_null(own);
    assert_non_null(all);
    for (int g = 0; g < GROUPS; g++) {
        int member[MOST];
        const int n = members_of(job, groups[g], member);
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            const int64_t length = lengths[l];
            for (int root = 0; root < n; root++) {
                for (int64_t i = 0; i < length; i++)
                    own[i] = byte_of(world_rank, i);
                must(smp_broadcast(job, groups[g], root, own, length));
                for (int64_t i = 0; i < length; i++)
                    assert_int_equal(own[i], byte_of(member[root], i));
            }
            for (int64_t i = 0; i < length; i++)
                own[i] = byte_of(world_rank, i);
            must(smp_all_gather(job, groups[g], own, length, all));
            for (int k = 0; k < n; k++)
                for (int64_t i = 0; i < length; i++)
                    assert_int_equal(all[k * length + i], byte_of(member[k], i));
        }
        must(smp_barrier(job, groups[g]));
    }
    smp_finalize(job);
    free(own);
    free(all);
}

/* Values whose sum depends on the order in which they are added. */
static double value_of(int rank, int64_t i)
{
    static const double scale[] = {1e8, 1.0, -1e8, 1e-3, 3e7, 1e-8, -3e7, 0.37};
    return scale[(rank + i) % 8] * (1.0 + (double)(i % 1013) / 977.0);
}

static double least(double a, double b)
{
    return isnan(a) || a <= b ? a : b;
}

#define CHECK_FLOATS(ctype, stype, how, expression)                                                \
    do {                                                                                           \
        ctype *values = malloc(LONG_VALUES * sizeof(ctype));                                       \
        assert_non_null(values);                                                                   \
        for (int64_t i = 0; i < LONG_VALUES; i++)                                                  \
            values[i] = (ctype)value_of(world_rank, i);                                            \
        must(smp_all_reduce(job, group, stype, how, values, LONG_VALUES));                         \
        for (int64_t i = 0; i < LONG_VALUES; i++) {                                                \
            ctype a = (ctype)value_of(member[0], i);                                               \
            for (int k = 1; k < n; k++) {                                                          \
                const ctype b = (ctype)value_of(member[k], i);                                     \
                a = (ctype)(expression);                                                           \
            }                                                                                      \
            assert_memory_equal(&a, &values[i], sizeof a);                                         \
        }                                                                                          \
        free(values);                                                                              \
    } while (0)

static void reduce_whole_numbers(smp *job, smp_group group, const int *member, int n)
{
    int32_t small[3] = {world_rank, -world_rank, INT32_MAX};
    int64_t large[2] = {INT64_MAX - world_rank, world_rank};
    uint32_t sum[3] = {0};
    uint64_t large_sum = 0;
    for (int k = 0; k < n; k++) {
        sum[0] += (uint32_t)member[k];
        sum[1] -= (uint32_t)member[k];
        sum[2] += INT32_MAX;
        large_sum += (uint64_t)INT64_MAX - (uint64_t)member[k];
    }
    must(smp_all_reduce(job, group, SMP_TYPE_INT32, SMP_COMBINE_SUM, small, 3));
    assert_memory_equal(small, sum, sizeof sum);
    must(smp_all_reduce(job, group, SMP_TYPE_INT64, SMP_COMBINE_SUM, large, 1));
    assert_memory_equal(large, &large_sum, sizeof large_sum);
    must(smp_all_reduce(job, group, SMP_TYPE_INT64, SMP_COMBINE_MAX, large + 1, 1));
    assert_int_equal(large[1], member[n - 1]);
    small[0] = world_rank;
    must(smp_all_reduce(job, group, SMP_TYPE_INT32, SMP_COMBINE_MIN, small, 1));
    assert_int_equal(small[0], member[0]);
}

static void test_sums_have_one_order(void **state)
{
    smp *job = open_groups();
    (void)state;
    for (int g = 0; g < GROUPS; g++) {
        int member[MOST];
        const smp_group group = groups[g];
        const int n = members_of(job, group, member);
        CHECK_FLOATS(float, SMP_TYPE_FLOAT, SMP_COMBINE_SUM, a + b);
        CHECK_FLOATS(double, SMP_TYPE_DOUBLE, SMP_COMBINE_SUM, a + b);
        CHECK_FLOATS(double, SMP_TYPE_DOUBLE, SMP_COMBINE_MIN, least(a, b));
        CHECK_FLOATS(float, SMP_TYPE_FLOAT, SMP_COMBINE_MAX, -least(-a, -b));
        reduce_whole_numbers(job, group, member, n);
        float value = smp_rank(job, group) == n - 1 ? NAN : 1.0f; /* whoever has it */
        must(smp_all_reduce(job, group, SMP_TYPE_FLOAT, SMP_COMBINE_MIN, &value, 1));
        assert_true(isnan(value));
    }
    smp_finalize(job);
}

/* Around every group: even ranks send first, then odd ones. */
static void test_messages_meet(void **state)
{
    unsigned char *bytes = malloc(LONG_BYTES);
    smp *job = open_groups();
    (void)state;
    assert_non_null(bytes);
    for (int g = 0; g < GROUPS; g++) {
        int member[MOST];
        const int n = members_of(job, groups[g], member), own = smp_rank(job, groups[g]);
        for (int turn = 0; turn < 2 && n > 1; turn++) {
            const bool sends = own % 2 == turn;
            for (int64_t i = 0; i < LONG_BYTES; i++)
                bytes[i] = byte_of(world_rank, i);
            if (sends) {
                must(smp_send(job, groups[g], (own + 1) % n, bytes, LONG_BYTES));
                continue;
            }
            const int from = (own + n - 1) % n;
            must(smp_receive(job, groups[g], from, bytes, LONG_BYTES));
            for (int64_t i = 0; i < LONG_BYTES; i++)
                assert_int_equal(bytes[i], byte_of(member[from], i));
        }
    }
    smp_finalize(job);
    free(bytes);
}

static void refused(smp_status status, const char *expected)
{
    if (status != SMP_ERR_INPUT || !strstr(smp_last_error(), expected))
        fail_msg("rank %d: status %d, '%s', expected '%s'", world_rank, (int)status,
                 smp_last_error(), expected);
}

static void refuse_own_arguments(smp *job)
{
    float value = 1.0f;
    const int last = world_rank == world_size - 1; /* who is wrong: all get to know */
    refused(smp_barrier(NULL, SMP_WORLD), "smp_barrier: a NULL argument");
    refused(smp_barrier(job, (smp_group)9), "smp_barrier: group 9");
    refused(smp_broadcast(job, SMP_WORLD, last ? 99 : 0, &value, 4), "from rank 99: expected 0 to");
    refused(smp_broadcast(job, SMP_WORLD, 0, last ? NULL : &value, 4), "a NULL array of 4 bytes");
    refused(smp_all_gather(job, SMP_WORLD, &value, last ? -1 : 4, (float[MOST]){0}),
            "-1 bytes: expected 0 or more");
    refused(smp_all_reduce(job, SMP_WORLD, last ? (smp_type)7 : SMP_TYPE_FLOAT, SMP_COMBINE_SUM,
                           &value, 1),
            "type 7: expected");
    refused(smp_all_reduce(job, SMP_WORLD, SMP_TYPE_FLOAT, last ? (smp_combine)3 : SMP_COMBINE_SUM,
                           &value, 1),
            "combine 3: expected");
    refused(smp_all_reduce(job, SMP_WORLD, SMP_TYPE_DOUBLE, SMP_COMBINE_SUM, &value,
                           last ? INT64_MAX : 1),
            "values: expected 0 or more, that fit");
    refused(smp_send(job, SMP_WORLD, world_rank, &value, 4), "to itself");
    refused(smp_receive(job, SMP_WORLD, -1, &value, 4), "from rank -1: expected 0 to");
}

/* The ranks of the world but for the last do one thing, that one another. */
static void refuse_what_does_not_match(smp *job)
{
    float value[2 * MOST] = {1.0f, 2.0f};
    const int last = world_rank == world_size - 1;
    refused(smp_broadcast(job, SMP_WORLD, last ? 1 : 0, value, 4), "smp_broadcast of 4 bytes from");
    refused(smp_all_gather(job, SMP_WORLD, value, last ? 8 : 4, value + 2),
            "smp_all_gather of 8 bytes");
    refused(smp_all_reduce(job, SMP_WORLD, SMP_TYPE_FLOAT, last ? SMP_COMBINE_MAX : SMP_COMBINE_SUM,
                           value, 1),
            "rank 0 smp_all_reduce (sum) of 1 float, rank");
    refused(last ? smp_barrier(job, SMP_WORLD)
                 : smp_all_reduce(job, SMP_WORLD, SMP_TYPE_FLOAT, SMP_COMBINE_SUM, value, 1),
            "smp_barrier");
    assert_true(value[0] == 1.0f && value[1] == 2.0f); /* nothing has moved */
    if (world_rank > 1)
        return;
    refused(smp_send(job, SMP_WORLD, 1 - world_rank, value, 4), "do not meet");
    refused(smp_receive(job, SMP_WORLD, 1 - world_rank, value, 4), "do not meet");
    refused(world_rank == 0 ? smp_send(job, SMP_WORLD, 1, value, 4)
                            : smp_receive(job, SMP_WORLD, 0, value, 8),
            "rank 0 smp_send of 4 bytes, rank 1 smp_receive of 8 bytes");
    refused(world_rank == 0 ? smp_send(job, SMP_WORLD, 1, NULL, 4)
                            : smp_receive(job, SMP_WORLD, 0, value, 4),
            "rank 0 of");
}

static void test_wrong_calls_leave_the_job_usable(void **state)
{
    float x[64] = {0};
    smp_step_result result;
    smp *job = open_groups();
    (void)state;
    refuse_own_arguments(job);
    if (world_size > 1)
        refuse_what_does_not_match(job);
    must(smp_barrier(job, SMP_WORLD));
    must(smp_step(job, (const void *const[]){x, x}, &result));
    smp_finalize(job);
}

static void test_ranks_of_this_machine(void **state)
{
    smp *job = open_groups();
    (void)state;
    assert_int_equal(smp_local_rank(job), world_rank); /* all of the test's are on one */
    assert_int_equal(smp_local_size(job), world_size);
    smp_finalize(job);
}

/* The last rank hangs, after it has come to the first call: the others name it. */
static void test_a_rank_that_hangs_ends_the_wait(void **state)
{
    int request_done = 0;
    char missing[64];
    double value = 1.0;
    MPI_Request request;
    smp *job = open_groups();
    (void)state;
    if (world_size == 1) {
        smp_finalize(job);
        return;
    }
    snprintf(missing, sizeof missing, "; rank %d: no answer", world_size - 1);
    must(smp_barrier(job, SMP_WORLD));
    job->comm->limit = (smp_comm_limits){0.05, 1.5, 1.5};
    if (world_rank < world_size - 1) {
        smp_status status =
            smp_all_reduce(job, SMP_WORLD, SMP_TYPE_DOUBLE, SMP_COMBINE_SUM, &value, 1);
        assert_int_equal(status, SMP_ERR_PEER);
        if (!strstr(smp_last_error(), missing) ||
            !strstr(smp_last_error(), "the other ranks of SMP_WORLD in smp_all_reduce"))
            fail_msg("rank %d: %s", world_rank, smp_last_error());
        assert_int_equal(smp_barrier(job, SMP_WORLD), SMP_ERR_FAILED); /* it can only be ended */
        smp_finalize(job);
    }
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    while (!request_done) {
        MPI_Test(&request, &request_done, MPI_STATUS_IGNORE);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arrays_reach_the_group),
        cmocka_unit_test(test_sums_have_one_order),
        cmocka_unit_test(test_messages_meet),
        cmocka_unit_test(test_wrong_calls_leave_the_job_usable),
        cmocka_unit_test(test_ranks_of_this_machine),
        cmocka_unit_test(test_a_rank_that_hangs_ends_the_wait),
    };
    RUN_ON_RANKS(argc, argv, tests);
}

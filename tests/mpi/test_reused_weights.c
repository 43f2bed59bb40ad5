/* Weights that one stage uses twice, stages of one rank and stages of several ranks share, under
 * replicas and chunks: every gradient is the sum over all uses and the mean over all replicas, so that
 * replicas stay the same to the bit. On four ranks. */
#include <math.h>
#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/state/handle.h"
#include "exec/state/weights.h"
#include "tests/sequential.h"

enum { SAMPLES = 8, STAGES = 4, T = 3, VOCABULARY = 17, STEPS = 3 };

static int world_rank;
static char path[64];
static int32_t tokens[SAMPLES * T], targets[SAMPLES * T];

/* Four stages. fc0 is used twice in stage 0, fc1 in stages 1 and 2, fc2 in 0 and twice in 2, fc3
 * twice in 3. Sizes that are no multiple of the reduction's unit. */
static const char model[] =
    "smp: 1\n"
    "name: reused\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [3]}\n"
    "  targets: {dtype: int32, shape: [3]}\n"
    "ops:\n"
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: 17, features: 9, init_std: 1, "
    "stage: 0}\n"
    "  - {op: linear, name: fc0, in: x, out: x, features: 9, stage: 0}\n"
    "  - {op: linear, name: fc0b, in: x, out: x, features: 9, weight: fc0.weight, stage: 0}\n"
    "  - {op: linear, name: fc2, in: x, out: x, features: 9, stage: 0}\n"
    "  - {op: gelu, name: act0, in: x, out: x, stage: 0}\n"
    "  - {op: linear, name: fc1, in: x, out: x, features: 9, stage: 1}\n"
    "  - {op: gelu, name: act1, in: x, out: x, stage: 1}\n"
    "  - {op: linear, name: fc1b, in: x, out: x, features: 9, weight: fc1.weight, stage: 2}\n"
    "  - {op: linear, name: fc2b, in: x, out: x, features: 9, weight: fc2.weight, stage: 2}\n"
    "  - {op: gelu, name: act2, in: x, out: x, stage: 2}\n"
    "  - {op: linear, name: fc2c, in: x, out: x, features: 9, weight: fc2.weight, stage: 2}\n"
    "  - {op: linear, name: fc3, in: x, out: x, features: 9, stage: 3}\n"
    "  - {op: gelu, name: act3, in: x, out: x, stage: 3}\n"
    "  - {op: linear, name: fc3b, in: x, out: x, features: 9, weight: fc3.weight, stage: 3}\n"
    "  - {op: linear, name: head, in: x, out: y, features: 17, stage: 3}\n"
    "  - {op: cross_entropy, name: loss, in: [y, targets], out: loss, stage: 3}\n"
    "loss: loss\n";

static void must(smp_status status)
{
    if (status != SMP_OK) {
        fprintf(stderr, "rank %d: %s\n", world_rank, smp_last_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void make_batch(int step)
{
    for (int i = 0; i < SAMPLES * T; i++) {
        tokens[i] = (7 * i + 3 * step) % VOCABULARY;
        targets[i] = (11 * i * i + 5 * step) % VOCABULARY;
    }
}

/* Copies the job's weights to the reference, or returns the largest difference. Collective. */
static double walk_weights(smp *job, sequential *reference, bool set)
{
    double largest = 0.0;
    for (int i = 0; i < smp_weight_count(job); i++) {
        int64_t n = smp_weight_elements(job, i);
        float *values = malloc((size_t)n * 4), *own = sequential_weight(reference, i);
        assert_non_null(values);
        must(smp_weight_get(job, smp_weight_name(job, i), values, n));
        for (int64_t k = 0; k < n && !set; k++)
            largest = fmax(largest, fabs((double)values[k] - (double)own[k]));
        if (set)
            memcpy(own, values, (size_t)n * 4);
        free(values);
    }
    return largest;
}

/* On every rank or on none, so that no rank waits for one that failed. */
static void expect_same_replicas(smp *job)
{
    uint64_t own, least, most;
    must(smp__weights_hash(job, &own));
    MPI_Allreduce(&own, &least, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&own, &most, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    assert_true(least == most);
}

static void check(int ranks, int ddp, const char *schedule)
{
    smp_options options = smp_options_default();
    options.model = path;
    options.stages = ranks;
    options.ddp = ddp;
    options.chunks = STAGES / ranks;
    options.microbatches = SAMPLES / ddp;
    options.microbatch_size = 1;
    options.schedule = schedule;
    options.optimizer = "sgd"; /* a weight moves as far as its gradient is long */
    options.lr = 0.1f;
    options.timeout_s = 60;
    smp_graph *graph = NULL;
    smp *job = NULL;
    sequential *reference = NULL;
    must(smp_graph_read(path, &graph));
    must(smp_init(&job, &options));
    must(sequential_create(graph, 1, SAMPLES, &options, &reference));
    walk_weights(job, reference, true);
    for (int step = 0; step < STEPS; step++) {
        make_batch(step);
        int64_t first = smp_rank(job, SMP_DDP) * smp_step_samples(job) * T;
        const void *own[] = {tokens + first, targets + first};
        const void *const all[] = {tokens, targets};
        smp_step_result result;
        double loss;
        must(smp_step(job, own, &result));
        must(sequential_step(reference, all, &loss));
        assert_true(fabs(result.loss - loss) < 1e-5);
        expect_same_replicas(job);
    }
    double difference = walk_weights(job, reference, false);
    if (difference > (ddp == 1 ? 0.0 : 1e-5))
        fail_msg("%d ranks, ddp %d, %s: weights differ by %g", ranks, ddp, schedule, difference);
    sequential_destroy(reference);
    smp_finalize(job);
    smp_graph_destroy(graph);
}

static void test_reused_weights_in_chunks_of_replicas(void **state)
{
    (void)state;
    check(2, 2, "interleaved");
    check(2, 2, "simple");
}

static void test_reused_weights_one_rank_each(void **state)
{
    (void)state;
    check(1, 4, "interleaved");
}

static void test_reused_weights_one_replica(void **state)
{
    (void)state;
    check(4, 1, "1f1b");
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    if (world_rank == 0) {
        snprintf(path, sizeof(path), "%s/smp-model-XXXXXX", P_tmpdir);
        int file = mkstemp(path);
        if (file < 0 || write(file, model, strlen(model)) != (ssize_t)strlen(model) || close(file))
            MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Bcast(path, sizeof(path), MPI_CHAR, 0, MPI_COMM_WORLD);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reused_weights_in_chunks_of_replicas),
        cmocka_unit_test(test_reused_weights_one_rank_each),
        cmocka_unit_test(test_reused_weights_one_replica),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0)
        unlink(path);
    MPI_Finalize();
    return failed;
}

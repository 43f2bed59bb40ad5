/* Overhead of the executor: a job on one rank against the same kernels called one after another.
 * Both run in this process in turns, on the same inputs; prints the median of the paired ratios and
 * checks that the losses have the same bits. What the executor does between kernels is the
 * difference of the shortest steps, for each call: it shows where operators have next to no work.
 *
 *     bench_executor MODEL [MICROBATCHES [MICROBATCH_SIZE [ROUNDS]]] */
#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "graph/base/random.h"
#include "graph/model/op.h"
#include "tests/sequential.h"

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void die(const char *what)
{
    fprintf(stderr, "bench_executor: %s: %s\n", what, smp_last_error());
    exit(1);
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 5) {
        fprintf(stderr, "usage: bench_executor MODEL [MICROBATCHES [MICROBATCH_SIZE [ROUNDS]]]\n");
        return 2;
    }
    int microbatches = argc > 2 ? atoi(argv[2]) : 16;
    int batch = argc > 3 ? atoi(argv[3]) : 4;
    int rounds = argc > 4 ? atoi(argv[4]) : 15;
    MPI_Init(&argc, &argv);
    smp_options options = smp_options_default();
    options.model = argv[1];
    options.planning.devices = options.planning.stages = options.planning.ddp =
        options.planning.chunks = 1;
    options.planning.microbatches = microbatches;
    options.planning.microbatch_size = batch;
    smp_graph *graph = NULL;
    smp *job = NULL;
    sequential *plain = NULL;
    if (smp_graph_read(argv[1], &graph) != SMP_OK || smp_init(&job, &options) != SMP_OK ||
        sequential_create(graph, batch, microbatches, &options, &plain) != SMP_OK)
        die(argv[1]);
    for (int i = 0; i < smp_weight_count(job); i++)
        if (smp_weight_get(job, smp_weight_name(job, i), sequential_weight(plain, i),
                           smp_weight_elements(job, i)) != SMP_OK)
            die("weights");
    void **inputs = calloc((size_t)graph->n_input, sizeof(void *));
    for (int32_t i = 0; i < graph->n_input; i++) {
        int64_t n = smp_step_samples(job) * graph->tensor[i].elements;
        inputs[i] = calloc((size_t)n, 4);
        for (int64_t k = 0; k < n; k++) {
            uint32_t word = smp_random_philox(1, (uint64_t)k, (uint64_t)i).v[0];
            if (graph->tensor[i].dtype == SMP_I32)
                ((int32_t *)inputs[i])[k] = (int32_t)(word % 10);
            else
                ((float *)inputs[i])[k] = smp_random_uniform(word);
        }
    }
    double *ratio = calloc((size_t)rounds, sizeof(double));
    double *job_us = calloc((size_t)rounds, sizeof(double));
    double plain_us = 0.0;                          /* the shortest */
    for (int round = -2; round < rounds; round++) { /* two rounds to warm up */
        smp_step_result result;
        double loss = 0.0, begin = now_us();
        if (smp_step(job, (const void *const *)inputs, &result) != SMP_OK)
            die("step");
        double middle = now_us();
        if (sequential_step(plain, (const void *const *)inputs, &loss) != SMP_OK)
            die("sequential step");
        double end = now_us();
        if (result.loss != loss) {
            fprintf(stderr, "bench_executor: losses differ: %.9g and %.9g\n", result.loss, loss);
            return 1;
        }
        if (round >= 0) {
            ratio[round] = (middle - begin) / (end - middle);
            job_us[round] = middle - begin;
            plain_us = round == 0 || end - middle < plain_us ? end - middle : plain_us;
        }
    }
    qsort(ratio, (size_t)rounds, sizeof(double), by_value);
    qsort(job_us, (size_t)rounds, sizeof(double), by_value);
    printf("executor / sequential: median %.4f (min %.4f, max %.4f) over %d rounds; step %.1f ms\n",
           ratio[rounds / 2], ratio[0], ratio[rounds - 1], rounds, job_us[rounds / 2] / 1e3);
    printf("shortest steps: executor %.1f us, sequential %.1f us: %.3f us for each of %d operators "
           "in each of %d micro-batches, forward and backward\n",
           job_us[0], plain_us, (job_us[0] - plain_us) / graph->n_op / microbatches, graph->n_op,
           microbatches);
    for (int32_t i = 0; i < graph->n_input; i++)
        free(inputs[i]);
    free(inputs);
    free(ratio);
    free(job_us);
    sequential_destroy(plain);
    smp_finalize(job);
    smp_graph_destroy(graph);
    MPI_Finalize();
    return 0;
}

/* A job without memory, on however many ranks the test is started with: each time another
 * allocation of smp_init, smp_save, smp_load or a call between steps fails, on one rank. All ranks
 * say so, nothing crashes or leaks, and when there is memory again the same call does what it would
 * have done. SMP_STARVE=all lets every allocation fail, SMP_STARVE=paths one of every call path;
 * else a part of these does, drawn by a seed. */
#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "smp.h"
#include "tests/exec/open_ranks.h"
#include "tests/tools/fail_allocation.h"

/* A sanitizer makes each start of a job take seconds. */
#ifdef __SANITIZE_ADDRESS__
enum { MOST = 10 };
#else
enum { MOST = 24 };
#endif
enum { STEPS = 2, MAX_VALUES = 1 << 16 };

static int failures;
static char checkpoint[96], plan[96], trace[96], costs[96], weights[96];

/* What stands for the weights and the data of a job. */
typedef struct outcome {
    double loss[STEPS];
    float weight[MAX_VALUES];
    long failed; /* calls that said that memory ran out */
} outcome;

static void complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "rank %d: ", world_rank);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    fail_allocation_print();
    failures++;
}

/* All ranks return the same, so all repeat a call that failed; it fails once. */
static bool is_done(outcome *o, smp_status status, const char *call)
{
    if (status == SMP_OK)
        return true;
    if (status != SMP_ERR_NO_MEMORY && !strstr(smp_last_error(), "memory"))
        complain("%s: %s: %s, without the memory of", call, smp_status_name(status),
                 smp_last_error());
    if (++o->failed > 1)
        complain("%s fails once more, after", call);
    return o->failed > 1;
}

static void step(smp *job, outcome *o, int number)
{
    static union {
        float real[4096];
        int32_t whole[4096];
    } values[8];
    const void *inputs[8];
    smp_step_result result = {0};
    for (int i = 0; i < smp_input_count(job); i++) {
        inputs[i] = &values[i];
        for (int k = 0; k < 4096; k++)
            if (smp_input_is_int(job, i))
                values[i].whole[k] = (k * 7 + i + number) % 10;
            else
                values[i].real[k] = (float)((k * 5 + i + number) % 11) * 0.1f;
    }
    const long before = fail_allocation_so_far();
    if (smp_step(job, inputs, &result) != SMP_OK)
        complain("smp_step: %s", smp_last_error());
    if (fail_allocation_so_far() != before)
        complain("a step allocates");
    o->loss[number] = result.loss;
}

static void between_steps(smp *job, outcome *o)
{
    const char *name = smp_weight_name(job, 0);
    const int64_t n = smp_weight_elements(job, 0);
    assert_true(n <= MAX_VALUES);
    while (!is_done(o, smp_save(job, checkpoint), "smp_save"))
        ;
    while (!is_done(o, smp_load(job, checkpoint), "smp_load"))
        ;
    if (smp_load_note(job)[0])
        complain("smp_load_note: %s", smp_load_note(job));
    while (!is_done(o, smp_weight_get(job, name, o->weight, n), "smp_weight_get"))
        ;
    while (!is_done(o, smp_weight_set(job, name, o->weight, n), "smp_weight_set"))
        ;
    while (!is_done(o, smp_trace_write(job, trace), "smp_trace_write"))
        ;
    while (!is_done(o, smp_costs_write(job, costs), "smp_costs_write"))
        ;
    while (!is_done(o, smp_export_weights(job, weights), "smp_export_weights"))
        ;
    while (!is_done(o, smp_load_weights(job, weights, NULL), "smp_load_weights"))
        ;
}

static void live(const smp_options *options, outcome *o)
{
    smp *job = NULL;
    memset(o, 0, sizeof *o);
    while (!is_done(o, smp_init(&job, options), "smp_init"))
        ;
    if (!job)
        return;
    for (int i = 0; i < STEPS; i++) {
        step(job, o, i);
        between_steps(job, o);
    }
    smp_finalize(job);
}

/* One allocation of one rank fails; 0: none. */
static void live_without(const smp_options *options, int victim, long number, outcome *o)
{
    fail_allocation(world_rank == victim ? number : -1);
    live(options, o);
    fail_allocation_count();
    if (fail_allocation_leaks() > 0)
        complain("... when this one fails");
    if (world_rank == 0) {
        char command[128];
        snprintf(command, sizeof command, "rm -rf '%s'", checkpoint);
        assert_int_equal(system(command), 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static bool all_ranks_have(long value)
{
    long extreme[2] = {value, -value};
    MPI_Allreduce(MPI_IN_PLACE, extreme, 2, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
    return extreme[0] == -extreme[1];
}

static void starve(const char *what, const smp_options *options)
{
    static outcome with, without;
    long tried = 0, not_needed = 0;
    for (int victim = 0; victim < world_size; victim++) {
        live_without(options, victim, 0, &with);
        failures += with.failed > 0;
        for (long k = 0;; tried++) {
            k = fail_allocation_next(k, MOST / world_size, (unsigned)victim);
            MPI_Bcast(&k, 1, MPI_LONG, victim, MPI_COMM_WORLD);
            if (k == 0)
                break;
            live_without(options, victim, k, &without);
            if (!all_ranks_have(without.failed))
                complain("%s: not all ranks returned the same", what);
            if (memcmp(with.loss, without.loss, sizeof with.loss) != 0 ||
                memcmp(with.weight, without.weight, sizeof with.weight) != 0)
                complain("%s: loss or weights differ from those with memory", what);
            not_needed += without.failed == 0;
        }
    }
    if (world_rank == 0)
        print_message("%s: %ld allocations failed, %ld were not needed\n", what, tried, not_needed);
    MPI_Allreduce(MPI_IN_PLACE, &failures, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    assert_int_equal(failures, 0);
}

static smp_options options_of(const char *model)
{
    smp_options options = smp_options_default();
    options.model = model;
    options.planning.stages = world_size;
    options.planning.ddp = 1;
    options.planning.chunks = 1;
    options.planning.microbatches = 2;
    options.planning.microbatch_size = 1;
    options.planning.schedule = "1f1b";
    options.runtime.record_trace = options.runtime.record_costs = 1;
    options.runtime.timeout_s = 1.0;
    return options;
}

static void test_job_survives_without_memory_where_it_plans(void **state)
{
    (void)state;
    smp_options options = options_of(SMP_SOURCE_DIR "/examples/mlp.yaml");
    starve("a job that is planned at start", &options);
}

static void test_job_survives_without_memory_from_a_plan(void **state)
{
    (void)state;
    smp_options options = options_of(SMP_SOURCE_DIR "/examples/gpt-tiny.yaml");
    options.planning.devices = world_size;
    int code = world_rank == 0 ? smp_plan_write(&options, plan) : SMP_OK;
    MPI_Bcast(&code, 1, MPI_INT, 0, MPI_COMM_WORLD);
    assert_int_equal(code, SMP_OK);
    options.model = NULL;
    options.plan = plan;
    starve("a job from a plan", &options);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_survives_without_memory_where_it_plans),
        cmocka_unit_test(test_job_survives_without_memory_from_a_plan),
    };
    open_ranks(&argc, &argv);
    snprintf(checkpoint, sizeof checkpoint, "%s/saved", ranks_folder);
    snprintf(plan, sizeof plan, "%s/plan.yaml", ranks_folder);
    snprintf(trace, sizeof trace, "%s/trace.json", ranks_folder);
    snprintf(costs, sizeof costs, "%s/costs.yaml", ranks_folder);
    snprintf(weights, sizeof weights, "%s/weights.safetensors", ranks_folder);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (world_rank == 0) {
        unlink(trace);
        unlink(costs);
        unlink(weights);
        unlink(plan);
    }
    return close_ranks(failed);
}

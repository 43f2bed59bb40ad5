/* Updates that go on beside the next step, each made slow: whatever is asked of a job behind a
 * step, its answers are those of a job that updates before the step returns, bit by bit. */
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

#include "exec/state/device_wait.h"
#include "exec/state/updates.h"
#include "exec/state/weights.h"
#include "tests/exec/changed_plan.h"
#include "tests/exec/open_ranks.h"

enum {
    T = 6,
    MICROBATCHES = 3,
    BATCH = 2,
    SAMPLES = MICROBATCHES * BATCH,
    STEPS = 9,
    NUMBERS = 32
};

static const char slow[] = "1500"; /* microseconds an update */
static const char last_weight[] = "out.weight";

/* Tied weights within a chunk and across chunks, a running statistic. */
static const char model[] =
    "smp: 1\n"
    "name: beside\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [6]}\n"
    "  targets: {dtype: int32, shape: [6]}\n"
    "ops:\n"
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: 16, features: 8, stage: 0}\n"
    "  - {op: linear, name: a, in: x, out: a, features: 8, stage: 0}\n"
    "  - {op: linear, name: b, in: a, out: a, features: 8, weight: a.weight, stage: 0}\n"
    "  - {op: layernorm, name: norm, in: a, out: a, stage: 0}\n"
    "  - {op: reshape, name: image, in: a, out: a, shape: [6, 4, 2], stage: 1}\n"
    "  - {op: batchnorm, name: batch, in: a, out: a, stage: 1}\n"
    "  - {op: reshape, name: rows, in: a, out: a, shape: [6, 8], stage: 1}\n"
    "  - {op: add, name: skip, in: [x, a], out: x, stage: 1}\n"
    "  - {op: linear, name: back, in: x, out: x, features: 8, weight: a.weight, stage: 1}\n"
    "  - {op: linear, name: out, in: x, out: z, features: 16, stage: 1}\n"
    "  - {op: cross_entropy, name: loss, in: [z, targets], out: loss, stage: 1}\n"
    "loss: loss\n";

static char model_path[96], plan_path[96], saved[96], exported[96];
static smp_graph *graph;

static smp *open_job(const char *optimizer, bool far)
{
    smp_options options = smp_options_default();
    smp *job = NULL;
    options.model = model_path;
    options.planning.stages = 1;
    options.planning.chunks = 2;
    options.planning.microbatches = MICROBATCHES;
    options.planning.microbatch_size = BATCH;
    options.planning.schedule = "simple";
    options.optimizer.name = optimizer;
    options.optimizer.lr = 1e-2f;
    options.runtime.record_trace = 1;
    const plan_changes changes = {.seed = 1, .offload_states = far};
    must(changed_plan_write(&options, 1, graph, changes, plan_path));
    options.plan = plan_path;
    options.model = NULL;
    must(smp_init(&job, &options));
    assert_int_equal(unlink(plan_path), 0);
    assert_true(far == (job->updates != NULL));
    return job;
}

static smp_status step(smp *job, int k, bool evaluates, double *loss)
{
    int32_t tokens[SAMPLES * T], targets[SAMPLES * T];
    const void *const inputs[] = {tokens, targets};
    smp_step_result result = {0};
    for (int i = 0; i < SAMPLES * T; i++) {
        tokens[i] = (7 * i + 3 * k) % 16;
        targets[i] = (11 * i + k) % 16;
    }
    SMP_TRY(evaluates ? smp_evaluate(job, inputs, &result) : smp_step(job, inputs, &result));
    *loss = result.loss;
    return SMP_OK;
}

static void remove_saved(void)
{
    char file[160];
    snprintf(file, sizeof file, "%s/checkpoint-%010d.smp", saved, 3);
    assert_int_equal(unlink(file), 0);
    snprintf(file, sizeof file, "%s/.lock", saved); /* of a job that is still open */
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(saved), 0);
    assert_int_equal(unlink(exported), 0);
}

/* Between steps what reads or writes weights, one after each: nothing else waits for updates. */
static void live(smp *job, double *number)
{
    float weight[8 * 16] = {0};
    uint64_t hash;
    for (int k = 0; k < STEPS; k++) {
        must(step(job, k, false, number++));
        switch (k) {
        case 0:
            must(step(job, k, true, number++));
            break;
        case 1:
            must(smp_weight_get(job, last_weight, weight, 8 * 16));
            *number++ = (double)weight[8 * 16 - 1];
            break;
        case 2:
            must(smp_save(job, saved));
            break;
        case 3:
            must(smp_export_weights(job, exported));
            break;
        case 4:
            must(smp_weight_set(job, last_weight, weight, 8 * 16));
            break;
        case 5:
            must(smp_load_weights(job, exported, NULL));
            break;
        case 6:
            must(smp_load(job, saved));
            break;
        }
    }
    must(smp_weights_hash(job, &hash));
    *number++ = (double)(hash >> 32);
    *number = (double)(hash & UINT32_MAX);
    remove_saved();
}

static void compare(const char *optimizer, const double *expected)
{
    double got[NUMBERS] = {0};
    smp *job = open_job(optimizer, true);
    live(job, got);
    smp_finalize(job);
    for (int i = 0; i < NUMBERS; i++)
        if (memcmp(&got[i], &expected[i], sizeof got[i]) != 0)
            fail_msg("%s: number %d is %.9g, expected %.9g", optimizer, i, got[i], expected[i]);
}

static void test_updates_bits(void **state)
{
    (void)state;
    setenv("SMP_UPDATE_DELAY", slow, 1);
    for (int i = 0; smp_optimizers()[i]; i++) {
        const char *optimizer = smp_optimizers()[i]->name;
        double expected[NUMBERS] = {0};
        smp *job = open_job(optimizer, false);
        live(job, expected);
        smp_finalize(job);
        setenv("SMP_UPDATE_THREAD", "1", 1);
        compare(optimizer, expected);
        setenv("SMP_UPDATE_THREAD", "0", 1);
        if (i == 0)
            compare(optimizer, expected);
    }
    unsetenv("SMP_UPDATE_DELAY");
    unsetenv("SMP_UPDATE_THREAD");
}

static const smp_trace_event *forward_of(const smp *job, int chunk)
{
    smp_trace_event *event;
    for (int64_t n = smp__record_events(job->record, &event); n > 0; n--, event++)
        if (event->action.kind == SMP_ACTION_F && event->action.microbatch == 0 &&
            event->action.chunk == chunk)
            return event;
    return NULL;
}

/* A step does not wait for its own updates, and in the next one each forward for its own weights
 * alone. */
static void test_updates_overlap(void **state)
{
    (void)state;
    enum { DELAY_US = 10000 };
    char delay[16];
    double loss;
    snprintf(delay, sizeof delay, "%d", DELAY_US);
    setenv("SMP_UPDATE_DELAY", delay, 1);
    setenv("SMP_UPDATE_THREAD", "1", 1);
    smp *job = open_job("adamw", true);
    const int first = job->work->chunk[0].updates, all = job->work->chunk[1].updates;
    assert_true(first >= 4 && all >= first + 3);
    const double begin_s = smp_clock_s();
    must(step(job, 0, false, &loss));
    assert_true(smp_clock_s() - begin_s < 0.5e-6 * all * DELAY_US);
    must(step(job, 1, false, &loss));
    assert_true(smp_clock_s() - begin_s >= 1e-6 * all * DELAY_US);
    must(smp__trace_collect(job));
    smp_trace_event *event;
    const int64_t n = smp__record_events(job->record, &event);
    const smp_trace_event *beside = &event[n];
    assert_true(beside->beside && beside->end_us > beside->start_us);
    assert_true(forward_of(job, 0)->end_us < beside->end_us - DELAY_US);
    assert_true(forward_of(job, 1)->end_us >= beside->end_us);
    assert_true(1e6 * smp__spent_s(job->record, SMP__SPENT_UPDATE_FORWARD) > 0.5 * all * DELAY_US);
    smp_finalize(job);
    unsetenv("SMP_UPDATE_DELAY");
    unsetenv("SMP_UPDATE_THREAD");
}

/* One that gets nowhere is waited for no longer than anything else, and is named. */
static void test_updates_that_hang(void **state)
{
    (void)state;
    static smp *job; /* what a job that failed may still touch stays */
    double loss;
    setenv("SMP_UPDATE_DELAY", "1500000", 1);
    setenv("SMP_UPDATE_THREAD", "1", 1);
    job = open_job("adamw", true);
    unsetenv("SMP_UPDATE_DELAY");
    unsetenv("SMP_UPDATE_THREAD");
    job->comm->limit = (smp_comm_limits){0.2, 6, 6};
    must(step(job, 0, false, &loss));
    assert_int_not_equal(step(job, 1, false, &loss), SMP_OK);
    if (!strstr(smp_last_error(), "the update of weight 'wte.weight' on the host") ||
        !strstr(smp_last_error(), "action F0.0"))
        fail_msg("got: %s", smp_last_error());
    smp_finalize(job);
}

static void write_model(void)
{
    snprintf(model_path, sizeof model_path, "%s/model.yaml", ranks_folder);
    snprintf(plan_path, sizeof plan_path, "%s/plan.yaml", ranks_folder);
    snprintf(saved, sizeof saved, "%s/saved", ranks_folder);
    snprintf(exported, sizeof exported, "%s/weights.safetensors", ranks_folder);
    must(smp_file_write(model_path, model, strlen(model)));
    must(smp_graph_read(model_path, &graph));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_updates_bits),
        cmocka_unit_test(test_updates_overlap),
        cmocka_unit_test(test_updates_that_hang),
    };
    open_ranks(&argc, &argv);
    write_model();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    smp_graph_destroy(graph);
    unlink(model_path);
    return close_ranks(failed);
}

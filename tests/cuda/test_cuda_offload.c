/* Stashes of a GPU that travel to host memory and back, on streams of their own: the bits of the
 * same job without, whatever the streams do first; the memory that the plan says; a trace. States
 * of the optimizer that stay there. */
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
#include "tests/case_count.h"
#include "tests/exec/changed_plan.h"

enum { T = 8, MICROBATCHES = 9, BATCH = 2, SAMPLES = MICROBATCHES * BATCH, MOST_STEPS = 6 };

static const char model[] =
    "smp: 1\n"
    "name: away\n"
    "let: {T: 8, d: 16}\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [T]}\n"
    "  targets: {dtype: int32, shape: [T]}\n"
    "ops:\n"
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: 32, features: d}\n"
    "  - {op: layernorm, name: ln, in: x, out: a}\n"
    "  - {op: linear, name: qkv, in: a, out: a, features: 3*d}\n"
    "  - {op: attention, name: attention, in: a, out: a, heads: 2, causal: true}\n"
    "  - {op: dropout, name: dropout, in: a, out: a, p: 0.1}\n"
    "  - {op: add, name: skip, in: [x, a], out: x}\n"
    "  - {op: linear, name: up, in: x, out: h, features: 2*d}\n"
    "  - {op: gelu, name: gelu, in: h, out: h}\n"
    "  - {op: linear, name: down, in: h, out: h, features: d}\n"
    "  - {op: add, name: again, in: [x, h], out: x}\n"
    "  - {op: linear, name: head, in: x, out: z, features: 32, weight: wte.weight, bias: false}\n"
    "  - {op: cross_entropy, name: loss, in: [z, targets], out: loss}\n"
    "loss: loss\n";

/* Its first weight is longer than a piece of what travels for an update. */
static const char long_model[] =
    "smp: 1\n"
    "name: long\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [8]}\n"
    "  targets: {dtype: int32, shape: [8]}\n"
    "ops:\n"
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: 70000, features: 16}\n"
    "  - {op: linear, name: head, in: x, out: z, features: 32}\n"
    "  - {op: cross_entropy, name: loss, in: [z, targets], out: loss}\n"
    "loss: loss\n";

static char folder[64], model_path[96], plan_path[96];
static smp_graph *graph;
static int microbatches = MICROBATCHES;

static void must(smp_status status)
{
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
}

static smp_options options_of(const char *precision)
{
    smp_options options = smp_options_default();
    options.model = model_path;
    options.planning.stages = 1;
    options.planning.microbatches = microbatches;
    options.planning.microbatch_size = BATCH;
    options.planning.schedule = "simple";
    options.runtime.device = "cuda";
    options.runtime.precision = precision;
    options.runtime.record_trace = 1;
    options.optimizer.lr = 1e-2f;
    return options;
}

/* The plan is for a CPU: its offload_bytes are others than those of the job. */
static smp *open_job(const char *precision, int chunks, const char *optimizer, plan_changes changes)
{
    smp_options options = options_of(precision);
    options.optimizer.name = optimizer;
    smp *job = NULL;
    options.planning.chunks = chunks;
    options.runtime.device = "cpu";
    must(changed_plan_write(&options, 1, graph, changes, plan_path));
    options.runtime.device = "cuda";
    options.plan = plan_path;
    options.model = NULL;
    must(smp_init(&job, &options));
    assert_int_equal(unlink(plan_path), 0);
    return job;
}

/* Half of them are what all is made of: steps and an evaluation. */
static int steps(void)
{
    return is_brief_emulation() ? MOST_STEPS / 2 : MOST_STEPS;
}

static uint64_t train(smp *job, double *losses)
{
    int32_t tokens[SAMPLES * T], targets[SAMPLES * T];
    const void *const inputs[] = {tokens, targets};
    uint64_t hash;
    for (int k = 0; k < steps(); k++) {
        smp_step_result result;
        for (int i = 0; i < SAMPLES * T; i++) {
            tokens[i] = (7 * i + 3 * k) % 32;
            targets[i] = (11 * i + k) % 32;
        }
        if (k % 3 == 2) {
            must(smp_evaluate(job, inputs, &result));
            losses[MOST_STEPS + k] = result.loss;
        }
        must(smp_step(job, inputs, &result));
        losses[k] = result.loss;
    }
    must(smp_weights_hash(job, &hash));
    return hash;
}

/* What is on its way is not read, and nothing is written over it. */
static void check_trace(smp *job)
{
    char path[96];
    int stored = 0, loaded = 0;
    double back_us[2 * MICROBATCHES] = {0};
    snprintf(path, sizeof path, "%s/trace.json", folder);
    must(smp_trace_write(job, path));
    assert_int_equal(unlink(path), 0);
    smp_trace_event *event;
    const int64_t n = smp__record_events(job->record, &event);
    for (int64_t i = 0; i < n; i++) {
        const smp_trace_event *e = &event[i];
        const int pair = e->action.chunk * MICROBATCHES + e->action.microbatch;
        stored += e->action.kind == SMP_ACTION_STORE;
        loaded += e->action.kind == SMP_ACTION_LOAD;
        if (e->action.kind == SMP_ACTION_STORE || e->action.kind == SMP_ACTION_LOAD)
            assert_true(smp__record_ended_us(job->record)[i] > 0.0 && e->end_us >= e->start_us);
        if (e->action.kind == SMP_ACTION_LOAD)
            back_us[pair] = e->end_us;
        if (e->action.kind == SMP_ACTION_B || e->action.kind == SMP_ACTION_I)
            assert_true(e->start_us >= back_us[pair] - 1.0); /* of an event's time */
    }
    assert_true(stored > 0 && loaded == stored);
}

static void test_cuda_offload_bits(void **state)
{
    (void)state;
    static const plan_changes kinds[] = {
        {.seed = 1, .offload_percent = 100},
        {.seed = 2, .offload_percent = 100, .horizon = 2},
        {.seed = 3, .offload_percent = 100, .split_percent = 100, .soon_percent = 30},
        {.seed = 4,
         .offload_percent = 100,
         .offload_ops_percent = 60,
         .recompute_percent = 90,
         .recompute_ops_percent = 40},
    };
    for (int k = 0; k < 8; k++) {
        if (!is_turn((size_t)(k / 2), (size_t)k, 2))
            continue;
        const char *precision = k % 2 ? "bf16" : "fp32";
        plan_changes changes = kinds[k / 2];
        double with[2 * MOST_STEPS] = {0}, without[2 * MOST_STEPS] = {0};
        smp *job = open_job(precision, 1 + k / 4, "adamw", changes);
        const int64_t bytes = job->memory->arena_bytes;
        assert_true(job->memory->host_bytes > 0);
        const uint64_t hash = train(job, with);
        check_trace(job);
        smp_finalize(job);
        changes.offload_percent = 0;
        job = open_job(precision, 1 + k / 4, "adamw", changes);
        assert_int_equal(job->memory->host_bytes, 0);
        if (changes.split_percent == 0) /* W may keep what is back for long */
            assert_true(bytes < job->memory->arena_bytes);
        assert_true(train(job, without) == hash);
        smp_finalize(job);
        assert_memory_equal(with, without, sizeof with);
    }
}

static void remove_checkpoint(const char *path, int64_t step)
{
    char file[160];
    snprintf(file, sizeof file, "%s/checkpoint-%010lld.smp", path, (long long)step);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(rmdir(path), 0);
}

/* The host updates what the GPU would have, to the same bits, and a checkpoint of either is one of
 * both. */
static void test_cuda_offload_states(void **state)
{
    (void)state;
    char path[96];
    snprintf(path, sizeof path, "%s/saved", folder);
    static const char *const precisions[] = {"bf16", "fp16", "fp32"};
    microbatches = is_brief_emulation() ? 2 : MICROBATCHES;
    for (int k = 0; smp_optimizers()[k]; k++) {
        const char *name = smp_optimizers()[k]->name, *precision = precisions[k % 3];
        plan_changes changes = {.seed = 1, .offload_states = true, .offload_percent = 50 * k};
        double with[2 * MOST_STEPS] = {0}, without[2 * MOST_STEPS] = {0};
        smp *far = open_job(precision, 1, name, changes);
        assert_non_null(far->buffers->host_area);
        assert_int_equal(far->memory->region[0].in_host, k % 3 < 2);
        changes.offload_states = false;
        smp *near = open_job(precision, 1, name, changes);
        assert_null(near->buffers->host_area);
        assert_true(far->memory->arena_bytes < near->memory->arena_bytes);
        assert_true(train(far, with) == train(near, without));
        assert_memory_equal(with, without, sizeof with);
        must(smp_save(k % 2 ? far : near, path));
        const uint64_t hash = train(near, with);
        must(smp_load(far, path));
        assert_true(train(far, without) == hash);
        assert_memory_equal(with, without, sizeof with);
        smp_finalize(far);
        smp_finalize(near); /* the directory is theirs until then */
        remove_checkpoint(path, steps());
    }
    microbatches = MICROBATCHES;
}

static void open_model(const char *text)
{
    must(smp_file_write(model_path, text, strlen(text)));
    smp_graph_destroy(graph);
    must(smp_graph_read(model_path, &graph));
}

static void test_cuda_offload_states_in_pieces(void **state)
{
    (void)state;
    open_model(long_model);
    plan_changes changes = {.seed = 1, .offload_states = true};
    double with[2 * MOST_STEPS] = {0}, without[2 * MOST_STEPS] = {0};
    smp *far = open_job("bf16", 1, "lamb", changes);
    changes.offload_states = false;
    smp *near = open_job("bf16", 1, "lamb", changes);
    assert_true(train(far, with) == train(near, without));
    assert_memory_equal(with, without, sizeof with);
    smp_finalize(far);
    smp_finalize(near);
    open_model(model);
}

static void test_cuda_offload_refuses_a_folder(void **state)
{
    (void)state;
    smp_options options = options_of("fp32");
    smp *job = NULL;
    must(changed_plan_write(&options, 1, graph, (plan_changes){.seed = 1, .offload_percent = 100},
                            plan_path));
    options.plan = plan_path;
    options.model = NULL;
    options.runtime.offload_to = folder;
    assert_int_equal(smp_init(&job, &options), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "offload of device cuda to a folder"));
    assert_int_equal(unlink(plan_path), 0);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/smp-test-XXXXXX", P_tmpdir);
    assert_non_null(mkdtemp(folder));
    snprintf(model_path, sizeof model_path, "%s/model.yaml", folder);
    snprintf(plan_path, sizeof plan_path, "%s/plan.yaml", folder);
    open_model(model);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    smp_graph_destroy(graph);
    unlink(model_path);
    return rmdir(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_offload_bits),
        cmocka_unit_test(test_cuda_offload_states),
        cmocka_unit_test(test_cuda_offload_states_in_pieces),
        cmocka_unit_test(test_cuda_offload_refuses_a_folder),
    };
    const smp_device *cuda = smp_device_find("cuda");
    if (!cuda || cuda->present() != SMP_OK) {
        fprintf(stderr, "no GPU: %s\n", cuda ? smp_last_error() : "built without CUDA");
        return 77;
    }
    MPI_Init(&argc, &argv);
    int failed = cmocka_run_group_tests(tests, set_up, tear_down);
    MPI_Finalize();
    return failed;
}

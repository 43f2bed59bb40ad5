/* Steps whose launches are captured have the bits of steps whose are not: exec/step/captures.h. */
#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

#include "exec/device/device.h"
#include "exec/state/handle.h"
#include "exec/step/captures.h"

enum { T = 8, MICROBATCHES = 4, SAMPLES = 2 * MICROBATCHES, VOCABULARY = 32 };

static const char model[] =
    "smp: 1\n"
    "name: graphs\n"
    "let: {T: 8, d: 16}\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [T]}\n"
    "  targets: {dtype: int32, shape: [T]}\n"
    "ops:\n"
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: 32, features: d}\n"
    "  - {op: dropout, name: drop_1, in: x, out: x, p: 0.2}\n"
    "  - {op: layernorm, name: ln, in: x, out: a}\n"
    "  - {op: linear, name: qkv, in: a, out: a, features: 3*d}\n"
    "  - {op: attention, name: attn, in: a, out: a, heads: 2, causal: true}\n"
    "  - {op: dropout, name: drop_2, in: a, out: a, p: 0.1}\n"
    "  - {op: add, name: res, in: [x, a], out: x}\n"
    "  - {op: linear, name: up, in: x, out: h, features: 2*d}\n"
    "  - {op: gelu, name: gelu, in: h, out: h}\n"
    "  - {op: linear, name: down, in: h, out: h, features: d}\n"
    "  - {op: batchnorm, name: bn, in: h, out: h}\n"
    "  - {op: add, name: skip, in: [x, h], out: x}\n"
    "  - {op: linear, name: head, in: x, out: z, features: 32, bias: false, weight: wte.weight}\n"
    "  - {op: cross_entropy, name: loss, in: [z, targets], out: loss}\n"
    "loss: loss\n";

static char folder[64], model_path[96], cluster_path[96];
static int32_t tokens[SAMPLES * T], targets[SAMPLES * T];
static const void *const inputs[] = {tokens, targets};

static void must(smp_status status)
{
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void write_cluster(const char *compute)
{
    char text[512];
    snprintf(text, sizeof text,
             "smp: 1\nname: one\nnodes: 1\ndevices_per_node: 1\n"
             "device: {name: gpu, memory: 1GB, compute: {fp32: %s, bf16: %s},"
             " bandwidth: 3TB/s}\n"
             "links:\n  intra_node: {bandwidth: 400GB/s, latency_us: 3}\n"
             "  inter_node: {bandwidth: 50GB/s, latency_us: 8}\noverlap: true\n",
             compute, compute);
    write_file(cluster_path, text);
}

/* graphs: as SMP_GRAPHS says; NULL: as the plan's figures do. */
static smp_status open_job(const char *graphs, smp_options options, smp **job)
{
    if (graphs)
        setenv("SMP_GRAPHS", graphs, 1);
    options.model = model_path;
    options.planning.cluster = cluster_path;
    options.planning.microbatches = MICROBATCHES;
    options.planning.microbatch_size = SAMPLES / MICROBATCHES;
    options.planning.schedule = "simple";
    options.runtime.device = "cuda";
    const smp_status status = smp_init(job, &options);
    unsetenv("SMP_GRAPHS");
    return status;
}

static bool has_graphs(const smp *job)
{
    smp_text text = {0};
    smp__captures_describe(job, &text);
    const bool has = text.data && strstr(text.data, " launches a step");
    smp_text_free(&text);
    return has;
}

static void make_inputs(int step)
{
    for (int i = 0; i < SAMPLES * T; i++) {
        tokens[i] = (7 * i + 3 * step) % VOCABULARY;
        targets[i] = (5 * i + step) % 9 == 0 ? -1 : (11 * i + step) % VOCABULARY;
    }
}

static void assert_same_weights(smp *a, smp *b)
{
    for (int i = 0; i < smp_weight_count(a); i++) {
        const int64_t n = smp_weight_elements(a, i);
        const size_t bytes = (size_t)n * sizeof(float);
        float *of_a = malloc(bytes), *of_b = malloc(bytes);
        must(smp_weight_get(a, smp_weight_name(a, i), of_a, n));
        must(smp_weight_get(b, smp_weight_name(b, i), of_b, n));
        assert_memory_equal(of_a, of_b, bytes);
        free(of_a);
        free(of_b);
    }
}

/* Micro-batches that write and that add, dropout, rates that change from step to step; batches that
 * end within a micro-batch and evaluations between them, for which nothing is captured; and a state
 * that is loaded. */
static void test_graphs_have_the_same_bits(void **state)
{
    (void)state;
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    static const int samples[] = {SAMPLES, SAMPLES, 5, SAMPLES, 1, SAMPLES, SAMPLES};
    for (int p = 0; p < 3; p++) {
        smp_options options = smp_options_default();
        smp *job[2];
        char path[128], file[192];
        options.runtime.precision = precisions[p];
        options.optimizer.lr = 1e-2f;
        options.optimizer.warmup_steps = 4;
        must(open_job("on", options, &job[0]));
        must(open_job("off", options, &job[1]));
        assert_true(has_graphs(job[0]));
        assert_false(has_graphs(job[1]));
        for (int k = 0; k < 7; k++) {
            smp_step_result step[2], evaluated[2];
            make_inputs(k);
            for (int i = 0; i < 2; i++) {
                must(smp_step_short(job[i], inputs, samples[k], &step[i]));
                must(smp_evaluate(job[i], inputs, &evaluated[i]));
            }
            assert_true(step[0].loss == step[1].loss);
            assert_true(step[0].grad_norm == step[1].grad_norm);
            assert_true(evaluated[0].loss == evaluated[1].loss);
        }
        assert_same_weights(job[0], job[1]);
        snprintf(path, sizeof path, "%s/saved", folder);
        snprintf(file, sizeof file, "%s/checkpoint-0000000007.smp", path);
        must(smp_save(job[1], path));
        must(smp_load(job[0], path));
        smp_step_result step[2];
        for (int i = 0; i < 2; i++)
            must(smp_step(job[i], inputs, &step[i]));
        assert_true(step[0].loss == step[1].loss);
        assert_same_weights(job[0], job[1]);
        smp_finalize(job[0]);
        smp_finalize(job[1]);
        assert_int_equal(unlink(file), 0);
        assert_int_equal(rmdir(path), 0);
    }
}

#ifdef SMP_EMULATED
static size_t free_bytes(void)
{
    size_t available, total;
    assert_int_equal(cudaMemGetInfo(&available, &total), cudaSuccess);
    return available;
}

/* What graphs take is there again after the job. */
static void test_graphs_leave_nothing(void **state)
{
    (void)state;
    smp *job;
    must(open_job("off", smp_options_default(), &job));
    const size_t inside = free_bytes();
    smp_finalize(job);
    const size_t before = free_bytes();
    must(open_job("on", smp_options_default(), &job));
    assert_true(free_bytes() < inside);
    smp_finalize(job);
    assert_int_equal(free_bytes(), before);
}
#endif

/* Random numbers are no part of a graph: those of the next step are others. */
static void test_graphs_draw_anew(void **state)
{
    (void)state;
    smp_options options = smp_options_default();
    smp_step_result first, second;
    smp *job;
    options.optimizer.lr = 0.0f;
    must(open_job("on", options, &job));
    make_inputs(1);
    must(smp_step(job, inputs, &first));
    must(smp_step(job, inputs, &second));
    assert_true(first.loss != second.loss);
    smp_finalize(job);
}

/* They are for a host that takes longer than its device, which the plan says; not where operators
 * are told apart. */
static void test_graphs_as_planned(void **state)
{
    (void)state;
    smp_options options = smp_options_default();
    smp *job;
    must(open_job(NULL, options, &job));
    assert_true(has_graphs(job));
    smp_finalize(job);
    options.runtime.record_costs = 1;
    must(open_job("on", options, &job));
    assert_false(has_graphs(job));
    smp_finalize(job);
    options.runtime.record_costs = 0;
    write_cluster("100MFLOP/s");
    must(open_job(NULL, options, &job));
    assert_false(has_graphs(job));
    smp_finalize(job);
    write_cluster("60TFLOP/s");
    assert_int_equal(open_job("always", options, &job), SMP_ERR_INPUT);
    assert_string_equal(smp_last_error(), "SMP_GRAPHS=always: expected on or off");
}

static int write_files(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/smp-test-XXXXXX", P_tmpdir);
    assert_non_null(mkdtemp(folder));
    snprintf(model_path, sizeof model_path, "%s/model.yaml", folder);
    snprintf(cluster_path, sizeof cluster_path, "%s/cluster.yaml", folder);
    write_file(model_path, model);
    write_cluster("60TFLOP/s");
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    unlink(model_path);
    unlink(cluster_path);
    return rmdir(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs_have_the_same_bits),
        cmocka_unit_test(test_graphs_draw_anew),
        cmocka_unit_test(test_graphs_as_planned),
#ifdef SMP_EMULATED
        cmocka_unit_test(test_graphs_leave_nothing),
#endif
    };
    MPI_Init(&argc, &argv);
    const smp_device *device = smp_device_find("cuda");
    int code = 77; /* skipped */
    if (!device || device->present() != SMP_OK)
        fprintf(stderr, "%s\n", device ? smp_last_error() : "built without CUDA");
    else
        code = cmocka_run_group_tests(tests, write_files, remove_files);
    MPI_Finalize();
    return code;
}

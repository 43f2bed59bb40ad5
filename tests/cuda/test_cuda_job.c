/* The library's calls for a job on a GPU, against the same job on the CPU. */
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

#include "exec/device/device.h"
#include "exec/state/handle.h"
#include "profile/profile.h"

enum { T = 8, WIDTH = 16, FEATURES = 6, SAMPLES = 6, VOCABULARY = 32 };

static const char model[] =
    "smp: 1\n"
    "name: job\n"
    "let: {T: 8, d: 16}\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [T]}\n"
    "  extra: {dtype: float32, shape: [T, 6]}\n"
    "  places: {dtype: int32, shape: [T], split: false}\n"
    "  gain: {dtype: float32, shape: [T, d], split: false}\n"
    "  targets: {dtype: int32, shape: [T]}\n"
    "ops:\n"
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: 32, features: d}\n"
    "  - {op: embedding, name: wpe, in: places, out: p, rows: 9, features: d}\n"
    "  - {op: add, name: placed, in: [x, p], out: x}\n"
    "  - {op: mul, name: gained, in: [x, gain], out: x}\n"
    "  - {op: linear, name: more, in: extra, out: y, features: d}\n"
    "  - {op: add, name: sum, in: [x, y], out: x}\n"
    "  - {op: linear, name: up, in: x, out: h, features: 2*d}\n"
    "  - {op: gelu, name: gelu, in: h, out: h}\n"
    "  - {op: split, name: parts, in: h, out: [p, q, unread], sizes: [d, d / 2, d / 2]}\n"
    "  - {op: concat, name: turned, in: [q, p], out: h}\n"
    "  - {op: batchnorm, name: bn, in: h, out: h}\n"
    "  - {op: linear, name: down, in: h, out: h, features: d}\n"
    "  - {op: add, name: skip, in: [x, h], out: x}\n"
    "  - {op: layernorm, name: ln, in: x, out: x}\n"
    "  - {op: linear, name: head, in: x, out: z, features: 32, bias: false, weight: wte.weight}\n"
    "  - {op: cross_entropy, name: loss, in: [z, targets], out: loss}\n"
    "loss: loss\n";

/* All images but the input's pixels lie channels last on a GPU. */
static const char image_model[] =
    "smp: 1\n"
    "name: images\n"
    "inputs:\n"
    "  pixels: {dtype: float32, shape: [6, 5, 16]}\n"
    "  label: {dtype: int32, shape: []}\n"
    "ops:\n"
    "  - {op: transpose, name: image, in: pixels, out: x, axes: [2, 0, 1]}\n"
    "  - {op: batchnorm, name: norm, in: x, out: a}\n"
    "  - {op: relu, name: relu, in: a, out: a}\n"
    "  - {op: max_pool, name: pool, in: a, out: b, kernel: 3, stride: 1, padding: 1}\n"
    "  - {op: add, name: sum, in: [a, b], out: a}\n"
    "  - {op: relu, name: relu_2, in: a, out: a}\n"
    "  - {op: groupnorm, name: groups, in: a, out: a, groups: 4}\n"
    "  - {op: batchnorm, name: norm_2, in: a, out: a}\n"
    "  - {op: relu, name: relu_3, in: a, out: a}\n"
    "  - {op: global_avg_pool, name: mean, in: a, out: a}\n"
    "  - {op: linear, name: head, in: a, out: z, features: 5}\n"
    "  - {op: cross_entropy, name: loss, in: [z, label], out: loss}\n"
    "loss: loss\n";

static const char cluster[] =
    "smp: 1\n"
    "name: one\n"
    "nodes: 1\n"
    "devices_per_node: 1\n"
    "device: {name: gpu, memory: 1GB, compute: {fp32: 60TFLOP/s, bf16: 900TFLOP/s},\n"
    "         bandwidth: 3TB/s}\n"
    "links:\n"
    "  intra_node: {bandwidth: 400GB/s, latency_us: 3}\n"
    "  inter_node: {bandwidth: 50GB/s, latency_us: 8}\n"
    "overlap: true\n";

static char folder[64], model_path[96], image_path[96], cluster_path[96];

static void must(smp_status status)
{
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
}

static smp *open_model(const char *path, const char *device, const char *precision)
{
    smp_options options = smp_options_default();
    smp *job = NULL;
    options.model = path;
    options.planning.cluster = cluster_path;
    options.planning.microbatches = 3;
    options.planning.microbatch_size = 2;
    options.planning.schedule = "simple";
    options.runtime.device = device;
    options.runtime.precision = precision;
    options.runtime.record_trace = options.runtime.record_costs = 1;
    options.optimizer.lr = 1e-2f;
    must(smp_init(&job, &options));
    assert_int_equal(smp_step_samples(job), SAMPLES);
    return job;
}

static smp *open_job(const char *device, const char *precision)
{
    return open_model(model_path, device, precision);
}

static int32_t tokens[SAMPLES * T], targets[SAMPLES * T];
static float extra[SAMPLES * T * FEATURES];
static int32_t places[T];
static float gain[T * WIDTH];
static const void *const inputs[] = {tokens, extra, places, gain, targets};

static void make_inputs(int step)
{
    for (int i = 0; i < SAMPLES * T; i++) {
        tokens[i] = (7 * i + 3 * step) % VOCABULARY;
        targets[i] = (5 * i + step) % 9 == 0 ? -1 : (11 * i + step) % VOCABULARY;
    }
    for (int i = 0; i < SAMPLES * T * FEATURES; i++)
        extra[i] = (float)((13 * i + step) % 17) / 8.5f - 1.0f;
    for (int i = 0; i < T; i++)
        places[i] = (i + step) % 9;
    for (int i = 0; i < T * WIDTH; i++)
        gain[i] = 1.0f + (float)((5 * i + step) % 7) / 14.0f;
}

static double step(smp *job, int number)
{
    smp_step_result result;
    make_inputs(number);
    must(smp_step(job, inputs, &result));
    assert_int_equal(result.step, number);
    return result.loss;
}

static void assert_near(double got, double expected, double relative)
{
    if (!(got >= expected * (1 - relative) && got <= expected * (1 + relative)))
        fail_msg("got %.9g, expected %.9g", got, expected);
}

static void test_cuda_job_near_cpu(void **state)
{
    (void)state;
    static const char *const precisions[] = {"fp32", "tf32", "bf16", "fp16"};
    for (int p = 0; p < 4; p++) {
        const double limit = p == 0 ? 1e-5 : 1e-2;
        smp *cpu = open_job("cpu", "fp32"), *gpu = open_job("cuda", precisions[p]);
        smp_step_result a, b;
        for (int k = 1; k <= 4; k++)
            assert_near(step(gpu, k), step(cpu, k), limit);
        must(smp_evaluate(gpu, inputs, &a));
        must(smp_evaluate(gpu, inputs, &b));
        assert_true(a.loss == b.loss);
        must(smp_evaluate(cpu, inputs, &b));
        assert_near(a.loss, b.loss, limit);
        assert_true(step(gpu, 5) > 0);
        smp_finalize(cpu);
        smp_finalize(gpu);
    }
}

/* Images that lie channels last: losses, and tensors that are handed out as [C, H, W]. */
static void test_cuda_job_images(void **state)
{
    (void)state;
    enum { PIXELS = 6 * 5 * 16, STEPS = 3 };
    static const char *const names[] = {"image", "norm", "relu", "pool", "relu_2", "groups"};
    static float pixels[SAMPLES * PIXELS], got[SAMPLES * PIXELS], want[SAMPLES * PIXELS];
    static int32_t label[SAMPLES];
    static const void *const given[] = {pixels, label};
    for (int i = 0; i < SAMPLES * PIXELS; i++)
        pixels[i] = (float)((13 * i + i / 7) % 29) / 8.5f - 1.0f;
    for (int i = 0; i < SAMPLES; i++)
        label[i] = i % 5;
    for (int is_bf16 = 0; is_bf16 <= 1; is_bf16++) {
        const double limit = is_bf16 ? 2e-2 : 1e-5;
        smp *cpu = open_model(image_path, "cpu", "fp32");
        smp *gpu = open_model(image_path, "cuda", is_bf16 ? "bf16" : "fp32");
        for (int32_t t = 0; t < gpu->graph->n_tensor; t++)
            assert_int_equal(gpu->graph->tensor[t].channels_last,
                             gpu->graph->tensor[t].shape.n_dim == 3 && t > 0);
        for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
            must(smp_predict(gpu, given, SAMPLES, names[n], SMP_OUTPUT_CONCAT, got));
            must(smp_predict(cpu, given, SAMPLES, names[n], SMP_OUTPUT_CONCAT, want));
            for (int i = 0; i < SAMPLES * PIXELS; i++)
                if (!(fabsf(got[i] - want[i]) <= 3 * (float)limit))
                    fail_msg("%s[%d]: got %g, expected %g", names[n], i, (double)got[i],
                             (double)want[i]);
        }
        for (int k = 0; k < STEPS; k++) {
            smp_step_result a, b;
            must(smp_step(gpu, given, &a));
            must(smp_step(cpu, given, &b));
            assert_near(a.loss, b.loss, limit);
        }
        smp_finalize(cpu);
        smp_finalize(gpu);
    }
}

/* Batches that end within a micro-batch, with one, and before it; behind them stands what no kernel
 * may see. */
static void test_cuda_job_short_batches(void **state)
{
    (void)state;
    static const int given[] = {5, 1, SAMPLES, 4};
    for (int is_bf16 = 0; is_bf16 <= 1; is_bf16++) {
        const double limit = is_bf16 ? 1e-2 : 1e-5;
        smp *cpu = open_job("cpu", "fp32"), *gpu = open_job("cuda", is_bf16 ? "bf16" : "fp32");
        for (int k = 0; k < 4; k++) {
            smp_step_result a, b;
            make_inputs(k);
            for (int i = given[k] * T; i < SAMPLES * T; i++)
                tokens[i] = targets[i] = VOCABULARY;
            for (int i = given[k] * T * FEATURES; i < SAMPLES * T * FEATURES; i++)
                extra[i] = NAN;
            must(smp_evaluate_short(gpu, inputs, given[k], &a));
            must(smp_evaluate_short(cpu, inputs, given[k], &b));
            assert_near(a.loss, b.loss, limit);
            assert_true(a.hits >= 0 && (a.hits == b.hits || is_bf16));
            assert_true(a.hits_top5 >= a.hits && (a.hits_top5 == b.hits_top5 || is_bf16));
            must(smp_step_short(gpu, inputs, given[k], &a));
            must(smp_step_short(cpu, inputs, given[k], &b));
            assert_near(a.loss, b.loss, limit);
            assert_int_equal(a.loss_rows, b.loss_rows);
            assert_int_equal(a.hits, -1);
            assert_int_equal(a.skipped + b.skipped, 0);
        }
        smp_finalize(cpu);
        smp_finalize(gpu);
    }
}

/* What is set is what is read, and what is computed with: a copy in bf16 follows. */
static void test_cuda_job_weights_by_name(void **state)
{
    (void)state;
    static float zero[VOCABULARY * 16], got[VOCABULARY * 16];
    smp *job = open_job("cuda", "bf16");
    smp_step_result result;
    make_inputs(1);
    must(smp_weight_set(job, "wte.weight", zero, VOCABULARY * 16));
    must(smp_weight_get(job, "wte.weight", got, VOCABULARY * 16));
    assert_memory_equal(got, zero, sizeof got);
    must(smp_evaluate(job, inputs, &result)); /* all classes are equally likely */
    assert_near(result.loss, 3.4657359, 1e-6);
    smp_finalize(job);
}

/* One written by a CPU; one written behind the steps of a GPU. */
static void test_cuda_job_checkpoint(void **state)
{
    (void)state;
    char path[128], file[192], third[192];
    snprintf(path, sizeof path, "%s/saved", folder);
    snprintf(file, sizeof file, "%s/checkpoint-0000000002.smp", path);
    snprintf(third, sizeof third, "%s/checkpoint-0000000003.smp", path);
    smp *cpu = open_job("cpu", "fp32"), *gpu = open_job("cuda", "fp32");
    step(cpu, 1);
    step(cpu, 2);
    must(smp_save(cpu, path));
    must(smp_load(gpu, path));
    assert_near(step(gpu, 3), step(cpu, 3), 1e-5);
    const double again = step(gpu, 4);
    must(smp_load(gpu, path));
    step(gpu, 3);
    must(smp_save_begin(gpu, path));
    assert_true(step(gpu, 4) == again);
    step(gpu, 5);
    must(smp_save_wait(gpu));
    must(smp_load(gpu, path));
    assert_true(step(gpu, 4) == again);
    must(smp_save(gpu, path));
    step(gpu, 5);
    must(smp_load(gpu, path));
    assert_int_equal(gpu->step, 4);
    smp_finalize(cpu);
    smp_finalize(gpu);
    assert_int_equal(unlink(file), -1); /* two are kept */
    assert_int_equal(unlink(third), 0);
    third[strlen(third) - 5]++; /* 4.smp */
    assert_int_equal(unlink(third), 0);
    assert_int_equal(rmdir(path), 0);
}

/* Kernels cannot refuse an index: the host does, before they see it. */
static void test_cuda_job_refuses_indices(void **state)
{
    (void)state;
    smp *job = open_job("cuda", "fp32");
    smp_step_result result;
    make_inputs(1);
    tokens[3 * T + 1] = VOCABULARY;
    assert_int_equal(smp_step(job, inputs, &result), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "input 'tokens': 32 at position 9 of micro-batch 1, "
                                             "op 'wte' (embedding) expects 0 to 31"));
    smp_finalize(job);
}

/* The device's times: actions one after another, within the step. */
static void test_cuda_job_trace(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/trace.json", folder);
    smp *job = open_job("cuda", "fp32");
    smp_step_result result;
    step(job, 1);
    step(job, 2);
    must(smp_evaluate(job, inputs, &result)); /* the trace stays that of the step */
    must(smp_trace_write(job, path));
    smp_trace_event *event;
    const int64_t n = smp__record_events(job->record, &event);
    assert_int_equal(n, job->work->program->n);
    for (int64_t i = 0; i < n; i++, event++) {
        assert_true(event->end_us >= event->start_us && event->start_us >= -1.0);
        assert_true(i == 0 || event->start_us >= event[-1].end_us - 1.0);
    }
    smp_finalize(job);
    assert_int_equal(unlink(path), 0);
}

/* The costs of the run are those of the device, read behind the steps that follow. */
static void test_cuda_job_costs(void **state)
{
    (void)state;
    char path[96];
    snprintf(path, sizeof path, "%s/costs.yaml", folder);
    smp *job = open_job("cuda", "fp32");
    for (int k = 1; k <= 4; k++)
        step(job, k);
    must(smp_costs_write(job, path));
    smp_profile *profile;
    must(smp_profile_read(path, job->graph, &profile));
    for (int32_t i = 0; i < profile->n_op; i++)
        assert_true(profile->op[i].forward_us + profile->op[i].backward_us > 0);
    assert_true(profile->optimizer_bytes_per_s > 0);
    assert_string_not_equal(profile->device, "cpu");
    smp_profile_destroy(profile);
    smp_finalize(job);
    assert_int_equal(unlink(path), 0);
}

/* CUDA is told how many queues to open by a variable, which is not the host's. */
static void test_cuda_job_leaves_the_environment(void **state)
{
    (void)state;
    static const char name[] = "CUDA_DEVICE_MAX_CONNECTIONS";
    assert_int_equal(unsetenv(name), 0);
    smp *job = open_job("cuda", "fp32");
    assert_null(getenv(name));
    smp_finalize(job);
    assert_int_equal(setenv(name, "8", 1), 0); /* the user's own stands */
    smp_finalize(open_job("auto", "fp32"));
    assert_string_equal(getenv(name), "8");
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int write_files(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/smp-test-XXXXXX", P_tmpdir);
    assert_non_null(mkdtemp(folder));
    snprintf(model_path, sizeof model_path, "%s/model.yaml", folder);
    snprintf(cluster_path, sizeof cluster_path, "%s/cluster.yaml", folder);
    snprintf(image_path, sizeof image_path, "%s/images.yaml", folder);
    write_file(model_path, model);
    write_file(image_path, image_model);
    write_file(cluster_path, cluster);
    return 0;
}

static int remove_files(void **state)
{
    (void)state;
    unlink(model_path);
    unlink(image_path);
    unlink(cluster_path);
    return rmdir(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_job_near_cpu),
        cmocka_unit_test(test_cuda_job_images),
        cmocka_unit_test(test_cuda_job_weights_by_name),
        cmocka_unit_test(test_cuda_job_checkpoint),
        cmocka_unit_test(test_cuda_job_refuses_indices),
        cmocka_unit_test(test_cuda_job_trace),
        cmocka_unit_test(test_cuda_job_costs),
        cmocka_unit_test(test_cuda_job_short_batches),
        cmocka_unit_test(test_cuda_job_leaves_the_environment),
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

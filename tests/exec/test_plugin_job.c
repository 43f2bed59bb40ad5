/* Operators of a user's own in jobs of one process: registered after other models were read, by a
 * plugin or by the program; several jobs one after another give the same bits. */
#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/text.h"
#include "smp.h"
#include "tests/exec/open_ranks.h"

enum { TOKENS = 32, SAMPLES = 4, STEPS = 3, CHANNELS = 64 };

static const char *const plugin[] = {SMP_TEST_PLUGIN, SMP_TEST_PLUGIN};

static smp_options options_of(const char *model)
{
    smp_options options = smp_options_default();
    options.model = model;
    options.microbatches = 2;
    options.microbatch_size = SAMPLES / 2;
    options.lr = 1e-2f;
    options.timeout_s = 60;
    return options;
}

/* Trains; the weights of the operator. */
static void train(const smp_options *options, float alpha[CHANNELS], double *loss)
{
    static int32_t bytes[2][SAMPLES * TOKENS];
    const void *const inputs[] = {bytes[0], bytes[1]};
    smp *job = NULL;
    smp_step_result result = {0};
    must(smp_init(&job, options));
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < SAMPLES * TOKENS; i++) {
            bytes[0][i] = (i * 7 + step) % 256;
            bytes[1][i] = (i * 7 + step + 7) % 256;
        }
        must(smp_step(job, inputs, &result));
    }
    must(smp_weight_get(job, "snake.alpha", alpha, CHANNELS));
    *loss = result.loss;
    smp_finalize(job);
}

static void test_plugin_job_loads_what_it_needs(void **state)
{
    (void)state;
    const char *model = SMP_SOURCE_DIR "/examples/plugin/snake.yaml";
    float alpha[2][CHANNELS];
    double loss[2];
    smp *job = NULL;
    smp_options options = options_of(SMP_SOURCE_DIR "/examples/mlp.yaml");
    must(smp_init(&job, &options));
    smp_finalize(job);
    job = NULL;
    options = options_of(model);
    assert_int_equal(smp_init(&job, &options), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "unknown op 'snake'"));
    assert_null(job);
    options.plugins = plugin;
    options.n_plugins = 2;
    train(&options, alpha[0], &loss[0]);
    assert_true(alpha[0][0] != 1); /* it has learned */
    options.n_plugins = 1;
    train(&options, alpha[1], &loss[1]);
    assert_memory_equal(alpha[0], alpha[1], sizeof alpha[0]);
    assert_true(loss[0] == loss[1]);
    options.plugins = NULL;
    options.n_plugins = 0; /* what a job has loaded stays */
    train(&options, alpha[1], &loss[1]);
    assert_memory_equal(alpha[0], alpha[1], sizeof alpha[0]);
}

static void test_plugin_job_says_which_file_is_missing(void **state)
{
    (void)state;
    smp *job = NULL;
    smp_options options = options_of(SMP_SOURCE_DIR "/examples/mlp.yaml");
    options.plugins = (const char *const[]){"absent.so"};
    options.n_plugins = 1;
    assert_int_equal(smp_init(&job, &options), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "plugin 'absent.so' cannot be loaded"));
    assert_int_equal(smp_plan_write(&options, "/dev/null"), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "plugin 'absent.so' cannot be loaded"));
}

/* y = x. */
static smp_status copy(const smp_custom_call *call)
{
    memcpy(call->out[0], call->in[0], (size_t)call->batch * sizeof(float));
    return SMP_OK;
}

static smp_status copy_backward(const smp_custom_call *call)
{
    if (call->in_grad[0])
        memcpy(call->in_grad[0], call->out_grad[0], (size_t)call->batch * sizeof(float));
    return SMP_OK;
}

static void test_plugin_job_takes_what_the_program_registers(void **state)
{
    (void)state;
    static const char text[] = "smp: 1\nname: m\ninputs:\n  x: {dtype: float32, shape: [1]}\n"
                               "  y: {dtype: float32, shape: [1]}\nops:\n"
                               "  - {op: linear, name: fc, in: x, out: u, features: 1}\n"
                               "  - {op: copy, name: same, in: u, out: u}\n"
                               "  - {op: mse, name: loss, in: [u, y], out: loss}\nloss: loss\n";
    static const smp_custom_op op = {.abi = SMP_CUSTOM_ABI,
                                     .size = sizeof op,
                                     .name = "copy",
                                     .summary = "its input",
                                     .min_inputs = 1,
                                     .max_inputs = 1,
                                     .forward = copy,
                                     .backward_input = copy_backward};
    const float x[SAMPLES] = {0, 1, 2, 3}, y[SAMPLES] = {5, 6, 7, 8};
    const void *const inputs[] = {x, y};
    char path[sizeof ranks_folder + 16];
    smp *job = NULL;
    smp_step_result first, last;
    snprintf(path, sizeof path, "%s/copy.yaml", ranks_folder);
    must(smp_file_write(path, text, sizeof text - 1));
    must(smp_op_register(&op));
    smp_options options = options_of(path);
    must(smp_init(&job, &options));
    must(smp_step(job, inputs, &first));
    must(smp_step(job, inputs, &last));
    assert_true(last.loss < first.loss);
    smp_finalize(job);
    assert_int_equal(remove(path), 0);
}

int main(int argc, char **argv)
{
    open_ranks(&argc, &argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plugin_job_loads_what_it_needs),
        cmocka_unit_test(test_plugin_job_says_which_file_is_missing),
        cmocka_unit_test(test_plugin_job_takes_what_the_program_registers),
    };
    return close_ranks(cmocka_run_group_tests(tests, NULL, NULL));
}

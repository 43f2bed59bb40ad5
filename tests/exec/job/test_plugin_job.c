/* Operators of a user's own in jobs of one process: registered after other models were read, by a
 * plugin or by the program; several jobs one after another give the same bits. */
#include <math.h>
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
    options.planning.microbatches = 2;
    options.planning.microbatch_size = SAMPLES / 2;
    options.optimizer.lr = 1e-2f;
    options.runtime.timeout_s = 60;
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
    options.runtime.plugins = plugin;
    options.runtime.n_plugins = 2;
    train(&options, alpha[0], &loss[0]);
    assert_true(alpha[0][0] != 1); /* it has learned */
    options.runtime.n_plugins = 1;
    train(&options, alpha[1], &loss[1]);
    assert_memory_equal(alpha[0], alpha[1], sizeof alpha[0]);
    assert_true(loss[0] == loss[1]);
    options.runtime.plugins = NULL;
    options.runtime.n_plugins = 0; /* what a job has loaded stays */
    train(&options, alpha[1], &loss[1]);
    assert_memory_equal(alpha[0], alpha[1], sizeof alpha[0]);
}

static void test_plugin_job_says_which_file_is_missing(void **state)
{
    (void)state;
    smp *job = NULL;
    smp_options options = options_of(SMP_SOURCE_DIR "/examples/mlp.yaml");
    options.runtime.plugins = (const char *const[]){"absent.so"};
    options.runtime.n_plugins = 1;
    assert_int_equal(smp_init(&job, &options), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "plugin 'absent.so' cannot be loaded"));
    assert_int_equal(smp_plan_write(&options, "/dev/null"), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "plugin 'absent.so' cannot be loaded"));
}

/* A loss: the mean square of x - y. */
static smp_status squares(const smp_custom_call *call)
{
    const float *x = call->in[0], *y = call->in[1];
    const int64_t n = call->batch - call->padding;
    float sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (x[i] - y[i]) * (x[i] - y[i]);
    call->out[0][0] = n > 0 ? sum / (float)n : 0;
    return SMP_OK;
}

static smp_status squares_backward(const smp_custom_call *call)
{
    const float *x = call->in[0], *y = call->in[1];
    const int64_t n = call->batch - call->padding;
    for (int64_t i = 0; call->in_grad[0] && i < call->batch; i++)
        call->in_grad[0][i] = i < n ? 2 * call->out_grad[0][0] / (float)n * (x[i] - y[i]) : 0;
    return SMP_OK;
}

/* Two steps and a short one, which leaves the second micro-batch half empty. */
static void losses_with(const char *loss, double losses[3])
{
    const float x[SAMPLES] = {0, 1, 2, 3}, y[SAMPLES] = {5, 6, 7, -80};
    const void *const inputs[] = {x, y};
    char path[sizeof ranks_folder + 16], text[512];
    smp *job = NULL;
    smp_step_result result;
    snprintf(path, sizeof path, "%s/loss.yaml", ranks_folder);
    snprintf(text, sizeof text,
             "smp: 1\nname: m\ninputs:\n  x: {dtype: float32, shape: [1]}\n"
             "  y: {dtype: float32, shape: [1]}\nops:\n"
             "  - {op: linear, name: fc, in: x, out: u, features: 1}\n"
             "  - {op: %s, name: loss, in: [u, y], out: loss}\nloss: loss\n",
             loss);
    must(smp_file_write(path, text, strlen(text)));
    smp_options options = options_of(path);
    must(smp_init(&job, &options));
    for (int step = 0; step < 3; step++) {
        must(smp_step_short(job, inputs, step < 2 ? SAMPLES : SAMPLES - 1, &result));
        losses[step] = result.loss;
    }
    smp_finalize(job);
    assert_int_equal(remove(path), 0);
}

/* Registered by the program, a loss of its own is what the built-in one is, short batches too. */
static void test_plugin_job_takes_what_the_program_registers(void **state)
{
    (void)state;
    static const smp_custom_op op = {.abi = SMP_CUSTOM_ABI,
                                     .size = sizeof op,
                                     .name = "squares",
                                     .summary = "mean square of a difference",
                                     .min_inputs = 2,
                                     .max_inputs = 2,
                                     .loss = 1,
                                     .forward = squares,
                                     .backward_input = squares_backward};
    double built_in[3], own[3];
    must(smp_op_register(&op));
    losses_with("mse", built_in);
    losses_with("squares", own);
    assert_true(built_in[2] < built_in[1] && built_in[1] < built_in[0]);
    for (int step = 0; step < 3; step++)
        if (fabs(own[step] - built_in[step]) > 1e-6 * built_in[step])
            fail_msg("loss %d is %.9g, expected %.9g", step, own[step], built_in[step]);
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

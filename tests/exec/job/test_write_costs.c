/* The costs of a run: what its operators take is what its actions take, by the same clock. */
#include <math.h>
#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/state/device_wait.h"
#include "exec/state/handle.h"
#include "exec/step/cost_samples.h"
#include "profile/estimate.h"
#include "tests/exec/open_ranks.h"

enum { MOST_INPUTS = 4, MOST_VALUES = 1 << 14, MICROBATCHES = 2, TRIES = 10 };

static smp_options one_rank(const char *schedule, bool record)
{
    smp_options options = smp_options_default();
    options.model = SMP_SOURCE_DIR "/examples/gpt-tiny.yaml";
    options.planning.stages = options.planning.ddp = options.planning.chunks = 1;
    options.planning.microbatches = MICROBATCHES;
    options.planning.microbatch_size = 1;
    options.planning.schedule = schedule;
    options.runtime.record_trace = options.runtime.record_costs = record;
    return options;
}

static smp *open_job(const char *schedule, bool record)
{
    const smp_options options = one_rank(schedule, record);
    smp *job = NULL;
    must(smp_init(&job, &options));
    return job;
}

static void take_step(smp *job)
{
    static int32_t zeroes[MOST_VALUES];
    const void *inputs[MOST_INPUTS];
    smp_step_result result;
    assert_true(smp_input_count(job) <= MOST_INPUTS);
    for (int i = 0; i < smp_input_count(job); i++) {
        assert_true(smp_step_samples(job) * smp_input_elements(job, i) <= MOST_VALUES);
        inputs[i] = zeroes;
    }
    must(smp_step(job, inputs, &result));
}

/* Of the last step, of one micro-batch: the actions of a kind. */
static double action_us(smp *job, smp_action_kind kind, int microbatch)
{
    double us = 0.0;
    must(smp__trace_collect(job));
    smp_trace_event *event;
    for (int64_t n = smp__record_events(job->record, &event); n > 0; n--, event++)
        if (event->action.kind == kind && event->action.microbatch == microbatch)
            us += event->end_us - event->start_us;
    return us;
}

static smp_profile *written(smp *job, const char *path)
{
    smp_profile *profile = NULL;
    must(smp_costs_write(job, path));
    must(smp_profile_read(path, job->graph, &profile));
    assert_int_equal(unlink(path), 0);
    return profile;
}

typedef struct op_sums {
    double forward_us, input_us, weight_us;
} op_sums;

/* Every operator that runs has a time, every other none. */
static op_sums sum_ops(const smp *job, const smp_profile *profile)
{
    op_sums sum = {0};
    for (int32_t i = 0; i < profile->n_op; i++) {
        const smp_op *op = &job->graph->op[i];
        const smp_op_cost *cost = &profile->op[i];
        assert_int_equal(cost->forward_us > 0, !smp__is_fused_second(job->graph, op));
        assert_int_equal(cost->backward_input_us > 0, smp__runs_backward_input(job->graph, op) &&
                                                          !smp__is_fused_backward(job->graph, op));
        assert_int_equal(cost->backward_weight_us > 0, smp__runs_backward_weight(job->graph, op));
        assert_true(fabs(cost->backward_us - cost->backward_input_us - cost->backward_weight_us) <
                    1e-2);
        sum.forward_us += cost->forward_us;
        sum.input_us += cost->backward_input_us;
        sum.weight_us += cost->backward_weight_us;
    }
    return sum;
}

/* Marks lie within the action, and but for what goes on elsewhere fill it. */
static bool fills(double ops_us, double action_us)
{
    assert_true(ops_us <= action_us + 1.0);
    return ops_us >= 0.9 * action_us;
}

/* Costs are read after one step each, so that a profile is of one step; a machine that stops the
 * test between an action's begin and its operators does not do so always. */
static void check_sums(const char *schedule, bool split)
{
    char path[96];
    bool all = false;
    snprintf(path, sizeof path, "%s/profile.yaml", ranks_folder);
    for (int attempt = 0; attempt < TRIES && !all; attempt++) {
        smp *job = open_job(schedule, true);
        take_step(job);
        smp_profile *profile = written(job, path);
        const op_sums sum = sum_ops(job, profile);
        all = fills(sum.forward_us, action_us(job, SMP_ACTION_F, 0));
        if (split) {
            all = fills(sum.input_us, action_us(job, SMP_ACTION_I, 0)) && all;
            all = fills(sum.weight_us, action_us(job, SMP_ACTION_W, 0)) && all;
        } else {
            all = fills(sum.input_us + sum.weight_us, action_us(job, SMP_ACTION_B, 0)) && all;
        }
        assert_int_equal(profile->microbatch_size, 1);
        assert_true(profile->optimizer_bytes_per_s > 0);
        assert_int_equal(profile->link[SMP_LINK_INTRA_NODE].n_point, 0);
        smp_profile_destroy(profile);
        smp_finalize(job);
    }
    assert_true(all);
}

static void test_write_costs_sum_to_the_actions(void **state)
{
    (void)state;
    check_sums("1f1b", false);
}

static void test_write_costs_of_split_backwards(void **state)
{
    (void)state;
    check_sums("zero-bubble", true);
}

/* The time of an operator is the median over the steps: each looks at another micro-batch, more of
 * them than are kept. */
static void test_write_costs_of_many_steps(void **state)
{
    (void)state;
    char path[96];
    snprintf(path, sizeof path, "%s/profile.yaml", ranks_folder);
    smp *job = open_job("1f1b", true);
    smp_profile *last = NULL;
    for (int step = 0; step < 70; step++) {
        take_step(job);
        if (step % 3 == 0) {
            smp_profile_destroy(last);
            last = written(job, path);
            sum_ops(job, last);
        }
    }
    smp_profile_destroy(last);
    smp_finalize(job);
}

/* A run does not measure what its plan may know of shared cores and of launches. */
static void test_write_costs_keeps_the_core_switch(void **state)
{
    (void)state;
    char path[96], made[96];
    snprintf(path, sizeof path, "%s/profile.yaml", ranks_folder);
    snprintf(made, sizeof made, "%s/made.yaml", ranks_folder);
    smp_options options = one_rank("1f1b", true);
    smp_profile *profile = NULL;
    for (int round = 0; round < 2; round++) {
        smp *job = NULL;
        must(smp_init(&job, &options));
        take_step(job);
        profile = written(job, made);
        assert_true(profile->core_switch_us == (round == 0 ? 0 : 33.5));
        assert_true(profile->launch.kernel_us == (round == 0 ? 0 : 2.5));
        profile->core_switch_us = 33.5;
        profile->launch = (smp_launch_costs){2.5, 6, 0.125};
        must(smp_profile_write(profile, path));
        options.planning.profile = path;
        smp_profile_destroy(profile);
        smp_finalize(job);
    }
    assert_int_equal(unlink(path), 0);
}

enum { SLEEP_US = 50000 };
static smp_op_kernels sleepy, awake;

static smp_status sleepy_forward(const smp_op_call *call)
{
    usleep(SLEEP_US);
    return awake.forward(call);
}

/* Time in which a rank has no core is that of its operators only if nobody else has it then. */
static void test_write_costs_of_a_shared_core(void **state)
{
    (void)state;
    char path[96];
    snprintf(path, sizeof path, "%s/profile.yaml", ranks_folder);
    for (int crowded = 0; crowded <= 1; crowded++) {
        smp *job = open_job("1f1b", true);
        smp__call *call = &job->work->chunk[0].call[0];
        sleepy = awake = *call->kernels;
        sleepy.forward = sleepy_forward;
        call->kernels = &sleepy;
        job->comm->crowded = crowded;
        take_step(job);
        smp_profile *profile = written(job, path);
        assert_int_equal(profile->op[call->layout->op].forward_us < SLEEP_US, crowded);
        assert_true(profile->op[call->layout->op].forward_us > 0);
        smp_profile_destroy(profile);
        smp_finalize(job);
    }
}

/* A plan for a GPU, run on the CPU: what it says of the GPU's memory is not of the CPU. */
static void test_write_costs_of_a_gpu_plan_on_the_cpu(void **state)
{
    (void)state;
    char path[96];
    snprintf(path, sizeof path, "%s/profile.yaml", ranks_folder);
    smp *job = open_job("simple", true);
    take_step(job);
    ((smp_plan *)job->plan)->target.backend = SMP_BACKEND_CUDA;
    ((smp_plan *)job->plan)->library_bytes = 1 << 20;
    smp_profile *profile = written(job, path);
    assert_true(profile->library_bytes == 0 && profile->memory_bytes == 0);
    smp_profile_destroy(profile);
    smp_finalize(job);
}

static void test_write_costs_refuses(void **state)
{
    (void)state;
    smp *job = open_job("1f1b", true);
    assert_int_equal(smp_costs_write(job, "/dev/null"), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "no step was taken"));
    take_step(job);
    assert_int_equal(smp_costs_write(job, NULL), SMP_ERR_INPUT);
    assert_int_equal(smp_costs_write(NULL, "/dev/null"), SMP_ERR_INPUT);
    assert_int_not_equal(smp_costs_write(job, "/absent/profile.yaml"), SMP_OK);
    smp_finalize(job);
    job = open_job("1f1b", false);
    take_step(job);
    assert_int_equal(smp_costs_write(job, "/dev/null"), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "record_costs"));
    smp_finalize(job);
}

/* Of eight steps another operator is late in each: no operator usually is, but every action has one
 * that is. */
static void test_write_costs_of_late_operators(void **state)
{
    (void)state;
    enum { STEPS = 40, LATE = 8 };
    char path[96];
    snprintf(path, sizeof path, "%s/profile.yaml", ranks_folder);
    smp *job = open_job("1f1b", true);
    take_step(job);
    smp__cost_samples *c = job->stepping->cost_samples;
    const int32_t n_call = job->work->chunk[0].layout->n_call;
    double action_us = 0.0;
    for (int step = 0; step < STEPS; step++)
        for (int32_t i = 0; i < n_call; i++) {
            double *us = &c->us[(c->first[0] + SMP__COST_PARTS * i) * SMP__COST_SAMPLES + step];
            *us = i % LATE == step % LATE ? 30.0 : 10.0;
        }
    for (int32_t i = 0; i < n_call; i++)
        action_us += i % LATE == 0 ? 30.0 : 10.0;
    c->n_step = STEPS;
    smp_profile *profile = written(job, path);
    double sum_us = 0.0;
    for (int32_t i = 0; i < profile->n_op; i++)
        sum_us += profile->op[i].forward_us;
    assert_true(fabs(sum_us / action_us - 1.0) < 0.05);
    assert_true(profile->scatter > 0 && profile->scatter <= 1);
    smp_profile_destroy(profile);
    smp_finalize(job);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_costs_sum_to_the_actions),
        cmocka_unit_test(test_write_costs_of_split_backwards),
        cmocka_unit_test(test_write_costs_of_many_steps),
        cmocka_unit_test(test_write_costs_keeps_the_core_switch),
        cmocka_unit_test(test_write_costs_of_late_operators),
        cmocka_unit_test(test_write_costs_of_a_shared_core),
        cmocka_unit_test(test_write_costs_of_a_gpu_plan_on_the_cpu),
        cmocka_unit_test(test_write_costs_refuses),
    };
    open_ranks(&argc, &argv);
    return close_ranks(cmocka_run_group_tests(tests, NULL, NULL));
}

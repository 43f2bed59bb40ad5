/* Calls that save a pass over memory, against the calls that do not. */
#ifndef SMP_TESTS_CUDA_OP_SHORTCUTS_H
#define SMP_TESTS_CUDA_OP_SHORTCUTS_H

#include "tests/cuda/test_cuda_ops_harness.h"

/* What a call adds its gradient to, in another array or in place: the sum of two rounded values,
 * rounded. */
static inline void check_plus(const op_run *host, device_run *run, const void *first)
{
    const smp_dtype dtype = device_dtype(run, run->op->in[0]);
    for (int in_place = 0; run->needs.input_grad_adds && in_place <= 1; in_place++) {
        if (in_place)
            device_put_tensors(run, &run->din[0], run->op->in[0], 1, &host->in[0]);
        run->plus = in_place ? run->din[0].data : run->in[0].data;
        device_backward_input(run, host, 1);
        void *got = device_get_tensors(run, &run->din[0], run->op->in[0], 1);
        for (int64_t i = 0; i < (int64_t)host->in[0].bytes / 4; i++) {
            float sum = ((float *)host->in[0].data)[i] + value_of(first, dtype, i);
            if (smp_dtype_is_half(dtype))
                sum = half_value(dtype, half_bits(dtype, sum));
            assert_true(value_of(got, dtype, i) == sum);
        }
        free(got);
    }
}

/* What is written where nothing was yet: as if it had been added to zeroes. */
static inline void check_fresh(const op_run *host, device_run *run)
{
    float *sum[SMP_OP_MAX_PARAM];
    for (int i = 0; i < host->op->n_param; i++)
        cuda_ok(cudaMemset(run->dparam[i].data, 0, host->dparam[i].bytes));
    device_backward_weight(run, host);
    for (int i = 0; i < host->op->n_param; i++) {
        sum[i] = device_get(&run->dparam[i]);
        device_buffer_poison(&run->dparam[i]);
    }
    run->fresh = true;
    device_backward_weight(run, host);
    for (int i = 0; i < host->op->n_param; i++) {
        float *written = device_get(&run->dparam[i]);
        for (size_t e = 0; e < host->dparam[i].bytes / 4; e++)
            assert_true(written[e] == sum[i][e]);
        free(written);
        free(sum[i]);
    }
}

/* What backward finds: accumulators with something in them, or nothing if fresh; what comes to the
 * input's gradient besides in another array (1), in place (2), or nothing (0). */
static inline void prepare_backward(const op_run *host, device_run *run, int plus, bool fresh)
{
    run->fresh = fresh;
    for (int i = 0; i < host->op->n_param; i++)
        if (fresh)
            device_buffer_poison(&run->dparam[i]);
        else
            device_put(&run->dparam[i], SMP_F32, &host->dparam[i]);
    if (plus == 2)
        device_put_tensors(run, &run->din[0], run->op->in[0], 1, &host->in[0]);
    run->plus = plus == 0 ? NULL : plus == 1 ? run->in[0].data : run->din[0].data;
}

/* Two backward calls and both as one: the same bits. */
static inline void check_backward(const op_run *host, device_run *run)
{
    assert_true(run->kernels->backward_input && run->kernels->backward_weight);
    for (int plus = 0; plus < (run->needs.input_grad_adds ? 3 : 1); plus++)
        for (int fresh = 0; fresh <= (int)run->kernels->writes_fresh; fresh++) {
            prepare_backward(host, run, plus, fresh);
            device_backward_weight(run, host);
            device_backward_input(run, host, ~0u);
            device_results apart = device_results_get(run);
            prepare_backward(host, run, plus, fresh);
            device_backward(run, host);
            device_results whole = device_results_get(run);
            for (int i = 0; i < host->op->n_in; i++)
                assert_memory_equal(whole.din[i], apart.din[i], (size_t)run->din[i].bytes);
            for (int i = 0; i < host->op->n_param; i++)
                assert_memory_equal(whole.dparam[i], apart.dparam[i], (size_t)run->dparam[i].bytes);
            device_results_free(&apart);
            device_results_free(&whole);
        }
}

/* first: the gradient of the first input. */
static inline void check_shortcuts(const smp_graph *graph, const op_run *host, const void *first)
{
    device_run run;
    device_run_open(&run, graph, "op", host->batch, 1);
    device_run_put(&run, host);
    device_forward(&run, host);
    check_plus(host, &run, first);
    if (run.kernels->writes_fresh)
        check_fresh(host, &run);
    if (run.kernels->backward)
        check_backward(host, &run);
    device_run_close(&run);
}

#endif

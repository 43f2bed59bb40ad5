/* load_balance on a GPU: a gradient that is not forward's, against the CPU's. A sample of padding
 * adds nothing to it. Runs on the emulator and on a GPU. */
#include "tests/cuda/test_cuda_ops_cases.h"
#include "tests/cuda/test_cuda_ops_harness.h"

static void compare(const smp_graph *graph, const void *got, const buffer *want, double bound)
{
    const smp_dtype dtype = graph->tensor[0].dtype;
    const size_t n = want->bytes / 4;
    const double most = largest(want->data, n, 0);
    assert_true(most > 1.5); /* more than what comes from behind */
    for (size_t i = 0; i < n; i++) {
        double error = (double)value_of(got, dtype, (int64_t)i) - (double)((float *)want->data)[i];
        if (!(fabs(error) <= bound * most))
            fail_msg("gradient[%zu] of %zu, %d: %g off of %g, largest %g", i, n, (int)dtype, error,
                     (double)((float *)want->data)[i], most);
    }
}

static void check_model(const large_case *model, smp_precision precision, int64_t padding)
{
    const op_case of = op_case_of("load_balance");
    const smp_dtype half = smp_precision_dtype(precision);
    model_text m;
    uint64_t rng;
    op_run host;
    device_run run;
    large_case_model(&of, model, &m, &rng);
    smp_graph *graph = device_graph(m.yaml, precision);
    op_run_open(&host, m.yaml, "op", m.batch, 0);
    fill(&host, &m, &rng);
    host.padding = padding;
    round_all(half, &host.in[0]);
    round_all(half, &host.dout);
    device_run_open(&run, graph, "op", m.batch, 0);
    device_run_put(&run, &host);
    device_forward(&run, &host);
    device_backward_input(&run, &host, 1);
    device_results got = device_results_get(&run);
    assert_int_equal(op_run_forward(&host), SMP_OK);
    op_run_backward_input(&host, 1);
    compare(graph, got.din[0], &host.din[0], smp_dtype_is_half(half) ? 1e-2 : 1e-5);
    device_results_free(&got);
    device_run_close(&run);
    op_run_close(&host);
    smp_graph_destroy(graph);
}

static void test_cuda_load_balance_as_the_cpu(void **state)
{
    (void)state;
    static const large_case models[] = {
        {3, 2, "a: float32 [50, 9]", "top_k: 2, coefficient: 10000"},
        {2, 2, "a: float32 [300, 70]", "top_k: 8, coefficient: 100000"},
        {2, 0, "a: float32 [40, 3]", "top_k: 1, coefficient: 10000"}, /* all alike */
    };
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int padding = 0; padding <= 1; padding++) {
            check_model(&models[i], SMP_PRECISION_FP32, padding);
            check_model(&models[i], SMP_PRECISION_BF16, padding);
            check_model(&models[i], SMP_PRECISION_FP16, padding);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_load_balance_as_the_cpu),
    };
    if (!there_is_a_device())
        return SKIPPED;
    return cmocka_run_group_tests(tests, open_device, close_device);
}

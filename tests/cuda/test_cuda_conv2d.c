/* conv2d on a GPU in runs of samples: one, several, with a shorter last run, all; against the CPU.
 * The bound of the workspace is made small for that. Runs on the emulator and on a GPU. */
#include "graph/ops/convolution/conv2d.h"
#include "tests/cuda/test_cuda_ops_cases.h"
#include "tests/cuda/test_cuda_ops_harness.h"

enum { BATCH = 7 };

/* By samples of a group, by groups of a sample, each with a bias and without. */
static const large_case CASES[] = {
    {BATCH, 2, "a: float32 [5, 9, 8]", "channels: 6, kernel: 3, padding: 1"},
    {BATCH, 2, "a: float32 [8, 10, 7]", "channels: 16, kernel: [3, 2], stride: 2, bias: false"},
    {BATCH, 2, "a: float32 [6, 7, 5]", "channels: 8, kernel: 1"},
    {BATCH, 2, "a: float32 [12, 9, 9]",
     "channels: 9, kernel: 3, groups: 3, stride: [1, 2], padding: 2, dilation: 2"},
    {BATCH, 2, "a: float32 [12, 6, 4]", "channels: 12, kernel: 3, groups: 12, bias: false"},
    {BATCH, 2, "a: float32 [8, 4, 8]", "channels: 4, kernel: 1, groups: 4"},
};

static void compare(const char *what, const void *got, smp_dtype dtype, const buffer *want,
                    double offset, double bound)
{
    const size_t n = want->bytes / 4;
    bound *= fmax(1, largest(want->data, n, offset));
    for (size_t i = 0; i < n; i++) {
        const double is = (double)value_of(got, dtype, (int64_t)i);
        if (!(fabs(is - (double)((float *)want->data)[i]) <= bound))
            fail_msg("%s[%zu] of %zu is %g, expected %g", what, i, n, is,
                     (double)((float *)want->data)[i]);
    }
}

static device_results run_device(const smp_graph *graph, const op_run *host, int shift)
{
    device_run run;
    device_run_open(&run, graph, "op", BATCH, shift);
    device_run_put(&run, host);
    device_forward(&run, host);
    device_backward_input(&run, host, 1);
    device_backward_weight(&run, host);
    const device_results got = device_results_get(&run);
    device_run_close(&run);
    return got;
}

/* Once more at other addresses: equal bits. */
static void check_bound(const op_case *of, const smp_graph *graph, const op_run *host,
                        const op_run *expected, smp_precision precision)
{
    const smp_dtype type = smp_precision_dtype(precision);
    const double bound = device_tolerance(of, precision) + of->tolerance;
    device_results got = run_device(graph, host, 0), again = run_device(graph, host, 1);
    const size_t bytes = (size_t)smp_dtype_bytes(type);
    assert_memory_equal(got.out, again.out, expected->out.bytes / 4 * bytes);
    assert_memory_equal(got.din[0], again.din[0], expected->din[0].bytes / 4 * bytes);
    compare("out", got.out, type, &expected->out, 0, bound);
    compare("input gradient", got.din[0], type, &expected->din[0], 0, bound);
    for (int i = 0; i < host->op->n_param; i++) {
        assert_memory_equal(got.dparam[i], again.dparam[i], expected->dparam[i].bytes);
        compare("weight gradient", got.dparam[i], SMP_F32, &expected->dparam[i], FIRST_ACCUMULATOR,
                bound);
    }
    device_results_free(&got);
    device_results_free(&again);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Bounds from one sample to all; what they come to is seen in *seen, a bit for each length. */
static void check_case(const large_case *one, smp_precision precision, uint32_t *seen)
{
    const op_case of = op_case_of("conv2d");
    const smp_dtype half = smp_precision_dtype(precision);
    const int64_t own = smp__conv2d_bound;
    model_text m;
    uint64_t rng;
    op_run host, expected;
    large_case_model(&of, one, &m, &rng);
    smp_graph *graph = device_graph(m.yaml, precision);
    op_run *const both[] = {&host, &expected};
    for (int i = 0; i < 2; i++) {
        uint64_t same = rng;
        op_run_open(both[i], m.yaml, "op", BATCH, 0);
        fill(both[i], &m, &same);
        round_all(half, &both[i]->in[0]);
        round_all(half, &both[i]->dout);
        for (int k = 0; k < both[i]->op->n_param; k++)
            round_all(half, &both[i]->param[k]);
    }
    assert_int_equal(op_run_forward(&expected), SMP_OK);
    op_run_backward_input(&expected, 1);
    op_run_backward_weight(&expected);
    const smp_op *op = &graph->op[smp_graph_find_op(graph, "op")];
    smp__conv2d_bound = 1;
    const int64_t least = smp__conv2d_runs_of(graph, op, BATCH).workspace_bytes;
    smp__conv2d_runs before = {0};
    for (int64_t bound = 1; bound < 1 << 20; bound += bound / 4 + 1) {
        smp__conv2d_bound = bound;
        const smp__conv2d_runs runs = smp__conv2d_runs_of(graph, op, BATCH);
        assert_true(runs.workspace_bytes <= larger(bound, least));
        if (runs.samples == before.samples && runs.weight_samples == before.weight_samples)
            continue;
        before = runs;
        seen[0] |= 1u << runs.samples;
        seen[1] |= 1u << runs.weight_samples;
        check_bound(&of, graph, &host, &expected, precision);
    }
    smp__conv2d_bound = own;
    op_run_close(&host);
    op_run_close(&expected);
    smp_graph_destroy(graph);
}

static void test_cuda_conv2d_in_runs_of_samples(void **state)
{
    (void)state;
    static const smp_precision precisions[] = {SMP_PRECISION_FP32, SMP_PRECISION_BF16,
                                               SMP_PRECISION_FP16};
    uint32_t seen[2] = {0};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        for (size_t p = 0; p < sizeof precisions / sizeof *precisions; p++)
            check_case(&CASES[i], precisions[p], seen);
    for (int k = 0; k < 2; k++) /* 7 by ones, by twos, 3 + 3 + 1, 4 + 3, all */
        assert_int_equal(seen[k], 1u << 1 | 1u << 2 | 1u << 3 | 1u << 4 | 1u << 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_conv2d_in_runs_of_samples),
    };
    if (!there_is_a_device())
        return SKIPPED;
    return cmocka_run_group_tests(tests, open_device, close_device);
}

/* conv2d on a GPU in runs of samples: one, several, with a shorter last run, all; and by cuDNN,
 * after a trial beside ours; with images that are channels last and such that are not, on both
 * sides; against the CPU. The bound of the workspace is made small for that. Runs on the emulator
 * and on a GPU. */
#include "graph/cuda/cuda_dnn.h"
#include "graph/ops/convolution/conv2d.h"
#include "tests/case_count.h"
#include "tests/cuda/test_cuda_ops_cases.h"
#include "tests/cuda/test_cuda_ops_harness.h"

#ifdef SMP_EMULATED
enum { IS_EMULATED = 1 };
#else
enum { IS_EMULATED = 0 };
#endif

enum { BATCH = 7 };

/* Channels that are packs and such that are not, windows with zeroes at their ends, pixels and
 * weights as they are, groups; each with a bias and without. */
static const large_case CASES[] = {
    {BATCH, 2, "a: float32 [5, 9, 8]", "channels: 6, kernel: 3, padding: 1"},
    {BATCH, 2, "a: float32 [8, 10, 7]", "channels: 16, kernel: [3, 2], stride: 2, bias: false"},
    {BATCH, 2, "a: float32 [6, 7, 5]", "channels: 8, kernel: 1"},
    {BATCH, 2, "a: float32 [12, 9, 9]",
     "channels: 9, kernel: 3, groups: 3, stride: [1, 2], padding: 2, dilation: 2"},
    {BATCH, 2, "a: float32 [12, 6, 4]", "channels: 12, kernel: 3, groups: 12, bias: false"},
    {BATCH, 2, "a: float32 [8, 4, 8]", "channels: 4, kernel: 1, groups: 4"},
    {BATCH, 2, "a: float32 [16, 5, 6]", "channels: 24, kernel: 1, stride: 2"},
    {BATCH, 2, "a: float32 [32, 5, 4]", "channels: 32, kernel: 3, groups: 2, padding: 1"},
    {BATCH, 2, "a: float32 [3, 9, 8]", "channels: 40, kernel: 4, stride: 4, bias: false"},
    {BATCH, 2, "a: float32 [1, 6, 5]", "channels: 8, kernel: 3"},
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

/* As the number says, whatever the model makes of it. */
static void set_layout(const smp_graph *graph, const smp_op *op, int layout)
{
    smp_tensor *tensor = (smp_tensor *)graph->tensor;
    tensor[op->in[0]].channels_last = layout & 1;
    tensor[op->out].channels_last = layout >> 1 & 1;
}

/* The lengths of the runs of all calls, in one number. */
static int64_t runs_of(const smp_graph *graph, const smp_op *op, int64_t bound, uint32_t seen[3])
{
    int64_t lengths = 0;
    for (int part = 0; part < 3; part++) {
        const smp__conv2d_room room = smp__conv2d_room_of(graph, op, BATCH, (smp_op_part)part);
        seen[part] |= 1u << room.samples;
        assert_true(room.end - room.x <= bound || room.samples == 1);
        lengths = lengths * (BATCH + 1) + room.samples;
    }
    return lengths;
}

/* A case for a device and for the host, whose results are expected. */
typedef struct checked {
    op_case of;
    smp_graph *graph;
    const smp_op *op;
    op_run host, expected;
} checked;

/* Bounds from one sample to all; what they come to is seen in *seen, a bit for each length. */
static void check_layout(const checked *c, smp_precision precision, int steps, uint32_t seen[3])
{
    const int64_t own = smp__conv2d_bound;
    int64_t before = 0;
    for (int64_t bound = 1; bound < 1 << 20; bound += bound / steps + 1) {
        smp__conv2d_bound = bound;
        const int64_t runs = runs_of(c->graph, c->op, bound, seen);
        if (runs != before)
            check_bound(&c->of, c->graph, &c->host, &c->expected, precision);
        before = runs;
    }
    smp__conv2d_bound = own;
}

static void open_case(checked *c, const large_case *one, smp_precision precision, int layout)
{
    const smp_dtype half = smp_precision_dtype(precision);
    model_text m;
    uint64_t rng;
    c->of = op_case_of("conv2d");
    large_case_model(&c->of, one, &m, &rng);
    c->graph = device_graph(m.yaml, precision);
    c->op = &c->graph->op[smp_graph_find_op(c->graph, "op")];
    op_run *const both[] = {&c->host, &c->expected};
    for (int i = 0; i < 2; i++) {
        uint64_t same = rng;
        op_run_open(both[i], m.yaml, "op", BATCH, 0);
        fill(both[i], &m, &same);
        round_all(half, &both[i]->in[0]);
        round_all(half, &both[i]->dout);
        for (int k = 0; k < both[i]->op->n_param; k++)
            round_all(half, &both[i]->param[k]);
    }
    assert_int_equal(op_run_forward(&c->expected), SMP_OK);
    op_run_backward_input(&c->expected, 1);
    op_run_backward_weight(&c->expected);
    set_layout(c->graph, c->op, layout);
}

static void close_case(checked *c)
{
    op_run_close(&c->host);
    op_run_close(&c->expected);
    smp_graph_destroy(c->graph);
}

static void check_case(const large_case *one, smp_precision precision, int layout, int steps,
                       uint32_t seen[3])
{
    checked c;
    open_case(&c, one, precision, layout);
    check_layout(&c, precision, steps, seen);
    close_case(&c);
}

/* The three calls of an op as plans name them, and what they ask for. */
typedef struct asked {
    char name[3][SMP__CHOICE_ABOUT], dnn[SMP__DNN_NAME_BYTES];
    smp_gemm_choice choice[3];
    smp_gemm_choices all;
} asked;

static void ask_for_cudnn(asked *a, checked *c)
{
    smp__dnn_name(a->dnn);
    for (int part = 0; part < 3; part++) {
        smp__conv2d_about(a->name[part], c->graph, c->op, BATCH, (smp_op_part)part);
        assert_false(smp__conv2d_asks_dnn(c->graph, c->op, BATCH, (smp_op_part)part));
        a->choice[part] = (smp_gemm_choice){a->name[part], a->dnn, 0};
    }
    a->all = (smp_gemm_choices){"device", "library", 3, a->choice};
    check(smp_gemm_choices_give(&a->all, c->graph));
    products.choices = &a->all;
    for (int part = 0; part < 3; part++)
        assert_true(smp__conv2d_asks_dnn(c->graph, c->op, BATCH, (smp_op_part)part));
}

static const smp_gemm *product_of(const asked *a, int part)
{
    for (int i = 0; i < products.n; i++)
        if (strcmp(products.product[i]->name, a->name[part]) == 0)
            return products.product[i];
    fail_msg("%s is not listed", a->name[part]);
    return NULL;
}

/* The first run, whose numbers are the trial's; which ways are left is judged after it. */
static void run_trial(const checked *c)
{
    smp_op_needs needs;
    smp_op_needs_get(c->graph, c->op, BATCH, &needs);
    assert_true(needs.measured_workspace_bytes == needs.workspace_bytes);
    choices.trying = true;
    device_results got = run_device(c->graph, &c->host, 0);
    choices.trying = false;
    device_results_free(&got);
    smp__choices_judge(&choices);
}

static void check_cudnn(const large_case *one, smp_precision precision, int layout, bool is_good)
{
    checked c;
    asked a;
    smp__choices_free(&choices);
    smp_gemms_free(&products);
    open_case(&c, one, precision, layout);
    ask_for_cudnn(&a, &c);
    run_trial(&c);
    assert_int_equal(choices.n, 3);
    for (int i = 0; i < 3; i++)
        if (choices.choice[i]->why[0] && is_good)
            fail_msg("%s: %s", choices.choice[i]->about, choices.choice[i]->why);
    check_bound(&c.of, c.graph, &c.host, &c.expected, precision);
    for (int part = 0; part < 3; part++) {
        const smp_gemm *product = product_of(&a, part);
        assert_true(product->runs >= 3);
        assert_string_equal(product->algorithm[product->chosen],
                            is_good ? a.dnn : SMP__CONV2D_UNFOLD);
        assert_true(is_good == !product->refusal[0]);
    }
    products.choices = NULL;
    close_case(&c);
}

/* Those cases for which cuDNN has plans: of every layout, and with several runs in the trial. */
static void test_cuda_conv2d_by_cudnn(void **state)
{
    (void)state;
    const int64_t own = smp__conv2d_bound;
    if (!cuda.dnn)
        skip();
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        for (int layout = 0; layout < 4; layout++)
            for (size_t p = 0; p < 2; p++) {
                if ((!is_turn(i + (size_t)layout, p, 2)) || (!IS_EMULATED && i != 6))
                    continue;
                smp__conv2d_bound = layout == 3 ? 4096 : own;
                check_cudnn(&CASES[i], p == 0 ? SMP_PRECISION_BF16 : SMP_PRECISION_FP16, layout,
                            true);
            }
    smp__conv2d_bound = own;
}

/* What is refused in the trial is ours, with the results of ours. */
static void test_cuda_conv2d_by_a_bad_cudnn(void **state)
{
    static const char *const modes[] = {"conv-wrong", "conv-fails", "conv-no-plan"};
    (void)state;
    if (!cuda.dnn || !IS_EMULATED)
        skip();
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        setenv("SMP_EMULATE_DNN", modes[i], 1);
        check_cudnn(&CASES[1], SMP_PRECISION_BF16, (int)i, false);
    }
    setenv("SMP_EMULATE_DNN", "right", 1);
}

/* On the emulator each layout takes one of the precisions, and few bounds but for one of them,
 * unless the run is a long one. */
static void test_cuda_conv2d_in_runs_of_samples(void **state)
{
    (void)state;
    static const smp_precision precisions[] = {SMP_PRECISION_FP32, SMP_PRECISION_BF16,
                                               SMP_PRECISION_FP16};
    uint32_t seen[3] = {0};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        for (int layout = 0; layout < 4; layout++)
            for (size_t p = 0; p < 3; p++)
                if (is_turn(i + (size_t)layout, p, 3))
                    check_case(&CASES[i], precisions[p], layout,
                               is_turn(i, (size_t)layout, 4) ? 4 : 1, seen);
    for (int k = 0; k < 3; k++) /* 7 by ones, by twos, 3 + 3 + 1, 4 + 3, all */
        assert_int_equal(seen[k], 1u << 1 | 1u << 2 | 1u << 3 | 1u << 4 | 1u << 7);
}

/* Convolutions that follow one another convert nothing between them, and count what they do. */
static void test_cuda_conv2d_is_channels_last(void **state)
{
    (void)state;
    static const char yaml[] =
        "smp: 1\nname: m\ninputs:\n  a: {dtype: float32, shape: [16, 6, 5]}\nops:\n"
        "  - {op: conv2d, name: first, in: a, out: b, channels: 16, kernel: 3, padding: 1}\n"
        "  - {op: conv2d, name: op, in: b, out: c, channels: 8, kernel: 1}\n";
    smp_graph *graph = device_graph(yaml, SMP_PRECISION_BF16);
    const smp_op *first = &graph->op[0], *second = &graph->op[1];
    assert_false(graph->tensor[first->in[0]].channels_last);
    assert_true(graph->tensor[first->out].channels_last);
    assert_true(smp__conv2d_windows_of(graph, first).turns_x);
    assert_false(smp__conv2d_windows_of(graph, first).turns_y);
    assert_false(smp__conv2d_windows_of(graph, second).turns_x);
    smp_op_work last, plain;
    smp_op_work_get(graph, second, BATCH, &last);
    set_layout(graph, second, 2);
    smp_op_work_get(graph, second, BATCH, &plain);
    assert_true(plain.forward_bytes == last.forward_bytes + 2.0 * BATCH * 16 * 6 * 5 * 2);
    smp_graph_destroy(graph);
}

static int open_all(void **state)
{
    return open_device(state) == 0 && smp__dnn_open(&cuda.dnn, cuda.stream) == SMP_OK ? 0 : -1;
}

static int close_all(void **state)
{
    smp__choices_free(&choices); /* cuDNN's plans */
    smp__dnn_close(cuda.dnn);
    return close_device(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_conv2d_in_runs_of_samples),
        cmocka_unit_test(test_cuda_conv2d_is_channels_last),
        cmocka_unit_test(test_cuda_conv2d_by_cudnn),
        cmocka_unit_test(test_cuda_conv2d_by_a_bad_cudnn),
    };
    setenv("SMP_EMULATE_DNN", "right", 1);
    if (!there_is_a_device())
        return SKIPPED;
    return cmocka_run_group_tests(tests, open_all, close_all);
}

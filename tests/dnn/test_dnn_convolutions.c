/* cuDNN has plans for a Hopper card for every convolution of the examples, in the type of 16 bits
 * that the argument names: forward and the gradients of inputs, all; the gradients of weights,
 * which are fp32, where one group has channels enough. All add in one order and fit the libraries'
 * workspace. Nothing runs: there is no card. */
#include "graph/ops/convolution/cuda_conv2d_dnn.h"
#include "graph/ops/convolution/conv2d.h"
#include "tests/dnn/dnn_plans.h"

static int n_plan, n_weight, n_without;
static int64_t most_bytes;

/* As engines are: filters in fp32 of one group, whose rows are whole accesses of 8 bytes. */
static bool has_plan(const smp_convolution_shape *s, smp_op_part part)
{
    return part != SMP_OP_BACKWARD_WEIGHT ||
           (s->groups == 1 && s->in[SMP_CHANNELS] % 4 == 0 && s->out[SMP_CHANNELS] % 4 == 0);
}

static void expect_plan(const char *path, const smp_graph *graph, const smp_op *op,
                        smp_op_part part, int64_t batch)
{
    char about[SMP__CHOICE_ABOUT];
    const smp_convolution_shape shape = smp__conv2d_shape(graph, op, batch);
    const bool weight = part == SMP_OP_BACKWARD_WEIGHT, expected = has_plan(&shape, part);
    assert_true(smp__conv2d_suits_dnn(graph, op, batch));
    smp__conv2d_about(about, graph, op, batch, part);
    if (!is_new(about))
        return;
    /* one that is compiled takes seconds */
    if (weight && expected && !is_long() && ++n_weight % 60 != 1)
        return;
    smp__dnn_convolution *plan = smp__dnn_convolution_create(&cuda, &shape, part, op->n_param > 1);
    if (!plan != !expected)
        fail_msg("%s, op '%s': %s for %s", path, op->name, plan ? "a plan" : "no plan", about);
    n_plan += plan != NULL;
    n_without += !plan;
    const int64_t bytes = plan ? smp__dnn_convolution_workspace(plan) : 0;
    most_bytes = bytes > most_bytes ? bytes : most_bytes;
    print_message("%s: %s %.1f MB\n", about, plan ? "plan," : "none,", (double)bytes / 1e6);
    smp__dnn_convolution_destroy(plan);
}

static void expect_plans(const char *path, const smp_graph *graph, const smp_op *op, int64_t batch)
{
    for (int part = 0; part < 3; part++)
        expect_plan(path, graph, op, (smp_op_part)part, batch);
}

static void test_convolutions_of_the_examples_have_plans(void **state)
{
    (void)state;
    for_every_op("conv2d", expect_plans);
    print_message("%d plans, %d have none, at most %.1f MB\n", n_plan, n_without,
                  (double)most_bytes / 1e6);
    assert_true(n_plan >= 100);
    assert_true(most_bytes <= cuda.workspace_bytes);
}

static void test_another_workspace_has_none(void **state)
{
    (void)state;
    const smp_convolution_shape shape = {.batch = 64,
                                         .in = {3, 224, 224},
                                         .out = {64, 112, 112},
                                         .groups = 1,
                                         .kernel = {7, 7},
                                         .stride = {2, 2},
                                         .padding = {3, 3},
                                         .dilation = {1, 1}};
    smp_cuda other = cuda;
    other.workspace_bytes = -1; /* less than any engine's */
    assert_null(smp__dnn_convolution_create(&other, &shape, SMP_OP_FORWARD, false));
    other = cuda;
    other.dnn_device = "{\"deviceVer\": 900}";
    assert_null(smp__dnn_convolution_create(&other, &shape, SMP_OP_FORWARD, false));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolutions_of_the_examples_have_plans),
        cmocka_unit_test(test_another_workspace_has_none),
    };
    const int status = open_plans(argc, argv);
    return status != 0 ? status : cmocka_run_group_tests(tests, NULL, NULL);
}

/* cuDNN compiles a plan for a Hopper card for every attention of the examples that we ask it for,
 * in the type of 16 bits that the argument names, forward and backward: the graphs are in the form
 * that its engines know, an engine that adds in one order is among them, and backward needs no more
 * workspace than is planned for it. Nothing runs: there is no card. */
#include "graph/cuda/cuda_attention_dnn.h"
#include "tests/dnn/dnn_plans.h"

static int n_backward;

/* Backward: within what is planned, of which most is the T x T matrix. */
static void expect_backward(const smp__attention *at, int64_t batch, const char *about)
{
    const int64_t planned = smp__attention_dnn_bytes(at, batch);
    if (planned == 0)
        return;
    smp__dnn_attention *plan =
        smp__dnn_attention_create_backward(&cuda, at, batch, planned - SMP__DNN_ALIGNMENT);
    if (!plan)
        fail_msg("backward: no plan in %lld bytes for %s", (long long)planned, about);
    print_message("%s: backward %.1f MB, planned %.1f\n", about,
                  (double)smp__dnn_attention_workspace(plan) / 1e6, (double)planned / 1e6);
    smp__dnn_attention_destroy(plan);
    n_backward++;
}

static void expect_plan(const char *path, const smp_graph *graph, const smp_op *op, int64_t batch)
{
    char about[SMP__CHOICE_ABOUT];
    const smp__attention attention = smp__attention_of(graph, op), *at = &attention;
    const int64_t longest = at->queries > at->keys ? at->queries : at->keys;
    const bool plain = at->mask < 0 && !at->alibi && at->buckets == 0 && at->window >= longest;
    assert_int_equal(smp__dnn_attention_suits(&cuda, at, batch), plain);
    if (!plain)
        return;
    smp__attention_about(about, "attention", cuda.precision, at, batch);
    if (!is_new(about))
        return;
    /* a second each: a third of them in one type, another one in the other */
    if (!is_long() && n_seen % 3 != (cuda.precision == SMP_PRECISION_FP16))
        return;
    smp__dnn_attention *plan = smp__dnn_attention_create(&cuda, at, batch);
    if (!plan)
        fail_msg("%s, op '%s': no plan for %s", path, op->name, about);
    smp__dnn_attention_destroy(plan);
    expect_backward(at, batch, about);
}

static void test_every_attention_of_the_examples_has_a_plan(void **state)
{
    (void)state;
    for_every_op("attention", expect_plan);
    print_message("plans of %d kinds, %d backward\n", n_seen, n_backward);
    assert_true(n_seen >= 15);
    assert_true(n_backward >= 3);
}

/* Two heads of 64, 128 places. */
static smp__attention small_attention(void)
{
    smp__attention at = {.queries = 128, .keys = 128, .d = 128, .heads = 2, .kv_heads = 2};
    at.width = 64;
    at.mask = -1;
    at.window = 128;
    at.scale = 0.125f;
    for (int i = 0; i < 3; i++)
        at.stride[i] = 3 * at.d;
    return at;
}

static void test_another_description_has_none(void **state)
{
    (void)state;
    const smp__attention at = small_attention();
    smp_cuda other = cuda;
    other.dnn_device = "{\"deviceVer\": 900}";
    assert_null(smp__dnn_attention_create(&other, &at, 1));
    other = cuda;
    other.workspace_bytes = -1; /* less than any engine's */
    assert_null(smp__dnn_attention_create(&other, &at, 1));
    assert_null(smp__dnn_attention_create_backward(&cuda, &at, 1, 2 * 128 * 128 * 2 - 1));
}

/* Elsewhere nobody says that backward adds in one order. */
static void test_backward_is_for_hopper(void **state)
{
    (void)state;
    const smp__attention at = small_attention();
    const int64_t bytes = smp__attention_dnn_bytes(&at, 1) - SMP__DNN_ALIGNMENT;
    for (int capability = 80; capability <= 120; capability += 10) {
        smp_cuda other = cuda;
        other.capability = capability;
        smp__dnn_attention *plan = smp__dnn_attention_create_backward(&other, &at, 1, bytes);
        assert_int_equal(plan != NULL, capability == 90);
        smp__dnn_attention_destroy(plan);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_attention_of_the_examples_has_a_plan),
        cmocka_unit_test(test_another_description_has_none),
        cmocka_unit_test(test_backward_is_for_hopper),
    };
    const int status = open_plans(argc, argv);
    return status != 0 ? status : cmocka_run_group_tests(tests, NULL, NULL);
}

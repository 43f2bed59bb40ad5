/* cuDNN compiles a plan for a Hopper card for every attention of the examples that we ask it for,
 * in the type of 16 bits that the argument names, forward and backward: the graphs are in the form
 * that its engines know, an engine that adds in one order is among them, and backward needs no more
 * workspace than is planned for it. Nothing runs: there is no card. */
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/case_count.h"
#include "graph/cuda/cuda_attention_dnn.h"
#include "graph/cuda/cuda_dnn.h"
#include "graph/model/graph.h"
#include "graph/ops/ops.h"

enum { SKIPPED = 77, MOST = 64 };

static char json[4096];
static smp_cuda cuda = {
    .dnn_device = json, .workspace_bytes = 64 << 20, .multiprocessors = 132, .capability = 90};

/* Of a micro-batch: as the examples and the benchmarks train them. */
static const struct {
    const char *model;
    int64_t samples;
} usual[] = {{"gpt2-124m", 32}, {"gpt2-774m", 8},   {"gpt2-30b-stage", 2}, {"gpt-tiny", 8},
             {"llama-tiny", 8}, {"vit-digits", 16}, {"vit-class", 32},     {"unet-sd", 4}};

static int64_t samples_of(const char *path)
{
    const char *name = strrchr(path, '/') + 1;
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
        if (strncmp(name, usual[i].model, strlen(usual[i].model)) == 0 &&
            strcmp(name + strlen(usual[i].model), ".yaml") == 0)
            return usual[i].samples;
    return 1;
}

static char seen[MOST][SMP__CHOICE_ABOUT]; /* computations that were asked for */
static int n_seen, n_backward;

static bool is_new(const char *about)
{
    for (int i = 0; i < n_seen; i++)
        if (strcmp(seen[i], about) == 0)
            return false;
    assert_true(n_seen < MOST);
    strcpy(seen[n_seen++], about);
    return true;
}

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

static void expect_plan(const char *path, const smp_op *op, const smp__attention *at, int64_t batch)
{
    char about[SMP__CHOICE_ABOUT];
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
    glob_t models;
    assert_int_equal(glob(SMP_SOURCE_DIR "/examples/*.yaml", 0, NULL, &models), 0);
    for (size_t m = 0; m < models.gl_pathc; m++) {
        const char *path = models.gl_pathv[m];
        smp_graph *graph;
        if (strstr(path, "/cluster-"))
            continue;
        if (smp_graph_read(path, &graph) != SMP_OK)
            fail_msg("%s", smp_last_error());
        for (int32_t o = 0; o < graph->n_op; o++)
            if (strcmp(graph->op[o].kind->name, "attention") == 0) {
                const smp__attention at = smp__attention_of(graph, &graph->op[o]);
                expect_plan(path, &graph->op[o], &at, samples_of(path));
            }
        smp_graph_destroy(graph);
    }
    globfree(&models);
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
    void *handle;
    if (argc == 2 && strcmp(argv[1], "fp16") == 0)
        cuda.precision = SMP_PRECISION_FP16;
    else if (argc == 2 && strcmp(argv[1], "bf16") == 0)
        cuda.precision = SMP_PRECISION_BF16;
    else
        return 2;
    FILE *file = fopen(SMP_SOURCE_DIR "/tests/dnn/h200.json", "r");
    if (!file || fread(json, 1, sizeof json - 1, file) == 0)
        return 2;
    fclose(file);
    if (smp__dnn_open(&handle, NULL) != SMP_OK || !smp__dnn.cudnnGetVersion) {
        printf("cuDNN is not here: %s\n", smp_last_error());
        return SKIPPED;
    }
    smp__dnn_close(handle); /* of a card, if there is one: plans are for the description alone */
    if (smp__dnn.cudnnGetVersion() < SMP__DNN_OLDEST) {
        printf("cuDNN is too old: %zu\n", smp__dnn.cudnnGetVersion());
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

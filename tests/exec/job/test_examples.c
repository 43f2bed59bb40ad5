/* The example models: each can be read and run, has the size its comment states, and takes the data
 * that its comment names. */
#include <dirent.h>

#include "graph/base/text.h"
#include "graph/yaml/yaml.h"
#include "tests/exec/data/data_fixture.h"

static const struct {
    const char *file;
    int64_t parameters; /* as the comment in the file says */
} models[] = {
    {"gpt-tiny.yaml", 834304},
    {"gpt-small.yaml", 10795008},
    {"mlp.yaml", 414},
    {"vit-digits.yaml", 343018},
    {"branches.yaml", 56128},
    {"vit-b16.yaml", 86566120},
    {"bert-large.yaml", 335174458},
    {"t5-11b.yaml", 11341385728},
    {"gpt2-30b.yaml", 29974418432},
    {"gpt2-10b.yaml", 10276950016},
    {"gpt-175b.yaml", 174604259328},
    {"resnet-18.yaml", 11173962},
    {"resnet-50.yaml", 25557032},
    {"resnet-small.yaml", 697130},
    {"vit-class.yaml", 243770},
    {"bert-small.yaml", 852100},
    {"t5-small.yaml", 691200},
    {"unet-sd.yaml", 859520964},
    {"maskrcnn-fpn.yaml", 27446351},
    {"llama3-8b.yaml", 8030261248},
    {"llama3-70b.yaml", 70553706496},
    {"mixtral-like.yaml", 46701744128},
};

static const char *example(const char *file)
{
    static char path[MAX_PATH + 300];
    snprintf(path, sizeof path, "%s/examples/%s", SMP_SOURCE_DIR, file);
    return path;
}

static smp_graph *read_model(const char *file)
{
    smp_graph *graph = NULL;
    if (smp_graph_read(example(file), &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return graph;
}

/* Cluster files have no `ops`. */
static bool is_model(const char *file)
{
    smp_yaml *yaml = NULL;
    const smp_yaml_node *top = NULL;
    if (smp_yaml_read(example(file), &yaml) != SMP_OK || smp_yaml_top(yaml, &top) != SMP_OK)
        fail_msg("%s", smp_last_error());
    bool model = smp_yaml_get(top, "ops") != NULL;
    smp_yaml_destroy(yaml);
    return model;
}

static void test_examples_are_runnable(void **state)
{
    (void)state;
    DIR *list = opendir(SMP_SOURCE_DIR "/examples");
    assert_non_null(list);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(list));) {
        if (!smp__ends_with(entry->d_name, ".yaml") || !is_model(entry->d_name))
            continue;
        if (strcmp(entry->d_name, "inception.yaml") == 0) /* opaque ops: planned only */
            continue;
        smp_graph *graph = read_model(entry->d_name);
        if (smp_graph_check_runnable(graph) != SMP_OK)
            fail_msg("%s", smp_last_error());
        assert_true(graph->n_input > 0 && graph->loss >= 0 && graph->training);
        smp_graph_destroy(graph);
        count++;
    }
    closedir(list);
    assert_true(count >= (int)(sizeof models / sizeof *models));
}

static void test_examples_have_stated_size(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        smp_graph *graph = read_model(models[i].file);
        int64_t total = 0;
        for (int p = 0; p < graph->n_param; p++)
            total += graph->param[p].running ? 0 : graph->param[p].elements;
        assert_int_equal(total, models[i].parameters);

        /* "834,304": the number stands in the comment. */
        char number[32], *text = NULL;
        size_t bytes;
        if (total >= 1000000000)
            snprintf(number, sizeof number, " %d,%03d,%03d,%03d parameters",
                     (int)(total / 1000000000), (int)(total / 1000000 % 1000),
                     (int)(total / 1000 % 1000), (int)(total % 1000));
        else if (total >= 1000000)
            snprintf(number, sizeof number, " %d,%03d,%03d parameters", (int)(total / 1000000),
                     (int)(total / 1000 % 1000), (int)(total % 1000));
        else if (total >= 1000)
            snprintf(number, sizeof number, " %d,%03d parameters", (int)(total / 1000),
                     (int)(total % 1000));
        else
            snprintf(number, sizeof number, " %d parameters", (int)total);
        assert_int_equal(smp_file_read(example(models[i].file), 1 << 20, &text, &bytes), SMP_OK);
        if (!strstr(text, number))
            fail_msg("%s does not say '%s'", models[i].file, number);
        free(text);
        smp_graph_destroy(graph);
    }
}

/* What the model is for: a tensor with many readers, ties, and branches. */
static void test_examples_branches_is_hard(void **state)
{
    (void)state;
    smp_graph *graph = read_model("branches.yaml");
    int64_t readers = 0;
    int ties = 0;
    for (int t = 0; t < graph->n_tensor; t++) {
        int64_t n = graph->consumer_begin[t + 1] - graph->consumer_begin[t];
        readers = n > readers ? n : readers;
    }
    for (int p = 0; p < graph->n_param; p++)
        ties += graph->param[p].use_end - graph->param[p].use_begin == 2;
    assert_int_equal(readers, 5);
    assert_int_equal(ties, 2);
    smp_graph_destroy(graph);
}

static void test_examples_take_text(void **state)
{
    (void)state;
    static const char *const files[] = {"gpt-tiny.yaml", "gpt-small.yaml", "branches.yaml"};
    char text[1000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i % 256);
    const char *const source = write_file("text", text, sizeof text);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        smp_graph *graph = read_model(files[i]);
        smp_data *data = NULL;
        smp_data_options options = {.sources = &source, .n_source = 1, .global_batch = 2};
        if (smp_data_open(graph, &options, &data) != SMP_OK)
            fail_msg("%s", smp_last_error());
        assert_int_equal(smp_data_samples(data), 999 / graph->tensor[0].elements);
        smp_data_close(data);
        smp_graph_destroy(graph);
    }
}

/* A token outside the vocabulary of a real embedding, and a label outside the classes of a loss. */
static void test_examples_check_indices(void **state)
{
    (void)state;
    smp_graph *graph = read_model("gpt-tiny.yaml");
    static uint16_t tokens[200] = {[70] = 256};
    const char *const source = write_file("tokens.bin", tokens, sizeof tokens);
    smp_data *data = NULL;
    smp_data_options options = {.sources = &source, .n_source = 1, .global_batch = 1};
    assert_int_equal(smp_data_open(graph, &options, &data), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "token 70 (byte offset 140) is 256: input 'tokens' "
                                             "takes 0 to 255 (embedding 'wte')"));
    smp_graph_destroy(graph);

    graph = read_model("vit-digits.yaml");
    unsigned char file[128 + 28 * 28] = "\x93NUMPY\x01";
    char image[MAX_PATH + 400], label[MAX_PATH + 400];
    const char *const sources[] = {image, label};
    file[8] = 118;
    snprintf((char *)file + 10, 119, "%-118s",
             "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 28, 28)}");
    snprintf(image, sizeof image, "image=%s", write_file("image.npy", file, 128 + 28 * 28));
    snprintf((char *)file + 10, 119, "%-118s",
             "{'descr': '|u1', 'fortran_order': False, 'shape': (1,)}");
    options = (smp_data_options){.sources = sources, .n_source = 2, .global_batch = 1};
    file[128] = 9;
    snprintf(label, sizeof label, "label=%s", write_file("label.npy", file, 129));
    assert_int_equal(smp_data_open(graph, &options, &data), SMP_OK);
    smp_data_close(data);
    file[128] = 10;
    write_file("label.npy", file, 129);
    assert_int_equal(smp_data_open(graph, &options, &data), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "is 10: input 'label' takes -1 to 9 (cross_entropy"));
    smp_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples_are_runnable),
        cmocka_unit_test(test_examples_have_stated_size),
        cmocka_unit_test(test_examples_branches_is_hard),
        cmocka_unit_test(test_examples_take_text),
        cmocka_unit_test(test_examples_check_indices),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

/* Loading operators of a user's own: once in a process, whole or not at all, with a message that
 * names the file. */
#include "graph/ops/custom_op.h"
#include "tests/graph/ops/op_harness.h"

#include <libgen.h>
#include <unistd.h>

#define MODEL                                                                                      \
    "smp: 1\nname: m\ninputs:\n  x: {dtype: float32, shape: [4]}\nops:\n"                          \
    "  - {op: snake, name: act, in: x, out: y%s}\nmode: inference\n"

static smp_status read_model(const char *attrs)
{
    char text[512];
    smp_graph *graph = NULL;
    snprintf(text, sizeof text, MODEL, attrs);
    smp_status status = smp_graph_parse("m.yaml", text, strlen(text), &graph);
    if (status == SMP_OK)
        smp_graph_destroy(graph);
    return status;
}

static void assert_message(smp_status status, const char *part)
{
    assert_int_equal(status, SMP_ERR_INPUT);
    if (!strstr(smp_last_error(), part))
        fail_msg("got \"%s\", expected \"%s\"", smp_last_error(), part);
}

/* Without the plugin a model says what it lacks; the plugin may come after models were read. */
static void test_plugin_makes_its_operator_known(void **state)
{
    (void)state;
    static const char *const twice[] = {SMP_TEST_PLUGIN, SMP_TEST_PLUGIN};
    assert_message(read_model(""), "m.yaml:6:10: unknown op 'snake'");
    assert_message(read_model(""), "--plugin");
    assert_int_equal(smp_plugins_load(twice, 2), SMP_OK); /* the same file is the same plugin */
    assert_int_equal(smp_plugins_load(twice, 1), SMP_OK);
    assert_int_equal(smp__custom_ops(), 1);
    assert_int_equal(read_model(", frequency: 3"), SMP_OK);
    assert_message(read_model(", frequency: 300"), "m.yaml:6:54: op 'act': frequency: got '300'");
    assert_message(read_model(", frequenzy: 3"), "did you mean 'frequency'?");
    assert_message(read_model(", alpha: 3"), "m.yaml:6:43: op 'act' (snake): unknown key 'alpha'");
}

static void test_plugin_of_this_folder_needs_no_slash(void **state)
{
    (void)state;
    char path[] = SMP_TEST_PLUGIN, here[4096];
    const char *name = strrchr(path, '/') + 1;
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(dirname((char[]){SMP_TEST_PLUGIN})), 0);
    assert_int_equal(smp_plugins_load(&name, 1), SMP_OK);
    assert_int_equal(chdir(here), 0);
}

/* A plugin that fails leaves nothing behind, so that it fails in the same way again. */
static void test_plugin_is_refused_whole(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"no_entry.so", "expected a function smp_plugin_register"},
        {"other_abi.so", "was compiled for version 2 of smp_custom_op, expected 1"},
        {"taken_name.so", "op 'linear': the name is already that of a built-in operator"},
        {"second_fails.so", "op 'copy': the name is already that of a registered operator"},
        {"nothing.so", "it registers no operator"},
        {"undefined.so", "undefined symbol: smp_nobody_defines_this"},
        {"missing.so", "No such file"},
        {"test_plugin", "cannot be loaded"},
    };
    const int before = smp__custom_ops();
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        char folder[] = SMP_TEST_PLUGIN, path[4096];
        const char *file = path;
        snprintf(path, sizeof path, "%s/%s", dirname(folder), cases[i / 2][0]);
        assert_message(smp_plugins_load(&file, 1), cases[i / 2][1]);
        assert_message(SMP_ERR_INPUT, cases[i / 2][0]);
        assert_int_equal(smp__custom_ops(), before);
        assert_null(smp_op_kind_find("copy"));
    }
    assert_message(smp_plugins_load((const char *const[]){""}, 1), "empty name");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plugin_makes_its_operator_known),
        cmocka_unit_test(test_plugin_of_this_folder_needs_no_slash),
        cmocka_unit_test(test_plugin_is_refused_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

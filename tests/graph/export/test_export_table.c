/* Exports of single operators, without a runtime: each kind has a line or is refused with a reason,
 * and what the samples of all kinds become is a well-formed graph in a file that our reader takes.
 * Values are compared with ONNX Runtime's in tests/torch/test_export_onnx.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "graph/export/export_model.h"
#include "graph/export/export_table.h"
#include "graph/onnx/onnx_file.h"

static char path[64], data_path[80];

static int set_up(void **state)
{
    (void)state;
    strcpy(path, "/var/tmp/smp-export-XXXXXX");
    const int file = mkstemp(path);
    snprintf(data_path, sizeof data_path, "%s.data", path);
    return file >= 0 ? close(file) : -1;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(data_path);
    return unlink(path);
}

/* Those that have no meaning there: they have no kernels, are losses, or exchange. */
static const char *const without[] = {
    "ring_attention",  "cross_entropy",  "linear_cross_entropy", "mse",
    "bce_with_logits", "expert_send",    "expert_return",        "all_reduce",
    "all_gather",      "reduce_scatter", "all_to_all",           "opaque",
};
enum { N_WITHOUT = sizeof without / sizeof *without };

static bool is_in(const char *name, const char *const *list, int n)
{
    for (int i = 0; i < n && list[i]; i++)
        if (strcmp(name, list[i]) == 0)
            return true;
    return false;
}

static void test_table_is_of_kinds(void **state)
{
    (void)state;
    const char *const *lines = smp__export_kinds();
    for (const char *const *line = lines; *line; line++)
        assert_non_null(smp_op_kind_find(*line));
    for (const smp_op_kind *const *kind = smp_op_kinds(); *kind; kind++) {
        const bool has = is_in((*kind)->name, lines, INT32_MAX);
        assert_false(has && is_in((*kind)->name, without, N_WITHOUT));
        if (!has && !is_in((*kind)->name, without, N_WITHOUT))
            print_message("%s has no line in graph/export/export_table.c\n", (*kind)->name);
    }
}

static smp_graph *sample_of(const smp_op_kind *kind)
{
    char text[4096];
    smp_graph *graph = NULL;
    const int n = snprintf(text, sizeof text, "smp: 1\nmode: inference\n%s", kind->sample);
    if (smp_graph_parse("sample", text, (size_t)n, &graph) != SMP_OK)
        fail_msg("%s: %s", kind->name, smp_last_error());
    return graph;
}

static smp_status rising(void *context, int32_t param, float *values)
{
    const smp_graph *graph = context;
    for (int64_t i = 0; i < graph->param[param].elements; i++)
        values[i] = (float)(i % 97) + (float)param;
    return SMP_OK;
}

static bool is_made(const char *name, const Onnx__GraphProto *graph, size_t nodes)
{
    bool made = strcmp(name, "") == 0; /* an input that is left out */
    for (size_t i = 0; i < graph->n_input && !made; i++)
        made = strcmp(graph->input[i]->name, name) == 0;
    for (size_t i = 0; i < graph->n_initializer && !made; i++)
        made = strcmp(graph->initializer[i]->name, name) == 0;
    for (size_t i = 0; i < nodes && !made; i++)
        for (size_t k = 0; k < graph->node[i]->n_output && !made; k++)
            made = strcmp(graph->node[i]->output[k], name) == 0;
    return made;
}

/* Everything is made before it is read, and once; every weight has its values. */
static void check_graph(const smp_onnx_file *file, const smp_graph *from)
{
    const Onnx__GraphProto *graph = file->model->graph;
    for (size_t i = 0; i < graph->n_node; i++) {
        for (size_t k = 0; k < graph->node[i]->n_input; k++)
            if (!is_made(graph->node[i]->input[k], graph, i))
                fail_msg("%s reads %s", graph->node[i]->name, graph->node[i]->input[k]);
        for (size_t k = 0; k < graph->node[i]->n_output; k++)
            assert_false(is_made(graph->node[i]->output[k], graph, i));
    }
    for (size_t i = 0; i < graph->n_output; i++)
        assert_true(is_made(graph->output[i]->name, graph, graph->n_node));
    for (size_t i = 0; i < graph->n_initializer; i++) {
        const Onnx__TensorProto *t = graph->initializer[i];
        const int32_t param = smp_graph_find_param(from, t->name);
        if (param < 0 || t->n_external_data > 0)
            continue;
        const float *values = (const float *)(const void *)t->raw_data.data;
        assert_int_equal(t->raw_data.len, from->param[param].elements * 4);
        for (int64_t k = 0; k < from->param[param].elements; k++)
            assert_true(values[k] == (float)(k % 97) + (float)param);
    }
}

/* Of a model that is there, a new one takes another name for its weights. */
static void remove_files(void)
{
    unlink(path);
    unlink(data_path);
}

static void test_samples_are_well_formed(void **state)
{
    (void)state;
    int n_written = 0;
    for (const smp_op_kind *const *kind = smp_op_kinds(); *kind; kind++) {
        smp_graph *graph = sample_of(*kind);
        const char *tensor = graph->op[graph->n_op - 1].name;
        smp_onnx_exported made = {0};
        for (int apart = 0; apart < 2; apart++) {
            const smp_onnx_export export = {graph, &tensor, 1, apart != 0, rising, graph};
            remove_files();
            const smp_status status = smp_onnx_export_write(&export, path, &made);
            /* An output that depends on no input has no number of samples. */
            if (!is_in((*kind)->name, smp__export_kinds(), INT32_MAX) ||
                graph->op[graph->n_op - 1].n_in == 0) {
                assert_int_equal(status, SMP_ERR_INPUT);
                assert_non_null(strstr(smp_last_error(), "cannot be exported to ONNX: "));
                assert_non_null(strstr(smp_last_error(), (*kind)->name));
                continue;
            }
            if (status != SMP_OK)
                fail_msg("%s: %s", (*kind)->name, smp_last_error());
            smp_onnx_file *file = NULL;
            if (smp_onnx_file_open(path, &file) != SMP_OK)
                fail_msg("%s: %s", (*kind)->name, smp_last_error());
            assert_int_equal(made.nodes, file->model->graph->n_node);
            assert_string_equal(made.apart, apart ? ".data" : "");
            check_graph(file, graph);
            smp_onnx_file_close(file);
            n_written++;
        }
        smp_graph_destroy(graph);
    }
    assert_true(n_written > 70);
}

/* Half of a file is none: what was there before stays. */
static smp_status broken(void *context, int32_t param, float *values)
{
    (void)context, (void)values;
    return param < 1 ? SMP_OK : smp_fail(SMP_ERR_INPUT, "no values");
}

static size_t size_of(const char *name)
{
    char *data = NULL;
    size_t bytes = 0;
    assert_int_equal(smp_file_read(name, 1 << 20, &data, &bytes), SMP_OK);
    free(data);
    return bytes;
}

static void test_failure_leaves_the_old_files(void **state)
{
    (void)state;
    smp_graph *graph = sample_of(smp_op_kind_find("layernorm"));
    smp_onnx_exported made;
    for (int apart = 0; apart < 2; apart++) {
        smp_onnx_export export = {graph, NULL, 0, true, rising, graph};
        remove_files();
        assert_int_equal(smp_onnx_export_write(&export, path, &made), SMP_OK);
        const size_t before = size_of(path), data_before = size_of(data_path);
        export.values = broken;
        export.apart = apart != 0;
        assert_int_equal(smp_onnx_export_write(&export, path, &made), SMP_ERR_INPUT);
        assert_string_equal(smp_last_error(), "no values");
        assert_int_equal(size_of(path), before);
        assert_int_equal(size_of(data_path), data_before);
        export.values = rising; /* the other name, and nothing is left of the first */
        export.apart = true;
        assert_int_equal(smp_onnx_export_write(&export, path, &made), SMP_OK);
        assert_string_equal(made.apart, ".data2");
        assert_int_not_equal(access(data_path, F_OK), 0);
        assert_int_equal(smp_onnx_export_write(&export, path, &made), SMP_OK);
        assert_string_equal(made.apart, ".data");
    }
    smp_graph_destroy(graph);
}

static void test_names_that_would_clash(void **state)
{
    (void)state;
    static const char text[] =
        "smp: 1\nmode: inference\ninputs:\n  x: {dtype: float32, shape: [3]}\nops:\n"
        "  - {op: relu, name: a, in: x, out: x}\n"
        "  - {op: tanh, name: b, in: x, out: x}\n";
    static const char *const both[] = {"b", "a", "b"};
    smp_graph *graph = NULL;
    smp_onnx_file *file = NULL;
    smp_onnx_exported made;
    assert_int_equal(smp_graph_parse("text", text, sizeof text - 1, &graph), SMP_OK);
    const smp_onnx_export export = {graph, both, 3, false, rising, graph};
    assert_int_equal(smp_onnx_export_write(&export, path, &made), SMP_OK);
    assert_int_equal(smp_onnx_file_open(path, &file), SMP_OK);
    check_graph(file, graph);
    assert_int_equal(file->model->graph->n_output, 3);
    smp_onnx_file_close(file);
    smp_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_is_of_kinds),
        cmocka_unit_test(test_samples_are_well_formed),
        cmocka_unit_test(test_failure_leaves_the_old_files),
        cmocka_unit_test(test_names_that_would_clash),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

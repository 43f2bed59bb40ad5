/* The importer of ONNX models. What it takes is a model that the reader of models takes, with every
 * weight that it has; as training, too, where the last byte is odd. */
#include "tests/fuzz/fuzz.h"

#ifdef SMP_HAVE_ONNX
#include "graph/import/import.h"

static void check_weights(const smp_import *import, const smp_graph *graph)
{
    for (int32_t p = 0; p < graph->n_param; p++) {
        const smp_param *param = &graph->param[p];
        if (param->elements > 1 << 16 || smp_import_opaque(import) > 0)
            continue;
        float *values = malloc((size_t)param->elements * sizeof(*values));
        FUZZ_REQUIRE(values && smp_import_weight(import, param->name, values, param->elements));
        free(values);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    smp_onnx_file *file = NULL;
    smp_onnx_model *model = NULL;
    smp_import *import = NULL;
    smp_graph *graph = NULL;
    const smp_import_options options = {size > 0 && data[size - 1] % 2 ? "cross_entropy" : NULL};
    const smp_onnx_dim dim = {"T", 4};
    /* In a folder that is not there: a file beside the model cannot be read. */
    if (fuzz_taken(smp_onnx_file_parse("nowhere/model.onnx", data, size, &file)) &&
        fuzz_taken(smp_onnx_model_read(file, &dim, 1, &model)) &&
        fuzz_taken(smp_import_onnx(model, &options, &import))) {
        const char *text = smp_import_text(import);
        FUZZ_REQUIRE(smp_graph_parse("model.yaml", text, strlen(text), &graph) == SMP_OK);
        check_weights(import, graph);
    }
    smp_graph_destroy(graph);
    smp_import_destroy(import);
    smp_onnx_model_destroy(model);
    smp_onnx_file_close(file);
    return 0;
}
#else
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    (void)data, (void)size;
    return 0;
}
#endif

/* smp-import: an ONNX model as a model file and a file of weights, or a folder of Hugging Face's as
 * a model file. Flags, wiring and exit code. */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph/base/arena.h"
#include "graph/base/text.h"
#include "graph/folder/folder.h"
#include "graph/model/graph.h"
#include "tools/options/options.h"
#ifdef SMP_HAVE_ONNX
#include "graph/import/import.h"
#endif

typedef struct arguments {
    smp_common_options common;
    const char *output, *weights, *loss;
    smp_option_list dims;
    bool check;
} arguments;

#define AT(field) offsetof(arguments, field)

static const smp_option rows[] = {
    {"o", .kind = SMP_OPTION_FILE, .value = "FILE", .at = AT(output),
     .help = "where to write the model (default: standard output)"},
    {"weights", .kind = SMP_OPTION_FILE, .value = "FILE", .at = AT(weights),
     .help = "where to write the weights of an ONNX file: safetensors, for smp-run --weights"},
    {"loss", .kind = SMP_OPTION_TEXT, .value = "cross_entropy|mse", .at = AT(loss),
     .help = "train: a loss of the first output and of an input `targets` (of a folder "
             "cross_entropy); without it the model is one for inference"},
    {"dim", .kind = SMP_OPTION_LIST, .value = "NAME=NUMBER", .at = AT(dims),
     .help = "what a symbolic dimension is (not the batch's); repeatable"},
    {"check", .kind = SMP_OPTION_YES, .at = AT(check),
     .help =
         "then compare the outputs of an ONNX file with ONNX Runtime's, on inputs that are drawn "
         "(python3 with numpy, onnx and onnxruntime); exit code 1 if one differs"},
    {0},
};

static const smp_option_table table = {
    .program = "smp-import",
    .summary = "make a model of an ONNX file or a Hugging Face folder",
    .operand = "smp-import MODEL.onnx|DIR",
    .argument = "model",
    .usage = "smp-import MODEL.onnx -o model.yaml [options]\n"
             "       smp-import DIR -o model.yaml [options]",
    .about =
        "A folder of Hugging Face's, as save_pretrained writes it: its config.json becomes a "
        "model (GPT-2, LLaMA, Mistral, Qwen, Phi-3, Gemma, mixtures, BERT, RoBERTa, DistilBERT, "
        "T5, BART, ViT, ResNet), whose weights smp-run reads from the folder. What a config "
        "asks for and SMP lacks is refused by name.\n\n"
        "Writes an ONNX model (operator sets 1 to 21) as a model of SMP. The first "
        "dimension of its first input is the batch, which the model file does not "
        "say. What SMP lacks becomes opaque: it is planned with estimated costs of "
        "one sample, and cannot be run; the reason stands beside it.",
    .exits = "exit codes: 0 done, 1 failed, 2 wrong usage or bad input",
    .row = rows,
};

static smp_status check_files(const arguments *a)
{
    char config[PATH_MAX];
    const int length = snprintf(config, sizeof(config), "%s/config.json", a->common.operand);
    if (length < (int)sizeof(config))
        SMP_TRY(smp_file_spares(a->output, config));
    SMP_TRY(smp_file_spares(a->output, a->common.operand));
    SMP_TRY(smp_file_spares(a->output, a->common.config));
    SMP_TRY(smp_file_spares(a->weights, a->common.config));
    return smp_file_spares(a->weights, a->common.operand);
}

/* The model file is read before it is written: what the reader refuses is nobody's model. */
static smp_status check_model(const arguments *a, const char *text, int32_t *n_op)
{
    smp_graph *graph = NULL;
    SMP_TRY(smp_graph_parse(a->output ? a->output : "model.yaml", text, strlen(text), &graph));
    *n_op = graph->n_op;
    smp_graph_destroy(graph);
    return SMP_OK;
}

static smp_status write_model(const arguments *a, const char *text)
{
    if (a->output)
        return smp_file_write(a->output, text, strlen(text));
    return fputs(text, stdout) < 0 || fflush(stdout) != 0
               ? smp_fail(SMP_ERR_FAILED, "standard output: cannot write")
               : SMP_OK;
}

static smp_status write_folder(const arguments *a, const char *text, const char *names)
{
    int32_t n_op;
    SMP_TRY(check_model(a, text, &n_op));
    SMP_TRY(write_model(a, text));
    if (a->output)
        printf("%s: %d operators; weights: smp-run --weights %s --names %s\n", a->output, (int)n_op,
               a->common.operand, names);
    return SMP_OK;
}

static smp_status import_folder(const arguments *a)
{
    smp_text text = {0};
    const char *names = NULL;
    if (a->weights || a->dims.n > 0 || a->check)
        return smp_fail(SMP_ERR_INPUT, "%s: is for ONNX files, and %s is a folder",
                        a->weights      ? "--weights"
                        : a->dims.n > 0 ? "--dim"
                                        : "--check",
                        a->common.operand);
    if (a->loss && strcmp(a->loss, "cross_entropy") != 0)
        return smp_fail(SMP_ERR_INPUT, "--loss: got '%s', expected cross_entropy", a->loss);
    smp_status status = smp_folder_import(a->common.operand, a->loss != NULL, &text, &names);
    if (status == SMP_OK)
        status = write_folder(a, text.data, names);
    smp_text_free(&text);
    return status;
}

#ifdef SMP_HAVE_ONNX
static smp_status write_files(const arguments *a, const smp_import *import)
{
    int32_t n_op;
    SMP_TRY(check_model(a, smp_import_text(import), &n_op));
    if (a->weights)
        SMP_TRY(smp_import_write_weights(import, a->weights));
    SMP_TRY(write_model(a, smp_import_text(import)));
    if (a->output)
        printf("%s: %d operators, %d of them planned and not run; %d weights\n", a->output,
               (int)n_op, smp_import_opaque(import), (int)smp_import_weights(import));
    return SMP_OK;
}

/* "NAME=NUMBER"; the name goes to `names`. */
static smp_status read_dim(const char *text, smp_arena *names, smp_onnx_dim *dim)
{
    const char *equals = strrchr(text, '=');
    int64_t size = 0;
    if (!equals || equals == text || !smp_parse_int(equals + 1, &size) || size < 1)
        return smp_fail(SMP_ERR_INPUT, "--dim: got '%s', expected NAME=NUMBER, above 0", text);
    const char *name = smp_arena_printf(names, "%.*s", (int)(equals - text), text);
    *dim = (smp_onnx_dim){name, size};
    return name ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static smp_status import_model(const arguments *a, smp_arena *names)
{
    smp_onnx_file *file = NULL;
    smp_onnx_model *model = NULL;
    smp_import *import = NULL;
    smp_onnx_dim dim[SMP_OPTION_LIST_MOST];
    for (int i = 0; i < a->dims.n; i++)
        SMP_TRY(read_dim(a->dims.item[i], names, &dim[i]));
    smp_status status = smp_onnx_file_open(a->common.operand, &file);
    if (status == SMP_OK)
        status = smp_onnx_model_read(file, dim, a->dims.n, &model);
    if (status == SMP_OK)
        status = smp_import_onnx(model, &(smp_import_options){a->loss}, &import);
    if (status == SMP_OK)
        status = write_files(a, import);
    smp_import_destroy(import);
    smp_onnx_model_destroy(model);
    smp_onnx_file_close(file);
    return status;
}

/* Becomes check-onnx.py of the examples, installed or in the tree; returns only if that fails. */
static smp_status check_outputs(const arguments *a)
{
    static const char *const PLACES[] = {"../share/smp/examples", "../../examples",
                                         "../../../examples"};
    enum { WORDS = 5 };
    char bin[PATH_MAX], script[PATH_MAX + 64] = "";
    const char *command[WORDS + 2 * SMP_OPTION_LIST_MOST + 1] = {"python3", script,
                                                                 a->common.operand, "--bin", bin};
    const ssize_t length = readlink("/proc/self/exe", bin, sizeof(bin) - 1);
    if (length <= 0)
        return smp_fail(SMP_ERR_FAILED, "--check: /proc/self/exe: %s", strerror(errno));
    bin[length] = '\0';
    *strrchr(bin, '/') = '\0';
    for (size_t i = 0; i < sizeof(PLACES) / sizeof(PLACES[0]); i++) {
        snprintf(script, sizeof(script), "%s/%s/check-onnx.py", bin, PLACES[i]);
        if (access(script, R_OK) == 0)
            break;
    }
    for (int i = 0; i < a->dims.n; i++) {
        command[WORDS + 2 * i] = "--dim";
        command[WORDS + 2 * i + 1] = a->dims.item[i];
    }
    fflush(stdout);
    execvp(command[0], (char *const *)command);
    return smp_fail(SMP_ERR_FAILED, "--check: cannot start python3: %s", strerror(errno));
}

static smp_status run_import(const arguments *a)
{
    smp_arena *names = smp_arena_create();
    const smp_status status = names ? import_model(a, names) : SMP_ERR_NO_MEMORY;
    smp_arena_destroy(names);
    return status == SMP_OK && a->check ? check_outputs(a) : status;
}
#else
static smp_status run_import(const arguments *a)
{
    return smp_fail(SMP_ERR_INPUT,
                    "%s: this smp-import was built without ONNX (libprotobuf-c-dev, "
                    "protobuf-c-compiler, libonnx-dev)",
                    a->common.operand);
}
#endif

int main(int argc, char **argv)
{
    arguments a = {0};
    smp_status status = smp_options_read(&table, argc, argv, 1, &a);
    if (status == SMP_OK && !smp_options_answer(&table, &a, &status)) {
        status = check_files(&a);
        if (status == SMP_OK)
            status = smp_folder_is_one(a.common.operand) ? import_folder(&a) : run_import(&a);
    }
    const int code = smp_options_end(&table, status);
    smp_options_close(&a);
    return code;
}

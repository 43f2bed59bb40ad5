/* smp-import: an ONNX model as a model file and a file of weights. Flags, wiring and exit code. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/text.h"
#include "graph/base/usage.h"
#include "graph/model/graph.h"
#ifdef SMP_HAVE_ONNX
#include "graph/import/import.h"
#endif

enum { MOST_DIMS = 64 };

static const char usage[] =
    "usage: smp-import MODEL.onnx -o model.yaml [options]\n"
    "\n"
    "Writes an ONNX model (operator sets 1 to 21) as a model of SMP. The first dimension of its\n"
    "first input is the batch, which the model file does not say. What SMP lacks becomes opaque:\n"
    "it is planned with estimated costs of one sample, and cannot be run; the reason stands "
    "beside\n"
    "it.\n"
    "\n"
    "  -o FILE              where to write the model (default: standard output)\n"
    "  --weights FILE       where to write its weights: safetensors, for smp-run --weights\n"
    "  --loss cross_entropy|mse\n"
    "                       train: a loss of the first output and of an input `targets`; without\n"
    "                       it the model is one for inference\n"
    "  --dim NAME=NUMBER    what a symbolic dimension is (not the batch's); repeatable\n"
    "  --help, --version\n"
    "\n"
    "exit codes: 0 done, 1 failed, 2 wrong usage or bad input\n";

typedef enum flag { FLAG_WEIGHTS = 256, FLAG_LOSS, FLAG_DIM, FLAG_HELP, FLAG_VERSION } flag;

static const struct option long_options[] = {
    {"weights", required_argument, NULL, FLAG_WEIGHTS},
    {"loss", required_argument, NULL, FLAG_LOSS},
    {"dim", required_argument, NULL, FLAG_DIM},
    {"help", no_argument, NULL, FLAG_HELP},
    {"version", no_argument, NULL, FLAG_VERSION},
    {NULL, 0, NULL, 0},
};

typedef struct arguments {
    const char *model, *output, *weights, *loss;
    char *dim_name[MOST_DIMS];
    int64_t dim[MOST_DIMS];
    int n_dim;
    bool help, version;
} arguments;

static smp_status set_dim(arguments *a, char *text)
{
    char *equals = strrchr(text, '=');
    if (a->n_dim == MOST_DIMS)
        return smp_fail(SMP_ERR_INPUT, "--dim: given more than %d times", MOST_DIMS);
    if (!equals || equals == text || !smp_parse_int(equals + 1, &a->dim[a->n_dim]) ||
        a->dim[a->n_dim] < 1)
        return smp_fail(SMP_ERR_INPUT, "--dim: got '%s', expected NAME=NUMBER, above 0", text);
    *equals = '\0';
    a->dim_name[a->n_dim++] = text;
    return SMP_OK;
}

static smp_status set_option(arguments *a, int option, char *text)
{
    switch (option) {
    case 'o':
        a->output = text;
        return SMP_OK;
    case FLAG_WEIGHTS:
        a->weights = text;
        return SMP_OK;
    case FLAG_LOSS:
        a->loss = text;
        return SMP_OK;
    case FLAG_DIM:
        return set_dim(a, text);
    case FLAG_HELP:
        a->help = true;
        return SMP_OK;
    default:
        a->version = true;
        return SMP_OK;
    }
}

static smp_status parse_arguments(int argc, char **argv, arguments *a)
{
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, ":o:", long_options, NULL)) != -1;) {
        if (option == '?' || option == ':')
            return smp_usage_bad_option(argv[optind - 1], option == ':', long_options);
        SMP_TRY(set_option(a, option, optarg));
    }
    if (a->help || a->version)
        return SMP_OK;
    if (argc - optind != 1)
        return smp_fail(SMP_ERR_INPUT, "got %d models, expected one: smp-import MODEL.onnx",
                        argc - optind);
    a->model = argv[optind];
    SMP_TRY(smp_file_spares(a->output, a->model));
    return smp_file_spares(a->weights, a->model);
}

#ifdef SMP_HAVE_ONNX
/* The model file is read before it is written: what the reader refuses is nobody's model. */
static smp_status write_files(const arguments *a, const smp_import *import)
{
    const char *text = smp_import_text(import);
    smp_graph *graph = NULL;
    SMP_TRY(smp_graph_parse(a->output ? a->output : "model.yaml", text, strlen(text), &graph));
    const int32_t n_op = graph->n_op;
    smp_graph_destroy(graph);
    if (a->weights)
        SMP_TRY(smp_import_write_weights(import, a->weights));
    if (!a->output)
        return fputs(text, stdout) < 0 || fflush(stdout) != 0
                   ? smp_fail(SMP_ERR_FAILED, "standard output: cannot write")
                   : SMP_OK;
    SMP_TRY(smp_file_write(a->output, text, strlen(text)));
    printf("%s: %d operators, %d of them planned and not run; %d weights\n", a->output, (int)n_op,
           smp_import_opaque(import), (int)smp_import_weights(import));
    return SMP_OK;
}

static smp_status run(const arguments *a)
{
    smp_onnx_file *file = NULL;
    smp_onnx_model *model = NULL;
    smp_import *import = NULL;
    smp_onnx_dim dim[MOST_DIMS];
    for (int i = 0; i < a->n_dim; i++)
        dim[i] = (smp_onnx_dim){a->dim_name[i], a->dim[i]};
    smp_status status = smp_onnx_file_open(a->model, &file);
    if (status == SMP_OK)
        status = smp_onnx_model_read(file, dim, a->n_dim, &model);
    if (status == SMP_OK)
        status = smp_import_onnx(model, &(smp_import_options){a->loss}, &import);
    if (status == SMP_OK)
        status = write_files(a, import);
    smp_import_destroy(import);
    smp_onnx_model_destroy(model);
    smp_onnx_file_close(file);
    return status;
}
#else
static smp_status run(const arguments *a)
{
    return smp_fail(SMP_ERR_INPUT,
                    "%s: this smp-import was built without ONNX (libprotobuf-c-dev, "
                    "protobuf-c-compiler, libonnx-dev)",
                    a->model);
}
#endif

int main(int argc, char **argv)
{
    arguments a = {0};
    smp_status status = parse_arguments(argc, argv, &a);
    if (status == SMP_OK && (a.help || a.version)) {
        fputs(a.help ? usage : "smp-import " SMP_VERSION_STRING "\n", stdout);
        return 0;
    }
    if (status == SMP_OK)
        status = run(&a);
    if (status != SMP_OK)
        fprintf(stderr, "smp-import: %s\n", smp_last_error());
    return smp_status_exit_code(status);
}

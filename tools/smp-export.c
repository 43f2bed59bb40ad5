/* smp-export: a trained model for other programs. Options, wiring and exit code. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/checkpoint/checkpoint_values.h"
#include "graph/base/arena.h"
#include "graph/base/text.h"
#include "graph/ops/custom_op.h"
#include "graph/safetensors/name_family.h"
#include "graph/safetensors/weights_match.h"
#include "graph/yaml/yaml.h"
#include "schedule/plan/plan.h"
#include "tools/options/options.h"
#ifdef SMP_HAVE_ONNX
#include "graph/export/export_model.h"
#endif

typedef struct options {
    smp_common_options common;
    const char *onnx, *weights, *checkpoint, *names, *map;
    smp_option_list tensors, plugins;
    bool best, apart;
} options;

#define AT(field) offsetof(options, field)

static const smp_option rows[] = {
    {"onnx", .kind = SMP_OPTION_FILE, .value = "FILE", .at = AT(onnx), .help = "the file to write"},
    {"tensor", .kind = SMP_OPTION_LIST, .value = "NAME", .at = AT(tensors),
     .help = "an output: of the operator that makes it, or its own; repeatable"},
    {"external-data", .kind = SMP_OPTION_YES, .at = AT(apart),
     .help = "weights in FILE.data (or .data2) beside it; without, that is so where all of it "
             "would be over "
             "2 GiB, the limit of a protobuf"},
    {"trained weights", .kind = SMP_OPTION_HEADING},
    {"checkpoint", .kind = SMP_OPTION_TEXT, .value = "DIR", .at = AT(checkpoint),
     .help = "those saved last in DIR"},
    {"best", .kind = SMP_OPTION_YES, .at = AT(best),
     .help = "... or those that evaluated to the lowest loss (smp-run --keep-best)"},
    {"weights", .kind = SMP_OPTION_TEXT, .value = "FILE", .at = AT(weights),
     .help = "those of FILE: .safetensors, an index.json of several, or llm.c's .bin"},
    {"weights-map", .kind = SMP_OPTION_TEXT, .value = "FILE", .at = AT(map),
     .help = "rules of what weights are called in it, and how they lie there"},
    {"names", .kind = SMP_OPTION_TEXT, .value = "NAME", .at = AT(names),
     .names = smp_name_families_put,
     .help = "the same for networks as Hugging Face has them, one of these:"},
    {"job", .kind = SMP_OPTION_HEADING},
    {"plugin", .kind = SMP_OPTION_LIST, .value = "FILE.so", .at = AT(plugins),
     .help = "operators of your own that the model has; repeatable. They have no meaning in ONNX: "
             "name outputs before them"},
    {0},
};

static const smp_option_table table = {
    .program = "smp-export",
    .summary = "write a trained model as an ONNX file",
    .operand = "smp-export MODEL|PLAN --onnx FILE",
    .argument = "model",
    .usage = "smp-export MODEL|PLAN --onnx FILE --checkpoint DIR|--weights FILE [options]",
    .about = "Writes a trained model as an ONNX file (opset 17): forward as in an "
             "evaluation, for any number of samples. Its outputs are what the loss reads "
             "first, as of smp-run --predict.",
    .exits = "exit codes: 0 done, 1 failed, 2 wrong usage or bad input",
    .row = rows,
};

/* What is read is not the file, or the weights beside it. */
static smp_status spare_inputs(const options *a, const char *path, const char *end,
                               smp_arena *arena)
{
    const char *written = smp_arena_printf(arena, "%s%s", path, end);
    const char *saved = a->checkpoint ? smp_arena_printf(arena, "%s/*.smp", a->checkpoint) : NULL;
    if (!written || (a->checkpoint && !saved))
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp_file_spares(written, a->common.operand));
    SMP_TRY(smp_file_spares(written, a->common.config));
    SMP_TRY(smp_file_spares(written, a->weights));
    SMP_TRY(smp_file_spares(written, a->map));
    SMP_TRY(smp_file_spares(written, saved));
    for (int i = 0; i < a->plugins.n; i++)
        SMP_TRY(smp_file_spares(written, a->plugins.item[i]));
    return SMP_OK;
}

static smp_status check_options(const options *a, smp_arena *arena)
{
    if (!a->onnx)
        return smp_fail(SMP_ERR_INPUT, "no --onnx FILE: name the file to write");
    SMP_TRY(spare_inputs(a, a->onnx, "", arena));
    SMP_TRY(spare_inputs(a, a->onnx, ".data", arena));
    SMP_TRY(spare_inputs(a, a->onnx, ".data2", arena));
    if (!a->checkpoint == !a->weights)
        return smp_fail(SMP_ERR_INPUT, "%s: give one of --checkpoint DIR and --weights FILE",
                        a->weights ? "both" : "no trained weights");
    if ((a->names || a->map) && !a->weights)
        return smp_fail(SMP_ERR_INPUT, "--names and --weights-map need --weights FILE");
    if (a->best && !a->checkpoint)
        return smp_fail(SMP_ERR_INPUT, "--best needs --checkpoint DIR");
    return SMP_OK;
}

/* A plan names its model. */
static smp_status is_plan(const char *path, bool *plan)
{
    smp_yaml *yaml = NULL;
    const smp_yaml_node *top = NULL;
    SMP_TRY(smp_yaml_read(path, &yaml));
    smp_status status = smp_yaml_top(yaml, &top);
    if (status == SMP_OK)
        status = smp_yaml_map(top, "a model or a plan");
    if (status == SMP_OK)
        *plan = smp_yaml_get(top, "ops") == NULL && smp_yaml_get(top, "model") != NULL;
    smp_yaml_destroy(yaml);
    return status;
}

static smp_status open_model(const char *path, smp_graph **out)
{
    bool planned = false;
    smp_plan *plan = NULL;
    SMP_TRY(is_plan(path, &planned));
    if (!planned)
        return smp_graph_read(path, out);
    smp_status status = smp_plan_read(path, &plan);
    if (status == SMP_OK)
        status = smp_plan_open_model(plan, path, 0, out);
    smp_plan_destroy(plan);
    return status;
}

/* Where values come from: a checkpoint, or a file and the tensors of each weight. Opened when the
 * first are asked for, so that what cannot be exported is said before. */
typedef struct source {
    const options *options;
    const smp_graph *graph;
    bool is_open;
    smp__checkpoint_values checkpoint;
    smp_weights_file *file;
    smp_weight_sources *sources; /* [weights] */
} source;

static smp_status match(source *from, const options *a)
{
    const int32_t n = from->graph->n_param;
    smp_matched_weight *weight = NULL;
    smp_name_rules rules = {0};
    int32_t unused = 0;
    if (!(from->sources = calloc((size_t)n + 1, sizeof *from->sources)))
        return smp_fail_memory((size_t)n * sizeof *from->sources);
    smp_status status = smp_name_rules_open(&rules, a->map, a->names);
    if (status == SMP_OK)
        status = smp_graph_list_weights(from->graph, &weight);
    if (status == SMP_OK)
        status = smp_weights_match(from->file, &rules, weight, n, NULL, 0, from->sources, &unused);
    free(weight);
    smp_name_rules_free(&rules);
    return status;
}

static smp_status open_source(source *from)
{
    const options *a = from->options;
    from->is_open = true;
    if (a->checkpoint)
        return smp__checkpoint_values_open(a->checkpoint, a->best, from->graph, &from->checkpoint);
    SMP_TRY(smp_weights_file_open(a->weights, &from->file));
    return match(from, a);
}

static void close_source(source *from)
{
    smp__checkpoint_values_close(&from->checkpoint);
    smp_weights_file_close(from->file);
    free(from->sources);
}

static smp_status values_of(void *context, int32_t param, float *values)
{
    source *from = context;
    const int64_t n = from->graph->param[param].elements;
    if (!from->is_open)
        SMP_TRY(open_source(from));
    if (!from->file)
        return smp__checkpoint_values_read(&from->checkpoint, param, values);
    const bool in_order = smp_weight_in_order(&from->sources[param]);
    float *scratch = in_order ? NULL : malloc((size_t)n * sizeof *scratch);
    if (!in_order && !scratch)
        return smp_fail_memory((size_t)n * sizeof *scratch);
    const smp_status status =
        smp_weight_read(from->file, &from->sources[param], 0, n, values, scratch);
    free(scratch);
    return status;
}

#ifdef SMP_HAVE_ONNX
static smp_status write_onnx(source *from, const options *a)
{
    const smp_onnx_export export = {.graph = from->graph,
                                    .tensor = a->tensors.item,
                                    .n_tensor = a->tensors.n,
                                    .apart = a->apart,
                                    .values = values_of,
                                    .context = from};
    smp_onnx_exported made;
    char bytes[32];
    SMP_TRY(smp_onnx_export_write(&export, a->onnx, &made));
    printf("%s: %lld nodes, %lld weights, %s%s%s%s\n", a->onnx, (long long)made.nodes,
           (long long)made.weights, smp_format_bytes(bytes, sizeof bytes, made.bytes),
           made.apart[0] ? " in " : "", made.apart[0] ? a->onnx : "", made.apart);
    return SMP_OK;
}
#else
static smp_status write_onnx(source *from, const options *a)
{
    (void)from, (void)values_of;
    return smp_fail(SMP_ERR_INPUT,
                    "%s: this smp-export was built without ONNX: protobuf-c, protoc-c or "
                    "onnx.proto was not there",
                    a->onnx);
}
#endif

static smp_status export_model(const options *a)
{
    smp_graph *graph = NULL;
    source from = {.options = a, .checkpoint = {.fd = -1}};
    smp_arena *arena = smp_arena_create();
    const smp_status checked = arena ? check_options(a, arena) : SMP_ERR_NO_MEMORY;
    smp_arena_destroy(arena);
    SMP_TRY(checked);
    SMP_TRY(smp_plugins_load(a->plugins.item, a->plugins.n));
    SMP_TRY(open_model(a->common.operand, &graph));
    from.graph = smp_graph_whole(graph);
    const smp_status status = write_onnx(&from, a);
    close_source(&from);
    smp_graph_destroy(graph);
    return status;
}

int main(int argc, char **argv)
{
    options a = {0};
    smp_status status = smp_options_read(&table, argc, argv, 1, &a);
    if (status == SMP_OK && !smp_options_answer(&table, &a, &status))
        status = export_model(&a);
    const int code = smp_options_end(&table, status);
    smp_options_close(&a);
    return code;
}

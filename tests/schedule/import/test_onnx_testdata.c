/* Every model of Debian's libonnx-testdata: it plans, or is refused with file and reason; those
 * whose operators SMP has are run to their stored outputs. SMP_ONNX_LIST=1 says which is what. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "graph/model/op.h"
#include "schedule/planner/planner.h"

#ifdef SMP_HAVE_ONNX
#include "graph/import/import.h"

/* Counts as of onnx 1.12; they may rise, but for models whose operators are all ours and of which
 * nothing is compared. */
enum { LEAST_RUN = 129, LEAST_PLANNED = 953, MODELS = 1072, MOST_UNCOMPARED = 0 };
#define FOLDER "/usr/share/libonnx-testdata/data"
#define TOLERANCE 1e-4
#define NOT_OURS (-1.0)   /* refused, or with an operator that SMP lacks */
#define UNCOMPARED (-2.0) /* all operators are ours; no output is stored, or an input is not */

typedef struct counts {
    int models, run, planned, refused, uncompared, wrong;
    bool list;
} counts;

static void *zeroed(int64_t bytes)
{
    const size_t size = ((size_t)bytes + 127) / 64 * 64;
    void *memory = aligned_alloc(64, size);
    assert_non_null(memory);
    memset(memory, 0, size);
    return memory;
}

/* A stored tensor as floats; NULL: not there, or of another kind than tensors of numbers. */
static float *read_values(const smp_onnx_model *model, const char *folder, const char *what,
                          size_t k, int64_t *n)
{
    char path[600];
    char *data = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof(path), "%s/test_data_set_0/%s_%zu.pb", folder, what, k);
    if (smp_file_read(path, 1 << 30, &data, &bytes) != SMP_OK)
        return NULL;
    Onnx__TensorProto *tensor = onnx__tensor_proto__unpack(NULL, bytes, (uint8_t *)data);
    free(data);
    smp_onnx_value value = {0};
    float *out = NULL;
    if (tensor && smp__onnx_constant((smp_onnx_model *)model, tensor, path, &value) == SMP_OK &&
        smp_onnx_constant(&value)) {
        *n = smp__onnx_elements(&value);
        out = malloc((size_t)(*n + 1) * sizeof(*out));
        assert_non_null(out);
        for (int64_t i = 0; i < *n; i++)
            out[i] = value.floats ? value.floats[i] : (float)value.ints[i];
    }
    if (tensor)
        onnx__tensor_proto__free_unpacked(tensor, NULL);
    return out;
}

typedef struct running {
    const smp_graph *graph;
    int64_t batch;
    void **value;  /* [n_tensor] */
    float **param; /* [n_param] */
} running;

static void run_op(const running *r, const smp_op *op)
{
    smp_op_needs needs;
    const void *in[SMP_OP_MAX_IN];
    const float *param[SMP_OP_MAX_PARAM];
    void *state = NULL;
    smp_op_needs_get(r->graph, op, r->batch, &needs);
    smp_op_call call = {.graph = r->graph, .op = op, .batch = r->batch, .in = in, .param = param};
    call.aux = zeroed(needs.aux_bytes * r->batch);
    call.workspace = zeroed(needs.workspace_bytes);
    call.out = &r->value[op->out];
    for (int32_t k = 0; k < op->n_in; k++)
        in[k] = r->value[op->in[k]];
    for (int32_t k = 0; k < op->n_param; k++)
        param[k] = r->param[op->param[k]];
    if (op->kind->cpu.prepare)
        assert_int_equal(op->kind->cpu.prepare(r->graph, op, r->batch, NULL, &state), SMP_OK);
    call.state = state;
    assert_int_equal(op->kind->cpu.forward(&call), SMP_OK);
    if (state)
        op->kind->cpu.release(state);
    free(call.aux);
    free(call.workspace);
}

static void fill_input(const running *r, int32_t t, const float *values, int64_t n)
{
    const smp_tensor *tensor = &r->graph->tensor[t];
    for (int64_t i = 0; i < tensor->elements * r->batch; i++) {
        const float v = n > 0 ? values[i % n] : 0; /* one for all samples is there once */
        if (tensor->dtype == SMP_I32)
            ((int32_t *)r->value[t])[i] = (int32_t)v;
        else
            ((float *)r->value[t])[i] = v;
    }
}

static bool fill(const running *r, const smp_onnx_model *model, const smp_import *import,
                 const char *folder)
{
    const Onnx__GraphProto *graph = model->file->model->graph;
    size_t stored = 0;
    for (size_t k = 0; k < graph->n_input; k++) {
        int64_t at, n = 0;
        assert_true(smp_map_get(model->by_name, graph->input[k]->name, &at));
        if (!model->value[at].input)
            continue;
        float *values = read_values(model, folder, "input", stored++, &n);
        const char *name = smp_import_input(import, graph->input[k]->name);
        if (!values)
            return false;
        for (int32_t t = 0; name && t < r->graph->n_input; t++)
            if (strcmp(r->graph->tensor[t].name, name) == 0)
                fill_input(r, t, values, n);
        free(values);
    }
    for (int32_t p = 0; p < r->graph->n_param; p++)
        assert_true(smp_import_weight(import, r->graph->param[p].name, r->param[p],
                                      r->graph->param[p].elements));
    return true;
}

/* Largest difference to the stored outputs, relative to values above 1; or UNCOMPARED. */
static double compare(const running *r, const smp_onnx_model *model, const smp_import *import,
                      const char *folder)
{
    int n_output;
    const smp_imported_output *output = smp_import_outputs(import, &n_output);
    double most = UNCOMPARED;
    for (int k = 0; k < n_output; k++) {
        int64_t n = 0;
        float *wanted =
            output[k].tensor ? read_values(model, folder, "output", (size_t)k, &n) : NULL;
        for (int32_t t = r->graph->n_tensor - 1; wanted && t >= 0; t--) {
            const smp_tensor *tensor = &r->graph->tensor[t];
            if (strcmp(tensor->name, output[k].tensor) != 0)
                continue;
            if (n != tensor->elements * r->batch && n != tensor->elements)
                most = INFINITY;
            for (int64_t i = 0; i < n && most < INFINITY; i++) {
                const double got = tensor->dtype == SMP_I32 ? (double)((int32_t *)r->value[t])[i]
                                                            : (double)((float *)r->value[t])[i];
                const double scale = fabs((double)wanted[i]) > 1 ? fabs((double)wanted[i]) : 1;
                const double off =
                    got == (double)wanted[i] ? 0 : fabs(got - (double)wanted[i]) / scale;
                most = isnan(off) ? INFINITY : off > most ? off : most;
            }
            break;
        }
        free(wanted);
    }
    return most;
}

static double run(const smp_graph *graph, const smp_onnx_model *model, const smp_import *import,
                  const char *folder)
{
    running r = {graph, model->batch, calloc((size_t)graph->n_tensor, sizeof(void *)),
                 calloc((size_t)graph->n_param + 1, sizeof(float *))};
    for (int32_t t = 0; t < graph->n_tensor; t++)
        r.value[t] = zeroed(smp_tensor_bytes(graph, t, r.batch));
    for (int32_t p = 0; p < graph->n_param; p++)
        r.param[p] = zeroed(graph->param[p].elements * 4);
    double off = UNCOMPARED;
    if (fill(&r, model, import, folder)) {
        for (int32_t i = 0; i < graph->n_op; i++)
            run_op(&r, &graph->op[i]);
        off = compare(&r, model, import, folder);
    }
    for (int32_t t = 0; t < graph->n_tensor; t++)
        free(r.value[t]);
    for (int32_t p = 0; p < graph->n_param; p++)
        free(r.param[p]);
    free(r.value);
    free(r.param);
    return off;
}

static void plan(const smp_graph *graph, int64_t batch)
{
    smp_cluster *cluster = NULL;
    smp_planner_result result;
    assert_int_equal(smp_cluster_default(graph->target, NULL, 1, &cluster), SMP_OK);
    smp_search_request request = {.graph = graph,
                                  .cluster = cluster,
                                  .options.devices = 1,
                                  .options.stages = 1,
                                  .options.ddp = 1,
                                  .options.chunks = 1,
                                  .options.microbatches = 1,
                                  .options.microbatch_size = batch,
                                  .placement = SMP_PLACEMENT_AUTO,
                                  .options.schedule = "gpipe"};
    if (smp_plan_make(&request, "model.yaml", &result) != SMP_OK)
        fail_msg("%s", smp_last_error());
    smp_planner_result_destroy(&result);
    smp_cluster_destroy(cluster);
}

/* Every input but the first becomes an initializer, as weights are in models that were trained. */
static void store_inputs(Onnx__GraphProto *graph, const char *folder)
{
    Onnx__TensorProto **all = calloc(graph->n_initializer + graph->n_input, sizeof(*all));
    size_t n = 0, stored = 0;
    for (; n < graph->n_initializer; n++)
        all[n] = graph->initializer[n];
    for (size_t k = 0; k < graph->n_input; k++) {
        char path[700];
        char *data = NULL;
        size_t bytes = 0;
        bool there = false;
        for (size_t i = 0; i < graph->n_initializer; i++)
            there |= strcmp(graph->initializer[i]->name, graph->input[k]->name) == 0;
        if (there || stored++ == 0)
            continue;
        snprintf(path, sizeof(path), "%s/test_data_set_0/input_%zu.pb", folder, stored - 1);
        if (smp_file_read(path, 1 << 30, &data, &bytes) != SMP_OK)
            continue;
        all[n] = onnx__tensor_proto__unpack(NULL, bytes, (uint8_t *)data);
        free(data);
        if (all[n]) {
            free(all[n]->name);
            all[n++]->name = strdup(graph->input[k]->name);
        }
    }
    free(graph->initializer);
    graph->initializer = all;
    graph->n_initializer = n;
}

/* Off by how much; or NOT_OURS, UNCOMPARED. */
static double one(counts *c, const char *folder, bool as_weights)
{
    char path[700];
    smp_onnx_file *file = NULL;
    smp_onnx_model *model = NULL;
    smp_import *import = NULL;
    smp_graph *graph = NULL;
    snprintf(path, sizeof(path), "%s/model.onnx", folder);
    smp_status status = smp_onnx_file_open(path, &file);
    if (status == SMP_OK && as_weights)
        store_inputs(file->model->graph, folder);
    if (status == SMP_OK)
        status = smp_onnx_model_read(file, NULL, 0, &model);
    if (status == SMP_OK)
        status = smp_import_onnx(model, &(smp_import_options){NULL}, &import);
    double off = NOT_OURS;
    bool planned = false;
    if (status != SMP_OK) {
        assert_int_equal(status, SMP_ERR_INPUT);
        assert_memory_equal(smp_last_error(), path, strlen(path));
        if (c->list)
            printf("refused %s\n", smp_last_error());
    } else {
        const char *text = smp_import_text(import);
        if (smp_graph_parse(path, text, strlen(text), &graph) != SMP_OK)
            fail_msg("%s\n%s", smp_last_error(), text);
        plan(graph, model->batch);
        planned = true;
        off = smp_import_opaque(import) > 0 ? NOT_OURS : run(graph, model, import, folder);
        if (off > TOLERANCE)
            printf("%s: off by %g\n%s", folder, off, text);
        if (c->list)
            printf("%s %s\n", off < 0 ? "planned" : "run", folder);
    }
    if (!as_weights) {
        c->models++;
        c->planned += planned;
        c->refused += !planned;
    }
    c->run += off >= 0 && off <= TOLERANCE;
    c->wrong += off > TOLERANCE;
    smp_graph_destroy(graph);
    smp_import_destroy(import);
    smp_onnx_model_destroy(model);
    smp_onnx_file_close(file);
    return off;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void folders_of(counts *c, const char *group)
{
    char path[300];
    snprintf(path, sizeof(path), FOLDER "/%s", group);
    DIR *dir = opendir(path);
    char *name[2048];
    int n = 0;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) && n < 2048;)
        if (entry->d_name[0] != '.')
            name[n++] = strdup(entry->d_name);
    closedir(dir);
    qsort(name, (size_t)n, sizeof(*name), by_text);
    for (int i = 0; i < n; i++) {
        char folder[600], model[700];
        snprintf(folder, sizeof(folder), "%s/%s", path, name[i]);
        snprintf(model, sizeof(model), "%s/model.onnx", folder);
        FILE *there = fopen(model, "rb");
        if (there) {
            fclose(there);
            const double off = one(c, folder, false);
            const double as_weights = off < 0 ? one(c, folder, true) : off;
            if (as_weights < 0 && fmin(off, as_weights) == UNCOMPARED) {
                printf("nothing to compare: %s\n", folder);
                c->uncompared++;
            }
        }
        free(name[i]);
    }
}

static void test_every_model(void **state)
{
    (void)state;
    counts c = {.list = getenv("SMP_ONNX_LIST") != NULL};
    static const char *const GROUPS[] = {"node", "pytorch-converted", "pytorch-operator", "simple"};
    for (size_t g = 0; g < sizeof(GROUPS) / sizeof(GROUPS[0]); g++)
        folders_of(&c, GROUPS[g]);
    printf("%d models: %d plan, %d are refused; %d run, %d could but have nothing to compare\n",
           c.models, c.planned, c.refused, c.run, c.uncompared);
    assert_int_equal(c.wrong, 0);
    if (c.models == MODELS) {
        assert_true(c.run >= LEAST_RUN);
        assert_true(c.planned >= LEAST_PLANNED);
        assert_true(c.uncompared <= MOST_UNCOMPARED);
    }
}

int main(void)
{
    DIR *data = opendir(FOLDER);
    if (!data) {
        printf("skipped: no " FOLDER " (libonnx-testdata)\n");
        return 77;
    }
    closedir(data);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    puts("skipped: built without ONNX");
    return 77;
}
#endif

/* How often memory is passed over: the kernels that the calls of an operator launch and the bytes
 * that these read and write, and those of a transformer's block in a step, as the emulator sees
 * them. The table in docs/cuda.md is what this test makes: a count that differs from it
 * fails. `least` is what the call's contract asks for: every array that it gets, once. */
#include <stdio.h>
#include <unistd.h>

#include "exec/device/device.h"
#include "exec/state/handle.h"
#include "tests/cuda/device_array.h"
#include "tests/emulate/emulate_traffic.h"

enum { BATCH = 2, PAGE = 4096, KIB = 1024 };

static char *readme;
static int wrong;

static void say(const char *row)
{
    if (strstr(readme, row))
        return;
    fprintf(stderr, "not in the table of docs/cuda.md:\n%s", row);
    wrong++;
}

/* Whole pages of zeroes. */
static void *zeroes(int64_t bytes)
{
    void *memory = NULL;
    if (bytes == 0)
        return NULL;
    assert_int_equal(cudaMalloc(&memory, (size_t)bytes), cudaSuccess);
    assert_int_equal(cudaMemset(memory, 0, (size_t)bytes), cudaSuccess);
    return memory;
}

/* The arrays of an op's calls, and the bytes of those that a call gets. */
typedef struct arrays {
    void *in[SMP_OP_MAX_IN], *out, *dout, *aux, *workspace;
    float *din[SMP_OP_MAX_IN], *dparam[SMP_OP_MAX_PARAM];
    const float *param[SMP_OP_MAX_PARAM];
    const void *param16[SMP_OP_MAX_PARAM];
    smp_op_needs needs;
} arrays;

static int64_t pages(int64_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static arrays make_arrays(const smp_graph *graph, const smp_op *op)
{
    arrays a = {0};
    smp_op_needs_get(graph, op, BATCH, &a.needs);
    for (int i = 0; i < op->n_in; i++) {
        const int64_t bytes = smp_tensor_bytes(graph, op->in[i], BATCH);
        a.in[i] = zeroes(bytes);
        a.din[i] = graph->tensor[op->in[i]].dtype == SMP_I32 ? NULL : zeroes(bytes);
    }
    for (int i = 0; i < op->n_param; i++) {
        const int64_t elements = graph->param[op->param[i]].elements;
        a.param[i] = zeroes(4 * elements);
        a.param16[i] = zeroes(2 * elements);
        a.dparam[i] = zeroes(4 * elements);
    }
    a.out = zeroes(smp_tensor_bytes(graph, op->out, BATCH));
    a.dout = zeroes(smp_tensor_bytes(graph, op->out, BATCH));
    a.aux = zeroes(a.needs.aux_bytes * BATCH);
    a.workspace = zeroes(a.needs.workspace_bytes);
    return a;
}

static void free_arrays(const arrays *a)
{
    void *const one[] = {a->out, a->dout, a->aux, a->workspace};
    for (int i = 0; i < 4; i++)
        cudaFree(one[i]);
    for (int i = 0; i < SMP_OP_MAX_IN; i++) {
        cudaFree(a->in[i]);
        cudaFree(a->din[i]);
    }
    for (int i = 0; i < SMP_OP_MAX_PARAM; i++) {
        cudaFree((void *)a->param[i]);
        cudaFree((void *)a->param16[i]);
        cudaFree(a->dparam[i]);
    }
}

/* Matrices are read in 16 bits, vectors as they are but where a product adds them. */
static int64_t weight_bytes(const smp_graph *graph, const smp_op *op)
{
    int64_t bytes = 0;
    for (int i = 0; i < op->n_param; i++) {
        const smp_param *param = &graph->param[op->param[i]];
        bytes += pages(param->elements * (param->shape.n_dim > 1 ? 2 : 4));
    }
    return bytes;
}

static int64_t input_bytes(const smp_graph *graph, const smp_op *op, uint32_t mask)
{
    int64_t bytes = 0;
    for (int i = 0; i < op->n_in; i++)
        if (mask >> i & 1)
            bytes += pages(smp_tensor_bytes(graph, op->in[i], BATCH));
    return bytes;
}

typedef struct least {
    int64_t read, written;
} least;

enum { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, BACKWARD, PARTS };

static least least_of(const smp_graph *graph, const smp_op *op, const smp_op_needs *needs, int part)
{
    const int64_t out = pages(smp_tensor_bytes(graph, op->out, BATCH));
    const int64_t aux = pages(needs->aux_bytes * BATCH);
    if (part == FORWARD)
        return (least){input_bytes(graph, op, ~0u) + weight_bytes(graph, op), out + aux};
    if (part == BACKWARD) { /* what both read, once */
        const least input = least_of(graph, op, needs, BACKWARD_INPUT);
        const least weight = least_of(graph, op, needs, BACKWARD_WEIGHT);
        return (least){input.read + weight.written, input.written + weight.written};
    }
    if (part == BACKWARD_WEIGHT) {
        least l = {out + input_bytes(graph, op, needs->weight_grad_in) +
                       (needs->weight_grad_aux ? aux : 0),
                   0};
        for (int i = 0; i < op->n_param; i++)
            l.written += pages(4 * graph->param[op->param[i]].elements);
        l.read += l.written;
        return l;
    }
    uint32_t floats = 0;
    for (int i = 0; i < op->n_in; i++)
        floats |= (uint32_t)(graph->tensor[op->in[i]].dtype != SMP_I32) << i;
    least l = {out + input_bytes(graph, op, needs->input_grad_in) +
                   (needs->input_grad_aux ? aux : 0) + (needs->input_grad_out & 1 ? out : 0),
               input_bytes(graph, op, floats)};
    if (op->n_param > 0) /* the weight, not the bias */
        l.read += pages(graph->param[op->param[0]].elements *
                        (graph->param[op->param[0]].shape.n_dim > 1 ? 2 : 4));
    return l;
}

/* What is counted: one call, or two as one kernel. */
typedef struct counted {
    smp_status (*one)(const smp_op_call *call);
    smp_status (*pair)(const smp_op_call *call, const smp_op_call *other);
    const smp_op_call *call, *other;
} counted;

static void count(const char *name, int part, const least *l, counted of)
{
    static const char *const parts[PARTS] = {"forward", "backward_input", "backward_weight",
                                             "backward"};
    char row[160];
    assert_true(emulate_traffic_count(true));
    check(of.one ? of.one(of.call) : of.pair(of.call, of.other));
    assert_true(emulate_traffic_count(false));
    const emulate_traffic t = emulate_traffic_counted();
    snprintf(row, sizeof row, "| %s | `%s` | %ld | %ld + %ld | %lld + %lld |\n", name, parts[part],
             t.launches, t.read / KIB, t.written / KIB, (long long)l->read / KIB,
             (long long)l->written / KIB);
    say(row);
}

static smp_graph *parse(const char *inputs, const char *ops)
{
    char model[1024];
    smp_graph *graph = NULL;
    snprintf(model, sizeof model, "smp: 1\nname: m\ninputs:\n%sops:\n%s", inputs, ops);
    check(smp_graph_parse("model.yaml", model, strlen(model), &graph));
    check(smp_graph_set_target(graph, (smp_target){SMP_BACKEND_CUDA, SMP_PRECISION_BF16}));
    cuda.precision = SMP_PRECISION_BF16;
    return graph;
}

static smp_op_call call_of(const smp_graph *graph, const smp_op *op, arrays *a)
{
    return (smp_op_call){.graph = graph,
                         .op = op,
                         .batch = BATCH,
                         .in = (const void *const *)a->in,
                         .out = &a->out,
                         .device = &cuda,
                         .param = a->param,
                         .param16 = a->param16,
                         .aux = a->aux,
                         .workspace = a->workspace,
                         .dout = (const float *const *)&a->dout,
                         .din = a->din,
                         .dparam = a->dparam,
                         .step = {.training = true, .samples = BATCH}};
}

static void count_graph(const char *name, smp_graph *graph)
{
    void *state = NULL;
    const smp_op *op = &graph->op[graph->n_op - 1];
    const smp_op_kernels *kernels = smp_op_cuda_kernels(op->kind);
    arrays a = make_arrays(graph, op);
    if (kernels->prepare)
        check(kernels->prepare(graph, op, BATCH, &cuda, &state));
    smp_op_call call = call_of(graph, op, &a);
    call.state = state;
    smp_status (*const run[PARTS])(const smp_op_call *) = {
        kernels->forward, kernels->backward_input, kernels->backward_weight, kernels->backward};
    for (int part = 0; part < PARTS; part++) {
        const least l = least_of(graph, op, &a.needs, part);
        if (run[part] && (part < BACKWARD_WEIGHT || op->n_param > 0))
            count(name, part, &l, (counted){.one = run[part], .call = &call});
    }
    if (kernels->release)
        kernels->release(state);
    free_arrays(&a);
    smp_graph_destroy(graph);
}

/* A model of one operator, the last of `ops`. */
static void count_op(const char *name, const char *inputs, const char *ops)
{
    count_graph(name, parse(inputs, ops));
}

/* The same, of images that all are channels last, or none. */
static void count_image_op(const char *name, bool channels_last, const char *inputs,
                           const char *ops)
{
    smp_graph *graph = parse(inputs, ops);
    for (int32_t t = 0; t < graph->n_tensor; t++)
        ((smp_tensor *)graph->tensor)[t].channels_last = channels_last;
    count_graph(name, graph);
}

/* A model whose last two operators are one kernel: what lies between them is written forward, as
 * others read it, and not read. */
static void count_pair(const char *name, const char *inputs, const char *ops)
{
    smp_graph *graph = parse(inputs, ops);
    const smp_op *first = graph->op + graph->n_op - 2, *second = first + 1;
    arrays a = make_arrays(graph, first), b = make_arrays(graph, second);
    smp_op_call call = call_of(graph, first, &a), next = call_of(graph, second, &b);
    void *const copies[] = {b.in[0], b.din[0]};
    const least one = least_of(graph, first, &a.needs, FORWARD);
    least both = least_of(graph, second, &b.needs, FORWARD);
    const int64_t between = pages(smp_tensor_bytes(graph, first->out, BATCH));
    both = (least){one.read + both.read - between, one.written + both.written};
    b.in[0] = a.out;
    count(name, FORWARD, &both,
          (counted){.pair = smp_op_cuda_kernels(first->kind)->forward_fused,
                    .call = &call,
                    .other = &next});
    if (smp_op_cuda_kernels(second->kind)->backward_input_fused) {
        const int64_t in = input_bytes(graph, first, 1), other = input_bytes(graph, second, 2);
        both = (least){in + other + between, in + other};
        b.in[0] = NULL;
        b.din[0] = a.din[0];
        count(name, BACKWARD_INPUT, &both,
              (counted){.pair = smp_op_cuda_kernels(second->kind)->backward_input_fused,
                        .call = &next,
                        .other = &call});
    }
    if (smp_op_absorbs(graph, first)) { /* given the gradient of the second's output */
        both = least_of(graph, first, &a.needs, BACKWARD);
        count(name, BACKWARD, &both,
              (counted){.one = smp_op_cuda_kernels(first->kind)->backward, .call = &call});
    }
    b.in[0] = copies[0];
    b.din[0] = copies[1];
    free_arrays(&a);
    free_arrays(&b);
    smp_graph_destroy(graph);
}

/* Activations are 32 KiB: 2 samples of 64 places of 128 values. */
static void test_passes_of_operators(void **state)
{
    (void)state;
    static const char x[] = "  x: {dtype: float32, shape: [64, 128]}\n";
    static const char xy[] = "  x: {dtype: float32, shape: [64, 128]}\n"
                             "  y: {dtype: float32, shape: [64, 128]}\n";
    static const char xxx[] = "  x: {dtype: float32, shape: [64, 384]}\n";
    static const char image[] = "  x: {dtype: float32, shape: [16, 32, 16]}\n";
    static const char pixels[] = "  x: {dtype: float32, shape: [32, 16, 16]}\n";
    static const char t[] = "  t: {dtype: int32, shape: [64]}\n";
    static const char zt[] = "  z: {dtype: float32, shape: [64, 1024]}\n"
                             "  t: {dtype: int32, shape: [64]}\n";
    wrong = 0;
    count_op("`embedding`", t,
             "  - {op: embedding, name: o, in: t, out: o, rows: 64, features: 128}\n");
    count_op("`layernorm`", x, "  - {op: layernorm, name: o, in: x, out: o}\n");
    count_op("`rmsnorm`", x, "  - {op: rmsnorm, name: o, in: x, out: o}\n");
    count_op("`linear`", x, "  - {op: linear, name: o, in: x, out: o, features: 128}\n");
    count_op("`attention`", xxx,
             "  - {op: attention, name: o, in: x, out: o, heads: 2, causal: true}\n");
    count_op("`gelu`", x, "  - {op: gelu, name: o, in: x, out: o}\n");
    count_op("`silu`", x, "  - {op: silu, name: o, in: x, out: o}\n");
    count_op("`mul`", xy, "  - {op: mul, name: o, in: [x, y], out: o}\n");
    count_op("`add`", xy, "  - {op: add, name: o, in: [x, y], out: o}\n");
    count_pair("`add`, `layernorm`", xy,
               "  - {op: add, name: o, in: [x, y], out: o}\n"
               "  - {op: layernorm, name: p, in: o, out: p}\n");
    count_pair("`add`, `rmsnorm`", xy,
               "  - {op: add, name: o, in: [x, y], out: o}\n"
               "  - {op: rmsnorm, name: p, in: o, out: p}\n");
    count_pair("`silu`, `mul`", xy,
               "  - {op: silu, name: o, in: x, out: o}\n"
               "  - {op: mul, name: p, in: [o, y], out: p}\n");
    static const char one[] =
        "  - {op: conv2d, name: o, in: x, out: o, channels: 16, kernel: 1, bias: false}\n";
    static const char nine[] = "  - {op: conv2d, name: o, in: x, out: o, channels: 16, kernel: 3,"
                               " padding: 1, bias: false}\n";
    count_op("`relu`", xy, "  - {op: relu, name: o, in: x, out: o}\n");
    count_pair("`add`, `relu`", xy,
               "  - {op: add, name: o, in: [x, y], out: o}\n"
               "  - {op: relu, name: p, in: o, out: p}\n");
    count_op("`batchnorm`", image, "  - {op: batchnorm, name: o, in: x, out: o}\n");
    count_op("`batchnorm`, channels last", pixels,
             "  - {op: transpose, name: i, in: x, out: x, axes: [2, 0, 1]}\n"
             "  - {op: batchnorm, name: o, in: x, out: o}\n");
    count_pair("`batchnorm`, `relu`, channels last", pixels,
               "  - {op: transpose, name: i, in: x, out: x, axes: [2, 0, 1]}\n"
               "  - {op: batchnorm, name: o, in: x, out: o}\n"
               "  - {op: relu, name: p, in: o, out: p}\n");
    count_image_op("`conv2d`, 1 x 1", true, image, one);
    count_image_op("`conv2d`, 3 x 3", true, image, nine);
    count_image_op("`conv2d`, 3 x 3, turned", false, image, nine);
    count_op("`cross_entropy`, 1024 classes", zt,
             "  - {op: cross_entropy, name: o, in: [z, t], out: o}\n");
    assert_int_equal(wrong, 0);
}

static char folder[64], model_path[96], cluster_path[96];

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static const char gpt_block[] =
    "      - {op: layernorm, name: 'h{i}.ln_1', in: x, out: a}\n"
    "      - {op: linear, name: 'h{i}.qkv', in: a, out: a, features: 3*d}\n"
    "      - {op: attention, name: 'h{i}.attn', in: a, out: a, heads: 2, causal: true}\n"
    "      - {op: linear, name: 'h{i}.proj', in: a, out: a, features: d}\n"
    "      - {op: add, name: 'h{i}.res_1', in: [x, a], out: x}\n"
    "      - {op: layernorm, name: 'h{i}.ln_2', in: x, out: m}\n"
    "      - {op: linear, name: 'h{i}.fc', in: m, out: m, features: 4*d}\n"
    "      - {op: gelu, name: 'h{i}.gelu', in: m, out: m}\n"
    "      - {op: linear, name: 'h{i}.out', in: m, out: m, features: d}\n"
    "      - {op: add, name: 'h{i}.res_2', in: [x, m], out: x}\n";

/* As examples/llama-tiny.yaml, the feed-forward part three times as wide as the model. */
static const char llama_block[] =
    "      - {op: rmsnorm, name: 'h{i}.norm_1', in: x, out: a}\n"
    "      - {op: linear, name: 'h{i}.q', in: a, out: q, features: d, bias: false}\n"
    "      - {op: linear, name: 'h{i}.k', in: a, out: k, features: d / 2, bias: false}\n"
    "      - {op: linear, name: 'h{i}.v', in: a, out: v, features: d / 2, bias: false}\n"
    "      - {op: rope, name: 'h{i}.q_rope', in: q, out: q, heads: 2}\n"
    "      - {op: rope, name: 'h{i}.k_rope', in: k, out: k, heads: 1}\n"
    "      - {op: attention, name: 'h{i}.attn', in: [q, k, v], out: a, heads: 2, kv_heads: 1, "
    "causal: true}\n"
    "      - {op: linear, name: 'h{i}.o', in: a, out: a, features: d, bias: false}\n"
    "      - {op: add, name: 'h{i}.res_1', in: [x, a], out: x}\n"
    "      - {op: rmsnorm, name: 'h{i}.norm_2', in: x, out: m}\n"
    "      - {op: linear, name: 'h{i}.gate', in: m, out: g, features: 3*d, bias: false}\n"
    "      - {op: linear, name: 'h{i}.up', in: m, out: u, features: 3*d, bias: false}\n"
    "      - {op: silu, name: 'h{i}.silu', in: g, out: g}\n"
    "      - {op: mul, name: 'h{i}.gated', in: [g, u], out: m}\n"
    "      - {op: linear, name: 'h{i}.down', in: m, out: m, features: d, bias: false}\n"
    "      - {op: add, name: 'h{i}.res_2', in: [x, m], out: x}\n";

static void write_model(const char *block, int blocks)
{
    char text[4096];
    snprintf(text, sizeof text,
             "smp: 1\nname: m\nlet: {T: 64, d: 128, layers: %d}\n"
             "inputs:\n"
             "  tokens: {dtype: int32, shape: [T]}\n"
             "  targets: {dtype: int32, shape: [T]}\n"
             "ops:\n"
             "  - {op: embedding, name: wte, in: tokens, out: x, rows: 1024, features: d}\n"
             "  - {op: position_embedding, name: wpe, in: x, out: x}\n"
             "  - repeat: layers\n    as: i\n    ops:\n%s"
             "  - {op: layernorm, name: ln_f, in: x, out: x}\n"
             "  - {op: linear, name: head, in: x, out: z, features: 1024, bias: false,"
             " weight: wte.weight}\n"
             "  - {op: cross_entropy, name: loss, in: [z, targets], out: loss}\n"
             "loss: loss\n",
             blocks, block);
    write_file(model_path, text);
}

/* The second step of a job: its kernels, what they read and write. */
static emulate_traffic step_traffic(const char *block, int blocks, int microbatches)
{
    static int32_t tokens[2 * BATCH * 64], targets[2 * BATCH * 64];
    static const void *const inputs[] = {tokens, targets};
    smp_options options = smp_options_default();
    smp_step_result result;
    smp *job = NULL;
    write_model(block, blocks);
    options.model = model_path;
    options.planning.cluster = cluster_path;
    options.planning.microbatches = microbatches;
    options.planning.microbatch_size = BATCH;
    options.planning.schedule = "simple";
    options.runtime.device = "cuda";
    options.runtime.precision = "bf16";
    check(smp_init(&job, &options));
    check(smp_step(job, inputs, &result));
    assert_true(emulate_traffic_count(true));
    check(smp_step(job, inputs, &result));
    assert_true(emulate_traffic_count(false));
    smp_finalize(job);
    return emulate_traffic_counted();
}

static void say_traffic(const char *what, emulate_traffic t)
{
    char row[160];
    snprintf(row, sizeof row, "| %s | %ld | %ld + %ld |\n", what, t.launches, t.read / KIB,
             t.written / KIB);
    say(row);
}

static emulate_traffic difference(emulate_traffic a, emulate_traffic b)
{
    return (emulate_traffic){a.launches - b.launches, a.read - b.read, a.written - b.written};
}

static void test_passes_of_a_step(void **state)
{
    (void)state;
    emulate_traffic t[3][3];
    wrong = 0;
    for (int blocks = 1; blocks <= 2; blocks++)
        for (int mbs = 1; mbs <= 2; mbs++)
            t[blocks][mbs] = step_traffic(gpt_block, blocks, mbs);
    const emulate_traffic block = difference(t[2][1], t[1][1]);
    const emulate_traffic more = difference(difference(t[2][2], t[1][2]), block);
    say_traffic("a block, first micro-batch and update", block);
    say_traffic("a block, each further micro-batch", more);
    say_traffic("a step of one block and one micro-batch", t[1][1]);
    for (int blocks = 1; blocks <= 2; blocks++)
        for (int mbs = 1; mbs <= 2; mbs++)
            t[blocks][mbs] = step_traffic(llama_block, blocks, mbs);
    const emulate_traffic its = difference(t[2][1], t[1][1]);
    say_traffic("a block of LLaMA, each further micro-batch",
                difference(difference(t[2][2], t[1][2]), its));
    assert_int_equal(wrong, 0);
}

static const char cluster[] =
    "smp: 1\nname: one\nnodes: 1\ndevices_per_node: 1\n"
    "device: {name: gpu, memory: 1GB, compute: {fp32: 60TFLOP/s, bf16: 900TFLOP/s},"
    " bandwidth: 3TB/s}\n"
    "links:\n  intra_node: {bandwidth: 400GB/s, latency_us: 3}\n"
    "  inter_node: {bandwidth: 50GB/s, latency_us: 8}\noverlap: true\n";

static int begin(void **state)
{
    FILE *file = fopen(SMP_SOURCE_DIR "/docs/cuda.md", "r");
    readme = calloc(1, 1 << 16);
    if (!file || !readme || fread(readme, 1, (1 << 16) - 1, file) == 0 || fclose(file) != 0)
        return -1;
    snprintf(folder, sizeof folder, "%s/smp-test-XXXXXX", P_tmpdir);
    if (!mkdtemp(folder))
        return -1;
    snprintf(model_path, sizeof model_path, "%s/model.yaml", folder);
    snprintf(cluster_path, sizeof cluster_path, "%s/cluster.yaml", folder);
    write_file(cluster_path, cluster);
    return open_device(state);
}

static int end(void **state)
{
    free(readme);
    unlink(model_path);
    unlink(cluster_path);
    rmdir(folder);
    return close_device(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passes_of_operators),
        cmocka_unit_test(test_passes_of_a_step),
    };
    setenv("SMP_EMULATE_CAPABILITY", "90", 1); /* with pairs */
    setenv("SMP_EMULATE_ORDER", "forward", 1); /* in the arena arrays share pages */
    if (!there_is_a_device() || sysconf(_SC_PAGESIZE) != PAGE || !emulate_traffic_count(true) ||
        !emulate_traffic_count(false)) {
        fprintf(stderr, "passes: no counting here\n");
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, begin, end);
}

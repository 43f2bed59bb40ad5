/* The linear operator on a GPU against sums in double, alone and as one kernel with the GELU behind
 * it, or before it; in fp8 of factors that are rounded by definition: odd sizes, sums over many
 * rows, outputs that start as NaN, accumulators that do not start as zero. */
#include "tests/cuda/device_array.h"

#include <stdio.h>

#include "graph/ops/matmul/linear.h"
#include "tests/graph/math/fp8_values.h"
#include "tests/graph/model/model_text.h"

enum { PRE, DPRE, X, DY, Y, Z, DX, WORKSPACE, W, BIAS, W16, BIAS16, DW, DBIAS, N_ARRAY };

typedef struct layer {
    smp_graph *graph;
    const smp_op *op; /* a gelu stands behind it, and one before it */
    int64_t rows, in, features;
    bool bias, half, fp8;
    int64_t padding;
    array of[N_ARRAY];
    void *state, *next_state;
} layer;

static const smp_op_kernels *kernels_of(const smp_op *op)
{
    const smp_op_kernels *kernels = smp_op_cuda_kernels(op->kind);
    assert_non_null(kernels);
    return kernels;
}

static void open_states(layer *l)
{
    const smp_op_kernels *kernels = kernels_of(l->op), *next = kernels_of(l->op + 1);
    check(kernels->prepare(l->graph, l->op, l->rows, &cuda, &l->state));
    if (next->prepare)
        check(next->prepare(l->graph, l->op + 1, l->rows, &cuda, &l->next_state));
}

static void close_states(layer *l)
{
    const smp_op_kernels *next = kernels_of(l->op + 1);
    kernels_of(l->op)->release(l->state);
    if (next->release)
        next->release(l->next_state);
}

static smp_graph *read_layer(const layer *l, smp_precision precision)
{
    char text[512];
    snprintf(text, sizeof text,
             "smp: 1\nname: layer\ninputs:\n  t: {dtype: int32, shape: []}\n"
             "  targets: {dtype: float32, shape: [%d]}\nops:\n"
             "  - {op: embedding, name: table, in: t, out: x, rows: 2, features: %d}\n"
             "  - {op: gelu, name: before, in: x, out: x}\n"
             "  - {op: linear, name: op, in: x, out: y, features: %d, bias: %s}\n"
             "  - {op: gelu, name: next, in: y, out: z}\n"
             "  - {op: rmsnorm, name: norm, in: z, out: z}\n" /* or it is a head */
             "  - {op: mse, name: loss, in: [z, targets], out: loss}\nloss: loss\n",
             (int)l->features, (int)l->in, (int)l->features, l->bias ? "true" : "false");
    smp_graph *graph = read_model(text);
    check(smp_graph_set_target(graph, (smp_target){SMP_BACKEND_CUDA, precision}));
    return graph;
}

static layer open_layer(smp_precision precision, int64_t rows, int64_t in, int64_t features,
                        bool bias)
{
    layer l = {.rows = rows, .in = in, .features = features, .bias = bias};
    smp_gemms_free(&products); /* what the library was asked before says nothing now */
    const smp_dtype type = smp_precision_dtype(precision);
    smp_op_needs needs;
    l.half = smp_dtype_is_half(type);
    l.graph = read_layer(&l, precision);
    l.op = &l.graph->op[smp_graph_find_op(l.graph, "op")];
    l.fp8 = smp__linear_is_fp8(l.graph, l.op);
    cuda.precision = precision;
    smp_op_needs_get(l.graph, l.op, rows, &needs);
    l.of[PRE] = make(type, rows * in, 6, 1);
    l.of[DPRE] = make(type, rows * in, 0, 2);
    l.of[X] = make(type, rows * in, 1, 0);
    l.of[DY] = make(type, rows * features, 2, 1);
    l.of[Y] = make(type, rows * features, 0, 2);
    l.of[Z] = make(type, rows * features, 0, 0);
    l.of[DX] = make(type, rows * in, 0, 1);
    l.of[WORKSPACE] = make(SMP_F32, needs.workspace_bytes / 4, 0, 2);
    for (int i = 0; i < 2; i++) {
        const int64_t n = i == 0 ? features * in : features;
        l.of[W + i] = make(SMP_F32, n, 3 + (uint64_t)i, 0);
        l.of[W16 + i] = make(l.half ? type : SMP_BF16, n, 3 + (uint64_t)i, 1);
        l.of[DW + i] = make(SMP_F32, n, 5, 2);
    }
    open_states(&l);
    return l;
}

static void close_layer(layer *l)
{
    close_states(l);
    for (int i = 0; i < N_ARRAY; i++)
        drop(&l->of[i]);
    smp_graph_destroy(l->graph);
}

static smp_op_call make_call(const layer *l, const smp_op *op, void *state)
{
    return (smp_op_call){.graph = l->graph,
                         .op = op,
                         .batch = l->rows,
                         .padding = l->padding,
                         .state = state,
                         .device = &cuda,
                         .workspace = l->of[WORKSPACE].data,
                         .step = {.training = true}};
}

static void read_back(const layer *l)
{
    for (int i = 0; i < N_ARRAY; i++)
        if (i != WORKSPACE)
            from_device(&l->of[i]);
}

static void run_forward(const layer *l, bool pair)
{
    const void *in[] = {l->of[X].data}, *between[] = {l->of[Y].data};
    const float *param[] = {l->of[W].data, l->of[BIAS].data};
    const void *param16[] = {l->of[W16].data, l->of[BIAS16].data};
    void *out[] = {l->of[Y].data}, *next_out[] = {l->of[Z].data};
    smp_op_call call = make_call(l, l->op, l->state);
    smp_op_call next = make_call(l, l->op + 1, l->next_state);
    call.in = in;
    call.out = out;
    call.param = param;
    call.param16 = l->half ? param16 : NULL;
    next.in = between;
    next.out = next_out;
    check(pair ? kernels_of(l->op)->forward_fused(&call, &next)
               : kernels_of(l->op)->forward(&call));
    read_back(l);
}

/* fresh: gradients of weights are written. */
static void run_backward(const layer *l, bool fresh)
{
    const void *in[] = {l->of[X].data}, *nothing[] = {NULL};
    const float *param[] = {l->of[W].data, l->of[BIAS].data};
    const void *param16[] = {l->of[W16].data, l->of[BIAS16].data};
    float *din[] = {l->of[DX].data}, *dparam[] = {l->of[DW].data, l->of[DBIAS].data};
    const float *dout[] = {l->of[DY].data};
    smp_op_call call = make_call(l, l->op, l->state);
    call.param = param;
    call.param16 = l->half ? param16 : NULL;
    call.dout = dout;
    call.in = nothing;
    call.din = din;
    check(kernels_of(l->op)->backward_input(&call));
    call.in = in;
    call.dparam = dparam;
    call.fresh = fresh;
    check(kernels_of(l->op)->backward_weight(&call));
    read_back(l);
}

/* Of the input and of what the GELU before it reads. */
static void run_backward_pair(const layer *l)
{
    const void *pre[] = {l->of[PRE].data}, *nothing[] = {NULL};
    const float *param[] = {l->of[W].data, l->of[BIAS].data};
    const void *param16[] = {l->of[W16].data, l->of[BIAS16].data};
    float *din[] = {l->of[DX].data}, *its_din[] = {l->of[DPRE].data};
    const float *dout[] = {l->of[DY].data}, *its_dout[] = {l->of[DX].data};
    smp_op_call call = make_call(l, l->op, l->state), before = make_call(l, l->op - 1, NULL);
    call.param = param;
    call.param16 = l->half ? param16 : NULL;
    call.dout = dout;
    call.in = nothing;
    call.din = din;
    before.in = pre;
    before.dout = its_dout;
    before.din = its_din;
    check(kernels_of(l->op)->backward_input_fused(&call, &before));
    read_back(l);
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

/* scale: the sum of the magnitudes that went into `want`; extra: further error allowed. */
static void check_value(const array *of, int64_t i, double want, double scale, double extra)
{
    const double got = (double)of->host[i];
    double bound = 1e-6 + 3e-6 * scale + extra;
    if (cuda.precision == SMP_PRECISION_TF32)
        bound += 0x1p-9 * scale;
    if (smp_dtype_is_half(of->type))
        bound += 0x1p-8 * fabs(want);
    if (!(fabs(got - want) <= bound))
        fail_msg("element %d of %d: got %.9g, expected %.9g within %.3g", (int)i, (int)of->n, got,
                 want, bound);
}

static float *copy_of(const array *x)
{
    float *copied = malloc((size_t)x->n * sizeof *copied);
    assert_non_null(copied);
    memcpy(copied, x->host, (size_t)x->n * sizeof *copied);
    return copied;
}

/* X, DY or W as products have it, to be freed. */
static float *factor_of(const layer *l, int which)
{
    const int64_t columns = which == DY ? l->features : l->in;
    float *x = copy_of(&l->of[which == W && l->half ? W16 : which]);
    if (l->fp8)
        fp8_round_all(which == DY ? SMP_E5M2 : SMP_E4M3, x, l->of[which].n,
                      l->of[which].n - (which == W ? 0 : l->padding * columns));
    return x;
}

static void check_forward(const layer *l, bool pair)
{
    float *x = factor_of(l, X), *w = factor_of(l, W);
    const float *bias = l->half ? l->of[BIAS16].host : l->of[BIAS].host;
    for (int64_t i = 0; i < l->rows * l->features; i++) {
        const int64_t row = i / l->features, column = i % l->features;
        const double first = l->bias ? (double)bias[column] : 0;
        double want = first, scale = fabs(want);
        for (int64_t k = 0; k < l->in; k++) {
            double term = (double)x[row * l->in + k] * (double)w[column * l->in + k];
            want += term;
            scale += fabs(term);
        }
        /* The library may round the product before it adds the bias, and that before GELU. */
        const double rounded = l->half && l->bias ? 0x1p-8 * fabs(want - first) : 0;
        check_value(&l->of[Y], i, want, scale, rounded);
        if (pair) /* the device's tanh, too */
            check_value(&l->of[Z], i, gelu(want), scale,
                        2e-3 + 1.2 * (rounded + (l->half ? 0x1p-8 * fabs(want) : 0)));
    }
    free(x);
    free(w);
}

static double gelu_slope(double x)
{
    return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5;
}

/* pair: that of what the GELU before it reads. */
static void check_input_gradient(const layer *l, bool pair)
{
    float *dy = factor_of(l, DY), *w = factor_of(l, W);
    for (int64_t i = 0; i < l->rows * l->in; i++) {
        double want = 0, scale = 0;
        for (int64_t k = 0; k < l->features; k++) {
            double term =
                (double)dy[i / l->in * l->features + k] * (double)w[k * l->in + i % l->in];
            want += term;
            scale += fabs(term);
        }
        const double slope = pair ? gelu_slope((double)l->of[PRE].host[i]) : 1;
        /* the device's tanh; a rounded factor, if in two kernels */
        const double extra = pair ? 2e-3 * scale + (l->half ? 0x1p-8 * fabs(want * slope) : 0) : 0;
        check_value(&l->of[pair ? DPRE : DX], i, want * slope, scale, extra);
    }
    free(dy);
    free(w);
}

static void check_weight_gradients(const layer *l, const float *dw, const float *dbias)
{
    const float *whole = l->of[DY].host; /* what the bias's gradient is made of */
    float *dy = factor_of(l, DY), *x = factor_of(l, X);
    for (int64_t f = 0; f < l->features; f++) {
        double sum = (double)dbias[f], total = fabs(sum);
        for (int64_t r = 0; r < l->rows && l->bias; r++) {
            sum += (double)whole[r * l->features + f];
            total += fabs((double)whole[r * l->features + f]);
        }
        check_value(&l->of[DBIAS], f, sum, total, 0);
        for (int64_t c = 0; c < l->in; c++) {
            double want = (double)dw[f * l->in + c], scale = fabs(want);
            for (int64_t r = 0; r < l->rows; r++) {
                double term = (double)dy[r * l->features + f] * (double)x[r * l->in + c];
                want += term;
                scale += fabs(term);
            }
            check_value(&l->of[DW], f * l->in + c, want, scale, 0);
        }
    }
    free(dy);
    free(x);
}

static const smp_precision precisions[] = {SMP_PRECISION_FP32, SMP_PRECISION_TF32,
                                           SMP_PRECISION_BF16, SMP_PRECISION_FP16,
                                           SMP_PRECISION_FP8};
enum { N_PRECISION = sizeof precisions / sizeof precisions[0] };
/* rows, in, features: rows of 16 bits that are aligned to 16 bytes and not, one and several blocks
 * of columns, one and several chunks of rows. */
static const int64_t sizes[][3] = {{1, 1, 1},      {3, 5, 7},     {33, 8, 16},  {70, 13, 257},
                                   {200, 16, 520}, {2500, 3, 12}, {999, 4, 65}, {64, 9, 1032},
                                   {5, 32, 16},    {131, 144, 48}};
enum { N_SIZE = sizeof sizes / sizeof sizes[0] };

/* Written, gradients of weights have the bits that they have when added to zeroes. */
static void check_written_gradients(const layer *l)
{
    const array *of[] = {&l->of[DW], &l->of[DBIAS]};
    float *zero[2], *added[2];
    for (int i = 0; i < 2; i++) {
        memset(of[i]->host, 0, (size_t)of[i]->n * sizeof(float));
        zero[i] = copy_of(of[i]);
        to_device(of[i]);
    }
    run_backward(l, false);
    check_weight_gradients(l, zero[0], zero[1]);
    for (int i = 0; i < 2; i++) {
        added[i] = copy_of(of[i]);
        for (int64_t k = 0; k < of[i]->n && (i == 0 || l->bias); k++)
            of[i]->host[k] = NAN;
        to_device(of[i]);
    }
    run_backward(l, true);
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(of[i]->host, added[i], (size_t)of[i]->n * sizeof(float));
        free(zero[i]);
        free(added[i]);
    }
}

static void check_all(void)
{
    for (int p = 0; p < N_PRECISION; p++)
        for (int i = 0; i < N_SIZE; i++) {
            layer l = open_layer(precisions[p], sizes[i][0], sizes[i][1], sizes[i][2], i % 4 != 3);
            float *dw = copy_of(&l.of[DW]), *dbias = copy_of(&l.of[DBIAS]);
            run_forward(&l, false);
            check_forward(&l, false);
            run_backward(&l, false);
            check_input_gradient(&l, false);
            check_weight_gradients(&l, dw, dbias);
            check_written_gradients(&l);
            free(dw);
            free(dbias);
            close_layer(&l);
        }
}

static void test_cuda_linear_matches_reference(void **state)
{
    (void)state;
    check_all();
}

/* As on a GPU whose library has no bias epilogue for a shape, or says so when it is to run it;
 * forward, and of a gradient. */
static void test_cuda_linear_without_bias_epilogue(void **state)
{
    static const char *const refuse[] = {"bias,bgrad", "run-bias", "run-bgrad"};
    (void)state;
    for (int way = 0; way < 3; way++) {
        setenv("SMP_EMULATE_BLAS_REFUSE", refuse[way], 1);
        check_all();
    }
    unsetenv("SMP_EMULATE_BLAS_REFUSE");
}

static void test_cuda_linear_pairs_where_rows_allow_it(void **state)
{
    (void)state;
    for (int features = 8; features < 25; features++) {
        layer l = open_layer(SMP_PRECISION_BF16, 3, 5, features, true);
        bool want = features % 8 == 0;
        assert_int_equal(smp_op_fused(l.graph, (int32_t)(l.op - l.graph->op)), want);
        close_layer(&l);
    }
}

/* Fused; on a device that does not fuse; where the library has no such kernel, or refuses to run
 * it, alone or with all that has an epilogue. */
static void test_cuda_linear_pair_matches_reference(void **state)
{
    static const char *const refuse[] = {"", "", "gelu", "run-gelu", "run-gelu,run-bias"};
    (void)state;
    for (int way = 0; way < 5; way++)
        for (int i = 0; i < N_SIZE * N_PRECISION; i++) {
            const int64_t *size = sizes[i % N_SIZE];
            if (size[2] % 8 != 0)
                continue;
            cuda.capability = way == 1 ? 80 : 90;
            setenv("SMP_EMULATE_BLAS_REFUSE", refuse[way], 1);
            layer l = open_layer(precisions[i / N_SIZE], size[0], size[1], size[2], i % 2 == 0);
            run_forward(&l, true);
            check_forward(&l, true);
            close_layer(&l);
            unsetenv("SMP_EMULATE_BLAS_REFUSE");
        }
    cuda.capability = 90;
}

static void test_cuda_linear_input_pair_matches_reference(void **state)
{
    static const char *const refuse[] = {"", "", "dgelu", "run-dgelu"};
    static const int64_t size[][3] = {
        {1, 8, 1}, {33, 8, 16}, {70, 40, 13}, {200, 16, 520}, {37, 32, 80}};
    enum { N = sizeof size / sizeof size[0] };
    (void)state;
    for (int way = 0; way < 4; way++)
        for (int i = 0; i < N_PRECISION * N; i++) {
            const int64_t *of = size[i % N];
            cuda.capability = way == 1 ? 80 : 90;
            setenv("SMP_EMULATE_BLAS_REFUSE", refuse[way], 1);
            layer l = open_layer(precisions[i / N], of[0], of[1], of[2], i % 2 == 0);
            assert_true(smp_op_fused_backward(l.graph, (int32_t)(l.op - l.graph->op) - 1));
            run_backward_pair(&l);
            check_input_gradient(&l, true);
            close_layer(&l);
            unsetenv("SMP_EMULATE_BLAS_REFUSE");
        }
    cuda.capability = 90;
}

/* Rows that only fill the micro-batch up have no say in a scale; what is not finite has all. */
static void test_cuda_linear_scales_of_fp8(void **state)
{
    static const float values[] = {1e6f, INFINITY, NAN};
    (void)state;
    for (int i = 0; i < 6; i++) {
        layer l = open_layer(SMP_PRECISION_FP8, 9, 32, 48, true);
        const bool padding = i < 3;
        l.padding = padding ? 2 : 0;
        assert_true(l.fp8);
        for (int64_t k = 0; k < 2 * l.features; k++)
            l.of[DY].host[7 * l.features + k] = 0;
        l.of[X].host[padding ? 8 * l.in : 3] = values[i % 3];
        to_device(&l.of[X]);
        to_device(&l.of[DY]);
        run_forward(&l, false);
        const float *y = l.of[Y].host;
        for (int64_t k = 0; k < 9 * l.features && i != 3; k++)
            assert_int_equal(isfinite(y[k]), padding && (k < 8 * l.features || i < 2));
        if (i == 0 || i == 3)
            check_forward(&l, false);
        close_layer(&l);
    }
}

/* As profiles and plans name them: rows by rows, k a multiple of 16, fp32 for a weight. */
static void test_cuda_linear_products_of_fp8(void **state)
{
    static const char *const names[] = {"nt 9x48x32 e4m3 bf16 bias", "nt 9x32x48 e5m2 e4m3 bf16",
                                        "nt 48x32x16 e5m2 e4m3 float32"};
    (void)state;
    layer l = open_layer(SMP_PRECISION_FP8, 9, 32, 48, true);
    run_forward(&l, false);
    run_backward(&l, false);
    for (int i = 0; i < 3; i++) {
        int found = 0;
        for (int p = 0; p < products.n; p++)
            found += strcmp(products.product[p]->name, names[i]) == 0 && products.product[p]->runs;
        if (found != 1)
            fail_msg("%s was not run", names[i]);
    }
    close_layer(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_linear_matches_reference),
        cmocka_unit_test(test_cuda_linear_without_bias_epilogue),
        cmocka_unit_test(test_cuda_linear_pairs_where_rows_allow_it),
        cmocka_unit_test(test_cuda_linear_pair_matches_reference),
        cmocka_unit_test(test_cuda_linear_input_pair_matches_reference),
        cmocka_unit_test(test_cuda_linear_scales_of_fp8),
        cmocka_unit_test(test_cuda_linear_products_of_fp8),
    };
    if (!there_is_a_device())
        return SKIPPED;
    return cmocka_run_group_tests_name("cuda_linear", tests, open_device, close_device);
}

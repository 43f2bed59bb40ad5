/* linear in fp8 on the CPU against sums in double of factors that are rounded by definition
 * (tests/graph/math/fp8_values.h), and where the rule keeps it in bf16. */
#include "tests/graph/ops/op_harness.h"

#include "graph/math/half.h"
#include "graph/ops/matmul/linear.h"
#include "tests/graph/math/fp8_values.h"
#include "tests/graph/model/model_text.h"

enum { X, DY, Y, DX, W, N_HALF }; /* arrays of bf16; then of fp32: */
enum { BIAS = N_HALF, DW, DBIAS, N_ARRAY };
enum { SKIPPED = 77 };

typedef struct layer {
    smp_graph *graph;
    const smp_op *op;
    int64_t rows, in, features, padding;
    buffer of[N_ARRAY], workspace;
    void *state;
} layer;

static void check(smp_status status)
{
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
}

/* A norm with weights stands between the op and the loss, or nothing: then it is a head. */
static smp_graph *read_layer(const layer *l, bool head, smp_precision precision)
{
    char text[512];
    snprintf(text, sizeof text,
             "smp: 1\nname: layer\ninputs:\n  t: {dtype: int32, shape: []}\n"
             "  targets: {dtype: float32, shape: [%d]}\nops:\n"
             "  - {op: embedding, name: table, in: t, out: x, rows: 2, features: %d}\n"
             "  - {op: linear, name: op, in: x, out: y, features: %d}\n"
             "  - {op: gelu, name: next, in: y, out: z}\n%s"
             "  - {op: mse, name: loss, in: [z, targets], out: loss}\nloss: loss\n",
             (int)l->features, (int)l->in, (int)l->features,
             head ? "" : "  - {op: rmsnorm, name: norm, in: z, out: z}\n");
    smp_graph *graph = read_model(text);
    check(smp_graph_set_target(graph, (smp_target){SMP_BACKEND_CPU, precision}));
    return graph;
}

static int64_t elements(const layer *l, int array)
{
    const int64_t n[N_ARRAY] = {
        l->rows * l->in,     l->rows * l->features, l->rows * l->features, l->rows * l->in,
        l->features * l->in, l->features,           l->features * l->in,   l->features};
    return n[array];
}

/* Values of all sizes between 2^-12 and 1, times `size`. */
static void fill(const layer *l, int array, float size)
{
    uint64_t state = (uint64_t)array + 1;
    for (int64_t i = 0; i < elements(l, array); i++) {
        const double unit = random_unit(&state);
        const float value =
            (random_unit(&state) < 0.5 ? -size : size) * (float)ldexp(unit, -(int)(i % 12));
        if (array < N_HALF)
            smp__to_bf16((uint16_t *)l->of[array].data + i, &value, 1);
        else
            ((float *)l->of[array].data)[i] = value;
    }
}

static layer open_layer(smp_precision precision, bool head, int64_t rows, int64_t in,
                        int64_t features)
{
    layer l = {.rows = rows, .in = in, .features = features};
    smp_op_needs needs;
    l.graph = read_layer(&l, head, precision);
    l.op = &l.graph->op[smp_graph_find_op(l.graph, "op")];
    smp_op_needs_get(l.graph, l.op, rows, &needs);
    l.workspace = buffer_make(needs.workspace_bytes, 0);
    for (int i = 0; i < N_ARRAY; i++) {
        l.of[i] = buffer_make(elements(&l, i) * (i < N_HALF ? 2 : 4), 0);
        fill(&l, i, i == DY ? 1e-5f : 3.0f);
    }
    check(l.op->kind->cpu16->prepare(l.graph, l.op, rows, NULL, &l.state));
    return l;
}

static void close_layer(layer *l)
{
    l->op->kind->cpu16->release(l->state);
    for (int i = 0; i < N_ARRAY; i++)
        buffer_free(&l->of[i]);
    buffer_free(&l->workspace);
    smp_graph_destroy(l->graph);
}

/* All three products. */
static void run(const layer *l)
{
    const smp_op_kernels *kernels = smp_op_cpu_kernels(l->op->kind, l->graph->target.precision);
    const void *in[] = {l->of[X].data}, *param16[] = {l->of[W].data, NULL};
    const float *param[] = {NULL, l->of[BIAS].data}, *dout[] = {l->of[DY].data};
    void *out[] = {l->of[Y].data};
    float *din[] = {l->of[DX].data}, *dparam[] = {l->of[DW].data, l->of[DBIAS].data};
    const smp_op_call call = {.graph = l->graph,
                              .op = l->op,
                              .batch = l->rows,
                              .padding = l->padding,
                              .state = l->state,
                              .in = in,
                              .out = out,
                              .param = param,
                              .param16 = param16,
                              .workspace = l->workspace.data,
                              .dout = dout,
                              .din = din,
                              .dparam = dparam,
                              .step = {.training = true}};
    check(kernels->forward(&call));
    check(kernels->backward_input(&call));
    check(kernels->backward_weight(&call));
}

static float *values(const layer *l, int array)
{
    const int64_t n = elements(l, array);
    float *copy = malloc((size_t)n * sizeof *copy);
    assert_non_null(copy);
    if (array < N_HALF)
        smp__from_bf16(copy, l->of[array].data, n);
    else
        memcpy(copy, l->of[array].data, (size_t)n * sizeof *copy);
    return copy;
}

/* C[m,n] = start + A B, of element (i, k) of A at i * a[0] + k * a[1], and (k, j) of B likewise. */
typedef struct product {
    int64_t m, n, k, a[2], b[2];
} product;

static void check_product(const layer *l, product p, const float *a, const float *b,
                          const float *start, bool per_column, int array)
{
    float *got = values(l, array);
    for (int64_t i = 0; i < p.m * p.n; i++) {
        double want = start ? (double)start[per_column ? i % p.n : i] : 0, scale = fabs(want);
        for (int64_t k = 0; k < p.k; k++) {
            const double term =
                (double)a[i / p.n * p.a[0] + k * p.a[1]] * (double)b[k * p.b[0] + i % p.n * p.b[1]];
            want += term;
            scale += fabs(term);
        }
        const double bound = 2e-6 * scale + (array < N_HALF ? 0x1p-8 * fabs(want) : 0) + 1e-30;
        if (!(fabs((double)got[i] - want) <= bound))
            fail_msg("array %d, element %d: got %.9g, expected %.9g within %.3g", array, (int)i,
                     (double)got[i], want, bound);
    }
    free(got);
}

static void check_layer(layer *l)
{
    const int64_t rows = l->rows, in = l->in, features = l->features;
    const int64_t counted = rows - l->padding;
    float *x = values(l, X), *w = values(l, W), *dy = values(l, DY), *bias = values(l, BIAS),
          *dw = values(l, DW);
    fp8_round_all(SMP_E4M3, x, rows * in, counted * in);
    fp8_round_all(SMP_E4M3, w, features * in, features * in);
    fp8_round_all(SMP_E5M2, dy, rows * features, counted * features);
    run(l);
    check_product(l, (product){rows, features, in, {in, 1}, {1, in}}, x, w, bias, true, Y);
    check_product(l, (product){rows, in, features, {features, 1}, {in, 1}}, dy, w, NULL, false, DX);
    check_product(l, (product){features, in, rows, {1, features}, {in, 1}}, dy, x, dw, false, DW);
    free(x);
    free(w);
    free(dy);
    free(bias);
    free(dw);
}

static void test_linear_fp8_matches_reference(void **state)
{
    static const int64_t sizes[][3] = {{1, 16, 16}, {7, 32, 48}, {33, 48, 16}, {64, 16, 144}};
    (void)state;
    for (int i = 0; i < 4; i++) {
        layer l = open_layer(SMP_PRECISION_FP8, false, sizes[i][0], sizes[i][1], sizes[i][2]);
        assert_true(smp__linear_is_fp8(l.graph, l.op));
        check_layer(&l);
        close_layer(&l);
    }
}

/* Rows that only fill a micro-batch up have no say in a scale, whatever they hold. */
static void test_linear_fp8_scales_leave_padding_out(void **state)
{
    (void)state;
    layer l = open_layer(SMP_PRECISION_FP8, false, 8, 16, 32);
    const float large = 1e6f;
    l.padding = 3;
    for (int64_t i = 5 * l.in; i < 8 * l.in; i++)
        smp__to_bf16((uint16_t *)l.of[X].data + i, &large, 1);
    memset((uint16_t *)l.of[DY].data + 5 * l.features, 0, (size_t)(3 * l.features) * 2);
    check_layer(&l);
    close_layer(&l);
}

static void test_linear_fp8_of_zeroes_is_the_bias(void **state)
{
    (void)state;
    layer l = open_layer(SMP_PRECISION_FP8, false, 3, 16, 16);
    memset(l.of[X].data, 0, l.of[X].bytes);
    memset(l.of[DY].data, 0, l.of[DY].bytes);
    check_layer(&l);
    close_layer(&l);
}

/* A value that is not finite is seen in every sum that it is a scale's part of. */
static void test_linear_fp8_passes_on_what_is_not_finite(void **state)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    (void)state;
    for (int which = 0; which < 3; which++)
        for (int i = 0; i < 3; i++) {
            const int from[] = {X, W, DY}, seen[][2] = {{Y, DW}, {Y, DX}, {DX, DW}};
            layer l = open_layer(SMP_PRECISION_FP8, false, 5, 32, 16);
            smp__to_bf16((uint16_t *)l.of[from[which]].data + 17, &bad[i], 1);
            run(&l);
            for (int k = 0; k < 2; k++) {
                float *got = values(&l, seen[which][k]);
                for (int64_t e = 0; e < elements(&l, seen[which][k]); e++)
                    assert_false(isfinite(got[e]));
                free(got);
            }
            close_layer(&l);
        }
}

/* The head, and what tensor cores have no fp8 for: the bits of bf16. */
static void test_linear_fp8_is_bf16_where_the_rule_says_so(void **state)
{
    static const struct {
        int64_t in, features;
        bool head;
    } cases[] = {{16, 16, true}, {24, 16, false}, {32, 20, false}, {16, 16, false}};
    (void)state;
    for (int i = 0; i < 4; i++) {
        layer a = open_layer(SMP_PRECISION_BF16, cases[i].head, 9, cases[i].in, cases[i].features);
        layer b = open_layer(SMP_PRECISION_FP8, cases[i].head, 9, cases[i].in, cases[i].features);
        assert_int_equal(smp__linear_is_fp8(b.graph, b.op), i == 3);
        assert_false(smp__linear_is_fp8(a.graph, a.op));
        run(&a);
        run(&b);
        for (int k = Y; k < N_ARRAY; k++)
            if (k == Y || k == DX || k == DW)
                assert_int_equal(memcmp(a.of[k].data, b.of[k].data, a.of[k].bytes) == 0, i != 3);
        assert_memory_equal(a.of[DBIAS].data, b.of[DBIAS].data, a.of[DBIAS].bytes);
        close_layer(&a);
        close_layer(&b);
    }
}

/* Sixteen experts would do for tensor cores. */
static void test_linear_fp8_leaves_routers_alone(void **state)
{
    static const char *const experts[] = {"experts=16"};
    smp_graph *graph;
    int routers = 0, rounded = 0;
    (void)state;
    check(smp_graph_read_with(SMP_SOURCE_DIR "/examples/moe-tiny.yaml", (smp_settings){1, experts},
                              &graph));
    check(smp_graph_set_target(graph, (smp_target){SMP_BACKEND_CPU, SMP_PRECISION_FP8, false}));
    for (const smp_op *op = graph->op; op < graph->op + graph->n_op; op++) {
        const bool router = strstr(op->name, ".router") != NULL;
        const bool fp8 = smp__linear_is_fp8(graph, op);
        assert_false(router && fp8);
        routers += router;
        rounded += fp8;
    }
    assert_int_equal(routers, 4);
    assert_true(rounded >= 16); /* q, k, v and what follows attention */
    smp_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_fp8_matches_reference),
        cmocka_unit_test(test_linear_fp8_scales_leave_padding_out),
        cmocka_unit_test(test_linear_fp8_of_zeroes_is_the_bias),
        cmocka_unit_test(test_linear_fp8_leaves_routers_alone),
        cmocka_unit_test(test_linear_fp8_passes_on_what_is_not_finite),
        cmocka_unit_test(test_linear_fp8_is_bf16_where_the_rule_says_so),
    };
    if (!smp_math_has_bf16())
        return SKIPPED;
    return cmocka_run_group_tests_name("linear_fp8", tests, NULL, NULL);
}

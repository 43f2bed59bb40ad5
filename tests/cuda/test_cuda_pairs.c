/* Two operators as one kernel with the bits of two (pairs_alike): a sum and the norm of it, a silu
 * and the product after it, forward and backward; against the kernels that each has alone, bit for
 * bit, and against double precision; in rows of odd width, of a warp and of blocks of all sizes. A
 * sum or a batchnorm and the relu of it likewise, in images of either order; and the batchnorm that
 * makes the relu's gradient, too. */
#include "tests/cuda/test_cuda_ops_harness.h"

enum { BATCH = 2, ROWS = 3 };

typedef struct pair {
    const char *first, *second;
} pair;

static const pair NORMS[] = {
    {"op: add, in: [a, b]", "op: layernorm, in: y, eps: 1e-4"},
    {"op: add, in: [a, b]", "op: rmsnorm, in: y, eps: 1e-4, offset: 1"},
};
static const pair GATE = {"op: silu, in: a", "op: mul, in: [y, b]"};

static const int COLUMNS[] = {1, 7, 96, 513, 1032, 8704, 16640};
static const smp_precision PRECISIONS[] = {SMP_PRECISION_FP32, SMP_PRECISION_BF16,
                                           SMP_PRECISION_FP16};
enum { N_COLUMNS = sizeof COLUMNS / sizeof *COLUMNS, N_PRECISION = 3 };

/* An op's host and its buffers, once for kernels apart and once for those that do both. */
typedef struct half {
    op_run host;
    device_run apart, whole;
} half;

typedef struct setting {
    smp_graph *graph;
    smp_dtype dtype;
    int64_t rows, columns;
    half first, second;
} setting;

static void open_half(half *h, const smp_graph *graph, const char *yaml, const char *name,
                      uint64_t *rng)
{
    const model_text m = {.magnitude = 3};
    op_run_open(&h->host, yaml, name, BATCH, 0);
    fill(&h->host, &m, rng);
    device_run_open(&h->apart, graph, name, BATCH, 0);
    device_run_open(&h->whole, graph, name, BATCH, 1);
    device_run_put(&h->apart, &h->host);
    device_run_put(&h->whole, &h->host);
}

static void close_half(half *h)
{
    device_run_close(&h->apart);
    device_run_close(&h->whole);
    op_run_close(&h->host);
}

/* shape: of both inputs; last: images, as [H, W, C]. */
static setting open_shape(const pair *of, smp_precision precision, int columns, const char *shape,
                          bool last)
{
    char yaml[512];
    uint64_t rng = (uint64_t)columns;
    setting s = {.dtype = smp_precision_dtype(precision), .rows = BATCH * ROWS, .columns = columns};
    snprintf(yaml, sizeof yaml,
             "smp: 1\nname: m\ninputs:\n  a: {dtype: float32, shape: %s}\n"
             "  b: {dtype: float32, shape: %s}\nops:\n"
             "  - {%s, name: op, out: y}\n  - {%s, name: next, out: z}\n",
             shape, shape, of->first, of->second);
    s.graph = device_graph(yaml, precision);
    if (last)
        assert_true(device_graph_lay_out(s.graph, s.graph->op, true, true));
    assert_true(smp_op_fused(s.graph, 0) && !smp_op_tied(s.graph, 0));
    open_half(&s.first, s.graph, yaml, "op", &rng);
    open_half(&s.second, s.graph, yaml, "next", &rng);
    return s;
}

static setting open_setting(const pair *of, smp_precision precision, int columns)
{
    char shape[32];
    snprintf(shape, sizeof shape, "[%d, %d]", ROWS, columns);
    return open_shape(of, precision, columns, shape, false);
}

static void close_setting(setting *s)
{
    close_half(&s->first);
    close_half(&s->second);
    smp_graph_destroy(s->graph);
}

static void copy_buffer(const device_buffer *to, const device_buffer *from)
{
    assert_int_equal(to->bytes, from->bytes);
    cuda_ok(cudaMemcpy(to->data, from->data, (size_t)to->bytes, cudaMemcpyDeviceToDevice));
}

static void same_bits(const setting *s, const char *what, const device_buffer *a,
                      const device_buffer *b)
{
    void *one = device_get(a), *other = device_get(b);
    assert_int_equal(a->bytes, b->bytes);
    if (a->bytes > 0 && memcmp(one, other, (size_t)a->bytes) != 0)
        fail_msg("%s of rows of %d, type %d: one kernel has other bits than two", what,
                 (int)s->columns, (int)s->dtype);
    free(one);
    free(other);
}

/* The values of an array in the type of the activations. */
static double *values_of(const setting *s, const device_buffer *b)
{
    void *bytes = device_get(b);
    const int64_t n = b->bytes / smp_dtype_bytes(s->dtype);
    double *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < n; i++)
        values[i] = (double)value_of(bytes, s->dtype, i);
    free(bytes);
    return values;
}

static void near(const setting *s, const char *what, int64_t i, double got, double want)
{
    const double relative = s->dtype == SMP_BF16 ? 0x1p-7 : s->dtype == SMP_F16 ? 0x1p-9 : 2e-5;
    if (!(fabs(got - want) <= relative * (fabs(want) + 0.1)))
        fail_msg("%s[%d] of rows of %d, type %d: got %.9g, expected %.9g", what, (int)i,
                 (int)s->columns, (int)s->dtype, got, want);
}

static void run_forward(setting *s)
{
    device_arrays arrays, its;
    device_forward(&s->first.apart, &s->first.host);
    copy_buffer(&s->second.apart.in[0], &s->first.apart.out);
    device_forward(&s->second.apart, &s->second.host);
    smp_op_call call = device_forward_call(&s->first.whole, &s->first.host, &arrays);
    smp_op_call next = device_forward_call(&s->second.whole, &s->second.host, &its);
    its.in[0] = s->first.whole.out.data;
    device_wait(s->first.whole.kernels->forward_fused(&call, &next));
    same_bits(s, "first output", &s->first.whole.out, &s->first.apart.out);
    same_bits(s, "second output", &s->second.whole.out, &s->second.apart.out);
    same_bits(s, "what is saved", &s->first.whole.aux, &s->first.apart.aux);
    same_bits(s, "what is saved", &s->second.whole.aux, &s->second.apart.aux);
}

/* The second output of a norm from the first, which is the sum to the bit. */
static void check_norm(const setting *s)
{
    const device_run *sum = &s->first.whole, *norm = &s->second.whole;
    const bool centered = norm->op->n_param > 1;
    const float *weight = s->second.host.param[0].data;
    const float *bias = centered ? s->second.host.param[1].data : NULL;
    double *a = values_of(s, &sum->in[0]), *b = values_of(s, &sum->in[1]);
    double *y = values_of(s, &sum->out), *z = values_of(s, &norm->out);
    for (int64_t r = 0; r < s->rows; r++) {
        const double *row = y + r * s->columns;
        double mean = 0, square = 0;
        for (int64_t c = 0; c < s->columns && centered; c++)
            mean += row[c] / (double)s->columns;
        for (int64_t c = 0; c < s->columns; c++)
            square += (row[c] - mean) * (row[c] - mean) / (double)s->columns;
        for (int64_t c = 0; c < s->columns; c++) {
            const int64_t i = r * s->columns + c;
            const double x = (row[c] - mean) / sqrt(square + 1e-4);
            near(s, "sum", i, y[i], a[i] + b[i]);
            near(s, "norm", i, z[i],
                 centered ? x * (double)weight[c] + (double)bias[c] : x * (1 + (double)weight[c]));
        }
    }
    free(a), free(b), free(y), free(z);
}

static void test_cuda_pairs_sum_and_norm(void **state)
{
    (void)state;
    for (int k = 0; k < 2 * N_PRECISION * N_COLUMNS; k++) {
        const smp_precision precision = PRECISIONS[k / 2 % N_PRECISION];
        setting s = open_setting(&NORMS[k % 2], precision, COLUMNS[k / 2 / N_PRECISION]);
        run_forward(&s);
        check_norm(&s);
        close_setting(&s);
    }
}

/* The calls of both backwards as one kernel, with or without the gradient of the other factor. */
static void run_whole_backward(setting *s, bool both)
{
    device_run *gate = &s->first.whole, *product = &s->second.whole;
    device_arrays arrays, its;
    smp_op_call call = device_call(product, &s->second.host, &arrays);
    smp_op_call before = device_call(gate, &s->first.host, &its);
    device_buffer_poison(&gate->din[0]);
    device_buffer_poison(&product->din[1]);
    device_backward_outs(product, 0, &arrays, &call);
    device_backward_outs(gate, 0, &its, &before);
    arrays.in[1] = product->in[1].data; /* and not what silu makes */
    arrays.din[0] = its.din[0] = gate->din[0].data;
    arrays.din[1] = both ? product->din[1].data : NULL;
    its.in[0] = gate->in[0].data;
    its.dout[0] = gate->din[0].data;
    device_wait(product->kernels->backward_input_fused(&call, &before));
}

static void run_backward(setting *s)
{
    device_run *gate = &s->first.apart, *product = &s->second.apart;
    device_backward_input(product, &s->second.host, ~0u);
    copy_buffer(&gate->dout, &product->din[0]);
    device_backward_input(gate, &s->first.host, ~0u);
    for (int both = 0; both < 2; both++) {
        run_whole_backward(s, both);
        same_bits(s, "gradient of the gate", &s->first.whole.din[0], &gate->din[0]);
        if (both)
            same_bits(s, "gradient of the factor", &s->second.whole.din[1], &product->din[1]);
    }
}

static void check_gate(const setting *s)
{
    const device_run *gate = &s->first.whole, *product = &s->second.whole;
    double *a = values_of(s, &gate->in[0]), *b = values_of(s, &product->in[1]);
    double *z = values_of(s, &product->out), *dz = values_of(s, &product->dout);
    double *da = values_of(s, &gate->din[0]), *db = values_of(s, &product->din[1]);
    for (int64_t i = 0; i < s->rows * s->columns; i++) {
        const double sigmoid = 1 / (1 + exp(-a[i]));
        near(s, "product", i, z[i], a[i] * sigmoid * b[i]);
        near(s, "gradient of the gate", i, da[i],
             dz[i] * b[i] * sigmoid * (1 + a[i] * (1 - sigmoid)));
        near(s, "gradient of the factor", i, db[i], dz[i] * a[i] * sigmoid);
    }
    free(a), free(b), free(z), free(dz), free(da), free(db);
}

static void test_cuda_pairs_gate_and_product(void **state)
{
    (void)state;
    for (int k = 0; k < N_PRECISION * N_COLUMNS; k++) {
        setting s = open_setting(&GATE, PRECISIONS[k % N_PRECISION], COLUMNS[k / N_PRECISION]);
        run_forward(&s);
        run_backward(&s);
        check_gate(&s);
        close_setting(&s);
    }
}

/* A batchnorm's gradients: from the relu's own, which its kernel makes, and from what comes to the
 * relu, as it is and not the relu's at all. */
static void check_absorbed(setting *s)
{
    device_run *apart = &s->first.apart, *whole = &s->first.whole, *relu = &s->second.apart;
    relu->needs.input_grad_out = 1; /* as if nobody took the call from it */
    device_backward_input(relu, &s->second.host, 1);
    copy_buffer(&apart->dout, &relu->din[0]);
    copy_buffer(&whole->dout, &relu->dout);
    void *one = device_get(&apart->dout), *other = device_get(&whole->dout);
    assert_memory_not_equal(one, other, (size_t)apart->dout.bytes);
    free(one), free(other);
    copy_buffer(&whole->aux, &apart->aux);
    device_backward_weight(apart, &s->first.host);
    device_backward_weight(whole, &s->first.host);
    device_backward_input(apart, &s->first.host, 1);
    device_backward_input(whole, &s->first.host, 1);
    same_bits(s, "gradient of x", &whole->din[0], &apart->din[0]);
    for (int k = 0; k < whole->op->n_param; k++)
        same_bits(s, "gradient of a weight", &whole->dparam[k], &apart->dparam[k]);
    device_backward(whole, &s->first.host);
    same_bits(s, "gradient of x, with the weights'", &whole->din[0], &apart->din[0]);
}

/* And the graph that has no relu at all, given the relu's gradient: it masks nothing. */
static void check_unmasked(const setting *s, const char *shape, bool last, smp_precision precision)
{
    char yaml[512];
    device_run alone;
    snprintf(yaml, sizeof yaml,
             "smp: 1\nname: m\ninputs:\n  a: {dtype: float32, shape: %s}\nops:\n"
             "  - {op: batchnorm, name: op, in: a, out: y}\n",
             shape);
    smp_graph *graph = device_graph(yaml, precision);
    if (last)
        assert_true(device_graph_lay_out(graph, graph->op, true, true));
    assert_false(smp_op_absorbs(graph, graph->op));
    device_run_open(&alone, graph, "op", BATCH, 0);
    device_run_put(&alone, &s->first.host);
    copy_buffer(&alone.dout, &s->first.apart.dout);
    copy_buffer(&alone.aux, &s->first.apart.aux);
    device_backward_input(&alone, &s->first.host, 1);
    same_bits(s, "gradient of x without a relu", &alone.din[0], &s->first.apart.din[0]);
    device_run_close(&alone);
    smp_graph_destroy(graph);
}

static void test_cuda_pairs_relu(void **state)
{
    (void)state;
    static const pair pairs[] = {
        {"op: add, in: [a, b]", "op: relu, in: y"},
        {"op: batchnorm, in: a", "op: relu, in: y"},
    };
    static const char *const shapes[] = {"[3, 7, 5]", "[16, 6, 4]", "[40, 9, 11]"};
    for (int k = 0; k < 2 * 2 * N_PRECISION * 3; k++) {
        const bool last = k / 2 % 2;
        const smp_precision precision = PRECISIONS[k / 4 % N_PRECISION];
        const char *shape = shapes[k / 4 / N_PRECISION];
        setting s = open_shape(&pairs[k % 2], precision, k, shape, last);
        run_forward(&s);
        if (k % 2) {
            assert_true(smp_op_absorbs(s.graph, s.graph->op));
            check_absorbed(&s);
            check_unmasked(&s, shape, last, precision);
        }
        close_setting(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_pairs_sum_and_norm),
        cmocka_unit_test(test_cuda_pairs_gate_and_product),
        cmocka_unit_test(test_cuda_pairs_relu),
    };
    if (!there_is_a_device())
        return SKIPPED;
    return cmocka_run_group_tests_name("cuda_pairs", tests, open_device, close_device);
}

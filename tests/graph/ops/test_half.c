/* bf16 and fp16 on the CPU: every operator on random models, its kernels against its fp32 ones.
 * Those that widen give the fp32 results on the same values, rounded once; those that bf16 has of
 * its own agree to some digits. Buffers end in canaries, so what is planned as workspace is enough.
 */
#include "graph/base/fp16.h"
#include "graph/math/half.h"
#include "tests/graph/ops/op_values.h"

enum { ROUNDS = 8 };
static const double OWN_TOLERANCE = 0x1p-7; /* of the largest value: a sum is rounded to 8 bits */

static smp_precision precision = SMP_PRECISION_BF16; /* the one that is tested */

/* Does the operator compute in the format itself? */
static bool is_own(const smp_op_kind *kind)
{
    return kind->cpu16 && precision == SMP_PRECISION_BF16;
}

static int64_t values_of(const buffer *wide)
{
    return (int64_t)(wide->bytes / 4);
}

static void round_all(smp_dtype dtype, const buffer *wide)
{
    uint16_t *narrow = malloc((size_t)values_of(wide) * 2 + 1);
    assert_non_null(narrow);
    smp__to_half(dtype, narrow, wide->data, values_of(wide));
    smp__from_half(dtype, wide->data, narrow, values_of(wide));
    free(narrow);
}

/* Rounds in place what a tensor of 16 bits holds, so that fp32 kernels see the same. */
static void round_values(const op_run *half, int32_t tensor, const buffer *wide)
{
    if (wide->data && smp_dtype_is_half(half->graph->tensor[tensor].dtype))
        round_all(half->graph->tensor[tensor].dtype, wide);
}

/* As the tensor holds them: of 16 bits, int32, or a loss. */
static void put(const op_run *half, int32_t tensor, const buffer *to, const buffer *wide)
{
    const smp_dtype dtype = half->graph->tensor[tensor].dtype;
    if (smp_dtype_is_half(dtype))
        smp__to_half(dtype, to->data, wide->data, values_of(wide));
    else if (to->data)
        memcpy(to->data, wide->data, wide->bytes);
}

static void assert_like(const op_run *half, int32_t tensor, const buffer *got, const buffer *wide,
                        const char *what)
{
    if (!got->data)
        return;
    const smp_dtype dtype = half->graph->tensor[tensor].dtype;
    const bool is_half = smp_dtype_is_half(dtype), own = is_own(half->op->kind);
    const float *want = wide->data;
    double scale = 0;
    for (int64_t i = 0; i < values_of(wide); i++)
        scale = fmax(scale, fabs((double)want[i]));
    for (int64_t i = 0; i < values_of(wide); i++) {
        float value, rounded;
        uint16_t bits;
        if (is_half)
            smp__from_half(dtype, &value, (const uint16_t *)got->data + i, 1);
        else
            value = ((const float *)got->data)[i];
        rounded = want[i];
        if (is_half) {
            smp__to_half(dtype, &bits, &want[i], 1);
            smp__from_half(dtype, &rounded, &bits, 1);
        }
        if (own ? !(fabs((double)value - want[i]) <= OWN_TOLERANCE * scale)
                : memcmp(&value, &rounded, 4) != 0 && !(isnan(value) && isnan(rounded)))
            fail_msg("%s: %s[%lld] is %.9g, expected %.9g", half->op->kind->name, what,
                     (long long)i, (double)value, (double)want[i]);
    }
}

/* The same model and values as `wide`, in 16 bits. */
static void open_half(op_run *half, const model_text *m, op_run *wide)
{
    *half = (op_run){.batch = m->batch};
    assert_int_equal(smp_graph_parse("model.yaml", m->yaml, strlen(m->yaml), &half->graph), SMP_OK);
    assert_int_equal(smp_graph_set_target(half->graph, (smp_target){SMP_BACKEND_CPU, precision}),
                     SMP_OK);
    half->op = &half->graph->op[smp_graph_find_op(half->graph, "op")];
    half->step = wide->step;
    smp_op_needs_get(half->graph, half->op, half->batch, &half->needs);
    half->aux = buffer_make(half->needs.aux_bytes * half->batch, 0);
    half->workspace = buffer_make(half->needs.workspace_bytes, 0);
    for (int i = 0; i < half->op->n_in; i++) {
        const int32_t tensor = half->op->in[i];
        const int64_t bytes = smp_tensor_bytes(half->graph, tensor, half->batch);
        round_values(half, tensor, &wide->in[i]);
        half->in[i] = buffer_make(bytes, 1);
        half->din[i] = buffer_make(wide->din[i].data ? bytes : 0, 2);
        put(half, tensor, &half->in[i], &wide->in[i]);
    }
    for (int i = 0; i < half->op->n_param; i++) {
        half->param[i] = buffer_make((int64_t)wide->param[i].bytes, 0);
        half->dparam[i] = buffer_make((int64_t)wide->dparam[i].bytes, 0);
        memcpy(half->param[i].data, wide->param[i].data, wide->param[i].bytes);
        if (!is_own(half->op->kind) && half->op->kind->rounded >> i & 1)
            round_all(smp_precision_dtype(precision), &wide->param[i]); /* only the copy is */
        memcpy(half->dparam[i].data, wide->dparam[i].data, wide->dparam[i].bytes);
    }
    for (int k = 0; k < half->op->n_out; k++) {
        const int64_t bytes = smp_tensor_bytes(half->graph, half->op->out + k, half->batch);
        half->outs[k] = buffer_make(bytes, 3);
        half->douts[k] = buffer_make(bytes, 1);
    }
}

/* An output of the run in fp32. */
static const buffer *whole(const op_run *wide, const buffer *one, const buffer *parts, int k)
{
    return wide->op->n_out > 1 ? &parts[k] : one;
}

/* The arrays of a call of the kernels. */
typedef struct half_arrays {
    op_arrays at;
    const void *param16[SMP_OP_MAX_PARAM];
    buffer rounded[SMP_OP_MAX_PARAM]; /* weights */
} half_arrays;

static smp_op_call call_of(const op_run *half, half_arrays *a)
{
    *a = (half_arrays){0};
    smp_op_call call = op_run_call(half, &a->at);
    for (int i = 0; i < half->op->n_param; i++) {
        a->rounded[i] = buffer_make((int64_t)half->param[i].bytes / 2, 0);
        smp__to_half(smp_precision_dtype(precision), a->rounded[i].data, half->param[i].data,
                     values_of(&half->param[i]));
        a->param16[i] = a->rounded[i].data;
        a->at.dparam[i] = half->dparam[i].data;
    }
    for (int i = 0; i < half->op->n_in; i++) {
        a->at.in[i] = half->in[i].data;
        a->at.din[i] = half->din[i].data;
    }
    for (int k = 0; k < half->op->n_out; k++) {
        a->at.out[k] = half->outs[k].data;
        a->at.dout[k] = half->douts[k].data;
    }
    call.param16 = a->param16;
    call.out = a->at.out;
    call.dout = a->at.dout;
    call.aux = half->aux.data;
    return call;
}

/* From here on both see the same outputs, rounded, and gradients of them. */
static void check_outputs(const op_run *half, op_run *wide)
{
    op_run_move_outs(wide, &wide->dout, wide->douts, false);
    for (int k = 0; k < half->op->n_out; k++) {
        const int32_t tensor = half->op->out + k;
        const buffer *out = whole(wide, &wide->out, wide->outs, k);
        const buffer *dout = whole(wide, &wide->dout, wide->douts, k);
        assert_like(half, tensor, &half->outs[k], out, "out");
        round_values(half, tensor, out);
        round_values(half, tensor, dout);
        put(half, tensor, &half->outs[k], out);
        put(half, tensor, &half->douts[k], dout);
    }
    op_run_move_outs(wide, &wide->out, wide->outs, true);
    op_run_move_outs(wide, &wide->dout, wide->douts, true);
}

/* Of weights: fp32 sums of the same products, where the kernels are the same in the same order; of
 * attention's bias, of products with rounded probabilities. */
static void check_weight_gradient(const op_run *half, const op_run *wide, int slot)
{
    const float *got = half->dparam[slot].data, *want = wide->dparam[slot].data;
    const bool own = is_own(half->op->kind);
    const bool rounds = strcmp(half->op->kind->name, "attention") == 0;
    double scale = 1, worst = 0;
    for (int64_t e = 0; e < values_of(&wide->dparam[slot]); e++) {
        if (!own)
            assert_memory_equal(&got[e], &want[e], 4);
        scale = fmax(scale, fabs((double)want[e]));
        worst = fmax(worst, fabs((double)want[e] - (double)got[e]));
    }
    assert_true(worst <= (rounds ? OWN_TOLERANCE : 1e-5) * scale);
}

static void check_model(const model_text *m, uint64_t *rng)
{
    op_run wide, half;
    half_arrays a;
    op_run_open(&wide, m->yaml, "op", m->batch, 0);
    fill(&wide, m, rng);
    open_half(&half, m, &wide);
    const smp_op *op = half.op;
    const smp_op_kernels *kernels = smp_op_cpu_kernels(op->kind, precision);
    if (kernels->prepare)
        assert_int_equal(kernels->prepare(half.graph, op, half.batch, NULL, &half.state), SMP_OK);
    smp_op_call call = call_of(&half, &a);

    assert_int_equal(op_run_forward(&wide), SMP_OK);
    assert_int_equal(kernels->forward(&call), SMP_OK);
    check_outputs(&half, &wide);
    op_run_backward_input(&wide, ~0u);
    op_run_backward_weight(&wide);
    if (kernels->backward_input)
        assert_int_equal(kernels->backward_input(&call), SMP_OK);
    if (kernels->backward_weight && op->n_param > 0)
        assert_int_equal(kernels->backward_weight(&call), SMP_OK);
    for (int i = 0; i < op->n_in && kernels->backward_input; i++)
        assert_like(&half, op->in[i], &half.din[i], &wide.din[i], "gradient of an input");
    for (int i = 0; i < op->n_param; i++) {
        check_weight_gradient(&half, &wide, i);
        buffer_free(&a.rounded[i]);
    }
    if (kernels->release)
        kernels->release(half.state);
    op_run_free_buffers(&half);
    smp_graph_destroy(half.graph);
    op_run_close(&wide);
}

static void skip_without_bf16(void)
{
    if (smp_math_has_bf16())
        return;
    print_message("this processor has neither AVX512-BF16 nor AMX\n");
    skip();
}

static void test_half_like_fp32(void **state)
{
    if (is_own(((const op_case *)*state)->kind))
        skip_without_bf16();
    for (int round = 0; round < ROUNDS; round++) {
        model_text m;
        uint64_t rng;
        op_case_model(*state, round, &m, &rng);
        check_model(&m, &rng);
    }
}

/* As many samples at a time as stay in the cache: three of these. */
static void test_half_attention_in_chunks(void **state)
{
    (void)state;
    skip_without_bf16();
    for (int capped = 0; capped <= 1; capped++) {
        model_text m = {.batch = 6, .magnitude = 1.5};
        uint64_t rng = 1;
        model_write(&m,
                    "smp: 1\nname: m\ninputs:\n"
                    "  q: {dtype: float32, shape: [200, 12]}\n"
                    "  k: {dtype: float32, shape: [200, 6]}\n"
                    "  v: {dtype: float32, shape: [200, 6]}\n"
                    "  m: {dtype: int32, shape: [200]}\n"
                    "ops:\n  - {op: attention, name: op, in: [q, k, v, m], out: y, heads: 6,\n"
                    "     kv_heads: 3, causal: true, window: 150, %s}\n",
                    capped ? "softcap: 0.5" : "buckets: 8");
        check_model(&m, &rng);
    }
}

static void test_half_rounds_to_even_and_keeps_nan(void **state)
{
    (void)state;
    const float from[] = {1.0f, 1.00390625f, 1.01171875f, -0.0f, NAN, INFINITY, 3.4e38f, -1e-40f};
    const uint16_t want[] = {0x3f80, 0x3f80, 0x3f82, 0x8000, 0x7fc0, 0x7f80, 0x7f80, 0x8000};
    uint16_t got[8];
    float back[8];
    smp__to_bf16(got, from, 8);
    for (int i = 0; i < 8; i++)
        assert_int_equal(got[i], want[i]);
    smp__from_bf16(back, got, 8);
    assert_true(back[0] == 1.0f && isnan(back[4]) && isinf(back[6]) && back[2] == 1.015625f);
    smp__add_half(SMP_BF16, got, (const uint16_t[]){0x3f80, 0, 0, 0, 0, 0, 0xff80, 0}, 8);
    assert_int_equal(got[0], 0x4000);
    smp__from_bf16(back, got, 8);
    assert_true(isnan(back[6]));
}

/* The same in blocks, for which there may be an instruction, and one by one: every upper half, with
 * lower halves around the ties. */
static void test_half_rounds_alike_in_blocks(void **state)
{
    enum { HALVES = 1 << 16, LOWER = 6 };
    static const uint32_t lower[LOWER] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    float *from = malloc(HALVES * sizeof *from);
    uint16_t *got = malloc(HALVES * sizeof *got);
    (void)state;
    assert_true(from && got);
    for (int k = 0; k < LOWER; k++) {
        for (uint32_t i = 0; i < HALVES; i++) {
            const uint32_t bits = i << 16 | lower[k];
            memcpy(&from[i], &bits, 4);
        }
        smp__to_bf16(got, from, HALVES);
        for (int i = 0; i < HALVES; i++) {
            uint16_t alone;
            smp__to_bf16(&alone, &from[i], 1);
            assert_int_equal(got[i], alone);
        }
    }
    free(from);
    free(got);
}

/* The value that bits of binary16 stand for, by its definition. */
static double fp16_value(uint32_t bits)
{
    const int exponent = (int)(bits >> 10 & 31), fraction = (int)(bits & 1023);
    const double size = exponent > 0 ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits & 0x8000u ? -size : size;
}

static void assert_narrows(float from, uint32_t want)
{
    uint16_t got;
    smp__to_half(SMP_F16, &got, &from, 1);
    if (got != want || smp_fp16_narrow(from) != want)
        fail_msg("%a in fp16 is 0x%04x or 0x%04x, expected 0x%04x", (double)from, got,
                 smp_fp16_narrow(from), want);
}

/* Every number of the format, and around every tie between two: the even one of both, their
 * neighbours otherwise. 65536 would follow the largest, so from the tie before it on it is
 * infinite. */
static void test_half_fp16_all_numbers_and_ties(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 0x7c00u; i++)
        for (uint32_t sign = 0; sign <= 0x8000u; sign += 0x8000u) {
            const float value = (float)fp16_value(i | sign);
            const float next = sign ? -65536.0f : 65536.0f;
            const float above = i + 1 < 0x7c00u ? (float)fp16_value((i + 1) | sign) : next;
            const float tie = 0.5f * (value + above);
            const uint32_t even = i % 2 == 0 ? i : i + 1;
            assert_true(smp_fp16_widen((uint16_t)(i | sign)) == value);
            assert_true(!signbit(smp_fp16_widen((uint16_t)(i | sign))) == !sign);
            assert_narrows(value, i | sign);
            assert_narrows(tie, even | sign);
            assert_narrows(nextafterf(tie, value), i | sign);
            assert_narrows(nextafterf(tie, above), (i + 1) | sign);
        }
    assert_narrows(INFINITY, 0x7c00);
    assert_narrows(-3e38f, 0xfc00);
    assert_narrows(-1e-40f, 0x8000);
    assert_true(isinf(smp_fp16_widen(0x7c00)) && smp_fp16_widen(0xfc00) < 0);
    for (uint32_t i = 0x7c01; i < 0x8000; i++) {
        uint16_t back;
        const float value = smp_fp16_widen((uint16_t)i);
        smp__to_half(SMP_F16, &back, &value, 1);
        assert_true(isnan(value) && back == (i | 0x200u)); /* a quiet one */
    }
}

/* Blocks, for which there are instructions, as single values, which are tested above; sums too. */
static void test_half_fp16_alike_in_blocks(void **state)
{
    enum { N = 1 << 16 };
    float *wide = malloc(N * sizeof *wide);
    uint16_t *all = malloc(N * sizeof *all), *got = malloc(N * sizeof *got);
    (void)state;
    assert_true(wide && all && got);
    for (uint32_t i = 0; i < N; i++)
        all[i] = (uint16_t)i;
    smp__from_half(SMP_F16, wide, all, N);
    for (int i = 0; i < N; i++) {
        const float alone = smp_fp16_widen(all[i]);
        assert_memory_equal(&wide[i], &alone, 4);
    }
    for (int k = 0; k < 4; k++) {
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t bits = i << 16 | (uint32_t)(k * 0x5555);
            memcpy(&wide[i], &bits, 4);
        }
        smp__to_half(SMP_F16, got, wide, N);
        for (int i = 0; i < N; i++)
            assert_int_equal(got[i], smp_fp16_narrow(wide[i]));
    }
    memcpy(got, all, N * sizeof *got);
    smp__add_half(SMP_F16, got + 1, all, N - 1);
    for (int i = 1; i < N; i++) {
        const float sum = smp_fp16_widen(all[i]) + smp_fp16_widen(all[i - 1]);
        assert_true(isnan(sum) ? isnan(smp_fp16_widen(got[i])) /* of either, as is compiled */
                               : got[i] == smp_fp16_narrow(sum));
    }
    free(wide);
    free(all);
    free(got);
}

int main(void)
{
    static op_tests tests;
    const struct CMUnitTest rounding[] = {
        cmocka_unit_test(test_half_rounds_to_even_and_keeps_nan),
        cmocka_unit_test(test_half_rounds_alike_in_blocks),
        cmocka_unit_test(test_half_attention_in_chunks),
        cmocka_unit_test(test_half_fp16_all_numbers_and_ties),
        cmocka_unit_test(test_half_fp16_alike_in_blocks),
    };
    int failed = cmocka_run_group_tests(rounding, NULL, NULL);
    op_tests_add(&tests, SMP_BACKEND_CPU, "16 bits like fp32", test_half_like_fp32);
    failed |= op_tests_run("bf16", &tests, NULL, NULL);
    precision = SMP_PRECISION_FP16;
    return failed | op_tests_run("fp16", &tests, NULL, NULL);
}

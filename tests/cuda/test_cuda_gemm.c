/* Matrix products on a GPU against sums in double: every transpose, type and epilogue, odd sizes,
 * strides, accumulation, several at once; equal bits in every run and place. */
#include "tests/cuda/device_array.h"

#include "graph/cuda/cuda_gemm.cuh"

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static bool has_gelu(const smp__gemm_shape *s)
{
    return s->epilogue == SMP__GEMM_GELU || s->epilogue == SMP__GEMM_GELU_BIAS;
}

static bool has_bias(const smp__gemm_shape *s)
{
    return s->epilogue == SMP__GEMM_BIAS || s->epilogue == SMP__GEMM_GELU_BIAS;
}

static bool has_sums(const smp__gemm_shape *s)
{
    return s->epilogue == SMP__GEMM_BIAS_GRADIENT;
}

static bool has_slope(const smp__gemm_shape *s)
{
    return s->epilogue == SMP__GEMM_GELU_GRADIENT;
}

static double gelu_slope(double x)
{
    return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5;
}

/* `scale`: the sum of the magnitudes that went into `want`; `rounded`: that of what an epilogue is
 * given, which may have been rounded to C's type before. */
static void check_value(double got, double want, double scale, double rounded,
                        const smp__gemm_shape *s)
{
    double bound = 1e-6 + 3e-6 * scale;
    if (s->in == SMP_F32 && cuda.precision == SMP_PRECISION_TF32)
        bound = 1e-6 + 0x1p-9 * scale;
    if (smp_dtype_is_half(s->out))
        bound += (s->out == SMP_F16 ? 0x1p-11 : 0x1p-8) * (fabs(want) + 1.2 * rounded);
    if (has_gelu(s) || has_slope(s))
        bound += 2e-3 * (has_slope(s) ? scale : 1); /* the device's tanh */
    if (!(fabs(got - want) <= bound))
        fail_msg("got %.9g, expected %.9g within %.3g: m %d n %d k %d, types %d %d, epilogue %d",
                 got, want, bound, (int)s->m, (int)s->n, (int)s->k, s->in, s->out, s->epilogue);
}

enum { A, B, C, BIAS, AUX, N_ARRAY };

typedef struct product {
    smp__gemm_shape shape;
    float alpha, beta;
    array of[N_ARRAY];
    float *start; /* of C */
} product;

static smp__gemm_shape random_shape(int round)
{
    const uint64_t bits = smp_random_mix((uint64_t)round), more = smp_random_mix(bits);
    smp__gemm_shape s = {.trans_a = bits & 1, .trans_b = bits & 2};
    s.m = 1 + (int64_t)(bits >> 8) % 70;
    s.n = 1 + (int64_t)(bits >> 16) % 70;
    s.k = 1 + (int64_t)(bits >> 24) % 70;
    s.in = bits & 4 ? bits & 16 ? SMP_F16 : SMP_BF16 : SMP_F32;
    s.out = bits & 8 ? s.in : SMP_F32;
    s.epilogue = (smp__gemm_epilogue)(more % 6);
    if (has_gelu(&s) || has_slope(&s))
        s.n = (s.n + 7) / 8 * 8;
    s.lda = (s.trans_a ? s.m : s.k) + (int64_t)(more >> 16) % 5;
    s.ldb = (s.trans_b ? s.k : s.n) + (int64_t)(more >> 24) % 5;
    s.ldc = s.n + (int64_t)(more >> 32) % 3 * 8;
    if (round % 4 == 3) { /* several, anywhere */
        s.epilogue = SMP__GEMM_PLAIN;
        s.count = 1 + (int64_t)(more >> 40) % 4;
        s.step[A] = (int64_t)(more >> 44) % 2 * ((s.trans_a ? s.k : s.m) * s.lda + 3);
        s.step[B] = (s.trans_b ? s.n : s.k) * s.ldb + 1;
        s.step[C] = s.m * s.ldc + (int64_t)(more >> 48) % 5;
        s.alignment = smp_dtype_bytes(s.in) < smp_dtype_bytes(s.out) ? smp_dtype_bytes(s.in)
                                                                     : smp_dtype_bytes(s.out);
    }
    return s;
}

/* Elements from the first to the last product's matrix. */
static int64_t steps(const smp__gemm_shape *s, int of)
{
    return s->count > 1 ? (s->count - 1) * s->step[of] : 0;
}

static product make_product(const smp__gemm_shape *s, float alpha, float beta, int shift)
{
    product p = {.shape = *s, .alpha = alpha, .beta = beta};
    p.of[A] = make(s->in, (s->trans_a ? s->k : s->m) * s->lda + steps(s, A), 1, shift);
    p.of[B] = make(s->in, (s->trans_b ? s->n : s->k) * s->ldb + steps(s, B), 2, 2 * shift);
    p.of[C] = make(s->out, s->m * s->ldc + steps(s, C), beta == 0 ? 0 : 3, 3 * shift);
    p.of[BIAS] = make(s->out, s->n, 4, shift);
    p.of[AUX] = make(s->out, has_sums(s) ? s->m : s->m * s->ldc, has_slope(s) ? 6 : 0, shift);
    p.start = malloc((size_t)p.of[C].n * sizeof *p.start);
    assert_non_null(p.start);
    memcpy(p.start, p.of[C].host, (size_t)p.of[C].n * sizeof *p.start);
    return p;
}

static void run_product(product *p, smp__gemm *gemm)
{
    const bool bias = has_bias(&p->shape),
               aux = has_gelu(&p->shape) || has_slope(&p->shape) || has_sums(&p->shape);
    check(smp__gemm_run(&cuda, gemm, p->alpha, p->of[A].data, p->of[B].data, p->beta, p->of[C].data,
                        bias ? p->of[BIAS].data : NULL, aux ? p->of[AUX].data : NULL));
    from_device(&p->of[C]);
    from_device(&p->of[AUX]);
}

static void drop_product(product *p)
{
    for (int i = 0; i < N_ARRAY; i++)
        drop(&p->of[i]);
    free(p->start);
}

static void check_element(const product *p, int64_t which, int64_t row, int64_t column)
{
    const smp__gemm_shape *s = &p->shape;
    const float *a = p->of[A].host + which * s->step[A], *b = p->of[B].host + which * s->step[B];
    const int64_t at = which * s->step[C] + row * s->ldc + column;
    double want = p->beta == 0 ? 0 : (double)p->beta * (double)p->start[at], scale = fabs(want);
    for (int64_t k = 0; k < s->k; k++) {
        double x = (double)a[s->trans_a ? k * s->lda + row : row * s->lda + k];
        double y = (double)b[s->trans_b ? column * s->ldb + k : k * s->ldb + column];
        want += (double)p->alpha * x * y;
        scale += fabs((double)p->alpha * x * y);
    }
    double rounded = s->epilogue == SMP__GEMM_PLAIN || has_sums(s) ? 0 : fabs(want);
    if (has_bias(s)) {
        want += (double)p->of[BIAS].host[column];
        scale += fabs((double)p->of[BIAS].host[column]);
    }
    if (has_gelu(s)) {
        check_value((double)p->of[AUX].host[row * s->ldc + column], want, scale, rounded, s);
        rounded += fabs(want);
        want = gelu(want);
    }
    if (has_slope(s))
        want *= gelu_slope((double)p->of[AUX].host[row * s->ldc + column]);
    check_value((double)p->of[C].host[at], want, scale, rounded, s);
}

/* Of rows of op(A): not scaled, whatever was there. */
static void check_sum(const product *p, int64_t row)
{
    const smp__gemm_shape *s = &p->shape;
    double want = 0, scale = 0;
    for (int64_t k = 0; k < s->k; k++) {
        const double x = (double)p->of[A].host[s->trans_a ? k * s->lda + row : row * s->lda + k];
        want += x;
        scale += fabs(x);
    }
    check_value((double)p->of[AUX].host[row], want, scale, 0, s);
}

static void check_product(const product *p)
{
    const smp__gemm_shape *s = &p->shape;
    const int64_t step = s->count > 1 ? s->step[C] : p->of[C].n;
    for (int64_t i = 0; i < p->of[C].n; i++) {
        const int64_t at = i % step;
        if (at / s->ldc < s->m && at % s->ldc < s->n)
            check_element(p, i / step, at / s->ldc, at % s->ldc);
        else /* between the rows, or the products */
            assert_memory_equal(&p->of[C].host[i], &p->start[i], sizeof(float));
    }
}

static int checked[6]; /* products by epilogue */

/* What the caller does where the epilogue is apart is not there. */
static void check_result(const product *p, const smp__gemm *gemm)
{
    const smp__gemm_shape *s = &p->shape;
    const bool apart = smp__gemm_is_apart(gemm);
    checked[s->epilogue] += !apart;
    if (!apart || !(has_gelu(s) || has_slope(s)))
        check_product(p);
    for (int64_t row = 0; !apart && has_sums(s) && row < s->m; row++)
        check_sum(p, row);
}

static void test_cuda_gemm_matches_reference(void **state)
{
    (void)state;
    for (int round = 0; round < 240; round++) {
        smp__gemm_shape s = random_shape(round);
        smp__gemm *gemm;
        cuda.precision = round % 3 == 0 ? SMP_PRECISION_TF32 : SMP_PRECISION_FP32;
        product p = make_product(&s, round % 2 ? 1 : 0.25f, round % 5 < 2 ? 0 : 1, 0);
        check(smp__gemm_create(&cuda, &s, &gemm));
        run_product(&p, gemm);
        check_result(&p, gemm);
        smp__gemm_destroy(gemm);
        drop_product(&p);
    }
    for (int i = 0; i < 6; i++)
        assert_true(checked[i] > 0);
}

static void test_cuda_gemm_gives_the_same_bits(void **state)
{
    (void)state;
    cuda.precision = SMP_PRECISION_FP32;
    for (int round = 0; round < 16; round++) { /* long sums: the library may split them */
        smp__gemm_shape s = {.trans_a = round & 1, .m = 40, .n = 24, .k = 4096 + round % 2};
        smp__gemm *gemm;
        s.epilogue = round < 8 ? SMP__GEMM_PLAIN : SMP__GEMM_BIAS_GRADIENT;
        s.in = round & 2 ? round & 4 ? SMP_F16 : SMP_BF16 : SMP_F32;
        s.lda = s.trans_a ? s.m : s.k, s.ldb = s.n, s.ldc = s.n;
        check(smp__gemm_create(&cuda, &s, &gemm));
        product first = make_product(&s, 1, 1, 0);
        run_product(&first, gemm);
        check_result(&first, gemm);
        for (int again = 1; again < 3; again++) {
            product p = make_product(&s, 1, 1, again);
            run_product(&p, gemm);
            for (int of = C; of <= (has_sums(&s) && !smp__gemm_is_apart(gemm) ? AUX : C);
                 of += AUX - C)
                assert_memory_equal(p.of[of].host, first.of[of].host,
                                    (size_t)p.of[of].n * sizeof(float));
            drop_product(&p);
        }
        drop_product(&first);
        smp__gemm_destroy(gemm);
    }
}

/* TF32 where it is asked for, and nowhere else: random fp32 factors have more bits than that. */
static void test_cuda_gemm_rounds_factors_when_asked(void **state)
{
    (void)state;
    smp__gemm_shape s = {.m = 64, .n = 64, .k = 64, .lda = 64, .ldb = 64, .ldc = 64};
    float *first = malloc(64 * 64 * sizeof *first);
    assert_non_null(first);
    for (int tf32 = 0; tf32 < 2; tf32++) {
        smp__gemm *gemm;
        cuda.precision = tf32 ? SMP_PRECISION_TF32 : SMP_PRECISION_FP32;
        check(smp__gemm_create(&cuda, &s, &gemm));
        product p = make_product(&s, 1, 0, 0);
        run_product(&p, gemm);
        check_product(&p);
        if (tf32)
            assert_memory_not_equal(p.of[C].host, first, 64 * 64 * sizeof *first);
        memcpy(first, p.of[C].host, 64 * 64 * sizeof *first);
        drop_product(&p);
        smp__gemm_destroy(gemm);
    }
    free(first);
}

/* What follows is of a long product with a bias: its algorithms give different bits. */
static const smp__gemm_shape LONG = {
    .m = 24, .n = 40, .k = 999, .lda = 999, .ldb = 40, .ldc = 40, .epilogue = SMP__GEMM_BIAS};
enum { LONG_BYTES = 24 * 40 * sizeof(float) };

/* Its result with a book of its own, in which `choices`, or NULL, are asked for; name, algorithm:
 * what was taken. */
static void run_long(const smp_gemm_choices *choices, float *result, char *name, char *algorithm)
{
    smp__gemm *gemm;
    cuda.precision = SMP_PRECISION_FP32;
    smp_gemms_free(&products);
    products.choices = choices;
    check(smp__gemm_create(&cuda, &LONG, &gemm));
    product p = make_product(&LONG, 1, 0, 0);
    run_product(&p, gemm);
    check_product(&p);
    memcpy(result, p.of[C].host, LONG_BYTES);
    const smp_gemm *taken = products.product[0];
    if (name)
        strcpy(name, taken->name);
    if (algorithm)
        strcpy(algorithm, taken->algorithm[taken->chosen]);
    drop_product(&p);
    smp__gemm_destroy(gemm);
    smp_gemms_free(&products);
}

/* The text of an algorithm is the algorithm, in another book too: asked for it gives its bits. */
static void test_cuda_gemm_repeats_a_choice(void **state)
{
    (void)state;
    float by_first[24 * 40], by_second[24 * 40], again[24 * 40];
    char name[SMP_GEMM_NAME_BYTES], first[SMP_ALGORITHM_BYTES], second[SMP_ALGORITHM_BYTES];
    run_long(NULL, by_first, name, first);
    setenv("SMP_EMULATE_BLAS_REFUSE", "run-first", 1);
    run_long(NULL, by_second, name, second);
    unsetenv("SMP_EMULATE_BLAS_REFUSE");
    const smp_gemm_choice choice = {.product = name, .algorithm = second};
    run_long(&(smp_gemm_choices){.n = 1, .choice = &choice}, again, NULL, NULL);
    assert_memory_equal(again, by_second, LONG_BYTES);
#ifdef SMP_EMULATED
    assert_string_equal(name, "nn 24x40x999 float32 float32 bias");
    assert_string_not_equal(first, second);
    assert_memory_not_equal(by_first, by_second, LONG_BYTES);
#endif
}

#ifdef SMP_EMULATED
/* Texts that are of no algorithm, of another product's, of one whose sums have no order: the first
 * of the library's instead. */
static void test_cuda_gemm_checks_what_is_asked_for(void **state)
{
    (void)state;
    float want[24 * 40], got[24 * 40];
    char name[SMP_GEMM_NAME_BYTES], first[SMP_ALGORITHM_BYTES], taken[SMP_ALGORITHM_BYTES];
    run_long(NULL, want, name, first);
    char other[SMP_ALGORITHM_BYTES], unordered[SMP_ALGORITHM_BYTES];
    strcpy(other, first);
    other[strcspn(other, ":") + 2] ^= 1;
    strcpy(unordered, first);
    unordered[strlen(unordered) - 1] = '9';
    const char *const texts[] = {"", "id 1", "id 1: 0", "id 1: xy", other, unordered};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const smp_gemm_choice choice = {.product = name, .algorithm = texts[i]};
        run_long(&(smp_gemm_choices){.n = 1, .choice = &choice}, got, NULL, taken);
        assert_string_equal(taken, first);
        assert_memory_equal(got, want, LONG_BYTES);
    }
}

/* The next algorithm, the bias apart, and none at all; of a settled book the first refusal is an
 * error. */
static void test_cuda_gemm_goes_on_where_the_library_refuses(void **state)
{
    (void)state;
    float result[24 * 40];
    char taken[SMP_ALGORITHM_BYTES];
    setenv("SMP_EMULATE_BLAS_REFUSE", "run-bias,run-first", 1);
    run_long(NULL, result, NULL, taken);
    assert_string_equal(taken, SMP_GEMM_APART);
    for (int settled = 0; settled < 2; settled++) {
        smp__gemm *gemm;
        setenv("SMP_EMULATE_BLAS_REFUSE", settled ? "run-first" : "run", 1);
        check(smp__gemm_create(&cuda, &LONG, &gemm));
        product p = make_product(&LONG, 1, 0, 0);
        products.settled = settled;
        assert_int_equal(smp__gemm_run(&cuda, gemm, 1, p.of[A].data, p.of[B].data, 0, p.of[C].data,
                                       p.of[BIAS].data, NULL),
                         SMP_ERR_FAILED);
        assert_non_null(strstr(smp_last_error(), settled ? "float32 bias: cuBLASLt refuses "
                                                           "algorithm 1 of 4 (id "
                                                         : "float32: cuBLASLt refuses "
                                                           "algorithm 3 of 3 (id "));
        drop_product(&p);
        smp__gemm_destroy(gemm);
        smp_gemms_free(&products);
    }
    unsetenv("SMP_EMULATE_BLAS_REFUSE");
}

#endif

/* Fewer multiprocessors than there are change neither the algorithm nor its bits. */
static void test_cuda_gemm_leaves_multiprocessors(void **state)
{
    (void)state;
    float want[24 * 40], got[24 * 40];
    run_long(NULL, want, NULL, NULL);
    cuda.taken_multiprocessors = 1;
    run_long(NULL, got, NULL, NULL);
    cuda.taken_multiprocessors = 0;
    assert_memory_equal(got, want, LONG_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_gemm_matches_reference),
        cmocka_unit_test(test_cuda_gemm_gives_the_same_bits),
        cmocka_unit_test(test_cuda_gemm_rounds_factors_when_asked),
        cmocka_unit_test(test_cuda_gemm_repeats_a_choice),
        cmocka_unit_test(test_cuda_gemm_leaves_multiprocessors),
#ifdef SMP_EMULATED
        cmocka_unit_test(test_cuda_gemm_checks_what_is_asked_for),
        cmocka_unit_test(test_cuda_gemm_goes_on_where_the_library_refuses),
#endif
    };
    if (!there_is_a_device())
        return SKIPPED;
    return cmocka_run_group_tests_name("cuda_gemm", tests, open_device, close_device);
}

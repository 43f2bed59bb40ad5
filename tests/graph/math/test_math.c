/* graph/math/math.h against naive double-precision results: GEMM in every transpose with strides,
 * the elementwise functions and softmax, in place and not; equal bits for every alignment. */
#include <dirent.h>
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/random.h"
#include "graph/math/math.h"

enum { SIZE = 4096 };

static _Alignas(64) float a[SIZE + 64], b[SIZE + 64], c[SIZE + 64], start[SIZE + 64];

static void fill(float *x, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)((double)(smp_random_mix((seed << 40) + (uint64_t)i) >> 11) * 0x1p-52 - 1);
}

typedef struct gemm_case {
    bool trans_a, trans_b;
    int64_t m, n, k, lda, ldb, ldc;
    float alpha, beta;
} gemm_case;

static gemm_case random_gemm(int round)
{
    uint64_t bits = smp_random_mix((uint64_t)round);
    gemm_case g = {.trans_a = bits & 1, .trans_b = bits & 2, .alpha = bits & 4 ? 1 : 0.25f};
    g.beta = bits & 8 ? 0 : 1;
    g.m = 1 + (int64_t)(bits >> 8) % 37;
    g.n = 1 + (int64_t)(bits >> 16) % 37;
    g.k = 1 + (int64_t)(bits >> 24) % 37;
    g.lda = (g.trans_a ? g.m : g.k) + (int64_t)(bits >> 32) % 5;
    g.ldb = (g.trans_b ? g.k : g.n) + (int64_t)(bits >> 36) % 5;
    g.ldc = g.n + (int64_t)(bits >> 40) % 5;
    return g;
}

static smp_status gemm(const gemm_case *g, const float *x, const float *y, float *z)
{
    return smp_math_gemm(g->trans_a, g->trans_b, g->m, g->n, g->k, g->alpha, x, g->lda, y, g->ldb,
                         g->beta, z, g->ldc);
}

static void test_math_gemm_matches_reference(void **state)
{
    (void)state;
    fill(a, SIZE, 1);
    fill(b, SIZE, 2);
    for (int round = 0; round < 300; round++) {
        gemm_case g = random_gemm(round);
        fill(start, SIZE, 3);
        for (int i = 0; i < SIZE; i++) /* beta = 0 must not read */
            c[i] = g.beta == 0 && i % g.ldc < g.n && i / g.ldc < g.m ? NAN : start[i];
        assert_int_equal(gemm(&g, a, b, c), SMP_OK);
        for (int64_t i = 0; i < SIZE; i++) {
            int64_t row = i / g.ldc, column = i % g.ldc;
            double want = (double)start[i];
            if (row < g.m && column < g.n) {
                double sum = 0;
                for (int64_t k = 0; k < g.k; k++)
                    sum += (double)a[g.trans_a ? k * g.lda + row : row * g.lda + k] *
                           (double)b[g.trans_b ? column * g.ldb + k : k * g.ldb + column];
                want = (double)g.alpha * sum + (double)g.beta * want;
            }
            assert_true(fabs((double)c[i] - want) < 1e-5);
        }
    }
}

static void test_math_gemm_bits_do_not_depend_on_alignment(void **state)
{
    static float wanted[SIZE];
    (void)state;
    for (int round = 0; round < 100; round++) {
        gemm_case g = random_gemm(round);
        g.beta = 0;
        for (int shift = 0; shift < 16; shift += 3) {
            fill(a + shift, SIZE, 1);
            fill(b + 2 * shift, SIZE, 2);
            memset(c, 0, sizeof c);
            assert_int_equal(gemm(&g, a + shift, b + 2 * shift, c + 3 * shift), SMP_OK);
            if (shift == 0)
                memcpy(wanted, c, sizeof wanted);
            assert_memory_equal(c + 3 * shift, wanted, (size_t)(g.ldc * g.m) * sizeof(float));
        }
    }
}

static void test_math_gemm_reports_bad_strides(void **state)
{
    (void)state;
    assert_int_equal(smp_math_gemm(false, false, 2, 2, 8, 1, a, 7, b, 2, 0, c, 2), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "GEMM 2 x 2 x 8"));
}

static double value(smp_eltwise kind, double x)
{
    switch (kind) {
    case SMP_ELTWISE_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case SMP_ELTWISE_GELU_ERF:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    default:
        return tanh(x);
    }
}

static void check_eltwise(smp_eltwise kind, int n, float range)
{
    smp_math_primitive *p = NULL;
    assert_int_equal(smp_math_eltwise_create(kind, n, false, true, &p), SMP_OK);
    fill(a, n, 5);
    fill(b, n, 6);
    for (int i = 0; i < n; i++)
        a[i] *= range;
    a[n] = b[n] = c[n] = 77;
    assert_int_equal(smp_math_eltwise_forward(p, a, c), SMP_OK);
    for (int i = 0; i < n; i++)
        assert_true(fabs((double)c[i] - value(kind, (double)a[i])) < 2e-6 * (1 + (double)range));
    memcpy(start, a, (size_t)n * sizeof *a);
    start[n] = 77;
    assert_int_equal(smp_math_eltwise_forward(p, start, start), SMP_OK);
    assert_memory_equal(start, c, ((size_t)n + 1) * sizeof *c);
    assert_int_equal(smp_math_eltwise_backward(p, a, b, c), SMP_OK);
    for (int i = 0; i < n; i++) {
        double x = (double)a[i], h = 1e-5;
        double slope = (value(kind, x + h) - value(kind, x - h)) / (2 * h);
        assert_true(fabs((double)c[i] - (double)b[i] * slope) < 1e-5 || fabs(x) < 2 * h);
    }
    assert_int_equal(smp_math_eltwise_backward(p, a, b, b), SMP_OK); /* in place */
    assert_memory_equal(b, c, ((size_t)n + 1) * sizeof *c);
    smp_math_primitive_destroy(p);
}

static void test_math_eltwise(void **state)
{
    (void)state;
    for (int kind = SMP_ELTWISE_GELU_TANH; kind <= SMP_ELTWISE_TANH; kind++)
        for (int n = 1; n < 200; n += 13) {
            check_eltwise((smp_eltwise)kind, n, 4);
            check_eltwise((smp_eltwise)kind, n, 30);
        }
}

static void check_softmax(int rows, int columns, float range)
{
    smp_math_primitive *p = NULL;
    int n = rows * columns;
    assert_int_equal(smp_math_softmax_create(rows, columns, true, &p), SMP_OK);
    fill(a, n, 7);
    fill(b, n, 8);
    for (int i = 0; i < n; i++)
        a[i] *= range;
    assert_int_equal(smp_math_softmax_forward(p, a, c), SMP_OK);
    for (int r = 0; r < rows; r++) {
        double max = -INFINITY, sum = 0;
        for (int i = 0; i < columns; i++)
            max = fmax(max, (double)a[r * columns + i]);
        for (int i = 0; i < columns; i++)
            sum += exp((double)a[r * columns + i] - max);
        for (int i = 0; i < columns; i++)
            assert_true(fabs((double)c[r * columns + i] -
                             exp((double)a[r * columns + i] - max) / sum) < 1e-5);
    }
    assert_int_equal(smp_math_softmax_forward(p, a, a), SMP_OK); /* in place */
    assert_memory_equal(a, c, (size_t)n * sizeof *c);
    assert_int_equal(smp_math_softmax_backward(p, a, b, c), SMP_OK);
    for (int r = 0; r < rows; r++) {
        double dot = 0;
        for (int i = r * columns; i < (r + 1) * columns; i++)
            dot += (double)a[i] * (double)b[i];
        for (int i = r * columns; i < (r + 1) * columns; i++)
            assert_true(fabs((double)c[i] - (double)a[i] * ((double)b[i] - dot)) < 1e-5);
    }
    smp_math_primitive_destroy(p);
}

static void test_math_softmax(void **state)
{
    (void)state;
    for (int columns = 1; columns < 100; columns += 7) {
        check_softmax(5, columns, 3);
        check_softmax(3, columns, 1e4f);
    }
}

static void test_math_names_its_library(void **state)
{
    (void)state;
    assert_non_null(strstr(smp_math_name(), "oneDNN "));
    smp_math_primitive_destroy(NULL);
}

static int count_threads(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder));)
        n += entry->d_name[0] != '.';
    closedir(folder);
    return n;
}

/* However many threads the host's OpenMP has: it has as many afterwards, and none was used. */
static void test_math_uses_one_thread_and_leaves_the_others(void **state)
{
    (void)state;
    enum { N = 256, THREADS = 4 };
    static float x[N * N], y[N * N], z[N * N];
    smp_math_primitive *softmax = NULL;
    const int threads = count_threads();
    omp_set_num_threads(THREADS);
    assert_int_equal(smp_math_gemm(false, false, N, N, N, 1, x, N, y, N, 0, z, N), SMP_OK);
    assert_int_equal(smp_math_softmax_create(N, N, true, &softmax), SMP_OK);
    assert_int_equal(smp_math_softmax_forward(softmax, x, y), SMP_OK);
    assert_int_equal(smp_math_softmax_backward(softmax, y, x, z), SMP_OK);
    smp_math_primitive_destroy(softmax);
    assert_int_equal(omp_get_max_threads(), THREADS);
    assert_int_equal(count_threads(), threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_math_gemm_matches_reference),
        cmocka_unit_test(test_math_gemm_bits_do_not_depend_on_alignment),
        cmocka_unit_test(test_math_gemm_reports_bad_strides),
        cmocka_unit_test(test_math_eltwise),
        cmocka_unit_test(test_math_softmax),
        cmocka_unit_test(test_math_names_its_library),
        cmocka_unit_test(test_math_uses_one_thread_and_leaves_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* graph/math/vector.h: every length around the lane count, the written-out order of sums, the
 * accuracy and the edges of the exponential. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/random.h"
#include "graph/math/vector.h"

enum { LONGEST = 70, COLUMNS = 600 };

static float random_float(uint64_t *state)
{
    *state = smp_random_mix(*state);
    return (float)((double)(*state >> 11) * 0x1p-52 - 1);
}

/* The order that the header promises, element by element. */
static float sum_in_order(const float *x, int64_t n)
{
    float lane[SMP_LANES] = {0};
    float tail[SMP_LANES] = {0};
    for (int64_t i = 0; i < n; i++) {
        if (i < n / SMP_LANES * SMP_LANES)
            lane[i % SMP_LANES] += x[i];
        else
            tail[i % SMP_LANES] = x[i];
    }
    for (int l = 0; l < SMP_LANES; l++)
        lane[l] += tail[l];
    for (int width = SMP_LANES / 2; width > 0; width /= 2)
        for (int l = 0; l < width; l++)
            lane[l] += lane[l + width];
    return lane[0];
}

static void test_vector_sums_have_one_order(void **state)
{
    uint64_t rng = 1;
    float x[LONGEST + 16], y[LONGEST + 16], product[LONGEST + 16], square[LONGEST];
    (void)state;
    for (int64_t n = 0; n <= LONGEST; n++)
        for (int shift = 0; shift < 16; shift += 5) { /* alignments */
            for (int64_t i = 0; i < n; i++) {
                x[shift + i] = random_float(&rng);
                y[shift + i] = random_float(&rng);
                product[i] = x[shift + i] * y[shift + i];
                square[i] = (x[shift + i] - 0.25f) * (x[shift + i] - 0.25f);
            }
            assert_true(smp__sum(x + shift, n) == sum_in_order(x + shift, n));
            assert_true(smp__dot(x + shift, y + shift, n) == sum_in_order(product, n));
            assert_true(smp__sum_squares(x + shift, 0.25f, n) == sum_in_order(square, n));
        }
}

static void test_vector_max_finds_any_place(void **state)
{
    float x[LONGEST];
    (void)state;
    for (int64_t n = 1; n <= LONGEST; n++)
        for (int64_t place = 0; place < n; place++) {
            for (int64_t i = 0; i < n; i++)
                x[i] = -1000 - (float)i;
            x[place] = -3;
            assert_true(smp__max(x, n) == -3);
        }
}

static void test_vector_elementwise(void **state)
{
    uint64_t rng = 2;
    float a[LONGEST] = {0}, b[LONGEST] = {0}, sum[LONGEST + 1], product[LONGEST + 1],
          scaled[LONGEST + 1];
    (void)state;
    for (int64_t n = 0; n <= LONGEST; n++) {
        for (int64_t i = 0; i < n; i++) {
            a[i] = random_float(&rng);
            scaled[i] = b[i] = random_float(&rng);
        }
        sum[n] = product[n] = scaled[n] = 77;
        smp__add(sum, a, b, n);
        smp__mul(product, a, b, n);
        smp__scale(scaled, 3, n);
        for (int64_t i = 0; i < n; i++)
            assert_true(sum[i] == a[i] + b[i] && product[i] == a[i] * b[i] &&
                        scaled[i] == b[i] * 3);
        smp__accumulate(sum, a, n);
        for (int64_t i = 0; i < n; i++)
            assert_true(sum[i] == (a[i] + b[i]) + a[i]);
        assert_true(sum[n] == 77 && product[n] == 77 && scaled[n] == 77);
    }
}

static void test_vector_column_sums(void **state)
{
    static float x[5 * (COLUMNS + 3)], total[COLUMNS];
    uint64_t rng = 3;
    (void)state;
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = random_float(&rng);
    for (int64_t columns = 1; columns <= COLUMNS; columns += 37) {
        for (int64_t c = 0; c < COLUMNS; c++)
            total[c] = 10;
        smp__column_sums(total, x, 5, columns, COLUMNS + 3);
        for (int64_t c = 0; c < COLUMNS; c++) {
            float sum = 0;
            for (int64_t r = 0; r < 5; r++)
                sum += x[r * (COLUMNS + 3) + c];
            assert_true(total[c] == (c < columns ? 10 + sum : 10));
        }
    }
}

static void test_vector_exp_is_accurate(void **state)
{
    double worst = 0;
    float x[64], y[64];
    (void)state;
    for (int k = 0; k < 2000; k++) {
        for (int i = 0; i < 64; i++)
            x[i] = -87.3f * (float)(k * 64 + i) / (2000.0f * 64);
        float sum = smp__exp_row(y, x, 0, 64);
        assert_true(sum == smp__exp_sum(x, 0, 64));
        for (int i = 0; i < 64; i++)
            worst = fmax(worst, fabs((double)y[i] / exp((double)x[i]) - 1));
    }
    assert_true(worst < 0x1p-22);
    x[0] = 0;
    smp__exp_row(y, x, 0, 1);
    assert_true(y[0] == 1);
}

static void test_vector_exp_edges(void **state)
{
    float x[] = {-INFINITY, -1e38f, -88.1f, NAN, -0.0f, 5}, y[6];
    (void)state;
    smp__exp_row(y, x, 5, 6);
    assert_true(y[0] == 0 && y[1] == 0 && y[2] == 0);
    assert_true(isnan(y[3]));
    assert_true(fabsf(y[4] - expf(-5)) < 1e-8f && y[5] == 1);
    smp__exp_row(x, x, 5, 6); /* in place */
    assert_memory_equal(x, y, sizeof x);
    assert_true(isnan(smp__exp_sum(y, 5, 6)));
}

/* Both sides of 0, every length, in place, and the edges. */
static void test_vector_sigmoid(void **state)
{
    uint64_t rng = 7;
    float x[LONGEST], y[LONGEST], e[LONGEST];
    (void)state;
    for (int n = 1; n <= LONGEST; n++) {
        for (int i = 0; i < n; i++)
            x[i] = random_float(&rng) * (i % 2 == 0 ? 2 : 80);
        smp__sigmoid(y, x, n);
        smp__exp_magnitude(e, x, n);
        for (int i = 0; i < n; i++) {
            assert_true(fabs((double)y[i] * (1 + exp(-(double)x[i])) - 1) < 0x1p-21);
            assert_true(fabs((double)e[i] * exp(fabs((double)x[i])) - 1) < 0x1p-22);
        }
        smp__sigmoid(x, x, n);
        assert_memory_equal(x, y, (size_t)n * sizeof *x);
    }
    float edge[] = {-INFINITY, -1e4f, -0.0f, 0, 1e4f, INFINITY, NAN};
    smp__exp_magnitude(e, edge, 7);
    assert_true(e[0] == 0 && e[1] == 0 && e[2] == 1 && e[3] == 1 && e[4] == 0 && e[5] == 0);
    assert_true(isnan(e[6]));
    smp__sigmoid(y, edge, 7);
    assert_true(y[0] == 0 && y[1] == 0 && y[2] == 0.5f && y[3] == 0.5f && y[4] == 1 && y[5] == 1);
    assert_true(isnan(y[6]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vector_sums_have_one_order),
        cmocka_unit_test(test_vector_max_finds_any_place),
        cmocka_unit_test(test_vector_elementwise),
        cmocka_unit_test(test_vector_column_sums),
        cmocka_unit_test(test_vector_exp_is_accurate),
        cmocka_unit_test(test_vector_exp_edges),
        cmocka_unit_test(test_vector_sigmoid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

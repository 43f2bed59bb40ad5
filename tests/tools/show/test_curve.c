/* Curves of a run: thinned, they still know the least, the greatest and the mean of every step. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tools/show/picture_model.h"

static smp_curve curve;

static double value_at(int64_t step)
{
    return step % 97 == 0 ? NAN : (double)(step * 7919 % 1000) + 1.0;
}

/* Every point against the steps that it stands for. */
static void check(int64_t first, int64_t last)
{
    int64_t step = first, counted = 0;
    assert_in_range(curve.n, 1, SMP_CURVE_POINTS);
    assert_int_equal(curve.first, first);
    assert_int_equal(curve.last, last);
    for (int i = 0; i < curve.n; i++) {
        double low = INFINITY, high = -INFINITY, sum = 0.0;
        int64_t count = 0;
        for (int64_t k = 0; k < curve.stride && step <= last; k++, step++) {
            if (isnan(value_at(step)))
                continue;
            low = fmin(low, value_at(step));
            high = fmax(high, value_at(step));
            sum += value_at(step);
            count++;
        }
        assert_true(low == curve.low[i] && high == curve.high[i] && sum == curve.sum[i]);
        assert_int_equal(curve.count[i], count);
        counted += count;
    }
    assert_int_equal(step, last + 1);
    assert_true(counted > 0);
}

static void test_curve_thins(void **state)
{
    static const int64_t lengths[] = {1, 2, 599, 600, 601, 1199, 1201, 4801, 100000};
    (void)state;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        memset(&curve, 0, sizeof(curve));
        for (int64_t step = 13; step < 13 + lengths[i]; step++)
            smp_curve_add(&curve, step, value_at(step));
        check(13, 12 + lengths[i]);
        assert_int_equal(curve.stride == 1, lengths[i] <= SMP_CURVE_POINTS);
    }
}

/* Evaluations come far apart: points between them are empty. */
static void test_curve_gaps(void **state)
{
    int64_t counted = 0;
    (void)state;
    memset(&curve, 0, sizeof(curve));
    for (int64_t step = 1000; step <= 1000000; step += 1000)
        smp_curve_add(&curve, step, (double)step);
    for (int i = 0; i < curve.n; i++)
        counted += curve.count[i];
    assert_int_equal(counted, 1000);
    assert_true(curve.low[0] == 1000.0 && curve.high[curve.n - 1] == 1e6);
}

/* A page stays small whatever comes: also values that are all the same, huge, or none at all. */
static void test_curve_page(void **state)
{
    static smp_run_record run;
    smp_text html = {0};
    (void)state;
    memset(&run, 0, sizeof(run));
    smp_run_record_html(&run, &html);
    assert_null(strstr(html.data, "<svg"));
    for (int64_t step = 1; step <= 300000; step++) {
        smp_curve_add(&run.loss, step, 1e300);
        smp_curve_add(&run.lr, step, 0.0);
        smp_curve_add(&run.grad_norm, step, step % 2 ? INFINITY : 1e-300);
        smp_curve_add(&run.bubble, step, value_at(step) / 1001.0);
        smp_curve_add(&run.samples_per_s, step, -value_at(step));
    }
    smp_text_free(&html);
    smp_run_record_html(&run, &html);
    assert_false(html.failed);
    assert_true(html.length < 400000);
    assert_null(strstr(html.data, "nan"));
    assert_null(strstr(html.data, "inf"));
    int figures = 0;
    for (const char *at = html.data; (at = strstr(at, "<svg")); at++)
        figures++;
    assert_int_equal(figures, 5);
    smp_text_free(&html);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_curve_thins),
        cmocka_unit_test(test_curve_gaps),
        cmocka_unit_test(test_curve_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

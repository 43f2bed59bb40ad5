/* graph/math/convolution.h against sums in double, on shapes that take several chunks of samples,
 * blocks of lines, and every way that there is; what calls overwrite, add to, and leave alone. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dnnl.h>

#include "graph/base/random.h"
#include "graph/math/convolution.h"
#include "graph/math/convolution_direct.h"
#include "graph/math/convolution_planes.h"
#include "graph/math/convolution_gemm.h"
#include "graph/math/half.h"

enum { GUARD = 16 };

static float *make(int64_t n, uint64_t seed)
{
    float *x = aligned_alloc(64, (size_t)(n * 4 + 63 + GUARD * 4) / 64 * 64);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)((double)(smp_random_mix((seed << 40) + (uint64_t)i) >> 11) * 0x1p-52 - 1);
    return x;
}

typedef struct arrays {
    smp_convolution_shape shape;
    int64_t n_x, n_w, n_y, n_workspace;
    float *x, *w, *bias, *y, *dx, *dw, *workspace; /* dw starts as w */
} arrays;

static arrays arrays_make(const smp_convolution_shape *s)
{
    arrays a = {.shape = *s};
    a.n_x = s->batch * s->in[0] * s->in[1] * s->in[2];
    a.n_y = s->batch * s->out[0] * s->out[1] * s->out[2];
    a.n_w = s->out[0] * smp_convolution_taps(s);
    a.x = make(a.n_x, 1);
    a.w = make(a.n_w, 2);
    a.bias = make(s->out[0], 3);
    a.y = make(a.n_y, 4);
    a.dx = make(a.n_x, 5);
    a.dw = make(a.n_w, 2);
    return a;
}

static void arrays_free(arrays *a)
{
    float *all[] = {a->x, a->w, a->bias, a->y, a->dx, a->dw, a->workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* What the next calls may take. */
static void provide(arrays *a, int64_t bytes)
{
    free(a->workspace);
    a->n_workspace = (bytes + 3) / 4;
    a->workspace = make(a->n_workspace, 6);
}

/* Before every call: nothing of the workspace may be read before it is written, or written behind
 * its end. */
static void *poison(const arrays *a)
{
    for (int64_t i = 0; i < a->n_workspace; i++)
        a->workspace[i] = NAN;
    for (int64_t i = 0; i < GUARD; i++)
        a->workspace[a->n_workspace + i] = 77;
    return a->workspace;
}

static void check_guard(const arrays *a)
{
    for (int64_t i = 0; i < GUARD; i++)
        assert_true(a->workspace[a->n_workspace + i] == 77);
}

/* Where the window of an output has its tap: the pixel of x, or -1. */
static int64_t pixel(const smp_convolution_shape *s, const int64_t at[4], int64_t channel,
                     int64_t ky, int64_t kx)
{
    const int64_t y = at[2] * s->stride[0] + ky * s->dilation[0] - s->padding[0];
    const int64_t x = at[3] * s->stride[1] + kx * s->dilation[1] - s->padding[1];
    if (y < 0 || y >= s->in[1] || x < 0 || x >= s->in[2])
        return -1;
    const int64_t group = at[1] / (s->out[0] / s->groups);
    const int64_t plane = at[0] * s->in[0] + group * (s->in[0] / s->groups) + channel;
    return (plane * s->in[1] + y) * s->in[2] + x;
}

/* Calls f for every output, tap and pixel that go together: the definition. */
static void for_each_term(const arrays *a, void (*f)(void *to, int64_t y, int64_t w, int64_t x),
                          void *to)
{
    const smp_convolution_shape *s = &a->shape;
    for (int64_t y = 0; y < a->n_y; y++) {
        const int64_t plane = y / (s->out[1] * s->out[2]);
        const int64_t at[4] = {plane / s->out[0], plane % s->out[0], y / s->out[2] % s->out[1],
                               y % s->out[2]};
        int64_t w = at[1] * smp_convolution_taps(s);
        for (int64_t c = 0; c < s->in[0] / s->groups; c++)
            for (int64_t ky = 0; ky < s->kernel[0]; ky++)
                for (int64_t kx = 0; kx < s->kernel[1]; kx++, w++) {
                    const int64_t x = pixel(s, at, c, ky, kx);
                    if (x >= 0)
                        f(to, y, w, x);
                }
    }
}

typedef struct sums {
    const arrays *a;
    double *y, *dx, *dw;
} sums;

static void add_term(void *to, int64_t y, int64_t w, int64_t x)
{
    const sums *s = to;
    const arrays *a = s->a;
    s->y[y] += (double)a->x[x] * (double)a->w[w];
    s->dx[x] += (double)a->y[y] * (double)a->w[w]; /* y as dy: it is not yet written */
    s->dw[w] += (double)a->y[y] * (double)a->x[x];
}

static sums sums_make(const arrays *a)
{
    sums s = {a, calloc((size_t)a->n_y, 8), calloc((size_t)a->n_x, 8), calloc((size_t)a->n_w, 8)};
    assert_true(s.y && s.dx && s.dw);
    for_each_term(a, add_term, &s);
    for (int64_t i = 0; i < a->n_y; i++)
        s.y[i] += (double)a->bias[i / (a->shape.out[1] * a->shape.out[2]) % a->shape.out[0]];
    for (int64_t i = 0; i < a->n_w; i++)
        s.dw[i] += (double)a->w[i];
    return s;
}

static void check_within(const char *what, const float *got, const double *want, int64_t n,
                         double tolerance)
{
    double scale = 1;
    for (int64_t i = 0; i < n; i++)
        scale = fmax(scale, fabs(want[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tolerance * scale))
            fail_msg("%s[%lld] is %.9g, expected %.9g", what, (long long)i, (double)got[i],
                     want[i]);
}

static void check_values(const char *what, const float *got, const double *want, int64_t n)
{
    check_within(what, got, want, n, 1e-5);
}

static void check_products(arrays *a, const sums *want, float *y)
{
    const smp_convolution_shape *s = &a->shape;
    provide(a, smp__convolution_gemm_workspace(s));
    assert_int_equal(smp__convolution_gemm_backward_input(s, a->y, a->w, a->dx, poison(a)), SMP_OK);
    check_guard(a);
    memcpy(a->dw, a->w, (size_t)a->n_w * sizeof(float));
    assert_int_equal(smp__convolution_gemm_backward_weight(s, a->x, a->y, a->dw, poison(a)),
                     SMP_OK);
    check_guard(a);
    assert_int_equal(smp__convolution_gemm_forward(s, a->x, a->w, a->bias, y, poison(a)), SMP_OK);
    check_guard(a);
    check_values("y by products", y, want->y, a->n_y);
    check_values("dx by products", a->dx, want->dx, a->n_x);
    check_values("dw by products", a->dw, want->dw, a->n_w);
}

static void check_planes(arrays *a, const sums *want, float *y)
{
    const smp_convolution_shape *s = &a->shape;
    provide(a, smp__planes_workspace(s));
    smp__planes_backward_input(s, a->y, a->w, a->dx, poison(a));
    check_guard(a);
    memcpy(a->dw, a->w, (size_t)a->n_w * sizeof(float));
    smp__planes_backward_weight(s, a->x, a->y, a->dw, poison(a));
    check_guard(a);
    smp__planes_forward(s, a->x, a->w, a->bias, y, poison(a));
    check_guard(a);
    check_values("y by planes", y, want->y, a->n_y);
    check_values("dx by planes", a->dx, want->dx, a->n_x);
    check_values("dw by planes", a->dw, want->dw, a->n_w);
}

static uint16_t *round_all(float *x, int64_t n)
{
    uint16_t *half = malloc((size_t)n * sizeof *half + 1);
    assert_non_null(half);
    smp__to_bf16(half, x, n);
    smp__from_bf16(x, half, n);
    return half;
}

/* bf16 in and out, of values that it holds: the results are rounded once, those in fp32 never. */
static void check_half(const smp_convolution_shape *shape)
{
    smp_convolution_shape s = *shape;
    s.half = true;
    arrays a = arrays_make(&s);
    uint16_t *x = round_all(a.x, a.n_x), *dy = round_all(a.y, a.n_y), *w16 = round_all(a.w, a.n_w);
    uint16_t *y = round_all(a.y, a.n_y), *dx = round_all(a.dx, a.n_x);
    sums want = sums_make(&a);
    smp_convolution *c = NULL;
    const smp_convolution_weights w = {.fp32 = a.w, .bf16 = w16};
    memcpy(a.dw, a.w, (size_t)a.n_w * sizeof(float));
    provide(&a, smp_convolution_workspace(&s));
    assert_int_equal(smp_convolution_create(&s, true, true, &c), SMP_OK);
    assert_int_equal(smp_convolution_backward_input(c, dy, w, dx, poison(&a)), SMP_OK);
    check_guard(&a);
    assert_int_equal(smp_convolution_backward_weight(c, x, dy, a.dw, poison(&a)), SMP_OK);
    check_guard(&a);
    assert_int_equal(smp_convolution_forward(c, x, w, a.bias, y, poison(&a)), SMP_OK);
    check_guard(&a);
    smp_convolution_destroy(c);
    smp__from_bf16(a.y, y, a.n_y);
    smp__from_bf16(a.dx, dx, a.n_x);
    check_within("y in bf16", a.y, want.y, a.n_y, 0x1p-8);
    check_within("dx in bf16", a.dx, want.dx, a.n_x, 0x1p-8);
    check_values("dw in bf16", a.dw, want.dw, a.n_w);
    void *all[] = {x, dy, w16, y, dx, want.y, want.dx, want.dw};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    arrays_free(&a);
}

/* 1 where a shape says nothing, and what follows from it. */
static smp_convolution_shape complete(smp_convolution_shape s)
{
    s.groups = s.groups > 0 ? s.groups : 1;
    for (int i = 0; i < 2; i++) {
        s.kernel[i] = s.kernel[i] > 0 ? s.kernel[i] : 1;
        s.stride[i] = s.stride[i] > 0 ? s.stride[i] : 1;
        s.dilation[i] = s.dilation[i] > 0 ? s.dilation[i] : 1;
        const int64_t window = s.dilation[i] * (s.kernel[i] - 1) + 1;
        s.out[1 + i] = (s.in[1 + i] + 2 * s.padding[i] - window) / s.stride[i] + 1;
    }
    return s;
}

static void check_shape(const smp_convolution_shape *s)
{
    arrays a = arrays_make(s);
    sums want = sums_make(&a);
    float *y = make(a.n_y, 9);
    smp_convolution *c = NULL;
    const smp_convolution_weights w = {.fp32 = a.w};
    provide(&a, smp_convolution_workspace(s));
    assert_int_equal(smp_convolution_create(s, true, true, &c), SMP_OK);
    assert_int_equal(smp_convolution_backward_input(c, a.y, w, a.dx, poison(&a)), SMP_OK);
    check_guard(&a);
    assert_int_equal(smp_convolution_backward_weight(c, a.x, a.y, a.dw, poison(&a)), SMP_OK);
    check_guard(&a);
    assert_int_equal(smp_convolution_forward(c, a.x, w, a.bias, y, poison(&a)), SMP_OK);
    check_guard(&a);
    smp_convolution_destroy(c);
    check_values("y", y, want.y, a.n_y);
    check_values("dx", a.dx, want.dx, a.n_x);
    check_values("dw", a.dw, want.dw, a.n_w);
    check_products(&a, &want, y);
    if (smp__planes_fit(s))
        check_planes(&a, &want, y);
    free(y);
    free(want.y);
    free(want.dx);
    free(want.dw);
    arrays_free(&a);
}

static void test_convolution_matches_reference(void **state)
{
    static const smp_convolution_shape shapes[] = {
        /* several chunks of samples, of two and of one */
        {.batch = 6, .in = {3, 90, 91}, .out = {16}, .kernel = {3, 3}, .padding = {1, 1}},
        {.batch = 7, .in = {3, 90, 91}, .out = {16}, .kernel = {2, 3}, .stride = {2, 1}},
        /* products in several blocks of lines */
        {.batch = 1, .in = {32, 40, 40}, .out = {8}, .kernel = {5, 5}, .padding = {2, 2}},
        {.batch = 1,
         .in = {40, 17, 30},
         .out = {6},
         .kernel = {7, 3},
         .padding = {3, 1},
         .stride = {1, 2}},
        /* of which one line is more than a block */
        {.batch = 1, .in = {30, 5, 1100}, .out = {2}, .kernel = {3, 3}},
        /* pointwise, on few places and many, and with strides, which gather */
        {.batch = 3, .in = {48, 7, 7}, .out = {32}},
        {.batch = 2, .in = {16, 33, 32}, .out = {32}},
        {.batch = 2, .in = {32, 15, 16}, .out = {48}, .stride = {2, 3}},
        {.batch = 2, .in = {16, 64, 66}, .out = {16}, .stride = {2, 2}},
        /* groups: depthwise, blocks, and what has no layout of its own */
        {.batch = 2,
         .in = {24, 9, 10},
         .out = {24},
         .groups = 24,
         .kernel = {3, 3},
         .padding = {1, 1}},
        {.batch = 2, .in = {32, 9, 10}, .out = {64}, .groups = 2, .kernel = {3, 3}},
        {.batch = 2,
         .in = {15, 9, 10},
         .out = {10},
         .groups = 5,
         .kernel = {3, 3},
         .dilation = {2, 1}},
        /* narrow groups on wide lines; with strides, unequal ones, gaps, lines left over */
        {.batch = 2,
         .in = {8, 6, 30},
         .out = {12},
         .groups = 2,
         .kernel = {3, 3},
         .padding = {1, 1}},
        {.batch = 2,
         .in = {6, 9, 70},
         .out = {18},
         .groups = 3,
         .kernel = {2, 5},
         .stride = {3, 2},
         .padding = {2, 1}},
        {.batch = 1,
         .in = {9, 20, 21},
         .out = {9},
         .groups = 9,
         .kernel = {3, 2},
         .stride = {2, 4},
         .dilation = {3, 3}},
        {.batch = 3, .in = {24, 5, 5}, .out = {24}, .groups = 2, .kernel = {1, 1}},
        /* windows that lie in the padding alone */
        {.batch = 2, .in = {5, 3, 4}, .out = {7}, .kernel = {2, 2}, .padding = {4, 5}},
        {.batch = 1, .in = {1, 1, 1}, .out = {1}, .padding = {1, 2}, .stride = {2, 2}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const smp_convolution_shape s = complete(shapes[i]);
        check_shape(&s);
        if (smp_math_has_bf16())
            check_half(&s);
    }
}

/* A chunk of samples at a time: micro-batches of any size take what one of these samples takes. */
static void test_convolution_workspace_is_bounded(void **state)
{
    (void)state;
    smp_convolution_shape s = complete((smp_convolution_shape){
        .in = {3, 224, 224}, .out = {64}, .kernel = {7, 7}, .stride = {2, 2}, .padding = {3, 3}});
    s.batch = 1;
    const int64_t bytes = smp_convolution_workspace(&s);
    s.batch = 64;
    assert_int_equal(smp_convolution_workspace(&s), bytes);
    assert_true(bytes < 8 << 20);
    /* One product a pass, which needs none. */
    s = complete((smp_convolution_shape){.batch = 4, .in = {512, 28, 28}, .out = {128}});
    assert_int_equal(smp_convolution_workspace(&s), 0);
}

static void check_direct(const smp_convolution_shape *s)
{
    for (int d = SMP__FORWARD; d <= SMP__BACKWARD_WEIGHT; d++) {
        smp__direct *direct = NULL;
        assert_int_equal(smp__direct_create(s, (smp__direction)d, true, &direct), SMP_OK);
        assert_non_null(direct);
        smp__direct_destroy(direct);
    }
}

/* That is what makes them fast: nothing that a plan allows them may keep them out. */
static void test_convolution_is_direct_where_it_can_be(void **state)
{
    static const smp_convolution_shape shapes[] = {
        {.batch = 8, .in = {64, 56, 56}, .out = {64}, .kernel = {3, 3}, .padding = {1, 1}},
        {.batch = 2, .in = {512, 7, 7}, .out = {512}, .kernel = {3, 3}, .padding = {1, 1}},
        {.batch = 3, .in = {256, 56, 56}, .out = {16}, .stride = {2, 2}},
        {.batch = 1, .in = {72, 14, 14}, .out = {72}, .groups = 72, .kernel = {3, 3}},
        {.batch = 2, .in = {1024, 14, 14}, .out = {256}},
        {.batch = 2, .in = {48, 7, 7}, .out = {32}, .kernel = {3, 3}, .padding = {1, 1}},
        {.batch = 1, .in = {64, 9, 33}, .out = {32}, .kernel = {3, 3}, .stride = {2, 2}},
    };
    (void)state;
    if ((dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx2) != dnnl_cpu_isa_avx2)
        skip();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        smp_convolution_shape s = complete(shapes[i]);
        check_direct(&s);
        s.half = smp_math_has_bf16();
        check_direct(&s);
    }
}

/* Narrow groups have no layout; sizes that their code cannot count, or that oneDNN would refuse: no
 * direct one, and no failure. */
static void test_convolution_is_not_direct_elsewhere(void **state)
{
    static const smp_convolution_shape shapes[] = {
        {.batch = 2, .in = {15, 9, 10}, .out = {10}, .groups = 5, .kernel = {3, 3}},
        {.batch = 1, .in = {1, 50000, 50000}, .out = {1}},
        {.batch = 1, .in = {1, 5, 5}, .out = {1}, .kernel = {5, 5}, .stride = {1 << 30, 1 << 30}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const smp_convolution_shape s = complete(shapes[i]);
        for (int d = SMP__FORWARD; d <= SMP__BACKWARD_WEIGHT; d++) {
            smp__direct *direct = NULL;
            assert_int_equal(smp__direct_create(&s, (smp__direction)d, false, &direct), SMP_OK);
            assert_null(direct);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolution_matches_reference),
        cmocka_unit_test(test_convolution_workspace_is_bounded),
        cmocka_unit_test(test_convolution_is_direct_where_it_can_be),
        cmocka_unit_test(test_convolution_is_not_direct_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The kernels over a rank's arena, on a GPU or its emulation: sums, rounding and optimizers against
 * the same in plain C, bit for bit where the arithmetic is the same; for every length around a
 * 16-byte access, and for addresses that allow none. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

#include "exec/cuda/cuda_kernels.h"
#include "exec/optimizer/cuda_optimizer.h"
#include "exec/optimizer/optimizer.h"
#include "graph/base/fp16.h"
#include "graph/base/random.h"

enum { GUARD = 64 }; /* bytes around an array that must stay as they are */

static const int64_t LENGTHS[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 255, 1024, 1027, 4096, 70001};
enum { N_LENGTH = sizeof LENGTHS / sizeof *LENGTHS, MANY_WEIGHTS = 150 };

static cudaStream_t stream;

static void ok(cudaError_t code)
{
    if (code != cudaSuccess)
        fail_msg("%s", cudaGetErrorString(code));
}

static void done(smp_status status)
{
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
}

/* Device memory with a guard on either side; `shift` bytes past a 256-byte boundary. */
typedef struct array {
    char *raw;
    void *data;
    size_t bytes;
} array;

static array array_make(const void *values, int64_t bytes, int shift)
{
    array a = {.bytes = (size_t)bytes};
    const size_t total = a.bytes + (size_t)shift + 256 + GUARD;
    ok(cudaMalloc((void **)&a.raw, total));
    a.data = a.raw + 256 + shift;
    ok(cudaMemsetAsync(a.raw, 0xA5, total, stream));
    if (bytes > 0)
        ok(cudaMemcpyAsync(a.data, values, a.bytes, cudaMemcpyHostToDevice, stream));
    ok(cudaStreamSynchronize(stream));
    return a;
}

static void array_read(const array *a, void *values)
{
    ok(cudaStreamSynchronize(stream));
    if (a->bytes > 0)
        ok(cudaMemcpy(values, a->data, a->bytes, cudaMemcpyDeviceToHost));
}

static void array_free(array *a)
{
    unsigned char guard[2 * GUARD];
    char *data = a->data;
    ok(cudaStreamSynchronize(stream));
    ok(cudaMemcpy(guard, data - GUARD, GUARD, cudaMemcpyDeviceToHost));
    ok(cudaMemcpy(guard + GUARD, data + a->bytes, GUARD, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 2 * GUARD; i++)
        assert_int_equal(guard[i], 0xA5);
    ok(cudaFree(a->raw));
}

/* In [-1, 1), a function of its arguments, of magnitudes from 2^-20 up. */
static float value(uint64_t series, int64_t i)
{
    const uint64_t bits = smp_random_mix(series << 40 ^ (uint64_t)i);
    const float x = 2.0f * smp_random_uniform((uint32_t)bits) - 1.0f;
    return ldexpf(x, -(int)(bits >> 60));
}

static float *values_make(uint64_t series, int64_t n)
{
    float *x = malloc((size_t)(n + 1) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = value(series, i);
    return x;
}

static uint16_t round16(smp_dtype half, float x) /* to nearest even; of bf16 not for NaN */
{
    uint32_t bits;
    if (half == SMP_F16)
        return smp_fp16_narrow(x);
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static float wide(smp_dtype half, uint16_t x)
{
    if (half == SMP_F16)
        return smp_fp16_widen(x);
    const uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

static const smp_dtype HALVES[] = {SMP_BF16, SMP_F16};

static void check_add(int64_t n, int target_shift, int source_shift)
{
    float *a = values_make(1, n), *b = values_make(2, n), *got = values_make(3, n);
    array target = array_make(a, n * 4, 4 * target_shift);
    array source = array_make(b, n * 4, 4 * source_shift);
    done(smp__cuda_accumulate(stream, SMP_F32, target.data, source.data, n));
    array_read(&target, got);
    for (int64_t i = 0; i < n; i++)
        assert_true(got[i] == a[i] + b[i]);
    array_free(&target);
    array_free(&source);
    free(a);
    free(b);
    free(got);
}

static void check_add16(smp_dtype half, int64_t n, int target_shift, int source_shift)
{
    uint16_t *a = malloc((size_t)(n + 1) * 2), *b = malloc((size_t)(n + 1) * 2);
    uint16_t *got = malloc((size_t)(n + 1) * 2);
    assert_true(a && b && got);
    for (int64_t i = 0; i < n; i++) {
        a[i] = round16(half, value(1, i));
        b[i] = round16(half, value(2, i));
    }
    array target = array_make(a, n * 2, 2 * target_shift);
    array source = array_make(b, n * 2, 2 * source_shift);
    done(smp__cuda_accumulate(stream, half, target.data, source.data, n));
    array_read(&target, got);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(got[i], round16(half, wide(half, a[i]) + wide(half, b[i])));
    array_free(&target);
    array_free(&source);
    free(a);
    free(b);
    free(got);
}

static void test_cuda_add(void **state)
{
    (void)state;
    for (int i = 0; i < N_LENGTH; i++) {
        check_add(LENGTHS[i], 0, 0);
        check_add(LENGTHS[i], 1, 0);
        check_add(LENGTHS[i], 2, 3);
        for (int k = 0; k < 2; k++) {
            check_add16(HALVES[k], LENGTHS[i], 0, 0);
            check_add16(HALVES[k], LENGTHS[i], 1, 0);
            check_add16(HALVES[k], LENGTHS[i], 4, 4);
        }
    }
}

static void check_round16(smp_dtype half, const float *x, int64_t n, int target_shift,
                          int source_shift)
{
    uint16_t *got = malloc((size_t)(n + 1) * 2);
    assert_non_null(got);
    array source = array_make(x, n * 4, 4 * source_shift);
    array target = array_make(got, n * 2, 2 * target_shift);
    done(smp__cuda_round16(stream, half, &(smp__conversion){target.data, source.data, n}, 1));
    array_read(&target, got);
    for (int64_t i = 0; i < n; i++) {
        if (isnan(x[i]))
            assert_true(isnan(wide(half, got[i])));
        else
            assert_int_equal(got[i], round16(half, x[i]));
    }
    array_free(&source);
    array_free(&target);
    free(got);
}

static void test_cuda_round16(void **state)
{
    (void)state;
    const float special[] = {0.0f,      -0.0f,      INFINITY,   -INFINITY, NAN,       -NAN,
                             0x1p-149f, -0x1p-133f, 0x1p-134f,  3.4e38f,   0x1.01p0f, 0x1.03p0f,
                             1e-40f,    0x1.ffp0f,  -0x1.ffp3f, 0x1.008p0f};
    for (int i = 0; i < N_LENGTH; i++) {
        float *x = values_make(5, LENGTHS[i]);
        for (int k = 0; k < 2; k++) {
            check_round16(HALVES[k], x, LENGTHS[i], 0, 0);
            check_round16(HALVES[k], x, LENGTHS[i], 1, 0);
            check_round16(HALVES[k], x, LENGTHS[i], 4, 1);
        }
        free(x);
    }
    for (int k = 0; k < 2; k++) {
        check_round16(HALVES[k], special, sizeof special / sizeof *special, 0, 0);
        check_round16(HALVES[k], special, sizeof special / sizeof *special, 0, 1);
    }
}

/* The pieces' sums, added. */
static double device_square_sum(const float *x, int64_t n, int shift)
{
    const int64_t pieces = (n + SMP_SQUARE_PIECE - 1) / SMP_SQUARE_PIECE;
    double *sum, result = 0.0;
    array values = array_make(x, n * 4, 4 * shift);
    ok(cudaMallocHost((void **)&sum, (size_t)(pieces + 1) * sizeof *sum));
    for (int64_t i = 0; i <= pieces; i++)
        sum[i] = NAN;
    done(smp__cuda_square_sums(stream, SMP_F32, &(smp_squares){values.data, n, sum}, 1));
    ok(cudaStreamSynchronize(stream));
    for (int64_t i = 0; i < pieces; i++)
        result += sum[i];
    assert_true(isnan(sum[pieces]));
    array_free(&values);
    ok(cudaFreeHost(sum));
    return result;
}

static void test_cuda_square_sum(void **state)
{
    (void)state;
    const int64_t more[] = {16384, 16385, 100003, 100 * INT64_C(16384) + 16391};
    for (int i = 0; i < N_LENGTH + 4; i++) {
        const int64_t n = i < N_LENGTH ? LENGTHS[i] : more[i - N_LENGTH];
        float *x = values_make(6, n);
        long double expected = 0;
        for (int64_t k = 0; k < n; k++)
            expected += (long double)x[k] * (long double)x[k];
        const double got = device_square_sum(x, n, 0);
        assert_true(fabsl((long double)got - expected) <= 1e-13L * expected);
        if (n < 1000000) /* the same bits wherever the array lies */
            assert_true(got == device_square_sum(x, n, 1 + i % 3));
        free(x);
    }
}

static void test_cuda_square_sum_of_bf16(void **state)
{
    (void)state;
    enum { MANY = SMP_SQUARE_PIECE + 1027 };
    static uint16_t narrow[MANY];
    double *sum, expected[2] = {0};
    ok(cudaMallocHost((void **)&sum, 2 * sizeof *sum));
    for (int i = 0; i < MANY; i++) {
        narrow[i] = round16(SMP_BF16, value(8, i));
        expected[i / SMP_SQUARE_PIECE] +=
            (double)wide(SMP_BF16, narrow[i]) * wide(SMP_BF16, narrow[i]);
    }
    for (int shift = 0; shift < 2; shift++) {
        array values = array_make(narrow, sizeof narrow, 2 * shift);
        done(smp__cuda_square_sums(stream, SMP_BF16, &(smp_squares){values.data, MANY, sum}, 1));
        ok(cudaStreamSynchronize(stream));
        for (int i = 0; i < 2; i++)
            assert_true(fabs(sum[i] - expected[i]) <= 1e-12 * expected[i]);
        array_free(&values);
    }
    ok(cudaFreeHost(sum));
}

static void test_cuda_square_sum_of_extremes(void **state)
{
    (void)state;
    const float large[] = {3e38f, -3e38f, 1.0f, 2e-38f, 0.0f};
    const double got = device_square_sum(large, 5, 0);
    assert_true(fabs(got - 2 * (double)3e38f * (double)3e38f) <= 1e-14 * got);
    const float tiny[] = {0x1p-149f, 0x1p-149f, 0.0f};
    assert_true(device_square_sum(tiny, 3, 0) == 0x1p-297);
    const float bad[] = {1.0f, NAN, 2.0f};
    assert_true(isnan(device_square_sum(bad, 3, 0)));
}

/* The arrays of one optimizer on the host and on the device. */
typedef struct weights {
    int64_t n;
    float *host[4], *got; /* weight, gradient, states */
    uint16_t *got16;
    array on_device[4], copy16;
} weights;

static void weights_open(weights *w, int64_t n, int shift)
{
    *w = (weights){.n = n};
    for (int i = 0; i < 4; i++) {
        w->host[i] = values_make(10 + (uint64_t)i, n);
        if (i >= 2)
            memset(w->host[i], 0, (size_t)n * sizeof(float));
        w->on_device[i] = array_make(w->host[i], n * 4, i == shift - 1 ? 4 : 0);
    }
    w->got = values_make(20, n);
    w->got16 = malloc((size_t)(n + 1) * sizeof *w->got16);
    assert_non_null(w->got16);
    memset(w->got16, 0xff, (size_t)n * sizeof *w->got16);
    w->copy16 = array_make(w->got16, n * 2, shift == 5 ? 2 : 0);
}

static void weights_close(weights *w)
{
    for (int i = 0; i < 4; i++) {
        array_free(&w->on_device[i]);
        free(w->host[i]);
    }
    array_free(&w->copy16);
    free(w->got);
    free(w->got16);
}

static void weights_compare(weights *w, smp_dtype half, const char *name)
{
    for (int i = 0; i < 4; i++) {
        array_read(&w->on_device[i], w->got);
        if (memcmp(w->got, w->host[i], (size_t)w->n * sizeof(float)) != 0)
            fail_msg("%s: not the bits of the CPU in array %d of %lld", name, i, (long long)w->n);
    }
    array_read(&w->copy16, w->got16);
    for (int64_t i = 0; i < w->n; i++)
        assert_int_equal(w->got16[i], half != SMP_F32 ? round16(half, w->host[0][i]) : 0xffff);
}

/* shift: which array lies off the 16-byte boundaries, from 1 (5: the copy); 0: none. half: of the
 * copy; SMP_F32: there is none. */
static void check_update(const smp_optimizer *optimizer, int64_t n, int shift, smp_dtype half)
{
    smp_update_settings settings = {
        .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .momentum = 0.9f};
    weights w;
    weights_open(&w, n, shift);
    for (int64_t step = 1; step <= 4; step++) {
        settings.weight_decay = step < 3 ? 0.1f : 0.0f;
        settings.nesterov = step % 2 == 0;
        smp_update u = {.weight = w.host[0],
                        .grad = w.host[1],
                        .state = {w.host[2], w.host[3]},
                        .elements = n,
                        .grad_scale = step % 2 ? 1.0f : 0.37f,
                        .lr = 0.01f * (float)step,
                        .trust = 0.3f * (float)step,
                        .step = step < 4 ? step : INT64_C(1) << 40,
                        .settings = &settings};
        u.direction = w.host[1];
        if (optimizer->measure)
            optimizer->measure(&u);
        u.direction = NULL;
        optimizer->update(&u);
        u.weight = w.on_device[0].data;
        u.grad = w.on_device[1].data;
        u.state[0] = w.on_device[2].data;
        u.state[1] = w.on_device[3].data;
        u.weight16 = half != SMP_F32 ? w.copy16.data : NULL;
        u.half = half;
        u.direction = w.on_device[1].data;
        if (optimizer->measure)
            done(smp__cuda_optimizer_of(optimizer)->measure(&u, stream));
        u.direction = NULL;
        done(smp__cuda_optimizer_of(optimizer)->update(&u, stream));
    }
    weights_compare(&w, half, optimizer->name);
    weights_close(&w);
}

/* The same with states in bf16, two of them next to each other. */
static void check_update16(const smp_optimizer *optimizer, int64_t n, int shift,
                           smp_state_rounding rounding)
{
    const smp_update_settings settings = {
        .weight_decay = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .momentum = 0.9f};
    float *host[2] = {values_make(30, n), values_make(31, n)}, *got = values_make(32, n);
    uint16_t *states = calloc(4 * (size_t)n + 1, sizeof *states), *got16 = states + 2 * n;
    assert_non_null(states);
    array on_device[4];
    for (int i = 0; i < 2; i++) {
        on_device[i] = array_make(host[i], n * 4, i == shift - 1 ? 4 : 0);
        on_device[2 + i] = array_make(states + i * n, n * 2, i == shift - 3 ? 2 : 0);
    }
    for (int64_t step = 1; step <= 3; step++) {
        smp_update u = {.weight = host[0],
                        .grad = host[1],
                        .state16 = {states, states + n},
                        .rounding = rounding,
                        .elements = n,
                        .grad_scale = 0.37f,
                        .lr = 0.01f,
                        .trust = 0.3f,
                        .step = step,
                        .settings = &settings};
        smp_state_rounding_seed(&u.rounding, 3, 5, step);
        u.direction = host[1];
        if (optimizer->measure)
            smp_optimizer_apply(optimizer, &u);
        u.direction = NULL;
        smp_optimizer_apply(optimizer, &u);
        u.weight = on_device[0].data;
        u.grad = on_device[1].data;
        u.state16[0] = on_device[2].data;
        u.state16[1] = on_device[3].data;
        u.direction = on_device[1].data;
        if (optimizer->measure)
            done(smp__cuda_optimizer_of(optimizer)->measure(&u, stream));
        u.direction = NULL;
        done(smp__cuda_optimizer_of(optimizer)->update(&u, stream));
    }
    for (int i = 0; i < 2; i++) {
        array_read(&on_device[i], got);
        assert_memory_equal(got, host[i], (size_t)n * sizeof *got);
        array_read(&on_device[2 + i], got16);
        assert_memory_equal(got16, states + i * n, (size_t)n * sizeof *got16);
    }
    for (int i = 0; i < 4; i++)
        array_free(&on_device[i]);
    free(host[0]);
    free(host[1]);
    free(got);
    free(states);
}

static void test_cuda_bf16_states_match_cpu(void **state)
{
    (void)state;
    const smp_state_rounding whole = {.run = 1 << 20, .count = 1, .blocks = 1};
    const smp_state_rounding split[] = {
        {.first = 2, .run = 1 << 20, .count = 1, .blocks = 1},
        {.first = 64, .run = 12, .index = 1, .count = 2, .blocks = 3},
        {.run = 5, .index = 1, .count = 3, .blocks = 2},
        {.run = 7, .count = 1, .blocks = 1, .nearest = true}};
    for (const smp_optimizer *const *o = smp_optimizers(); *o; o++) {
        for (int i = 0; i < N_LENGTH; i++)
            check_update16(*o, LENGTHS[i], 0, whole);
        for (int shift = 0; shift <= 4; shift++)
            check_update16(*o, 1237, shift, split[shift % 4]);
    }
}

/* Every one with a length, a learning rate and an alignment of its own. */
static void make_updates(weights *w, const smp_optimizer *optimizer, bool at_once,
                         const smp_update_settings settings[2])
{
    static smp_update u[MANY_WEIGHTS];
    for (int i = 0; i < MANY_WEIGHTS; i++) {
        weights_open(&w[i], LENGTHS[(i + 1) % N_LENGTH], i % 6);
        u[i] = (smp_update){.weight = w[i].on_device[0].data,
                            .grad = w[i].on_device[1].data,
                            .state = {w[i].on_device[2].data, w[i].on_device[3].data},
                            .weight16 = w[i].copy16.data,
                            .half = SMP_BF16,
                            .elements = w[i].n,
                            .grad_scale = 0.5f,
                            .lr = 0.01f * (float)(i + 1),
                            .trust = 0.1f * (float)i,
                            .step = 1,
                            .settings = &settings[i % 2],
                            .next = at_once && i > 0 ? &u[i - 1] : NULL};
        if (!at_once)
            done(smp__cuda_optimizer_of(optimizer)->update(&u[i], stream));
    }
    done(at_once ? smp__cuda_optimizer_of(optimizer)->update(&u[MANY_WEIGHTS - 1], stream)
                 : SMP_OK);
}

/* Many in a launch: the bits of one after the other, for every optimizer. */
static void test_cuda_updates_at_once(void **state)
{
    (void)state;
    static weights one[MANY_WEIGHTS], all[MANY_WEIGHTS];
    const smp_update_settings settings[2] = {
        {.beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f, .momentum = 0.9f, .weight_decay = 0.1f},
        {.beta1 = 0.8f, .beta2 = 0.9f, .epsilon = 1e-6f, .momentum = 0.5f, .nesterov = true}};
    for (const smp_optimizer *const *o = smp_optimizers(); *o; o++) {
        make_updates(one, *o, false, settings);
        make_updates(all, *o, true, settings);
        for (int i = 0; i < MANY_WEIGHTS; i++) {
            for (int k = 0; k < 4; k++)
                array_read(&one[i].on_device[k], all[i].host[k]);
            weights_compare(&all[i], SMP_BF16, (*o)->name);
            weights_close(&one[i]);
            weights_close(&all[i]);
        }
    }
}

/* Of many arrays in a launch, some of them empty: the bits of one after the other. */
static void test_cuda_square_sums_at_once(void **state)
{
    (void)state;
    enum { SUMS = 8 * MANY_WEIGHTS, LONGEST = 70001 };
    smp_squares of[MANY_WEIGHTS];
    double *sum;
    float *x = values_make(6, LONGEST + MANY_WEIGHTS);
    array values = array_make(x, (LONGEST + MANY_WEIGHTS) * 4, 0);
    ok(cudaMallocHost((void **)&sum, 2 * SUMS * sizeof *sum));
    memset(sum, 0, 2 * SUMS * sizeof *sum);
    for (int i = 0; i < MANY_WEIGHTS; i++) {
        of[i] = (smp_squares){(float *)values.data + i, LENGTHS[2 * i % N_LENGTH], sum + 8 * i};
        done(smp__cuda_square_sums(stream, SMP_F32, &of[i], 1));
        of[i].sum += SUMS;
    }
    done(smp__cuda_square_sums(stream, SMP_F32, of, MANY_WEIGHTS));
    ok(cudaStreamSynchronize(stream));
    assert_true(sum[8] > 0);
    assert_memory_equal(sum, sum + SUMS, SUMS * sizeof *sum);
    ok(cudaFreeHost(sum));
    array_free(&values);
    free(x);
}

/* Every number, in arrays of all lengths from 0 on, more than one launch has room for. */
static void test_cuda_widen16(void **state)
{
    (void)state;
    enum { ALL = 1 << 16, ARRAYS = 362 };
    static smp__conversion of[ARRAYS];
    for (int shift = 0; shift < 2; shift++) {
        static uint16_t narrow[ALL];
        static float got[ALL];
        for (int i = 0; i < ALL; i++)
            narrow[i] = (uint16_t)i;
        array source = array_make(narrow, sizeof narrow, 2 * shift);
        array target = array_make(got, sizeof got, 0);
        for (int i = 0, at = 0; i < ARRAYS; at += i++)
            of[i] = (smp__conversion){(float *)target.data + at, (uint16_t *)source.data + at,
                                      i + 1 < ARRAYS ? i : ALL - at};
        done(smp__cuda_widen16(stream, of, ARRAYS));
        array_read(&target, got);
        for (int i = 0; i < ALL; i++)
            assert_true(isnan(wide(SMP_BF16, narrow[i])) ? isnan(got[i])
                                                         : got[i] == wide(SMP_BF16, narrow[i]));
        array_free(&source);
        array_free(&target);
    }
}

enum { FOLD_LEVELS = 40, FOLD_TERMS = 128 };

/* A fold on the host: what came, where own terms are and sums are expected, all [][stride]. */
typedef struct fold_case {
    const smp_sum_terms *tree; /* NULL: one after the other */
    int terms, first_own, n_own, n_left, arrays;
    int64_t n, stride;
    bool bf16;
    float *came, *own;
    uint16_t *came16;
} fold_case;

static float fold_value(const fold_case *f, int term, int64_t i)
{
    const float x = value(50 + (uint64_t)term, i);
    return f->bf16 ? wide(SMP_BF16, round16(SMP_BF16, x)) : x;
}

/* Of n arrays the last comes first. */
static int64_t fold_place(const fold_case *f, int k, int n)
{
    return (k + 1 == n ? 0 : k + 1) * f->stride;
}

static void fold_fill(fold_case *f)
{
    for (int term = 0; term < f->terms; term++) {
        const int k = term - f->first_own;
        const bool own = k >= 0 && k < f->n_own;
        for (int64_t i = 0; i < f->n; i++) {
            const int64_t at = term * f->stride + i;
            f->came[at] =
                own ? NAN : fold_value(f, term, i); /* own ones are not looked for there */
            f->came16[at] = own ? 0x7fff : round16(SMP_BF16, f->came[at]);
            if (own)
                f->own[fold_place(f, k, f->n_own) + i] = value(50 + (uint64_t)term, i);
        }
    }
}

static void fold_compare(const fold_case *f, const float *got)
{
    for (int64_t i = 0; i < f->n; i++) {
        float x[FOLD_TERMS];
        for (int term = 0; term < f->terms; term++)
            x[term] = fold_value(f, term, i);
        for (int k = 0; k < (f->tree ? f->tree->n_add : f->terms - 1); k++)
            x[f->tree ? f->tree->to[k] : 0] += x[f->tree ? f->tree->from[k] : k + 1];
        for (int k = 0; k < f->n_left; k++) {
            float sum = x[f->tree ? f->tree->left[k] : 0];
            sum = f->bf16 ? wide(SMP_BF16, round16(SMP_BF16, sum)) : sum;
            assert_memory_equal(&got[fold_place(f, k, f->n_left) + i], &sum, sizeof sum);
        }
    }
}

static void check_fold(fold_case f, int64_t n, int shift, bool bf16)
{
    f.n = n;
    f.bf16 = bf16;
    f.stride = (n + 3) / 4 * 4 + shift;
    f.came = values_make(1, f.terms * f.stride);
    f.own = values_make(2, (f.arrays + FOLD_LEVELS) * f.stride);
    f.came16 = malloc((size_t)(f.terms * f.stride + 1) * sizeof *f.came16);
    assert_non_null(f.came16);
    fold_fill(&f);
    array came = array_make(bf16 ? (void *)f.came16 : f.came, f.terms * f.stride * (bf16 ? 2 : 4),
                            shift ? 2 + 2 * !bf16 : 0);
    array own = array_make(f.own, (f.arrays + FOLD_LEVELS) * f.stride * 4, 4 * shift);
    float *carry = bf16 ? (float *)own.data + f.arrays * f.stride : came.data;
    const smp__fold of = {.n = f.terms,
                          .tree = f.tree,
                          .came = came.data,
                          .stride = f.stride,
                          .first_own = f.first_own,
                          .n_own = f.n_own,
                          .own = own.data,
                          .sum = own.data,
                          .more = (float *)own.data + f.stride,
                          .apart = f.stride,
                          .bf16 = bf16,
                          .carry = carry,
                          .carry_stride = f.stride};
    done(smp__cuda_fold(stream, &of, n));
    array_read(&own, f.own);
    fold_compare(&f, f.own);
    array_free(&came);
    array_free(&own);
    free(f.came);
    free(f.own);
    free(f.came16);
}

static void check_folds(const fold_case *f)
{
    static const int64_t lengths[] = {0, 3, 4, 1027};
    for (int i = 0; i < 4; i++)
        for (int shift = 0; shift < 2; shift++) {
            check_fold(*f, lengths[i], shift, false);
            check_fold(*f, lengths[i], shift, true);
        }
}

/* The sums of each member, in the order of the tree, against one addition after the other: members
 * that bring several terms, sums that leave several, terms of several launches. */
static void test_cuda_fold(void **state)
{
    (void)state;
    static const struct {
        int blocks, ddp;
        smp_sum_members of;
    } cases[] = {{8, 8, {8, 0, 1}},  {7, 7, {7, 0, 1}},   {30, 2, {2, 0, 1}},   {12, 5, {5, 0, 1}},
                 {16, 8, {3, 5, 1}}, {30, 10, {5, 0, 2}}, {40, 40, {40, 0, 1}}, {90, 6, {6, 0, 1}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        smp_sum_terms t;
        done(smp__sum_terms_make(&t, cases[i].blocks, cases[i].ddp, cases[i].of));
        assert_true(t.n <= FOLD_TERMS);
        for (int member = 0; member < t.members; member += t.members - 1)
            check_folds(&(fold_case){.tree = &t,
                                     .terms = t.n,
                                     .first_own = t.first[member],
                                     .n_own = smp__sum_terms_of(&t, member),
                                     .n_left = t.n_left,
                                     .arrays = t.width});
        smp__sum_terms_free(&t);
    }
    for (int n = 1; n < 20; n += 9)
        check_folds(
            &(fold_case){.terms = n, .first_own = n / 2, .n_own = 1, .n_left = 1, .arrays = 1});
}

/* Additions that are none of a stack are refused. */
static void test_cuda_fold_of_no_tree(void **state)
{
    (void)state;
    smp_sum_terms t;
    done(smp__sum_terms_make(&t, 4, 4, (smp_sum_members){4, 0, 1}));
    t.to[0] = 2;
    const smp__fold of = {.n = 4, .tree = &t};
    assert_int_equal(smp__cuda_fold(stream, &of, 1), SMP_ERR_FAILED);
    smp__sum_terms_free(&t);
}

/* The same bits as on the CPU, whose results test_optimizer compares with references. */
static void test_cuda_optimizers_match_cpu(void **state)
{
    (void)state;
    for (const smp_optimizer *const *o = smp_optimizers(); *o; o++) {
        const smp__cuda_optimizer *cuda = smp__cuda_optimizer_of(*o);
        assert_true(cuda && !(*o)->measure == !cuda->measure);
        for (int i = 0; i < N_LENGTH; i++)
            check_update(*o, LENGTHS[i], 0, i % 2 ? HALVES[i / 2 % 2] : SMP_F32);
        for (int shift = 0; shift <= 5; shift++)
            for (int k = 0; k < 2; k++)
                check_update(*o, 1237, shift, HALVES[k]);
    }
}

/* A weight without gradient or decay stays what it is; nothing divides by zero. */
static void test_cuda_adamw_without_gradient(void **state)
{
    (void)state;
    const smp_update_settings settings = {.beta1 = 0.9f, .beta2 = 0.95f, .epsilon = 1e-8f};
    const float weight[5] = {1.0f, -2.0f, 0.0f, 3e38f, 1e-40f}, zero[5] = {0};
    float got[5];
    array w = array_make(weight, sizeof weight, 0), g = array_make(zero, sizeof zero, 0);
    array m = array_make(zero, sizeof zero, 0), v = array_make(zero, sizeof zero, 0);
    done(smp__cuda_adamw.update(&(smp_update){.weight = w.data,
                                              .grad = g.data,
                                              .state = {m.data, v.data},
                                              .elements = 5,
                                              .grad_scale = 1.0f,
                                              .lr = 0.01f,
                                              .step = 1,
                                              .settings = &settings},
                                stream));
    array_read(&w, got);
    assert_memory_equal(got, weight, sizeof weight);
    array_free(&w);
    array_free(&g);
    array_free(&m);
    array_free(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_add),
        cmocka_unit_test(test_cuda_round16),
        cmocka_unit_test(test_cuda_square_sum),
        cmocka_unit_test(test_cuda_square_sum_of_bf16),
        cmocka_unit_test(test_cuda_square_sum_of_extremes),
        cmocka_unit_test(test_cuda_widen16),
        cmocka_unit_test(test_cuda_fold),
        cmocka_unit_test(test_cuda_fold_of_no_tree),
        cmocka_unit_test(test_cuda_optimizers_match_cpu),
        cmocka_unit_test(test_cuda_bf16_states_match_cpu),
        cmocka_unit_test(test_cuda_updates_at_once),
        cmocka_unit_test(test_cuda_square_sums_at_once),
        cmocka_unit_test(test_cuda_adamw_without_gradient),
    };
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("no GPU\n");
        return 77;
    }
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess)
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cudaStreamDestroy(stream);
    return failed;
}

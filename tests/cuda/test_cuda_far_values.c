/* What the host makes of weights that lie in its memory has the bits that a GPU, or its emulation,
 * makes of them: copies in 16 bits, and sums of squares. */
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
#include "exec/device/host_values.h"
#include "graph/base/random.h"

enum { MOST = 2 * SMP_SQUARE_PIECE + 1027 };

static const int64_t LENGTHS[] = {0, 1, 3, 4, 5, 1023, 1024, 1027, SMP_SQUARE_PIECE, MOST};
enum { N_LENGTH = sizeof LENGTHS / sizeof *LENGTHS };

static cudaStream_t stream;
static float *values, *device; /* [MOST] */

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

/* Over the whole range of exponents, below the least normal float too. */
static void fill(void)
{
    for (uint64_t i = 0; i < MOST; i++) {
        const uint32_t bits = (uint32_t)smp_random_mix(i);
        const bool number = (bits & 0x7f800000u) != 0x7f800000u;
        memcpy(&values[i], &bits, sizeof bits);
        values[i] = number ? values[i] : INFINITY;
    }
}

static void test_cuda_far_round(void **state)
{
    (void)state;
    static const smp_dtype halves[] = {SMP_BF16, SMP_F16};
    static uint16_t want[MOST], got[MOST];
    void *target;
    fill();
    ok(cudaMalloc(&target, sizeof got));
    ok(cudaMemcpy(device, values, MOST * sizeof *values, cudaMemcpyHostToDevice));
    for (int k = 0; k < 2; k++) {
        done(smp__cuda_round16(stream, halves[k], &(smp__conversion){target, device, MOST}, 1));
        ok(cudaStreamSynchronize(stream));
        ok(cudaMemcpy(want, target, sizeof want, cudaMemcpyDeviceToHost));
        smp__host_round(halves[k], got, values, MOST);
        assert_memory_equal(got, want, sizeof got);
    }
    const float nan = NAN;
    smp__host_round(SMP_BF16, got, &nan, 1);
    assert_true((got[0] & 0x7fffu) > 0x7f80u);
    ok(cudaFree(target));
}

static void test_cuda_far_squares(void **state)
{
    (void)state;
    double *want, got[4];
    ok(cudaMallocHost((void **)&want, sizeof got));
    for (uint64_t i = 0; i < MOST; i++)
        values[i] = (float)((double)(smp_random_mix(i) >> 40) * 0x1p-24 - 0.5);
    ok(cudaMemcpy(device, values, MOST * sizeof *values, cudaMemcpyHostToDevice));
    for (int i = 0; i < N_LENGTH; i++) {
        for (int k = 0; k < 4; k++)
            want[k] = got[k] = -1.0;
        done(smp__cuda_square_sums(stream, SMP_F32, &(smp_squares){device, LENGTHS[i], want}, 1));
        ok(cudaStreamSynchronize(stream));
        smp__host_squares(values, LENGTHS[i], got);
        assert_memory_equal(got, want, sizeof got);
    }
    ok(cudaFreeHost(want));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda_far_round),
        cmocka_unit_test(test_cuda_far_squares),
    };
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("no GPU\n");
        return 77;
    }
    values = malloc(MOST * sizeof *values);
    if (!values || cudaMalloc((void **)&device, MOST * sizeof *device) != cudaSuccess ||
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess)
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cudaStreamDestroy(stream);
    cudaFree(device);
    free(values);
    return failed;
}

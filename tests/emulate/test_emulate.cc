/* The emulator's threads: orders, barriers, shuffles, votes, shared memory, launches, bf16. */
#include "graph/cuda/cuda_kernel.cuh"

#include "emulate_fixture.h"

#include <cmath>

__global__ void note_index(unsigned *out) // [z][y][x] of all threads of the grid
{
    const unsigned x = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned y = blockIdx.y * blockDim.y + threadIdx.y;
    const unsigned z = blockIdx.z * blockDim.z + threadIdx.z;
    out[(z * gridDim.y * blockDim.y + y) * gridDim.x * blockDim.x + x] += x + 100 * y + 10000 * z;
}

static void test_emulate_runs_every_thread_once(void **)
{
    const dim3 grid(3, 2, 5), block(4, 3, 2);
    const size_t n = 12 * 6 * 10;
    unsigned *out = on_device<unsigned>(n);
    for (const char *order : {"forward", "backward", "1", "2", "3"}) {
        emulate_set_order(order);
        assert_cuda(cudaMemset(out, 0, n * sizeof *out));
        SMP_LAUNCH(note_index, grid, block, 0, nullptr, out);
        assert_cuda(cudaGetLastError());
        const std::vector<unsigned> got = from_device(out, n);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(got[i], i % 12 + i / 12 % 6 * 100 + i / 72 * 10000);
    }
    assert_cuda(cudaFree(out));
}

/* The sum of [blockDim.x] values in shared memory; BARRIER false: as a beginner writes it. */
template <bool BARRIER> __global__ void tree_sum(const float *x, float *out)
{
    __shared__ float part[SMP_BLOCK];
    part[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    for (unsigned step = blockDim.x / 2; step > 0; step /= 2) {
        if (threadIdx.x < step)
            part[threadIdx.x] += part[threadIdx.x + step];
        if (BARRIER)
            __syncthreads();
    }
    if (threadIdx.x == 0)
        out[blockIdx.x] = part[0];
}

__global__ void block_sum(const float *x, float *out)
{
    __shared__ float scratch[32];
    const float sum = smp_block_sum(x[blockIdx.x * blockDim.x + threadIdx.x], scratch);
    if (threadIdx.x == blockDim.x - 1)
        out[blockIdx.x] = sum;
}

typedef void sum_kernel(const float *, float *);

static int wrong_sums(sum_kernel *kernel)
{
    constexpr int BLOCKS = 5;
    std::vector<float> x(BLOCKS * SMP_BLOCK);
    for (size_t i = 0; i < x.size(); i++)
        x[i] = static_cast<float>(i % 7 + 1);
    float *in = on_device<float>(x.size()), *out = on_device<float>(BLOCKS);
    assert_cuda(cudaMemcpy(in, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice));
    const int wrong = wrong_orders([&] {
        SMP_LAUNCH(kernel, BLOCKS, SMP_BLOCK, 0, nullptr, in, out);
        const std::vector<float> got = from_device(out, BLOCKS);
        for (size_t b = 0; b < BLOCKS; b++) {
            float sum = 0;
            for (size_t i = 0; i < SMP_BLOCK; i++)
                sum += x[b * SMP_BLOCK + i];
            if (got[b] != sum)
                return false;
        }
        return true;
    });
    assert_cuda(cudaFree(in));
    assert_cuda(cudaFree(out));
    return wrong;
}

static void test_emulate_shows_missing_barrier(void **)
{
    assert_int_equal(wrong_sums(tree_sum<true>), 0);
    assert_int_equal(wrong_sums(block_sum), 0);
    assert_true(wrong_sums(tree_sum<false>) > SEEDS / 4);
}

__global__ void warp_calls(int *out) // [12][blockDim.x]
{
    const int t = static_cast<int>(threadIdx.x), n = static_cast<int>(blockDim.x);
    const unsigned all = 0xffffffffu;
    out[0 * n + t] = __shfl_sync(all, t, 5);
    out[1 * n + t] = __shfl_sync(all, t, 9, 8);
    out[2 * n + t] = __shfl_up_sync(all, t, 3);
    out[3 * n + t] = __shfl_down_sync(all, t, 3, 16);
    out[4 * n + t] = __shfl_xor_sync(all, t, 6);
    out[5 * n + t] = static_cast<int>(__ballot_sync(all, t % 3 == 0));
    out[6 * n + t] = __any_sync(all, t == 40);
    out[7 * n + t] = __all_sync(all, t < 40);
    out[8 * n + t] = __reduce_max_sync(all, -t);
    out[9 * n + t] = static_cast<int>(__match_any_sync(all, t % 4));
    /* The halves of a warp apart from each other. */
    const unsigned half = t % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
    out[10 * n + t] = t % 32 < 16 ? __shfl_xor_sync(half, t, 1) : __shfl_xor_sync(half, t, 2);
    out[11 * n + t] = __syncthreads_count(t % 5 == 0);
}

static void test_emulate_warp_calls(void **)
{
    enum { THREADS = 64 };
    int *out = on_device<int>(12 * THREADS);
    const int wrong = wrong_orders([out] {
        SMP_LAUNCH(warp_calls, 1, THREADS, 0, nullptr, out);
        const std::vector<int> got = from_device(out, 12 * THREADS);
        for (int t = 0; t < THREADS; t++) {
            const int lane = t % 32, warp = t - lane;
            unsigned thirds = 0;
            for (int l = 0; l < 32; l++)
                thirds |= ((warp + l) % 3 == 0 ? 1u : 0u) << l;
            const int expected[12] = {warp + 5,
                                      t - t % 8 + 1,
                                      lane < 3 ? t : t - 3,
                                      t % 16 > 12 ? t : t + 3,
                                      t ^ 6,
                                      static_cast<int>(thirds),
                                      warp == 32,
                                      warp == 0,
                                      -warp,
                                      static_cast<int>(0x11111111u << t % 4),
                                      lane < 16 ? t ^ 1 : t ^ 2,
                                      13};
            for (int i = 0; i < 12; i++)
                if (got[static_cast<size_t>(i * THREADS + t)] != expected[i])
                    return false;
        }
        return true;
    });
    assert_int_equal(wrong, 0);
    assert_cuda(cudaFree(out));
}

__global__ void some_return()
{
    if (threadIdx.x < 5)
        return;
    __syncthreads();
}
__global__ void lane_misses(float *out)
{
    if (threadIdx.x % 32 != 7)
        out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
}
__global__ void masks_differ()
{
    __shfl_sync(threadIdx.x % 2 ? 0xffffffffu : 0x55555555u, 1, 0);
    __syncwarp();
}
__global__ void not_in_mask()
{
    __shfl_sync(0xfu, 1, 0);
}
__global__ void beyond_shared()
{
    SMP_SHARED(float, s);
    s[blockDim.x + threadIdx.x] = 1.0f;
}

static void test_emulate_reports_divergence(void **)
{
    const auto run = [](auto... launched) {
        (launched(), ...);
        cudaDeviceSynchronize();
    };
    assert_dies(SIGABRT, "not every thread reaches: 59 wait",
                [=] { run([] { SMP_LAUNCH(some_return, 1, 64, 0, nullptr); }); });
    assert_dies(SIGABRT, "waits at a shuffle with mask 0xffffffff, but lane 7 has returned", [=] {
        float *out = on_device<float>(32);
        run([out] { SMP_LAUNCH(lane_misses, 1, 32, 0, nullptr, out); });
    });
    assert_dies(SIGABRT, "but lane 16 does not exist", [=] {
        float *out = on_device<float>(48);
        run([out] { SMP_LAUNCH(block_sum, 1, 48, 0, nullptr, out, out); });
    });
    assert_dies(SIGABRT, "kernel masks_differ, block (0, 0, 0) of (1, 1, 1), 32 threads: lane",
                [=] { run([] { SMP_LAUNCH(masks_differ, 1, 32, 0, nullptr); }); });
    assert_dies(SIGABRT, "is not in its own mask",
                [=] { run([] { SMP_LAUNCH(not_in_mask, 1, 32, 0, nullptr); }); });
    assert_dies(SIGABRT, "dynamic shared memory (128 bytes) is written to out of bounds",
                [=] { run([] { SMP_LAUNCH(beyond_shared, 1, 32, 128, nullptr); }); });
}

/* Each block looks at shared memory before it writes to it. */
template <typename T> __global__ void look_at_shared(int *poisoned)
{
    SMP_SHARED(uint32_t, dynamic);
    __shared__ T fixed[32];
    const bool is = dynamic[threadIdx.x] == 0xffffffffu && fixed[threadIdx.x] == 0xffffffffu;
    dynamic[threadIdx.x] = 0;
    fixed[threadIdx.x] = 0;
    const int all = __syncthreads_and(is);
    if (threadIdx.x == 0)
        poisoned[blockIdx.x] = all;
}

static void test_emulate_poisons_shared_memory(void **)
{
    int *poisoned = on_device<int>(10);
    SMP_LAUNCH(look_at_shared<uint32_t>, 10, 32, 128, nullptr, poisoned);
    for (int is : from_device(poisoned, 10))
        assert_true(is);
    assert_cuda(cudaFree(poisoned));
}

__global__ void nothing() {}
__global__ void store(int *out, int value)
{
    out[0] = value;
}

static void test_emulate_checks_launches(void **)
{
    SMP_LAUNCH(nothing, 1, 1025, 0, nullptr);
    assert_error(cudaPeekAtLastError(), cudaErrorInvalidConfiguration);
    assert_error(cudaGetLastError(), cudaErrorInvalidConfiguration);
    assert_cuda(cudaGetLastError());
    SMP_LAUNCH(nothing, 0, 32, 0, nullptr);
    assert_error(cudaGetLastError(), cudaErrorInvalidConfiguration);
    SMP_LAUNCH(nothing, dim3(1, 65536), 32, 0, nullptr);
    assert_error(cudaGetLastError(), cudaErrorInvalidConfiguration);
    SMP_LAUNCH(nothing, 1, 32, 100 << 10, nullptr);
    assert_error(cudaGetLastError(), cudaErrorInvalidValue);
    assert_cuda(
        cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
    SMP_LAUNCH(nothing, 1, 32, 100 << 10, nullptr);
    assert_cuda(cudaGetLastError());
    assert_error(
        cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10),
        cudaErrorInvalidValue); /* of compute capability 8.0 */
    assert_error(cudaGetLastError(), cudaErrorInvalidValue);

    int *out = on_device<int>(1), value = 7;
    SMP_LAUNCH(store, 1, 1, 0, nullptr, out, value);
    value = 8; /* arguments are copied */
    assert_int_equal(from_device(out, 1)[0], 7);
    assert_cuda(cudaFree(out));
}

/* Which of the two bf16 numbers around x is nearer, in double; ties to the even one. */
static uint16_t nearest_bf16(float x)
{
    if (std::isnan(x))
        return 0x7fff;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint16_t low = static_cast<uint16_t>(bits >> 16);
    if (std::isinf(x))
        return low;
    const uint16_t high = static_cast<uint16_t>(low + 1); /* away from zero */
    const double a = static_cast<double>(emulate_bf16_value(low));
    /* Where the next number is infinity, its place is one step further. */
    const double b = (high & 0x7fff) == 0x7f80 ? std::copysign(std::ldexp(1.0, 128), a)
                                               : static_cast<double>(emulate_bf16_value(high));
    const double to_a = std::fabs(static_cast<double>(x) - a),
                 to_b = std::fabs(b - static_cast<double>(x));
    return to_a < to_b || (to_a == to_b && low % 2 == 0) ? low : high;
}

static void test_emulate_bf16_rounds_to_nearest_even(void **)
{
    for (uint32_t upper = 0; upper < 65536; upper++)
        for (uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xc123u, 0xffffu}) {
            const uint32_t bits = upper << 16 | lower;
            float x;
            memcpy(&x, &bits, sizeof x);
            if (__bfloat16_as_ushort(__float2bfloat16_rn(x)) != nearest_bf16(x))
                fail_msg("bf16 of 0x%08x", bits);
        }
    const float2 pair = __bfloat1622float2(__floats2bfloat162_rn(1.5f, -3.0f));
    assert_true(pair.x == 1.5f && pair.y == -3.0f);
    assert_int_equal(__bfloat16_as_ushort(__float2bfloat16_rn(1.0f)), 0x3f80);
}

static void test_emulate_arithmetic(void **)
{
    assert_int_equal(__byte_perm(0x03020100u, 0x07060504u, 0x7531u), 0x07050301);
    assert_int_equal(__umulhi(0x80000000u, 6u), 3);
    assert_int_equal(__funnelshift_l(0x80000000u, 1u, 1), 3);
    assert_int_equal(__clz(1), 31);
    assert_int_equal(__brev(1u), 0x80000000u);
    assert_true(max(1.0f, NAN) == 1.0f && min(3, -4) == -4 && max(2u, 7u) == 7u);
    assert_true(rsqrtf(4.0f) == 0.5f && __expf(0.0f) == 1.0f);
}

int main()
{
    const CMUnitTest tests[] = {
        cmocka_unit_test(test_emulate_runs_every_thread_once),
        cmocka_unit_test(test_emulate_shows_missing_barrier),
        cmocka_unit_test(test_emulate_warp_calls),
        cmocka_unit_test(test_emulate_reports_divergence),
        cmocka_unit_test(test_emulate_poisons_shared_memory),
        cmocka_unit_test(test_emulate_checks_launches),
        cmocka_unit_test(test_emulate_bf16_rounds_to_nearest_even),
        cmocka_unit_test(test_emulate_arithmetic),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}

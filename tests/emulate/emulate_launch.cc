/* Launches: what CUDA refuses, the order of blocks, and static shared memory. */
#include <climits>
#include <cstring>
#include <map>
#include <set>

#include <unistd.h>

#include "emulate_kernel.h"
#include "emulate_state.h"

namespace
{

long kernels_run;
std::set<const void *> loaded;              /* kernels, by their first launch */
std::map<const void *, int> shared_granted; /* by cudaFuncSetAttribute, bytes per kernel */

cudaError_t check(const emulate_launch &launch)
{
    const dim3 block = launch.block, grid = launch.grid;
    const uint64_t threads = static_cast<uint64_t>(block.x) * block.y * block.z;
    if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 ||
        grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    const auto granted = shared_granted.find(launch.kernel);
    const size_t limit = granted != shared_granted.end() ? static_cast<size_t>(granted->second)
                                                         : emulate_shared_limit(false);
    return launch.shared_bytes > limit ? cudaErrorInvalidValue : cudaSuccess;
}

/* The first launch may wait for all that the device does, however long that waits. */
void load(const emulate_launch &launch)
{
    if (loaded.insert(launch.kernel).second && emulate_setting().lazy &&
        emulate_waiting_for_others > 0)
        emulate_die("%s is loaded while something waits for another process", launch.name);
}

uint64_t common_divisor(uint64_t a, uint64_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* Block i of n is the (i * step + first)th: a permutation, as step and n have no common divisor. */
void choose_block_order(uint64_t n, uint64_t *step, uint64_t *first)
{
    const emulate_order order = emulate_setting().order;
    *step = 1;
    *first = 0;
    if (order == emulate_order::backward) {
        *step = n - 1;
        *first = n - 1;
    } else if (order == emulate_order::random && n > 2) {
        *first = emulate_random_below(n);
        do
            *step = 1 + emulate_random_below(n < UINT_MAX ? n - 1 : UINT_MAX);
        while (common_divisor(n, *step) != 1);
    }
}

void poison(const std::vector<emulate_range> &ranges)
{
    for (const emulate_range &range : ranges)
        memset(range.start, 0xff, range.bytes);
}

/* All blocks. Static shared memory: all of the program's is poisoned before the first block, then
 * what that one wrote to. */
void run(const emulate_launch &launch, const std::function<void()> &body)
{
    const dim3 grid = launch.grid;
    const uint64_t n = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
    std::vector<emulate_range> used;
    uint64_t step, at;
    emulate_block_prepare(launch, body);
    choose_block_order(n, &step, &at);
    poison(emulate_static_shared());
    for (uint64_t i = 0; i < n; i++, at = (at + step) % n) {
        blockIdx = make_uint3(static_cast<unsigned>(at % grid.x),
                              static_cast<unsigned>(at / grid.x % grid.y),
                              static_cast<unsigned>(at / grid.x / grid.y));
        if (i > 0)
            poison(used);
        emulate_block_run();
        if (i == 0)
            for (const emulate_range &range : emulate_static_shared())
                if (!emulate_is_poison(range.start, range.bytes))
                    used.push_back(range);
    }
}

} // namespace

long emulate_waiting_for_others;

bool emulate_is_poison(const void *memory, size_t bytes)
{
    const unsigned char *p = static_cast<const unsigned char *>(memory);
    return bytes == 0 || (p[0] == 0xff && memcmp(p, p + 1, bytes - 1) == 0);
}

long emulate_kernels_run()
{
    return kernels_run;
}

void emulate_enqueue_launch(const emulate_launch &launch, cudaStream_t stream,
                            std::function<void()> thread)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return;
    cudaError_t code = emulate_stream_check(stream);
    if (code == cudaSuccess)
        code = check(launch);
    if (code == cudaSuccess && !emulate_memory_load_libraries())
        code = cudaErrorMemoryAllocation;
    if (call.done(code) != cudaSuccess)
        return;
    load(launch);
    emulate_stream_put(stream, {[launch, thread = std::move(thread)] {
                                    if (++kernels_run == emulate_setting().fail)
                                        emulate_device_fail(cudaErrorIllegalAddress);
                                    else
                                        run(launch, thread);
                                    usleep(emulate_setting().slow_us);
                                    return true;
                                },
                                true});
}

void emulate_forget_launches()
{
    shared_granted.clear();
    loaded.clear();
    kernels_run = 0;
    emulate_memory_forget_libraries();
}

extern "C" {

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (!kernel)
        return call.done(cudaErrorInvalidDeviceFunction);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value < 0 || static_cast<size_t>(value) > emulate_shared_limit(true))
        return call.done(cudaErrorInvalidValue);
    shared_granted[kernel] = value;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int threads,
                                                          size_t shared_bytes)
{
    emulate_call call;
    if (call.error != cudaSuccess)
        return call.error;
    if (threads < 1 || threads > 1024)
        return call.done(cudaErrorInvalidValue);
    const size_t by_shared = emulate_shared_limit(true) / (shared_bytes + 1024);
    const size_t by_threads = 2048u / static_cast<unsigned>((threads + 31) / 32 * 32);
    *blocks = static_cast<int>(by_shared < by_threads ? by_shared : by_threads);
    return cudaSuccess;
}

} // extern "C"

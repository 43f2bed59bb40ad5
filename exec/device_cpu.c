/* A CPU core as a device: the arena is anonymous memory, operators run on the calling thread. */
#include "exec/device.h"

#include <string.h>
#include <sys/mman.h>

#include "graph/math/math.h"

extern const smp_device smp_device_cpu;

static smp_status cpu_open(void)
{
    smp_math_init();
    return SMP_OK;
}

static smp_status cpu_reserve(int64_t bytes, char **arena)
{
    size_t size = bytes > 0 ? (size_t)bytes : 64;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return smp_fail_memory(size);
    madvise(memory, size, MADV_HUGEPAGE); /* a hint: fewer TLB misses in GEMM operands */
    memset(memory, 0, size);
    *arena = memory;
    return SMP_OK;
}

static void cpu_release(char *arena, int64_t bytes)
{
    if (arena)
        munmap(arena, bytes > 0 ? (size_t)bytes : 64);
}

static void cpu_copy(void *target, const void *source, int64_t bytes)
{
    memcpy(target, source, (size_t)bytes);
}

static void cpu_zero(void *target, int64_t bytes)
{
    memset(target, 0, (size_t)bytes);
}

static void cpu_add(float *restrict target, const float *restrict source, int64_t elements)
{
    for (int64_t i = 0; i < elements; i++)
        target[i] += source[i];
}

static double cpu_square_sum(const float *values, int64_t elements)
{
    enum { LANES = 8 };
    double lane[LANES] = {0};
    int64_t whole = elements - elements % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int j = 0; j < LANES; j++)
            lane[j] += (double)values[i + j] * values[i + j];
    for (int64_t i = whole; i < elements; i++)
        lane[i - whole] += (double)values[i] * values[i];
    double sum = 0.0;
    for (int j = 0; j < LANES; j++)
        sum += lane[j];
    return sum;
}

static const smp_op_kernels *cpu_kernels(const smp_op_kind *kind)
{
    return &kind->cpu;
}

const smp_device smp_device_cpu = {
    .name = "cpu",
    .summary = "one CPU core per rank, oneDNN",
    .open = cpu_open,
    .reserve = cpu_reserve,
    .release = cpu_release,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .add = cpu_add,
    .square_sum = cpu_square_sum,
    .kernels = cpu_kernels,
};

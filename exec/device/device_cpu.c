/* A CPU core as a device: the arena is anonymous memory, everything is done at once on the calling
 * thread. */
#include "exec/device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "graph/base/clock.h"
#include "graph/math/half.h"
#include "graph/math/math.h"

typedef struct cpu_context {
    int stamps;
    double time_s[]; /* [stamps] */
} cpu_context;

static smp_status cpu_present(void)
{
    return SMP_OK;
}

static smp_status cpu_open(const smp_device_options *options, void **context)
{
    SMP_TRY(smp_target_check((smp_target){SMP_BACKEND_CPU, options->precision}));
    if (smp_precision_dtype(options->precision) == SMP_BF16 && !smp_math_has_bf16())
        return smp_fail(SMP_ERR_INPUT,
                        "%s on the CPU: this processor has neither AVX512-BF16 nor "
                        "AMX (see --precision)",
                        smp_precision_name(options->precision));
    size_t bytes = sizeof(cpu_context) + (size_t)options->stamps * sizeof(double);
    cpu_context *cpu = calloc(1, bytes);
    if (!cpu)
        return smp_fail_memory(bytes);
    cpu->stamps = options->stamps;
    *context = cpu;
    return SMP_OK;
}

static void cpu_close(void *context)
{
    free(context);
}

static const char *cpu_describe(void *context)
{
    (void)context;
    return smp_math_name();
}

static void cpu_identity(void *context, char id[64])
{
    (void)context;
    memset(id, 0, 64);
    snprintf(id, 64, "cpu");
}

static smp_status cpu_reserve(void *context, int64_t bytes, char **arena)
{
    (void)context;
    size_t size = bytes > 0 ? (size_t)bytes : 64;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return smp_fail_memory(size);
    madvise(memory, size, MADV_HUGEPAGE); /* a hint: fewer TLB misses in GEMM operands */
    memset(memory, 0, size);
    *arena = memory;
    return SMP_OK;
}

static void cpu_release(void *context, char *arena, int64_t bytes)
{
    (void)context;
    if (arena)
        munmap(arena, bytes > 0 ? (size_t)bytes : 64);
}

static smp_status cpu_reserve_host(void *context, int64_t bytes, char **memory)
{
    (void)context;
    size_t size = ((size_t)bytes + 64) / 64 * 64;
    *memory = aligned_alloc(64, size);
    if (!*memory)
        return smp_fail_memory(size);
    memset(*memory, 0, size);
    return SMP_OK;
}

static void cpu_release_host(void *context, char *memory)
{
    (void)context;
    free(memory);
}

static void *cpu_kernel_context(void *context)
{
    (void)context;
    return NULL;
}

static smp_status cpu_copy(void *context, void *target, const void *source, int64_t bytes)
{
    (void)context;
    memcpy(target, source, (size_t)bytes);
    return SMP_OK;
}

static smp_status cpu_zero(void *context, void *target, int64_t bytes)
{
    (void)context;
    memset(target, 0, (size_t)bytes);
    return SMP_OK;
}

static void add_floats(float *restrict target, const float *restrict source, int64_t elements)
{
    for (int64_t i = 0; i < elements; i++)
        target[i] += source[i];
}

static smp_status cpu_add(void *context, smp_dtype dtype, void *target, const void *source,
                          int64_t elements)
{
    (void)context;
    if (smp_dtype_is_half(dtype))
        smp__add_half(dtype, target, source, elements);
    else
        add_floats(target, source, elements);
    return SMP_OK;
}

static smp_status cpu_round16(void *context, smp_dtype half, void *target16, const float *source,
                              int64_t elements)
{
    (void)context;
    smp__to_half(half, target16, source, elements);
    return SMP_OK;
}

static double square_sum(const float *values, int64_t elements)
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

static void sum_squares(smp_dtype dtype, const void *values, int64_t elements, double *sum)
{
    float wide[SMP_SQUARE_PIECE];
    for (int64_t at = 0; at < elements; at += SMP_SQUARE_PIECE) {
        const int64_t n = elements - at < SMP_SQUARE_PIECE ? elements - at : SMP_SQUARE_PIECE;
        if (dtype == SMP_BF16)
            smp__from_bf16(wide, (const uint16_t *)values + at, n);
        *sum++ = square_sum(dtype == SMP_BF16 ? wide : (const float *)values + at, n);
    }
}

static smp_status cpu_square_sums(void *context, smp_dtype dtype, const smp_squares *of, int n)
{
    (void)context;
    for (int i = 0; i < n; i++)
        sum_squares(dtype, of[i].values, of[i].elements, of[i].sum);
    return SMP_OK;
}

static smp_status cpu_update(void *context, const smp_optimizer *optimizer,
                             const smp_update *update)
{
    (void)context;
    for (; update; update = update->next) {
        smp_optimizer_apply(optimizer, update);
        if (update->weight16 && !update->direction)
            smp__to_half(update->half, update->weight16, update->weight, update->elements);
    }
    return SMP_OK;
}

static const smp_op_kernels *cpu_kernels(const smp_op_kind *kind, smp_precision precision)
{
    return smp_op_cpu_kernels(kind, precision);
}

static smp_status cpu_idle(void *context, bool *done)
{
    (void)context;
    *done = true;
    return SMP_OK;
}

static smp_status cpu_stamp(void *context, int index)
{
    ((cpu_context *)context)->time_s[index] = smp_clock_s();
    return SMP_OK;
}

static bool cpu_passed(void *context, int index, double *time_s)
{
    if (time_s)
        *time_s = ((const cpu_context *)context)->time_s[index];
    return true;
}

extern const struct smp_transport smp__transport_mpi;
static const struct smp_transport *const transports[] = {&smp__transport_mpi, NULL};

const smp_device smp__device_cpu = {
    .name = "cpu",
    .summary = "one CPU core per rank, oneDNN",
    .backend = SMP_BACKEND_CPU,
    .host_memory = true,
    .transports = transports,
    .present = cpu_present,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .identity = cpu_identity,
    .reserve = cpu_reserve,
    .release = cpu_release,
    .reserve_host = cpu_reserve_host,
    .release_host = cpu_release_host,
    .kernel_context = cpu_kernel_context,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .upload = cpu_copy,
    .download = cpu_copy,
    .add = cpu_add,
    .square_sums = cpu_square_sums,
    .round16 = cpu_round16,
    .update = cpu_update,
    .kernels = cpu_kernels,
    .idle = cpu_idle,
    .stamp = cpu_stamp,
    .passed = cpu_passed,
};

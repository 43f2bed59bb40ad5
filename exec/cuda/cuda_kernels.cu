/* The kernels over a rank's arena on a GPU: sums, rounding, the gradient norm. Each reads and
 * writes every value once, 16 bytes at a time where the addresses allow it. */
#include "exec/cuda/cuda_kernels.h"
#include "exec/optimizer/cuda_update.cuh"

/* Packs of 16 bytes if `packed`, else single values: the same results, as no element depends on
 * another. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    accumulate_kernel(T *target, const T *source, int64_t n, bool packed) // each [n]
{
    const int64_t packs = packed ? n / smp_pack<T>::N : 0;
    for (int64_t i = smp_thread(); i < packs; i += smp_threads()) {
        smp_pack<T> x = smp_load16(target + i * smp_pack<T>::N);
        const smp_pack<T> y = smp_load16(source + i * smp_pack<T>::N);
        for (int k = 0; k < smp_pack<T>::N; k++)
            x.v[k] = smp_from<T>(smp_float(x.v[k]) + smp_float(y.v[k]));
        smp_store(target + i * smp_pack<T>::N, x);
    }
    for (int64_t i = packs * smp_pack<T>::N + smp_thread(); i < n; i += smp_threads())
        target[i] = smp_from<T>(smp_float(target[i]) + smp_float(source[i]));
}

template <typename T>
static smp_status accumulate_as(void *stream, void *target, const void *source, int64_t n)
{
    const bool packed = !smp_misaligned(target, 16) && !smp_misaligned(source, 16);
    if (n <= 0)
        return SMP_OK;
    SMP_LAUNCH(accumulate_kernel<T>, smp_arena_grid(packed ? n / smp_pack<T>::N : n), SMP_BLOCK, 0,
               static_cast<cudaStream_t>(stream), static_cast<T *>(target),
               static_cast<const T *>(source), n, packed);
    return smp__cuda_launched("accumulate");
}

smp_status smp__cuda_accumulate(void *stream, smp_dtype dtype, void *target, const void *source,
                                int64_t elements)
{
    return SMP_AS(dtype, accumulate_as, stream, target, source, elements);
}

__global__ void __launch_bounds__(SMP_BLOCK)
    add_rows_kernel(float *sum, const float *rows, int64_t n, int64_t count, int64_t stride,
                    bool packed) // sum [n], rows [count][stride]
{
    constexpr int N = smp_pack<float>::N;
    const int64_t packs = packed ? n / N : 0;
    for (int64_t i = smp_thread(); i < packs; i += smp_threads()) {
        smp_pack<float> x = smp_load16(rows + i * N);
        for (int64_t row = 1; row < count; row++) {
            const smp_pack<float> y = smp_load16(rows + row * stride + i * N);
            for (int k = 0; k < N; k++)
                x.v[k] += y.v[k];
        }
        smp_store(sum + i * N, x);
    }
    for (int64_t i = packs * N + smp_thread(); i < n; i += smp_threads()) {
        float x = rows[i];
        for (int64_t row = 1; row < count; row++)
            x += rows[row * stride + i];
        sum[i] = x;
    }
}

smp_status smp__cuda_add_rows(void *stream, float *sum, const float *rows, int64_t elements,
                              int64_t count, int64_t stride)
{
    constexpr int N = smp_pack<float>::N;
    const bool packed = !smp_misaligned(sum, 16) && !smp_misaligned(rows, 16) && stride % N == 0;
    if (elements <= 0)
        return SMP_OK;
    SMP_LAUNCH(add_rows_kernel, smp_arena_grid(packed ? elements / N : elements), SMP_BLOCK, 0,
               static_cast<cudaStream_t>(stream), sum, rows, elements, count, stride, packed);
    return smp__cuda_launched("add rows");
}

/* target[i] = source[i], of another type; four at a time if `packed`. */
template <typename To, typename From>
__global__ void __launch_bounds__(SMP_BLOCK)
    convert_kernel(To *target, const From *source, int64_t n, bool packed) // each [n]
{
    const int64_t quads = packed ? n / 4 : 0;
    for (int64_t i = smp_thread(); i < quads; i += smp_threads()) {
        const smp_pack<From, 4> x = smp_load<4>(source + 4 * i);
        smp_pack<To, 4> y;
        for (int k = 0; k < 4; k++)
            y.v[k] = smp_from<To>(smp_float(x.v[k]));
        smp_store(target + 4 * i, y);
    }
    for (int64_t i = quads * 4 + smp_thread(); i < n; i += smp_threads())
        target[i] = smp_from<To>(smp_float(source[i]));
}

template <typename To, typename From>
static smp_status convert(void *stream, To *target, const From *source, int64_t n)
{
    const bool packed =
        !smp_misaligned(target, 4 * sizeof(To)) && !smp_misaligned(source, 4 * sizeof(From));
    if (n <= 0)
        return SMP_OK;
    SMP_LAUNCH((convert_kernel<To, From>), smp_arena_grid(packed ? n / 4 : n), SMP_BLOCK, 0,
               static_cast<cudaStream_t>(stream), target, source, n, packed);
    return smp__cuda_launched("convert");
}

template <typename T>
static smp_status round16_as(void *stream, void *target16, const float *source, int64_t elements)
{
    return convert(stream, static_cast<T *>(target16), source, elements);
}

smp_status smp__cuda_round16(void *stream, smp_dtype half, void *target16, const float *source,
                             int64_t elements)
{
    return half == SMP_F16 ? round16_as<fp16>(stream, target16, source, elements)
                           : round16_as<bf16>(stream, target16, source, elements);
}

smp_status smp__cuda_widen16(void *stream, float *target, const void *source16, int64_t elements)
{
    return convert(stream, target, static_cast<const bf16 *>(source16), elements);
}

/* Arrays of one launch: as many as its parameters hold. Blocks first[i] .. first[i + 1] - 1 are of
 * array i, a piece each. */
struct squares_table {
    enum { N = 128 };
    const void *values[N];
    double *sum[N];
    int64_t elements[N];
    unsigned first[N + 1];
};
static_assert(sizeof(squares_table) <= 4096, "what a launch takes");

/* A block each. Four values at a time whatever the alignment, so that the order is the same.
 * Squares of floats are exact in double. */
template <typename T>
__global__ void __launch_bounds__(SMP_BLOCK)
    square_pieces(const __grid_constant__ squares_table table)
{
    int at = 0;
    while (blockIdx.x >= table.first[at + 1])
        at++;
    const int64_t number = blockIdx.x - table.first[at], begin = number * SMP_SQUARE_PIECE;
    const int64_t left = table.elements[at] - begin;
    const int64_t n = left < SMP_SQUARE_PIECE ? left : (int64_t)SMP_SQUARE_PIECE, quads = n / 4;
    const T *values = static_cast<const T *>(table.values[at]) + begin;
    const bool packed = reinterpret_cast<uintptr_t>(values) % (4 * sizeof(T)) == 0;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < quads; i += SMP_BLOCK) {
        smp_pack<T, 4> x;
        if (packed)
            x = smp_load<4>(values + 4 * i);
        else
            for (int k = 0; k < 4; k++)
                x.v[k] = values[4 * i + k];
        for (int k = 0; k < 4; k++)
            sum += (double)smp_float(x.v[k]) * (double)smp_float(x.v[k]);
    }
    const int64_t last = quads * 4 + threadIdx.x;
    if (last < n)
        sum += (double)smp_float(values[last]) * (double)smp_float(values[last]);
    sum = smp_block_sum_double(sum);
    if (threadIdx.x == 0)
        table.sum[at][number] = sum;
}

template <typename T> static smp_status square_as(void *stream, const smp_squares *of, int n)
{
    squares_table table = {};
    for (int i = 0; i < n;) {
        int at = 0;
        for (; i < n && at < table.N; i++) {
            if (of[i].elements <= 0)
                continue;
            table.values[at] = of[i].values;
            table.sum[at] = of[i].sum;
            table.elements[at] = of[i].elements;
            table.first[at + 1] =
                table.first[at] + (unsigned)((of[i].elements - 1) / SMP_SQUARE_PIECE + 1);
            at++;
        }
        if (at == 0)
            break;
        SMP_LAUNCH(square_pieces<T>, table.first[at], SMP_BLOCK, 0,
                   static_cast<cudaStream_t>(stream), table);
        SMP_TRY(smp__cuda_launched("square_sums"));
    }
    return SMP_OK;
}

smp_status smp__cuda_square_sums(void *stream, smp_dtype dtype, const smp_squares *of, int n)
{
    return dtype == SMP_BF16 ? square_as<bf16>(stream, of, n) : square_as<float>(stream, of, n);
}

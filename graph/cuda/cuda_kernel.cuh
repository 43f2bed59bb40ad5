/* What every CUDA kernel of ours is written with: launches, 16-byte accesses, conversions, sums
 * over a warp and a block in one fixed order.
 *
 * Kernels stay within the part of CUDA that tests/emulate/ carries out on a CPU, so that they are
 * tested on every machine: launches and dynamic shared memory through the macros below, warp
 * shuffles, votes, __syncthreads, __syncwarp, ordinary arithmetic. Anything in PTX (mma, ldmatrix,
 * cp.async) is a small function in graph/cuda/cuda_mma.cuh with a second body for SMP_EMULATED. No
 * atomics on floats: results never depend on the order in which blocks run. */
#ifndef SMP_GRAPH_CUDA_CUDA_KERNEL_CUH
#define SMP_GRAPH_CUDA_CUDA_KERNEL_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

extern "C" {
#include "graph/model/op.h"
}
#include "graph/cuda/cuda.h"

typedef __nv_bfloat16 bf16;
typedef __half fp16;

#ifndef SMP_EMULATED /* tests/emulate/include/cuda_runtime.h defines both */
/* kernel<<<grid, block, shared bytes, stream>>>(arguments...) */
#define SMP_LAUNCH(kernel, grid, block, shared, stream, ...)                                       \
    kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)
/* type *name: the dynamic shared memory of the launch, 16-byte aligned */
#define SMP_SHARED(type, name)                                                                     \
    extern __shared__ __align__(16) unsigned char smp_shared_bytes[];                              \
    type *name = reinterpret_cast<type *>(smp_shared_bytes)
#endif

enum { SMP_WARP = 32, SMP_BLOCK = 256 };

/* W values that are one access, 16 bytes of them unless said otherwise. */
template <typename T, int W = 16 / (int)sizeof(T)> struct alignas(sizeof(T) * W) smp_pack {
    static constexpr int N = W;
    T v[W];
};

template <int W, typename T> __device__ __forceinline__ smp_pack<T, W> smp_load(const T *p)
{
    return *reinterpret_cast<const smp_pack<T, W> *>(p);
}
template <typename T> __device__ __forceinline__ smp_pack<T> smp_load16(const T *p)
{
    return smp_load<smp_pack<T>::N>(p);
}

template <typename T, int W>
__device__ __forceinline__ void smp_store(T *p, const smp_pack<T, W> &value)
{
    *reinterpret_cast<smp_pack<T, W> *>(p) = value;
}

/* This thread's place among all threads of the launch, and how many there are. */
__device__ __forceinline__ int64_t smp_thread()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t smp_threads()
{
    return (int64_t)gridDim.x * blockDim.x;
}

/* Conversions: every kernel computes in float and rounds to nearest even on the way out. */
__device__ __forceinline__ float smp_float(float x)
{
    return x;
}
__device__ __forceinline__ float smp_float(bf16 x)
{
    return __bfloat162float(x);
}
__device__ __forceinline__ float smp_float(fp16 x)
{
    return __half2float(x);
}
template <typename T> __device__ __forceinline__ T smp_from(float x);
template <> __device__ __forceinline__ float smp_from<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ bf16 smp_from<bf16>(float x)
{
    return __float2bfloat16_rn(x);
}
template <> __device__ __forceinline__ fp16 smp_from<fp16>(float x)
{
    return __float2half_rn(x);
}

/* What sums and maxima over threads combine with, and what they start from. */
struct smp_plus {
    static constexpr float NONE = 0.0f;
    static __device__ __forceinline__ float combine(float a, float b)
    {
        return a + b;
    }
};
struct smp_larger {
    static constexpr float NONE = -INFINITY;
    static __device__ __forceinline__ float combine(float a, float b)
    {
        return fmaxf(a, b);
    }
};

/* Over the lanes of a warp, on every lane: a butterfly, one order always. */
template <typename Op> __device__ __forceinline__ float smp_warp_fold(float x)
{
    for (int step = SMP_WARP / 2; step > 0; step /= 2)
        x = Op::combine(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* Over a block of up to 32 whole warps; `scratch` [32] shared floats, free again afterwards. Every
 * thread of the block calls it and gets the result. */
template <typename Op> __device__ __forceinline__ float smp_block_fold(float x, float *scratch)
{
    int lane = threadIdx.x % SMP_WARP, warp = threadIdx.x / SMP_WARP;
    int warps = blockDim.x / SMP_WARP;
    x = smp_warp_fold<Op>(x);
    if (lane == 0)
        scratch[warp] = x;
    __syncthreads();
    x = smp_warp_fold<Op>(lane < warps ? scratch[lane] : Op::NONE);
    __syncthreads();
    return x;
}

__device__ __forceinline__ float smp_warp_sum(float x)
{
    return smp_warp_fold<smp_plus>(x);
}
__device__ __forceinline__ float smp_warp_max(float x)
{
    return smp_warp_fold<smp_larger>(x);
}
__device__ __forceinline__ float smp_block_sum(float x, float *scratch)
{
    return smp_block_fold<smp_plus>(x, scratch);
}
__device__ __forceinline__ float smp_block_max(float x, float *scratch)
{
    return smp_block_fold<smp_larger>(x, scratch);
}

/* The sum over a block of SMP_BLOCK threads in double, on thread 0: always the same tree. Once per
 * kernel: the shared memory is not free again afterwards. */
__device__ __forceinline__ double smp_block_sum_double(double x)
{
    __shared__ double scratch[SMP_BLOCK];
    scratch[threadIdx.x] = x;
    for (int half = SMP_BLOCK / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half)
            scratch[threadIdx.x] += scratch[threadIdx.x + half];
    }
    return scratch[threadIdx.x];
}

/* Host side. SMP_CUDA_KERNELS(add) = {.forward = forward, ...}; what is left out is NULL. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#define SMP_CUDA_KERNELS(name)                                                                     \
    extern "C" const smp_op_kernels smp__cuda_##name;                                              \
    const smp_op_kernels smp__cuda_##name
static inline const smp_cuda *smp_cuda_of(const smp_op_call *call)
{
    return (const smp_cuda *)call->device;
}
/* The type of activations: SMP_F32, SMP_BF16 or SMP_F16. */
static inline smp_dtype smp_dtype_of_call(const smp_op_call *call)
{
    return smp_precision_dtype(call->graph->target.precision);
}
/* Weight `slot` in that type. */
static inline const void *smp_factor(const smp_op_call *call, int slot)
{
    return smp_dtype_is_half(smp_dtype_of_call(call)) ? call->param16[slot]
                                                      : (const void *)call->param[slot];
}
/* function<T>(...) with T of a dtype. */
#define SMP_AS(dtype, function, ...)                                                               \
    ((dtype) == SMP_BF16  ? function<bf16>(__VA_ARGS__)                                            \
     : (dtype) == SMP_F16 ? function<fp16>(__VA_ARGS__)                                            \
                          : function<float>(__VA_ARGS__))
/* forward<T>(call) in the type of the micro-batch's activations: SMP_TYPED(forward) in the
 * table. */
typedef smp_status smp_kernel_call(const smp_op_call *);
template <smp_kernel_call AS_BF16, smp_kernel_call AS_FP16, smp_kernel_call AS_FLOAT>
static smp_status smp_typed(const smp_op_call *call)
{
    const smp_dtype dtype = smp_dtype_of_call(call);
    return dtype == SMP_BF16 ? AS_BF16(call) : dtype == SMP_F16 ? AS_FP16(call) : AS_FLOAT(call);
}
#define SMP_TYPED(function) smp_typed<function<bf16>, function<fp16>, function<float>>
/* The same of two calls. */
typedef smp_status smp_kernel_pair(const smp_op_call *, const smp_op_call *);
template <smp_kernel_pair AS_BF16, smp_kernel_pair AS_FP16, smp_kernel_pair AS_FLOAT>
static smp_status smp_typed_pair(const smp_op_call *call, const smp_op_call *other)
{
    const smp_dtype dtype = smp_dtype_of_call(call);
    return dtype == SMP_BF16  ? AS_BF16(call, other)
           : dtype == SMP_F16 ? AS_FP16(call, other)
                              : AS_FLOAT(call, other);
}
#define SMP_TYPED_PAIR(function) smp_typed_pair<function<bf16>, function<fp16>, function<float>>

/* Values of an access to rows of that many values: 16 bytes of them if they divide a row, else
 * 1. */
template <typename T> static inline int smp_width(int64_t columns)
{
    return columns % smp_pack<T>::N == 0 ? smp_pack<T>::N : 1;
}

/* Blocks for n items of which a block takes `each`, at most `limit` (kernels loop over the
 * rest). */
static inline unsigned smp_blocks(int64_t n, int64_t each, int64_t limit)
{
    const int64_t blocks = (n + each - 1) / each;
    return (unsigned)(blocks < 1 ? 1 : blocks < limit ? blocks : limit);
}

/* The same for blocks of SMP_BLOCK threads, an item each: enough to fill the device's
 * multiprocessors four times, few enough to keep the tail short. */
static inline unsigned smp_grid(const smp_cuda *cuda, int64_t n)
{
    const int waves = 4, resident = 2048 / SMP_BLOCK;
    return smp_blocks(n, SMP_BLOCK, (int64_t)cuda->multiprocessors * resident * waves);
}

#endif

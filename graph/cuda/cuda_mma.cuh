/* The part of our kernels that only PTX can say: tensor core products, the loads that feed them,
 * and asynchronous copies to shared memory (PTX ISA 8.0, sm_80 and later). Every function has a
 * second body for tests/emulate/ that follows the fragment layouts of the PTX ISA lane by lane, so
 * a kernel that mixes them up fails there too. All lanes of a warp call them together, except the
 * copies.
 *
 * Fragments of m16n8k16, of lane = 4 g + t:
 *   A (16, 16): x[0] = A[g][2t, 2t+1], x[2] = A[g][2t+8, 2t+9]; x[1], x[3]: the same of A[g+8]
 *   B (16, 8):  y[0] = B[2t, 2t+1][g], y[1] = B[2t+8, 2t+9][g]
 *   C (16, 8):  c[0], c[1] = C[g][2t, 2t+1], c[2], c[3] = C[g+8][2t, 2t+1] */
#ifndef SMP_GRAPH_CUDA_CUDA_MMA_CUH
#define SMP_GRAPH_CUDA_CUDA_MMA_CUH

#include <string.h>

#include "graph/cuda/cuda_kernel.cuh"

#ifdef SMP_EMULATED
#include <vector>
#define SMP_UNROLL
#define SMP_UNROLL_BY(n)
#else
#define SMP_PRAGMA(text) _Pragma(#text)
#define SMP_UNROLL SMP_PRAGMA(unroll)
#define SMP_UNROLL_BY(n) SMP_PRAGMA(unroll n)
#endif

/* Two values in one register, `low` at the lower address. */
template <typename T> __device__ __forceinline__ uint32_t smp_pair(float low, float high);
template <> __device__ __forceinline__ uint32_t smp_pair<bf16>(float low, float high)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}
template <> __device__ __forceinline__ uint32_t smp_pair<fp16>(float low, float high)
{
    const __half2 pair = __floats2half2_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

#ifndef SMP_EMULATED

__device__ __forceinline__ uint32_t smp_shared_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* c += A B, of bf16 or fp16 */
template <typename T>
__device__ __forceinline__ void smp_mma_m16n8k16(float (&c)[4], const uint32_t (&x)[4], uint32_t y0,
                                                 uint32_t y1);
template <>
__device__ __forceinline__ void smp_mma_m16n8k16<fp16>(float (&c)[4], const uint32_t (&x)[4],
                                                       uint32_t y0, uint32_t y1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y0), "r"(y1));
}
template <>
__device__ __forceinline__ void smp_mma_m16n8k16<bf16>(float (&c)[4], const uint32_t (&x)[4],
                                                       uint32_t y0, uint32_t y1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y0), "r"(y1));
}

/* Four 8 x 8 matrices: lane i passes the address of row i % 8 of matrix i / 8 (16-byte aligned);
 * lane 4 g + t gets values [g][2t, 2t+1] of each; _trans: [2t, 2t+1][g]. */
__device__ __forceinline__ void smp_ldmatrix_x4(uint32_t (&x)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(smp_shared_address(row))
                 : "memory");
}
__device__ __forceinline__ void smp_ldmatrix_x4_trans(uint32_t (&x)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(smp_shared_address(row))
                 : "memory");
}

/* Copies 16 (4) bytes from global to shared memory in the background; writes zeroes, and reads
 * nothing, unless `inside`. */
__device__ __forceinline__ void smp_cp_async_16(void *shared, const void *global, bool inside)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smp_shared_address(shared)),
                 "l"(global), "r"(inside ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void smp_cp_async_4(void *shared, const void *global, bool inside)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smp_shared_address(shared)),
                 "l"(global), "r"(inside ? 4 : 0)
                 : "memory");
}
/* Closes this thread's group of copies. */
__device__ __forceinline__ void smp_cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until all but the last `left` groups of this thread have arrived. */
template <int left> __device__ __forceinline__ void smp_cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/* Blocks that take turns: one thread waits until *turn is `value`, and after the next barrier its
 * block sees what was written, by smp_store_to_host, before that turn was passed on by one thread
 * after a barrier. Whom a block waits for must have begun before it. */
__device__ __forceinline__ void smp_await_turn(const int *turn, int value)
{
    int now;
    do
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
    while (now != value);
}
__device__ __forceinline__ void smp_pass_turn(int *turn, int value)
{
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(value) : "memory");
}
/* Past the cache of the multiprocessor, which knows nothing of the others' writes. */
__device__ __forceinline__ void smp_load_from_host(float (&x)[4], const float *from)
{
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "l"(from)
                 : "memory");
}
__device__ __forceinline__ void smp_store_to_host(float *to, const float (&x)[4])
{
    asm volatile("st.global.cg.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]),
                 "f"(x[2]), "f"(x[3])
                 : "memory");
}

/* 2^x in one instruction, to about 2 in the last place; results below 2^-126 are 0. */
__device__ __forceinline__ float smp_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else /* SMP_EMULATED: blocks run one after another, so what a warp shares lies in plain statics */

/* What the lanes of the calling warp show each other between two __syncwarp. */
struct smp_emulated_warp {
    float x[16][16], y[8][16]; /* of a product: rows of one, columns of the other */
    const uint16_t *row[SMP_WARP];
};
static inline int smp_emulated_thread()
{
    return (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}
static inline smp_emulated_warp *smp_emulated_warp_of()
{
    static smp_emulated_warp warp[32];
    return &warp[smp_emulated_thread() / SMP_WARP];
}
template <typename T> static inline float smp_emulated_half(uint32_t pair, int high)
{
    const uint16_t bits = (uint16_t)(high ? pair >> 16 : pair);
    T value;
    memcpy(&value, &bits, sizeof value);
    return smp_float(value);
}

template <typename T>
static inline void smp_mma_m16n8k16(float (&c)[4], const uint32_t (&x)[4], uint32_t y0, uint32_t y1)
{
    smp_emulated_warp *warp = smp_emulated_warp_of();
    const int lane = smp_emulated_thread() % SMP_WARP, g = lane / 4, t = lane % 4;
    const uint32_t y[2] = {y0, y1};
    for (int k = 0; k < 2; k++) /* of each pair */
        for (int r = 0; r < 4; r++) {
            warp->x[g + 8 * (r % 2)][2 * t + 8 * (r / 2) + k] = smp_emulated_half<T>(x[r], k);
            warp->y[g][2 * t + 8 * (r / 2) + k] = smp_emulated_half<T>(y[r / 2], k);
        }
    __syncwarp();
    const float *row[2] = {warp->x[g], warp->x[g + 8]},
                *column[2] = {warp->y[2 * t], warp->y[2 * t + 1]};
    for (int e = 0; e < 4; e++)
        for (int k = 0; k < 16; k++)
            c[e] = fmaf(row[e / 2][k], column[e % 2][k], c[e]);
    __syncwarp();
}

static inline void smp_emulated_ldmatrix(uint32_t (&x)[4], const void *row, bool transposed)
{
    smp_emulated_warp *warp = smp_emulated_warp_of();
    const int lane = smp_emulated_thread() % SMP_WARP, g = lane / 4, t = lane % 4;
    if ((uintptr_t)row % 16 != 0)
        __builtin_trap(); /* a misaligned address on a GPU too */
    warp->row[lane] = static_cast<const uint16_t *>(row);
    __syncwarp();
    for (int matrix = 0; matrix < 4; matrix++) {
        uint16_t pair[2];
        for (int i = 0; i < 2; i++)
            pair[i] = transposed ? warp->row[8 * matrix + 2 * t + i][g]
                                 : warp->row[8 * matrix + g][2 * t + i];
        memcpy(&x[matrix], pair, sizeof pair);
    }
    __syncwarp();
}
static inline void smp_ldmatrix_x4(uint32_t (&x)[4], const void *row)
{
    smp_emulated_ldmatrix(x, row, false);
}
static inline void smp_ldmatrix_x4_trans(uint32_t (&x)[4], const void *row)
{
    smp_emulated_ldmatrix(x, row, true);
}

/* A copy happens when it is waited for, and leaves NaN until then: a missing wait shows. */
struct smp_emulated_copy {
    void *to;
    const void *from; /* NULL: zeroes */
    size_t bytes;
    int group;
};
struct smp_emulated_copies {
    std::vector<smp_emulated_copy> pending;
    int group;
};
static inline smp_emulated_copies *smp_emulated_copies_of()
{
    static smp_emulated_copies of_thread[1024];
    return &of_thread[smp_emulated_thread()];
}
static inline void smp_emulated_cp_async(void *shared, const void *global, bool inside,
                                         size_t bytes)
{
    if ((uintptr_t)shared % bytes != 0 || (uintptr_t)global % bytes != 0)
        __builtin_trap();
    smp_emulated_copies *copies = smp_emulated_copies_of();
    memset(shared, 0xff, bytes);
    copies->pending.push_back({shared, inside ? global : NULL, bytes, copies->group});
}
static inline void smp_cp_async_16(void *shared, const void *global, bool inside)
{
    smp_emulated_cp_async(shared, global, inside, 16);
}
static inline void smp_cp_async_4(void *shared, const void *global, bool inside)
{
    smp_emulated_cp_async(shared, global, inside, 4);
}
static inline void smp_cp_async_commit()
{
    smp_emulated_copies_of()->group++;
}
template <int left> static inline void smp_cp_async_wait()
{
    smp_emulated_copies *copies = smp_emulated_copies_of();
    size_t kept = 0;
    for (const smp_emulated_copy &copy : copies->pending)
        if (copy.group >= copies->group - left)
            copies->pending[kept++] = copy;
        else if (copy.from)
            memcpy(copy.to, copy.from, copy.bytes);
        else
            memset(copy.to, 0, copy.bytes);
    copies->pending.resize(kept);
}

/* Nobody would end the wait. */
static inline void smp_await_turn(const int *turn, int value)
{
    if (*turn != value)
        __builtin_trap();
}
static inline void smp_pass_turn(int *turn, int value)
{
    *turn = value;
}
static inline void smp_load_from_host(float (&x)[4], const float *from)
{
    const smp_pack<float> pack = smp_load16(from);
    memcpy(x, pack.v, sizeof x);
}
static inline void smp_store_to_host(float *to, const float (&x)[4])
{
    smp_pack<float> pack;
    memcpy(pack.v, x, sizeof x);
    smp_store(to, pack);
}

static inline float smp_exp2(float x)
{
    return exp2f(x);
}

#endif

#endif

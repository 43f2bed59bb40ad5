/* Rounding of the two factors of a product to fp8.
 *
 * The scale of a factor follows from the size of its largest value. Sizes of floats stand in the
 * order of their bits, a NaN above all, so the maximum is one of integers and no order of blocks
 * can change it: the blocks of the first launch leave one for each part, of which every block of
 * the second makes the same scale. That one rounds, and transposes what Hopper's products want
 * transposed, through tiles of codes in shared memory. */
#include "graph/cuda/cuda_kernel.cuh"

#include "graph/ops/matmul/linear_fp8.h"

constexpr int PACK = 8, TILE = 64, PITCH = TILE + 4, CHUNK = 16;

static_assert(SMP__FP8_MULTIPLE % PACK == 0, "rows are whole packs");
static_assert(TILE * TILE / CHUNK == SMP_BLOCK, "a thread stores one chunk of a tile");

struct fp8_factors {
    smp__fp8_factor of[2];
    uint8_t *rounded[2];
    float *scale;      /* [2] */
    uint32_t *largest; /* [2][SMP__FP8_PARTS] */
};

__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Over a block, on every thread. */
__device__ __forceinline__ uint32_t block_larger(uint32_t x, uint32_t *scratch)
{
    const int lane = threadIdx.x % SMP_WARP, warp = threadIdx.x / SMP_WARP;
    x = __reduce_max_sync(0xffffffffu, x);
    if (lane == 0)
        scratch[warp] = x;
    __syncthreads();
    x = __reduce_max_sync(0xffffffffu, lane < SMP_BLOCK / SMP_WARP ? scratch[lane] : 0u);
    __syncthreads();
    return x;
}

/* Not by an index: of that a thread would have a copy of both. */
__device__ __forceinline__ smp__fp8_factor factor_of(const fp8_factors &f)
{
    return blockIdx.y == 0 ? f.of[0] : f.of[1];
}

/* A part is what one block reads: gridDim.x of them. */
__global__ void __launch_bounds__(SMP_BLOCK) fp8_largest_values(fp8_factors f)
{
    __shared__ uint32_t scratch[SMP_WARP];
    const smp__fp8_factor of = factor_of(f);
    const uint32_t *pair = static_cast<const uint32_t *>(of.value);
    const int64_t packs = of.counted * of.columns / PACK;
    uint32_t largest = 0;
    for (int64_t i = smp_thread(); i < packs; i += smp_threads()) {
        const smp_pack<uint32_t> pack = smp_load16(pair + i * (PACK / 2));
        for (int k = 0; k < PACK / 2; k++) {
            largest = larger(largest, pack.v[k] & 0x7fff0000u);
            largest = larger(largest, (pack.v[k] & 0x7fffu) << 16);
        }
    }
    largest = block_larger(largest, scratch);
    if (threadIdx.x == 0)
        f.largest[blockIdx.y * SMP__FP8_PARTS + blockIdx.x] = largest;
}

/* Two codes, `low` at the lower address. */
__device__ __forceinline__ uint16_t encode(smp_fp8 format, float low, float high)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t codes;
    if (format == SMP_E4M3)
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    else
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
#else
    return (uint16_t)(smp_fp8_encode(format, low) | smp_fp8_encode(format, high) << 8);
#endif
}

__device__ __forceinline__ smp_pack<uint8_t, PACK> round_pack(const smp__fp8_factor &of, float to,
                                                              int64_t at)
{
    const smp_pack<bf16> pack = smp_load16(static_cast<const bf16 *>(of.value) + at);
    smp_pack<uint8_t, PACK> out;
    for (int k = 0; k < PACK; k += 2) {
        const uint16_t codes =
            encode(of.format, smp_float(pack.v[k]) * to, smp_float(pack.v[k + 1]) * to);
        out.v[k] = (uint8_t)codes;
        out.v[k + 1] = (uint8_t)(codes >> 8);
    }
    return out;
}

__device__ __forceinline__ void round_rows(const smp__fp8_factor &of, float to, uint8_t *rounded)
{
    const int64_t packs = of.rows * of.columns / PACK;
    for (int64_t i = smp_thread(); i < packs; i += smp_threads())
        smp_store(rounded + i * PACK, round_pack(of, to, i * PACK));
}

/* Codes of TILE rows and columns lie in `tile` by column, and are zeroes beyond the last row. */
__device__ __forceinline__ void round_columns(const smp__fp8_factor &of, float to, uint8_t *rounded,
                                              uint8_t *tile)
{
    constexpr int PACKS = TILE / PACK, CHUNKS = TILE / CHUNK;
    const int64_t row_codes = smp__fp8_row(of.rows), across = (of.columns + TILE - 1) / TILE;
    const int64_t tiles = (row_codes + TILE - 1) / TILE * across;
    const int pack = threadIdx.x % PACKS, chunk = threadIdx.x % CHUNKS;
    for (int64_t i = blockIdx.x; i < tiles; i += gridDim.x) {
        const int64_t row = i / across * TILE, column = i % across * TILE;
        const int64_t from = column + pack * PACK;
        for (int r = threadIdx.x / PACKS; r < TILE && from < of.columns; r += SMP_BLOCK / PACKS) {
            smp_pack<uint8_t, PACK> codes = {};
            if (row + r < of.rows)
                codes = round_pack(of, to, (row + r) * of.columns + from);
            for (int k = 0; k < PACK; k++)
                tile[(pack * PACK + k) * PITCH + r] = codes.v[k];
        }
        __syncthreads();
        const int c = threadIdx.x / CHUNKS;
        if (column + c < of.columns && row + chunk * CHUNK < row_codes) {
            smp_pack<uint32_t> words;
            for (int k = 0; k < CHUNK / 4; k++)
                words.v[k] =
                    *reinterpret_cast<const uint32_t *>(&tile[c * PITCH + chunk * CHUNK + 4 * k]);
            smp_store(reinterpret_cast<uint32_t *>(
                          &rounded[(column + c) * row_codes + row + chunk * CHUNK]),
                      words);
        }
        __syncthreads();
    }
}

__global__ void __launch_bounds__(SMP_BLOCK) fp8_round_factors(fp8_factors f, int parts)
{
    __shared__ uint32_t scratch[SMP_WARP];
    __shared__ __align__(16) uint8_t tile[TILE * PITCH];
    const int which = (int)blockIdx.y;
    uint8_t *rounded = which == 0 ? f.rounded[0] : f.rounded[1];
    const smp__fp8_factor of = factor_of(f);
    uint32_t largest = 0;
    for (int i = (int)threadIdx.x; i < parts; i += SMP_BLOCK)
        largest = larger(largest, f.largest[which * SMP__FP8_PARTS + i]);
    largest = block_larger(largest, scratch);
    const smp_fp8_scale scale = smp_fp8_scale_of(of.format, smp__fp8_of_bits(largest));
    if (blockIdx.x == 0 && threadIdx.x == 0)
        f.scale[which] = scale.from;
    if (of.transposed)
        round_columns(of, scale.to, rounded, tile);
    else
        round_rows(of, scale.to, rounded);
}

smp_status smp__fp8_round_pair(const smp_cuda *cuda, const smp__fp8_factor factor[2],
                               void *workspace, smp__fp8_pair *out)
{
    uint8_t *place = static_cast<uint8_t *>(workspace);
    fp8_factors f = {{factor[0], factor[1]}, {}, static_cast<float *>(workspace), {}};
    f.largest = reinterpret_cast<uint32_t *>(place + SMP__FP8_ALIGNMENT);
    place += smp__fp8_head_bytes();
    int64_t packs = 0;
    for (int i = 0; i < 2; i++) {
        const int64_t own = factor[i].rows * factor[i].columns / PACK;
        packs = own > packs ? own : packs;
        f.rounded[i] = place;
        out->rounded[i] = place;
        out->scale[i] = f.scale + i;
        place += smp__fp8_rounded_bytes(factor[i].rows, factor[i].columns);
    }
    const unsigned parts = smp_blocks(packs, SMP_BLOCK, SMP__FP8_PARTS);
    SMP_LAUNCH(fp8_largest_values, dim3(parts, 2), SMP_BLOCK, 0, cuda->stream, f);
    SMP_TRY(smp__cuda_launched("largest values of factors"));
    SMP_LAUNCH(fp8_round_factors, dim3(smp_grid(cuda, packs), 2), SMP_BLOCK, 0, cuda->stream, f,
               (int)parts);
    return smp__cuda_launched("factors in fp8");
}
